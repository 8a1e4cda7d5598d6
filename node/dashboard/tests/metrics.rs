//! The metrics page of §12: every family that it must have, and nothing that a strict reader refuses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod fixture;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::{Command, Stdio};

use axum::body::Body;
use fixture::{TOKEN, World};
use http::{Request, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use logtree::{Dn, Format, LogTree, Name, Query};
use supervisor::{Config, Handle, Policy, Restart, Service, State, Stop, Supervisor};
use tower::ServiceExt;

/// The families of §12 that this page makes itself; other parts register theirs.
const FAMILIES: [(&str, &str); 33] = [
    ("supervisor_dn_state", "gauge"),
    ("supervisor_dn_health", "gauge"),
    ("supervisor_dn_transitions", "counter"),
    ("supervisor_dn_starts", "counter"),
    ("supervisor_dn_deaths", "counter"),
    ("supervisor_dn_state_since_seconds", "gauge"),
    ("supervisor_dn_backoff_seconds", "gauge"),
    ("supervisor_dn_condition", "gauge"),
    ("supervisor_dn_stuck", "gauge"),
    ("supervisor_events", "counter"),
    ("supervisor_stale_events", "counter"),
    ("supervisor_step_seconds", "histogram"),
    ("supervisor_stalled_polls", "counter"),
    ("logtree_entries", "counter"),
    ("logtree_retained_bytes", "gauge"),
    ("logtree_evicted", "counter"),
    ("logtree_truncated", "counter"),
    ("logtree_unparsed", "counter"),
    ("logtree_readers", "gauge"),
    ("logtree_missed", "counter"),
    ("kmsg_lost", "counter"),
    ("child_up", "gauge"),
    ("child_exits", "counter"),
    ("child_cpu_seconds", "counter"),
    ("child_memory_bytes", "gauge"),
    ("child_oom_kills", "counter"),
    ("reaper_orphans", "counter"),
    ("node_info", "gauge"),
    ("node_phase_seconds", "gauge"),
    ("node_last_outcome", "gauge"),
    ("dashboard_streams", "gauge"),
    ("dashboard_requests", "counter"),
    ("panics", "counter"),
];

type Labels = BTreeMap<String, String>;

/// One family as a strict reader sees it.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<(String, Labels, f64)>,
}

/// Reads a page of OpenMetrics 1.0 and panics at the first thing that the format does not allow.
fn read(page: &str) -> BTreeMap<String, Family> {
    let body = page.strip_suffix("# EOF\n").expect("the page ends in # EOF and a newline");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = HashSet::new();
    for line in body.lines() {
        assert!(!line.is_empty() && line == line.trim(), "{line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').unwrap();
            let (name, text) = rest.split_once(' ').unwrap();
            assert!(is_name(name), "{line}");
            if name != current {
                assert!(!families.contains_key(name), "{name} is not in one piece");
                current = name.to_owned();
            }
            let family = families.entry(current.clone()).or_default();
            assert!(family.samples.is_empty(), "metadata after samples: {line}");
            match word {
                "TYPE" => {
                    assert!(family.kind.is_empty(), "two types: {line}");
                    family.kind = text.to_owned();
                }
                "HELP" | "UNIT" => {}
                other => panic!("no such metadata: {other}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
        let family = families.get_mut(&current).unwrap_or_else(|| panic!("no family: {line}"));
        let suffix =
            name.strip_prefix(&current).unwrap_or_else(|| panic!("not of {current}: {line}"));
        let allowed: &[&str] = match family.kind.as_str() {
            "counter" => &["_total", "_created"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count", "_created"],
            "info" => &["_info"],
            other => panic!("no such type: {other}"),
        };
        assert!(allowed.contains(&suffix), "{line} in a {}", family.kind);
        if family.kind != "gauge" {
            assert!(value >= 0.0, "{line}");
        }
        family.samples.push((name, labels, value));
    }
    families
        .iter()
        .filter(|(_, f)| f.kind == "histogram")
        .for_each(|(name, f)| check_histogram(name, f));
    families
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

/// `name{label="value",…} number`
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        while !inner.starts_with('}') {
            let (key, after) = inner.split_once("=\"").unwrap();
            assert!(is_name(key) && !key.contains(':'), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(key.to_owned(), value).is_none(), "label twice: {line}");
            inner = after.strip_prefix(',').unwrap_or(after);
        }
        rest = inner.strip_prefix('}').unwrap();
    }
    let number = rest.strip_prefix(' ').unwrap();
    let value = match number {
        "+Inf" => f64::INFINITY,
        n => n.parse().unwrap_or_else(|_| panic!("{line}")),
    };
    (name.to_owned(), labels, value)
}

fn quoted(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return (out, text.get(i + 1..).unwrap()),
            '\\' => match chars.next().unwrap().1 {
                'n' => out.push('\n'),
                c @ ('"' | '\\') => out.push(c),
                other => panic!("no such escape: {other}"),
            },
            c => out.push(c),
        }
    }
    panic!("a value that does not end: {text}")
}

fn check_histogram(name: &str, family: &Family) {
    let of = |suffix: &str| {
        let name = format!("{name}{suffix}");
        family.samples.iter().filter(move |(n, ..)| *n == name)
    };
    let count = of("_count").next().unwrap().2;
    assert!(of("_sum").next().is_some());
    let (mut below, mut last) = (f64::NEG_INFINITY, 0.0);
    for (_, labels, value) in of("_bucket") {
        let upper = match labels["le"].as_str() {
            "+Inf" => f64::INFINITY,
            n => n.parse().unwrap(),
        };
        assert!(upper > below && *value >= last, "{name} at {upper}");
        (below, last) = (upper, *value);
    }
    assert!(
        below.is_infinite() && (last - count).abs() < f64::EPSILON,
        "{name}: {last} of {count}"
    );
}

/// A tree in which one service runs, one has failed for good, and one has panicked.
fn tree(logs: &LogTree) -> Supervisor {
    let policy = |restart| Policy { restart, ..Policy::default() };
    let root = Service::new(Name::from_static("root"), move |ctx| async move {
        let fails =
            Service::new(Name::from_static("fails"), |_| async { Err(Stop::failed("no luck")) });
        let panics = Service::new(Name::from_static("panics"), |_| async { panic!("bad luck") });
        ctx.run(fails.policy(policy(Restart::Never))).await?;
        ctx.run(panics.policy(policy(Restart::Never))).await?;
        let running = ctx.healthy();
        Err(running.stop().stopped().await.into())
    });
    let supervisor = Supervisor::start(root, Config::new(logs.clone(), 1));
    let mut view = supervisor.view();
    let dead = |n: &supervisor::NodeSnapshot| n.state == State::Dead;
    let both = view.wait_for(|s| s.nodes.iter().filter(|n| dead(n)).count() == 2);
    supervisor.runtime().block_on(both).unwrap();
    supervisor
}

async fn page(world: &World) -> String {
    let router = dashboard::router(world.sources.clone(), world.access.clone());
    let request = |path: &str| {
        let request = Request::get(path).header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        router.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    request("/nowhere/at/all").await.unwrap();
    let response = request("/metrics").await.unwrap();
    let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A world where every family has something to tell.
fn world() -> World {
    let now = Timestamp::from_second(1_795_276_800).unwrap();
    let world = fixture::world(fixture::troubled(now), now);
    fixture::write_log(&world.logs);
    let mut sink =
        world.logs.sink(&Dn::from_static("root.kubernetes.controlplane.etcd"), Format::Json);
    sink.push(b"this is no json\n");
    // One that fell behind: what it missed stays counted when it is gone.
    let mut late = world.logs.read(Query::all(Dn::ALL)).unwrap().named("console");
    for n in 0..9000 {
        slog::info!(world.logs.logger(&Dn::from_static("root.storage")), "line {}", n);
    }
    late.next(20_000);
    world
}

#[test]
fn m12_every_family_is_there_in_openmetrics_that_a_strict_reader_accepts() {
    let mut world = world();
    // The tree of the fixture is invented and counts nothing: that comes from a real one.
    let supervisor = tree(&world.logs);
    let reader = world.logs.read(Query::all(Dn::ALL)).unwrap();
    let invented = supervisor.runtime().block_on(page(&world));
    world.sources.tree = (&supervisor).into();
    let real = supervisor.runtime().block_on(page(&world));
    drop(reader);
    supervisor.runtime().block_on(supervisor.shutdown());
    let (invented_families, families) = (read(&invented), read(&real));
    for (name, kind) in FAMILIES {
        let name = format!("hamlet_{name}");
        let family = families.get(&name).or_else(|| invented_families.get(&name));
        let family = family.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(family.kind, kind, "{name}");
    }
    let known: HashSet<String> = FAMILIES.iter().map(|(n, _)| format!("hamlet_{n}")).collect();
    let more: Vec<_> = families.keys().filter(|n| !known.contains(*n)).collect();
    assert_eq!(more, [""; 0], "families that nobody has named");
    let value = |name: &str, labels: &[(&str, &str)]| {
        let family = &families[name];
        let fits = |have: &Labels| {
            labels.iter().all(|(k, v)| have.get(*k).map(String::as_str) == Some(*v))
        };
        let found: Vec<f64> =
            family.samples.iter().filter(|(_, l, _)| fits(l)).map(|s| s.2).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0]
    };
    let transition = |from, to| {
        let labels = [("dn", "root.panics"), ("from", from), ("to", to)];
        value("hamlet_supervisor_dn_transitions", &labels) as u64
    };
    assert_eq!((transition("none", "new"), transition("new", "dead")), (1, 1));
    assert!(value("hamlet_panics", &[("where", "runnable")]) >= 1.0);
    assert!(value("hamlet_supervisor_events", &[("kind", "exited")]) >= 2.0);
    let unparsed = [("dn", "root.kubernetes.controlplane.etcd"), ("format", "json")];
    assert_eq!(value("hamlet_logtree_unparsed", &unparsed) as u64, 1);
    let exits = [("dn", "root.kubernetes.controlplane.scheduler"), ("how", "signal-9")];
    assert_eq!(value("hamlet_child_exits", &exits) as u64, 2);
    assert_eq!(value("hamlet_kmsg_lost", &[]) as u64, 2);
    assert_eq!(value("hamlet_dashboard_requests", &[("route", "none"), ("code", "404")]) as u64, 1);
    python(&invented);
    python(&real);
}

#[test]
#[should_panic(expected = "is not in one piece")]
fn the_reader_of_this_test_is_strict_about_families() {
    read("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\na{x=\"1\"} 1\n# EOF\n");
}

#[test]
#[should_panic(expected = "in a counter")]
fn the_reader_of_this_test_is_strict_about_counters() {
    read("# TYPE a counter\na 1\n# EOF\n");
}

/// A second opinion, where Python has `prometheus_client`.
fn python(page: &str) {
    const CHECK: &str = "
import sys
try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
except ImportError:
    sys.exit(77)
print(len(list(parse(sys.stdin.read()))))";
    let python = Command::new("python3")
        .args(["-c", CHECK])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut python) = python else { return println!("no second opinion: there is no python3") };
    // A check that gave up early says why itself.
    let _ = std::io::Write::write_all(&mut python.stdin.take().unwrap(), page.as_bytes());
    let output = python.wait_with_output().unwrap();
    match output.status.code() {
        Some(77) => println!("no second opinion: Python has no prometheus_client"),
        code => assert_eq!(code, Some(0), "{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn m12_series_vanish_with_their_node() {
    let world = world();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let gone = "root.kubernetes.worker.provisioner";
    let counted = |page: &str| -> HashMap<String, usize> {
        let families = read(page);
        let of = |f: &Family| {
            f.samples.iter().filter(|(_, l, _)| l.get("dn").is_some_and(|d| d == gone)).count()
        };
        families
            .iter()
            .filter(|(n, _)| n.contains("supervisor_dn"))
            .map(|(n, f)| (n.clone(), of(f)))
            .collect()
    };
    assert!(counted(&runtime.block_on(page(&world))).values().any(|n| *n > 0));
    world.tree.send_modify(|tree| {
        let tree = std::sync::Arc::make_mut(tree);
        tree.nodes.retain(|n| n.dn.as_str() != gone);
    });
    assert!(counted(&runtime.block_on(page(&world))).values().all(|n| *n == 0));
}
