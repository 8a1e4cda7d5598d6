//! Scenarios of growing claims (rules E1–E5).
//!
//! Purpose: prove the steps of a resize, what is said on the way, and that a cut anywhere is made up for.
//! Invariants: as the parent's. It must not know: the engine.

use k8s_testkit::Answer;
use serde_json::{Value, json};

use super::*;

/// A cluster with one claim of 1Gi that is served and bound, and a backend that can grow volumes.
fn served_world() -> World {
    let mut w = World::new();
    w.fake.facts.expand = true;
    w.fake.disk.lock().volumes.insert("pvc-u".into(), (None, true));
    let pv = mk_pv("pvc-u")
        .uid("pv-uid")
        .csi(DEFAULT_DRIVER, "pvc-u")
        .annotation(ANN_PROVISIONED_BY, DEFAULT_DRIVER)
        .label(&node_label_key(DEFAULT_DRIVER), "n1")
        .affinity(HOSTNAME_LABEL, "host-1")
        .claim("ns", "c-u", "u")
        .policy("Delete")
        .phase("Bound")
        .finalizer(PV_FINALIZER)
        .build();
    w.server.put(&pv);
    w.server.edit(PVS, "", "pvc-u", |pv| pv["spec"]["capacity"] = json!({"storage": "1Gi"}));
    w.server.put(&claim("u", "1Gi"));
    w.server.edit(CLAIMS, "ns", "c-u", |c| {
        c["spec"]["volumeName"] = json!("pvc-u");
        c["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    });
    w
}

fn ask(w: &World, size: &str) {
    w.server.edit(CLAIMS, "ns", "c-u", |c| {
        c["spec"]["resources"]["requests"]["storage"] = json!(size);
    });
}

fn size(w: &ApiServer) -> Value {
    w.get(CLAIMS, "ns", "c-u")["status"]["capacity"]["storage"].clone()
}

#[tokio::test(start_paused = true)]
async fn e3_e5_a_claim_that_asks_for_more_gets_it_and_says_so() {
    let w = served_world();
    let tree = w.start();
    ask(&w, "2Gi");
    w.server.until("the new size", |s| size(s) == "2Gi").await;
    assert_eq!(w.fake.calls("expand pvc-u to 2147483648 after 1 writes"), 1);
    assert_eq!(w.server.get(PVS, "", "pvc-u")["spec"]["capacity"]["storage"], "2Gi");
    let status = &w.server.get(CLAIMS, "ns", "c-u")["status"];
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(status["allocatedResources"]["storage"], "2Gi");
    assert_eq!(status["allocatedResourceStatuses"].get("storage"), None);
    let claim = "PATCH /api/v1/namespaces/ns/persistentvolumeclaims/c-u/status";
    assert_eq!(w.server.writes(), [claim, "PATCH /api/v1/persistentvolumes/pvc-u", claim]);
    w.server
        .until("both events", |s| {
            let events = s.events();
            events.contains(&"Resizing: External resizer is resizing volume pvc-u".to_owned())
                && events.contains(&"VolumeResizeSuccessful: Resize volume succeeded".to_owned())
        })
        .await;
    // Nothing is left to do: two resyncs later nothing more was written.
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert_eq!(w.server.writes().len(), 3);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn e4_what_cannot_be_done_is_said_once_and_a_smaller_request_is_taken_at_once() {
    let w = served_world();
    w.fake.disk.lock().expand.push_back(Failure::infeasible("only 1Gi more fits"));
    let tree = w.start();
    ask(&w, "900Gi");
    let said = "VolumeResizeFailed: Failed to resize PV: only 1Gi more fits".to_owned();
    w.server.until("the failure", |s| s.events().contains(&said)).await;
    let status = w.server.get(CLAIMS, "ns", "c-u")["status"].clone();
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "ControllerResizeInfeasible");
    assert_eq!(status["conditions"][1]["message"], "Failed to expand PV: only 1Gi more fits");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(w.fake.calls("expand"), 1, "the slowest pace");
    ask(&w, "2Gi");
    w.server.until("the new size", |s| size(s) == "2Gi").await;
    assert_eq!(w.fake.calls("expand"), 2);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn e5_a_resize_cut_at_any_request_ends_with_every_size_equal() {
    for cut in 0..12 {
        for answer in [Answer::Refuse(500, "InternalError"), Answer::Lose(500, "InternalError")] {
            let w = served_world();
            let tree = w.start();
            ask(&w, "2Gi");
            w.server.outage_after(cut, answer);
            tokio::time::sleep(Duration::from_secs(5)).await;
            w.server.heal();
            w.server.until(&format!("the new size, cut at {cut}"), |s| size(s) == "2Gi").await;
            assert_eq!(w.server.get(PVS, "", "pvc-u")["spec"]["capacity"]["storage"], "2Gi");
            assert!(tree.shutdown().await.stuck.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn e1_a_pv_that_is_bound_later_starts_the_resize() {
    let w = served_world();
    w.server.edit(PVS, "", "pvc-u", |pv| pv["status"]["phase"] = json!("Available"));
    ask(&w, "2Gi");
    let tree = w.start();
    w.server.until("the claim looked at", |s| !s.requests("GET", "/c-u").is_empty()).await;
    assert_eq!(w.fake.calls("expand"), 0);
    w.server.edit(PVS, "", "pvc-u", |pv| pv["status"]["phase"] = json!("Bound"));
    w.server.until("the new size", |s| size(s) == "2Gi").await;
    assert!(tree.shutdown().await.stuck.is_empty());
}
