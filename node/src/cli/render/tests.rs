//! Golden texts of every command, and what they must never contain.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::cli::model::{LogEntry, Node, Processes, Service, Tree, Volumes};

const NOW: i64 = 1_795_276_800; // 2026-11-21T16:00:00Z

fn style(width: Option<usize>) -> Style {
    Style { width, colour: false, now: Timestamp::from_second(NOW).unwrap() }
}

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn at(seconds_ago: i64) -> String {
    Timestamp::from_second(NOW - seconds_ago).unwrap().to_string()
}

fn service(dn: &str) -> Value {
    json!({
        "dn": dn, "state": "healthy", "phase": "running", "health": "ok", "reason": "",
        "since": at(8063), "starts": 1, "deaths": 0, "deaths_10min": 0,
    })
}

fn with(mut service: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        service[key] = value.clone();
    }
    service
}

fn dying() -> Value {
    with(
        service("root.kubernetes.worker.provisioner"),
        json!({
            "state": "dead", "phase": "backoff", "health": "restarting", "since": at(3),
            "reason": "panicked: index out of bounds\nsecond line", "starts": 3, "deaths": 3,
            "deaths_10min": 2, "next_start": at(-4),
            "last_death": { "time": at(3), "class": "panicked", "text": "panicked: index out of bounds\nat plan.rs:214:18 \u{1b}[2J" },
            "transitions": [
                { "time": at(60), "from": null, "to": "new", "phase": "running" },
                { "time": at(50), "from": "new", "to": "healthy", "phase": "running" },
                { "time": at(3), "from": "healthy", "to": "dead", "phase": "backoff" },
            ],
        }),
    )
}

fn sample() -> Tree {
    let child =
        json!({ "child": { "pid": 212, "cpu_ns": 5, "memory_bytes": 43_200_512, "oom_kills": 0 } });
    parse(json!({
        "verdict": "restarting", "verdict_dn": "root.kubernetes.worker.provisioner",
        "verdict_reason": "panicked: index out of bounds", "boot_finished": true,
        "nodes": [
            with(service("root"), json!({ "state": "done", "phase": "ended" })),
            with(service("root.dashboard"), json!({ "note": "listening on 0.0.0.0:7840" })),
            service("root.kubernetes"),
            service("root.kubernetes.controlplane"),
            with(service("root.kubernetes.controlplane.etcd"), child),
            service("root.kubernetes.worker"),
            dying(),
            with(service("root.kubernetes.worker.pods"), json!({ "note": "red \u{1b}[31m alert" })),
        ],
    }))
}

#[test]
fn c3_the_tree_is_drawn_with_state_health_age_starts_and_reasons() {
    insta::assert_snapshot!("tree", tree(&style(None), &sample(), None));
    let text = tree(&style(None), &sample(), Some("root.kubernetes.controlplane"));
    insta::assert_snapshot!("tree-below", text);
}

#[test]
fn c1_the_tree_fits_the_terminal() {
    let text = tree(&style(Some(70)), &sample(), None);
    insta::assert_snapshot!("tree-70", text);
    assert!(text.lines().all(|l| l.chars().count() <= 70), "{text}");
}

#[test]
fn c1_colour_is_beside_a_word_and_only_where_wanted() {
    assert!(!tree(&style(None), &sample(), None).contains('\x1b'));
    let text = tree(&Style { colour: true, ..style(None) }, &sample(), None);
    assert!(text.contains("\x1b[32mok\x1b[0m"), "{text}");
    assert!(text.contains("\x1b[33mrestarting\x1b[0m"), "{text}");
    // What a service says never reaches the terminal as it is.
    assert!(!text.contains("\x1b[31m alert"), "{text}");
}

#[test]
fn c3_health_names_who_is_not_well() {
    insta::assert_snapshot!("health", health(&style(None), &sample()));
}

#[test]
fn c1_the_last_words_are_cause_log_and_history() {
    let entry = |message: &str, level: Value| {
        let value = json!({
            "seq": 1, "dn": "root.kubernetes.worker.provisioner", "time": at(4), "level": level,
            "source": "plan.rs:210", "message": message, "fields": { "claim": "default/demo" },
        });
        parse::<LogEntry>(value).entry()
    };
    let said = [entry("claim seen", json!("info")), entry("two\nlines", json!(null))];
    let service: Service = parse(dying());
    let text = crash(&style(None), &service, &said);
    insta::assert_snapshot!("crash", text);
    assert!(!text.contains('\x1b'));
    let well: Service = parse(self::service("root.power"));
    assert!(crash(&style(None), &well, &[]).contains("It has not died since boot."));
}

#[test]
fn c1_volumes_show_use_of_limit_and_where() {
    let view: Volumes = parse(json!({
        "capacity": { "total_bytes": 1u64 << 34, "committed_bytes": 2u64 << 30, "available_bytes": 10u64 << 30 },
        "volumes": [
            { "id": "1f0c2a", "claim": "default/demo-data", "kind": "directory", "state": "ready",
              "limit_bytes": 64 << 20, "used_bytes": 64 << 20,
              "conditions": [{ "kind": "Full", "message": "x" }], "published": ["/a", "/b"] },
            { "id": "77aa01", "claim": null, "kind": "directory", "state": "trashed", "used_bytes": 5 << 20 },
        ],
    }));
    insta::assert_snapshot!("volumes", volumes(&style(None), &view));
    assert!(volumes(&style(None), &Volumes::default()).ends_with("no volumes\n"));
}

#[test]
fn c1_the_node_is_shown_as_far_as_it_is_known() {
    let view: Node = parse(json!({
        "node_name": "hamlet-0", "version": "0.1.0", "kernel": "6.12", "boot_id": "b-1", "booted": at(8094),
        "addresses": ["10.0.2.15/24"], "memory": { "total_bytes": 4u64 << 30, "available_bytes": 3u64 << 30, "rss_self_bytes": 21 << 20 },
        "pressure": [{ "resource": "cpu", "some_avg10": 3.4, "full_avg10": 0.1 }],
        "phases": [{ "name": "mounted", "uptime_s": 1.23 }, { "name": "node-ready", "uptime_s": 29.6 }],
        "components": { "containerd": "2.1.4" },
        "conditions": [{ "type": "Ready", "status": "True", "message": "kubelet is posting ready status" }],
        "outcomes": [{ "began": at(96_400), "outcome": "reboot", "reason": "host-channel", "clean": true }],
    }));
    insta::assert_snapshot!("node", node(&style(None), &view));
    assert!(node(&style(None), &Node::default()).starts_with("NODE"));
}

#[test]
fn c1_the_busiest_process_comes_first() {
    let look = |cpu: [u64; 2]| -> Processes {
        parse(json!({ "processes": [
            { "dn": "root.a", "pid": 10, "cpu_ns": cpu[0], "memory_bytes": 90 << 20, "oom_kills": 0 },
            { "dn": "root.b", "pid": 11, "cpu_ns": cpu[1], "memory_bytes": 10 << 20, "oom_kills": 2 },
        ] }))
    };
    let (before, after) =
        (look([5_000_000_000, 1_000_000_000]), look([5_000_000_000, 1_500_000_000]));
    insta::assert_snapshot!("top", top(&style(None), &before, &after, Duration::from_secs(1)));
}
