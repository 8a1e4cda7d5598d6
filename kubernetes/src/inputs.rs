//! What the node hands to its cluster.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use localstorage::{DataVolumesDirectory, Dir, Kubelet};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use supervisor::Spawner;
use volumes::VolumeEngine;

use crate::status::Publisher;

/// Everything the service table needs. Cheap to clone: each incarnation of a service takes what
/// it uses from it.
#[derive(Clone)]
pub struct Inputs {
    /// Who this node is.
    pub node: NodeSettings,
    /// Where the parts of the cluster keep their files.
    pub dirs: Directories,
    /// Where `ChildSpec::files` appear, below one folder per DN: `/run/hamlet`.
    pub run: PathBuf,
    /// Starts processes.
    pub spawner: Arc<dyn Spawner>,
    /// The volume engine that owns `dirs.volumes`.
    pub engine: VolumeEngine,
    /// Where metrics are registered.
    pub metrics: Arc<Mutex<Registry>>,
    /// Where progress, node conditions and credentials are published; from [`crate::channel`].
    pub publisher: Publisher,
    /// Injected failures; empty outside of test images.
    pub faults: Faults,
}

/// Identity and addresses of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name of the Node object; a DNS-1123 label.
    pub name: String,
    /// Address by which pods and other machines reach the node.
    pub address: Ipv4Addr,
}

/// Typed directories. Those of the data disk are proof that it is mounted.
#[derive(Clone)]
pub struct Directories {
    /// Certificates and keys.
    pub pki: Dir,
    /// etcd's data.
    pub etcd: Dir,
    /// containerd's root.
    pub containerd: Dir,
    /// The kubelet's root, seen at `/var/lib/kubelet`.
    pub kubelet: Kubelet,
    /// `/run/cni/net.d`: where the pods' network is configured.
    pub cni: Dir,
    /// Proof that the volume area is mounted; for the provisioner.
    pub volumes: DataVolumesDirectory,
}

/// Faults that a test may inject.
#[derive(Clone, Default)]
pub struct Faults {
    /// Each change of the number makes the provisioner's Runnable panic once.
    pub provisioner_panic: Option<tokio::sync::watch::Receiver<u64>>,
}
