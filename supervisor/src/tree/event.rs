//! What goes into the tree and what comes out of it: plain data (rule T1).
//!
//! Events carry the incarnation they speak of. Both are written into recordings, so a change of
//! their shape is a new version of that format (`crate::replay`).

use std::time::Duration;

use logtree::{Dn, Level, Name, NameError};
use serde::{Deserialize, Serialize};

use crate::{ChildStats, Condition, Fatal, Policy, Quiet, State, StopReason};

/// Nanoseconds since the tree was made.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub(crate) struct Tick(pub(crate) u64);

impl Tick {
    pub(crate) fn after(self, d: Duration) -> Tick {
        Tick(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    pub(crate) fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A service as the tree sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: Name,
    pub(crate) policy: Policy,
    /// The driver's name for it.
    pub(crate) token: u64,
}

/// How an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    Done,
    Cancelled,
    Restart(String),
    Failed(String),
    Panicked(String),
    Aborted,
}

/// What happens to the tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// The first event.
    Root {
        spec: Spec,
    },
    /// Start children of an incarnation as one unit.
    Add {
        parent: u64,
        group: Vec<Spec>,
        reply: u64,
    },
    /// Keep a name for a sub-logger.
    Reserve {
        incarnation: u64,
        name: Name,
    },
    Healthy {
        incarnation: u64,
    },
    /// What it says about itself now.
    Said {
        incarnation: u64,
        note: String,
        conditions: Vec<Condition>,
        child: Option<ChildStats>,
    },
    Exited {
        incarnation: u64,
        exit: Exit,
    },
    TimerFired {
        timer: u64,
    },
    /// Stop a node and what is below it, until its unit or an ancestor restarts.
    StopSubtree {
        dn: Dn,
        reply: u64,
    },
    RestartRequested {
        dn: Dn,
        reply: u64,
    },
    Shutdown,
}

impl Event {
    /// The kind as a word, for metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Event::Root { .. } => "root",
            Event::Add { .. } => "add",
            Event::Reserve { .. } => "reserve",
            Event::Healthy { .. } => "healthy",
            Event::Said { .. } => "said",
            Event::Exited { .. } => "exited",
            Event::TimerFired { .. } => "timer_fired",
            Event::StopSubtree { .. } => "stop_subtree",
            Event::RestartRequested { .. } => "restart_requested",
            Event::Shutdown => "shutdown",
        }
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    EmptyGroup,
    Duplicate(Name),
    TooMany(Name),
    Dn(Name, NameError),
    Stopping,
    Unknown,
    Root,
    ParentDown,
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    Start {
        incarnation: u64,
        token: u64,
        dn: Dn,
    },
    Stop {
        incarnation: u64,
        reason: StopReason,
    },
    Abort {
        incarnation: u64,
    },
    Arm {
        timer: u64,
        at: Tick,
    },
    Disarm {
        timer: u64,
    },
    Transition {
        dn: Dn,
        incarnation: u64,
        /// `None` at first sight.
        from: Option<State>,
        state: State,
        phase: &'static str,
    },
    Reply {
        reply: u64,
        result: Result<(), Refusal>,
    },
    Log {
        dn: Dn,
        level: Level,
        text: String,
    },
    /// Aborted and still there: the driver logs it, since it knows what still runs.
    Stuck {
        incarnation: u64,
        dn: Dn,
    },
    /// Nothing has this DN any more; the service of this token, if it was a node, is not needed.
    Forget {
        dn: Dn,
        token: Option<u64>,
    },
    Fatal(Fatal),
    Quiet(Quiet),
}
