//! Random events against the tree, judged by a plain model of the world (rules I1 to I11).
//!
//! The model knows only what a driver sees: who was started, asked, and has exited. Where an
//! invariant speaks of what the tree knows (who stands), the tree's own record is consulted.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{Backoff, Restart, SlowStart};

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
    Wait(u64),
    StopSubtree(usize),
    Restart(usize),
    Stale(u64),
    Shutdown,
}

fn op() -> impl Strategy<Value = Op> {
    let pick = 0usize..64;
    prop_oneof![
        40 => (pick.clone(), 1usize..4, 0usize..6)
            .prop_map(|(parent, members, policy)| Op::Add { parent, members, policy }),
        30 => pick.clone().prop_map(Op::Healthy),
        30 => (pick.clone(), 0usize..6).prop_map(|(p, e)| Op::Exit(p, e)),
        25 => Just(Op::Obey),
        25 => Just(Op::NextTimer),
        10 => (0u64..20_000).prop_map(Op::Wait),
        5 => pick.clone().prop_map(Op::StopSubtree),
        10 => pick.prop_map(Op::Restart),
        5 => (0u64..200).prop_map(Op::Stale),
        1 => Just(Op::Shutdown),
    ]
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
    /// Deaths that must be followed by a backoff, by DN.
    braked: BTreeMap<Dn, Tick>,
    history: Vec<(Tick, Event, Vec<Effect>)>,
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
    fn new() -> World {
        let mut world = World {
            tree: Tree::new(3),
            now: Tick(0),
            alive: BTreeMap::new(),
            timers: BTreeSet::new(),
            next: 0,
            shutdown: false,
            quiet: 0,
            fatal: 0,
            braked: BTreeMap::new(),
            history: Vec::new(),
        };
        let spec = world.spec("root", 0);
        world.step(Event::Root { spec });
        world
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
                    self.step(Event::Healthy { incarnation });
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
                    // By request there is no backoff.
                    if let Some(parent) = dn.parent() {
                        self.braked.retain(|other, _| other.parent().as_ref() != Some(&parent));
                    }
                    self.step(Event::RestartRequested { dn, reply: 0 });
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

    fn add(&mut self, parent: usize, members: usize, kind: usize) {
        let Some(parent) = self.pick(parent) else { return };
        if self.alive[&parent].dn.depth() > 4 || self.tree.nodes.len() > 40 {
            return;
        }
        let base = self.next;
        let group: Vec<Spec> =
            (0..members).map(|i| self.spec(&format!("n{}", base + i as u64), kind)).collect();
        self.step(Event::Add { parent, group, reply: 0 });
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
        let died = matches!(exit, Exit::Failed(_) | Exit::Panicked(_));
        if died && !gone.asked {
            self.braked.insert(gone.dn.clone(), self.now);
        }
        let effects = self.step(Event::Exited { incarnation, exit });
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
        let effects = self.tree.step(self.now, event.clone());
        for effect in &effects {
            self.judge(effect);
        }
        self.history.push((self.now, event, effects.clone()));
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
            Effect::Arm { timer, at } => assert!(self.timers.insert((*at, *timer))),
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
        // A new parent starts its children without their backoff.
        if let Some(died) = self.braked.remove(dn) {
            let waited = self.now.since(died);
            assert!(waited >= Duration::from_millis(250), "I6: {dn} is back after {waited:?}");
        }
        self.braked.retain(|other, _| !dn.contains(other));
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
            assert!(!restarting || self.shutdown, "I4: {} never restarts", node.dn);
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
        for (now, event, effects) in &self.history {
            assert_eq!(&tree.step(*now, event.clone()), effects, "I10: replay differs");
        }
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn i1_to_i11_hold_for_any_sequence_of_events(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
        }
        world.settle();
        world.replays();
        let snapshot = world.tree.snapshot(world.now, WallClock(0));
        prop_assert_eq!(snapshot.nodes.len(), world.tree.nodes.len());
    }
}

#[test]
fn t14_many_deaths_of_a_child_make_its_parent_die() {
    let mut world = World::new();
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
