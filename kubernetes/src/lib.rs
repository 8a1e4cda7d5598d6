//! The service table of the cluster on this node: name → Runnable.
//!
//! Purpose: puts the parts (etcd, control plane, containerd, kubelet, volume driver, provisioner)
//! into the supervisor's tree with their names, order of start, stop stages and console levels.
//! There is no logic of any part here.
//!
//! Must not know: the crate `node`, the command line, the dashboard.

mod inputs;
mod status;

pub use inputs::{Directories, Faults, Inputs, NodeSettings};
pub use status::{KubeconfigError, NodeCondition, NodeStatus, Progress, Publisher, View, channel};
use supervisor::Service;
use supervisor::prelude::*;

/// The service `kubernetes` with everything below it.
pub fn service(inputs: Inputs) -> Service {
    Service::new(Name::from_static("kubernetes"), move |ctx| {
        let _inputs = inputs.clone();
        async move {
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    })
}
