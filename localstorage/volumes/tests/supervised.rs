//! The engine as a service of a supervisor.

use supervisor::testing::Harness;
use supervisor::{Dn, Name, State};
use volumes::testing::{FakeKernel, dirs, seams};
use volumes::{
    Bytes, CapacityRange, CreateVolume, EngineConfig, EnginePhase, Faults, OwnerTag, Params,
    VolumeEngine, VolumeKind,
};

/// The harness calls its root so.
const DN: &str = "root.storage";

fn request(n: u64) -> CreateVolume {
    CreateVolume {
        name: format!("pvc-{n}"),
        kind: VolumeKind::Filesystem,
        capacity: CapacityRange { required: Some(Bytes(1 << 20)), limit: None },
        params: Params::default(),
        source: None,
        owner: OwnerTag::none(),
    }
}

async fn served(h: &Harness, starts: u64) {
    let mut view = h.supervisor.view();
    let there = view.wait_for(|s| {
        s.nodes
            .iter()
            .any(|n| n.dn.as_str() == DN && n.starts >= starts && n.state == State::Healthy)
    });
    // Only a bound on a failure: the panic shows the tree's log.
    let limit = std::time::Duration::from_secs(20);
    let reached = tokio::time::timeout(limit, there).await;
    reached.expect("served in time").expect("the tree lives");
}

#[tokio::test]
async fn x5_the_engine_serves_again_after_each_of_three_restarts() {
    let t = tempfile::tempdir().expect("tempdir");
    let kernel = FakeKernel::new(100 << 30);
    let seams = seams(&kernel, Faults::default());
    let (engine, runnable) = VolumeEngine::new(dirs(t.path()), EngineConfig::default(), seams);
    let down = engine.create(request(9)).await;
    assert!(down.is_err(), "no incarnation yet");
    let h = Harness::start(vec![runnable.service(Name::from_static("storage"))]);
    for n in 0..4 {
        served(&h, n + 1).await;
        engine.create(request(n)).await.unwrap_or_else(|e| panic!("create {n}: {e}"));
        assert_eq!(engine.inventory().await.len() as u64, n + 1);
        if n < 3 {
            h.supervisor.restart(&Dn::from_static(DN)).await.expect("restart");
        }
    }
    h.end().await;
    assert_eq!(engine.status().borrow().phase, EnginePhase::Stopped);
    assert_eq!(engine.capacity().borrow().available, Bytes(0));
}
