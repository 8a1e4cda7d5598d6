//! Both Runnables in a real supervisor tree, with a fake kubelet (rules 12.7, X5, X2).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi;
use csi_proto::registration as api;
use csi_proto::registration::registration_client::RegistrationClient;
use supervisor::{
    Config, DeathClass, Dn, Handle, LogTree, Name, NodeSnapshot, Service, State, Supervisor,
};
use tonic::transport::Channel;
use volumes::EnginePhase;

use crate::runnable::{csi_service_on, registration_service};
use crate::testing::{Answer, Client, FakeEngine, Home, connect};

const CSI: &str = "root.csi-node";
const REGISTRATION: &str = "root.csi-registration";
/// A test that waits longer for something has failed.
const PATIENCE: Duration = Duration::from_secs(30);

struct Tree {
    supervisor: Supervisor,
    home: Home,
}

impl Tree {
    fn start(engine: &Arc<FakeEngine>) -> Tree {
        let home = Home::new();
        let children = vec![
            csi_service_on(home.config.clone(), engine.clone()),
            registration_service(home.config.clone()),
        ];
        let root = Service::new(Name::from_static("root"), move |ctx| {
            let children = children.clone();
            async move {
                for child in children {
                    ctx.run(child).await?;
                }
                Err(ctx.healthy().stop().stopped().await.into())
            }
        });
        let mut config = Config::new(LogTree::new(Default::default()), 1);
        config.on_current_runtime = true;
        Tree { supervisor: Supervisor::start(root, config), home }
    }

    /// Waits until a node looks like this.
    async fn until(&self, dn: &'static str, so: impl Fn(&NodeSnapshot) -> bool) -> NodeSnapshot {
        let dn = Dn::from_static(dn);
        let mut view = self.supervisor.view();
        let seen = view.wait_for(|s| s.nodes.iter().any(|n| n.dn == dn && so(n)));
        let seen = match tokio::time::timeout(PATIENCE, seen).await {
            Ok(seen) => seen.expect("the tree lives").clone(),
            Err(_) => panic!("never so: {:#?}", self.supervisor.view().borrow().nodes),
        };
        let node = seen.nodes.iter().find(|n| n.dn == dn && so(n)).expect("just seen");
        NodeSnapshot::clone(node)
    }

    async fn healthy_after(&self, dn: &'static str, incarnation: u64) -> NodeSnapshot {
        self.until(dn, |n| n.state == State::Healthy && n.incarnation > incarnation).await
    }

    async fn kubelet(&self) -> RegistrationClient<Channel> {
        RegistrationClient::new(connect(&self.home.config.registration_socket).await)
    }

    async fn stop(self) {
        assert_eq!(self.supervisor.shutdown().await.stuck, []);
        assert!(!self.home.config.socket.exists());
        assert!(!self.home.config.registration_socket.exists());
    }
}

fn answer(plugin_registered: bool, error: &str) -> api::RegistrationStatus {
    api::RegistrationStatus { plugin_registered, error: error.to_owned() }
}

async fn probe(socket: &Path) -> bool {
    let mut client = Client::connect(socket).await;
    let said = client.identity.probe(csi::ProbeRequest {}).await;
    said.expect("answers").into_inner().ready.expect("set")
}

#[tokio::test]
async fn c12_7_registration_appears_only_when_the_driver_is_ready_and_then_the_kubelet_takes_it() {
    let engine = FakeEngine::ready();
    *engine.phase.lock() = EnginePhase::Recovering;
    let tree = Tree::start(&engine);
    tree.until(REGISTRATION, |n| n.note.as_deref().is_some_and(|t| t.contains("not ready yet")))
        .await;
    assert!(!tree.home.config.registration_socket.exists());

    *engine.phase.lock() = EnginePhase::Ready;
    tree.healthy_after(REGISTRATION, 0).await;
    let mut kubelet = tree.kubelet().await;
    let info = kubelet.get_info(api::InfoRequest {}).await.expect("info").into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", crate::DRIVER_NAME));
    assert_eq!(info.supported_versions, ["1.0.0"]);
    let mut driver = Client::connect(Path::new(&info.endpoint)).await;
    let node = driver.node.node_get_info(csi::NodeGetInfoRequest {}).await.expect("node info");
    assert_eq!(node.into_inner().node_id, "hamlet-0");
    kubelet.notify_registration_status(answer(true, "")).await.expect("noted");
    tree.until(REGISTRATION, |n| n.note.as_deref() == Some("registered with the kubelet")).await;
    tree.stop().await;
}

#[tokio::test]
async fn c12_7_a_refused_registration_fails_and_its_restart_offers_a_new_socket() {
    let tree = Tree::start(&FakeEngine::ready());
    let first = tree.healthy_after(REGISTRATION, 0).await;
    let mut kubelet = tree.kubelet().await;
    let refusal = answer(false, "wrong version");
    kubelet.notify_registration_status(refusal).await.expect("answered before the end");

    let second = tree.healthy_after(REGISTRATION, first.incarnation).await;
    assert_eq!(second.deaths, 1);
    let death = second.last_death.expect("recorded");
    assert_eq!(death.class, DeathClass::Failed);
    assert!(death.text.contains("wrong version"), "{}", death.text);
    let mut kubelet = tree.kubelet().await;
    kubelet.notify_registration_status(answer(true, "")).await.expect("noted");
    tree.until(REGISTRATION, |n| n.note.as_deref() == Some("registered with the kubelet")).await;
    tree.stop().await;
}

#[tokio::test]
async fn x5_both_services_work_after_each_of_three_restarts() {
    let tree = Tree::start(&FakeEngine::ready());
    let mut csi = tree.healthy_after(CSI, 0).await;
    let mut registration = tree.healthy_after(REGISTRATION, 0).await;
    for _ in 0..3 {
        tree.supervisor.restart(&Dn::from_static(CSI)).await.expect("restarted");
        csi = tree.healthy_after(CSI, csi.incarnation).await;
        assert!(probe(&tree.home.config.socket).await);

        tree.supervisor.restart(&Dn::from_static(REGISTRATION)).await.expect("restarted");
        registration = tree.healthy_after(REGISTRATION, registration.incarnation).await;
        let info = tree.kubelet().await.get_info(api::InfoRequest {}).await.expect("info");
        assert_eq!(Path::new(&info.into_inner().endpoint), tree.home.config.socket);
    }
    assert_eq!((csi.deaths, registration.deaths), (0, 0));
    tree.stop().await;
}

#[tokio::test]
async fn x2_a_panic_in_a_call_is_the_drivers_death_and_disturbs_nobody_else() {
    let engine = FakeEngine::ready();
    let tree = Tree::start(&engine);
    let first = tree.healthy_after(CSI, 0).await;
    let registration = tree.healthy_after(REGISTRATION, 0).await;
    engine.answer(Answer::Panic);
    let mut client = Client::connect(&tree.home.config.socket).await;
    let volume_id = "pvc-1".to_owned();
    let request =
        csi::NodeUnpublishVolumeRequest { volume_id, target_path: "/pods/1/mount".into() };
    client.node.node_unpublish_volume(request).await.expect_err("the server is gone");

    let second = tree.healthy_after(CSI, first.incarnation).await;
    assert_eq!(second.last_death.expect("recorded").class, DeathClass::Panicked);
    assert!(probe(&tree.home.config.socket).await);
    let after = tree.until(REGISTRATION, |_| true).await;
    assert_eq!(after.incarnation, registration.incarnation);
    tree.stop().await;
}
