//! Every path of the node, as types, and the one atomic file write.
//!
//! Purpose: the tree is declared once ([`layout`]); a service receives the typed
//! directory it owns and nothing else. What lies on the data disk exists as a value only
//! after [`Unmounted::mount`] or [`Unmounted::attach`].
//!
//! Invariants: an undeclared path is not expressible; directories are created at every
//! start; a file is replaced as a whole or not at all.
//!
//! Must not know: who uses a directory, volumes, Kubernetes.

mod bytes;
mod data;
mod dir;
mod disk;
pub mod layout;
mod root;

#[cfg(feature = "testing")]
pub mod testing;

pub use bytes::Bytes;
pub use data::{
    Data, DataVolumeStateDirectory, DataVolumesDirectory, KUBELET_ROOT, Kubelet, Kubernetes,
    MountDataError, Node, VAR_LOG,
};
pub use dir::{Dir, File, LayoutError, ReadError, WriteError};
pub use disk::{
    BlockDevice, DataDisk, DataDiskError, Finding, LABEL, MkfsPlan, Preparation, judge,
};
pub use root::{Ephemeral, Esp, Root, Run, RunEtc, Unmounted};
