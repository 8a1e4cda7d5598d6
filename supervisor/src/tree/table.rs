//! The exit table and stale events, row by row (rules T1, T3).

use super::*;
use crate::Policy;

fn spec(name: &'static str) -> Spec {
    Spec { name: Name::from_static(name), policy: Policy::default(), token: 0 }
}

/// A root (1) with a child `a` (2) that is healthy for `healthy` and, perhaps, asked to stop.
fn tree(healthy: Option<Duration>, asked: bool) -> (Tree, Tick) {
    let mut tree = Tree::new(1);
    tree.step(Tick(0), Event::Root { spec: spec("root") });
    tree.step(Tick(0), Event::Add { parent: 1, group: vec![spec("a")], reply: 0 });
    let mut now = Tick(0);
    if let Some(healthy) = healthy {
        tree.step(now, Event::Healthy { incarnation: 2 });
        now = now.after(healthy);
    }
    if asked {
        let dn = Dn::from_static("root.a");
        tree.step(now, Event::RestartRequested { dn, reply: 0 });
    }
    (tree, now)
}

/// State, level of the log line, part of its text, deaths, and whether the next start is braked.
type Row = (State, Level, &'static str, u64, bool);

#[test]
fn t3_each_way_to_end_has_its_row_in_the_table() {
    use State::{Cancelled, Dead, Done};
    let why = || "why".to_owned();
    let long = Some(Duration::from_secs(11));
    let short = Some(Duration::from_secs(1));
    let rows: [(Exit, Option<Duration>, bool, Row); 14] = [
        (Exit::Done, long, false, (Done, Level::Info, "done", 0, false)),
        (Exit::Done, long, true, (Done, Level::Info, "done", 0, false)),
        (Exit::Cancelled, long, true, (Cancelled, Level::Debug, "stopped", 0, false)),
        (Exit::Cancelled, long, false, (Dead, Level::Error, "without having been asked", 1, true)),
        (Exit::Restart(why()), long, false, (Cancelled, Level::Info, "why", 0, false)),
        (Exit::Restart(why()), short, false, (Cancelled, Level::Info, "why", 0, true)),
        (Exit::Restart(why()), None, false, (Cancelled, Level::Info, "why", 0, true)),
        (Exit::Restart(why()), long, true, (Cancelled, Level::Info, "why", 0, false)),
        (Exit::Failed(why()), long, false, (Dead, Level::Error, "why", 1, true)),
        (Exit::Failed(why()), None, true, (Dead, Level::Warning, "while stopping: why", 1, true)),
        (Exit::Panicked(why()), long, false, (Dead, Level::Error, "why", 1, true)),
        (Exit::Panicked(why()), None, true, (Dead, Level::Error, "why", 1, true)),
        (Exit::Aborted, long, true, (Dead, Level::Error, "deadline", 1, true)),
        (Exit::Aborted, None, true, (Dead, Level::Error, "deadline", 1, true)),
    ];
    for (exit, healthy, asked, (state, level, text, deaths, braked)) in rows {
        let (mut tree, now) = tree(healthy, asked);
        let row = format!("{exit:?} healthy for {healthy:?} asked {asked}");
        let effects = tree.step(now, Event::Exited { incarnation: 2, exit });
        let logged = effects.iter().find_map(|e| match e {
            Effect::Log { level, text, .. } => Some((*level, text.clone())),
            _ => None,
        });
        let (logged, said) = logged.expect("an exit is logged");
        assert!(logged == level && said.contains(text), "{row}: {logged} {said}");
        assert!(logged < Level::Critical, "{row}: a restart is not fatal");
        let a = tree.find(&Dn::from_static("root.a")).expect("it is there");
        let node = &tree.nodes[&a];
        assert_eq!(node.history.deaths, deaths, "{row}");
        let waits = tree.units[&node.unit].timer.is_some();
        assert_eq!(waits, braked, "{row}");
        let first = node.history.transitions.iter().find(|(_, _, s, _)| *s == state);
        assert!(first.is_some(), "{row}: {:?}", node.history.transitions);
        // What was Done and not asked to stop stays; all else is started again, now or later.
        let back = effects.iter().any(|e| matches!(e, Effect::Start { .. }));
        assert_eq!(back, !braked && (asked || state != Done), "{row}");
    }
}

#[test]
fn t1_a_stale_event_changes_nothing_and_is_counted() {
    let (mut tree, now) = tree(None, false);
    let exit = || Exit::Failed("x".to_owned());
    tree.step(now, Event::Exited { incarnation: 2, exit: exit() });
    let before = tree.snapshot(now, WallClock(0));
    let conditions = vec![Condition::unhealthy("Ghost", "x")];
    let stale = [
        Event::Exited { incarnation: 2, exit: exit() },
        Event::Healthy { incarnation: 2 },
        Event::Said { incarnation: 2, note: "x".to_owned(), conditions, child: None },
        Event::Reserve { incarnation: 2, name: Name::from_static("x") },
        Event::TimerFired { timer: 12_345 },
        Event::Exited { incarnation: 99, exit: exit() },
    ];
    let count = stale.len() as u64;
    for event in stale {
        assert_eq!(tree.step(now, event), []);
    }
    let after = tree.snapshot(now, WallClock(0));
    assert_eq!(after.nodes, before.nodes);
    assert_eq!(after.stale_events, before.stale_events + count);
}

#[test]
fn t1_the_same_seed_and_events_give_the_same_effects_and_another_seed_another_backoff() {
    let run = |seed: u64| {
        let mut tree = Tree::new(seed);
        tree.step(Tick(0), Event::Root { spec: spec("root") });
        tree.step(Tick(0), Event::Add { parent: 1, group: vec![spec("a")], reply: 0 });
        let exit = Exit::Panicked("x".to_owned());
        format!("{:?}", tree.step(Tick(5), Event::Exited { incarnation: 2, exit }))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
