//! The supervisor: every service of the node is a Runnable in one tree.
//!
//! A service is a function `Context -> Outcome`. While it is `New` it starts its children
//! (`ctx.run`), says `healthy` when it is, works until asked to stop, and returns. What ends
//! unasked is started again, after a backoff, together with its unit and without its subtree.
//!
//! Must not know: Kubernetes, storage, `nodesys`; of our crates only `logtree`.
//!
//! ```ignore
//! use supervisor::prelude::*;
//! Service::new(Name::from_static("clock"), |ctx| async move {
//!     let running = ctx.healthy();
//!     Err(running.stop().stopped().await.into())
//! });
//! ```

mod child;
mod outcome;
mod service;
mod skeleton;
mod snapshot;

pub use child::{
    CgroupLimits, Child, ChildFile, ChildSpec, KillScope, Probe, Rlimit, Spawner, StopSpec, User,
    child, run_child,
};
pub use logtree::{Dn, Level, LogTree, Name, NameError, Quota};
pub use outcome::{Cancelled, Done, Failure, Outcome, Stop};
pub use service::{Backoff, Intensity, Placement, Policy, Restart, Run, Service, SlowStart};
pub use skeleton::*;
pub use snapshot::{
    ChildStats, Condition, Death, DeathClass, NodeSnapshot, Phase, Severity, Snapshot, StartCause,
    State, Transition, Verdict,
};

/// What a service usually imports.
pub mod prelude {
    pub use crate::{
        AddError, Cancelled, Condition, Context, Dn, Done, Handle, Health, Name, Outcome, Policy,
        Running, Service, Stop, StopToken,
    };
}
