//! What to do with a PV (rules D1–D3, D7, D8, V1).
//!
//! Purpose: delete exactly the volumes that are ours, released and to be deleted; keep our finalizer where it belongs.
//! Invariants: pure; a PV with an odd, empty or missing affinity is not ours to touch; Retain is never deleted.
//! It must not know: whether the volume still exists.

use k8s_openapi::{api::core::v1::PersistentVolume, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Facts, claim::annotation};
use crate::names::{
    ANN_MIGRATED_TO, ANN_PROVISIONED_BY, HOSTNAME_LABEL, PV_FINALIZER, node_label_key,
    node_label_value,
};

/// A PV, with every field reached without assuming that it is there.
#[derive(Clone, Copy, Debug)]
pub struct PvView<'a>(pub &'a PersistentVolume);

impl<'a> PvView<'a> {
    /// Its name, or "".
    pub fn name(self) -> &'a str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its UID, or "".
    pub fn uid(self) -> &'a str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Driver and handle of its CSI source.
    pub fn csi(self) -> Option<(&'a str, &'a str)> {
        let csi = self.0.spec.as_ref()?.csi.as_ref()?;
        Some((csi.driver.as_str(), csi.volume_handle.as_str()))
    }

    /// Name of its class, or "".
    pub fn class(self) -> &'a str {
        annotation(&self.0.metadata, crate::names::ANN_CLASS)
            .or_else(|| self.0.spec.as_ref()?.storage_class_name.as_deref())
            .unwrap_or_default()
    }

    /// Its size, as written.
    pub fn capacity(self) -> Option<&'a str> {
        self.0.spec.as_ref()?.capacity.as_ref()?.get("storage").map(|q| q.0.as_str())
    }

    /// UID of the claim it is for.
    pub fn claim_uid(self) -> Option<&'a str> {
        self.0.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
    }

    /// `namespace/name` of the claim it is for.
    pub fn claim_name(self) -> Option<String> {
        let claim = self.0.spec.as_ref()?.claim_ref.as_ref()?;
        Some(format!(
            "{}/{}",
            claim.namespace.as_deref().unwrap_or_default(),
            claim.name.as_deref().unwrap_or_default()
        ))
    }

    /// Values of the hostname label that its node affinity names.
    pub fn hostnames(self) -> Vec<&'a str> {
        let affinity =
            self.0.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
        let terms = affinity.map(|r| r.node_selector_terms.as_slice()).unwrap_or_default();
        terms
            .iter()
            .flat_map(|term| term.match_expressions.iter().flatten())
            .filter(|e| e.key == HOSTNAME_LABEL && e.operator == "In")
            .flat_map(|e| e.values.iter().flatten())
            .map(String::as_str)
            .collect()
    }

    /// Its phase, or "".
    pub fn phase(self) -> &'a str {
        self.0.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
    }

    /// Reclaim policy; none means Delete only for volumes that name it: an absent policy deletes nothing.
    pub fn policy(self) -> &'a str {
        self.0
            .spec
            .as_ref()
            .and_then(|s| s.persistent_volume_reclaim_policy.as_deref())
            .unwrap_or_default()
    }

    /// Whether its deletion was asked for.
    pub fn deleting(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has our finalizer.
    pub fn has_finalizer(self) -> bool {
        has_finalizer(&self.0.metadata)
    }
}

/// L9, L24: the PV is of that driver and for that claim.
pub fn is_of_claim(pv: PvView<'_>, claim_uid: &str, driver: &str) -> bool {
    pv.claim_uid() == Some(claim_uid) && pv.csi().is_some_and(|(d, _)| d == driver)
}

fn has_finalizer(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == PV_FINALIZER)
}

/// What to do with a PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeAction<'a> {
    /// D1, D8: somebody else's.
    Foreign,
    /// Ours, and as it should be.
    Keep,
    /// D2: our finalizer is missing.
    AddFinalizer,
    /// D2: our finalizer is not wanted (any more).
    RemoveFinalizer,
    /// D3: its volume and then itself are to be deleted.
    Delete {
        /// What the backend calls the volume.
        handle: &'a str,
    },
    /// D7: to be deleted, but it names no volume of a CSI driver.
    Invalid,
}

/// Decides about a PV. `hostname` is the label of this node; unknown: nothing is ours (D8).
pub fn volume<'a>(v: PvView<'a>, hostname: Option<&str>, facts: &Facts) -> VolumeAction<'a> {
    if !made_by_us(v, facts) || !lives_here(v, hostname, facts) {
        return VolumeAction::Foreign;
    }
    let forgotten = v.deleting() && !v.has_finalizer();
    match (v.policy(), v.phase()) {
        ("Delete", "Released") if !forgotten => match v.csi() {
            Some((driver, handle)) if driver == facts.driver => VolumeAction::Delete { handle },
            Some(_) | None => VolumeAction::Invalid,
        },
        ("Delete", "Bound") if !v.deleting() && !v.has_finalizer() => VolumeAction::AddFinalizer,
        ("Retain" | "Recycle", _) if v.has_finalizer() => VolumeAction::RemoveFinalizer,
        _ => VolumeAction::Keep,
    }
}

/// W1, V10: ours and of this node, but stored by an earlier release, without the label by which it is watched.
pub fn unlabelled(v: PvView<'_>, hostname: Option<&str>, facts: &Facts) -> bool {
    let labels = v.0.metadata.labels.as_ref();
    labels.is_none_or(|l| !l.contains_key(&node_label_key(&facts.driver)))
        && made_by_us(v, facts)
        && v.csi().is_some_and(|(driver, _)| driver == facts.driver)
        && lives_here(v, hostname, facts)
}

/// D1: provisioned by our driver.
fn made_by_us(v: PvView<'_>, facts: &Facts) -> bool {
    let meta = &v.0.metadata;
    let migrated = || annotation(meta, ANN_MIGRATED_TO);
    match annotation(meta, ANN_PROVISIONED_BY) {
        Some(by) => by == facts.driver || migrated() == Some(facts.driver.as_str()),
        None => match v.csi() {
            Some((driver, _)) => driver == facts.driver,
            None => migrated() == Some(facts.driver.as_str()),
        },
    }
}

/// D8, V1: every term of the affinity allows this node and nothing but this node; without any affinity the
/// label decides.
fn lives_here(v: PvView<'_>, hostname: Option<&str>, facts: &Facts) -> bool {
    let required =
        v.0.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    let Some(required) = required else {
        let label =
            v.0.metadata.labels.as_ref().and_then(|l| l.get(&node_label_key(&facts.driver)));
        return label.is_some_and(|l| *l == node_label_value(&facts.node));
    };
    let Some(hostname) = hostname else { return false };
    let terms = &required.node_selector_terms;
    !terms.is_empty()
        && terms.iter().all(|term| {
            term.match_expressions.iter().flatten().any(|e| {
                let values = e.values.as_deref().unwrap_or_default();
                e.key == HOSTNAME_LABEL
                    && e.operator == "In"
                    && values.len() == 1
                    && values.iter().all(|v| v == hostname)
            })
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, VolumeNodeAffinity};
    use k8s_testkit::mk_pv;

    use super::*;
    use crate::{names::DEFAULT_DRIVER, testing::facts};

    fn pv(phase: &str, policy: &str) -> PersistentVolume {
        mk_pv("pvc-u")
            .uid("pu")
            .csi(DEFAULT_DRIVER, "pvc-u")
            .annotation(ANN_PROVISIONED_BY, DEFAULT_DRIVER)
            .affinity(HOSTNAME_LABEL, "host-1")
            .policy(policy)
            .phase(phase)
            .finalizer(PV_FINALIZER)
            .build()
    }

    fn act(pv: &PersistentVolume) -> VolumeAction<'_> {
        volume(PvView(pv), Some("host-1"), &facts())
    }

    #[test]
    fn v10_a_pv_of_an_earlier_release_is_told_from_all_others() {
        let here = |pv: &PersistentVolume| unlabelled(PvView(pv), Some("host-1"), &facts());
        assert!(here(&pv("Bound", "Delete")));
        let mut labelled = pv("Bound", "Delete");
        labelled.metadata.labels = Some([(node_label_key(DEFAULT_DRIVER), "n1".to_owned())].into());
        assert!(!here(&labelled));
        assert!(!unlabelled(PvView(&pv("Bound", "Delete")), Some("host-2"), &facts()));
        assert!(!unlabelled(PvView(&pv("Bound", "Delete")), None, &facts()));
        let theirs = mk_pv("x").csi("other", "x").affinity(HOSTNAME_LABEL, "host-1").build();
        assert!(!here(&theirs));
        let nowhere = mk_pv("x").csi(DEFAULT_DRIVER, "x").build();
        assert!(!here(&nowhere), "without an affinity nobody knows whose it is");
    }

    #[test]
    fn d3_only_released_volumes_with_policy_delete_are_deleted() {
        let delete = VolumeAction::Delete { handle: "pvc-u" };
        for (phase, policy, action) in [
            ("Released", "Delete", delete),
            ("Bound", "Delete", VolumeAction::Keep),
            ("Available", "Delete", VolumeAction::Keep),
            ("Failed", "Delete", VolumeAction::Keep),
            ("Pending", "Delete", VolumeAction::Keep),
            ("", "Delete", VolumeAction::Keep),
            ("Released", "", VolumeAction::Keep),
            ("Released", "Retain", VolumeAction::RemoveFinalizer),
            ("Bound", "Retain", VolumeAction::RemoveFinalizer),
            ("Released", "Recycle", VolumeAction::RemoveFinalizer),
        ] {
            assert_eq!(act(&pv(phase, policy)), action, "{phase} {policy}");
        }
    }

    #[test]
    fn d2_the_finalizer_is_added_to_bound_volumes_that_will_be_deleted_and_to_no_others() {
        for (phase, policy, action) in [
            ("Bound", "Delete", VolumeAction::AddFinalizer),
            ("Available", "Delete", VolumeAction::Keep),
            ("Bound", "Retain", VolumeAction::Keep),
            ("Released", "Delete", VolumeAction::Delete { handle: "pvc-u" }),
        ] {
            let mut v = pv(phase, policy);
            v.metadata.finalizers = Some(vec!["kubernetes.io/pv-protection".into()]);
            assert_eq!(act(&v), action, "{phase} {policy}");
        }
    }

    #[test]
    fn d3_a_volume_that_is_deleted_without_our_finalizer_is_left_alone() {
        let mut v = pv("Released", "Delete");
        v.metadata.deletion_timestamp = Some(k8s_testkit::time(1));
        assert_eq!(act(&v), VolumeAction::Delete { handle: "pvc-u" });
        v.metadata.finalizers = None;
        assert_eq!(act(&v), VolumeAction::Keep);
    }

    #[test]
    fn d1_only_volumes_of_our_driver_are_ours() {
        let mut theirs = pv("Released", "Delete");
        theirs.metadata.annotations =
            Some([(ANN_PROVISIONED_BY.to_owned(), "other".to_owned())].into());
        assert_eq!(act(&theirs), VolumeAction::Foreign);
        let mut unmarked = pv("Released", "Delete");
        unmarked.metadata.annotations = None;
        assert_eq!(act(&unmarked), VolumeAction::Delete { handle: "pvc-u" });
        unmarked.spec.get_or_insert_default().csi = None;
        assert_eq!(act(&unmarked), VolumeAction::Foreign);
    }

    #[test]
    fn d7_a_volume_of_ours_without_a_csi_source_of_ours_is_invalid() {
        let mut v = pv("Released", "Delete");
        v.spec.get_or_insert_default().csi = None;
        assert_eq!(act(&v), VolumeAction::Invalid);
        assert_eq!(
            act(&mk_pv("x")
                .csi("other", "h")
                .annotation(ANN_PROVISIONED_BY, DEFAULT_DRIVER)
                .affinity(HOSTNAME_LABEL, "host-1")
                .policy("Delete")
                .phase("Released")
                .build()),
            VolumeAction::Invalid
        );
    }

    #[test]
    fn d8_v1_the_affinity_is_judged_by_the_label_and_not_by_the_node_name() {
        assert_eq!(
            volume(PvView(&pv("Released", "Delete")), Some("n1"), &facts()),
            VolumeAction::Foreign
        );
        assert_eq!(
            volume(PvView(&pv("Released", "Delete")), None, &facts()),
            VolumeAction::Foreign
        );
    }

    #[test]
    fn d8_v9_no_empty_or_foreign_affinity_deletes_nothing() {
        let mut v = pv("Released", "Delete");
        let set = |v: &mut PersistentVolume, terms: Vec<NodeSelectorTerm>| {
            v.spec.get_or_insert_default().node_affinity = Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: terms }),
            });
        };
        set(&mut v, vec![]);
        assert_eq!(act(&v), VolumeAction::Foreign, "no terms");
        set(&mut v, vec![NodeSelectorTerm::default()]);
        assert_eq!(act(&v), VolumeAction::Foreign, "empty term");
        v.spec.get_or_insert_default().node_affinity = None;
        assert_eq!(act(&v), VolumeAction::Foreign, "no affinity, no label");
        v.metadata.labels = Some([(node_label_key(DEFAULT_DRIVER), "n1".to_owned())].into());
        assert_eq!(act(&v), VolumeAction::Delete { handle: "pvc-u" }, "no affinity, our label");
        let other = mk_pv("p")
            .csi(DEFAULT_DRIVER, "h")
            .affinity(HOSTNAME_LABEL, "host-2")
            .policy("Delete")
            .phase("Released")
            .build();
        assert_eq!(act(&other), VolumeAction::Foreign);
        assert_eq!(act(&PersistentVolume::default()), VolumeAction::Foreign);
    }
}
