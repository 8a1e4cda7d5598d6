//! The tree of Runnables: all decisions of the supervisor, without doing anything.
//!
//! ```text
//!            Add                healthy()              Ok(Done)
//!  (nothing) ───▶ New ──────────▶ Healthy ────────────▶ Done
//!                  │ ▲              │                     │ a member of its unit ended
//!     ended unasked│ │Start         │ended                ▼
//!                  ▼ │              ▼              asked to stop, children first
//!                 Dead / Cancelled ◀──────────────────────┘
//!                  │ unit gone, backoff over, parent stands
//!                  └──────────▶ New (next incarnation, without children)
//! ```
//!
//! Purpose: `step(now, event) -> effects`. Pure: no clock, randomness, I/O or tokio; the same seed
//! and events give the same effects (rule T1). The driver owns the one `Tree` and carries the
//! effects out.
//!
//! Invariants: an incarnation number is used once; nothing starts while anything of the previous
//! subtree lives, below a parent that does not stand, or after Shutdown; a node is asked to stop
//! only when its descendants are gone or stuck. A step costs O(affected subtree + unit): counts of
//! live nodes are kept on each ancestor, whose number is bounded by the depth of a DN.

mod backoff;
mod event;
mod exit;
pub(crate) mod health;
mod node;
pub(crate) mod record;
mod restart;
mod stop;
mod view;

#[cfg(test)]
mod model;
#[cfg(test)]
mod table;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use logtree::{Dn, Level, Name};
use serde::{Deserialize, Serialize};

use self::backoff::Rng;
pub(crate) use self::event::{Effect, Event, Exit, Refusal, Spec, Tick};
use self::node::{Asked, History, Key, Node, PhaseKind, Unit, UnitId};
pub(crate) use self::view::WallClock;
#[cfg(test)]
use crate::DeathClass;
use crate::{ChildStats, Condition, StartCause, State};

/// Most children of a node (rule D4).
pub(crate) const MAX_CHILDREN: usize = 1024;
/// From abort to stuck (rule T10).
const ABORT_GRACE: Duration = Duration::from_secs(5);
/// From stuck to fatal for a critical node (rule T14).
const STUCK_UNTIL_FATAL: Duration = Duration::from_secs(300);
/// DNs without a node whose history is remembered.
const REMEMBERED_DNS: usize = 4096;

/// A fixed hasher: iteration order never depends on the process.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// What a timer is for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Timer {
    Node(Key),
    Unit(UnitId),
}

/// Progress of the shutdown.
#[derive(Debug, Serialize, Deserialize)]
struct Shutdown {
    stage: u8,
    /// Nodes by stage, parents first.
    by_stage: Vec<Vec<Key>>,
    /// Live nodes that are not stuck, by stage.
    busy: Vec<u32>,
    quiet: bool,
}

/// The conditions that keep the invariants, one name each: a test drops them one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// An incarnation that has exited is forgotten (I7).
    ExitOnce,
    /// healthy() is taken in state New only (T4).
    HealthyInNew,
    /// Children are added in state New only (T4).
    AddInNew,
    /// Nothing is added after Shutdown (I8).
    AddBeforeShutdown,
    /// Nothing restarts after Shutdown (I8).
    RestartBeforeShutdown,
    /// Units restart below a standing parent only (I3).
    ParentStands,
    /// A unit restarts when all of it is gone (I2).
    UnitGone,
    /// Not before the backoff is over (I6).
    BackoffOver,
    /// The count of deaths returns to 0 only after a while of Healthy (I6).
    ResetWhenSettled,
    /// `Never` means never (T9).
    PolicyAlways,
    /// Descendants stop first (I9).
    DescendantsFirst,
    /// A node is asked once.
    AskOnce,
    /// A stuck node holds nobody up that is to stop (T10).
    StuckCountsAsGone,
    /// A stage of the shutdown waits for its nodes (T12).
    StageEmpty,
    /// Quiet is said once (I8).
    QuietOnce,
    /// Fatal is said once.
    FatalOnce,
    /// Units below a stopping node do not restart by themselves (T7).
    InnerRestartsCancelled,
}

/// The tree. See the module.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    rng: Rng,
    nodes: Map<Key, Node>,
    units: Map<UnitId, Unit>,
    live: Map<u64, Key>,
    timers: Map<u64, Timer>,
    /// History of DNs whose node was discarded.
    past: Map<Dn, History>,
    root: Option<Key>,
    next_id: u64,
    next_incarnation: u64,
    shutdown: Option<Shutdown>,
    fatal: bool,
    boot_finished: bool,
    stale: u64,
    /// Nodes with a death in the last 10 minutes: their health changes by time alone.
    mourned: BTreeSet<Key>,
    dirty: bool,
    now: Tick,
    #[serde(skip)]
    effects: Vec<Effect>,
    #[cfg(test)]
    #[serde(skip)]
    dropped: Option<Guard>,
}

impl Tree {
    pub(crate) fn new(seed: u64) -> Tree {
        Tree {
            rng: Rng::new(seed),
            nodes: Map::default(),
            units: Map::default(),
            live: Map::default(),
            timers: Map::default(),
            past: Map::default(),
            root: None,
            next_id: 1,
            next_incarnation: 1,
            shutdown: None,
            fatal: false,
            boot_finished: false,
            stale: 0,
            mourned: BTreeSet::new(),
            dirty: true,
            now: Tick(0),
            effects: Vec::new(),
            #[cfg(test)]
            dropped: None,
        }
    }

    /// Applies one event. Time never runs backwards: an earlier `now` counts as the last one.
    pub(crate) fn step(&mut self, now: Tick, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        match event {
            Event::Root { spec } => self.on_root(spec),
            Event::Add { parent, group, reply } => {
                let result = self.on_add(parent, group);
                self.effects.push(Effect::Reply { reply, result });
            }
            Event::Reserve { incarnation, name } => self.on_reserve(incarnation, name),
            Event::Healthy { incarnation } => self.on_healthy(incarnation),
            Event::Said { incarnation, note, conditions, child } => {
                self.on_said(incarnation, note, conditions, child);
            }
            Event::Exited { incarnation, exit } => self.on_exited(incarnation, exit),
            Event::TimerFired { timer } => self.on_timer(timer),
            Event::StopSubtree { dn, reply } => {
                let result = self.on_stop_requested(&dn);
                self.effects.push(Effect::Reply { reply, result });
            }
            Event::RestartRequested { dn, reply } => {
                let result = self.on_restart_requested(&dn);
                self.effects.push(Effect::Reply { reply, result });
            }
            Event::Shutdown => self.on_shutdown(),
        }
        std::mem::take(&mut self.effects)
    }

    fn on_root(&mut self, spec: Spec) {
        if self.root.is_some() {
            self.stale += 1;
            return;
        }
        let unit = self.new_unit();
        let dn = Dn::from(spec.name.clone());
        let key = self.new_node(None, unit, dn, spec);
        self.root = Some(key);
        self.start(key, StartCause::First);
    }

    fn on_add(&mut self, parent: u64, group: Vec<Spec>) -> Result<(), Refusal> {
        let Some(parent) = self.live_key(parent) else { return Err(Refusal::Stopping) };
        let node = &self.nodes[&parent];
        let open = self.guard(Guard::AddBeforeShutdown, self.shutdown.is_none());
        let new = self.guard(Guard::AddInNew, node.state == State::New);
        if !open || !new || node.asked != Asked::No {
            return Err(Refusal::Stopping);
        }
        if group.is_empty() {
            return Err(Refusal::EmptyGroup);
        }
        let mut dns = Vec::with_capacity(group.len());
        for (i, spec) in group.iter().enumerate() {
            let taken = node.names.contains_key(&spec.name)
                || group[..i].iter().any(|other| other.name == spec.name);
            if taken {
                return Err(Refusal::Duplicate(spec.name.clone()));
            }
            if node.children.len() + i >= MAX_CHILDREN {
                return Err(Refusal::TooMany(spec.name.clone()));
            }
            let dn = node.dn.child(&spec.name);
            dns.push(dn.map_err(|e| Refusal::Dn(spec.name.clone(), e))?);
        }
        let unit = self.new_unit();
        let mut keys = Vec::with_capacity(group.len());
        for (spec, dn) in group.into_iter().zip(dns) {
            keys.push(self.new_node(Some(parent), unit, dn, spec));
        }
        for key in keys {
            let known = self.nodes[&key].history.starts > 0;
            self.start(key, if known { StartCause::Parent } else { StartCause::First });
        }
        Ok(())
    }

    fn on_reserve(&mut self, incarnation: u64, name: Name) {
        let Some(key) = self.live_key(incarnation) else { return };
        self.node(key).names.entry(name).or_insert(None);
    }

    fn on_healthy(&mut self, incarnation: u64) {
        let Some(key) = self.live_key(incarnation) else { return };
        let now = self.now;
        if !self.guard(Guard::HealthyInNew, self.nodes[&key].state == State::New) {
            self.stale += 1;
            return;
        }
        let node = self.node(key);
        node.state = State::Healthy;
        node.healthy_at = Some(now);
        node.overdue = false;
        // Once asked to stop, the timer is the stop deadline and stays.
        if node.asked == Asked::No {
            self.disarm_node(key);
        }
        self.touch(key);
    }

    fn on_said(
        &mut self,
        incarnation: u64,
        note: String,
        conditions: Vec<Condition>,
        child: Option<ChildStats>,
    ) {
        let Some(key) = self.live_key(incarnation) else { return };
        let node = self.node(key);
        node.note = note;
        node.conditions = conditions;
        node.child = child;
        self.mark(key);
    }

    fn on_timer(&mut self, timer: u64) {
        match self.timers.remove(&timer) {
            None => self.stale += 1,
            Some(Timer::Unit(unit)) => {
                if let Some(unit) = self.units.get_mut(&unit) {
                    unit.timer = None;
                }
                self.try_restart(unit);
            }
            Some(Timer::Node(key)) => {
                self.node(key).timer = None;
                self.on_deadline(key);
            }
        }
    }

    fn new_unit(&mut self) -> UnitId {
        let id = self.new_id();
        self.units.insert(id, Unit { members: Vec::new(), restarting: false, timer: None });
        id
    }

    fn new_node(&mut self, parent: Option<Key>, unit: UnitId, dn: Dn, spec: Spec) -> Key {
        let key = self.new_id();
        let history = self.past.remove(&dn).unwrap_or_default();
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.members.push(key);
        }
        if let Some(parent) = parent {
            let parent = self.node(parent);
            parent.children.push(key);
            parent.names.insert(spec.name, Some(key));
        }
        let node = Node {
            dn,
            token: spec.token,
            policy: spec.policy,
            parent,
            unit,
            children: Vec::new(),
            names: Default::default(),
            incarnation: 0,
            state: State::New,
            live: false,
            asked: Asked::No,
            doom: None,
            live_below: 0,
            busy_below: 0,
            timer: None,
            healthy_at: None,
            failures: 0,
            due: None,
            next_cause: None,
            overdue: false,
            note: String::new(),
            conditions: Vec::new(),
            child: None,
            stage: 0,
            history,
            shown: None,
        };
        self.nodes.insert(key, node);
        key
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The node of a key that is known to exist: keys are removed from every list that holds them
    /// before their node is.
    fn node(&mut self, key: Key) -> &mut Node {
        match self.nodes.get_mut(&key) {
            Some(node) => node,
            None => unreachable!("key {key} outlived its node"),
        }
    }

    /// The node of a live incarnation; anything else is stale and counted.
    fn live_key(&mut self, incarnation: u64) -> Option<Key> {
        let key = self.live.get(&incarnation).copied();
        self.stale += u64::from(key.is_none());
        key
    }

    fn find(&self, dn: &Dn) -> Option<Key> {
        let mut names = dn.as_str().split('.');
        let mut key = self.root?;
        if names.next()? != self.nodes[&key].dn.as_str() {
            return None;
        }
        for name in names {
            let name = Name::new(name).ok()?;
            key = (*self.nodes[&key].names.get(&name)?)?;
        }
        Some(key)
    }

    /// The node, its parent, and so on up to root.
    fn lineage(&self, key: Key) -> Vec<Key> {
        std::iter::successors(Some(key), |k| self.nodes[k].parent).collect()
    }

    /// The node and all below it, parents first.
    fn subtree(&self, key: Key) -> Vec<Key> {
        let mut out = Vec::new();
        let mut stack = vec![key];
        while let Some(key) = stack.pop() {
            out.push(key);
            stack.extend(self.nodes[&key].children.iter().rev());
        }
        out
    }

    fn log(&mut self, key: Key, level: Level, text: String) {
        let dn = self.nodes[&key].dn.clone();
        self.effects.push(Effect::Log { dn, level, text });
    }

    fn arm(&mut self, timer: Timer, at: Tick) -> u64 {
        let id = self.new_id();
        self.timers.insert(id, timer);
        self.effects.push(Effect::Arm { timer: id, at });
        id
    }

    fn arm_node(&mut self, key: Key, after: Duration) {
        self.disarm_node(key);
        let id = self.arm(Timer::Node(key), self.now.after(after));
        self.node(key).timer = Some(id);
    }

    fn disarm_node(&mut self, key: Key) {
        if let Some(timer) = self.node(key).timer.take() {
            self.timers.remove(&timer);
            self.effects.push(Effect::Disarm { timer });
        }
    }

    /// Events so far that came too late to mean anything.
    pub(crate) fn stale(&self) -> u64 {
        self.stale
    }

    /// Something of the node changed that a snapshot shows.
    fn mark(&mut self, key: Key) {
        self.node(key).shown = None;
        self.dirty = true;
    }

    /// Records a change of state or phase, if there is one.
    fn touch(&mut self, key: Key) {
        let phase = self.phase_kind(key);
        let now = self.now;
        self.mark(key);
        let node = self.node(key);
        let (state, incarnation) = (node.state, node.incarnation);
        if let Some(from) = node.history.moved(now, state, phase) {
            let (dn, phase) = (node.dn.clone(), phase.as_str());
            self.effects.push(Effect::Transition { dn, incarnation, from, state, phase });
        }
    }

    fn phase_kind(&self, key: Key) -> PhaseKind {
        let node = &self.nodes[&key];
        if node.live {
            return match node.asked {
                Asked::No => PhaseKind::Running,
                Asked::Wanted(_) => PhaseKind::Waiting,
                Asked::Told(_) | Asked::Aborted(_) => PhaseKind::Stopping,
                Asked::Stuck(_) => PhaseKind::Stuck,
            };
        }
        let unit = &self.units[&node.unit];
        match (unit.restarting, unit.timer) {
            (true, Some(_)) => PhaseKind::Backoff,
            (true, None) => PhaseKind::Waiting,
            (false, _) => PhaseKind::Ended,
        }
    }

    /// `condition`, unless a test has dropped this guard to see that the model notices (rule §14).
    #[inline]
    fn guard(&self, guard: Guard, condition: bool) -> bool {
        #[cfg(test)]
        if self.dropped == Some(guard) {
            return true;
        }
        let _ = guard;
        condition
    }

    /// Whether a test has dropped this guard; never otherwise.
    #[inline]
    fn dropped(&self, guard: Guard) -> bool {
        self.guard(guard, false)
    }
}
