//! Starting again: units restart as one, after the largest backoff of their members (rule T7).

use std::collections::BTreeMap;

use logtree::{Dn, Name};

use super::node::{Asked, Key, UnitId};
use super::{Effect, Guard, REMEMBERED_DNS, Refusal, Timer, Tree};
use crate::{StartCause, State, StopReason};

impl Tree {
    /// The parent of the unit stands and nothing forbids starts.
    pub(super) fn may_restart(&self, unit: UnitId) -> bool {
        let first = self.units[&unit].members.first();
        let parent = first.and_then(|key| self.nodes[key].parent);
        let stands = parent.is_some_and(|p| self.nodes[&p].standing());
        self.guard(Guard::RestartBeforeShutdown, self.shutdown.is_none())
            && self.guard(Guard::ParentStands, stands)
    }

    /// Stops all members, Done ones included, so that the unit can start anew.
    pub(super) fn begin_restart(&mut self, unit: UnitId) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        entry.restarting = true;
        for member in entry.members.clone() {
            self.stop_subtree(member, StopReason::Restart);
            self.touch(member);
        }
    }

    /// The unit does not restart by itself any more.
    pub(super) fn cancel_restart(&mut self, unit: UnitId) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        if !entry.restarting {
            return;
        }
        entry.restarting = false;
        let timer = entry.timer.take();
        let members = entry.members.clone();
        if let Some((timer, _)) = timer {
            self.timers.remove(&timer);
            self.effects.push(Effect::Disarm { timer });
        }
        for member in members {
            self.touch(member);
        }
    }

    /// Restarts the unit, or arms its backoff, if it is all gone.
    pub(super) fn try_restart(&mut self, unit: UnitId) {
        let Some(entry) = self.units.get(&unit) else { return };
        if !entry.restarting || entry.timer.is_some() || !self.may_restart(unit) {
            return;
        }
        let members = entry.members.clone();
        let gone = members.iter().all(|m| self.nodes[m].gone());
        if !self.guard(Guard::UnitGone, gone) {
            members.iter().for_each(|m| self.mark(*m));
            return;
        }
        let due = members.iter().filter_map(|m| self.nodes[m].due).max();
        if let Some(due) = due.filter(|due| !self.guard(Guard::BackoffOver, *due <= self.now)) {
            let timer = self.arm(Timer::Unit(unit), due);
            if let Some(entry) = self.units.get_mut(&unit) {
                entry.timer = Some((timer, due));
            }
            members.iter().for_each(|m| self.touch(*m));
            return;
        }
        if let Some(entry) = self.units.get_mut(&unit) {
            entry.restarting = false;
        }
        for member in &members {
            self.discard_children(*member);
        }
        for member in members {
            let cause = self.nodes[&member].next_cause.unwrap_or(StartCause::Group);
            self.start(member, cause);
        }
    }

    /// Starts the next incarnation of a node that does not live.
    pub(super) fn start(&mut self, key: Key, cause: StartCause) {
        let incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        let node = self.node(key);
        node.incarnation = incarnation;
        node.state = State::New;
        node.live = true;
        node.asked = Asked::No;
        node.doom = None;
        node.healthy_at = None;
        node.due = None;
        node.next_cause = None;
        node.history.starts += 1;
        *node.history.causes.entry(cause).or_default() += 1;
        let (token, dn, deadline) = (node.token, node.dn.clone(), node.policy.start_deadline);
        self.live.insert(incarnation, key);
        self.count_start(key);
        self.effects.push(Effect::Start { incarnation, token, dn });
        self.arm_node(key, deadline);
        // A restarted node may pass from backoff to running within one state.
        self.touch(key);
    }

    /// Forgets children, units and reserved names; what is known of their DNs stays.
    fn discard_children(&mut self, key: Key) {
        let keys = self.subtree(key);
        let node = self.node(key);
        node.children.clear();
        let names = std::mem::take(&mut node.names);
        let dn = node.dn.clone();
        self.forget_reserved(&dn, names);
        for k in keys.into_iter().skip(1) {
            let Some(mut node) = self.nodes.remove(&k) else { continue };
            self.units.remove(&node.unit);
            self.mourned.remove(&k);
            let names = std::mem::take(&mut node.names);
            self.forget_reserved(&node.dn, names);
            self.effects.push(Effect::Forget { dn: node.dn.clone(), token: Some(node.token) });
            if self.past.len() >= REMEMBERED_DNS {
                let any = self.past.keys().next().cloned();
                any.and_then(|dn| self.past.remove(&dn));
            }
            self.past.insert(node.dn, node.history);
        }
    }

    /// The names without a node: sub-loggers.
    fn forget_reserved(&mut self, dn: &Dn, names: BTreeMap<Name, Option<Key>>) {
        let reserved = names.iter().filter(|(_, key)| key.is_none());
        let dns = reserved.filter_map(|(name, _)| dn.child(name).ok());
        self.effects.extend(dns.map(|dn| Effect::Forget { dn, token: None }));
    }

    pub(super) fn on_restart_requested(&mut self, dn: &Dn) -> Result<(), Refusal> {
        let key = self.find(dn).ok_or(Refusal::Unknown)?;
        if Some(key) == self.root {
            return Err(Refusal::Root);
        }
        if self.shutdown.is_some() {
            return Err(Refusal::Stopping);
        }
        let unit = self.nodes[&key].unit;
        if !self.may_restart(unit) {
            return Err(Refusal::ParentDown);
        }
        self.log(key, logtree::Level::Info, "restart by request".to_owned());
        self.cancel_restart(unit);
        for member in self.units[&unit].members.clone() {
            self.node(member).due = None;
        }
        let node = self.node(key);
        node.next_cause = Some(StartCause::Restart);
        if node.state == State::Dead {
            node.failures = 0;
        }
        self.begin_restart(unit);
        self.try_restart(unit);
        Ok(())
    }
}
