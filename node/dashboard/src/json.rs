//! The JSON that programs get.
//!
//! Purpose: rule W8: snake_case, RFC 3339 with nanoseconds, DNs as text, fields only ever added.
//! These types are apart from the supervisor's and logtree's own, so that those can change
//! without changing the public API. Pure.

use logtree::Entry;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use supervisor::{Condition, NodeSnapshot, Phase, Snapshot, Transition};

use crate::text::{rfc3339, time};
use crate::views::NodeCondition;

/// `/api/v1/tree` and the event `state`.
#[derive(Serialize)]
pub(crate) struct Tree<'a> {
    verdict: &'static str,
    verdict_dn: Option<&'a str>,
    verdict_reason: &'a str,
    boot_finished: bool,
    shutting_down: bool,
    shutdown_stage: Option<u8>,
    nodes: Vec<Node<'a>>,
}

/// One node without its history.
#[derive(Serialize)]
pub(crate) struct Node<'a> {
    dn: &'a str,
    state: &'static str,
    phase: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    waits_for: &'a [logtree::Dn],
    health: &'static str,
    reason: &'a str,
    since: String,
    incarnation: u64,
    starts: u64,
    deaths: u64,
    deaths_10min: u32,
    next_start: Option<String>,
    note: Option<&'a str>,
    conditions: &'a [Condition],
    last_death: Option<Death<'a>>,
    child: Option<Process<'a>>,
    unit: u64,
    critical: bool,
    stop_stage: u8,
    console: &'static str,
}

/// `/api/v1/tree/<dn>`: one node with its history.
#[derive(Serialize)]
pub(crate) struct Detail<'a> {
    #[serde(flatten)]
    node: Node<'a>,
    starts_by_cause: Causes<'a>,
    transitions: Vec<Change<'a>>,
}

#[derive(Serialize)]
struct Death<'a> {
    time: String,
    class: &'static str,
    text: &'a str,
}

/// One child process, also in `/api/v1/processes`.
#[derive(Serialize)]
pub(crate) struct Process<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    dn: Option<&'a str>,
    pid: i32,
    cpu_ns: u64,
    memory_bytes: u64,
    oom_kills: u64,
}

/// One change of state, also in `/api/v1/transitions`.
#[derive(Serialize)]
pub(crate) struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    dn: Option<&'a str>,
    time: String,
    from: Option<&'static str>,
    to: &'static str,
    phase: &'static str,
}

/// `/api/v1/conditions`.
#[derive(Serialize)]
pub(crate) struct Conditions<'a> {
    pub(crate) services: Vec<OfService<'a>>,
    pub(crate) volumes: Vec<OfVolume<'a>>,
    pub(crate) node: &'a [NodeCondition],
}

/// A condition with whose it is.
#[derive(Serialize)]
pub(crate) struct OfService<'a> {
    pub(crate) dn: &'a str,
    #[serde(flatten)]
    pub(crate) condition: &'a Condition,
}

/// A condition of a volume.
#[derive(Serialize)]
pub(crate) struct OfVolume<'a> {
    pub(crate) volume: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) message: &'a str,
}

struct Causes<'a>(&'a NodeSnapshot);

impl Serialize for Causes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.starts_by_cause.iter().map(|(c, n)| (c.as_str(), n)))
    }
}

/// The whole tree.
pub(crate) fn tree(snapshot: &Snapshot) -> Tree<'_> {
    Tree {
        verdict: snapshot.verdict.as_str(),
        verdict_dn: snapshot.verdict_dn.as_ref().map(|dn| dn.as_str()),
        verdict_reason: &snapshot.verdict_reason,
        boot_finished: snapshot.boot_finished,
        shutting_down: snapshot.shutting_down,
        shutdown_stage: snapshot.shutdown_stage,
        nodes: snapshot.nodes.iter().map(|n| node(n)).collect(),
    }
}

fn node(n: &NodeSnapshot) -> Node<'_> {
    Node {
        dn: n.dn.as_str(),
        state: n.state.as_str(),
        phase: n.phase.as_str(),
        waits_for: match &n.phase {
            Phase::Waiting { dns } => dns,
            Phase::Running
            | Phase::Stopping
            | Phase::Backoff { .. }
            | Phase::Stuck
            | Phase::Ended => &[],
        },
        health: n.health.as_str(),
        reason: &n.reason,
        since: rfc3339(time(n.since)),
        incarnation: n.incarnation,
        starts: n.starts,
        deaths: n.deaths,
        deaths_10min: n.deaths_10min,
        next_start: n.next_start.map(|t| rfc3339(time(t))),
        note: n.note.as_deref(),
        conditions: &n.conditions,
        last_death: n.last_death.as_ref().map(|d| Death {
            time: rfc3339(time(d.at)),
            class: d.class.as_str(),
            text: &d.text,
        }),
        child: n.child.map(|c| process(None, c)),
        unit: n.unit,
        critical: n.critical,
        stop_stage: n.stop_stage,
        console: n.console.as_str(),
    }
}

/// One node with its history.
pub(crate) fn detail(n: &NodeSnapshot) -> Detail<'_> {
    Detail {
        node: node(n),
        starts_by_cause: Causes(n),
        transitions: n.transitions.iter().map(|t| change(None, t)).collect(),
    }
}

fn change<'a>(dn: Option<&'a str>, t: &Transition) -> Change<'a> {
    Change {
        dn,
        time: rfc3339(time(t.at)),
        from: t.from.map(supervisor::State::as_str),
        to: t.to.as_str(),
        phase: t.phase,
    }
}

fn process(dn: Option<&str>, c: supervisor::ChildStats) -> Process<'_> {
    Process {
        dn,
        pid: c.pid,
        cpu_ns: c.cpu_ns,
        memory_bytes: c.memory_bytes,
        oom_kills: c.oom_kills,
    }
}

/// All remembered changes of state, oldest first.
pub(crate) fn transitions(snapshot: &Snapshot) -> Vec<Change<'_>> {
    let mut all: Vec<_> =
        snapshot.nodes.iter().flat_map(|n| n.transitions.iter().map(move |t| (n, t))).collect();
    all.sort_by_key(|(_, t)| t.at);
    all.into_iter().map(|(n, t)| change(Some(n.dn.as_str()), t)).collect()
}

/// All child processes.
pub(crate) fn processes(snapshot: &Snapshot) -> Vec<Process<'_>> {
    let of = |n: &'_ std::sync::Arc<NodeSnapshot>| n.child;
    snapshot.nodes.iter().filter_map(|n| of(n).map(|c| process(Some(n.dn.as_str()), c))).collect()
}

/// One log entry.
pub(crate) struct LogEntry<'a>(pub(crate) &'a Entry);

impl Serialize for LogEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = self.0;
        let message = entry.message();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("seq", &entry.seq)?;
        map.serialize_entry("dn", &entry.dn)?;
        map.serialize_entry("dn_seq", &entry.dn_seq)?;
        map.serialize_entry("time", &rfc3339(time(entry.wall_ns)))?;
        map.serialize_entry("level", &entry.level)?;
        map.serialize_entry("source", &entry.source)?;
        map.serialize_entry("message", &message)?;
        map.serialize_entry("fields", &Fields(entry))?;
        if entry.original_len > message.len() {
            map.serialize_entry("original_len", &entry.original_len)?;
        }
        map.end()
    }
}

struct Fields<'a>(&'a Entry);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.fields.iter().map(|(k, v)| (k, v)))
    }
}

/// `/api/v1/logs`.
#[derive(Serialize)]
pub(crate) struct Logs<'a> {
    pub(crate) entries: Vec<LogEntry<'a>>,
    pub(crate) cursor: u64,
    pub(crate) missed: u64,
}
