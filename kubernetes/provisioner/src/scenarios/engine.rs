//! Scenarios on the real engine over a kernel in memory.
//!
//! Invariants: as the parent's. It must not know: a real disk.

use serde_json::json;

use super::*;

/// The real engine on a fake kernel of 1 GiB, and a factory of backends on it.
fn engine(
    data: &std::path::Path,
    kernel: &volumes::testing::FakeKernel,
) -> (volumes::testing::Served, impl Fn() -> LocalEngine + Clone + Send + Sync + 'static) {
    let seams = volumes::testing::seams(kernel, volumes::Faults::default());
    let served = volumes::testing::start(data, volumes::EngineConfig::default(), seams).unwrap();
    let (engine, dirs) = (served.engine.clone(), volumes::testing::dirs(data));
    let backend =
        move || LocalEngine::new(dirs.volumes.clone(), engine.clone(), LocalConfig::new("n1"));
    (served, backend)
}

/// Volumes that are there, without those on their way out.
async fn present(engine: &volumes::VolumeEngine) -> Vec<String> {
    let on_its_way_out = [
        volumes::StoredState::Deleting,
        volumes::StoredState::Trashed,
        volumes::StoredState::Foreign,
    ];
    let rows = engine.try_inventory().await.unwrap();
    rows.into_iter().filter(|r| !on_its_way_out.contains(&r.state)).map(|r| r.entry).collect()
}

#[tokio::test(start_paused = true)]
async fn v4_v8_the_engine_makes_and_deletes_what_the_cluster_asks_for() {
    let (w, data) = (World::new(), tempfile::tempdir().unwrap());
    let kernel = volumes::testing::FakeKernel::new(1 << 30);
    let (served, backend) = engine(data.path(), &kernel);
    w.server.put(&claim("u", "64Mi"));
    let tree = w.start_on(backend);
    let done = "ProvisioningSucceeded: Successfully provisioned volume pvc-u".to_owned();
    w.server.until("the volume", |s| s.events().contains(&done)).await;
    assert_eq!(present(&served.engine).await, ["pvc-u"]);
    let rows = served.engine.try_inventory().await.unwrap();
    assert!(crate::tag::read(rows[0].owner.as_str()).is_some_and(|(_, stored)| stored));
    w.server.edit(PVS, "", "pvc-u", |pv| pv["status"]["phase"] = "Released".into());
    w.server.until("the PV gone", |s| s.all(PVS).is_empty()).await;
    assert_eq!(present(&served.engine).await, Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v5_a_request_above_the_room_is_said_on_the_claim_and_leaves_nothing() {
    let (w, data) = (World::new(), tempfile::tempdir().unwrap());
    let kernel = volumes::testing::FakeKernel::new(1 << 30);
    let (served, backend) = engine(data.path(), &kernel);
    w.server.put(&claim("u", "100Ti"));
    let tree = w.start_on(backend);
    let failed =
        |s: &ApiServer| s.events().into_iter().find(|e| e.starts_with("ProvisioningFailed"));
    w.server.until("a failure", |s| failed(s).is_some()).await;
    let text = failed(&w.server).unwrap();
    assert!(text.contains("no space") && text.contains("on node n1; ask for less"), "{text}");
    assert_eq!(present(&served.engine).await, Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn i4_i6_controller_and_engine_restart_between_volume_and_pv() {
    for claim_goes in [false, true] {
        let (w, data) = (World::new(), tempfile::tempdir().unwrap());
        let kernel = volumes::testing::FakeKernel::new(1 << 30);
        let (served, backend) = engine(data.path(), &kernel);
        w.server.put(&claim("u", "64Mi"));
        w.server.script("POST", "/persistentvolumes", Answer::Refuse(500, "InternalError"), 1000);
        let tree = w.start_on(backend);
        w.server.until("a try", |s| !s.requests("POST", "/persistentvolumes").is_empty()).await;
        assert_eq!(present(&served.engine).await, ["pvc-u"]);
        assert!(tree.shutdown().await.stuck.is_empty());
        served.stop().await;
        w.server.forget_scripts();
        if claim_goes {
            w.server.remove(CLAIMS, "ns", "c-u");
        }
        let (served, backend) = engine(data.path(), &kernel);
        let tree = w.start_on(backend);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let volumes = if claim_goes { vec![] } else { vec!["pvc-u".to_owned()] };
        assert_eq!(present(&served.engine).await, volumes, "claim goes: {claim_goes}");
        assert_eq!(w.server.all(PVS).len(), volumes.len());
        assert!(tree.shutdown().await.stuck.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn v7_e5_the_engine_grows_a_volume_and_copies_it() {
    let (w, data) = (World::new(), tempfile::tempdir().unwrap());
    let kernel = volumes::testing::FakeKernel::new(1 << 30);
    let (served, backend) = engine(data.path(), &kernel);
    w.server.put(&claim("u", "64Mi"));
    let tree = w.start_on(backend);
    w.server.until("the PV", |s| s.get(PVS, "", "pvc-u").is_object()).await;
    // What the cluster's own controller does.
    w.server.edit(PVS, "", "pvc-u", |pv| pv["status"]["phase"] = "Bound".into());
    w.server.edit(CLAIMS, "ns", "c-u", |c| {
        c["spec"]["volumeName"] = json!("pvc-u");
        c["spec"]["resources"]["requests"]["storage"] = json!("128Mi");
        c["status"] = json!({"phase": "Bound", "capacity": {"storage": "64Mi"}});
    });
    let size = |s: &ApiServer| s.get(CLAIMS, "ns", "c-u")["status"]["capacity"]["storage"].clone();
    w.server.until("the new size", |s| size(s) == "128Mi").await;
    let capacity = served.engine.try_inventory().await.unwrap()[0].capacity;
    assert_eq!(capacity, volumes::Bytes(128 << 20));

    let mut copy = claim("v", "128Mi");
    copy.spec.get_or_insert_default().data_source =
        serde_json::from_value(json!({"kind": "PersistentVolumeClaim", "name": "c-u"})).unwrap();
    w.server.put(&copy);
    w.server.until("the copy", |s| s.get(PVS, "", "pvc-v").is_object()).await;
    let rows = served.engine.try_inventory().await.unwrap();
    let row = rows.iter().find(|r| r.entry == "pvc-v").unwrap();
    assert_eq!(row.source, Some(volumes::ContentSource::Volume("pvc-u".into())));
    assert!(tree.shutdown().await.stuck.is_empty());
}
