//! What the tree looks like at one moment: the value that dashboard, host channel and metrics show.
//!
//! Purpose: plain data without behaviour. Times are wall-clock nanoseconds since 1970. Node
//! entries are shared between snapshots as long as nothing in them changed.

use std::sync::Arc;

use logtree::{Dn, Level};
use serde::{Deserialize, Serialize};

/// The whole tree, parents before their children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Root has returned Done.
    pub boot_finished: bool,
    /// Worst health that counts.
    pub verdict: Verdict,
    /// The DN that decided the verdict, if it is not ok.
    pub verdict_dn: Option<Dn>,
    /// And why.
    pub verdict_reason: String,
    /// A shutdown has begun.
    pub shutting_down: bool,
    /// Stage of the shutdown that is being stopped.
    pub shutdown_stage: Option<u8>,
    /// Events that came for an incarnation that was gone.
    pub stale_events: u64,
    /// All nodes.
    pub nodes: Vec<Arc<NodeSnapshot>>,
}

/// Health of a node or of the whole tree. Ordered: `Ok` is best (rule H2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// Not there yet.
    Starting,
    /// Works, with a blemish.
    Degraded,
    /// Down, about to be started again.
    Restarting,
    /// Does not work.
    Failing,
}

impl Verdict {
    /// All verdicts, best first.
    pub const ALL: [Verdict; 5] =
        [Verdict::Ok, Verdict::Starting, Verdict::Degraded, Verdict::Restarting, Verdict::Failing];

    /// Lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Starting => "starting",
            Verdict::Degraded => "degraded",
            Verdict::Restarting => "restarting",
            Verdict::Failing => "failing",
        }
    }
}

/// What a Runnable has done so far (rule T2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Started, said nothing.
    New,
    /// Called healthy().
    Healthy,
    /// Returned Ok(Done).
    Done,
    /// Ended unasked.
    Dead,
    /// Ended because asked.
    Cancelled,
}

impl State {
    /// All states.
    pub const ALL: [State; 5] =
        [State::New, State::Healthy, State::Done, State::Dead, State::Cancelled];

    /// Lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            State::New => "new",
            State::Healthy => "healthy",
            State::Done => "done",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }
}

/// What the supervisor is doing with a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum Phase {
    /// Its Runnable runs.
    Running,
    /// It was asked to stop.
    Stopping,
    /// It has ended and waits for others to end.
    Waiting {
        /// For whom.
        dns: Vec<Dn>,
    },
    /// It is started again at a time.
    Backoff {
        /// When (ns since 1970).
        until: i64,
    },
    /// It was aborted and still has not ended.
    Stuck,
    /// It has ended and nothing is planned for it.
    Ended,
}

impl Phase {
    /// Lower-case word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Phase::Running => "running",
            Phase::Stopping => "stopping",
            Phase::Waiting { .. } => "waiting",
            Phase::Backoff { .. } => "backoff",
            Phase::Stuck => "stuck",
            Phase::Ended => "ended",
        }
    }
}

/// One node of the tree (rules H1 to H4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeSnapshot {
    /// Its path.
    pub dn: Dn,
    /// What it has done.
    pub state: State,
    /// What is being done with it.
    pub phase: Phase,
    /// Its own health.
    pub health: Verdict,
    /// Why its health is not ok; empty if it is.
    pub reason: String,
    /// Last change of state or phase (ns since 1970).
    pub since: i64,
    /// Number of its current or last start; never used twice in a tree.
    pub incarnation: u64,
    /// Starts so far.
    pub starts: u64,
    /// Starts so far by cause.
    pub starts_by_cause: Vec<(StartCause, u64)>,
    /// Deaths so far.
    pub deaths: u64,
    /// Deaths in the last 10 minutes.
    pub deaths_10min: u32,
    /// The last death.
    pub last_death: Option<Death>,
    /// When it is started again (ns since 1970), if that is settled.
    pub next_start: Option<i64>,
    /// What it does or waits for now.
    pub note: Option<String>,
    /// What it has said about itself.
    pub conditions: Vec<Condition>,
    /// Last 64 changes of state or phase, oldest first.
    pub transitions: Vec<Transition>,
    /// Numbers of its child process, if it has one.
    pub child: Option<ChildStats>,
    /// Number of its unit below its parent; nodes of one unit restart together.
    pub unit: u64,
    /// Whether the verdict depends on it fully.
    pub critical: bool,
    /// Stage of the shutdown in which it is stopped.
    pub stop_stage: u8,
    /// Least level shown on consoles.
    pub console: Level,
}

/// Why a node was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartCause {
    /// Its first time below this incarnation of its parent, the parent's first too.
    First,
    /// It returned a failure, or was aborted.
    Failed,
    /// It panicked.
    Panicked,
    /// It or an operator asked for it.
    Restart,
    /// A member of its unit ended.
    Group,
    /// Its parent was restarted.
    Parent,
}

impl StartCause {
    /// Lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            StartCause::First => "first",
            StartCause::Failed => "failed",
            StartCause::Panicked => "panicked",
            StartCause::Restart => "restart",
            StartCause::Group => "group",
            StartCause::Parent => "parent",
        }
    }
}

/// A death.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Death {
    /// When (ns since 1970).
    pub at: i64,
    /// Of what.
    pub class: DeathClass,
    /// In words, at most 4 KiB.
    pub text: String,
}

/// What a Runnable died of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeathClass {
    /// It returned a failure.
    Failed,
    /// It panicked.
    Panicked,
    /// It was aborted at its stop or start deadline.
    Aborted,
    /// A child of it died too often.
    Escalated,
}

impl DeathClass {
    /// Lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            DeathClass::Failed => "failed",
            DeathClass::Panicked => "panicked",
            DeathClass::Aborted => "aborted",
            DeathClass::Escalated => "escalated",
        }
    }
}

/// One change of state or phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// When (ns since 1970).
    pub at: i64,
    /// State before; `None` at first sight.
    pub from: Option<State>,
    /// State after.
    pub to: State,
    /// Phase after, as a word.
    pub phase: &'static str,
}

/// How bad a condition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Works, with a blemish.
    Degraded,
    /// Does not work.
    Unhealthy,
}

impl Severity {
    /// Lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Degraded => "degraded",
            Severity::Unhealthy => "unhealthy",
        }
    }
}

/// What a Runnable says about itself; informs, restarts nothing (rule H1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// CamelCase, at most 64 bytes; one condition per kind.
    pub kind: String,
    /// How bad.
    pub severity: Severity,
    /// In words, at most 1 KiB.
    pub message: String,
}

impl Condition {
    /// A blemish.
    pub fn degraded(kind: &str, message: impl Into<String>) -> Condition {
        Condition { kind: kind.to_owned(), severity: Severity::Degraded, message: message.into() }
    }

    /// A failure that does not end the Runnable.
    pub fn unhealthy(kind: &str, message: impl Into<String>) -> Condition {
        Condition { kind: kind.to_owned(), severity: Severity::Unhealthy, message: message.into() }
    }
}

/// Numbers of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChildStats {
    /// Its pid.
    pub pid: i32,
    /// CPU time of its cgroup in nanoseconds.
    pub cpu_ns: u64,
    /// Memory of its cgroup in bytes.
    pub memory_bytes: u64,
    /// Processes killed for want of memory in its cgroup.
    pub oom_kills: u64,
}
