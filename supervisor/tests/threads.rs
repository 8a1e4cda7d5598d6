//! What needs threads and the real clock: the driver's own thread, busy loops, own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use supervisor::prelude::*;
use supervisor::{Config, LogTree, Placement, Snapshot, Supervisor, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

fn start(services: Vec<Service>) -> Supervisor {
    let root = Service::new(Name::from_static("root"), move |ctx: Context| {
        let services = services.clone();
        async move {
            for service in services {
                if let Err(AddError::Stopping(c)) = ctx.run(service).await {
                    return Err(c.into());
                }
            }
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    });
    Supervisor::start(root, Config::new(LogTree::new(Default::default()), 7))
}

fn wait(tree: &Supervisor, what: &str, there: impl Fn(&Snapshot) -> bool) {
    let began = Instant::now();
    tree.runtime().block_on(async {
        let mut view = tree.view();
        let there = view.wait_for(|s| there(s));
        let result = tokio::time::timeout(Duration::from_secs(30), there).await;
        assert!(result.is_ok(), "{what}: {:#?} after {:?}", tree.view().borrow(), began.elapsed());
    });
}

fn of<'a>(s: &'a Snapshot, dn: &str) -> Option<&'a supervisor::NodeSnapshot> {
    s.nodes.iter().find(|n| n.dn.as_str() == dn).map(|n| &**n)
}

fn idle(name: &'static str, placement: Placement) -> Service {
    let service = Service::new(Name::from_static(name), |ctx: Context| async move {
        let running = ctx.healthy();
        Err(running.stop().stopped().await.into())
    });
    service.policy(Policy { placement, ..Policy::default() })
}

#[test]
fn x1_a_tree_on_its_own_threads_starts_restarts_and_ends() {
    let tree = start(vec![idle("shared", Placement::Shared), idle("own", Placement::OwnThread)]);
    wait(&tree, "all ok", |s| s.verdict == Verdict::Ok && s.nodes.len() == 3);
    let dn = Dn::from_static("root.own");
    tree.runtime().block_on(tree.restart(&dn)).unwrap();
    wait(&tree, "restarted", |s| of(s, "root.own").is_some_and(|n| n.starts == 2));
    assert!(tree.driver_age() < Duration::from_secs(15));
    let quiet = tree.runtime().block_on(tree.shutdown());
    assert!(quiet.stuck.is_empty());
    // A second shutdown answers as the first.
    assert_eq!(tree.runtime().block_on(tree.shutdown()), quiet);
    assert!(tree.runtime().block_on(tree.restart(&dn)).is_err());
}

#[test]
fn x4_a_busy_loop_is_named_and_stops_neither_restarts_nor_neighbours() {
    let release = Arc::new(AtomicBool::new(false));
    let seen = release.clone();
    let busy = Service::new(Name::from_static("busy"), move |ctx: Context| {
        let seen = seen.clone();
        async move {
            let running = ctx.healthy();
            while !seen.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(running.stop().stopped().await.into())
        }
    });
    let tree = start(vec![busy, idle("other", Placement::Shared)]);
    wait(&tree, "other runs", |s| of(s, "root.other").is_some_and(|n| n.health == Verdict::Ok));
    let dn = Dn::from_static("root.other");
    tree.runtime().block_on(tree.restart(&dn)).unwrap();
    wait(&tree, "other restarted", |s| of(s, "root.other").is_some_and(|n| n.starts == 2));
    wait(&tree, "busy is named", |s| {
        of(s, "root.busy").is_some_and(|n| n.conditions.iter().any(|c| c.kind == "Stalled"))
    });
    release.store(true, Ordering::Relaxed);
    let quiet = tree.runtime().block_on(tree.shutdown());
    assert!(quiet.stuck.is_empty());
}

#[test]
fn x3_a_panic_in_a_task_on_any_thread_leaves_the_process_and_its_siblings_alive() {
    let fragile = |name: &'static str, placement| {
        let service = Service::new(Name::from_static(name), |ctx: Context| async move {
            ctx.spawn(Name::from_static("t"), async { std::panic::panic_any(1u32) });
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        });
        service.policy(Policy { placement, ..Policy::default() })
    };
    let tree = start(vec![
        fragile("a", Placement::Shared),
        fragile("b", Placement::OwnThread),
        idle("c", Placement::Shared),
    ]);
    wait(&tree, "both died twice", |s| {
        ["root.a", "root.b"].iter().all(|dn| of(s, dn).is_some_and(|n| n.deaths >= 2))
    });
    let view = tree.view().borrow().clone();
    assert_eq!(of(&view, "root.c").unwrap().starts, 1);
    assert!(tree.runtime().block_on(tree.shutdown()).stuck.is_empty());
}

/// Sends a byte to and fro over a socket, as often as asked.
fn ping_pong(rounds: Arc<AtomicU32>) -> Service {
    Service::new(Name::from_static("pair"), move |ctx: Context| {
        let rounds = rounds.clone();
        async move {
            let (mut near, mut far) = UnixStream::pair()?;
            ctx.spawn(Name::from_static("echo"), async move {
                loop {
                    // The other end is gone when the pair is asked to stop.
                    let Ok(byte) = far.read_u8().await else { return Ok(()) };
                    far.write_u8(byte).await?;
                }
            });
            let stop = ctx.stop();
            let _running = ctx.healthy();
            loop {
                near.write_u8(1).await?;
                stop.race(near.read_u8()).await??;
                rounds.fetch_add(1, Ordering::Relaxed);
                stop.race(tokio::time::sleep(Duration::from_millis(10))).await?;
            }
        }
    })
}

#[test]
fn x4_a_pair_goes_on_exchanging_pings_beside_busy_loops_that_never_yield() {
    let (release, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let busy = |name: &'static str| {
        let seen = release.clone();
        Service::new(Name::from_static(name), move |ctx: Context| {
            let seen = seen.clone();
            async move {
                let running = ctx.healthy();
                while !seen.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(running.stop().stopped().await.into())
            }
        })
    };
    let tree = start(vec![ping_pong(rounds.clone()), busy("busy-1"), busy("busy-2")]);
    wait(&tree, "both are named", |s| {
        ["root.busy-1", "root.busy-2"]
            .iter()
            .all(|dn| of(s, dn).is_some_and(|n| n.conditions.iter().any(|c| c.kind == "Stalled")))
    });
    // Both block since long: what comes now came although they do.
    let before = rounds.load(Ordering::Relaxed);
    let began = Instant::now();
    while rounds.load(Ordering::Relaxed) < before + 20 {
        assert!(began.elapsed() < Duration::from_secs(30), "no pings any more");
        std::thread::yield_now();
    }
    let counters = tree.counters();
    let busy = counters.dns.iter().filter(|d| d.dn.last().starts_with("busy"));
    let stalled: u64 = busy.map(|d| d.stalled_polls).sum();
    assert_eq!(stalled, 2, "each is counted once: {counters:?}");
    release.store(true, Ordering::Relaxed);
    assert!(tree.runtime().block_on(tree.shutdown()).stuck.is_empty());
    assert_eq!(tree.view().borrow().nodes.iter().filter(|n| n.deaths > 0).count(), 0);
}
