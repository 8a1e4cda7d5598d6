//! Order of start by readiness.
//!
//! A gate opens when what it stands for is ready, and closes when that begins anew. Services wait
//! for gates before they start their child, so there is no sleep and no fixed delay anywhere.
//! The senders live in the Runnable `kubernetes`, the common ancestor of all that use them
//! (supervisor rule X5), so a gate outlives every service below.
//!
//! A closed gate holds up only starts: what runs already copes with a neighbour's restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use supervisor::prelude::*;
use supervisor::{ChildSpec, Probe, Spawner, run_child};
use tokio::sync::watch;

/// One thing that others wait for.
#[derive(Clone)]
pub(crate) struct Gate {
    what: &'static str,
    open: watch::Sender<bool>,
}

impl Gate {
    /// A closed gate; `what` completes the sentence "waiting for ...".
    pub(crate) fn new(what: &'static str) -> Gate {
        Gate { what, open: watch::Sender::new(false) }
    }

    /// Lets everyone through.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Holds up who comes from now on.
    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    /// Returns when the gate is open, or because the node of `handle` is asked to stop.
    ///
    /// Cancel safe: nothing is consumed.
    pub(crate) async fn pass(&self, handle: &impl Handle) -> Result<(), Stop> {
        let mut open = self.open.subscribe();
        if *open.borrow_and_update() {
            return Ok(());
        }
        handle.health().note(&format!("waiting for {}", self.what));
        // The sender is in `self`, so the wait cannot end with an error.
        drop(handle.stop().race(open.wait_for(|open| *open)).await?);
        handle.health().note("");
        Ok(())
    }
}

/// Opens a gate when the probe inside passes.
struct Announced {
    probe: Option<Arc<dyn Probe>>,
    gate: Gate,
}

impl Probe for Announced {
    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            if let Some(probe) = &self.probe {
                probe.ready().await?;
            }
            self.gate.open();
            Ok(())
        }
        .boxed()
    }
}

/// Makes the [`ChildSpec`] of one incarnation; gets the directory of its files.
pub(crate) type MakeSpec = Arc<dyn Fn(&Path) -> Result<ChildSpec, Stop> + Send + Sync>;

/// A child process with its place in the order of start.
#[derive(Clone)]
pub(crate) struct GatedChild {
    /// What must be ready before.
    pub(crate) after: Vec<Gate>,
    /// What is ready once this child is.
    pub(crate) opens: Option<Gate>,
    /// How it is started.
    pub(crate) spec: MakeSpec,
    /// Who starts it.
    pub(crate) spawner: Arc<dyn Spawner>,
    /// Parent of the directories of files: `/run/hamlet`.
    pub(crate) run: PathBuf,
}

impl GatedChild {
    /// The service; a Runnable that waits, then becomes the child.
    pub(crate) fn service(self, name: Name, policy: Policy) -> Service {
        Service::new(name, move |ctx| {
            let this = self.clone();
            async move { this.run(ctx).await }
        })
        .policy(policy)
    }

    async fn run(self, ctx: Context) -> Outcome {
        if let Some(gate) = &self.opens {
            gate.close();
        }
        for gate in &self.after {
            gate.pass(&ctx).await?;
        }
        let files = self.run.join(ctx.dn().to_string());
        let mut spec = (self.spec)(&files)?;
        if let Some(gate) = self.opens {
            spec.probe = Some(Arc::new(Announced { probe: spec.probe.take(), gate }));
        }
        run_child(ctx, spec, self.spawner).await
    }
}

#[cfg(test)]
mod tests;
