//! The control plane's children: configuration, flags, readiness, first objects.
//!
//! Purpose: says how etcd, kube-apiserver, kube-controller-manager and kube-scheduler are started
//! on a node that is a whole cluster, when each of them is ready, and which objects the cluster
//! begins with. Flags are pure functions ([`flags`]) with golden tests.
//!
//! Security, all of it by default: mutual TLS everywhere, also on loopback; etcd accepts only the
//! certificates of its own authority; no anonymous requests, no profiling, no token file; the
//! Node authorizer and NodeRestriction confine each kubelet to itself.
//!
//! Must not know: kubelet, containers, storage engine, order of start (that is the service
//! table's).

pub mod bootstrap;
mod client;
pub mod flags;
mod probe;
mod specs;

pub use client::{ClientError, client};
pub use probe::HttpsProbe;
pub use specs::{Part, spec};

use std::net::Ipv4Addr;

/// Port of the API server.
pub const APISERVER_PORT: u16 = 6443;
/// Port of etcd for its clients, on loopback.
pub const ETCD_CLIENT_PORT: u16 = 2379;
/// Port of etcd for other members, on loopback.
pub const ETCD_PEER_PORT: u16 = 2380;
/// Health and metrics of kube-controller-manager, on loopback.
pub const CONTROLLER_MANAGER_PORT: u16 = 10257;
/// Health and metrics of kube-scheduler, on loopback.
pub const SCHEDULER_PORT: u16 = 10259;

/// What the flags depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address the API server announces.
    pub advertise_address: Ipv4Addr,
    /// Ports; [`Ports::default`] on a node, others in a trial beside another cluster.
    pub ports: Ports,
    /// Addresses of Services.
    pub service_cidr: String,
    /// Addresses of all pods of the cluster.
    pub cluster_cidr: String,
}

/// Ports of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// kube-apiserver.
    pub apiserver: u16,
    /// etcd, clients.
    pub etcd_client: u16,
    /// etcd, members.
    pub etcd_peer: u16,
    /// kube-controller-manager.
    pub controller_manager: u16,
    /// kube-scheduler.
    pub scheduler: u16,
}

impl Default for Ports {
    fn default() -> Ports {
        Ports {
            apiserver: APISERVER_PORT,
            etcd_client: ETCD_CLIENT_PORT,
            etcd_peer: ETCD_PEER_PORT,
            controller_manager: CONTROLLER_MANAGER_PORT,
            scheduler: SCHEDULER_PORT,
        }
    }
}

impl Settings {
    /// The API server as this node's own parts reach it.
    pub fn local_server(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.apiserver)
    }
}
