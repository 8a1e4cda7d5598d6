//! Health dashboard of a node: pages for people, JSON, live stream and metrics for programs.
//!
//! ```text
//! Sources (watch receivers, LogTree, Registry) ─┐
//!                                               ├─ App ─ router (shell: access, headers, panics)
//! Access (token, sessions, attempts) ───────────┘          ├─ handlers::pages ── page::*  -> HTML
//!                                                          ├─ handlers::api ──── json, stream, metrics
//! serve::service (TCP and control socket) ─────────────────┼─ handlers::writes ── Controls
//! local::Local (the host channel, in process) ─────────────┴─ handlers::health
//! ```
//!
//! It holds views of the tree, not the supervisor. What it can change are the two calls of
//! [`Controls`] and log levels, for admins only: the control socket, the host's own channel, or a
//! client certificate that says so. Pages are pure functions of one moment (`page`), complete
//! without JavaScript.
//!
//! Must not know: Kubernetes, storage, `nodesys`. What it shows of them are the plain views of
//! [`VolumesView`] and [`NodeView`], filled by `node`.

mod access;
mod control;
mod counters;
mod handlers;
mod json;
mod local;
mod metrics;
mod page;
mod patient;
mod peer;
mod problem;
mod query;
mod reading;
mod router;
mod serve;
mod sources;
mod stream;
pub mod text;
mod views;

pub use access::{Access, AccessError};
pub use control::{Controls, PowerAction, PowerRequest};
pub use local::{Ask, AskError, Local, Reply};
pub use peer::{Peer, Role};
pub use router::router;
pub use serve::{Listen, service};
pub use sources::{Sources, TreeView};
pub use views::{
    BootOutcome, Capacity, ChildExits, Disk, Memory, Mount, NodeCondition, NodeView, Phase,
    Pressure, UsePoint, VolumeCondition, VolumeView, VolumesView,
};
