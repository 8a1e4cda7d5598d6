//! What a service is: a name, a policy and a function that makes one run of it.
//!
//! Purpose: the values a parent hands to [`crate::Context::run`]. Must not know how they are run.
//!
//! Invariant: `run` is called anew for every incarnation; nothing a run consumes is made outside
//! of it (rule X5).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use logtree::{Level, Name, Quota};
use serde::{Deserialize, Serialize};

use crate::{Context, Outcome};

/// The function of a service.
pub type Run = Arc<dyn Fn(Context) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// A service: started as one node of the tree, again and again if need be.
#[derive(Clone)]
pub struct Service {
    /// Its name below its parent.
    pub name: Name,
    /// How it is treated.
    pub policy: Policy,
    /// Makes one run.
    pub run: Run,
}

impl Service {
    /// A service with the default policy.
    pub fn new<F, Fut>(name: Name, run: F) -> Service
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let run: Run = Arc::new(move |ctx| Box::pin(run(ctx)));
        Service { name, policy: Policy::default(), run }
    }

    /// The same service with another policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Service {
        self.policy = policy;
        self
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What happens after a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Restart {
    /// Started again after the backoff, for ever.
    #[default]
    Always,
    /// Death is final (rule T9).
    Never,
}

/// What happens when a Runnable is not healthy by its start deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SlowStart {
    /// Condition `SlowStart`, nothing else.
    #[default]
    Report,
    /// It counts as dead.
    Kill,
}

/// Where the future of a Runnable is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Placement {
    /// On the shared runtime.
    #[default]
    Shared,
    /// On a thread and runtime of its own, so that no neighbour can hold it up (rule X4).
    OwnThread,
}

/// How fast a dying Runnable is started again (rule T8).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// After the first death.
    pub first: Duration,
    /// Growth per further death.
    pub factor: f64,
    /// Longest, before jitter.
    pub max: Duration,
    /// A run that was healthy for this long clears the count of deaths; zero: at once.
    pub reset_after: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_millis(500),
            factor: 1.5,
            max: Duration::from_secs(60),
            reset_after: Duration::from_secs(10),
        }
    }
}

/// So many deaths in the window make the parent die (rule T14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intensity {
    /// How many.
    pub deaths: u32,
    /// In which time.
    pub window: Duration,
}

/// How a service is treated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// After a death.
    pub restart: Restart,
    /// How fast.
    pub backoff: Backoff,
    /// Time to become healthy; default 60 s.
    pub start_deadline: Duration,
    /// What if not.
    pub on_slow_start: SlowStart,
    /// Time to end after being asked; default 10 s.
    pub stop_deadline: Duration,
    /// Stage of the shutdown in which it is stopped, 0 to 9; default 4 (rule T12).
    pub stop_stage: Option<u8>,
    /// Whether the verdict of the node depends on it fully; otherwise it caps at degraded.
    pub critical: bool,
    /// Where it runs.
    pub placement: Placement,
    /// Least level shown on consoles.
    pub console: Level,
    /// How much of its log is kept.
    pub log: Quota,
    /// When its deaths become its parent's.
    pub escalate: Option<Intensity>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            restart: Restart::Always,
            backoff: Backoff::default(),
            start_deadline: Duration::from_secs(60),
            on_slow_start: SlowStart::Report,
            stop_deadline: Duration::from_secs(10),
            stop_stage: None,
            critical: true,
            placement: Placement::Shared,
            console: Level::Info,
            log: Quota::default(),
            escalate: None,
        }
    }
}
