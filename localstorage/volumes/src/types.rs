//! The values that cross the engine's border: requests, answers, views.
//!
//! Purpose: plain data without behaviour of its own. Invariant: everything that has a
//! grammar or a limit is a type with one fallible constructor.
//!
//! Must not know: Kubernetes, gRPC, how anything is done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::id::{SnapshotId, VolumeId};
use crate::params::{Consistency, Params};

pub use localstorage::Bytes;
pub use nodesys::{Atime, MountAttr};

/// A number of inodes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Inodes(pub u64);

/// What a volume looks like to its user.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// A directory with a project quota (CSI `mount`, `volumeMode: Filesystem`).
    #[default]
    Filesystem,
    /// An image file with a loop device (CSI `block`, `volumeMode: Block`).
    Block,
}

/// A kind in a word, for messages.
pub fn kind_name(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Filesystem => "filesystem",
        VolumeKind::Block => "block",
    }
}

/// How many may use a volume at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AccessMode {
    /// CSI SINGLE_NODE_WRITER: one node; several targets are fine (rule 11.3).
    #[default]
    SingleNodeWriter,
    /// CSI SINGLE_NODE_SINGLE_WRITER: one target.
    SingleWriter,
    /// CSI SINGLE_NODE_MULTI_WRITER.
    MultiWriter,
    /// CSI SINGLE_NODE_READER_ONLY: mounted read-only.
    ReaderOnly,
    /// Any CSI MULTI_NODE_* mode: never possible here.
    MultiNode,
}

/// How large a volume should be. Both bounds are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapacityRange {
    /// At least; absent = 1 GiB, or the limit if that is smaller (rule 12.4).
    pub required: Option<Bytes>,
    /// At most.
    pub limit: Option<Bytes>,
}

/// Opaque text of the caller, kept with the volume in the same commit as the intent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerTag(String);

/// The tag is longer than [`OwnerTag::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an owner tag of {0} bytes exceeds {max}", max = OwnerTag::MAX)]
pub struct TagTooLong(pub usize);

impl OwnerTag {
    /// Longest tag in bytes.
    pub const MAX: usize = 4096;

    /// Checks the length.
    pub fn new(text: impl Into<String>) -> Result<OwnerTag, TagTooLong> {
        let text = text.into();
        if text.len() > OwnerTag::MAX { Err(TagTooLong(text.len())) } else { Ok(OwnerTag(text)) }
    }

    /// No tag: what a volume has whose registry was lost.
    pub fn none() -> OwnerTag {
        OwnerTag::default()
    }

    /// The text; empty = none.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where the first content of a volume comes from. The ids are the caller's text: one that
/// names nothing is answered so.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContentSource {
    /// A snapshot's id.
    Snapshot(String),
    /// A volume's id.
    Volume(String),
}

/// Make a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateVolume {
    /// The caller's name; an identical one addresses the same volume. See
    /// [`VolumeId::from_name`].
    pub name: String,
    /// Directory or block.
    pub kind: VolumeKind,
    /// Size.
    pub capacity: CapacityRange,
    /// From [`crate::parse_params`].
    pub params: Params,
    /// First content.
    pub source: Option<ContentSource>,
    /// Kept durably from the intent on.
    pub owner: OwnerTag,
}

/// Make a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSnapshot {
    /// The caller's name; an identical one addresses the same snapshot. See
    /// [`SnapshotId::from_name`].
    pub name: String,
    /// Of which volume.
    pub source: VolumeId,
    /// How a directory in use is cut (rule 10.3).
    pub consistency: Consistency,
}

/// A snapshot that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The caller's name.
    pub name: String,
    /// The volume it was made of, which need not exist any more.
    pub source: VolumeId,
    /// Directory or block, like its source.
    pub kind: VolumeKind,
    /// Capacity of the source at the cut: the least a restored volume must have.
    pub size: Bytes,
    /// Bytes it keeps from being used for anything else.
    pub pinned: Bytes,
    /// Time of the cut.
    pub created: SystemTime,
    /// Whether all of it is of one instant; else each file is of one.
    pub atomic: bool,
}

/// A volume that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its id, name of its entry.
    pub id: VolumeId,
    /// Directory or block.
    pub kind: VolumeKind,
    /// The capacity to report: the request, exactly.
    pub capacity: Bytes,
    /// The enforced byte limit (the capacity rounded up).
    pub limit: Bytes,
    /// The enforced inode limit.
    pub inodes: Inodes,
    /// Its project.
    pub project_id: u32,
}

/// Answer of an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// The capacity to report.
    pub capacity: Bytes,
    /// Whether NodeExpandVolume has something to do.
    pub node_expansion_required: bool,
}

/// Mount a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// Which.
    pub id: VolumeId,
    /// Where: absolute, checked by the engine (rule 11.1).
    pub target: PathBuf,
    /// What the caller expects the volume to be.
    pub kind: VolumeKind,
    /// From [`crate::parse_mount_flags`].
    pub attr: MountAttr,
    /// Read-only, whatever the mode says.
    pub read_only: bool,
    /// Who else may.
    pub access: AccessMode,
}

/// Unmount a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpublish {
    /// Which; need not exist.
    pub id: VolumeId,
    /// Where.
    pub target: PathBuf,
}

/// Use of one resource of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StatsUsage {
    /// The limit.
    pub total: u64,
    /// In use.
    pub used: u64,
    /// What can still be used.
    pub available: u64,
}

/// Use of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Bytes.
    pub bytes: StatsUsage,
    /// Inodes; `None` for a block volume.
    pub inodes: Option<StatsUsage>,
    /// What is wrong with it.
    pub conditions: Vec<Condition>,
}

/// Kinds of [`Condition`] (rule 11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ConditionKind {
    /// The entry is gone. Data loss.
    DataMissing,
    /// An image is shorter than its record says. Data loss.
    ImageTruncated,
    /// A device was attached to an image that is gone or was replaced.
    DeviceDetached,
    /// Root id, PROJINHERIT or limits were not those of the record.
    QuotaEscaped,
    /// The filesystem does not enforce project quota.
    QuotaNotEnforced,
    /// Two entries have one project id.
    ProjectIdShared,
    /// An adopted entry without limits.
    Unlimited,
    /// Purging its data failed and is retried.
    PurgeFailed,
}

/// Something wrong with a volume or the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// What.
    pub kind: ConditionKind,
    /// In words, for a human.
    pub message: String,
}

/// State of an object of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum StoredState {
    /// Intent committed, not finished.
    Creating,
    /// Usable.
    Ready,
    /// Deletion committed.
    Deleting,
    /// Out of `volumes`, being purged.
    Trashed,
    /// In `volumes` and not ours; never touched.
    Foreign,
    /// Adopted without a limit.
    Unlimited,
}

/// One object with its state and tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The id; for foreign entries `None`, see `entry`.
    pub id: Option<VolumeId>,
    /// Name of the entry on disk, lossily decoded.
    pub entry: String,
    /// The caller's name at creation.
    pub name: String,
    /// Directory or block.
    pub kind: VolumeKind,
    /// State.
    pub state: StoredState,
    /// Reported capacity.
    pub capacity: Bytes,
    /// Its project.
    pub project_id: u32,
    /// The caller's tag; none after a lost registry.
    pub owner: OwnerTag,
    /// Where its first content came from; none after a lost registry.
    pub source: Option<ContentSource>,
    /// What is wrong with it.
    pub conditions: Vec<Condition>,
}

/// The caller's list of handles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownHandles {
    /// The list is complete; an incomplete one only clears suspicions.
    pub complete: bool,
    /// The handles. Ungrammatical ones are none of ours.
    pub handles: BTreeSet<VolumeId>,
}

/// Both kinds of orphans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OrphanReport {
    /// Volumes nobody knows, with the time since they were first seen so.
    pub unknown_entries: Vec<(VolumeId, Duration)>,
    /// Handles nobody has.
    pub missing: Vec<VolumeId>,
}

/// Space, from the point of view of the next create (rule 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CapacityView {
    /// Of the filesystem.
    pub total: Bytes,
    /// Kept free.
    pub reserve: Bytes,
    /// Used by what is not a volume.
    pub other: Bytes,
    /// Promised to volumes.
    pub committed: Bytes,
    /// Left to promise; 0 while the engine is not healthy.
    pub available: Bytes,
    /// Largest volume that can be created now.
    pub max_volume: Bytes,
    /// Rises with each change.
    pub generation: u64,
}

/// Where volumes are mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Published {
    /// Targets by volume.
    pub targets: BTreeMap<VolumeId, BTreeSet<PathBuf>>,
}

/// What the engine is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub enum EnginePhase {
    /// No incarnation runs.
    #[default]
    Stopped,
    /// Opening the registry and recovering.
    Recovering,
    /// Serving.
    Ready,
    /// The registry cannot be written: mutations are refused.
    Degraded(String),
}

/// An operation under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningOperation {
    /// On which volume.
    pub volume: String,
    /// `create`, `delete`, …
    pub operation: &'static str,
    /// Since when.
    pub since: SystemTime,
}

/// What the last recovery did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RecoveryReport {
    /// How often by action (`completed`, `rolled_back`, `trashed`, `adopted`, `repaired`, …).
    pub actions: BTreeMap<&'static str, u64>,
    /// The registry was unreadable and is rebuilt.
    pub registry_rebuilt: bool,
}

/// The engine's state, for dashboards.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct EngineStatus {
    /// Phase.
    pub phase: EnginePhase,
    /// Operations under way.
    pub operations: Vec<RunningOperation>,
    /// Of this incarnation.
    pub recovery: RecoveryReport,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of snapshots.
    pub snapshot_count: usize,
    /// Items waiting to be purged.
    pub trash: usize,
    /// Whether snapshots and clones work on this disk.
    pub snapshots: bool,
}

/// A volume as a dashboard shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VolumeSummary {
    /// The id.
    pub id: String,
    /// The caller's name.
    pub name: String,
    /// Directory or block.
    pub kind: VolumeKind,
    /// State.
    pub state: StoredState,
    /// Reported capacity.
    pub capacity_bytes: u64,
    /// Enforced limit.
    pub limit_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inode limit.
    pub inode_limit: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Its project.
    pub project_id: u32,
    /// What is wrong with it.
    pub conditions: Vec<Condition>,
    /// Where it is mounted.
    pub targets: Vec<PathBuf>,
    /// The caller's tag.
    pub owner: String,
}
