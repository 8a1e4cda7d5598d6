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
//! Not supported by this release, and answered so: block volumes, snapshots and clones,
//! verified wipe.

mod commit;
mod disk;
mod engine;
mod error;
mod faults;
mod id;
mod ledger;
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
mod types;

pub use engine::{EngineConfig, EngineRunnable, Seams, VolumeDirs, VolumeEngine};
pub use error::{
    CreateError, DeleteError, ExpandError, PublishError, StatsError, TagError, Trouble, chain,
};
#[cfg(feature = "faults")]
pub use faults::FaultHook;
pub use faults::Faults;
pub use id::{NameError, VolumeId, VolumeIdError};
pub use params::{
    Consistency, FlagError, InodePolicy, ParamError, Params, Wipe, parse_mount_flags, parse_params,
};
pub use types::{
    AccessMode, Atime, Bytes, CapacityRange, CapacityView, Condition, ConditionKind, ContentSource,
    CreateVolume, EnginePhase, EngineStatus, Expanded, Inodes, KnownHandles, MountAttr,
    OrphanReport, OwnerTag, Publish, Published, RecoveryReport, RunningOperation, Stats,
    StatsUsage, Stored, StoredState, TagTooLong, Unpublish, Volume, VolumeKind, VolumeSummary,
};
