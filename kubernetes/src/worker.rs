//! The services below `worker`.

use std::path::PathBuf;
use std::time::Duration;

use kubelet::specs;
use pki::{Authority, Leaf};
use supervisor::prelude::*;
use supervisor::{ChildSpec, Level};

use crate::node_watch;
use crate::provision;
use crate::table::{Table, child_policy, policy};

/// Stop stage of what starts pods: first, or it would start again what is being stopped.
const KUBELET_STAGE: u8 = 1;
/// Stop stage of the pods themselves (supervisor rule Q2).
const PODS_STAGE: u8 = 2;
/// Stop stage of what pods need to end.
const RUNTIME_STAGE: u8 = 3;
const GRACE: Duration = Duration::from_secs(10);

/// The service `worker`.
pub(crate) fn service(table: Table) -> Service {
    Service::new(Name::from_static("worker"), move |ctx| {
        let table = table.clone();
        async move {
            configure_pod_network(&ctx, &table).await?;
            crate::run_children(ctx, services(&table)).await
        }
    })
}

/// All of them in the order of their start.
pub(crate) fn services(table: &Table) -> Vec<Service> {
    vec![
        containerd(table),
        images(table.clone()),
        kubelet_service(table),
        kube_proxy(table),
        csi_node::csi_service(csi_config(table), table.inputs.engine.clone()),
        csi_node::registration_service(csi_config(table)),
        provision::service(table.clone()),
        pods(),
        node_watch::service(table.clone()),
    ]
}

fn containerd(table: &Table) -> Service {
    let root = table.inputs.dirs.containerd.clone();
    table
        .child(&[], Some(&table.gates.containerd), move |files| Ok(specs::containerd(&root, files)))
        .service(Name::from_static("containerd"), child_policy(RUNTIME_STAGE, GRACE))
}

fn images(table: Table) -> Service {
    Service::new(Name::from_static("images"), move |ctx| {
        let table = table.clone();
        async move {
            table.gates.containerd.pass(&ctx).await?;
            let spawner = table.inputs.spawner.clone();
            let done =
                kubelet::images::run(ctx, PathBuf::from(kubelet::IMAGE_DIR), spawner).await?;
            table.gates.images.open();
            Ok(done)
        }
    })
    .policy(policy(KUBELET_STAGE))
}

fn kubelet_service(table: &Table) -> Service {
    let this = table.clone();
    let spec = move |files: &std::path::Path| -> Result<ChildSpec, Stop> {
        let certificates = kubelet::Certificates {
            authority: this.pki.authority_path(Authority::Cluster),
            server: this.pki.certificate_path(Leaf::KubeletServing),
            server_key: this.pki.key_path(Leaf::KubeletServing),
        };
        let server = this.controlplane().local_server();
        let kubeconfig = this.pki.service_kubeconfig(Leaf::Kubelet, &server);
        Ok(specs::kubelet(&this.worker(), &certificates, kubeconfig, files))
    };
    // Without an API server to register with it tries ten times a second, and takes the processor
    // from the very servers it waits for.
    let after = [&table.gates.containerd, &table.gates.images, &table.gates.apiserver];
    table
        .child(&after, None, spec)
        .service(Name::from_static("kubelet"), child_policy(KUBELET_STAGE, GRACE))
}

fn kube_proxy(table: &Table) -> Service {
    let this = table.clone();
    // Without a Node object it would settle on 127.0.0.1 as the node's address.
    table
        .child(&[&table.gates.node], None, move |files| {
            let server = this.controlplane().local_server();
            let kubeconfig = this.pki.service_kubeconfig(Leaf::KubeProxy, &server);
            Ok(specs::kube_proxy(&this.worker(), kubeconfig, files))
        })
        .service(Name::from_static("kube-proxy"), child_policy(RUNTIME_STAGE, GRACE))
}

fn pods() -> Service {
    let policy = Policy { stop_deadline: kubelet::pods::STOP_DEADLINE, ..policy(PODS_STAGE) };
    let policy = Policy { console: Level::Info, ..policy };
    Service::new(Name::from_static("pods"), |ctx| {
        kubelet::pods::run(ctx, PathBuf::from(kubelet::pods::KUBEPODS))
    })
    .policy(policy)
}

/// The volume driver without a cluster around it: what the tests of storage talk to.
pub fn driver_alone(
    node: &str,
    kubelet_root: &std::path::Path,
    engine: volumes::VolumeEngine,
) -> Service {
    csi_node::csi_service(csi_node::CsiConfig::new(node, kubelet_root), engine)
}

fn csi_config(table: &Table) -> csi_node::CsiConfig {
    let kubelet_root = table.inputs.dirs.kubelet.dir.full_path();
    let mut config = csi_node::CsiConfig::new(&table.inputs.node.name, kubelet_root);
    // Storage rule 12.2: kubelets up to 1.36 read the one, later ones the other.
    config.health_api = csi_node::HealthApi::Both;
    config.metrics = table.metrics.csi.clone();
    config
}

async fn configure_pod_network(ctx: &Context, table: &Table) -> Result<(), Stop> {
    let file = table.inputs.dirs.cni.file("10-hamlet.conflist")?;
    let text = format!("{:#}\n", kubelet::config::cni(&table.worker()));
    let job = ctx.spawn_blocking(Name::from_static("pod-network"), move || {
        file.write(text.as_bytes(), 0o644)
    });
    job.await??;
    Ok(())
}
