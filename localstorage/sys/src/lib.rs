//! The system calls of the node: the only crate of the workspace with `unsafe`.
//!
//! Purpose: one thin function per kernel operation, file descriptors in and out,
//! and small traits (the *seams*) over the families that need root or XFS, so that
//! everything above can be tested against fakes.
//!
//! Invariants: EINTR is retried; every other errno comes back as a [`SysError`] with
//! the call's name and its object. No policy: what an errno means is decided above.
//!
//! Must not know: volumes, services, Kubernetes, or any path of the node.

mod attributes;
mod error;
mod filesystem;
mod loops;
mod mounts;
pub mod net;
mod quota;
pub mod reap;
pub mod signals;
pub mod spawn;
pub mod stdio;
pub mod walk;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use attributes::{Attributes, KernelAttributes};
pub use error::{Res, SysError};
pub use filesystem::{Extents, Filesystem, FsIdentity, KernelFilesystem, Space};
pub use loops::{KernelLoops, LoopNo, LoopOptions, LoopStatus, Loops};
pub use mounts::{
    Atime, KernelMounter, Mount, MountAttr, MountTable, Mounter, bind_plain, mount_filesystem,
    parse_mountinfo,
};
pub use quota::{
    KernelQuota, Limits, Project, ProjectId, ProjectIdError, Quota, QuotaState, Usage,
};
