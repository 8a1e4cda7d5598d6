//! The provisioner: one controller that turns claims of its node into volumes and reclaims them.
//!
//! Purpose: watch PersistentVolumeClaims, make what they ask for through a [`Backend`], store the PV, delete
//! the volume when the PV is released; say on the object itself what happens and what to do about it.
//! Owner: a Runnable of the node's tree; [`Provisioner::new`] and [`Provisioner::run`] are called inside its run.
//! Invariants: decisions are pure ([`plan`]); a restart at any moment leaks nothing and makes nothing twice
//! ([`backend::Owner`] is durable before anything is made); destructive steps are preceded by a live read.
//! It must not know: mounts, quotas, paths. Of storage it has the engine's handle and the proof that its
//! directory is mounted.
//!
//! Letters and numbers in comments and test names (`L18`) are rules of the specification.
//!
//! Not supported by this release, and answered so: snapshots as sources, VolumeAttributesClasses.

mod api;
pub mod backend;
pub mod backoff;
mod claims;
mod core;
mod events;
mod local;
mod metrics;
mod mirror;
pub mod names;
pub mod plan;
pub mod quantity;
mod queue;
pub mod rbac;
mod recover;
mod resize;
mod run;
#[cfg(test)]
mod scenarios;
mod tag;
#[cfg(test)]
mod testing;
mod volumes;

use std::time::Duration;

use tokio::sync::watch;

pub use crate::{
    backend::Backend,
    local::{LocalConfig, LocalEngine},
    metrics::Metrics,
    names::{DEFAULT_DRIVER, HOSTNAME_LABEL, PV_FINALIZER, node_label_key, node_label_value},
    run::Provisioner,
};

/// How talkative the events are (B5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventMode {
    /// `Provisioning` only if the first attempt fails or lasts 2 s.
    #[default]
    Lean,
    /// `Provisioning` at every attempt, like external-provisioner.
    Peer,
}

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workers for claims, and as many for volumes. Default 4.
    pub workers: usize,
    /// Longest wait for one answer of the API server. Default 10 s.
    pub timeout: Duration,
    /// Longest wait for the backend to make or delete one volume; then the item is retried. Default 60 s.
    pub backend_timeout: Duration,
    /// Delays between attempts at one item (B1). Default 1 s to 5 min.
    pub backoff: backoff::Backoff,
    /// Delays before this node takes a claim that is bound immediately (N4). Default 20 s to 60 s, to let the
    /// nodes of a cluster spread out; with a single node zero is right.
    pub race: backoff::Backoff,
    /// Default lean.
    pub events: EventMode,
    /// How often everything is looked at again (L1). Default 15 min.
    pub resync: Duration,
    /// How often volumes and PVs are compared (I6). Default 1 h.
    pub inventory_interval: Duration,
    /// For tests: a change of the value makes the Runnable panic.
    pub fault: Option<watch::Receiver<u64>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            workers: 4,
            timeout: Duration::from_secs(10),
            backend_timeout: Duration::from_secs(60),
            backoff: backoff::Backoff::default(),
            race: backoff::Backoff { start: Duration::from_secs(20), max: Duration::from_secs(60) },
            events: EventMode::Lean,
            resync: Duration::from_secs(15 * 60),
            inventory_interval: Duration::from_secs(3600),
            fault: None,
        }
    }
}
