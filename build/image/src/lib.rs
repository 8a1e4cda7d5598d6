//! The node image: what is in it, and how it is written.
//!
//! `layout` decides, as a pure function of a few facts, which path the image
//! holds, with which mode and from which origin. The executors turn a layout
//! into files: `erofs` (the read-only root disk), `initramfs` (newc cpio, zstd)
//! and `oci` (container image archives). `debian` fetches the kernel and the few
//! Debian programs, `elf` finds the shared libraries these need, `modules` the
//! kernel modules that belong together. `assemble` puts it all in one folder.
//!
//! Invariant: the same inputs give the same bytes. Nothing here reads the clock,
//! a random number or the order of a directory listing.
//! Must not know: QEMU, clusters, the command line of `xtask`.

mod assemble;
mod debian;
mod elf;
mod erofs;
mod initramfs;
mod layout;
mod modules;
mod oci;
mod run;

pub use crate::assemble::{Inputs, Manifest, assemble};
pub use crate::debian::{Debian, KernelFiles};
pub use crate::layout::{Entry, Facts, Kind, Layout, Origin, initramfs_layout, root_layout};
pub use crate::modules::{ModuleIndex, ModuleSet, NODE_MODULES, ROOT_DISK_MODULES};
pub use crate::run::{run, run_quiet};

/// Programs that come from Debian packages: the path in the image's `/usr/bin`,
/// and the places where a Debian machine may keep them.
pub const DEBIAN_PROGRAMS: &[(&str, &[&str])] = &[
    ("blkid", &["/usr/sbin/blkid", "/sbin/blkid"]),
    ("losetup", &["/usr/sbin/losetup", "/sbin/losetup"]),
    ("mkfs.xfs", &["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"]),
    ("mount", &["/usr/bin/mount", "/bin/mount"]),
    ("nft", &["/usr/sbin/nft", "/sbin/nft"]),
    ("umount", &["/usr/bin/umount", "/bin/umount"]),
    ("xfs_repair", &["/usr/sbin/xfs_repair", "/sbin/xfs_repair"]),
];

/// Programs that are built from Go modules (build/upstream).
pub const UPSTREAM_PROGRAMS: &[&str] =
    &["containerd", "containerd-shim-runc-v2", "ctr", "etcd", "kube", "runc"];

/// Programs of test images only: what judges the node from inside.
pub const TEST_PROGRAMS: &[&str] = &["csi-sanity"];

/// CNI plugins, built from Go modules as well.
pub const CNI_PLUGINS: &[&str] = &["bridge", "host-local", "loopback", "portmap", "ptp"];

/// Names under which the multicall binary `kube` is called.
pub const KUBE_NAMES: &[&str] = &[
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];
