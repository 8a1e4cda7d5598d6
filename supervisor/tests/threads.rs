//! What needs threads and the real clock: the driver's own thread, busy loops, own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use supervisor::prelude::*;
use supervisor::{Config, LogTree, Placement, Snapshot, Supervisor, Verdict};

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
