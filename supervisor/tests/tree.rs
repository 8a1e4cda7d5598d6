//! The tree on a paused clock: restarts, stops, shutdown, as a Runnable sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use supervisor::prelude::*;
use supervisor::testing::{Harness, Remote};
use supervisor::{DeathClass, Restart, RestartError, StartCause, State, StopReason, Verdict};
use tokio::time::Instant;

#[path = "support/mod.rs"]
mod support;
use support::*;

#[tokio::test(start_paused = true)]
async fn t5_a_death_restarts_its_unit_and_leaves_others_alone() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.settled().await;
    let (a, ra) = Remote::new("a");
    let (b, rb) = Remote::new("b");
    let (c, rc) = Remote::new("c");
    p.run_group(vec![a, b]).await.unwrap();
    p.run_group(vec![c]).await.unwrap();
    p.healthy().await;
    for r in [&ra, &rb, &rc] {
        r.healthy().await;
    }
    tree.may_die("root.p.a");
    ra.fail("broken").await;
    assert_eq!(tree.state("root.p.a"), "dead backoff");
    assert_eq!(tree.state("root.p.b"), "cancelled backoff");
    assert_eq!(tree.state("root.p.c"), "healthy running");
    tree.reached("root.p.b", State::New).await;
    assert_eq!(tree.node("root.p.a").starts, 2);
    assert_eq!(tree.node("root.p.b").starts, 2);
    assert_eq!(tree.node("root.p.b").deaths, 0);
    assert_eq!(tree.node("root.p.c").starts, 1);
    assert_eq!(tree.node("root.p").starts, 1);
    assert_eq!(
        tree.transitions("root.p.a"),
        ["new running", "healthy running", "dead waiting", "dead backoff", "new running"]
    );
    assert!(tree.log_of("root.p.a").contains("broken"));
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t5_t7_a_subtree_of_five_levels_is_stopped_children_first_and_built_anew() {
    let built = Arc::new(AtomicU32::new(0));
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let service = nest(5, built.clone(), order.clone());
    let tree = Harness::start(vec![service]);
    tree.reached("root.n5.n4.n3.n2.n1", State::Healthy).await;
    assert_eq!(built.load(Ordering::Relaxed), 5);
    tree.supervisor.restart(&Dn::from_static("root.n5")).await.unwrap();
    tree.settled().await;
    assert_eq!(*order.lock(), ["n1", "n2", "n3", "n4", "n5"]);
    tree.reached("root.n5.n4.n3.n2.n1", State::Healthy).await;
    assert_eq!(built.load(Ordering::Relaxed), 10);
    let causes = &tree.node("root.n5.n4").starts_by_cause;
    assert_eq!(
        causes.iter().map(|(c, n)| (c.as_str(), *n)).collect::<Vec<_>>(),
        [("first", 1), ("parent", 1)]
    );
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn x3_a_panic_is_a_death_with_message_and_place() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.panic().await;
    let death = tree.node("root.a").last_death.clone().unwrap();
    assert_eq!(death.class, DeathClass::Panicked);
    assert!(death.text.contains("told to") && death.text.contains("testing.rs:"), "{death:?}");
    tree.reached("root.a", State::New).await;
    remote.healthy().await;
    remote.panic_task().await;
    let death = tree.node("root.a").last_death.clone().unwrap();
    assert!(death.text.starts_with("task task panicked"), "{death:?}");
    tree.reached("root.a", State::New).await;
    remote.healthy().await;
    remote.fail_task("no disk").await;
    assert_eq!(tree.node("root.a").last_death.as_ref().unwrap().text, "task task: no disk");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn x3_a_value_that_panics_in_drop_kills_only_its_runnable() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("bomb");
            }
        }
    }
    let service = Service::new(Name::from_static("a"), |ctx: Context| async move {
        let _bomb = Bomb;
        let running = ctx.healthy();
        Err(running.stop().stopped().await.into())
    });
    let (other, remote) = Remote::new("b");
    let tree = Harness::start(vec![service, other]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.healthy().await;
    tree.supervisor.restart(&Dn::from_static("root.a")).await.unwrap();
    tree.settled().await;
    assert!(tree.node("root.a").last_death.as_ref().unwrap().text.contains("bomb"));
    assert_eq!(tree.state("root.b"), "healthy running");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t8_five_deaths_take_at_least_a_second_of_backoff_and_grow() {
    let starts = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = starts.clone();
    let service = Service::new(Name::from_static("a"), move |_ctx: Context| {
        seen.lock().push(Instant::now());
        async { Err(Stop::failed("always")) }
    });
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let starts = starts.lock().clone();
    assert!(starts.len() > 5);
    assert!(starts[5] - starts[0] >= Duration::from_secs(1));
    let node = tree.node("root.a");
    assert_eq!(node.health, Verdict::Failing);
    assert!(node.next_start.is_some());
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t8_backoff_is_reset_only_after_a_while_of_healthy() {
    let starts = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = starts.clone();
    // Healthy, then dead after 1 s: with a reset on the signal it would be back every 1.5 s.
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        seen.lock().push(Instant::now());
        async move {
            let _running = ctx.healthy();
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err(Stop::failed("after a second"))
        }
    });
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tokio::time::sleep(Duration::from_secs(1200)).await;
    let starts = starts.lock().clone();
    let last = starts.len() - 1;
    assert!(starts[last] - starts[last - 1] >= Duration::from_secs(31), "{starts:?}");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t7_an_outer_restart_does_not_wait_for_an_inner_backoff() {
    let (outer, o) = Remote::new("outer");
    let tree = Harness::start(vec![outer]);
    tree.may_die("root.outer");
    tree.settled().await;
    let service = Service::new(Name::from_static("inner"), |_ctx: Context| async {
        Err(Stop::failed("always"))
    });
    o.run_group(vec![service]).await.unwrap();
    o.healthy().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(tree.state("root.outer.inner"), "dead backoff");
    o.fail("outer").await;
    let before = Instant::now();
    tree.reached("root.outer", State::New).await;
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(tree.find("root.outer.inner").is_none(), "children are discarded");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t5_a_done_member_is_started_again_with_its_unit_and_otherwise_left_alone() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.settled().await;
    let (a, ra) = Remote::new("a");
    let (b, rb) = Remote::new("b");
    p.run_group(vec![a, b]).await.unwrap();
    tree.settled().await;
    ra.healthy().await;
    let below = rb.run("below").await;
    below.healthy().await;
    rb.healthy().await;
    rb.done().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(tree.state("root.p.b"), "done ended");
    assert_eq!(tree.state("root.p.b.below"), "healthy running");
    ra.restart("new certificate").await;
    assert_eq!(tree.state("root.p.b"), "new running", "no backoff: it was long healthy");
    assert!(tree.find("root.p.b.below").is_none());
    assert_eq!(tree.node("root.p.a").deaths, 0);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t9_without_restart_a_death_is_final() {
    let (service, remote) = Remote::new("a");
    let policy = Policy { restart: Restart::Never, critical: false, ..Policy::default() };
    let tree = Harness::start(vec![service.policy(policy)]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.fail("gone").await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(tree.state("root.a"), "dead ended");
    assert_eq!(tree.node("root.a").health, Verdict::Failing);
    let view = tree.view();
    assert_eq!(view.verdict, Verdict::Degraded, "it is not critical");
    assert_eq!(view.verdict_dn, Some(Dn::from_static("root.a")));
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t10_a_slow_start_is_a_condition_that_names_the_note() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    remote.act(|h| h.health().note("waiting for the disk")).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    let node = tree.node("root.a");
    assert_eq!(node.health, Verdict::Degraded);
    assert_eq!(node.conditions[0].kind, "SlowStart");
    assert!(node.conditions[0].message.contains("waiting for the disk"), "{node:?}");
    remote.healthy().await;
    assert!(tree.node("root.a").conditions.is_empty());
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t10_who_ignores_stop_is_aborted_and_who_cannot_be_is_stuck_until_it_ends() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.healthy().await;
    remote.ignore_stop().await;
    tree.supervisor.restart(&Dn::from_static("root.a")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(tree.state("root.a"), "healthy stopping");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(tree.node("root.a").last_death.as_ref().unwrap().class, DeathClass::Aborted);
    tree.reached("root.a", State::New).await;
    tree.end().await;
}

#[test]
fn t10_a_blocking_job_that_does_not_end_is_stuck_and_named_and_its_end_goes_on() {
    // A blocking job holds the paused clock of tokio, so this one runs on the real clock with
    // short deadlines.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (service, remote) = Remote::new("a");
        let stop_deadline = Duration::from_millis(1);
        let tree =
            Harness::start(vec![service.policy(Policy { stop_deadline, ..Policy::default() })]);
        tree.may_die("root.a");
        tree.settled().await;
        remote.healthy().await;
        let release = remote.block().await;
        tree.supervisor.restart(&Dn::from_static("root.a")).await.unwrap();
        let mut view = tree.supervisor.view();
        let is_stuck = |s: &Arc<supervisor::Snapshot>| {
            s.nodes.iter().any(|n| n.phase == supervisor::Phase::Stuck)
        };
        view.wait_for(is_stuck).await.unwrap();
        let node = tree.node("root.a");
        assert_eq!((node.health, node.starts), (Verdict::Failing, 1));
        assert!(tree.log_of("root.a").contains("block"), "{}", tree.log_of("root.a"));
        release.send(()).unwrap();
        tree.reached("root.a", State::New).await;
        assert_eq!(tree.node("root.a").starts, 2);
        tree.end().await;
    });
}

#[tokio::test(start_paused = true)]
async fn t11_the_death_of_root_is_fatal_and_root_is_not_restarted() {
    let root = Service::new(Name::from_static("root"), |_ctx: Context| async {
        Err(Stop::failed("no disk"))
    });
    let tree = Harness::start_root(root);
    tree.may_die("root");
    let fatal = tree.supervisor.fatal().await;
    assert_eq!(
        (fatal.reason.as_str(), fatal.boot_finished, fatal.panicked),
        ("no disk", false, false)
    );
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(tree.node("root").starts, 1);
    tree.end().await;

    let root = Service::new(Name::from_static("root"), |ctx: Context| async {
        let _ctx = ctx;
        std::panic::panic_any(7u8)
    });
    let tree = Harness::start_root(root);
    tree.may_die("root");
    assert!(tree.supervisor.fatal().await.panicked);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t11_root_done_means_that_boot_is_finished_and_its_children_live_on() {
    let (child, remote) = Remote::new("a");
    let root = Service::new(Name::from_static("root"), move |ctx: Context| {
        let child = child.clone();
        async move {
            if let Err(AddError::Stopping(c)) = ctx.run(child).await {
                return Err(c.into());
            }
            Ok(ctx.healthy().done())
        }
    });
    let tree = Harness::start_root(root);
    tree.may_die("root.a");
    tree.settled().await;
    remote.healthy().await;
    assert!(tree.view().boot_finished);
    assert_eq!(tree.view().verdict, Verdict::Ok);
    remote.fail("x").await;
    tree.reached("root.a", State::New).await;
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t12_shutdown_goes_by_stages_and_starts_nothing() {
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let stage = |n: u8| Policy { stop_stage: Some(n), ..Policy::default() };
    let services = vec![
        named("etcd", order.clone()).policy(stage(5)),
        named("kubelet", order.clone()).policy(stage(1)),
        named("pods", order.clone()).policy(stage(2)),
        named("plain", order.clone()),
        Service::new(Name::from_static("failing"), |_ctx: Context| async {
            Err(Stop::failed("always"))
        }),
    ];
    let tree = Harness::start(services);
    tree.may_die("root.failing");
    tree.settled().await;
    let starts = tree.node("root.failing").starts;
    let quiet = tree.supervisor.shutdown().await;
    assert!(quiet.stuck.is_empty());
    assert_eq!(*order.lock(), ["kubelet", "pods", "plain", "etcd"]);
    assert_eq!(tree.node("root.failing").starts, starts);
    assert!(tree.view().shutting_down);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t12_the_reason_of_a_shutdown_reaches_the_runnable() {
    let reason = Arc::new(parking_lot::Mutex::new(None));
    let seen = reason.clone();
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        let seen = seen.clone();
        async move {
            let running = ctx.healthy();
            let stop = running.stop();
            let cancelled = stop.stopped().await;
            *seen.lock() = stop.reason();
            Err(cancelled.into())
        }
    });
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    tree.end().await;
    assert_eq!(*reason.lock(), Some(StopReason::Shutdown));
}

#[tokio::test(start_paused = true)]
async fn t4_bad_additions_are_values() {
    let (parent, p) = Remote::new("p");
    let tree = Harness::start(vec![parent]);
    tree.settled().await;
    let again = || Remote::new("a").0;
    assert!(matches!(p.run_group(vec![]).await, Err(AddError::EmptyGroup)));
    p.run_group(vec![again()]).await.unwrap();
    assert!(matches!(p.run_group(vec![again()]).await, Err(AddError::Duplicate(_))));
    let twins = vec![Remote::new("b").0, Remote::new("b").0];
    assert!(matches!(p.run_group(twins).await, Err(AddError::Duplicate(_))));
    p.run_group(vec![Remote::new("b").0]).await.unwrap();
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn d4_a_sub_logger_and_a_child_cannot_share_a_name() {
    let result = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = result.clone();
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        let seen = seen.clone();
        async move {
            let x = || Name::from_static("x");
            slog::info!(ctx.sub_logger(x()).unwrap(), "below");
            seen.lock().push(ctx.sub_logger(x()).is_err());
            let refused = ctx.run(Remote::new("x").0).await.is_err();
            seen.lock().push(refused);
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    });
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    assert_eq!(*result.lock(), [true, true]);
    assert!(tree.log_of("root.a.x").contains("below"));
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn h1_conditions_and_notes_are_shown_and_gone_with_the_incarnation() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.healthy().await;
    remote.act(|h| h.health().set(Condition::unhealthy("Lost", "no peer"))).await;
    let node = tree.node("root.a");
    assert_eq!((node.health, node.reason.as_str()), (Verdict::Failing, "Lost: no peer"));
    remote.act(|h| h.health().clear("Lost")).await;
    assert_eq!(tree.node("root.a").health, Verdict::Ok);
    remote.act(|h| h.health().set(Condition::degraded("Slow", "disk"))).await;
    remote.fail("x").await;
    assert!(tree.node("root.a").conditions.is_empty());
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn x2_tasks_are_asked_when_the_main_future_ends_and_joined_before_the_exit() {
    let ended = Arc::new(AtomicU32::new(0));
    let count = ended.clone();
    let service = Service::new(Name::from_static("a"), move |ctx: Context| {
        let count = count.clone();
        async move {
            let stop = ctx.stop();
            ctx.spawn(Name::from_static("t"), async move {
                let cancelled = stop.stopped().await;
                tokio::time::sleep(Duration::from_secs(3)).await;
                count.fetch_add(1, Ordering::Relaxed);
                Err(cancelled.into())
            });
            Ok(ctx.healthy().done())
        }
    });
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    assert_eq!(tree.state("root.a"), "healthy running");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    assert_eq!(tree.state("root.a"), "done ended");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn x7_an_idle_tree_wakes_nobody() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    remote.healthy().await;
    let mut view = tree.supervisor.view();
    view.mark_unchanged();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!view.has_changed().unwrap());
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn w9_a_restart_by_request_has_no_backoff_and_is_refused_for_root_and_strangers() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.settled().await;
    remote.healthy().await;
    let restart = |dn: &'static str| {
        let dn = Dn::from_static(dn);
        let supervisor = tree.supervisor.clone();
        async move { supervisor.restart(&dn).await }
    };
    restart("root.a").await.unwrap();
    tree.settled().await;
    let node = tree.node("root.a");
    assert_eq!((node.starts, node.deaths, tree.state("root.a").as_str()), (2, 0, "new running"));
    assert_eq!(node.starts_by_cause, [(StartCause::First, 1), (StartCause::Restart, 1)]);
    assert!(tree.log_of("root.a").contains("restart by request"));
    assert_eq!(restart("root").await.unwrap_err(), RestartError::Root);
    let unknown = Dn::from_static("root.b");
    assert_eq!(restart("root.b").await.unwrap_err(), RestartError::Unknown(unknown));
    assert_eq!(tree.node("root").starts, 1);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn w9_a_restart_by_request_ends_the_backoff_of_a_dead_node() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.fail("broken").await;
    assert_eq!(tree.state("root.a"), "dead backoff");
    tree.supervisor.restart(&Dn::from_static("root.a")).await.unwrap();
    tree.settled().await;
    assert_eq!(tree.state("root.a"), "new running");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t8_a_backing_off_unit_that_is_asked_to_stop_is_disarmed_at_once() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    remote.fail("broken").await;
    let a = Dn::from_static("root.a");
    tree.supervisor.stop(&a).await.unwrap();
    tree.settled().await;
    assert_eq!(tree.state("root.a"), "dead ended");
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(tree.node("root.a").starts, 1);
    tree.supervisor.restart(&a).await.unwrap();
    tree.settled().await;
    assert_eq!(tree.state("root.a"), "new running");
    let root = Dn::from_static("root");
    assert_eq!(tree.supervisor.stop(&root).await.unwrap_err(), RestartError::Root);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_12_transitions_events_and_steps_are_counted_and_vanish_with_their_dn() {
    let (outer, o) = Remote::new("outer");
    let tree = Harness::start(vec![outer]);
    tree.may_die("root.outer");
    tree.settled().await;
    o.run("inner").await;
    o.healthy().await;
    let count = |dn: &str, from, to| {
        let counters = tree.supervisor.counters();
        let of_dn = counters.dns.into_iter().find(|d| d.dn.as_str() == dn)?;
        of_dn.transitions.iter().find(|(f, t, _)| (*f, *t) == (from, to)).map(|(_, _, n)| *n)
    };
    assert_eq!(count("root.outer", None, State::New), Some(1));
    assert_eq!(count("root.outer", Some(State::New), State::Healthy), Some(1));
    o.fail("x").await;
    tree.reached("root.outer", State::New).await;
    assert_eq!(count("root.outer", Some(State::Healthy), State::Dead), Some(1));
    assert_eq!(count("root.outer", Some(State::Dead), State::New), Some(1));
    assert_eq!(count("root.outer.inner", None, State::New), None, "the node is gone");
    o.run("inner").await;
    assert_eq!(count("root.outer.inner", None, State::New), Some(1), "it goes on where it was");
    let counters = tree.supervisor.counters();
    let exited = counters.events.iter().find(|(kind, _)| *kind == "exited").map(|(_, n)| *n);
    assert_eq!(exited, Some(2));
    let steps: u64 = counters.events.iter().map(|(_, n)| n).sum();
    assert_eq!(counters.step_seconds.count, steps);
    assert_eq!(counters.step_seconds.buckets.iter().sum::<u64>(), steps);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t15_what_a_node_recorded_is_replayed_step_by_step() {
    let (service, remote) = Remote::new("a");
    let tree = Harness::start(vec![service]);
    tree.may_die("root.a");
    tree.settled().await;
    for _ in 0..3 {
        remote.fail("broken").await;
        tree.reached("root.a", State::New).await;
    }
    let replayed = supervisor::replay(&tree.supervisor.recording().unwrap()).unwrap();
    assert_eq!((replayed.differs_at, &replayed.panicked), (None, &None));
    let steps = replayed.steps.join("\n");
    assert_eq!(steps.matches("Failed(\"broken\")").count(), 3, "{steps}");
    assert_eq!(steps.matches("Start {").count(), 5, "root and four times a");
    tree.end().await;
}
