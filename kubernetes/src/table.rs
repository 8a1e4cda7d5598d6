//! What all services of the table share during one incarnation of `kubernetes`.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pki::{Leaf, Pki};
use supervisor::prelude::*;
use supervisor::{ChildSpec, Level};

use crate::gate::{Gate, GatedChild};
use crate::inputs::{Inputs, NodeSettings};
use crate::metrics::Metrics;

/// Addresses of Services.
pub(crate) const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The first of them: the Service `kubernetes`.
pub(crate) const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Addresses of all pods.
pub(crate) const CLUSTER_CIDR: &str = "10.244.0.0/16";
/// Addresses of the pods of this node. One node is a whole cluster, so it has the first range.
pub(crate) const POD_CIDR: &str = "10.244.0.0/24";

/// A first boot on an emulated machine brings the API server up in about half a minute, and what
/// waits for it must not count as slow.
const START_DEADLINE: Duration = Duration::from_secs(180);

/// Everything a service needs.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) inputs: Inputs,
    pub(crate) pki: Arc<Pki>,
    pub(crate) gates: Gates,
    pub(crate) metrics: Metrics,
}

/// Who waits for what.
///
/// ```text
/// etcd ─▶ apiserver ─┬▶ controller-manager, scheduler
///                    └▶ bootstrap ─▶ provisioner, node-watch ─▶ kube-proxy
/// containerd ─▶ images ─▶ kubelet
/// ```
/// The kubelet does not wait for the API server: pods of an earlier start come back without it.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) etcd: Gate,
    pub(crate) apiserver: Gate,
    pub(crate) objects: Gate,
    pub(crate) node: Gate,
    pub(crate) containerd: Gate,
    pub(crate) images: Gate,
}

impl Gates {
    pub(crate) fn new() -> Gates {
        Gates {
            etcd: Gate::new("etcd"),
            apiserver: Gate::new("the API server"),
            objects: Gate::new("the cluster's first objects"),
            node: Gate::new("the Node object"),
            containerd: Gate::new("containerd"),
            images: Gate::new("the images of the node"),
        }
    }
}

impl Table {
    /// A child that waits for `after` and opens `opens`.
    pub(crate) fn child<F>(&self, after: &[&Gate], opens: Option<&Gate>, spec: F) -> GatedChild
    where
        F: Fn(&Path) -> Result<ChildSpec, Stop> + Send + Sync + 'static,
    {
        GatedChild {
            after: after.iter().map(|g| (*g).clone()).collect(),
            opens: opens.cloned(),
            spec: Arc::new(spec),
            spawner: self.inputs.spawner.clone(),
            run: self.inputs.run.clone(),
        }
    }

    /// Settings of the control plane.
    pub(crate) fn controlplane(&self) -> controlplane::Settings {
        controlplane::Settings {
            advertise_address: self.inputs.node.address,
            ports: controlplane::Ports::default(),
            service_cidr: SERVICE_CIDR.to_owned(),
            cluster_cidr: CLUSTER_CIDR.to_owned(),
        }
    }

    /// Settings of the worker.
    pub(crate) fn worker(&self) -> kubelet::Settings {
        kubelet::Settings {
            node_name: self.inputs.node.name.clone(),
            node_ip: self.inputs.node.address,
            pod_cidr: POD_CIDR.to_owned(),
            cluster_cidr: CLUSTER_CIDR.to_owned(),
        }
    }

    /// A client of the API server as the user of `leaf`; made anew by each incarnation.
    pub(crate) fn client(&self, leaf: Leaf) -> Result<kube::Client, controlplane::ClientError> {
        controlplane::client(&self.pki, leaf, &self.controlplane().local_server())
    }
}

/// What the certificates depend on.
pub(crate) fn certificate_request(node: &NodeSettings) -> pki::Request {
    pki::Request {
        node_name: node.name.clone(),
        node_ip: node.address.into(),
        service_ip: SERVICE_IP.into(),
    }
}

/// The policy of a part of Kubernetes: its own stop stage, and consoles see its warnings only
/// (supervisor rule B8).
pub(crate) fn policy(stop_stage: u8) -> Policy {
    Policy {
        stop_stage: Some(stop_stage),
        console: Level::Warning,
        start_deadline: START_DEADLINE,
        ..Policy::default()
    }
}

/// [`policy`] of a child that may take `grace` to end (supervisor rule R2).
pub(crate) fn child_policy(stop_stage: u8, grace: Duration) -> Policy {
    Policy { stop_deadline: grace + Duration::from_secs(5), ..policy(stop_stage) }
}
