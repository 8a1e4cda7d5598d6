//! Errors of the calls: one enum per RPC, and one table each from its variants to a code.
//!
//! Codes are protocol: they steer the caller's retries (rule 12.5), so each is chosen per
//! RPC and no table has a catch-all. Displays never print a source; [`status`] writes the
//! whole chain, since the caller's log is where most people will look.

use csi_proto::csi;
use tonic::{Code, Status};
use volumes::{ExpandError, PublishError, StatsError, Trouble, VolumeId};

use crate::publish::{RangeError, RequestError};

/// Longest status message in bytes: it travels as an HTTP/2 header, percent-encoded, and
/// clients cut headers off at 8 KiB.
const MESSAGE_MAX: usize = 2048;

/// An error of a call.
pub(crate) trait RpcError: std::error::Error {
    /// The code for the caller.
    fn code(&self) -> Code;
}

/// The status of a failed call.
pub(crate) fn status<E: RpcError>(error: E) -> Status {
    let mut message = volumes::chain(&error);
    if message.len() > MESSAGE_MAX {
        let cut = (0..=MESSAGE_MAX).rev().find(|n| message.is_char_boundary(*n)).unwrap_or(0);
        message.truncate(cut);
        message.push('…');
    }
    Status::new(error.code(), message)
}

/// What every call may run into.
pub(crate) fn trouble_code(trouble: &Trouble) -> Code {
    match trouble {
        Trouble::Busy(_) => Code::Aborted,
        Trouble::Unavailable(_) => Code::Unavailable,
        Trouble::Step { .. } => Code::Internal,
        // Final for the caller: no retry makes this release support it.
        Trouble::Unsupported(_) => Code::InvalidArgument,
    }
}

/// Probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The engine does not do its work, and will not without help.
    #[error("the volume engine is degraded: {0}")]
    Unhealthy(String),
}

impl RpcError for ProbeError {
    fn code(&self) -> Code {
        match self {
            ProbeError::Unhealthy(_) => Code::FailedPrecondition,
        }
    }
}

/// NodePublishVolume.
#[derive(Debug, thiserror::Error)]
pub enum NodePublishVolumeError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(RequestError),
    /// The engine did not.
    #[error(transparent)]
    Engine(PublishError),
}

impl RpcError for NodePublishVolumeError {
    fn code(&self) -> Code {
        match self {
            NodePublishVolumeError::Request(_) => Code::InvalidArgument,
            NodePublishVolumeError::Engine(e) => match e {
                PublishError::NotFound(_) => Code::NotFound,
                PublishError::DataMissing(_) => Code::DataLoss,
                PublishError::InvalidTarget(_) => Code::InvalidArgument,
                PublishError::OtherFlags { .. } => Code::AlreadyExists,
                PublishError::Precondition(_) => Code::FailedPrecondition,
                PublishError::Foreign(_) => Code::FailedPrecondition,
                PublishError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

/// NodeUnpublishVolume.
#[derive(Debug, thiserror::Error)]
pub enum NodeUnpublishVolumeError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(RequestError),
    /// The engine did not.
    #[error(transparent)]
    Engine(PublishError),
}

impl NodeUnpublishVolumeError {
    /// Whether what was asked for is the case anyway: an unknown volume is not published.
    /// NOT_FOUND would keep its pod Terminating for ever (rule 11.4).
    pub(crate) fn is_done(&self) -> bool {
        matches!(
            self,
            NodeUnpublishVolumeError::Engine(
                PublishError::NotFound(_) | PublishError::DataMissing(_)
            )
        )
    }
}

impl RpcError for NodeUnpublishVolumeError {
    fn code(&self) -> Code {
        match self {
            NodeUnpublishVolumeError::Request(_) => Code::InvalidArgument,
            NodeUnpublishVolumeError::Engine(e) => match e {
                PublishError::InvalidTarget(_) => Code::InvalidArgument,
                // Not reached, see `is_done`; INTERNAL is what the caller retries.
                PublishError::NotFound(_) | PublishError::DataMissing(_) => Code::Internal,
                PublishError::OtherFlags { .. }
                | PublishError::Precondition(_)
                | PublishError::Foreign(_) => Code::Internal,
                PublishError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

/// NodeGetVolumeStats.
#[derive(Debug, thiserror::Error)]
pub enum NodeGetVolumeStatsError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(RequestError),
    /// No volume can be mounted at such a path.
    #[error("volume {0} is not published at this path: not a plain absolute path")]
    Nowhere(VolumeId),
    /// The engine has none.
    #[error(transparent)]
    Engine(StatsError),
}

impl RpcError for NodeGetVolumeStatsError {
    fn code(&self) -> Code {
        match self {
            NodeGetVolumeStatsError::Request(_) => Code::InvalidArgument,
            NodeGetVolumeStatsError::Nowhere(_) => Code::NotFound,
            NodeGetVolumeStatsError::Engine(e) => stats_code(e),
        }
    }
}

pub(crate) fn stats_code(error: &StatsError) -> Code {
    match error {
        StatsError::NotFound(_) => Code::NotFound,
        StatsError::Trouble(t) => trouble_code(t),
    }
}

/// NodeGetVolumeHealth.
#[derive(Debug, thiserror::Error)]
pub enum NodeGetVolumeHealthError {
    /// The configuration leaves this call out.
    #[error("NodeGetVolumeHealth is not enabled on this node")]
    NotEnabled,
    /// It cannot be acted on.
    #[error(transparent)]
    Request(RequestError),
    /// The engine knows nothing.
    #[error(transparent)]
    Engine(StatsError),
}

impl RpcError for NodeGetVolumeHealthError {
    fn code(&self) -> Code {
        match self {
            NodeGetVolumeHealthError::NotEnabled => Code::Unimplemented,
            NodeGetVolumeHealthError::Request(_) => Code::InvalidArgument,
            NodeGetVolumeHealthError::Engine(e) => stats_code(e),
        }
    }
}

/// NodeExpandVolume.
#[derive(Debug, thiserror::Error)]
pub enum NodeExpandVolumeError {
    /// It cannot be acted on.
    #[error(transparent)]
    Request(RequestError),
    /// The sizes make no sense.
    #[error(transparent)]
    Range(RangeError),
    /// No volume can be mounted at such a path.
    #[error("volume {0} is not published at this path: not a plain absolute path")]
    Nowhere(VolumeId),
    /// The engine does not find it there.
    #[error(transparent)]
    Lookup(StatsError),
    /// The controller's part of the expansion was not done; this call only re-asserts.
    #[error("volume {id} has {capacity} bytes: it has not been expanded to {required} yet")]
    NotExpanded {
        /// Which.
        id: VolumeId,
        /// Bytes it has.
        capacity: u64,
        /// Bytes asked for.
        required: u64,
    },
    /// The engine did not.
    #[error(transparent)]
    Engine(ExpandError),
}

impl RpcError for NodeExpandVolumeError {
    fn code(&self) -> Code {
        match self {
            NodeExpandVolumeError::Request(_) => Code::InvalidArgument,
            NodeExpandVolumeError::Range(_) => Code::OutOfRange,
            NodeExpandVolumeError::Nowhere(_) => Code::NotFound,
            NodeExpandVolumeError::Lookup(e) => stats_code(e),
            // Retried by the kubelet; FAILED_PRECONDITION would mean "while in use" to it.
            NodeExpandVolumeError::NotExpanded { .. } => Code::Internal,
            NodeExpandVolumeError::Engine(e) => match e {
                ExpandError::NotFound(_) => Code::NotFound,
                ExpandError::OutOfRange(_) => Code::OutOfRange,
                ExpandError::NoSpace { .. } => Code::ResourceExhausted,
                ExpandError::Trouble(t) => trouble_code(t),
            },
        }
    }
}

/// A call that no configuration of this driver serves.
pub(crate) fn not_served(call: &'static str) -> Status {
    Status::unimplemented(format!("{call} is not served by this driver"))
}

/// How bad a condition is, in the words of CSI (rule 11.7).
pub(crate) fn severity(kind: volumes::ConditionKind) -> csi::VolumeHealthErrorType {
    use volumes::ConditionKind as Kind;
    match kind {
        Kind::DataMissing | Kind::ImageTruncated => csi::VolumeHealthErrorType::DataLoss,
        Kind::DeviceDetached => csi::VolumeHealthErrorType::Inaccessible,
        Kind::QuotaEscaped
        | Kind::QuotaNotEnforced
        | Kind::ProjectIdShared
        | Kind::Unlimited
        | Kind::PurgeFailed => csi::VolumeHealthErrorType::Degraded,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn id() -> VolumeId {
        VolumeId::parse("pvc-1").expect("id")
    }

    fn troubles() -> [(Trouble, Code); 4] {
        let source = Arc::new(std::io::Error::other("disk on fire"));
        [
            (Trouble::Busy("create"), Code::Aborted),
            (Trouble::Unavailable("recovering".into()), Code::Unavailable),
            (Trouble::Step { step: "mount", id: "pvc-1".into(), source }, Code::Internal),
            (Trouble::Unsupported("block volumes"), Code::InvalidArgument),
        ]
    }

    #[test]
    fn c12_5_shared_causes_have_the_general_codes_in_every_call() {
        for (t, code) in troubles() {
            let t = || t.clone();
            for error in [
                &NodePublishVolumeError::Engine(PublishError::Trouble(t())) as &dyn RpcError,
                &NodeUnpublishVolumeError::Engine(PublishError::Trouble(t())),
                &NodeGetVolumeStatsError::Engine(StatsError::Trouble(t())),
                &NodeGetVolumeHealthError::Engine(StatsError::Trouble(t())),
                &NodeExpandVolumeError::Engine(ExpandError::Trouble(t())),
                &NodeExpandVolumeError::Lookup(StatsError::Trouble(t())),
            ] {
                assert_eq!(error.code(), code, "{error:?}");
            }
        }
    }

    #[test]
    fn c12_5_publish_codes_follow_the_table() {
        let code = |e| NodePublishVolumeError::Engine(e).code();
        assert_eq!(code(PublishError::NotFound(id())), Code::NotFound);
        assert_eq!(code(PublishError::DataMissing(id())), Code::DataLoss);
        assert_eq!(code(PublishError::InvalidTarget("x".into())), Code::InvalidArgument);
        assert_eq!(code(PublishError::Precondition("x".into())), Code::FailedPrecondition);
        assert_eq!(code(PublishError::Foreign("x".into())), Code::FailedPrecondition);
        let other = PublishError::OtherFlags { id: id(), target: "/t".into(), flags: "ro".into() };
        assert_eq!(code(other), Code::AlreadyExists);
    }

    #[test]
    fn c11_4_unpublish_has_no_code_that_keeps_a_pod_terminating_for_want_of_a_volume() {
        let error = NodeUnpublishVolumeError::Engine;
        assert!(error(PublishError::NotFound(id())).is_done());
        assert!(error(PublishError::DataMissing(id())).is_done());
        for e in [PublishError::Foreign("x".into()), PublishError::Precondition("busy".into())] {
            assert!(!error(e.clone()).is_done());
            assert_eq!(error(e).code(), Code::Internal);
        }
    }

    #[test]
    fn c12_5_the_message_tells_the_whole_chain_once_and_is_bounded() {
        let source = Arc::new(std::io::Error::other("disk on fire"));
        let t = Trouble::Step { step: "set limits", id: "pvc-1".into(), source };
        let text = status(NodePublishVolumeError::Engine(PublishError::Trouble(t)));
        assert_eq!(text.message(), "set limits of volume pvc-1 failed: disk on fire");
        let long = status(NodePublishVolumeError::Engine(PublishError::Foreign("ä".repeat(9999))));
        assert!(long.message().len() <= MESSAGE_MAX + '…'.len_utf8());
        assert!(long.message().ends_with("ä…"));
    }
}
