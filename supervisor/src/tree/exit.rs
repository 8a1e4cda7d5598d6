//! What the end of an incarnation means: the exit table (rule T3) and its consequences (T5, T9).

use logtree::Level;

use super::node::{Asked, Key};
use super::{Exit, Guard, Tree, backoff};
use crate::{DeathClass, Restart, StartCause, State, StopReason};

/// One row of the exit table.
struct Row {
    state: State,
    level: Level,
    text: String,
    death: Option<DeathClass>,
    /// The Runnable asked to be started anew.
    restart: bool,
}

impl Row {
    fn new(state: State, level: Level, text: String) -> Row {
        Row { state, level, text, death: None, restart: false }
    }

    fn death(class: DeathClass, level: Level, text: String) -> Row {
        Row { death: Some(class), ..Row::new(State::Dead, level, text) }
    }
}

/// The exit table. `asked`: it may know that it is to stop.
fn row(exit: Exit, asked: bool) -> Row {
    match exit {
        Exit::Done => Row::new(State::Done, Level::Info, "done".to_owned()),
        Exit::Cancelled if asked => Row::new(State::Cancelled, Level::Debug, "stopped".to_owned()),
        Exit::Cancelled => Row::death(
            DeathClass::Failed,
            Level::Error,
            "returned Cancelled without having been asked to stop".to_owned(),
        ),
        Exit::Restart(why) => Row {
            restart: true,
            ..Row::new(State::Cancelled, Level::Info, format!("asks for a restart: {why}"))
        },
        Exit::Failed(text) if asked => {
            Row::death(DeathClass::Failed, Level::Warning, format!("while stopping: {text}"))
        }
        Exit::Failed(text) => Row::death(DeathClass::Failed, Level::Error, text),
        Exit::Panicked(text) => Row::death(DeathClass::Panicked, Level::Error, text),
        Exit::Aborted => Row::death(
            DeathClass::Aborted,
            Level::Error,
            "aborted: it did not stop within its deadline".to_owned(),
        ),
    }
}

impl Tree {
    pub(super) fn on_exited(&mut self, incarnation: u64, exit: Exit) {
        let Some(key) = self.live_key(incarnation) else { return };
        if !self.dropped(Guard::ExitOnce) {
            self.live.remove(&incarnation);
        }
        self.disarm_node(key);
        let shutting_down = self.shutdown.is_some();
        let node = self.node(key);
        let asked = node.asked != Asked::No;
        let was_stuck = matches!(node.asked, Asked::Stuck(_));
        let doom = node.doom.take();
        let unasked = !asked || doom.is_some();
        let row = match doom {
            Some((class, text)) => Row::death(class, Level::Error, text),
            None => row(exit, asked || shutting_down),
        };
        node.live = false;
        node.state = row.state;
        node.overdue = false;
        node.note.clear();
        node.conditions.clear();
        node.child = None;
        if !was_stuck {
            self.uncount_busy(key);
        }
        self.uncount_live(key);
        self.log(key, row.level, row.text.clone());
        self.account(key, &row);
        if Some(key) == self.root {
            self.on_root_exit(key, &row, asked);
        } else {
            self.on_member_exit(key, &row, unasked);
        }
        self.touch(key);
        self.after_less_life(key);
    }

    /// Deaths, backoff and the cause of the next start.
    fn account(&mut self, key: Key, row: &Row) {
        let now = self.now;
        let node = self.node(key);
        let healthy_for = node.healthy_at.map(|at| now.since(at));
        let settled = healthy_for.is_some_and(|d| d >= node.policy.backoff.reset_after);
        let settled = self.guard(Guard::ResetWhenSettled, settled);
        let node = self.node(key);
        if row.state == State::Done {
            node.failures = 0;
            node.due = None;
        }
        if row.restart {
            node.next_cause = Some(StartCause::Restart);
        }
        if let Some(class) = row.death {
            node.history.died(now, class, &row.text);
            node.next_cause = Some(match class {
                DeathClass::Panicked => StartCause::Panicked,
                DeathClass::Failed | DeathClass::Aborted | DeathClass::Escalated => {
                    StartCause::Failed
                }
            });
            self.mourned.insert(key);
        }
        // A Restart soon after the start is braked like a death, or it could spin.
        if row.death.is_some() || (row.restart && !settled) {
            let node = self.node(key);
            node.failures = if settled { 1 } else { node.failures.saturating_add(1) };
            let (policy, failures) = (node.policy.backoff, node.failures);
            let delay = backoff::delay(&policy, failures, &mut self.rng);
            self.node(key).due = Some(now.after(delay));
        }
    }

    fn on_root_exit(&mut self, key: Key, row: &Row, asked: bool) {
        if row.state == State::Done {
            self.boot_finished = true;
            return;
        }
        // Its children live on until the shutdown, but nothing starts below it any more.
        for child in self.nodes[&key].children.clone() {
            let unit = self.nodes[&child].unit;
            self.cancel_restart(unit);
        }
        if !asked {
            let panicked = row.death == Some(DeathClass::Panicked);
            self.declare_fatal(key, row.text.clone(), panicked);
        }
    }

    fn on_member_exit(&mut self, key: Key, row: &Row, unasked: bool) {
        if row.state == State::Done {
            return;
        }
        // What is below a node that ended may rely on it.
        for child in self.nodes[&key].children.clone() {
            let unit = self.nodes[&child].unit;
            self.cancel_restart(unit);
            self.stop_subtree(child, StopReason::Restart);
        }
        let wanted = row.death.is_some() || row.restart;
        let node = &self.nodes[&key];
        let unit = node.unit;
        let always = self.guard(Guard::PolicyAlways, node.policy.restart == Restart::Always);
        if wanted && unasked && always && self.may_restart(unit) {
            self.begin_restart(unit);
        }
        if row.death.is_some() && unasked {
            self.escalate(key, &row.text);
        }
    }

    /// Enough deaths in the window make the parent die (rule T14).
    fn escalate(&mut self, key: Key, text: &str) {
        let node = &self.nodes[&key];
        let Some(intensity) = node.policy.escalate else { return };
        let deaths = node.history.deaths_within(self.now, intensity.window);
        if deaths < intensity.deaths {
            return;
        }
        let Some(parent) = node.parent else { return };
        let text = format!(
            "{} died {deaths} times in {:.0} s: {text}",
            node.dn,
            intensity.window.as_secs_f64()
        );
        if Some(parent) == self.root {
            self.declare_fatal(parent, text, false);
        } else if self.nodes[&parent].standing() {
            self.doom(parent, DeathClass::Escalated, text);
        }
    }

    /// Makes a node die, whatever it returns when it is stopped.
    pub(super) fn doom(&mut self, key: Key, class: DeathClass, text: String) {
        if Some(key) == self.root {
            self.declare_fatal(key, text, false);
            return;
        }
        if self.shutdown.is_some() {
            return;
        }
        if self.nodes[&key].live {
            self.node(key).doom = Some((class, text));
        } else {
            // It had returned Done; its children live on and make it die now.
            let row = Row::death(class, Level::Error, text);
            self.log(key, row.level, row.text.clone());
            self.node(key).state = State::Dead;
            self.account(key, &row);
            self.touch(key);
        }
        let node = &self.nodes[&key];
        let (unit, policy) = (node.unit, node.policy.restart);
        if policy == Restart::Always && self.may_restart(unit) {
            self.begin_restart(unit);
        } else {
            self.stop_subtree(key, StopReason::Restart);
        }
        self.try_restart(unit);
    }
}
