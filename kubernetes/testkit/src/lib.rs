//! Helpers for tests of controllers: object builders and a scripted API server.
//!
//! Purpose: let a test say in one line which object it means, and answer a real `kube::Client` from memory.
//! Owner: tests only; no crate may depend on it outside `[dev-dependencies]`.
//! Invariants: builders set only what they are told and what every API server sets; no network, no clock.
//! It must not know: any controller.

mod objects;
mod server;

pub use objects::{
    ClaimBuilder, ClassBuilder, NodeBuilder, VolumeBuilder, mk_class, mk_node, mk_pv, mk_pvc, time,
};
pub use server::{Answer, ApiServer, Request};
