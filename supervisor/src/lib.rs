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

mod api;
mod child;
mod context;
mod driver;
mod meter;
mod outcome;
mod panics;
mod replay;
mod runner;
mod serve;
mod service;
mod slot;
mod snapshot;
mod sync;
mod tree;

pub use api::{Config, Fatal, Quiet, RecordingError, RestartError, StartError, Supervisor};

pub use child::{
    CgroupLimits, Child, ChildFile, ChildSpec, KillScope, Probe, Rlimit, Spawner, StopSpec, User,
    child, run_child,
};
pub use context::{
    AddError, Context, Handle, Health, Job, JobPanicked, Running, StopReason, StopToken,
};
pub use logtree::{Dn, Level, LogTree, Name, NameError, Quota};
pub use meter::{Counters, DnCounters, STEP_BUCKETS, StepTimes};
pub use outcome::{Cancelled, Done, Failure, Outcome, Stop};
pub use panics::{caught_panics, panic_is_caught};
pub use replay::{Replay, ReplayError, replay};
pub use serve::{BindError, Draining, serve_tcp, serve_unix};
pub use service::{Backoff, Intensity, Placement, Policy, Restart, Run, Service, SlowStart};
pub use snapshot::{
    ChildStats, Condition, Death, DeathClass, NodeSnapshot, Phase, Severity, Snapshot, StartCause,
    State, Transition, Verdict,
};

#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// What a service usually imports.
pub mod prelude {
    pub use crate::{
        AddError, Cancelled, Condition, Context, Dn, Done, Handle, Health, Name, Outcome, Policy,
        Running, Service, Stop, StopToken,
    };
}
