//! Runnables that do everything wrong beside good ones: the good ones never notice, memory stays
//! bounded, and the shutdown ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use logtree::{Format, LogTree};
use supervisor::prelude::*;
use supervisor::testing::Harness;
use supervisor::{State, Stop};

fn name(text: &'static str) -> Name {
    Name::from_static(text)
}

/// Counts its starts; a good neighbour.
fn good(of: &'static str, starts: Arc<AtomicU32>) -> Service {
    Service::new(name(of), move |ctx: Context| {
        starts.fetch_add(1, Ordering::Relaxed);
        async move {
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    })
}

/// Returns at once, without a reason.
fn early() -> Service {
    Service::new(name("early"), |_ctx: Context| async { Err(Stop::failed("nothing to do")) })
}

/// Panics in its main future, its tasks and its jobs in turn.
fn panicking() -> Service {
    let turn = Arc::new(AtomicU32::new(0));
    Service::new(name("panicking"), move |ctx: Context| {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        async move {
            match turn % 3 {
                0 => std::panic::panic_any(7u8),
                1 => ctx.spawn(name("task"), async { panic!("in a task") }),
                // Its panic comes by way of the job's node, not by this value.
                _ => drop(ctx.spawn_blocking(name("job"), || panic!("in a job"))),
            }
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    })
}

/// Does not react to being asked to stop.
fn hanging() -> Service {
    Service::new(name("hanging"), |ctx: Context| async move {
        let _running = ctx.healthy();
        std::future::pending::<Outcome>().await
    })
}

/// Keeps handles over its end and uses them then: says healthy things, starts tasks, adds children
/// to a parent that is gone.
fn undead(late: Arc<parking_lot::Mutex<Vec<Late>>>) -> Service {
    Service::new(name("undead"), move |ctx: Context| {
        let late = late.clone();
        async move {
            let health = ctx.health();
            let running = ctx.healthy();
            late.lock().push(Late { health, stop: running.stop() });
            Ok(running.done())
        }
    })
}

/// What outlives its Runnable.
struct Late {
    health: Health,
    stop: StopToken,
}

/// Starts tasks for ever, each of which starts nothing and waits.
fn spawning() -> Service {
    Service::new(name("spawning"), |ctx: Context| async move {
        let stop = ctx.stop();
        let running = ctx.healthy();
        loop {
            let each = stop.clone();
            running.spawn(name("one"), async move { Err(each.stopped().await.into()) });
            stop.race(tokio::time::sleep(Duration::from_secs(1))).await?;
        }
    })
}

#[tokio::test(start_paused = true)]
async fn good_runnables_are_never_restarted_because_of_bad_ones_and_shutdown_ends() {
    let starts = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
    let late = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tree = Harness::start(vec![
        good("good-1", starts[0].clone()),
        early(),
        panicking(),
        good("good-2", starts[1].clone()),
        hanging(),
        undead(late.clone()),
        spawning(),
        good("good-3", starts[2].clone()),
    ]);
    for bad in ["root.early", "root.panicking", "root.hanging"] {
        tree.may_die(bad);
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    for late in late.lock().iter() {
        late.health.set(Condition::unhealthy("Ghost", "I am not here"));
        late.health.note("still talking");
        assert!(late.stop.reason().is_some(), "it was told that it is over");
    }
    tree.supervisor.restart(&Dn::from_static("root.hanging")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let undead = tree.node("root.undead");
    assert_eq!((undead.state, undead.conditions.len(), &undead.note), (State::Done, 0, &None));
    assert_eq!(tree.node("root.hanging").starts, 2, "aborted and started anew");
    assert!(tree.node("root.panicking").deaths > 10 && tree.node("root.early").deaths > 10);
    for (number, starts) in starts.iter().enumerate() {
        let node = tree.node(&format!("root.good-{}", number + 1));
        assert_eq!((node.starts, node.deaths, node.state), (1, 0, State::Healthy));
        assert_eq!(starts.load(Ordering::Relaxed), 1);
    }
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_deaths_in_a_row_leave_a_bounded_history_and_the_neighbour_alone() {
    let starts = Arc::new(AtomicU32::new(0));
    let tree = Harness::start(vec![early(), good("good", starts.clone())]);
    tree.may_die("root.early");
    let mut view = tree.supervisor.view();
    let dead = |s: &Arc<supervisor::Snapshot>| {
        s.nodes.iter().any(|n| n.dn.as_str() == "root.early" && n.deaths >= 1000)
    };
    view.wait_for(dead).await.unwrap();
    let node = tree.node("root.early");
    assert_eq!(node.transitions.len(), 64);
    assert!(node.deaths_10min <= 256);
    assert_eq!(tree.node("root.good").starts, 1);
    assert_eq!(starts.load(Ordering::Relaxed), 1);
    assert!(tree.supervisor.recording().unwrap().lines().count() <= 1025);
    let of_early = tree.logs().stats().dns.into_iter().find(|s| s.dn.as_str() == "root.early");
    assert!(of_early.unwrap().retained_bytes <= 1 << 20);
    tree.end().await;
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("a Linux with /proc");
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    pages.expect("the second number of statm") * 4096
}

#[tokio::test(start_paused = true)]
async fn a_gigabyte_of_log_goes_through_with_bounded_memory_beside_a_quiet_neighbour() {
    const BYTES: usize = 1 << 30;
    let flooding = |logs: LogTree| {
        Service::new(name("flooding"), move |ctx: Context| {
            let logs = logs.clone();
            async move {
                let mut sink = logs.sink(ctx.dn(), Format::Auto);
                let running = ctx.healthy();
                let line = format!("{}\n", "all work and no play ".repeat(400));
                for written in (0..BYTES).step_by(line.len()) {
                    sink.push(line.as_bytes());
                    if written % (16 << 20) < line.len() {
                        tokio::task::yield_now().await;
                    }
                }
                Ok(running.done())
            }
        })
    };
    let logs = Arc::new(parking_lot::Mutex::new(None::<LogTree>));
    let slot = logs.clone();
    let starts = Arc::new(AtomicU32::new(0));
    let neighbour = good("good", starts.clone());
    let root = Service::new(name("root"), move |ctx: Context| {
        let flooding = slot.lock().clone().map(flooding);
        let neighbour = neighbour.clone();
        async move {
            for service in [Some(neighbour), flooding].into_iter().flatten() {
                if let Err(AddError::Stopping(cancelled)) = ctx.run(service).await {
                    return Err(cancelled.into());
                }
            }
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    });
    let tree = Harness::start_root(root);
    *logs.lock() = Some(tree.logs().clone());
    slog::info!(tree.logs().logger(&Dn::from_static("root.good")), "I was here first");
    let before = resident();
    tree.settled().await;
    tree.reached_state("root.flooding", State::Done).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {} MiB", grown >> 20);
    let stats = tree.logs().stats();
    let flood = stats.dns.iter().find(|s| s.dn.as_str() == "root.flooding").unwrap();
    assert!(flood.retained_bytes <= 1 << 20, "{flood:?}");
    let written = flood.raw + flood.entries.iter().sum::<u64>();
    assert_eq!(written, flood.evicted + flood.retained_entries, "nothing is lost uncounted");
    assert!(flood.raw as usize >= BYTES / 8401);
    assert!(
        tree.log_of("root.good").contains("I was here first"),
        "a chatty DN evicts no quiet one"
    );
    assert_eq!(starts.load(Ordering::Relaxed), 1);
    tree.end().await;
}
