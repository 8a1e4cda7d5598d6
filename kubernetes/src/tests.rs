//! Shape of the service table, without running anything.

use std::io;
use std::sync::Arc;

use localstorage::Data;
use prometheus_client::registry::Registry;
use supervisor::{Child, ChildSpec, Dn, Level, Spawner};
use volumes::{EngineConfig, Seams, VolumeDirs, VolumeEngine};

use super::*;
use crate::certificates;

/// Starts nothing.
struct NoSpawner;

impl Spawner for NoSpawner {
    fn spawn(&self, _: &Dn, spec: &ChildSpec) -> io::Result<Box<dyn Child>> {
        Err(io::Error::other(format!("{} is not started in a test", spec.program.display())))
    }
}

fn inputs(data: Data, publisher: Publisher) -> Inputs {
    let dirs = VolumeDirs { volumes: data.volumes.clone(), state: data.volume_state.clone() };
    let (engine, _) = VolumeEngine::new(dirs, EngineConfig::default(), Seams::kernel());
    Inputs {
        node: NodeSettings { name: "hamlet-0".to_owned(), address: [10, 0, 2, 15].into() },
        dirs: Directories {
            pki: data.kubernetes.pki,
            etcd: data.etcd,
            containerd: data.containerd,
            cni: data.dir,
            kubelet: data.kubelet,
            volumes: data.volumes,
        },
        run: "/run/hamlet".into(),
        spawner: Arc::new(NoSpawner),
        engine,
        metrics: Arc::new(parking_lot::Mutex::new(Registry::default())),
        publisher,
        faults: Faults::default(),
    }
}

fn table() -> (tempfile::TempDir, View, Table) {
    let root = tempfile::tempdir().unwrap();
    let data = localstorage::testing::data_at(root.path()).unwrap();
    let (publisher, view) = channel();
    let inputs = inputs(data, publisher);
    let request = table::certificate_request(&inputs.node);
    let (pki, _) = pki::Pki::ensure(&inputs.dirs.pki, request, certificates::now()).unwrap();
    let metrics = Metrics::register(&inputs.metrics);
    let pki = Arc::new(pki);
    inputs.publisher.pki.send_replace(Some(pki.clone()));
    (root, view, Table { inputs, pki, gates: Gates::new(), metrics })
}

fn shape(services: &[Service]) -> Vec<(String, Option<u8>, Level)> {
    services.iter().map(|s| (s.name.to_string(), s.policy.stop_stage, s.policy.console)).collect()
}

fn row(name: &str, stage: u8, console: Level) -> (String, Option<u8>, Level) {
    (name.to_owned(), Some(stage), console)
}

#[test]
fn q2_the_control_plane_stops_after_the_worker_and_etcd_last() {
    let (_root, _view, table) = table();
    assert_eq!(
        shape(&control_plane::services(&table)),
        [
            row("etcd", 5, Level::Warning),
            row("apiserver", 4, Level::Warning),
            row("controller-manager", 3, Level::Warning),
            row("scheduler", 3, Level::Warning),
            row("bootstrap", 3, Level::Warning),
        ]
    );
}

#[test]
fn q2_the_kubelet_stops_before_its_pods_and_they_before_their_runtime() {
    let (_root, _view, table) = table();
    assert_eq!(
        shape(&worker::services(&table)),
        [
            row("containerd", 3, Level::Warning),
            row("images", 1, Level::Warning),
            row("kubelet", 1, Level::Warning),
            row("kube-proxy", 3, Level::Warning),
            row("csi-node", 3, Level::Info),
            row("csi-registration", 1, Level::Info),
            row("provisioner", 1, Level::Info),
            row("pods", 2, Level::Info),
            row("node-watch", 3, Level::Warning),
        ]
    );
}

#[test]
fn r2_every_child_may_take_its_grace_before_it_is_aborted() {
    let (_root, _view, table) = table();
    for service in control_plane::services(&table) {
        let grace = if service.name.to_string() == "etcd" { 30 } else { 10 };
        if service.name.to_string() != "bootstrap" {
            assert_eq!(service.policy.stop_deadline.as_secs(), grace + 5, "{}", service.name);
        }
    }
}

#[test]
fn the_admin_kubeconfig_exists_as_soon_as_the_certificates_do() {
    let (_root, view, _table) = table();
    let text = view.admin_kubeconfig("https://127.0.0.1:6443").unwrap();
    assert!(text.contains("server: \"https://127.0.0.1:6443\""));
    assert!(text.contains("client-key-data: "));
}

#[test]
fn the_table_is_registered_under_one_name() {
    let root = tempfile::tempdir().unwrap();
    let data = localstorage::testing::data_at(root.path()).unwrap();
    let (publisher, _view) = channel();
    let service = service(inputs(data, publisher));
    assert_eq!(service.name.to_string(), "kubernetes");
}
