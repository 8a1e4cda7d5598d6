//! Health dashboard of a node: pages for people, JSON, live stream and metrics for programs.
//!
//! ```text
//! Sources (watch receivers, LogTree, Registry) ─┐
//!                                               ├─ App ─ router (shell: access, headers, panics)
//! Access (token, sessions, attempts) ───────────┘          ├─ handlers::pages ── page::*  -> HTML
//!                                                          ├─ handlers::api ──── json, stream, metrics
//! serve::service (listener, connections) ──────────────────┴─ handlers::health
//! ```
//!
//! It reads and never writes: it holds views of the tree, not the supervisor, and answers GET and
//! HEAD only. Pages are pure functions of one moment (`page`), complete without JavaScript.
//!
//! Must not know: Kubernetes, storage, `nodesys`. What it shows of them are the plain views of
//! [`VolumesView`] and [`NodeView`], filled by `node`.

mod access;
mod counters;
mod handlers;
mod json;
mod metrics;
mod page;
mod problem;
mod query;
mod reading;
mod router;
mod serve;
mod sources;
mod stream;
mod text;
mod views;

pub use access::{Access, AccessError};
pub use router::router;
pub use serve::service;
pub use sources::{Sources, TreeView};
pub use views::{
    BootOutcome, Capacity, Disk, Memory, Mount, NodeCondition, NodeView, Phase, Pressure,
    VolumeCondition, VolumeView, VolumesView,
};
