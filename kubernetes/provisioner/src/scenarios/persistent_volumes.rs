//! Scenarios of PVs: what is deleted, kept, adopted and left alone.
//!
//! Invariants: as the parent's. It must not know: the engine.

use super::*;

#[tokio::test(start_paused = true)]
async fn d5_d6_the_volume_goes_first_then_the_pv_then_the_finalizer() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-d".into(), (None, true));
    w.server.put(&released("pvc-d", "Delete"));
    let tree = w.start();
    w.server.until("the PV gone", |s| s.all(PVS).is_empty()).await;
    assert_eq!(w.fake.volumes(), []);
    let path = "/api/v1/persistentvolumes/pvc-d";
    assert_eq!(w.server.writes(), [format!("DELETE {path}"), format!("PATCH {path}")]);
    assert!(w.fake.disk.lock().calls.contains(&"delete pvc-d after 0 writes".to_owned()));
    let delete = w.server.requests("DELETE", path);
    assert_eq!(
        delete[0].body.pointer("/preconditions/uid").and_then(|u| u.as_str()),
        Some("pv-uid")
    );
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d3_retain_never_deletes_a_volume() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-r".into(), (None, true));
    w.server.put(&released("pvc-r", "Retain"));
    let tree = w.start();
    w.server
        .until("the finalizer off", |s| s.writes() == ["PATCH /api/v1/persistentvolumes/pvc-r"])
        .await;
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert_eq!(w.fake.calls("delete"), 0);
    assert_eq!(w.fake.volumes().len(), 1);
    assert_eq!(w.server.writes().len(), 1);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d3_w6_a_volume_just_set_to_retain_survives_a_stale_copy() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-s".into(), (None, true));
    let tree = w.start();
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    // The first try fails; before the second the policy changes unseen.
    w.fake.disk.lock().delete.push_back(Trick::Fail(Failure::no_change("busy")));
    w.server.put(&released("pvc-s", "Delete"));
    w.server
        .until("a failure", |s| s.events().contains(&"VolumeFailedDelete: busy".to_owned()))
        .await;
    w.server.put_unseen(&released("pvc-s", "Retain"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(w.fake.calls("delete pvc-s"), 1);
    assert!(w.fake.volumes().contains(&("pvc-s".to_owned(), true)));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d8_a_pv_of_another_node_is_not_touched_even_with_our_label() {
    let w = World::new();
    let mut pv = released("pvc-x", "Delete");
    pv.spec.get_or_insert_default().node_affinity =
        mk_pv("y").affinity(HOSTNAME_LABEL, "host-2").build().spec.unwrap().node_affinity;
    w.server.put(&pv);
    let tree = w.start();
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    assert_eq!(w.fake.calls("delete"), 0);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v8_a_mounted_volume_is_deleted_as_soon_as_it_is_unmounted_and_nobody_is_alarmed() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-m".into(), (None, true));
    w.fake.disk.lock().delete.push_back(Trick::Fail(Failure::waiting("mounted")));
    w.server.put(&released("pvc-m", "Delete"));
    let tree = w.start();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(w.fake.calls("delete"), 1);
    w.fake.changes.send_replace(Change::Published);
    w.server.until("the PV gone", |s| s.all(PVS).is_empty()).await;
    assert_eq!(w.server.events(), Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v10_w1_volumes_of_an_earlier_release_are_adopted_and_others_left_alone() {
    let w = World::new();
    let older = |name: &str, host: &str| {
        mk_pv(name)
            .uid(&format!("{name}-uid"))
            .csi(DEFAULT_DRIVER, name)
            .affinity(HOSTNAME_LABEL, host)
            .claim("ns", "c", "elsewhere")
            .policy("Delete")
            .phase("Bound")
            .build()
    };
    w.server.put(&older("pvc-here", "host-1"));
    w.server.put(&older("pvc-there", "host-2"));
    let tree = w.start();
    let finalizers =
        |s: &ApiServer, name: &str| s.get(PVS, "", name)["metadata"]["finalizers"].clone();
    w.server.until("adopted", |s| finalizers(s, "pvc-here")[0] == PV_FINALIZER).await;
    let labels = w.server.get(PVS, "", "pvc-here")["metadata"]["labels"].clone();
    assert_eq!(labels[node_label_key(DEFAULT_DRIVER)], "n1");
    let path = "PATCH /api/v1/persistentvolumes/pvc-here".to_owned();
    assert_eq!(w.server.writes(), [path.clone(), path]);
    assert!(tree.shutdown().await.stuck.is_empty());
}
