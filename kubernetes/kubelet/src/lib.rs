//! The worker's children: containerd, kubelet, kube-proxy, and what surrounds them.
//!
//! Purpose: configuration files ([`config`], pure, golden tests), how each child is started
//! ([`specs`]) and when it is ready ([`probe`]), the import of the images that the node brings
//! along ([`images`]), and the orderly end of pods at shutdown ([`pods`]).
//!
//! Must not know: certificates (it is given paths), the control plane, the volume driver, order
//! of start.

pub mod config;
pub mod images;
pub mod pods;
pub mod probe;
pub mod specs;

use std::net::Ipv4Addr;
use std::path::PathBuf;

/// The kubelet's `--root-dir`: a bind mount of the data disk's directory without `noexec`
/// (localstorage 1.4). Charts have the path built in.
pub const ROOT_DIR: &str = "/var/lib/kubelet";
/// containerd's socket.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// Where the images that the node brings along lie, one OCI archive each.
pub const IMAGE_DIR: &str = "/usr/share/hamlet/images";
/// The image every pod's sandbox runs.
pub const PAUSE_IMAGE: &str = "hamlet.dev/pause:1";
/// Images that must never be collected: nothing could bring them back.
pub const PINNED_IMAGES: [(&str, &str); 2] =
    [("sandbox", PAUSE_IMAGE), ("busybox", "hamlet.dev/busybox:1")];
/// Where the network configuration of pods is written; `/etc/cni` points there.
pub const CNI_CONFIG_DIR: &str = "/run/cni/net.d";
/// Port of the kubelet's API.
pub const KUBELET_PORT: u16 = 10250;
/// Port of the kubelet's own health, on loopback.
pub const KUBELET_HEALTH_PORT: u16 = 10248;
/// Port of kube-proxy's health, on loopback.
pub const KUBE_PROXY_HEALTH_PORT: u16 = 10256;

/// What the configuration depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the Node object.
    pub node_name: String,
    /// Its address.
    pub node_ip: Ipv4Addr,
    /// Addresses of the pods of this node.
    pub pod_cidr: String,
    /// Addresses of all pods of the cluster.
    pub cluster_cidr: String,
}

/// Certificates of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The cluster authority.
    pub authority: PathBuf,
    /// Serving certificate.
    pub server: PathBuf,
    /// Its key.
    pub server_key: PathBuf,
}
