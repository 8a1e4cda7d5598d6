//! The service table of the cluster on this node: name → Runnable.
//!
//! Purpose: puts the parts (etcd, control plane, containerd, kubelet, volume driver, provisioner)
//! into the supervisor's tree with their names, order of start, stop stages and console levels.
//! There is no logic of any part here.
//!
//! Must not know: the crate `node`, the command line, the dashboard.

mod certificates;
mod control_plane;
mod gate;
mod inputs;
mod metrics;
mod node_watch;
mod provision;
mod status;
mod table;
mod worker;

use supervisor::prelude::*;

pub use inputs::{Directories, Faults, Inputs, NodeSettings};
pub use status::{KubeconfigError, NodeCondition, NodeStatus, Progress, Publisher, View, channel};
pub use worker::driver_alone;

use crate::metrics::Metrics;
use crate::table::{Gates, Table};

/// The service `kubernetes` with everything below it. To be called once: it registers metrics.
///
/// Guarantees: what is published through `inputs.publisher` outlives every restart. The
/// certificate tree exists before any child is started. Nothing here ends by itself.
pub fn service(inputs: Inputs) -> Service {
    let metrics = Metrics::register(&inputs.metrics);
    Service::new(Name::from_static("kubernetes"), move |ctx| {
        let (inputs, metrics) = (inputs.clone(), metrics.clone());
        async move {
            let pki = certificates::ensure(&ctx, &inputs, &metrics).await?;
            let table =
                Table { inputs, pki: pki.clone(), gates: Gates::new(), metrics: metrics.clone() };
            add(&ctx, control_plane::service(table.clone())).await?;
            add(&ctx, worker::service(table)).await?;
            let running = ctx.healthy();
            Err(certificates::keep(&running, pki, &metrics).await.into())
        }
    })
}

/// Adds children, then only keeps them.
async fn run_children(ctx: Context, children: Vec<Service>) -> Outcome {
    for child in children {
        add(&ctx, child).await?;
    }
    let running = ctx.healthy();
    Err(running.stop().stopped().await.into())
}

/// Adds a child. A parent that is stopping has been asked to.
async fn add(ctx: &Context, child: Service) -> Result<(), Stop> {
    match ctx.run(child).await {
        Ok(()) => Ok(()),
        Err(supervisor::AddError::Stopping(cancelled)) => Err(cancelled.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
