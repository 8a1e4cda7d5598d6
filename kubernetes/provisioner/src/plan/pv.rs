//! The PV of a volume (rules L15, P28, T17, V3, W1).
//!
//! Purpose: describe a made volume to Kubernetes.
//! Invariants: pure; the PV names claim, node and policy before anybody can see it; no empty affinity is ever written.
//! It must not know: how it is stored.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
        PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity,
    },
    apimachinery::pkg::{api::resource::Quantity as ApiQuantity, apis::meta::v1::ObjectMeta},
};

use super::CreatePlan;
use crate::{
    names::{
        ANN_DELETION_SECRET, ANN_PROVISIONED_BY, PV_FINALIZER, node_label_key, node_label_value,
    },
    quantity::Quantity,
};

/// A volume that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provisioned {
    /// What the backend calls it.
    pub handle: String,
    /// Its size.
    pub capacity_bytes: u64,
    /// Where it can be reached from: labels of nodes, one map per place.
    pub topology: Vec<BTreeMap<String, String>>,
    /// What the kubelet hands to the driver.
    pub attributes: BTreeMap<String, String>,
}

/// The PV for what was made.
pub fn pv(p: &CreatePlan, out: &Provisioned) -> PersistentVolume {
    let mut annotations = BTreeMap::from([(ANN_PROVISIONED_BY.to_owned(), p.driver.clone())]);
    for key in ANN_DELETION_SECRET {
        annotations.insert(key.to_owned(), String::new());
    }
    let capacity = if p.verbatim_capacity {
        p.request.clone()
    } else {
        Quantity::from_bytes(out.capacity_bytes).to_string()
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(p.name.clone()),
            labels: Some([(node_label_key(&p.driver), node_label_value(&p.node))].into()),
            annotations: Some(annotations),
            finalizers: Some(vec![PV_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(p.access_modes.clone()),
            capacity: Some([("storage".to_owned(), ApiQuantity(capacity))].into()),
            claim_ref: Some(p.claim_ref.clone()),
            csi: Some(CSIPersistentVolumeSource {
                driver: p.driver.clone(),
                volume_handle: out.handle.clone(),
                fs_type: p.fs_type.clone().filter(|_| !p.block()),
                volume_attributes: Some(out.attributes.clone()).filter(|a| !a.is_empty()),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: Some(p.mount_options.clone()).filter(|o| !o.is_empty()),
            node_affinity: affinity(&out.topology),
            persistent_volume_reclaim_policy: Some(p.policy.clone()),
            storage_class_name: Some(p.class.clone()),
            volume_mode: p.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// T17: a term for each place the volume can be reached from; places without labels are left out.
fn affinity(topology: &[BTreeMap<String, String>]) -> Option<VolumeNodeAffinity> {
    let terms: Vec<NodeSelectorTerm> = topology
        .iter()
        .filter(|segment| !segment.is_empty())
        .map(|segment| NodeSelectorTerm {
            match_expressions: Some(
                segment
                    .iter()
                    .map(|(key, value)| NodeSelectorRequirement {
                        key: key.clone(),
                        operator: "In".to_owned(),
                        values: Some(vec![value.clone()]),
                    })
                    .collect(),
            ),
            match_fields: None,
        })
        .collect();
    (!terms.is_empty()).then_some(VolumeNodeAffinity {
        required: Some(NodeSelector { node_selector_terms: terms }),
    })
}

#[cfg(test)]
mod tests {
    use k8s_testkit::{mk_class, mk_pvc};

    use super::*;
    use crate::{
        names::{DEFAULT_DRIVER, HOSTNAME_LABEL},
        plan::{ClaimView, CreateInput, PvView, VolumeAction, create, volume},
        testing::facts,
    };

    fn made(request: &str, topology: Vec<BTreeMap<String, String>>) -> PersistentVolume {
        let claim = mk_pvc("ns", "c")
            .uid("u")
            .class("fast")
            .request(request)
            .access("ReadWriteOnce")
            .build();
        let mut class = mk_class("fast", DEFAULT_DRIVER).build();
        class.mount_options = Some(vec!["noatime".into()]);
        let plan = create(&CreateInput {
            claim: ClaimView(&claim),
            class: &class,
            facts: &facts(),
            hostname: Some("host-1"),
        })
        .unwrap();
        let out = Provisioned {
            handle: "pvc-u".into(),
            capacity_bytes: plan.bytes,
            topology: if topology.is_empty() { vec![plan.segment.clone()] } else { topology },
            attributes: BTreeMap::new(),
        };
        pv(&plan, &out)
    }

    #[test]
    fn p28_l15_v3_the_pv_carries_all_that_others_depend_on() {
        let json = serde_json::to_value(made("1.5Gi", vec![])).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {
                    "name": "pvc-u",
                    "labels": {"node.hamlet.dev/com.nexantic.smalltown.vfs": "n1"},
                    "annotations": {
                        "pv.kubernetes.io/provisioned-by": DEFAULT_DRIVER,
                        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                    },
                    "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": {"storage": "1.5Gi"},
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "c",
                                 "uid": "u", "resourceVersion": "1"},
                    "csi": {"driver": DEFAULT_DRIVER, "volumeHandle": "pvc-u"},
                    "mountOptions": ["noatime"],
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                        {"key": HOSTNAME_LABEL, "operator": "In", "values": ["host-1"]}]}]}},
                    "persistentVolumeReclaimPolicy": "Delete",
                    "storageClassName": "fast",
                },
            })
        );
    }

    #[test]
    fn t17_places_without_labels_make_no_term_and_none_at_all_makes_no_affinity() {
        let v = made("1Gi", vec![BTreeMap::new()]);
        assert_eq!(v.spec.unwrap().node_affinity, None);
    }

    #[test]
    fn d8_what_we_write_is_what_we_recognise_as_ours() {
        let mut v = made("1Gi", vec![]);
        v.status.get_or_insert_default().phase = Some("Released".into());
        assert_eq!(
            volume(PvView(&v), Some("host-1"), &facts()),
            VolumeAction::Delete { handle: "pvc-u" }
        );
        assert_eq!(volume(PvView(&v), Some("host-2"), &facts()), VolumeAction::Foreign);
    }
}
