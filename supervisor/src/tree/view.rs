//! Snapshots of the tree: made from cached parts, so that a change costs only what changed.

use std::sync::Arc;

use super::node::{Asked, DEATH_WINDOW, DEFAULT_STAGE, Key, Node, PhaseKind};
use super::{Tick, Tree, health};
use crate::{
    Condition, Death, NodeSnapshot, Phase, Restart, Snapshot, State, StopReason, Transition,
};

/// Most DNs named as being waited for.
const WAITING_DNS: usize = 16;

/// Wall-clock nanoseconds since 1970 at tick 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WallClock(pub(crate) i64);

impl WallClock {
    fn at(self, tick: Tick) -> i64 {
        self.0.saturating_add(i64::try_from(tick.0).unwrap_or(i64::MAX))
    }
}

impl Tree {
    /// Whether anything changed since the last snapshot.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Whether the health of some node may change by time alone.
    pub(crate) fn ages(&self) -> bool {
        !self.mourned.is_empty()
    }

    /// Makes the next snapshot count deaths anew.
    pub(crate) fn grow_older(&mut self) {
        self.dirty = true;
    }

    /// The tree as it is now.
    pub(crate) fn snapshot(&mut self, now: Tick, wall: WallClock) -> Snapshot {
        self.now = self.now.max(now);
        let now = self.now;
        for key in self.mourned.clone() {
            let node = self.node(key);
            node.shown = None;
            if node.history.deaths_within(now, DEATH_WINDOW) == 0 {
                self.mourned.remove(&key);
            }
        }
        let keys = self.root.map(|root| self.subtree(root)).unwrap_or_default();
        let mut nodes = Vec::with_capacity(keys.len());
        for key in keys {
            let shown = match &self.nodes[&key].shown {
                Some(shown) => shown.clone(),
                None => Arc::new(self.show(key, wall)),
            };
            self.node(key).shown = Some(shown.clone());
            nodes.push(shown);
        }
        self.dirty = false;
        let (verdict, verdict_dn, verdict_reason) = health::rollup(nodes.iter().map(|n| &**n));
        Snapshot {
            boot_finished: self.boot_finished,
            verdict,
            verdict_dn,
            verdict_reason,
            shutting_down: self.shutdown.is_some(),
            shutdown_stage: self.shutdown.as_ref().map(|s| s.stage),
            stale_events: self.stale,
            nodes,
        }
    }

    fn show(&self, key: Key, wall: WallClock) -> NodeSnapshot {
        let node = &self.nodes[&key];
        let history = &node.history;
        let unit = &self.units[&node.unit];
        let deaths_10min = history.deaths_within(self.now, DEATH_WINDOW);
        let stops_for_restart = matches!(
            node.asked,
            Asked::Wanted(StopReason::Restart)
                | Asked::Told(StopReason::Restart)
                | Asked::Aborted(StopReason::Restart)
        );
        let (health, reason) = health::own(&health::Facts {
            state: node.state,
            restarting: !node.live && unit.restarting,
            stopping: node.live && stops_for_restart,
            stuck: node.live && matches!(node.asked, Asked::Stuck(_)),
            overdue: node.overdue,
            never_restart: node.policy.restart == Restart::Never,
            deaths_10min,
            death: history.last_death.as_ref().map(|(_, _, text)| text.as_str()),
            note: &node.note,
            conditions: &node.conditions,
        });
        let own_stage = node.policy.stop_stage.unwrap_or(DEFAULT_STAGE);
        NodeSnapshot {
            dn: node.dn.clone(),
            state: node.state,
            phase: self.phase(key, wall),
            health,
            reason,
            since: wall.at(history.since),
            incarnation: node.incarnation,
            starts: history.starts,
            starts_by_cause: history.causes.iter().map(|(c, n)| (*c, *n)).collect(),
            deaths: history.deaths,
            deaths_10min,
            last_death: history.last_death.as_ref().map(|(at, class, text)| Death {
                at: wall.at(*at),
                class: *class,
                text: text.clone(),
            }),
            next_start: match (node.live, unit.restarting) {
                (false, true) => unit.timer.map(|(_, due)| wall.at(due)),
                _ => None,
            },
            note: (!node.note.is_empty()).then(|| node.note.clone()),
            conditions: conditions(node),
            transitions: history
                .transitions
                .iter()
                .map(|(at, from, to, phase)| Transition {
                    at: wall.at(*at),
                    from: *from,
                    to: *to,
                    phase: phase.as_str(),
                })
                .collect(),
            child: node.child,
            unit: node.unit,
            critical: node.policy.critical,
            stop_stage: if self.shutdown.is_some() { node.stage } else { own_stage },
            console: node.policy.console,
        }
    }

    fn phase(&self, key: Key, wall: WallClock) -> Phase {
        let unit = &self.units[&self.nodes[&key].unit];
        match (self.phase_kind(key), unit.timer) {
            (PhaseKind::Running, _) => Phase::Running,
            (PhaseKind::Stopping, _) => Phase::Stopping,
            (PhaseKind::Stuck, _) => Phase::Stuck,
            (PhaseKind::Backoff, Some((_, due))) => Phase::Backoff { until: wall.at(due) },
            (PhaseKind::Waiting, _) => Phase::Waiting { dns: self.awaited(key) },
            (PhaseKind::Backoff, None) | (PhaseKind::Ended, _) => Phase::Ended,
        }
    }

    /// Whom a waiting node waits for: what lives below it or, once it has ended, in its unit.
    fn awaited(&self, key: Key) -> Vec<logtree::Dn> {
        let node = &self.nodes[&key];
        let roots = match node.live {
            true => node.children.clone(),
            false => self.units[&node.unit].members.clone(),
        };
        let mut dns = Vec::new();
        let mut stack: Vec<Key> = roots.into_iter().rev().collect();
        while let Some(key) = stack.pop() {
            let node = &self.nodes[&key];
            if node.live && dns.len() < WAITING_DNS {
                dns.push(node.dn.clone());
            }
            // Only where something lives: the cost follows the answer.
            if node.live_below > 0 {
                stack.extend(node.children.iter().rev());
            }
        }
        dns
    }
}

fn conditions(node: &Node) -> Vec<Condition> {
    let mut all = node.conditions.clone();
    if node.overdue && node.state == State::New {
        let note = if node.note.is_empty() { "it has said nothing" } else { &node.note };
        let seconds = node.policy.start_deadline.as_secs_f64();
        let text = format!("not healthy after {seconds:.1} s: {note}");
        all.push(Condition::degraded("SlowStart", text));
    }
    all
}
