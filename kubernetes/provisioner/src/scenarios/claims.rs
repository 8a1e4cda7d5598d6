//! Scenarios of claims: the way of one that is served, and what is said of one that is not.
//!
//! Invariants: as the parent's. It must not know: the engine.

use super::*;

#[tokio::test(start_paused = true)]
async fn w4_a_claim_of_this_node_gets_its_volume_with_one_write_and_one_event() {
    let w = World::new();
    w.server.put(&claim("u", "64Mi"));
    let tree = w.start();
    w.until_served("pvc-u").await;
    assert_eq!(w.server.writes(), ["POST /api/v1/persistentvolumes"]);
    assert_eq!(w.server.events(), ["ProvisioningSucceeded: Successfully provisioned volume pvc-u"]);
    assert_eq!(w.fake.calls("provision"), 1);
    let pv = w.server.get(PVS, "", "pvc-u");
    assert_eq!(pv.pointer("/spec/claimRef/uid").and_then(|v| v.as_str()), Some("u"));
    assert_eq!(pv.pointer("/spec/capacity/storage").and_then(|v| v.as_str()), Some("64Mi"));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn n2_l8_claims_of_other_nodes_and_provisioners_are_left_alone() {
    let w = World::new();
    let mut elsewhere = claim("a", "1Gi");
    elsewhere
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(ANN_SELECTED_NODE[0].into(), "n2".into());
    let theirs = mk_pvc("ns", "b")
        .uid("b")
        .class("fast")
        .request("1Gi")
        .provisioner("other")
        .selected_node("n1")
        .build();
    let waiting =
        mk_pvc("ns", "w").uid("w").class("fast").request("1Gi").provisioner(DEFAULT_DRIVER).build();
    w.server.put(&elsewhere);
    w.server.put(&theirs);
    w.server.put(&waiting);
    let tree = w.start();
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    // Two resyncs later still nothing else was done.
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert_eq!(w.fake.calls("provision"), 1);
    assert_eq!(w.server.writes().len(), 1);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v2_absurd_requests_get_an_event_and_nothing_is_created() {
    let w = World::new();
    let odd = |uid: &str, size: &str, mode: &str| {
        mk_pvc("ns", uid)
            .uid(uid)
            .class("fast")
            .request(size)
            .access(mode)
            .provisioner(DEFAULT_DRIVER)
            .selected_node("n1")
    };
    let once = "ReadWriteOnce";
    let mut block = odd("block", "1Gi", once).build();
    block.spec.get_or_insert_default().volume_mode = Some("Block".into());
    for c in [
        odd("zero", "0", once).build(),
        odd("negative", "-5Gi", once).build(),
        odd("huge", "16Ei", once).build(),
        odd("many", "1Gi", "ReadWriteMany").build(),
        odd("sideways", "1Gi", "Sideways").build(),
        block,
    ] {
        w.server.put(&c);
    }
    let tree = w.start();
    let failures = |s: &ApiServer| {
        s.events().into_iter().filter(|e| e.starts_with("ProvisioningFailed")).collect::<Vec<_>>()
    };
    w.server.until("six failures", |s| failures(s).len() == 6).await;
    let all = failures(&w.server).join("\n");
    for text in [
        "Retries will be delayed. PVC is not requesting any storage, this is not supported",
        "PVC requesting more than 2^63 bytes of storage, this is not supported",
        "access mode ReadWriteMany is not supported",
        "unsupported AccessMode combination: [Sideways]",
        "com.nexantic.smalltown.vfs does not support block volume provisioning",
    ] {
        assert!(all.contains(text), "{text} is not in\n{all}");
    }
    assert_eq!(w.fake.calls("provision"), 0);
    assert_eq!(w.server.writes(), Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l9_a_pv_of_that_name_for_another_claim_is_reported_and_the_backend_not_called() {
    let w = World::new();
    w.server.put(&mk_pv("pvc-u").csi(DEFAULT_DRIVER, "pvc-u").claim("other", "d", "x").build());
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    let text = "ProvisioningFailed: volume name pvc-u is already used by claim other/d".to_owned();
    w.server.until("the failure", |s| s.events().contains(&text)).await;
    assert_eq!(w.fake.calls("provision"), 0);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l24_a_lost_answer_to_the_pv_is_no_second_volume() {
    for answer in [
        Answer::Lose(409, "AlreadyExists"),
        Answer::Lose(500, "InternalError"),
        Answer::Lose(504, "Timeout"),
    ] {
        let w = World::new();
        w.server.script("POST", "/persistentvolumes", answer, 1);
        w.server.put(&claim("u", "1Gi"));
        let tree = w.start();
        w.server.until("a PV", |s| s.get(PVS, "", "pvc-u").is_object()).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(w.served("pvc-u"), "{:?}", w.fake.volumes());
        assert_eq!(w.server.all(PVS).len(), 1);
        assert_eq!(w.server.requests("POST", "/persistentvolumes").len(), 1);
        assert!(tree.shutdown().await.stuck.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn l24_a_pv_that_cannot_be_stored_is_reported_and_tried_again() {
    let w = World::new();
    w.server.script("POST", "/persistentvolumes", Answer::Refuse(422, "Invalid"), 2);
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    w.until_served("pvc-u").await;
    let events = w.server.events();
    assert!(
        events.iter().any(|e| e.starts_with("ProvisioningFailed: error saving volume pvc-u")),
        "{events:?}"
    );
    assert!(
        events.iter().any(|e| e.starts_with(
            "Provisioning: External provisioner is provisioning volume for claim \"ns/c-u\""
        )),
        "B5: {events:?}"
    );
    assert_eq!(w.fake.volumes(), [("pvc-u".to_owned(), true)]);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v5_l18_no_room_takes_the_node_off_the_claim_and_says_so() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Fail(Failure::reschedule("no space")));
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    w.server
        .until("the update", |s| {
            s.writes() == ["PUT /api/v1/namespaces/ns/persistentvolumeclaims/c-u"]
        })
        .await;
    w.server
        .until("the event", |s| s.events().contains(&"ProvisioningFailed: no space".to_owned()))
        .await;
    let annotations =
        w.server.get(CLAIMS, "ns", "c-u").pointer("/metadata/annotations").cloned().unwrap();
    assert!(annotations.get(ANN_SELECTED_NODE[0]).is_none(), "{annotations}");
    // The scheduler comes back with the same node.
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l17_an_infeasible_claim_is_tried_again_only_after_the_longest_delay() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Fail(Failure::infeasible("never")));
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert_eq!(w.fake.calls("provision"), 1);
    w.until_served("pvc-u").await;
    assert_eq!(w.fake.calls("provision"), 2);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn n4_an_immediate_claim_is_taken_and_served() {
    let w = World::new();
    w.server.put(&mk_class("now", DEFAULT_DRIVER).binding("Immediate").build());
    let c = mk_pvc("ns", "c-u")
        .uid("u")
        .class("now")
        .request("1Gi")
        .access("ReadWriteOnce")
        .provisioner(DEFAULT_DRIVER);
    w.server.put(&c.build());
    let tree = w.start();
    w.until_served("pvc-u").await;
    let taken = w.server.get(CLAIMS, "ns", "c-u");
    let annotations = taken.pointer("/metadata/annotations").unwrap();
    assert_eq!(annotations.get(ANN_SELECTED_NODE[0]).and_then(|n| n.as_str()), Some("n1"));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l7_b2_a_missing_class_fails_silently_and_its_arrival_wakes_the_claim() {
    let w = World::new();
    w.server.remove("storageclasses", "", "fast");
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(w.server.events(), Vec::<String>::new());
    let before = tokio::time::Instant::now();
    w.server.put(&mk_class("fast", DEFAULT_DRIVER).build());
    w.until_served("pvc-u").await;
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(tree.shutdown().await.stuck.is_empty());
}
