//! Random events against the tree, judged by a plain model of the world (rules I1 to I11).
//!
//! The model knows only what a driver sees: who was started, asked, and has exited. Where an
//! invariant speaks of what the tree knows (who stands), the tree's own record is consulted.
//!
//! The ordinary run takes 100,000 sequences from a fixed seed. More, or others:
//!
//! ```text
//! HAMLET_MODEL_CASES=10000000 HAMLET_MODEL_SEED=42 cargo test -p supervisor --lib i1_to_i11
//! ```
//!
//! A sequence that breaks a rule is made as short as possible and printed as a recording, the same
//! text that a node exports; `HAMLET_RECORDING=file cargo test -p supervisor --lib a_recording`
//! judges any such text.
//!
//! Every guard of the tree is dropped once, too: the model has to notice each.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::backoff::Rng;
use super::record::Recorder;
use super::*;
use crate::{Backoff, Policy, Restart, SlowStart};

/// Longest sequence.
const MOST_OPS: u64 = 64;

/// One random step; numbers pick among what exists.
#[derive(Debug, Clone)]
enum Op {
    Add {
        parent: usize,
        members: usize,
        policy: usize,
    },
    Healthy(usize),
    Exit(usize, usize),
    /// Lets the asked ones return Cancelled.
    Obey,
    NextTimer,
    /// Milliseconds.
    Wait(u64),
    StopSubtree(usize),
    Restart(usize),
    Stale(u64),
    Shutdown,
}

fn below(rng: &mut Rng, n: u64) -> usize {
    (rng.bits() % n) as usize
}

fn op(rng: &mut Rng) -> Op {
    match below(rng, 181) {
        0..40 => {
            let (parent, members) = (below(rng, 64), 1 + below(rng, 3));
            Op::Add { parent, members, policy: below(rng, 6) }
        }
        40..70 => Op::Healthy(below(rng, 64)),
        70..100 => Op::Exit(below(rng, 64), below(rng, 6)),
        100..125 => Op::Obey,
        125..150 => Op::NextTimer,
        150..160 => Op::Wait(rng.bits() % 20_000),
        160..165 => Op::StopSubtree(below(rng, 64)),
        165..175 => Op::Restart(below(rng, 64)),
        175..180 => Op::Stale(rng.bits() % 200),
        _ => Op::Shutdown,
    }
}

fn sequence(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    // Neighbouring seeds give unrelated sequences only after a few draws.
    rng.bits();
    let length = 1 + rng.bits() % MOST_OPS;
    (0..length).map(|_| op(&mut rng)).collect()
}

#[derive(Debug, Clone)]
struct Alive {
    dn: Dn,
    asked: bool,
    stuck: bool,
}

#[derive(Debug)]
struct World {
    tree: Tree,
    now: Tick,
    alive: BTreeMap<u64, Alive>,
    timers: BTreeSet<(Tick, u64)>,
    next: u64,
    shutdown: bool,
    quiet: usize,
    fatal: usize,
    /// Nodes that must not be back before their backoff: when they died, of how many in a row.
    braked: BTreeMap<Dn, (Tick, u32)>,
    /// Deaths in a row by DN (rule T8).
    streaks: BTreeMap<Dn, u32>,
    /// Since when the present incarnation is healthy.
    healthy: BTreeMap<Dn, Tick>,
    /// Kept only where it is looked at: it costs more than the tree.
    history: Option<Vec<(Tick, Event, Vec<Effect>)>>,
}

fn policy(kind: usize) -> Policy {
    let base = Policy::default();
    match kind {
        1 => Policy { restart: Restart::Never, ..base },
        2 => Policy { on_slow_start: SlowStart::Kill, ..base },
        3 => Policy { stop_stage: Some(1), ..base },
        4 => Policy { stop_stage: Some(7), critical: false, ..base },
        5 => Policy { backoff: Backoff { reset_after: Duration::ZERO, ..base.backoff }, ..base },
        _ => base,
    }
}

impl World {
    fn new(dropped: Option<Guard>, keep_history: bool) -> World {
        let mut tree = Tree::new(3);
        tree.dropped = dropped;
        World::around(tree, keep_history)
    }

    /// With root started.
    fn begun(dropped: Option<Guard>, keep_history: bool) -> World {
        let mut world = World::new(dropped, keep_history);
        let spec = world.spec("root", 0);
        world.step(Event::Root { spec });
        world
    }

    fn around(tree: Tree, keep_history: bool) -> World {
        World {
            tree,
            now: Tick(0),
            alive: BTreeMap::new(),
            timers: BTreeSet::new(),
            next: 0,
            shutdown: false,
            quiet: 0,
            fatal: 0,
            braked: BTreeMap::new(),
            streaks: BTreeMap::new(),
            healthy: BTreeMap::new(),
            history: keep_history.then(Vec::new),
        }
    }

    fn spec(&mut self, name: &str, kind: usize) -> Spec {
        self.next += 1;
        Spec { name: Name::new(name).unwrap(), policy: policy(kind), token: self.next }
    }

    fn pick(&self, n: usize) -> Option<u64> {
        self.alive.keys().copied().nth(n % self.alive.len().max(1))
    }

    fn pick_dn(&self, n: usize) -> Option<Dn> {
        let mut dns: Vec<Dn> = self.tree.nodes.values().map(|n| n.dn.clone()).collect();
        dns.sort();
        dns.get(n % dns.len().max(1)).cloned()
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Add { parent, members, policy } => self.add(parent, members, policy),
            Op::Healthy(n) => {
                if let Some(incarnation) = self.pick(n) {
                    let again = self.healthy.contains_key(&self.alive[&incarnation].dn);
                    let stale = self.tree.stale;
                    let effects = self.step(Event::Healthy { incarnation });
                    let counted = self.tree.stale == stale + 1 && effects.is_empty();
                    assert_eq!(again, counted, "T4: healthy() is said once");
                }
            }
            Op::Exit(n, kind) => {
                if let Some(incarnation) = self.pick(n) {
                    self.exit(incarnation, kind);
                }
            }
            Op::Obey => self.obey(),
            Op::NextTimer => self.next_timer(),
            Op::Wait(ms) => {
                let until = self.now.after(Duration::from_millis(ms));
                while self.timers.first().is_some_and(|(at, _)| *at <= until) {
                    self.next_timer();
                }
                self.now = until;
            }
            Op::StopSubtree(n) => {
                // Root is stopped by shutdown only.
                if let Some(dn) = self.pick_dn(n).filter(|dn| dn.depth() > 1) {
                    self.step(Event::StopSubtree { dn, reply: 0 });
                }
            }
            Op::Restart(n) => {
                if let Some(dn) = self.pick_dn(n) {
                    self.restart(dn);
                }
            }
            Op::Stale(incarnation) => {
                if !self.alive.contains_key(&incarnation) {
                    let events = [
                        Event::Healthy { incarnation },
                        Event::Exited { incarnation, exit: Exit::Done },
                        Event::TimerFired { timer: 1_000_000 + incarnation },
                    ];
                    for event in events {
                        assert_eq!(self.step(event), [], "I7: a stale event changes nothing");
                    }
                }
            }
            Op::Shutdown => {
                self.shutdown = true;
                self.step(Event::Shutdown);
            }
        }
    }

    fn restart(&mut self, dn: Dn) {
        let key = self.tree.find(&dn).expect("picked among what exists");
        let unit = self.tree.nodes[&key].unit;
        let members = self.tree.units[&unit].members.clone();
        let may = dn.depth() > 1 && self.tree.may_restart(unit);
        if may {
            // By request there is no backoff.
            for member in &members {
                self.braked.remove(&self.tree.nodes[member].dn);
            }
            if self.tree.nodes[&key].state == State::Dead {
                self.streaks.remove(&dn);
            }
        }
        let effects = self.step(Event::RestartRequested { dn, reply: 0 });
        let accepted = effects.iter().any(|e| matches!(e, Effect::Reply { result: Ok(()), .. }));
        assert_eq!(accepted, may);
    }

    fn add(&mut self, parent: usize, members: usize, kind: usize) {
        let Some(parent) = self.pick(parent) else { return };
        if self.alive[&parent].dn.depth() > 4 || self.tree.nodes.len() > 40 {
            return;
        }
        let base = self.next;
        let group: Vec<Spec> =
            (0..members).map(|i| self.spec(&format!("n{}", base + i as u64), kind)).collect();
        let closed = self.shutdown
            || self.alive[&parent].asked
            || self.healthy.contains_key(&self.alive[&parent].dn);
        let effects = self.step(Event::Add { parent, group, reply: 0 });
        let added = effects.iter().any(|e| matches!(e, Effect::Reply { result: Ok(()), .. }));
        assert!(!added || !closed, "T4: children are added in state New only");
    }

    fn exit(&mut self, incarnation: u64, kind: usize) {
        let Alive { asked, dn, .. } = self.alive[&incarnation].clone();
        // Root's end ends most of what can happen: rarely.
        if dn.depth() == 1 && !asked && !self.now.0.is_multiple_of(16) {
            return;
        }
        let exit = match kind {
            0 => Exit::Done,
            1 => Exit::Restart("why".to_owned()),
            2 => Exit::Panicked("p".to_owned()),
            3 if asked => Exit::Cancelled,
            4 if asked => Exit::Aborted,
            _ => Exit::Failed("f".to_owned()),
        };
        self.exited(incarnation, exit);
    }

    fn exited(&mut self, incarnation: u64, exit: Exit) {
        let gone = self.alive.remove(&incarnation).unwrap();
        let key = self.tree.live[&incarnation];
        let undisturbed = !self.shutdown
            && self.tree.lineage(key)[1..].iter().all(|k| self.tree.nodes[k].standing());
        let unit = self.tree.nodes[&key].unit;
        let members = self.tree.units[&unit].members.clone();
        let member_dns: Vec<Dn> = members.iter().map(|k| self.tree.nodes[k].dn.clone()).collect();
        let affected: usize = members.iter().map(|k| self.tree.subtree(*k).len()).sum();
        let healthy_for = self.healthy.remove(&gone.dn).map(|at| self.now.since(at));
        let reset_after = self.tree.nodes[&key].policy.backoff.reset_after;
        let settled = healthy_for.is_some_and(|d| d >= reset_after);
        let restart = matches!(exit, Exit::Restart(_));
        let never = self.tree.nodes[&key].policy.restart == Restart::Never;
        let restarting = self.tree.units[&unit].restarting;
        let effects = self.step(Event::Exited { incarnation, exit });
        let became = |wanted: State| {
            effects.iter().any(|e| {
                matches!(e, Effect::Transition { dn, state, .. }
                    if *dn == gone.dn && *state == wanted)
            })
        };
        let died = became(State::Dead);
        if let Some(unit) = self.tree.units.get(&unit).filter(|_| never && !restarting) {
            assert!(!unit.restarting, "T9: {} restarts although it never should", gone.dn);
        }
        if became(State::Done) {
            self.streaks.remove(&gone.dn);
        }
        if died || (restart && !settled) {
            let streak = self.streaks.entry(gone.dn.clone()).or_default();
            *streak = if settled { 1 } else { *streak + 1 };
            self.braked.insert(gone.dn.clone(), (self.now, *streak));
        }
        let back = effects.iter().any(|e| matches!(e, Effect::Start { dn, .. } if *dn == gone.dn));
        assert!(!back || !died, "I6: {} is back at once", gone.dn);
        if undisturbed && gone.dn.depth() > 1 {
            for effect in &effects {
                let (Effect::Start { dn, .. } | Effect::Transition { dn, .. }) = effect else {
                    continue;
                };
                let inside = member_dns.iter().any(|m| m.contains(dn));
                assert!(inside, "I5: the exit of {} changed {dn}", gone.dn);
            }
            let bound = 6 * affected + gone.dn.depth() + 8;
            assert!(effects.len() <= bound, "I11: {} effects for {affected}", effects.len());
        }
    }

    fn obey(&mut self) {
        let asked: Vec<u64> = self.alive.iter().filter(|(_, a)| a.asked).map(|(i, _)| *i).collect();
        for incarnation in asked {
            if self.alive.contains_key(&incarnation) {
                self.exited(incarnation, Exit::Cancelled);
            }
        }
    }

    fn next_timer(&mut self) {
        let Some((at, timer)) = self.timers.pop_first() else { return };
        self.now = self.now.max(at);
        self.step(Event::TimerFired { timer });
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        if let Event::Healthy { incarnation } = &event
            && let Some(alive) = self.alive.get(incarnation)
        {
            self.healthy.entry(alive.dn.clone()).or_insert(self.now);
        }
        let kept = self.history.is_some().then(|| event.clone());
        if let (Some(history), Some(event)) = (&mut self.history, kept.clone()) {
            history.push((self.now, event, Vec::new()));
        }
        let effects = self.tree.step(self.now, event);
        if let Some(last) = self.history.as_mut().and_then(|h| h.last_mut()) {
            last.2 = effects.clone();
        }
        for effect in &effects {
            self.judge(effect);
        }
        effects
    }

    fn judge(&mut self, effect: &Effect) {
        match effect {
            Effect::Start { incarnation, dn, .. } => self.judge_start(*incarnation, dn),
            Effect::Stop { incarnation, .. } => {
                let dn = self.alive[incarnation].dn.clone();
                let busy =
                    self.alive.values().find(|a| dn != a.dn && dn.contains(&a.dn) && !a.stuck);
                assert!(busy.is_none(), "I9: {dn} is asked before {busy:?}");
                let alive = self.alive.get_mut(incarnation).unwrap();
                assert!(!alive.asked, "{dn} is asked twice");
                alive.asked = true;
            }
            Effect::Stuck { incarnation, .. } => {
                self.alive.get_mut(incarnation).unwrap().stuck = true;
            }
            Effect::Arm { timer, at } => {
                assert!(self.timers.insert((*at, *timer)));
                assert!(at.since(self.now) <= STUCK_UNTIL_FATAL, "I6: a timer of {at:?}");
            }
            Effect::Disarm { timer } => self.timers.retain(|(_, t)| t != timer),
            Effect::Quiet(quiet) => {
                self.quiet += 1;
                assert_eq!(self.quiet, 1, "I8: one Quiet");
                assert!(self.alive.values().all(|a| a.stuck), "Quiet while something lives");
                assert_eq!(quiet.stuck.len(), self.alive.len());
            }
            Effect::Fatal(_) => {
                self.fatal += 1;
                assert_eq!(self.fatal, 1, "Fatal is said once");
            }
            Effect::Abort { .. }
            | Effect::Transition { .. }
            | Effect::Reply { .. }
            | Effect::Log { .. }
            | Effect::Forget { .. } => {}
        }
    }

    fn judge_start(&mut self, incarnation: u64, dn: &Dn) {
        assert!(!self.shutdown, "I8: {dn} starts after Shutdown");
        let lives = self.alive.values().find(|a| dn.contains(&a.dn));
        assert!(lives.is_none(), "I1, I2: {dn} starts while {lives:?} lives");
        if let Some(parent) = dn.parent() {
            let parent = self.tree.find(&parent).expect("I3: a parent");
            assert!(self.tree.nodes[&parent].standing(), "I3: {dn} starts below a stopping parent");
        }
        if let Some((died, streak)) = self.braked.remove(dn) {
            let waited = self.now.since(died).as_secs_f64();
            let least = 0.5 * (0.5 * 1.5f64.powi(streak as i32 - 1)).min(60.0);
            assert!(waited >= least * 0.999, "I6: {dn} is back after {waited} s, death {streak}");
        }
        // A new incarnation starts its children without their backoff.
        let inside = |other: &Dn| dn.contains(other) && other != dn;
        self.braked.retain(|other, _| !inside(other));
        self.streaks.retain(|other, _| !inside(other));
        self.healthy.remove(dn);
        self.alive.insert(incarnation, Alive { dn: dn.clone(), asked: false, stuck: false });
    }

    /// Lets all asked nodes exit and all backoffs pass; then nothing may wait for ever.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.obey();
            let backoff = self.tree.units.values().any(|u| u.timer.is_some());
            let asked = self.alive.values().any(|a| a.asked);
            if !backoff && !asked {
                break;
            }
            if backoff {
                self.next_timer();
            }
        }
        for node in self.tree.nodes.values() {
            let parent_stands =
                node.parent.is_none_or(|parent| self.tree.nodes[&parent].standing());
            let restarting = self.tree.units[&node.unit].restarting;
            assert!(!restarting, "I4: {} never restarts", node.dn);
            assert!(!node.live || node.asked == Asked::No, "I4: {} waits for ever", node.dn);
            let must_live = node.policy.restart == Restart::Always
                && node.state == State::Dead
                && node.parent.is_some()
                && parent_stands
                && !self.shutdown;
            // A node that was stopped for good may have died while stopping.
            assert!(!must_live || node.asked != Asked::No, "I4: {} stays dead", node.dn);
        }
        if self.shutdown {
            assert_eq!(self.quiet, 1, "I8: Quiet comes");
        }
        self.check_counts();
    }

    fn check_counts(&self) {
        for (key, node) in &self.tree.nodes {
            let below = &self.tree.subtree(*key)[1..];
            let live = below.iter().filter(|k| self.tree.nodes[k].live).count();
            assert_eq!(node.live_below as usize, live, "count of {}", node.dn);
        }
    }

    fn replays(&self) {
        let mut tree = Tree::new(3);
        tree.dropped = self.tree.dropped;
        for (now, event, effects) in self.history.iter().flatten() {
            assert_eq!(&tree.step(*now, event.clone()), effects, "I10: replay differs");
        }
    }

    /// What happened as the text that a node exports.
    fn recording(&self) -> String {
        let mut recorder = Recorder::new(3);
        for (now, event, effects) in self.history.iter().flatten() {
            recorder.before(*now, event);
            recorder.after(effects.len());
        }
        crate::replay::export(&recorder).unwrap()
    }
}

/// Runs a sequence to its end; panics where a rule is broken.
fn run(ops: &[Op], dropped: Option<Guard>, world: &mut Option<World>, thorough: bool) {
    let world = world.insert(World::begun(dropped, thorough));
    for op in ops {
        world.run(op.clone());
    }
    world.settle();
    if thorough {
        world.replays();
        let snapshot = world.tree.snapshot(world.now, WallClock(0));
        assert_eq!(snapshot.nodes.len(), world.tree.nodes.len());
    }
}

fn breaks(ops: &[Op], dropped: Option<Guard>, thorough: bool) -> bool {
    catch_unwind(AssertUnwindSafe(|| run(ops, dropped, &mut None, thorough))).is_err()
}

/// A sequence that still breaks a rule and from which nothing can be left out.
fn shortest(mut ops: Vec<Op>, dropped: Option<Guard>) -> Vec<Op> {
    let mut size = ops.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            if breaks(&fewer, dropped, true) {
                ops = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    ops
}

/// Tells about a sequence that breaks a rule, and breaks it.
fn report(seed: u64, ops: Vec<Op>) {
    let ops = shortest(ops, None);
    let mut world = None;
    let failed = catch_unwind(AssertUnwindSafe(|| run(&ops, None, &mut world, true)));
    let recording = world.map(|w| w.recording()).unwrap_or_default();
    eprintln!("seed {seed} breaks a rule by {ops:#?}\nas a recording:\n{recording}");
    if let Err(panic) = failed {
        std::panic::resume_unwind(panic);
    }
    panic!("seed {seed} breaks a rule only in its full length");
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn i1_to_i11_hold_for_any_sequence_of_events() {
    let (cases, seed) = (number("HAMLET_MODEL_CASES", 100_000), number("HAMLET_MODEL_SEED", 1));
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let case = next.fetch_add(1, Ordering::Relaxed);
            if case >= cases {
                return None;
            }
            let seed = seed.wrapping_add(case);
            let ops = sequence(seed);
            // Replay and snapshot cost more than the rest: now and then.
            if breaks(&ops, None, case.is_multiple_of(16)) {
                next.store(cases, Ordering::Relaxed);
                return Some((seed, ops));
            }
        }
    };
    let broken = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work().or(other.join().unwrap())
    });
    if let Some((seed, ops)) = broken {
        report(seed, ops);
    }
}

#[test]
fn i5_a_restart_by_request_amid_a_unit_of_three_was_broken_once() {
    let policy = 0;
    run(
        &[Op::Add { parent: 0, members: 3, policy }, Op::Restart(17), Op::Exit(28, 1)],
        None,
        &mut None,
        true,
    );
}

#[test]
fn the_model_notices_each_guard_that_is_dropped() {
    use Guard::*;
    let guards = [
        ExitOnce,
        HealthyInNew,
        AddInNew,
        AddBeforeShutdown,
        RestartBeforeShutdown,
        ParentStands,
        UnitGone,
        BackoffOver,
        ResetWhenSettled,
        PolicyAlways,
        DescendantsFirst,
        AskOnce,
        StuckCountsAsGone,
        StageEmpty,
        QuietOnce,
        FatalOnce,
        InnerRestartsCancelled,
    ];
    let unnoticed = |guard: &Guard| !(0..20_000).any(|s| breaks(&sequence(s), Some(*guard), false));
    let unnoticed: Vec<Guard> = guards.into_iter().filter(unnoticed).collect();
    assert_eq!(unnoticed, []);
}

/// Judges a recording of somebody else's, if there is one to judge; its end is not waited for.
#[test]
fn a_recording_is_judged_by_the_model() {
    let text = match std::env::var("HAMLET_RECORDING") {
        Ok(path) => std::fs::read_to_string(path).unwrap(),
        Err(_) => {
            let mut world = None;
            run(&sequence(5), None, &mut world, true);
            world.unwrap().recording()
        }
    };
    let (tree, events) = crate::replay::import(&text).unwrap();
    let mut world = World::around(tree, false);
    let mut live: Vec<_> = world.tree.live.iter().map(|(i, k)| (*i, *k)).collect();
    live.sort_unstable();
    for (incarnation, key) in live {
        let node = &world.tree.nodes[&key];
        let stuck = matches!(node.asked, Asked::Stuck(_));
        let asked = !matches!(node.asked, Asked::No | Asked::Wanted(_));
        world.alive.insert(incarnation, Alive { dn: node.dn.clone(), asked, stuck });
    }
    world.shutdown = world.tree.shutdown.is_some();
    for recorded in events {
        world.now = recorded.now;
        match recorded.event {
            Event::Exited { incarnation, exit } if world.alive.contains_key(&incarnation) => {
                world.exited(incarnation, exit);
            }
            Event::Shutdown => {
                world.shutdown = true;
                world.step(Event::Shutdown);
            }
            Event::RestartRequested { dn, .. } if world.tree.find(&dn).is_some() => {
                world.restart(dn);
            }
            event => {
                world.step(event);
            }
        }
    }
    world.check_counts();
}

#[test]
fn t14_many_deaths_of_a_child_make_its_parent_die() {
    let mut world = World::begun(None, false);
    let parent = world.spec("p", 0);
    world.step(Event::Add { parent: 1, group: vec![parent], reply: 0 });
    let mut child = world.spec("c", 0);
    let window = Duration::from_secs(600);
    child.policy.escalate = Some(crate::Intensity { deaths: 3, window });
    world.step(Event::Add { parent: 2, group: vec![child], reply: 0 });
    for _ in 0..3 {
        let dn = Dn::from_static("root.p.c");
        let inc = world.alive.iter().find(|(_, a)| a.dn == dn).map(|(i, _)| *i).unwrap();
        world.alive.remove(&inc);
        world.step(Event::Exited { incarnation: inc, exit: Exit::Failed("x".to_owned()) });
        if world.alive.values().all(|a| !a.asked) {
            world.next_timer();
        }
    }
    world.obey();
    let snapshot = world.tree.snapshot(world.now, WallClock(0));
    let parent = snapshot.nodes.iter().find(|n| n.dn.as_str() == "root.p").unwrap();
    let death = parent.last_death.as_ref().unwrap();
    assert_eq!(death.class, DeathClass::Escalated);
    assert!(death.text.contains("root.p.c died 3 times"), "{}", death.text);
    assert_eq!(parent.phase.as_str(), "backoff");
}

#[test]
fn t13_a_death_costs_the_same_in_a_large_tree() {
    let effects = |others: usize| {
        let mut tree = Tree::new(1);
        let spec = |name: &str| Spec {
            name: Name::new(name).unwrap(),
            policy: Policy::default(),
            token: 0,
        };
        tree.step(Tick(0), Event::Root { spec: spec("root") });
        let add = |tree: &mut Tree, parent, name: &str| {
            tree.step(Tick(0), Event::Add { parent, group: vec![spec(name)], reply: 0 });
        };
        add(&mut tree, 1, "a");
        add(&mut tree, 2, "b");
        for i in 0..others {
            add(&mut tree, 1, &format!("o{i}"));
        }
        let exit = Exit::Failed("x".to_owned());
        tree.step(Tick(1), Event::Exited { incarnation: 2, exit }).len()
    };
    assert_eq!(effects(1), effects(1000));
}
