//! Errors of the Controller calls and their codes (rule 12.5): one enum per call, one
//! exhaustive table each.

use tonic::Code;
use volumes::{CreateError, DeleteError, ExpandError, SnapshotError, StatsError, Trouble};

use crate::create::{MakeError, PageError};
use crate::error::{RpcError, stats_code, trouble_code};
use crate::publish::RequestError;

/// CreateVolume.
#[derive(Debug, thiserror::Error)]
pub enum CreateVolumeError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(MakeError),
    /// The engine did not.
    #[error(transparent)]
    Engine(CreateError),
}

fn make_code(e: &MakeError) -> Code {
    match e {
        MakeError::Request(_)
        | MakeError::Params(_)
        | MakeError::Capability(_)
        | MakeError::Mutable => Code::InvalidArgument,
        MakeError::Range(_) => Code::OutOfRange,
        // Another node may be in it: only this code makes the scheduler try one.
        MakeError::Topology(_) => Code::ResourceExhausted,
    }
}

impl RpcError for CreateVolumeError {
    fn code(&self) -> Code {
        match self {
            CreateVolumeError::Request(e) => make_code(e),
            CreateVolumeError::Engine(e) => match e {
                CreateError::InvalidName(_) | CreateError::InvalidParameters(_) => {
                    Code::InvalidArgument
                }
                CreateError::OutOfRange(_) => Code::OutOfRange,
                CreateError::AlreadyExists { .. } | CreateError::HoldsData(_) => {
                    Code::AlreadyExists
                }
                CreateError::SourceNotFound(_) => Code::NotFound,
                CreateError::NoSpace { .. } => Code::ResourceExhausted,
                CreateError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

/// DeleteVolume and DeleteSnapshot.
#[derive(Debug, thiserror::Error)]
pub enum DeleteObjectError {
    /// No id is given. One outside the grammar names nothing, which is success.
    #[error(transparent)]
    Request(RequestError),
    /// The engine did not.
    #[error(transparent)]
    Engine(DeleteError),
}

impl RpcError for DeleteObjectError {
    fn code(&self) -> Code {
        match self {
            DeleteObjectError::Request(_) => Code::InvalidArgument,
            DeleteObjectError::Engine(e) => match e {
                DeleteError::Published { .. } => Code::FailedPrecondition,
                DeleteError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

/// ValidateVolumeCapabilities and ControllerGetVolume.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(RequestError),
    /// No such volume.
    #[error("volume {0:?} does not exist")]
    NotFound(String),
    /// The engine does not answer.
    #[error(transparent)]
    Engine(Trouble),
}

impl RpcError for LookupError {
    fn code(&self) -> Code {
        match self {
            LookupError::Request(_) => Code::InvalidArgument,
            LookupError::NotFound(_) => Code::NotFound,
            LookupError::Engine(t) => trouble_code(t),
        }
    }
}

/// ControllerGetVolumeHealth.
#[derive(Debug, thiserror::Error)]
pub enum GetHealthError {
    /// The configuration leaves this call out.
    #[error("the VolumeHealth calls are not enabled on this node")]
    NotEnabled,
    /// It cannot be acted on, or there is no such volume.
    #[error(transparent)]
    Lookup(LookupError),
    /// The engine knows nothing.
    #[error(transparent)]
    Engine(StatsError),
}

impl RpcError for GetHealthError {
    fn code(&self) -> Code {
        match self {
            GetHealthError::NotEnabled => Code::Unimplemented,
            GetHealthError::Lookup(e) => e.code(),
            GetHealthError::Engine(e) => stats_code(e),
        }
    }
}

/// ListVolumes, ListSnapshots, ControllerListVolumeHealth.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The configuration leaves this call out.
    #[error("the VolumeHealth calls are not enabled on this node")]
    NotEnabled,
    /// There is no such page.
    #[error(transparent)]
    Page(PageError),
    /// The engine does not answer.
    #[error(transparent)]
    Engine(Trouble),
}

impl RpcError for ListError {
    fn code(&self) -> Code {
        match self {
            ListError::NotEnabled => Code::Unimplemented,
            ListError::Page(PageError::Token) => Code::Aborted,
            ListError::Page(PageError::Negative) => Code::InvalidArgument,
            ListError::Engine(t) => trouble_code(t),
        }
    }
}

/// ControllerExpandVolume.
#[derive(Debug, thiserror::Error)]
pub enum ExpandVolumeError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(MakeError),
    /// No such volume.
    #[error("volume {0:?} does not exist")]
    NotFound(String),
    /// The engine did not.
    #[error(transparent)]
    Engine(ExpandError),
}

impl RpcError for ExpandVolumeError {
    fn code(&self) -> Code {
        match self {
            ExpandVolumeError::Request(e) => make_code(e),
            ExpandVolumeError::NotFound(_) => Code::NotFound,
            ExpandVolumeError::Engine(e) => match e {
                ExpandError::NotFound(_) => Code::NotFound,
                ExpandError::OutOfRange(_) => Code::OutOfRange,
                ExpandError::NoSpace { .. } => Code::ResourceExhausted,
                ExpandError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

/// CreateSnapshot.
#[derive(Debug, thiserror::Error)]
pub enum CreateSnapshotError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(MakeError),
    /// The source cannot exist.
    #[error("volume {0:?} does not exist")]
    NotFound(String),
    /// The engine did not.
    #[error(transparent)]
    Engine(SnapshotError),
}

impl RpcError for CreateSnapshotError {
    fn code(&self) -> Code {
        match self {
            CreateSnapshotError::Request(e) => make_code(e),
            CreateSnapshotError::NotFound(_) => Code::NotFound,
            CreateSnapshotError::Engine(e) => match e {
                SnapshotError::InvalidName(_) => Code::InvalidArgument,
                SnapshotError::SourceNotFound(_) => Code::NotFound,
                SnapshotError::AlreadyExists { .. } => Code::AlreadyExists,
                SnapshotError::NoSpace { .. } => Code::ResourceExhausted,
                SnapshotError::Inconsistent(_) => Code::Aborted,
                SnapshotError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use volumes::{Bytes, SnapshotId, VolumeId};

    use super::*;

    fn id() -> VolumeId {
        VolumeId::parse("pvc-1").expect("id")
    }

    #[test]
    fn c12_5_create_codes_follow_the_table() {
        let code = |e| CreateVolumeError::Engine(e).code();
        let full = CreateError::NoSpace { wanted: Bytes(2), available: Bytes(1) };
        assert_eq!(code(full), Code::ResourceExhausted);
        let differs = CreateError::AlreadyExists { id: id(), difference: "size".into() };
        assert_eq!(code(differs), Code::AlreadyExists);
        assert_eq!(code(CreateError::HoldsData(id())), Code::AlreadyExists);
        assert_eq!(code(CreateError::SourceNotFound("s".into())), Code::NotFound);
        assert_eq!(code(CreateError::OutOfRange("x".into())), Code::OutOfRange);
        assert_eq!(code(CreateError::InvalidName("x".into())), Code::InvalidArgument);
        assert_eq!(code(CreateError::InvalidParameters("x".into())), Code::InvalidArgument);
        assert_eq!(code(CreateError::Trouble(Trouble::Busy("delete"))), Code::Aborted);
        let elsewhere = CreateVolumeError::Request(MakeError::Topology("n0".into()));
        assert_eq!(elsewhere.code(), Code::ResourceExhausted);
    }

    #[test]
    fn c12_5_the_other_controller_codes_follow_the_table() {
        let published = DeleteError::Published { id: id(), target: "/t".into() };
        assert_eq!(DeleteObjectError::Engine(published).code(), Code::FailedPrecondition);
        assert_eq!(LookupError::NotFound("x".into()).code(), Code::NotFound);
        assert_eq!(ListError::Page(PageError::Token).code(), Code::Aborted);
        assert_eq!(ListError::Page(PageError::Negative).code(), Code::InvalidArgument);
        assert_eq!(ListError::NotEnabled.code(), Code::Unimplemented);
        let down = || Trouble::Unavailable("x".into());
        assert_eq!(ListError::Engine(down()).code(), Code::Unavailable);
        let expand = |e| ExpandVolumeError::Engine(e).code();
        assert_eq!(expand(ExpandError::NotFound(id())), Code::NotFound);
        assert_eq!(expand(ExpandError::OutOfRange("x".into())), Code::OutOfRange);
        let full = ExpandError::NoSpace { wanted: Bytes(2), available: Bytes(1) };
        assert_eq!(expand(full), Code::ResourceExhausted);
        let snap = |e| CreateSnapshotError::Engine(e).code();
        let other = SnapshotId::parse("snap-1").expect("id");
        assert_eq!(snap(SnapshotError::SourceNotFound(id())), Code::NotFound);
        let taken = SnapshotError::AlreadyExists { id: other, source_volume: id() };
        assert_eq!(snap(taken), Code::AlreadyExists);
        let full = SnapshotError::NoSpace { wanted: Bytes(2), available: Bytes(1) };
        assert_eq!(snap(full), Code::ResourceExhausted);
        assert_eq!(snap(SnapshotError::Inconsistent("no freezer".into())), Code::Aborted);
        assert_eq!(snap(SnapshotError::Trouble(down())), Code::Unavailable);
    }
}
