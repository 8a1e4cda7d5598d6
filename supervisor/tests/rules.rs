//! The remaining rules of tree, driver and health on a paused clock, one test each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use supervisor::prelude::*;
use supervisor::testing::{Harness, Remote};
use supervisor::{Backoff, ChildSpec, DeathClass, Phase, Restart, State, Stop, StopSpec, Verdict};
use tokio::time::Instant;

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod support;
use support::*;

#[tokio::test(start_paused = true)]
async fn d4_the_1025th_child_is_refused_by_name() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.settled().await;
    let child = |n: usize| {
        Service::new(Name::from_text(&format!("c{n}")), |ctx: Context| async move {
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        })
    };
    p.run_group((0..1024).map(child).collect()).await.unwrap();
    match p.run_group(vec![child(1024)]).await {
        Err(AddError::TooMany(name)) => assert_eq!(name.as_str(), "c1024"),
        other => panic!("{other:?}"),
    }
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t2_states_say_what_a_runnable_did_and_phases_what_is_done_with_it() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.may_die("root.p");
    tree.settled().await;
    let a = p.run("a").await;
    p.healthy().await;
    a.healthy().await;
    a.done().await;
    p.fail("x").await;
    tree.reached("root.p", State::New).await;
    let a = p.run("a").await;
    a.ignore_stop().await;
    tree.supervisor.restart(&Dn::from_static("root.p")).await.unwrap();
    tree.settled().await;
    match &tree.node("root.p").phase {
        Phase::Waiting { dns } => assert_eq!(dns, &[Dn::from_static("root.p.a")]),
        other => panic!("{other:?}"),
    }
    assert_eq!(tree.state("root.p.a"), "new stopping");
    let of_a = tree.transitions("root.p.a");
    assert_eq!(
        of_a,
        ["new running", "healthy running", "done ended", "new running", "new stopping"]
    );
    tree.reached("root.p", State::New).await;
    assert_eq!(
        tree.transitions("root.p"),
        [
            "new running",
            "healthy running",
            "dead waiting",
            "dead backoff",
            "new running",
            "new waiting",
            "new stopping",
            "cancelled waiting",
            "new running",
        ]
    );
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t3_a_done_of_another_incarnation_counts_as_a_failure() {
    let kept = Arc::new(Mutex::new(None::<StopToken>));
    let seen = kept.clone();
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        let seen = seen.clone();
        async move {
            let mine = ctx.stop();
            let old = seen.lock().replace(mine.clone());
            match old {
                None => Err(mine.stopped().await.into()),
                // Asked to stop was another one.
                Some(old) => Err(old.stopped().await.into()),
            }
        }
    });
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    tree.supervisor.restart(&Dn::from_static("root.a")).await.unwrap();
    tree.settled().await;
    let death = tree.node("root.a").last_death.clone().unwrap();
    assert!(death.text.contains("another incarnation"), "{death:?}");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t6_siblings_stop_in_parallel_and_their_parent_when_all_are_gone() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.settled().await;
    let (a, b) = (p.run("a").await, p.run("b").await);
    a.ignore_stop().await;
    b.ignore_stop().await;
    p.healthy().await;
    tree.may_die("root.p.a");
    tree.may_die("root.p.b");
    tree.supervisor.restart(&Dn::from_static("root.p")).await.unwrap();
    tree.settled().await;
    assert_eq!(tree.state("root.p.a"), "new stopping");
    assert_eq!(tree.state("root.p.b"), "new stopping");
    assert_eq!(tree.state("root.p"), "healthy waiting");
    a.fail("late").await;
    assert_eq!(tree.state("root.p"), "healthy waiting");
    b.fail("later").await;
    assert_eq!(tree.state("root.p"), "new running");
    tree.end().await;
}

/// Notes when it was started, and does as it is told.
fn noting(name: &'static str, starts: Order) -> (Service, Remote) {
    let (service, remote) = Remote::new(name);
    let run = service.run.clone();
    let noting = Service::new(service.name.clone(), move |ctx: Context| {
        starts.lock().push(name.to_owned());
        run(ctx)
    });
    (noting, remote)
}

#[tokio::test(start_paused = true)]
async fn t7_a_unit_restarts_in_order_after_the_largest_backoff_of_its_members() {
    let starts: Order = Arc::default();
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.may_die("root.p");
    tree.settled().await;
    let [(a, ra), (b, _rb), (c, rc)] = ["a", "b", "c"].map(|n| noting(n, starts.clone()));
    let long = Backoff { first: Duration::from_secs(40), ..Backoff::default() };
    let slow = a.policy(Policy { backoff: long, ..Policy::default() });
    p.run_group(vec![slow, b, c]).await.unwrap();
    tree.settled().await;
    rc.ignore_stop().await;
    ra.fail("first").await;
    rc.fail("while stopping").await;
    let before = Instant::now();
    tree.reached("root.p.c", State::New).await;
    assert!(before.elapsed() >= Duration::from_secs(19), "{:?}", before.elapsed());
    tree.settled().await;
    assert_eq!(*starts.lock(), ["a", "b", "c", "a", "b", "c"]);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t8_a_new_parent_starts_its_children_without_their_backoff() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.may_die("root.p");
    tree.settled().await;
    let a = p.run("a").await;
    for _ in 0..8 {
        a.fail("again").await;
        tree.reached("root.p.a", State::New).await;
    }
    p.fail("me too").await;
    tree.reached("root.p", State::New).await;
    let a = p.run("a").await;
    a.fail("once more").await;
    let before = Instant::now();
    tree.reached("root.p.a", State::New).await;
    assert!(before.elapsed() < Duration::from_secs(1), "the count began anew");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t8_with_a_reset_after_zero_healthy_clears_the_count_at_once() {
    let backoff = Backoff { reset_after: Duration::ZERO, ..Backoff::default() };
    let (service, a) = Remote::new("a");
    let tree = Harness::start(vec![service.policy(Policy { backoff, ..Policy::default() })]);
    tree.may_die("root.a");
    tree.settled().await;
    for _ in 0..20 {
        a.healthy().await;
        let before = Instant::now();
        a.fail("x").await;
        tree.reached("root.a", State::New).await;
        assert!(before.elapsed() < Duration::from_secs(1));
    }
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t10_a_slow_start_may_be_made_a_death() {
    let policy = Policy { on_slow_start: supervisor::SlowStart::Kill, ..Policy::default() };
    let (service, _a) = Remote::new("a");
    let tree = Harness::start(vec![service.policy(policy)]);
    tree.may_die("root.a");
    tokio::time::sleep(Duration::from_secs(61)).await;
    let death = tree.node("root.a").last_death.clone().unwrap();
    assert_eq!(death.class, DeathClass::Aborted);
    assert!(death.text.contains("not healthy after 60.0 s"), "{death:?}");
    tree.end().await;
}

#[test]
fn t12_what_is_stuck_does_not_hold_up_the_shutdown_and_is_listed() {
    // A blocking job holds the paused clock, so this one runs on the real one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (service, remote) = Remote::new("a");
        let stop_deadline = Duration::from_millis(1);
        let policy = Policy { stop_deadline, stop_stage: Some(2), ..Policy::default() };
        let order: Order = Arc::default();
        let tree = Harness::start(vec![service.policy(policy), named("later", order.clone())]);
        tree.may_die("root.a");
        tree.settled().await;
        remote.healthy().await;
        let release = remote.block().await;
        let quiet = tree.supervisor.shutdown().await;
        assert_eq!(quiet.stuck, [Dn::from_static("root.a")]);
        assert_eq!(*order.lock(), ["later"], "the next stage came all the same");
        release.send(()).unwrap();
        tree.abandon();
    });
}

#[tokio::test(start_paused = true)]
async fn t12_a_parent_stops_in_the_largest_stage_of_what_is_below_it() {
    let order: Order = Arc::default();
    let seen = order.clone();
    let parent = Service::new(Name::from_static("parent"), move |ctx: Context| {
        let order = seen.clone();
        async move {
            let late = Policy { stop_stage: Some(7), ..Policy::default() };
            let child = named("late", order.clone()).policy(late);
            if let Err(AddError::Stopping(cancelled)) = ctx.run(child).await {
                return Err(cancelled.into());
            }
            let running = ctx.healthy();
            let cancelled = running.stop().stopped().await;
            order.lock().push("parent".to_owned());
            Err(cancelled.into())
        }
    });
    let early = Policy { stop_stage: Some(1), ..Policy::default() };
    let tree = Harness::start(vec![parent.policy(early), named("plain", order.clone())]);
    tree.settled().await;
    tree.end().await;
    assert_eq!(*order.lock(), ["plain", "late", "parent"]);
}

#[tokio::test(start_paused = true)]
async fn x2_tasks_that_ignore_the_stop_are_aborted_at_the_deadline() {
    let service = Service::new(Name::from_static("a"), |ctx: Context| async move {
        ctx.spawn(Name::from_static("deaf"), std::future::pending());
        Ok(ctx.healthy().done())
    });
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(tree.state("root.a"), "healthy running");
    tree.reached_state("root.a", State::Done).await;
    assert!(tree.log_of("root.a").contains("deaf"), "{}", tree.log_of("root.a"));
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn x2_a_task_started_after_the_end_was_decided_is_joined_too() {
    let ran = Arc::new(AtomicU32::new(0));
    let count = ran.clone();
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        let count = count.clone();
        async move {
            let running = ctx.healthy();
            let stop = running.stop();
            running.spawn(Name::from_static("outer"), async move {
                let cancelled = stop.stopped().await;
                count.fetch_add(1, Ordering::Relaxed);
                Err(cancelled.into())
            });
            Err(running.stop().stopped().await.into())
        }
    });
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    tree.supervisor.restart(&Dn::from_static("root.a")).await.unwrap();
    tree.settled().await;
    assert_eq!((ran.load(Ordering::Relaxed), tree.node("root.a").starts), (1, 2));
    tree.end().await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "root.a died")]
async fn x8_the_harness_fails_a_test_in_which_something_died_unexpectedly() {
    let (service, a) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    a.fail("surprise").await;
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn h1_conditions_are_limited_in_number_and_size() {
    let (service, a) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    a.act(|h| {
        for n in 0..33 {
            h.health().set(Condition::degraded(&format!("Kind{n}"), "é".repeat(1000)));
        }
        h.health().set(Condition::degraded("Kind7", "replaced"));
        h.health().note(&"n".repeat(300));
    })
    .await;
    let node = tree.node("root.a");
    assert_eq!(node.conditions.len(), 32);
    assert!(node.conditions.iter().all(|c| c.message.len() <= 1024));
    assert_eq!(node.conditions.iter().filter(|c| c.message == "replaced").count(), 1);
    assert_eq!(node.note.as_ref().map(String::len), Some(256));
    assert!(tree.log_of("root.a").contains("Kind32"), "what is left out is logged");
    assert_eq!((node.starts, node.deaths), (1, 0), "signals restart nothing");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn h2_the_verdict_is_that_of_the_worst_node_that_counts_and_says_who_and_why() {
    let minor = Policy { critical: false, restart: Restart::Never, ..Policy::default() };
    let [(a, ra), (b, rb), (c, rc)] = ["a", "b", "c"].map(Remote::new);
    let tree = Harness::start(vec![a, b, c.policy(minor)]);
    tree.may_die("root");
    tree.settled().await;
    let verdict = || {
        let view = tree.view();
        let dn = view.verdict_dn.as_ref().map(ToString::to_string);
        (view.verdict, dn, view.verdict_reason.clone())
    };
    assert_eq!(verdict().0, Verdict::Starting);
    for r in [&ra, &rb, &rc] {
        r.healthy().await;
    }
    assert_eq!(verdict(), (Verdict::Ok, None, String::new()));
    rc.fail("gone for good").await;
    let of_c = (Verdict::Degraded, Some("root.c".to_owned()), "gone for good".to_owned());
    assert_eq!(verdict(), of_c, "not critical: degraded at most");
    ra.fail("down").await;
    assert_eq!(verdict(), (Verdict::Restarting, Some("root.a".to_owned()), "down".to_owned()));
    rb.act(|h| h.health().set(Condition::unhealthy("NoDisk", "sda"))).await;
    let of_b = (Verdict::Failing, Some("root.b".to_owned()), "NoDisk: sda".to_owned());
    assert_eq!(verdict(), of_b);
    rb.act(|h| h.health().clear("NoDisk")).await;
    for _ in 0..2 {
        tree.reached("root.a", State::New).await;
        ra.fail("down").await;
    }
    assert_eq!(verdict().0, Verdict::Failing, "three deaths in ten minutes");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn h4_the_history_of_a_dn_is_kept_over_its_incarnations() {
    let (service, a) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    let first = tree.node("root.a");
    a.fail(&"why ".repeat(2000)).await;
    let dead = tree.node("root.a");
    let death = dead.last_death.clone().unwrap();
    assert_eq!((dead.starts, dead.deaths, death.class), (1, 1, DeathClass::Failed));
    assert_eq!(death.text.len(), 4096);
    assert!(death.at >= first.since && dead.since >= first.since);
    assert!(dead.next_start.is_some_and(|at| at > death.at));
    tree.reached("root.a", State::New).await;
    let second = tree.node("root.a");
    assert!(second.incarnation > first.incarnation);
    assert_eq!((second.starts, second.next_start), (2, None));
    assert_eq!(second.last_death.clone().unwrap(), death);
    for _ in 0..40 {
        a.fail("again").await;
        tree.reached("root.a", State::New).await;
    }
    assert_eq!(tree.node("root.a").transitions.len(), 64);
    tree.end().await;
}

#[test]
fn r2_a_child_has_its_grace_and_5_seconds_to_stop() {
    let stop = StopSpec { grace: Duration::from_secs(30), ..StopSpec::default() };
    let spec = ChildSpec { stop, ..ChildSpec::new("/usr/bin/etcd") };
    assert_eq!(spec.stop_deadline(), Duration::from_secs(35));
    assert_eq!(ChildSpec::new("/bin/x").stop_deadline(), Duration::from_secs(15));
    assert_eq!(ChildSpec::new("/bin/x").stop.signal, 15);
}

#[tokio::test(start_paused = true)]
async fn t4_an_endless_adder_is_stopped_by_the_answer() {
    let added = Arc::new(AtomicU32::new(0));
    let count = added.clone();
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        let count = count.clone();
        async move {
            for n in 0u32.. {
                let child = named("c", Order::default());
                let child = Service { name: Name::from_text(&format!("c{n}")), ..child };
                match ctx.run(child).await {
                    Ok(()) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    Err(AddError::Stopping(cancelled)) => return Err(cancelled.into()),
                    Err(e) => return Err(Stop::from(e)),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            unreachable!("it is stopped before")
        }
    });
    let tree = Harness::start(vec![service]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = added.load(Ordering::Relaxed);
    assert!(before > 10);
    tree.end().await;
    assert!(added.load(Ordering::Relaxed) <= before + 1, "nothing is added to who stops");
}
