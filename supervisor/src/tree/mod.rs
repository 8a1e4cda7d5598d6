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
mod exit;
pub(crate) mod health;
mod node;
mod restart;
mod stop;
mod view;

#[cfg(test)]
mod model;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use logtree::{Dn, Level, Name, NameError};

use self::backoff::Rng;
use self::node::{Asked, History, Key, Node, Unit, UnitId};
pub(crate) use self::view::WallClock;
#[cfg(test)]
use crate::DeathClass;
use crate::{ChildStats, Condition, Fatal, Policy, Quiet, StartCause, State, StopReason};

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

/// Nanoseconds since the tree was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    pub(crate) name: Name,
    pub(crate) policy: Policy,
    /// The driver's name for it.
    pub(crate) token: u64,
}

/// How an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Cancelled,
    Restart(String),
    Failed(String),
    Panicked(String),
    Aborted,
}

/// What happens to the tree.
#[derive(Debug, Clone, PartialEq)]
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
    /// The service of this token is not needed any more.
    Forget {
        token: u64,
    },
    Fatal(Fatal),
    Quiet(Quiet),
}

/// What a timer is for.
#[derive(Debug, Clone, Copy)]
enum Timer {
    Node(Key),
    Unit(UnitId),
}

/// Progress of the shutdown.
#[derive(Debug)]
struct Shutdown {
    stage: u8,
    /// Nodes by stage, parents first.
    by_stage: Vec<Vec<Key>>,
    /// Live nodes that are not stuck, by stage.
    busy: Vec<u32>,
    quiet: bool,
}

/// The tree. See the module.
#[derive(Debug)]
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
    effects: Vec<Effect>,
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
        if self.shutdown.is_some() || node.asked != Asked::No || node.state != State::New {
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
        let node = self.node(key);
        if node.state != State::New {
            self.stale += 1;
            return;
        }
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
        let phase = self.phase_word(key);
        let now = self.now;
        self.mark(key);
        let node = self.node(key);
        let (state, incarnation) = (node.state, node.incarnation);
        if let Some(from) = node.history.moved(now, state, phase) {
            let dn = node.dn.clone();
            self.effects.push(Effect::Transition { dn, incarnation, from, state, phase });
        }
    }

    fn phase_word(&self, key: Key) -> &'static str {
        let node = &self.nodes[&key];
        if node.live {
            return match node.asked {
                Asked::No => "running",
                Asked::Wanted(_) => "waiting",
                Asked::Told(_) | Asked::Aborted(_) => "stopping",
                Asked::Stuck(_) => "stuck",
            };
        }
        let unit = &self.units[&node.unit];
        match (unit.restarting, unit.timer) {
            (true, Some(_)) => "backoff",
            (true, None) => "waiting",
            (false, _) => "ended",
        }
    }
}
