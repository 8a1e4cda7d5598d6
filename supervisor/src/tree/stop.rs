//! Stopping: children first, with deadlines, and the stages of the shutdown (rules T6, T10, T12).

use logtree::Level;

use super::node::{Asked, DEFAULT_STAGE, Key, LAST_STAGE};
use super::{ABORT_GRACE, Effect, Guard, Refusal, STUCK_UNTIL_FATAL, Shutdown, Tree};
use crate::{DeathClass, Fatal, Quiet, SlowStart, State, StopReason};

impl Tree {
    /// Stops a node and all below it, children first. Units in it do not restart by themselves
    /// any more; the unit of the node itself is the caller's matter.
    pub(super) fn stop_subtree(&mut self, key: Key, reason: StopReason) {
        let keys = self.subtree(key);
        for k in &keys {
            if *k != key && !self.dropped(Guard::InnerRestartsCancelled) {
                let unit = self.nodes[k].unit;
                self.cancel_restart(unit);
            }
            self.want_stop(*k, reason);
        }
        for k in keys.iter().rev() {
            self.ask_if_ready(*k);
        }
    }

    /// Stops a node by request. Its unit, if it was about to restart, does not (rule T8).
    pub(super) fn on_stop_requested(&mut self, dn: &logtree::Dn) -> Result<(), Refusal> {
        let key = self.find(dn).ok_or(Refusal::Unknown)?;
        if Some(key) == self.root {
            return Err(Refusal::Root);
        }
        if self.shutdown.is_some() {
            return Err(Refusal::Stopping);
        }
        self.log(key, Level::Info, "stop by request".to_owned());
        let unit = self.nodes[&key].unit;
        self.cancel_restart(unit);
        self.stop_subtree(key, StopReason::Restart);
        Ok(())
    }

    fn want_stop(&mut self, key: Key, reason: StopReason) {
        let reason = if self.shutdown.is_some() { StopReason::Shutdown } else { reason };
        match self.nodes[&key].asked {
            Asked::No => {
                // It was the start deadline.
                self.disarm_node(key);
                self.node(key).asked = Asked::Wanted(reason);
                self.mark(key);
            }
            Asked::Wanted(_) if reason == StopReason::Shutdown => {
                self.node(key).asked = Asked::Wanted(reason);
            }
            Asked::Wanted(_) | Asked::Told(_) | Asked::Aborted(_) | Asked::Stuck(_) => {}
        }
    }

    /// Asks a node to stop whose turn it is.
    pub(super) fn ask_if_ready(&mut self, key: Key) {
        let node = &self.nodes[&key];
        let reason = match node.asked {
            Asked::Wanted(reason) => reason,
            Asked::Told(reason) if self.dropped(Guard::AskOnce) => reason,
            Asked::No | Asked::Told(_) | Asked::Aborted(_) | Asked::Stuck(_) => return,
        };
        if !node.live || !self.guard(Guard::DescendantsFirst, node.busy_below == 0) {
            // Only who really has to wait is shown as waiting.
            self.touch(key);
            return;
        }
        let (incarnation, deadline) = (node.incarnation, node.policy.stop_deadline);
        self.node(key).asked = Asked::Told(reason);
        self.effects.push(Effect::Stop { incarnation, reason });
        self.arm_node(key, deadline);
        self.touch(key);
    }

    /// The one deadline of a node has passed.
    pub(super) fn on_deadline(&mut self, key: Key) {
        let node = &self.nodes[&key];
        let incarnation = node.incarnation;
        match node.asked {
            Asked::No => self.on_slow_start(key),
            Asked::Wanted(_) => {}
            Asked::Told(reason) => {
                let text = format!(
                    "does not stop within {:.1} s: aborted",
                    node.policy.stop_deadline.as_secs_f64()
                );
                self.node(key).asked = Asked::Aborted(reason);
                self.effects.push(Effect::Abort { incarnation });
                self.log(key, Level::Error, text);
                self.arm_node(key, ABORT_GRACE);
                self.touch(key);
            }
            Asked::Aborted(reason) => {
                let (critical, dn) = (node.policy.critical, node.dn.clone());
                self.node(key).asked = Asked::Stuck(reason);
                self.effects.push(Effect::Stuck { incarnation, dn });
                if critical && self.shutdown.is_none() {
                    self.arm_node(key, STUCK_UNTIL_FATAL);
                }
                self.touch(key);
                if !self.dropped(Guard::StuckCountsAsGone) {
                    self.uncount_busy(key);
                }
                self.after_less_life(key);
            }
            Asked::Stuck(_) => {
                let minutes = STUCK_UNTIL_FATAL.as_secs() / 60;
                self.declare_fatal(key, format!("stuck for {minutes} minutes"), false);
            }
        }
    }

    fn on_slow_start(&mut self, key: Key) {
        let node = &self.nodes[&key];
        if node.state != State::New || !node.live {
            return;
        }
        let note = match node.note.as_str() {
            "" => "it has said nothing",
            note => note,
        };
        let seconds = node.policy.start_deadline.as_secs_f64();
        let text = format!("not healthy after {seconds:.1} s: {note}");
        match node.policy.on_slow_start {
            SlowStart::Report => {
                self.node(key).overdue = true;
                self.mark(key);
                self.log(key, Level::Warning, text);
            }
            SlowStart::Kill => self.doom(key, DeathClass::Aborted, text),
        }
    }

    /// One live node more or less at `key`.
    pub(super) fn count_start(&mut self, key: Key) {
        for k in self.lineage(key).into_iter().skip(1) {
            let node = self.node(k);
            node.live_below += 1;
            node.busy_below += 1;
        }
    }

    /// `key` has become stuck, or exited without having been stuck.
    pub(super) fn uncount_busy(&mut self, key: Key) {
        for k in self.lineage(key).into_iter().skip(1) {
            self.node(k).busy_below -= 1;
        }
        let stage = usize::from(self.nodes[&key].stage);
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.busy[stage] -= 1;
        }
    }

    /// `key` has exited.
    pub(super) fn uncount_live(&mut self, key: Key) {
        for k in self.lineage(key).into_iter().skip(1) {
            self.node(k).live_below -= 1;
        }
    }

    /// Something that lived at `key` is gone or stuck: others may have waited for it.
    pub(super) fn after_less_life(&mut self, key: Key) {
        for k in self.lineage(key) {
            self.ask_if_ready(k);
            let unit = self.nodes[&k].unit;
            if self.units[&unit].restarting {
                self.try_restart(unit);
            }
            self.mark(k);
        }
        self.advance_shutdown();
    }

    /// The tree cannot go on. Said once.
    pub(super) fn declare_fatal(&mut self, key: Key, reason: String, panicked: bool) {
        if !self.guard(Guard::FatalOnce, !self.fatal) || self.shutdown.is_some() {
            return;
        }
        self.fatal = true;
        let (dn, boot_finished) = (self.nodes[&key].dn.clone(), self.boot_finished);
        self.effects.push(Effect::Fatal(Fatal { dn, reason, boot_finished, panicked }));
    }

    pub(super) fn on_shutdown(&mut self) {
        if self.shutdown.is_some() {
            return;
        }
        let mut units: Vec<_> = self.units.keys().copied().collect();
        units.sort_unstable();
        for unit in units {
            self.cancel_restart(unit);
        }
        let keys = self.root.map(|root| self.subtree(root)).unwrap_or_default();
        for key in keys.iter().rev() {
            let node = &self.nodes[key];
            let own = node.policy.stop_stage.unwrap_or(DEFAULT_STAGE).min(LAST_STAGE);
            let below = node.children.iter().map(|c| self.nodes[c].stage).max();
            self.node(*key).stage = own.max(below.unwrap_or(0));
            self.mark(*key);
        }
        let stages = usize::from(LAST_STAGE) + 1;
        let mut by_stage = vec![Vec::new(); stages];
        let mut busy = vec![0; stages];
        for key in keys {
            let node = &self.nodes[&key];
            let stage = usize::from(node.stage);
            by_stage[stage].push(key);
            busy[stage] += u32::from(node.live && !matches!(node.asked, Asked::Stuck(_)));
        }
        self.dirty = true;
        self.shutdown = Some(Shutdown { stage: 0, by_stage, busy, quiet: false });
        self.begin_stage(0);
        self.advance_shutdown();
    }

    fn begin_stage(&mut self, stage: u8) {
        let Some(shutdown) = &mut self.shutdown else { return };
        let keys = std::mem::take(&mut shutdown.by_stage[usize::from(stage)]);
        for key in &keys {
            self.want_stop(*key, StopReason::Shutdown);
        }
        for key in keys.iter().rev() {
            self.ask_if_ready(*key);
        }
    }

    /// Goes on to the next stages while nothing of the current one is awaited.
    fn advance_shutdown(&mut self) {
        while let Some(shutdown) = &self.shutdown {
            let empty = shutdown.busy[usize::from(shutdown.stage)] == 0;
            let going = self.guard(Guard::QuietOnce, !shutdown.quiet);
            if !going || !self.guard(Guard::StageEmpty, empty) {
                return;
            }
            let Some(shutdown) = &mut self.shutdown else { return };
            if shutdown.stage == LAST_STAGE {
                shutdown.quiet = true;
                let stuck = self.live_dns();
                self.effects.push(Effect::Quiet(Quiet { stuck }));
                return;
            }
            shutdown.stage += 1;
            self.dirty = true;
            let stage = shutdown.stage;
            self.begin_stage(stage);
        }
    }

    fn live_dns(&self) -> Vec<logtree::Dn> {
        let keys = self.root.map(|root| self.subtree(root)).unwrap_or_default();
        keys.iter().map(|k| &self.nodes[k]).filter(|n| n.live).map(|n| n.dn.clone()).collect()
    }
}
