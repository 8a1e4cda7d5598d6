//! Scenarios of panics, restarts and cuts: nothing leaks and nothing is made twice.
//!
//! Invariants: as the parent's. It must not know: the engine.

use super::*;

#[tokio::test(start_paused = true)]
async fn s11_a_panic_fails_its_item_only() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Panic);
    w.server.put(&claim("a", "1Gi"));
    w.server.put(&claim("b", "1Gi"));
    let tree = w.start();
    w.until_served("pvc-a").await;
    w.until_served("pvc-b").await;
    assert_eq!(w.fake.calls("provision"), 3);
    let view = tree.view().borrow().clone();
    assert!(view.nodes.iter().all(|n| n.deaths == 0), "{view:?}");
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn s11_an_injected_panic_kills_the_runnable_which_is_restarted_and_serves() {
    let w = World::new();
    let tree = w.start();
    w.server.put(&claim("a", "1Gi"));
    w.until_served("pvc-a").await;
    w.fault.send_modify(|n| *n += 1);
    w.server.put(&claim("b", "1Gi"));
    w.until_served("pvc-b").await;
    let view = tree.view().borrow().clone();
    let deaths: u64 = view.nodes.iter().map(|n| n.deaths).sum();
    assert_eq!(deaths, 1, "{view:?}");
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn i4_i5_a_volume_left_by_a_crash_is_finished_confirmed_or_deleted() {
    let owner = |uid: &str| Owner {
        namespace: "ns".into(),
        name: format!("c-{uid}"),
        uid: uid.into(),
        pv: format!("pvc-{uid}"),
        policy: "Delete".into(),
    };
    let w = World::new();
    for uid in ["wanted", "gone", "done", "retained"] {
        w.fake.disk.lock().volumes.insert(format!("pvc-{uid}"), (Some(owner(uid)), false));
    }
    w.fake.disk.lock().volumes.insert("adopted".into(), (None, true));
    w.server.put(&claim("wanted", "1Gi"));
    let stored = |uid: &str, policy: &str, phase: &str| {
        let name = format!("pvc-{uid}");
        mk_pv(&name)
            .csi(DEFAULT_DRIVER, &name)
            .claim("ns", &format!("c-{uid}"), uid)
            .policy(policy)
            .phase(phase)
            .affinity(HOSTNAME_LABEL, "host-1")
            .label(&node_label_key(DEFAULT_DRIVER), "n1")
            .build()
    };
    w.server.put(&stored("done", "Delete", "Bound"));
    w.server.put(&stored("retained", "Retain", "Released"));
    let tree = w.start();
    w.until_served("pvc-wanted").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let volumes: Vec<String> =
        w.fake.volumes().into_iter().map(|(h, stored)| format!("{h}={stored}")).collect();
    assert_eq!(volumes, ["adopted=true", "pvc-done=true", "pvc-retained=true", "pvc-wanted=true"]);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn i5_a_claim_that_goes_away_while_its_volume_is_made_leaves_nothing() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Lose(Failure::in_background("still at it")));
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    w.server
        .until("a failure", |s| s.events().contains(&"ProvisioningFailed: still at it".to_owned()))
        .await;
    assert_eq!(w.fake.volumes(), [("pvc-u".to_owned(), false)]);
    w.server.remove(CLAIMS, "ns", "c-u");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(w.fake.volumes(), []);
    assert_eq!(w.server.all(PVS).len(), 0);
    assert!(tree.shutdown().await.stuck.is_empty());
}

/// The API server fails from its n-th answer on, with and without doing what it was asked; the controller is
/// stopped there; the claim stays or goes; the controller starts again. Nothing leaks, nothing is made twice.
#[tokio::test(start_paused = true)]
async fn i1_cut_anywhere_nothing_leaks_and_nothing_is_made_twice() {
    let mut cuts = 0;
    for n in 0.. {
        let mut reached = false;
        for (answer, claim_goes) in [
            (Answer::Refuse(500, "InternalError"), false),
            (Answer::Refuse(500, "InternalError"), true),
            (Answer::Lose(500, "InternalError"), false),
            (Answer::Lose(500, "InternalError"), true),
        ] {
            let w = World::new();
            w.server.put(&claim("u", "1Gi"));
            w.server.outage_after(n, answer);
            let first = w.start();
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert!(first.shutdown().await.stuck.is_empty());
            reached |= w.server.heal();
            if claim_goes {
                w.server.remove(CLAIMS, "ns", "c-u");
            }
            let second = w.start();
            tokio::time::sleep(Duration::from_secs(600)).await;
            let pvs = w.server.all(PVS).len();
            match (claim_goes, pvs) {
                (false, _) => {
                    assert!(pvs == 1 && w.served("pvc-u"), "cut {n}: {pvs} {:?}", w.fake.volumes())
                }
                // A stored PV is the volume controller's to release.
                (true, 1) => assert!(w.served("pvc-u"), "cut {n}: {:?}", w.fake.volumes()),
                (true, _) => assert!(
                    pvs == 0 && w.fake.volumes().is_empty(),
                    "cut {n}: {pvs} {:?}",
                    w.fake.volumes()
                ),
            }
            assert!(second.shutdown().await.stuck.is_empty());
            cuts += 1;
        }
        if !reached {
            break;
        }
    }
    assert!(cuts > 40, "only {cuts} cuts: the outage never came late enough");
}
