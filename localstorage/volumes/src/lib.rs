//! The volume engine: makes, grows, publishes, deletes and repairs node-local volumes,
//! and survives any crash.
//!
//! Purpose: a *directory volume* is an XFS directory `<data>/volumes/<VolumeId>` with a
//! project quota. Its record is in `<data>/volume-state/registry.redb`, a copy of the
//! record is an xattr of the directory, so either can be lost.
//!
//! Owner: one task per incarnation of [`EngineRunnable`] decides (`plan` is pure) and
//! commits; steps run on a bounded pool of blocking jobs.
//!
//! Invariants: no volume without its limit; no data deleted unasked; no answer before it
//! is durable; per volume one operation at a time; published state is never stored, it is
//! read from the mount table.
//!
//! Must not know: Kubernetes, CSI, gRPC, or where `/data` is.
//!
//! A *block volume* is an image file at the same place, published through a loop device. A
//! *snapshot* is an entry of `<data>/volume-state/snapshots` whose files share their extents
//! with the source; inside the engine it is an object like a volume.
//!
//! Not supported by this release, and answered so: verified wipe; stopping the writers of a
//! directory while it is copied.

mod commit;
mod copy;
mod disk;
mod engine;
mod error;
mod faults;
mod id;
mod image;
mod ledger;
mod metrics;
mod mounting;
mod owner;
mod params;
mod plan;
mod pool;
mod record;
mod recover;
mod registry;
mod targets;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trash;
mod types;

pub use engine::{EngineConfig, EngineRunnable, Seams, VolumeDirs, VolumeEngine};
pub use error::{
    CreateError, DeleteError, ExpandError, PublishError, SnapshotError, StatsError, TagError,
    Trouble, chain,
};
#[cfg(feature = "faults")]
pub use faults::FaultHook;
pub use faults::Faults;
pub use id::{NameError, SnapshotId, VolumeId, VolumeIdError};
pub use metrics::VolumeMetrics;
pub use params::{
    Consistency, FlagError, InodePolicy, ParamError, Params, Wipe, parse_mount_flags, parse_params,
};
pub use types::{
    AccessMode, Atime, Bytes, CapacityRange, CapacityView, Condition, ConditionKind, ContentSource,
    CreateSnapshot, CreateVolume, EnginePhase, EngineStatus, Expanded, Inodes, KnownHandles,
    MountAttr, OrphanReport, OwnerTag, Publish, Published, RecoveryReport, RunningOperation,
    Snapshot, Stats, StatsUsage, Stored, StoredState, TagTooLong, Unpublish, Volume, VolumeKind,
    VolumeSummary, kind_name,
};
