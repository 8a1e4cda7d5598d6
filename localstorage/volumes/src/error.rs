//! Errors: one enum per operation; the causes they share are [`Trouble`].
//!
//! Invariants: Display never prints a source (see [`chain`] for that); errors are `Clone`,
//! because requests that joined one operation all get its answer.

use std::sync::Arc;

use crate::id::{SnapshotId, VolumeId};
use crate::types::Bytes;

/// What any operation can run into.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Trouble {
    /// Another operation on the same volume runs. Retry.
    #[error("another operation ({0}) is running on this volume")]
    Busy(&'static str),
    /// No incarnation serves now, the queue is full, or the registry cannot be written. Retry.
    #[error("the volume engine is unavailable: {0}")]
    Unavailable(String),
    /// A step failed; everything was left so that a retry or the next start continues.
    #[error("{step} of volume {id} failed")]
    Step {
        /// Which step of the protocol (`create.c3 set limits`).
        step: &'static str,
        /// Which volume.
        id: String,
        /// Why.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Not supported by this release.
    #[error("UNSUPPORTED: {0}")]
    Unsupported(&'static str),
}

impl Trouble {
    /// Whether the same request may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Trouble::Busy(_) | Trouble::Unavailable(_) | Trouble::Step { .. } => true,
            Trouble::Unsupported(_) => false,
        }
    }
}

/// Why a volume was not created.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CreateError {
    /// The name cannot be one.
    #[error("invalid volume name: {0}")]
    InvalidName(String),
    /// The parameters do not fit together.
    #[error("invalid parameters: {0}")]
    InvalidParameters(String),
    /// Negative, above the limit, or rounding past it.
    #[error("the requested capacity is out of range: {0}")]
    OutOfRange(String),
    /// The name is taken by a volume that differs.
    #[error("volume {id} exists and differs: {difference}")]
    AlreadyExists {
        /// Which.
        id: VolumeId,
        /// In what.
        difference: String,
    },
    /// There is an entry of that name which the engine did not make.
    #[error("volume {0} already holds data")]
    HoldsData(VolumeId),
    /// The snapshot or volume to copy from does not exist.
    #[error("content source {0:?} does not exist")]
    SourceNotFound(String),
    /// It does not fit, now or ever.
    #[error("no space for {wanted} bytes: {available} bytes are available")]
    NoSpace {
        /// Asked for.
        wanted: Bytes,
        /// Left.
        available: Bytes,
    },
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// Why a snapshot was not made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SnapshotError {
    /// The name cannot be one.
    #[error("invalid snapshot name: {0}")]
    InvalidName(String),
    /// No such volume.
    #[error("volume {0} does not exist")]
    SourceNotFound(VolumeId),
    /// The name is taken by a snapshot of another volume.
    #[error("snapshot {id} exists and is one of volume {source_volume}")]
    AlreadyExists {
        /// Which.
        id: SnapshotId,
        /// Of what.
        source_volume: VolumeId,
    },
    /// What it would pin does not fit.
    #[error("no space for {wanted} bytes: {available} bytes are available")]
    NoSpace {
        /// To pin.
        wanted: Bytes,
        /// Left.
        available: Bytes,
    },
    /// `consistency: require`, and the writers could not be stopped.
    #[error("no consistent cut: {0}")]
    Inconsistent(String),
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// Why a volume was not deleted. An unknown volume is a success.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeleteError {
    /// It is mounted.
    #[error("volume {id} is published at {target}")]
    Published {
        /// Which.
        id: VolumeId,
        /// One of its targets.
        target: String,
    },
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// Why a volume was not expanded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExpandError {
    /// No such volume.
    #[error("volume {0} does not exist")]
    NotFound(VolumeId),
    /// More than the disk could ever hold, or the limit is below the current size.
    #[error("the requested capacity is out of range: {0}")]
    OutOfRange(String),
    /// It does not fit now.
    #[error("no space for {wanted} more bytes: {available} bytes are available")]
    NoSpace {
        /// Additional bytes.
        wanted: Bytes,
        /// Left.
        available: Bytes,
    },
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// Why a volume was not published or unpublished.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// No such volume.
    #[error("volume {0} does not exist")]
    NotFound(VolumeId),
    /// The record is there, the data is not.
    #[error("the data of volume {0} is missing")]
    DataMissing(VolumeId),
    /// The path cannot be a target.
    #[error("invalid target path: {0}")]
    InvalidTarget(String),
    /// Mounted there with other flags.
    #[error("volume {id} is already published at {target} with other flags: {flags}")]
    OtherFlags {
        /// Which.
        id: VolumeId,
        /// Where.
        target: String,
        /// The flags found.
        flags: String,
    },
    /// Something else is there, another target exists, or the mode is impossible.
    #[error("{0}")]
    Precondition(String),
    /// Unpublish left something in place that is not ours.
    #[error("{0}")]
    Foreign(String),
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// Why there are no statistics.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StatsError {
    /// No such volume, or it is not mounted at this path.
    #[error("volume {0} is not published at this path")]
    NotFound(VolumeId),
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// Why a tag was not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TagError {
    /// No such volume.
    #[error("volume {0} does not exist")]
    NotFound(VolumeId),
    /// Shared causes.
    #[error(transparent)]
    Trouble(Trouble),
}

/// An error with all its sources, outermost first, separated by `: `.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut at = error.source();
    while let Some(e) = at {
        out.push_str(": ");
        out.push_str(&e.to_string());
        at = e.source();
    }
    out
}
