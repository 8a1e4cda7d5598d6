//! What the tree remembers of a node, a unit and a DN.
//!
//! Plain data and questions about it; what happens is decided in the neighbouring modules.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use logtree::{Dn, Name};
use serde::{Deserialize, Serialize};

use super::Tick;
use crate::{
    ChildStats, Condition, DeathClass, NodeSnapshot, Policy, StartCause, State, StopReason,
};

/// Stage of the shutdown in which a node is stopped that says nothing itself (rule T12).
pub(crate) const DEFAULT_STAGE: u8 = 4;
/// Last stage.
pub(crate) const LAST_STAGE: u8 = 9;
/// Changes remembered per DN (rule H4).
pub(crate) const TRANSITIONS: usize = 64;
/// Longest text of a death in bytes (rule H4).
pub(crate) const DEATH_TEXT_BYTES: usize = 4 << 10;
/// Death times remembered per DN; bounds `deaths_10min` and `Intensity.deaths`.
const DEATH_TIMES: usize = 256;
/// Window of `deaths_10min`.
pub(crate) const DEATH_WINDOW: Duration = Duration::from_secs(600);

/// Names a node for as long as it exists; never used twice.
pub(crate) type Key = u64;
/// Names a unit; never used twice.
pub(crate) type UnitId = u64;

/// How far the ending of an incarnation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    /// Not asked.
    No,
    /// To be asked as soon as its descendants are gone or stuck.
    Wanted(StopReason),
    /// Asked; the stop deadline runs.
    Told(StopReason),
    /// Aborted at the stop deadline.
    Aborted(StopReason),
    /// Still there after the abort.
    Stuck(StopReason),
}

/// What is being done with a node, without the details of [`crate::Phase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PhaseKind {
    Running,
    Stopping,
    Waiting,
    Backoff,
    Stuck,
    Ended,
}

impl PhaseKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            PhaseKind::Running => "running",
            PhaseKind::Stopping => "stopping",
            PhaseKind::Waiting => "waiting",
            PhaseKind::Backoff => "backoff",
            PhaseKind::Stuck => "stuck",
            PhaseKind::Ended => "ended",
        }
    }
}

/// One node of the tree.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) dn: Dn,
    /// The driver's name for the service.
    pub(crate) token: u64,
    pub(crate) policy: Policy,
    pub(crate) parent: Option<Key>,
    pub(crate) unit: UnitId,
    /// In order of declaration.
    pub(crate) children: Vec<Key>,
    /// Children and, without a key, reserved sub-loggers.
    pub(crate) names: BTreeMap<Name, Option<Key>>,

    pub(crate) incarnation: u64,
    pub(crate) state: State,
    /// The incarnation has not exited.
    pub(crate) live: bool,
    pub(crate) asked: Asked,
    /// Whatever it returns, it dies of this.
    pub(crate) doom: Option<(DeathClass, String)>,
    /// Live nodes strictly below.
    pub(crate) live_below: u32,
    /// Of these, those that are not stuck.
    pub(crate) busy_below: u32,
    /// The one deadline that runs: start, stop, abort or stuck, as `asked` says.
    pub(crate) timer: Option<u64>,
    pub(crate) healthy_at: Option<Tick>,
    /// Failures in a row, for the backoff.
    pub(crate) failures: u32,
    /// Not to be started before.
    pub(crate) due: Option<Tick>,
    /// Why its next start happens; `None`: for its unit.
    pub(crate) next_cause: Option<StartCause>,
    /// Start deadline passed without healthy().
    pub(crate) overdue: bool,
    pub(crate) note: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) child: Option<ChildStats>,
    /// Effective stage, set when the shutdown begins.
    pub(crate) stage: u8,
    pub(crate) history: History,
    /// Last snapshot, unless something changed since.
    #[serde(skip)]
    pub(crate) shown: Option<Arc<NodeSnapshot>>,
}

impl Node {
    /// Neither it nor anything below it lives.
    pub(crate) fn gone(&self) -> bool {
        !self.live && self.live_below == 0
    }

    /// Its children may live and be restarted.
    pub(crate) fn standing(&self) -> bool {
        let up = match self.state {
            State::New | State::Healthy => self.live,
            State::Done => true,
            State::Dead | State::Cancelled => false,
        };
        up && self.asked == Asked::No
    }
}

/// Nodes that restart together.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unit {
    /// In order of declaration.
    pub(crate) members: Vec<Key>,
    /// A member has ended and all are to be started again.
    pub(crate) restarting: bool,
    /// All are gone; the backoff runs.
    pub(crate) timer: Option<(u64, Tick)>,
}

/// What is remembered of a DN over all its nodes and incarnations.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) since: Tick,
    pub(crate) starts: u64,
    pub(crate) causes: BTreeMap<StartCause, u64>,
    pub(crate) deaths: u64,
    pub(crate) death_times: VecDeque<Tick>,
    pub(crate) last_death: Option<(Tick, DeathClass, String)>,
    pub(crate) transitions: VecDeque<(Tick, Option<State>, State, PhaseKind)>,
}

impl History {
    pub(crate) fn died(&mut self, now: Tick, class: DeathClass, text: &str) {
        self.deaths += 1;
        if self.death_times.len() == DEATH_TIMES {
            self.death_times.pop_front();
        }
        self.death_times.push_back(now);
        self.last_death = Some((now, class, cut(text, DEATH_TEXT_BYTES).to_owned()));
    }

    /// Deaths in the window that ends now.
    pub(crate) fn deaths_within(&self, now: Tick, window: Duration) -> u32 {
        let recent = self.death_times.iter().rev().take_while(|t| now.since(**t) < window);
        u32::try_from(recent.count()).unwrap_or(u32::MAX)
    }

    /// Records a change and tells the state before it (`None` inside at first sight); `None` if
    /// nothing changed.
    pub(crate) fn moved(
        &mut self,
        now: Tick,
        to: State,
        phase: PhaseKind,
    ) -> Option<Option<State>> {
        let last = self.transitions.back();
        if last.is_some_and(|(_, _, state, p)| *state == to && *p == phase) {
            return None;
        }
        let from = last.map(|(_, _, state, _)| *state);
        if self.transitions.len() == TRANSITIONS {
            self.transitions.pop_front();
        }
        self.transitions.push_back((now, from, to, phase));
        self.since = now;
        Some(from)
    }
}

/// The beginning of a text, at most `max` bytes, cut at a character.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
