//! Where a volume's first content comes from (rules C5, C8).
//!
//! Purpose: judge the claim that another one is to be a clone of, and name its volume.
//! Invariants: pure; the checks come in the order of the rule, so that a claim always gets the same sentence.
//! It must not know: how objects are read, how a copy is made.

use super::{ClaimView, CreatePlan, Failure, PvView};
use crate::{names::HOSTNAME_LABEL, quantity::Quantity};

/// What a volume begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What the backend calls the volume it is a copy of.
    Volume(String),
}

/// The claim in the same namespace that `claim` is to be a clone of.
pub fn cloned_claim(claim: ClaimView<'_>) -> Option<&str> {
    let spec = claim.0.spec.as_ref()?;
    let (kind, name) = match (&spec.data_source, &spec.data_source_ref) {
        (Some(s), _) => (s.kind.as_str(), s.name.as_str()),
        (None, Some(s)) => (s.kind.as_str(), s.name.as_str()),
        (None, None) => return None,
    };
    (kind == "PersistentVolumeClaim").then_some(name)
}

/// C5, first half: what can be said of the source before its PV is read; answers the PV's name.
///
/// # Errors
/// The claim cannot be cloned now.
pub fn cloned_volume<'a>(plan: &CreatePlan, source: ClaimView<'a>) -> Result<&'a str, Failure> {
    let name = source.name();
    let status = source.0.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
    if phase != "Bound" {
        return Err(Failure::finished(format!(
            "the PVC DataSource {name} must have a status of Bound.  Got {phase}"
        )));
    }
    if source.0.metadata.deletion_timestamp.is_some() {
        return Err(Failure::finished(format!(
            "the PVC DataSource {name} is currently being deleted"
        )));
    }
    if source.class().is_none() {
        return Err(Failure::finished(format!(
            "the source PVC ({name}) storageclass cannot be empty"
        )));
    }
    let has = status.and_then(|s| s.capacity.as_ref()?.get("storage")).map(|q| q.0.as_str());
    let has = has.or_else(|| source.request()).and_then(|q| q.parse::<Quantity>().ok());
    if let Some(has) = has.map(Quantity::value)
        && i128::from(plan.bytes) < has
    {
        return Err(Failure::finished(format!(
            "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested {} but source is {has}",
            plan.bytes
        )));
    }
    source
        .volume_name()
        .ok_or_else(|| Failure::finished(format!("volume name is empty in source PVC {name}")))
}

/// C5, second half, and C8: the source's PV, which must be here.
///
/// # Errors
/// The claim cannot be cloned, or not on this node.
pub fn clone_of(
    plan: &CreatePlan,
    source: ClaimView<'_>,
    pv: Option<PvView<'_>>,
) -> Result<Source, Failure> {
    let valid = pv.filter(|pv| {
        source.uid().is_some() && pv.claim_uid() == source.uid() && pv.phase() == "Bound"
    });
    let handle = valid.and_then(|pv| pv.csi()).filter(|(driver, _)| *driver == plan.driver);
    let (Some(pv), Some((_, handle))) = (valid, handle) else {
        return Err(Failure::finished("claim in dataSource not bound or invalid"));
    };
    let (from, to) = (mode(source.mode()), mode(plan.volume_mode.as_deref()));
    if from != to {
        return Err(Failure::finished(format!(
            "the source PVC and destination PVCs must have the same volume mode for cloning.  Source is {from}, but new PVC requested {to}"
        )));
    }
    let nodes = pv.hostnames();
    if !plan.segment.get(HOSTNAME_LABEL).is_some_and(|here| nodes.contains(&here.as_str())) {
        return Err(Failure::reschedule(format!(
            "the volume of claim {} is on node {}, and a clone can be made only there",
            source.name(),
            nodes.join(", ")
        )));
    }
    Ok(Source::Volume(handle.to_owned()))
}

/// No mode means Filesystem.
fn mode(mode: Option<&str>) -> &str {
    mode.filter(|m| !m.is_empty()).unwrap_or("Filesystem")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use k8s_testkit::{mk_class, mk_pv, mk_pvc, time};
    use serde_json::json;

    use super::*;
    use crate::{
        names::DEFAULT_DRIVER,
        plan::{CreateInput, Facts, State, create},
        testing::facts,
    };

    fn plan(size: &str) -> CreatePlan {
        let mut claim = mk_pvc("ns", "new")
            .uid("n")
            .class("fast")
            .request(size)
            .access("ReadWriteOnce")
            .build();
        claim.spec.get_or_insert_default().data_source =
            serde_json::from_value(json!({"kind": "PersistentVolumeClaim", "name": "old"}))
                .unwrap();
        assert_eq!(cloned_claim(ClaimView(&claim)), Some("old"));
        let class = mk_class("fast", DEFAULT_DRIVER).build();
        let facts = Facts { clones: true, ..facts() };
        let claim = ClaimView(&claim);
        create(&CreateInput { claim, class: &class, facts: &facts, hostname: Some("host-1") })
            .unwrap()
    }

    fn source() -> PersistentVolumeClaim {
        let mut c = mk_pvc("ns", "old").uid("o").class("slow").request("1Gi").build();
        c.spec.get_or_insert_default().volume_name = Some("pvc-o".into());
        c.status =
            serde_json::from_value(json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}))
                .unwrap();
        c
    }

    fn pv(host: &str) -> PersistentVolume {
        mk_pv("pvc-o")
            .csi(DEFAULT_DRIVER, "pvc-o")
            .claim("ns", "old", "o")
            .phase("Bound")
            .affinity(HOSTNAME_LABEL, host)
            .build()
    }

    fn sentence(change: impl FnOnce(&mut PersistentVolumeClaim)) -> String {
        let mut source = source();
        change(&mut source);
        cloned_volume(&plan("1Gi"), ClaimView(&source)).unwrap_err().text
    }

    #[test]
    fn c5_each_reason_not_to_clone_has_its_sentence() {
        assert_eq!(cloned_volume(&plan("1Gi"), ClaimView(&source())).as_deref(), Ok("pvc-o"));
        let text = sentence(|c| c.status.get_or_insert_default().phase = Some("Pending".into()));
        assert_eq!(text, "the PVC DataSource old must have a status of Bound.  Got Pending");
        let text = sentence(|c| c.metadata.deletion_timestamp = Some(time(1)));
        assert_eq!(text, "the PVC DataSource old is currently being deleted");
        let text = sentence(|c| c.spec.get_or_insert_default().storage_class_name = None);
        assert_eq!(text, "the source PVC (old) storageclass cannot be empty");
        let text = sentence(|c| c.spec.get_or_insert_default().volume_name = None);
        assert_eq!(text, "volume name is empty in source PVC old");
        let small = cloned_volume(&plan("1Mi"), ClaimView(&source())).unwrap_err().text;
        assert!(small.ends_with("requested 1048576 but source is 1073741824"), "{small}");
    }

    #[test]
    fn c5_c8_only_a_bound_volume_of_ours_on_this_node_is_copied() {
        let of = |pv: Option<&PersistentVolume>| {
            clone_of(&plan("1Gi"), ClaimView(&source()), pv.map(PvView))
        };
        assert_eq!(of(Some(&pv("host-1"))), Ok(Source::Volume("pvc-o".into())));
        let elsewhere = of(Some(&pv("host-2"))).unwrap_err();
        assert_eq!(elsewhere.state, State::Reschedule);
        assert!(elsewhere.text.contains("claim old is on node host-2"), "{}", elsewhere.text);
        let theirs =
            mk_pv("pvc-o").csi("other", "x").claim("ns", "old", "o").phase("Bound").build();
        let stolen =
            mk_pv("pvc-o").csi(DEFAULT_DRIVER, "x").claim("ns", "old", "p").phase("Bound").build();
        for pv in [None, Some(&theirs), Some(&stolen)] {
            assert_eq!(of(pv).unwrap_err().text, "claim in dataSource not bound or invalid");
        }
        let mut block = source();
        block.spec.get_or_insert_default().volume_mode = Some("Block".into());
        let here = pv("host-1");
        let text = clone_of(&plan("1Gi"), ClaimView(&block), Some(PvView(&here))).unwrap_err().text;
        assert!(text.ends_with("Source is Block, but new PVC requested Filesystem"), "{text}");
    }
}
