//! The log: appends per second with writers and readers, bytes per entry, records that are not kept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use logtree::{Backlog, Dn, Level, Limits, LogTree, Query};
use slog::{debug, info};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt};

use crate::floor::{Memory, Queue};
use crate::row::{Row, best, timed};

/// Appends of one measurement, all writers together.
const APPENDS: u64 = 320_000;
/// Records that are not kept.
const DISABLED: u64 = 4_000_000;

/// Resident memory of this process in bytes; 0 where there is no /proc.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0
}

/// What the log takes when it is as full as it may be.
pub(crate) fn memory() -> Vec<Row> {
    let limits = Limits::default();
    let before = resident();
    let tree = LogTree::new(limits);
    for dn in 0..64 {
        let Ok(dn) = Dn::new(&format!("root.d{dn}")) else { continue };
        let log = tree.logger(&dn);
        (0..10_000).for_each(|n| info!(log, "request {} served", n; "took_us" => n, "code" => 200));
    }
    let grown = resident() - before;
    let stats = tree.stats();
    let entries: u64 = stats.dns.iter().map(|d| d.retained_entries).sum();
    let of_ring = stats.retained_bytes as f64 / entries.max(1) as f64;
    let configured = limits.total_bytes as f64;
    vec![
        Row::new("memory of a full log", grown / f64::from(1 << 20), "MiB")
            .against("its configured limit", grown / configured),
        Row::new("bytes per entry, as the log counts", of_ring, "B")
            .against("resident memory", of_ring * entries as f64 / grown.max(1.0)),
    ]
}

/// All rows about speed.
pub(crate) fn speed(quick: bool) -> Result<Vec<Row>> {
    let share = if quick { 10 } else { 1 };
    let (appends, disabled) = (APPENDS / share, DISABLED / share);
    let mut rows = Vec::new();
    for writers in [1, 4, 16] {
        let each = appends / writers;
        let queue = best(3, || queue(writers, each));
        let mut fmt = Duration::MAX;
        for _ in 0..3 {
            fmt = fmt.min(formatter(writers, each)?);
        }
        let rate = |d: Duration| (each * writers) as f64 / d.as_secs_f64() / 1e3;
        let unit = "k appends/s";
        rows.push(Row::new(format!("{writers} writers, mutex + VecDeque"), rate(queue), unit));
        rows.push(Row::new(format!("{writers} writers, tracing fmt"), rate(fmt), unit));
        for readers in [0, 10] {
            let mut ours = Duration::MAX;
            for _ in 0..3 {
                ours = ours.min(appending(writers, readers, each)?);
            }
            let name = format!("{writers} writers, {readers} readers, logtree");
            let ratio = |other: Duration| ours.as_secs_f64() / other.as_secs_f64();
            let row = Row::new(&name, rate(ours), unit);
            rows.push(row.clone().against("mutex + VecDeque (time)", ratio(queue)));
            rows.push(row.against("tracing fmt (time)", ratio(fmt)));
        }
    }
    rows.extend(not_kept(disabled));
    Ok(rows)
}

/// Runs `writers` threads of `each` appends; the time until the last has ended.
fn threads(writers: u64, work: impl Fn(u64) + Sync) -> Duration {
    timed(|| {
        std::thread::scope(|scope| {
            for writer in 0..writers {
                let work = &work;
                scope.spawn(move || work(writer));
            }
        });
    })
}

fn queue(writers: u64, each: u64) -> Duration {
    let queue = Queue::default();
    threads(writers, |_| {
        (0..each).for_each(|n| queue.append(format!("request {n} served took_us={n} code=200")));
    })
}

fn formatter(writers: u64, each: u64) -> Result<Duration> {
    let memory = Memory::default();
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(memory.clone());
    let dispatch = tracing::Dispatch::new(tracing_subscriber::registry().with(layer));
    let took = threads(writers, |_| {
        tracing::dispatcher::with_default(&dispatch, || {
            (0..each).for_each(|n| tracing::info!(took_us = n, code = 200, "request {n} served"));
        });
    });
    anyhow::ensure!(memory.lines() == each * writers, "the formatter has lost lines");
    Ok(took)
}

fn appending(writers: u64, readers: u64, each: u64) -> Result<Duration> {
    let tree = LogTree::new(Limits::default());
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let dns: Vec<Dn> =
        (0..writers).map(|w| Dn::new(&format!("root.w{w}"))).collect::<Result<_, _>>()?;
    let took = std::thread::scope(|scope| {
        for _ in 0..readers {
            let query = Query {
                follow: true,
                backlog: Backlog::All,
                ..Query::all(Dn::from_static("root"))
            };
            let mut reader = tree.read(query)?;
            let (done, seen) = (&done, &seen);
            scope.spawn(move || {
                loop {
                    let over = done.load(Ordering::Acquire);
                    let batch = reader.next(256);
                    let news = batch.entries.len() as u64 + batch.missed;
                    seen.fetch_add(news, Ordering::Relaxed);
                    if news == 0 && over {
                        return;
                    }
                    if news == 0 {
                        reader.wait(Duration::from_millis(5));
                    }
                }
            });
        }
        let took = threads(writers, |w| {
            let log = tree.logger(&dns[w as usize]);
            (0..each)
                .for_each(|n| info!(log, "request {} served", n; "took_us" => n, "code" => 200));
        });
        done.store(true, Ordering::Release);
        Ok::<_, logtree::QueryError>(took)
    })
    .context("cannot read the log")?;
    let expected = each * writers * readers;
    anyhow::ensure!(seen.load(Ordering::Relaxed) == expected, "readers have lost entries");
    Ok(took)
}

/// Records below the level: what they cost where they are said.
fn not_kept(times: u64) -> Vec<Row> {
    let tree = LogTree::new(Limits::default());
    tree.set_level(&Dn::ALL, Level::Info, None);
    let log = tree.logger(&Dn::from_static("root.quiet"));
    let ours = best(3, || timed(|| (0..times).for_each(|n| debug!(log, "detail {}", n))));
    let layer = tracing_subscriber::fmt::layer().with_writer(Memory::default());
    let registry = tracing_subscriber::registry().with(layer.with_filter(LevelFilter::INFO));
    let theirs = tracing::subscriber::with_default(registry, || {
        best(3, || timed(|| (0..times).for_each(|n| tracing::debug!("detail {n}"))))
    });
    let nanos = |d: Duration| d.as_secs_f64() * 1e9 / times as f64;
    vec![
        Row::new("a record that is not kept, tracing", nanos(theirs), "ns"),
        Row::new("a record that is not kept, logtree", nanos(ours), "ns")
            .against("tracing", nanos(ours) / nanos(theirs)),
    ]
}
