//! Builders for the objects of storage: claims, volumes, classes, nodes.
//!
//! Purpose: objects in one line. Invariants: pure; resource version 1 where an API server would set one.
//! It must not know: what a test does with them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{
            CSIPersistentVolumeSource, Node, NodeSelector, NodeSelectorRequirement,
            NodeSelectorTerm, ObjectReference, PersistentVolume, PersistentVolumeClaim,
            VolumeNodeAffinity, VolumeResourceRequirements,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};

/// A time `seconds` after 1970.
pub fn time(seconds: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap_or_default())
}

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        resource_version: Some("1".to_owned()),
        ..ObjectMeta::default()
    }
}

fn put(map: &mut Option<BTreeMap<String, String>>, key: &str, value: &str) {
    map.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

/// A claim `namespace/name` without anything else.
pub fn mk_pvc(namespace: &str, name: &str) -> ClaimBuilder {
    let mut claim =
        PersistentVolumeClaim { metadata: meta(name), ..PersistentVolumeClaim::default() };
    claim.metadata.namespace = Some(namespace.to_owned());
    ClaimBuilder(claim)
}

/// Builds a claim.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClaimBuilder(PersistentVolumeClaim);

impl ClaimBuilder {
    /// Its UID.
    pub fn uid(mut self, uid: &str) -> Self {
        self.0.metadata.uid = Some(uid.to_owned());
        self
    }

    /// Its class.
    pub fn class(mut self, class: &str) -> Self {
        self.0.spec.get_or_insert_default().storage_class_name = Some(class.to_owned());
        self
    }

    /// The size it asks for.
    pub fn request(mut self, size: &str) -> Self {
        let resources = VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), Quantity(size.to_owned()))].into()),
            limits: None,
        };
        self.0.spec.get_or_insert_default().resources = Some(resources);
        self
    }

    /// One more access mode.
    pub fn access(mut self, mode: &str) -> Self {
        self.0
            .spec
            .get_or_insert_default()
            .access_modes
            .get_or_insert_default()
            .push(mode.to_owned());
        self
    }

    /// The provisioner that the volume controller wrote on it.
    pub fn provisioner(self, driver: &str) -> Self {
        self.annotation("volume.kubernetes.io/storage-provisioner", driver)
    }

    /// The node that the scheduler wrote on it.
    pub fn selected_node(self, node: &str) -> Self {
        self.annotation("volume.kubernetes.io/selected-node", node)
    }

    /// One more annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        put(&mut self.0.metadata.annotations, key, value);
        self
    }

    /// The claim.
    pub fn build(self) -> PersistentVolumeClaim {
        self.0
    }
}

/// A PV of that name without anything else.
pub fn mk_pv(name: &str) -> VolumeBuilder {
    VolumeBuilder(PersistentVolume { metadata: meta(name), ..PersistentVolume::default() })
}

/// Builds a PV.
#[derive(Clone, Debug)]
#[must_use]
pub struct VolumeBuilder(PersistentVolume);

impl VolumeBuilder {
    /// Its UID.
    pub fn uid(mut self, uid: &str) -> Self {
        self.0.metadata.uid = Some(uid.to_owned());
        self
    }

    /// A CSI source.
    pub fn csi(mut self, driver: &str, handle: &str) -> Self {
        let csi = CSIPersistentVolumeSource {
            driver: driver.to_owned(),
            volume_handle: handle.to_owned(),
            ..CSIPersistentVolumeSource::default()
        };
        self.0.spec.get_or_insert_default().csi = Some(csi);
        self
    }

    /// Its reclaim policy.
    pub fn policy(mut self, policy: &str) -> Self {
        self.0.spec.get_or_insert_default().persistent_volume_reclaim_policy =
            Some(policy.to_owned());
        self
    }

    /// Its phase.
    pub fn phase(mut self, phase: &str) -> Self {
        self.0.status.get_or_insert_default().phase = Some(phase.to_owned());
        self
    }

    /// The claim it is for.
    pub fn claim(mut self, namespace: &str, name: &str, uid: &str) -> Self {
        let claim = ObjectReference {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.0.spec.get_or_insert_default().claim_ref = Some(claim);
        self
    }

    /// An affinity of one term: label `key` is `value`.
    pub fn affinity(mut self, key: &str, value: &str) -> Self {
        let requirement = NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![value.to_owned()]),
        };
        let term =
            NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
        self.0.spec.get_or_insert_default().node_affinity = Some(VolumeNodeAffinity {
            required: Some(NodeSelector { node_selector_terms: vec![term] }),
        });
        self
    }

    /// One more annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        put(&mut self.0.metadata.annotations, key, value);
        self
    }

    /// One more label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        put(&mut self.0.metadata.labels, key, value);
        self
    }

    /// One more finalizer.
    pub fn finalizer(mut self, name: &str) -> Self {
        self.0.metadata.finalizers.get_or_insert_default().push(name.to_owned());
        self
    }

    /// The PV.
    pub fn build(self) -> PersistentVolume {
        self.0
    }
}

/// A class of that provisioner: WaitForFirstConsumer, Delete.
pub fn mk_class(name: &str, provisioner: &str) -> ClassBuilder {
    let mut metadata = meta(name);
    metadata.uid = Some(format!("class-{name}"));
    ClassBuilder(StorageClass {
        metadata,
        provisioner: provisioner.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        ..StorageClass::default()
    })
}

/// Builds a class.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClassBuilder(StorageClass);

impl ClassBuilder {
    /// Its binding mode.
    pub fn binding(mut self, mode: &str) -> Self {
        self.0.volume_binding_mode = Some(mode.to_owned());
        self
    }

    /// Its reclaim policy.
    pub fn policy(mut self, policy: &str) -> Self {
        self.0.reclaim_policy = Some(policy.to_owned());
        self
    }

    /// One more parameter.
    pub fn parameter(mut self, key: &str, value: &str) -> Self {
        put(&mut self.0.parameters, key, value);
        self
    }

    /// The class.
    pub fn build(self) -> StorageClass {
        self.0
    }
}

/// A Node of that name.
pub fn mk_node(name: &str) -> NodeBuilder {
    NodeBuilder(Node { metadata: meta(name), ..Node::default() })
}

/// Builds a Node.
#[derive(Clone, Debug)]
#[must_use]
pub struct NodeBuilder(Node);

impl NodeBuilder {
    /// One more label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        put(&mut self.0.metadata.labels, key, value);
        self
    }

    /// The Node.
    pub fn build(self) -> Node {
        self.0
    }
}
