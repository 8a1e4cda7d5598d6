//! Runnables of the node itself.
//!
//! Must not know: Kubernetes, except `view`, which shows what the cluster publishes.
pub mod console;
pub mod dashboard;
pub mod kernel;
pub mod network;
pub mod power;
pub mod status;
pub mod view;
