//! The tree: a restart storm, and how long a death takes to be answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use logtree::{Dn, LogTree, Name};
use parking_lot::Mutex;
use supervisor::prelude::*;
use supervisor::{Backoff, Config, Snapshot, Supervisor};

use crate::floor;
use crate::row::{Row, best, spread};

/// Runnables of the storm.
const MANY: usize = 10_000;
/// Below one parent, which starts them one after the other.
const GROUP: usize = 100;
/// Deaths that are timed.
const DEATHS: usize = 2_000;

/// All rows about the tree.
pub(crate) fn all(quick: bool) -> Result<Vec<Row>> {
    let (many, deaths) = if quick { (MANY / 10, DEATHS / 10) } else { (MANY, DEATHS) };
    let mut rows = storm(many)?;
    rows.extend(death(deaths)?);
    rows.extend(among(many)?);
    Ok(rows)
}

fn leaf(name: Name, starts: Arc<AtomicUsize>) -> Service {
    Service::new(name, move |ctx: Context| {
        starts.fetch_add(1, Ordering::Relaxed);
        async move {
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    })
}

/// A service with these children, each a unit of its own.
fn parent(name: Name, children: Vec<Service>) -> Service {
    Service::new(name, move |ctx: Context| {
        let children = children.clone();
        async move {
            for child in children {
                if let Err(AddError::Stopping(cancelled)) = ctx.run(child).await {
                    return Err(cancelled.into());
                }
            }
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    })
}

fn group(number: usize, size: usize, starts: &Arc<AtomicUsize>) -> Service {
    let leaves = (0..size).map(|n| leaf(Name::from_text(&format!("l{n}")), starts.clone()));
    parent(Name::from_text(&format!("g{number}")), leaves.collect())
}

fn start(services: Vec<Service>) -> Result<Supervisor> {
    let root = parent(Name::from_static("root"), services);
    Supervisor::try_start(root, Config::new(LogTree::new(Default::default()), 1))
        .context("cannot start the tree")
}

async fn reached(tree: &Supervisor, there: impl Fn(&Snapshot) -> bool) {
    let mut view = tree.view();
    // The tree is held by the caller.
    let _ = view.wait_for(|s| there(s)).await;
}

fn all_healthy(s: &Snapshot, nodes: usize) -> bool {
    s.nodes.len() == nodes && s.nodes.iter().all(|n| n.state == supervisor::State::Healthy)
}

fn storm(many: usize) -> Result<Vec<Row>> {
    let groups = many / GROUP.min(many);
    let size = many / groups;
    let nodes = many + groups + 1;
    let starts = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let tree = start((0..groups).map(|g| group(g, size, &starts)).collect())?;
    let runtime = tree.runtime();
    runtime.block_on(reached(&tree, |s| all_healthy(s, nodes)));
    let started = began.elapsed();
    let began = Instant::now();
    let restarted = runtime.block_on(async {
        for g in 0..groups {
            tree.restart(&Dn::new(&format!("root.g{g}"))?).await?;
        }
        let again = |s: &Snapshot| {
            all_healthy(s, nodes) && s.nodes.iter().all(|n| n.starts == 2 || n.dn.depth() == 1)
        };
        reached(&tree, again).await;
        anyhow::Ok(began.elapsed())
    })?;
    let began = Instant::now();
    let quiet = runtime.block_on(tree.shutdown());
    let stopped = began.elapsed();
    anyhow::ensure!(quiet.stuck.is_empty(), "something is stuck after the storm");
    anyhow::ensure!(starts.load(Ordering::Relaxed) == 2 * many, "some were not restarted");
    let plain = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let floor = best(5, || floor::join_set(&plain, many));
    let per = |d: Duration| d.as_secs_f64() * 1e6 / many as f64;
    let ratio = |d: Duration| d.as_secs_f64() / floor.as_secs_f64();
    let against = "JoinSet spawn + join";
    Ok(vec![
        Row::new(format!("{many} tasks, JoinSet spawn + join"), per(floor), "µs each"),
        Row::new(format!("{many} Runnables, start + stop"), per(started + stopped), "µs each")
            .against(against, ratio(started + stopped)),
        Row::new(format!("{many} Runnables, restart storm"), per(restarted), "µs each")
            .against(against, ratio(restarted)),
    ])
}

/// From the death of a Runnable to the first line of its next run; no backoff.
fn death(deaths: usize) -> Result<Vec<Row>> {
    let died = Arc::new(Mutex::new(None::<Instant>));
    let samples = Arc::new(Mutex::new(Vec::with_capacity(deaths)));
    let (mine, seen) = (died.clone(), samples.clone());
    let fragile = Service::new(Name::from_static("fragile"), move |ctx: Context| {
        let now = Instant::now();
        let count = {
            let mut samples = seen.lock();
            samples.extend(mine.lock().take().map(|died| now.duration_since(died)));
            samples.len()
        };
        let died = mine.clone();
        async move {
            if count == deaths {
                let running = ctx.healthy();
                return Err(running.stop().stopped().await.into());
            }
            *died.lock() = Some(Instant::now());
            Err(Stop::failed("measured"))
        }
    });
    let at_once = Backoff { first: Duration::ZERO, max: Duration::ZERO, ..Backoff::default() };
    let tree = start(vec![fragile.policy(Policy { backoff: at_once, ..Policy::default() })])?;
    tree.runtime().block_on(reached(&tree, |s| all_healthy(s, 2)));
    tree.runtime().block_on(tree.shutdown());
    let steps = tree.counters().step_seconds;
    let plain = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (floor, floor_99) = spread(floor::respawn(&plain, deaths));
    let (middle, worst) = spread(std::mem::take(&mut *samples.lock()));
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    let against = "join + spawn of a task";
    let decision = steps.sum_seconds * 1e6 / steps.count.max(1) as f64;
    Ok(vec![
        Row::new("death to next run, median", micros(middle), "µs")
            .against(against, micros(middle) / micros(floor)),
        Row::new("death to next run, 99th percentile", micros(worst), "µs")
            .against(against, micros(worst) / micros(floor_99)),
        Row::new("decision of the tree per event", decision, "µs"),
    ])
}

/// The restart of a 10-node subtree in a large tree and in a small one (rule T13).
fn among(many: usize) -> Result<Vec<Row>> {
    let restart = |others: usize| -> Result<Duration> {
        let starts = Arc::new(AtomicUsize::new(0));
        let size = GROUP.min(others);
        let mut services: Vec<Service> =
            (0..others / size).map(|g| group(g, size, &starts)).collect();
        let ten = parent(
            Name::from_static("ten"),
            (0..9).map(|n| leaf(Name::from_text(&format!("l{n}")), starts.clone())).collect(),
        );
        services.push(ten);
        let nodes = others + others / size + 11;
        let tree = start(services)?;
        let runtime = tree.runtime();
        runtime.block_on(reached(&tree, |s| all_healthy(s, nodes)));
        let ten = Dn::from_static("root.ten");
        let mut times = Vec::new();
        for round in 2..22 {
            let began = Instant::now();
            runtime.block_on(async {
                tree.restart(&ten).await?;
                let again = |s: &Snapshot| {
                    let ten = s.nodes.iter().rev().take(10);
                    s.nodes.len() == nodes
                        && ten.clone().count() == 10
                        && ten
                            .clone()
                            .all(|n| n.starts == round && n.state == supervisor::State::Healthy)
                };
                reached(&tree, again).await;
                anyhow::Ok(())
            })?;
            times.push(began.elapsed());
        }
        runtime.block_on(tree.shutdown());
        Ok(spread(times).0)
    };
    let (small, large) = (restart(100)?, restart(many)?);
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    Ok(vec![
        Row::new("restart of 10 Runnables among 100", micros(small), "µs"),
        Row::new(format!("restart of 10 Runnables among {many}"), micros(large), "µs")
            .against("the same among 100", micros(large) / micros(small)),
    ])
}
