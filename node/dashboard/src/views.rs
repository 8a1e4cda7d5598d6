//! What the node tells the dashboard about its volumes and itself.
//!
//! Purpose: plain data, filled by `node` and sent over `watch`, so that the dashboard knows neither
//! storage nor Kubernetes. Every type is `Default`: what a node does not know yet stays empty, and
//! the pages say so instead of failing. Pure. Must not know: where a value comes from.
//!
//! Fields are only ever added: the JSON of these types is the public API (rule W8).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

/// All volumes of the node and the space they live in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VolumesView {
    /// Space of the data disk.
    pub capacity: Capacity,
    /// One element a volume, in the order they are shown.
    pub volumes: Vec<VolumeView>,
}

/// How the data disk's space is divided, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// The whole file system.
    pub total_bytes: u64,
    /// Kept free for the node itself.
    pub reserve_bytes: u64,
    /// Used by things that are not volumes (etcd, images, logs).
    pub other_bytes: u64,
    /// Promised to volumes: the sum of their limits.
    pub committed_bytes: u64,
    /// What new volumes can still get.
    pub available_bytes: u64,
}

/// One volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VolumeView {
    /// Identity in the engine, and the last part of `/volumes/<id>`.
    pub id: String,
    /// `namespace/name` of the claim, if it serves one.
    pub claim: Option<String>,
    /// Name of the PersistentVolume, if there is one.
    pub pv: Option<String>,
    /// What it is: `directory`, `block`.
    pub kind: String,
    /// Limit the kernel enforces; `None` without one.
    pub limit_bytes: Option<u64>,
    /// Bytes in use, by the kernel's own count.
    pub used_bytes: u64,
    /// Limit of files and directories; `None` without one.
    pub inodes_limit: Option<u64>,
    /// Files and directories in use.
    pub inodes_used: u64,
    /// Where it is in its life, as a word: `ready`, `creating`, `trashed`.
    pub state: String,
    /// What is odd about it.
    pub conditions: Vec<VolumeCondition>,
    /// Where it is mounted now: pods or paths.
    pub published: Vec<String>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// How its use went, oldest first; for charts only.
    #[serde(skip)]
    pub history: Vec<UsePoint>,
}

/// How much was in use at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsePoint {
    /// When.
    pub at: Timestamp,
    /// How much.
    pub used_bytes: u64,
}

/// Something odd about a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VolumeCondition {
    /// CamelCase word.
    pub kind: String,
    /// A sentence for people.
    pub message: String,
}

/// The node itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeView {
    /// Name of the node in its cluster.
    pub node_name: String,
    /// Version of Hamlet.
    pub version: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Identity of this boot; part of every stream position.
    pub boot_id: String,
    /// When PID 1 began; the uptime that pages show is counted from it.
    pub booted: Option<Timestamp>,
    /// What bring-up reached, in order.
    pub phases: Vec<Phase>,
    /// What is mounted where.
    pub mounts: Vec<Mount>,
    /// Memory of the machine and of PID 1.
    pub memory: Memory,
    /// How the memory in use went, oldest first; for charts only.
    #[serde(skip)]
    pub memory_history: Vec<UsePoint>,
    /// Disks of the machine.
    pub disks: Vec<Disk>,
    /// Pressure stall figures.
    pub pressure: Vec<Pressure>,
    /// Addresses of the node, as text.
    pub addresses: Vec<String>,
    /// Conditions of the Kubernetes node object; empty while the API cannot be asked.
    pub conditions: Vec<NodeCondition>,
    /// How the last boots ended, newest first.
    pub outcomes: Vec<BootOutcome>,
    /// Processes reaped that no Runnable had started.
    pub orphans_reaped: u64,
    /// Kernel messages overwritten before they were read.
    pub kmsg_lost: u64,
    /// Ends of child processes, by service and by how they ended.
    pub child_exits: Vec<ChildExits>,
    /// The stage of an orderly shutdown that is going on, as a sentence.
    pub shutdown: Option<String>,
    /// Versions of what runs on the node, by name (`kubernetes`, `containerd`).
    pub components: BTreeMap<String, String>,
}

/// How often a child process of one service ended so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ChildExits {
    /// Whose.
    pub dn: String,
    /// `exit-<code>`, `signal-<number>`; `killed` where its owner was aborted and took it along.
    pub how: String,
    /// How often.
    pub count: u64,
}

/// One step of bring-up.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Its word in the marker line: `mounted`, `tree`, `node-ready`.
    pub name: String,
    /// Seconds from power-on until it was reached.
    pub uptime_s: f64,
}

/// One mounted file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Device or source.
    pub source: String,
    /// Where.
    pub target: String,
    /// Type of the file system.
    pub fs_type: String,
    /// Its options.
    pub options: String,
    /// Size, where it has one.
    pub total_bytes: Option<u64>,
    /// Bytes in use, where it has a size.
    pub used_bytes: Option<u64>,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Of the machine.
    pub total_bytes: u64,
    /// What new work could get without swapping.
    pub available_bytes: u64,
    /// Resident set of PID 1.
    pub rss_self_bytes: u64,
}

/// One disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// Kernel name: `vda`.
    pub name: String,
    /// Serial number.
    pub serial: String,
    /// Its size.
    pub size_bytes: u64,
    /// What the node uses it for: `root`, `data`.
    pub role: String,
}

/// Share of time in which work waited for a resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// `cpu`, `memory` or `io`.
    pub resource: String,
    /// Per cent of the last 10 s in which some task waited.
    pub some_avg10: f64,
    /// Per cent of the last 10 s in which all tasks waited.
    pub full_avg10: f64,
}

/// One condition of the Kubernetes node object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeCondition {
    /// `Ready`, `MemoryPressure`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase word for the cause.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When the status changed last.
    pub since: Option<Timestamp>,
}

impl NodeCondition {
    /// Whether the status is the one an operator wants: `True` for Ready, `False` for the rest.
    pub fn is_good(&self) -> bool {
        match self.kind.as_str() {
            "Ready" => self.status == "True",
            _ => self.status == "False",
        }
    }
}

/// How one boot ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BootOutcome {
    /// Which boot.
    pub boot_id: String,
    /// When it began.
    pub began: Option<Timestamp>,
    /// When it ended; `None` if nobody could write it down.
    pub ended: Option<Timestamp>,
    /// `reboot`, `poweroff`, `fatal`, `unclean`.
    pub outcome: String,
    /// Why.
    pub reason: String,
    /// Why, in words; empty where nobody could say.
    pub text: String,
    /// Whether the data was unmounted in order.
    pub clean: bool,
}
