//! What the node's JSON says, as far as the commands show it. Pure.
//!
//! Every field has a default: an older or newer node is shown as far as it goes. Must not know: commands.
use std::collections::BTreeMap;

use jiff::Timestamp;
use logtree::{Dn, Entry, Level};
use serde::Deserialize;

/// `/api/v1/tree`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Tree {
    /// How the node does.
    pub verdict: String,
    /// Who decided that.
    pub verdict_dn: Option<String>,
    /// And why.
    pub verdict_reason: String,
    /// Whether everything was started.
    pub boot_finished: bool,
    /// Whether the node goes down.
    pub shutting_down: bool,
    /// Its services.
    pub nodes: Vec<Service>,
}

/// One service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its path.
    pub dn: String,
    /// What it has done.
    pub state: String,
    /// What is being done with it.
    pub phase: String,
    /// How it does.
    pub health: String,
    /// Why it is not well.
    pub reason: String,
    /// Last change.
    pub since: Option<Timestamp>,
    /// Starts so far.
    pub starts: u64,
    /// Deaths so far.
    pub deaths: u64,
    /// Deaths of the last 10 minutes.
    pub deaths_10min: u64,
    /// When it is started again.
    pub next_start: Option<Timestamp>,
    /// What it does now.
    pub note: Option<String>,
    /// Its last death.
    pub last_death: Option<Death>,
    /// Its process.
    pub child: Option<Process>,
    /// Changes of state, oldest first; only where one service was asked for.
    pub transitions: Vec<Change>,
}

impl Service {
    /// Whether nothing needs to be said about it.
    pub fn is_well(&self) -> bool {
        self.health == "ok"
    }
}

/// A death.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Death {
    /// When.
    pub time: Option<Timestamp>,
    /// Of what.
    pub class: String,
    /// In words.
    pub text: String,
}

/// A process.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Whose; only in the list of all.
    pub dn: String,
    /// Its id.
    pub pid: i64,
    /// Processor time of its group.
    pub cpu_ns: u64,
    /// Memory of its group.
    pub memory_bytes: u64,
    /// Processes of it killed for want of memory.
    pub oom_kills: u64,
}

/// `/api/v1/processes`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Processes {
    /// All of them.
    pub processes: Vec<Process>,
}

/// One change of state.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Change {
    /// When.
    pub time: Option<Timestamp>,
    /// From.
    pub from: Option<String>,
    /// To.
    pub to: String,
    /// Phase after.
    pub phase: String,
}

/// `/api/v1/dns`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// All that are known.
    pub dns: Vec<String>,
}

/// `/api/v1/logs`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Logs {
    /// As they came, for whoever wants them as JSON.
    pub entries: Vec<serde_json::Value>,
    /// Where reading goes on.
    pub cursor: u64,
    /// Evicted before they could be read.
    pub missed: u64,
}

/// One entry.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LogEntry {
    seq: u64,
    dn: String,
    time: Option<Timestamp>,
    level: Option<String>,
    source: Option<String>,
    message: String,
    fields: serde_json::Map<String, serde_json::Value>,
}

impl LogEntry {
    /// The entry as the node itself had it, for the one code that makes lines of entries.
    pub fn entry(self) -> Entry {
        let ns = self.time.map_or(0, |t| i64::try_from(t.as_nanosecond()).unwrap_or(0));
        let text = |v: serde_json::Value| match v {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Entry {
            seq: self.seq,
            dn_seq: 0,
            dn: Dn::new(&self.dn).unwrap_or(Dn::ALL),
            wall_ns: ns,
            mono_ns: 0,
            level: self.level.and_then(|l| l.parse::<Level>().ok()),
            source: self.source,
            lines: self.message.split('\n').map(str::to_owned).collect(),
            fields: self.fields.into_iter().map(|(k, v)| (k, text(v))).collect(),
            original_len: 0,
        }
    }
}

/// `/api/v1/node`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name.
    pub node_name: String,
    /// Version of Hamlet.
    pub version: String,
    /// Release of the kernel.
    pub kernel: String,
    /// This boot.
    pub boot_id: String,
    /// Since when.
    pub booted: Option<Timestamp>,
    /// What bring-up reached.
    pub phases: Vec<Phase>,
    /// Memory.
    pub memory: Memory,
    /// Pressure.
    pub pressure: Vec<Pressure>,
    /// Addresses.
    pub addresses: Vec<String>,
    /// Conditions of the Kubernetes node.
    pub conditions: Vec<Condition>,
    /// How the last boots ended, newest first.
    pub outcomes: Vec<Outcome>,
    /// A shutdown that goes on.
    pub shutdown: Option<String>,
    /// What runs on it.
    pub components: BTreeMap<String, String>,
}

/// One step of bring-up.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// Its word.
    pub name: String,
    /// Seconds from power-on.
    pub uptime_s: f64,
}

/// Memory in bytes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// All.
    pub total_bytes: u64,
    /// What new work could get.
    pub available_bytes: u64,
    /// Of PID 1.
    pub rss_self_bytes: u64,
}

/// Waiting for a resource, in per cent of 10 s.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// Which.
    pub resource: String,
    /// Some task waited.
    pub some_avg10: f64,
}

/// A condition of the Kubernetes node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// Why.
    pub message: String,
}

/// How a boot ended.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// When it began.
    pub began: Option<Timestamp>,
    /// How it ended.
    pub outcome: String,
    /// Why.
    pub reason: String,
    /// Why, in words.
    pub text: String,
    /// Whether in order.
    pub clean: bool,
}

/// `/api/v1/volumes`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Volumes {
    /// Space of the disk.
    pub capacity: Capacity,
    /// All.
    pub volumes: Vec<Volume>,
}

/// How the data disk is divided, in bytes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Capacity {
    /// All.
    pub total_bytes: u64,
    /// Promised.
    pub committed_bytes: u64,
    /// Free for new volumes.
    pub available_bytes: u64,
}

/// One volume.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Its claim.
    pub claim: Option<String>,
    /// What it is.
    pub kind: String,
    /// Limit.
    pub limit_bytes: Option<u64>,
    /// Use.
    pub used_bytes: u64,
    /// Where it is in its life.
    pub state: String,
    /// What is odd.
    pub conditions: Vec<VolumeCondition>,
    /// Where it is mounted.
    pub published: Vec<String>,
}

/// Something odd about a volume.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct VolumeCondition {
    /// A word.
    pub kind: String,
    /// A sentence.
    pub message: String,
}
