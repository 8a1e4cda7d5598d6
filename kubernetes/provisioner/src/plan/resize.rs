//! Whether a bound claim's volume grows, to what, and what the claim says meanwhile (rules E1–E5).
//!
//! Purpose: one decision from claim and PV, and the three changes of the claim's status: begun, failed, done.
//! Invariants: pure; nothing ever shrinks; a status names the version of the claim it was made from, so that it
//! never overwrites what somebody else wrote in between.
//! It must not know: whether the backend has room.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use serde_json::{Value, json};

use super::{ClaimView, Facts, Failure, PvView, is_of_claim};
use crate::quantity::Quantity;

/// The key of sizes in Kubernetes' resource lists.
const STORAGE: &str = "storage";
/// Resize status: the controller is at it.
const IN_PROGRESS: &str = "ControllerResizeInProgress";
/// Resize status: it can never be done as asked.
const INFEASIBLE: &str = "ControllerResizeInfeasible";
/// Condition: the volume is being resized.
const RESIZING: &str = "Resizing";
/// Condition: the last attempt failed.
const FAILED: &str = "ControllerResizeError";
/// Conditions that end with the resize, whoever wrote them.
const PASSING: [&str; 4] = [RESIZING, FAILED, "NodeResizeError", "FileSystemResizePending"];

/// A volume that is to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizePlan {
    /// The PV.
    pub pv: String,
    /// What the backend calls the volume.
    pub handle: String,
    /// The size as it was asked for.
    pub to: String,
    /// The same in bytes.
    pub bytes: u64,
    /// E3: the claim does not yet say that it is being resized to this size.
    pub announce: bool,
    /// E5: the PV does not yet have this size.
    pub grow_pv: bool,
}

/// E1, E2: what a claim and its PV ask for; `None`: nothing.
///
/// # Errors
/// The size cannot be met by any volume.
pub fn resize(
    claim: ClaimView<'_>,
    pv: PvView<'_>,
    facts: &Facts,
) -> Option<Result<ResizePlan, Failure>> {
    let uid = claim.uid()?;
    let bound = claim.0.status.as_ref()?.phase.as_deref() == Some("Bound");
    if !facts.expand || !bound || pv.phase() != "Bound" || !is_of_claim(pv, uid, &facts.driver) {
        return None;
    }
    let request = claim.request()?;
    let wanted: Quantity = request.parse().ok()?;
    let has: Quantity = capacity(claim.0)?.parse().ok()?;
    if wanted <= has {
        return None;
    }
    let pv_has: Quantity = pv.capacity()?.parse().ok()?;
    let free_to_choose = matches!(resize_status(claim.0), None | Some("" | INFEASIBLE));
    let to = match allocated(claim.0) {
        Some(allocated) if !(free_to_choose && pv_has < wanted) => allocated,
        Some(_) | None => request,
    };
    let target: Quantity = to.parse().ok()?;
    let Some(bytes) = target.as_i64().and_then(|b| u64::try_from(b).ok()) else {
        let text = "PVC requesting more than 2^63 bytes of storage, this is not supported";
        return Some(Err(Failure::infeasible(text)));
    };
    let (_, handle) = pv.csi()?;
    let announced = allocated(claim.0).is_some_and(|a| a == to)
        && resize_status(claim.0) == Some(IN_PROGRESS)
        && conditions(claim.0).iter().any(|c| c.type_ == RESIZING);
    Some(Ok(ResizePlan {
        pv: pv.name().to_owned(),
        handle: handle.to_owned(),
        to: to.to_owned(),
        bytes,
        announce: !announced,
        grow_pv: pv_has < target,
    }))
}

/// E3: the claim says that it is being resized. `now` is RFC 3339.
pub fn begun(claim: &PersistentVolumeClaim, plan: &ResizePlan, now: &str) -> Value {
    let mut kept = without(claim, &PASSING);
    kept.push(condition(RESIZING, "", now));
    status(
        claim,
        json!({
            "allocatedResources": {STORAGE: plan.to},
            "allocatedResourceStatuses": {STORAGE: IN_PROGRESS},
            "conditions": kept,
        }),
    )
}

/// E4: the claim says why it was not resized. `now` is RFC 3339.
pub fn failed(claim: &PersistentVolumeClaim, f: &Failure, now: &str) -> Value {
    let mut kept = without(claim, &[FAILED]);
    kept.push(condition(FAILED, &format!("Failed to expand PV: {}", f.text), now));
    let mut change = json!({ "conditions": kept });
    if f.infeasible {
        change["allocatedResourceStatuses"] = json!({STORAGE: INFEASIBLE});
    }
    status(claim, change)
}

/// E5: the claim has its size.
pub fn done(claim: &PersistentVolumeClaim, plan: &ResizePlan) -> Value {
    status(
        claim,
        json!({
            "capacity": {STORAGE: plan.to},
            // Null takes a key away in a merge.
            "allocatedResourceStatuses": {STORAGE: null},
            "conditions": without(claim, &PASSING),
        }),
    )
}

fn status(claim: &PersistentVolumeClaim, change: Value) -> Value {
    json!({
        "metadata": {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version},
        "status": change,
    })
}

fn condition(kind: &str, message: &str, now: &str) -> Value {
    json!({"type": kind, "status": "True", "lastTransitionTime": now, "message": message})
}

fn without(claim: &PersistentVolumeClaim, kinds: &[&str]) -> Vec<Value> {
    let keep = |c: &&PersistentVolumeClaimCondition| !kinds.contains(&c.type_.as_str());
    conditions(claim).iter().filter(keep).map(|c| json!(c)).collect()
}

fn conditions(claim: &PersistentVolumeClaim) -> &[PersistentVolumeClaimCondition] {
    claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.capacity.as_ref()?.get(STORAGE).map(|q| q.0.as_str())
}

fn allocated(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.allocated_resources.as_ref()?.get(STORAGE).map(|q| q.0.as_str())
}

fn resize_status(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.allocated_resource_statuses.as_ref()?.get(STORAGE).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use k8s_testkit::{mk_pv, mk_pvc};
    use proptest::prelude::*;

    use super::*;
    use crate::{names::DEFAULT_DRIVER, testing::facts};

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn can_grow() -> Facts {
        Facts { expand: true, ..facts() }
    }

    fn claim(request: &str, status: &Value) -> PersistentVolumeClaim {
        let mut c = mk_pvc("ns", "c").uid("u").class("fast").request(request).build();
        c.metadata.resource_version = Some("7".into());
        c.status = serde_json::from_value(status.clone()).unwrap();
        c
    }

    fn bound(size: &str) -> PersistentVolume {
        let mut pv = mk_pv("pvc-u")
            .csi(DEFAULT_DRIVER, "pvc-u")
            .claim("ns", "c", "u")
            .phase("Bound")
            .build();
        pv.spec.get_or_insert_default().capacity =
            serde_json::from_value(json!({STORAGE: size})).unwrap();
        pv
    }

    fn decide(c: &PersistentVolumeClaim, pv: &PersistentVolume) -> Option<ResizePlan> {
        resize(ClaimView(c), PvView(pv), &can_grow()).map(|r| r.unwrap())
    }

    #[test]
    fn e1_only_a_bound_claim_that_asks_for_more_than_it_has_grows() {
        let has = |size: &str| json!({"phase": "Bound", "capacity": {STORAGE: size}});
        let more = claim("2Gi", &has("1Gi"));
        assert_eq!(
            decide(&more, &bound("1Gi")).map(|p| (p.to, p.bytes)),
            Some(("2Gi".into(), 2 << 30))
        );
        assert_eq!(decide(&claim("1Gi", &has("1Gi")), &bound("1Gi")), None);
        assert_eq!(decide(&claim("1Gi", &has("2Gi")), &bound("2Gi")), None, "never shrinks");
        assert_eq!(decide(&claim("1024Mi", &has("1Gi")), &bound("1Gi")), None, "the same size");
        let pending = claim("2Gi", &json!({"phase": "Pending"}));
        assert_eq!(decide(&pending, &bound("1Gi")), None);
        let mut released = bound("1Gi");
        released.status.get_or_insert_default().phase = Some("Released".into());
        assert_eq!(decide(&more, &released), None);
        let other =
            mk_pv("pvc-u").csi("other", "pvc-u").claim("ns", "c", "u").phase("Bound").build();
        assert_eq!(decide(&more, &other), None);
        assert_eq!(resize(ClaimView(&more), PvView(&bound("1Gi")), &facts()), None, "cannot grow");
    }

    #[test]
    fn e2_the_size_begun_with_holds_until_it_is_done_or_infeasible() {
        let status = |word: &str| {
            json!({
                "phase": "Bound", "capacity": {STORAGE: "1Gi"},
                "allocatedResources": {STORAGE: "3Gi"}, "allocatedResourceStatuses": {STORAGE: word},
            })
        };
        let to =
            |word: &str, pv: &str| decide(&claim("2Gi", &status(word)), &bound(pv)).map(|p| p.to);
        assert_eq!(to(IN_PROGRESS, "1Gi").as_deref(), Some("3Gi"));
        assert_eq!(to("NodeResizePending", "3Gi").as_deref(), Some("3Gi"));
        assert_eq!(to(INFEASIBLE, "1Gi").as_deref(), Some("2Gi"));
        assert_eq!(to("", "1Gi").as_deref(), Some("2Gi"));
        assert_eq!(to(INFEASIBLE, "3Gi").as_deref(), Some("3Gi"), "the PV has it already");
    }

    #[test]
    fn e3_e4_e5_the_status_is_begun_failed_and_done() {
        let other = json!({"type": "Other", "status": "True", "lastTransitionTime": NOW});
        let before = json!({"phase": "Bound", "capacity": {STORAGE: "1Gi"}, "conditions": [other]});
        let c = claim("2Gi", &before);
        let plan = decide(&c, &bound("1Gi")).unwrap();
        assert!(plan.announce && plan.grow_pv);
        let begun = begun(&c, &plan, NOW);
        assert_eq!(begun["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        let kinds = |v: &Value| {
            v["status"]["conditions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|c| c["type"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(&begun), ["Other", RESIZING]);
        let mut merged = before.clone();
        for (key, value) in begun["status"].as_object().unwrap() {
            merged[key] = value.clone();
        }
        let c = claim("2Gi", &merged);
        assert!(!decide(&c, &bound("1Gi")).unwrap().announce, "said once");
        let why = failed(&c, &Failure::infeasible("no room"), NOW);
        assert_eq!(kinds(&why), ["Other", RESIZING, FAILED]);
        assert_eq!(why["status"]["conditions"][2]["message"], "Failed to expand PV: no room");
        assert_eq!(why["status"]["allocatedResourceStatuses"][STORAGE], INFEASIBLE);
        let why = failed(&c, &Failure::finished("busy"), NOW);
        assert_eq!(why["status"].get("allocatedResourceStatuses"), None, "may still work");
        let end = done(&c, &plan);
        assert_eq!(kinds(&end), ["Other"]);
        assert_eq!(end["status"]["capacity"][STORAGE], "2Gi");
        assert!(end["status"]["allocatedResourceStatuses"][STORAGE].is_null());
    }

    #[test]
    fn a_size_beyond_sixty_three_bits_is_infeasible() {
        let c = claim("9Ei", &json!({"phase": "Bound", "capacity": {STORAGE: "1Gi"}}));
        let f = resize(ClaimView(&c), PvView(&bound("1Gi")), &can_grow()).unwrap();
        // Binary suffixes are capped at 2^63 - 1 by the grammar itself; larger numbers are not.
        assert!(f.is_ok());
        let c =
            claim("99999999999999999999", &json!({"phase": "Bound", "capacity": {STORAGE: "1Gi"}}));
        assert!(
            resize(ClaimView(&c), PvView(&bound("1Gi")), &can_grow())
                .unwrap()
                .unwrap_err()
                .infeasible
        );
    }

    proptest! {
        #[test]
        fn e5_no_plan_is_smaller_than_what_the_claim_has(
            request in 0u64..1 << 40,
            has in 0u64..1 << 40,
            allocated in proptest::option::of(0u64..1 << 40),
            pv in 0u64..1 << 40,
            word in proptest::sample::select(vec!["", IN_PROGRESS, INFEASIBLE, "NodeResizePending"]),
        ) {
            let mut status = json!({
                "phase": "Bound", "capacity": {STORAGE: has.to_string()},
                "allocatedResourceStatuses": {STORAGE: word},
            });
            if let Some(allocated) = allocated {
                status["allocatedResources"] = json!({STORAGE: allocated.max(has).to_string()});
            }
            let c = claim(&request.to_string(), &status);
            if let Some(plan) = decide(&c, &bound(&pv.to_string())) {
                prop_assert!(plan.bytes >= has);
                prop_assert_eq!(plan.grow_pv, pv < plan.bytes);
            }
        }
    }
}
