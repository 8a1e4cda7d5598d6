//! The QEMU harness: boots node images and talks to them, for `xtask` and for
//! the VM tests beside it.
//!
//! ```text
//! VmConfig ──qemu::arguments (pure)──▶ Vm ──serial──▶ Serial: markers, log file
//!                                      ├──hamlet.host──▶ HostChannel: JSON lines
//!                                      └──QMP──▶ Qmp: power, snapshots
//! ```
//! Blocking code on plain threads: a test is one thread that waits for events
//! (a line, an answer, an exit), each with a deadline.
//!
//! Invariants: a guest reaches nothing beyond this machine (`restrict=on`,
//! ports forwarded from 127.0.0.1 only); a [`Vm`] that goes out of scope, or whose
//! process dies in whatever way, leaves no QEMU behind.
//! Must not know: how an image is built.

mod channel;
mod cluster;
mod image_dir;
mod kvm;
mod ports;
mod qemu;
mod qmp;
mod rundir;
mod serial;
mod storage_node;
mod thaw;
mod vm;
mod wait;

pub use crate::channel::{ChannelError, HostChannel};
pub use crate::cluster::{API_PORT, Cluster, DASHBOARD_PORT, Kubectl, write_kubeconfig};
pub use crate::image_dir::{IMAGE_VARIABLE, ImageDir};
pub use crate::kvm::{Accelerator, probe};
pub use crate::ports::{check_port, free_port};
pub use crate::qemu::{Cache, Disk, Format, Forward, VmConfig};
pub use crate::qmp::Qmp;
pub use crate::rundir::RunDir;
pub use crate::serial::Serial;
pub use crate::storage_node::{Quota, StorageNode, Written};
pub use crate::thaw::thaw;
pub use crate::vm::{DataDisk, Ending, Vm, create_raw_disk};
pub use crate::wait::{PATIENCE, eventually};
