//! CSI Identity, Controller and Node over a unix socket, on top of the volume engine, and the
//! registration of that socket with the kubelet.
//!
//! Purpose: translate. A request becomes a typed value ([`publish`]), the engine acts, and
//! its answer becomes a message or a status whose code is chosen for the caller's retry
//! machinery ([`error`]). Nothing about volumes is decided here.
//!
//! Owner: two Runnables, [`csi_service`] and [`registration_service`]. Each makes its
//! listener anew in every incarnation and runs all its connections and calls within its own
//! task, so that nothing outlives it and no failure goes unseen.
//!
//! Invariants: an id outside the grammar never reaches the engine, so it touches no path;
//! every status but OK is also in the local log; a socket is 0600 from birth and is taken
//! over only if nothing answers on it.
//!
//! Must not know: the API server, the provisioner, where volumes are on disk.
//!
//! Not served, and not advertised: staging, publishing by a controller, changing parameters.

mod config;
mod controller;
pub mod controller_error;
pub mod create;
mod engine;
pub mod error;
mod identity;
mod messages;
mod metrics;
mod node;
mod observe;
pub mod publish;
mod registration;
mod runnable;
mod server;
mod socket;

#[cfg(test)]
mod controller_tests;
#[cfg(test)]
mod sanity_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tree_tests;
#[cfg(test)]
mod wire_tests;

pub use config::{CsiConfig, DRIVER_NAME, HealthApi, TOPOLOGY_KEY};
pub use metrics::CsiMetrics;
pub use runnable::{csi_service, registration_service};
