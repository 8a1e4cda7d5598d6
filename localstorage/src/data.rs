//! The data disk's directories: values that prove it is mounted.
//!
//! Invariants: `mount` and `attach` require XFS with project quota accounted and
//! enforced; a missing directory is made at every start.
//!
//! Must not know: how a blank disk is formatted (`disk`).

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nodesys::{Filesystem, KernelFilesystem, KernelQuota, MountAttr, Quota, SysError};

use crate::dir::{Dir, LayoutError};
use crate::disk::BlockDevice;
use crate::layout;
use crate::root::Unmounted;

/// Where charts and daemons look for the kubelet, whatever its real place is.
pub const KUBELET_ROOT: &str = "/var/lib/kubelet";
/// Where the kubelet writes pods' logs.
pub const VAR_LOG: &str = "/var/log";

/// The data disk could not be taken into use.
#[derive(Debug, thiserror::Error)]
pub enum MountDataError {
    /// The kernel refused the mount because of the quota option.
    #[error("{path}: kernel or filesystem lacks project quota")]
    NoQuota {
        /// Which.
        path: PathBuf,
        /// The call.
        #[source]
        source: SysError,
    },
    /// Mounted, but project quota is not accounted or not enforced.
    #[error("{0}: project quota is not enforced; mount it with prjquota")]
    QuotaOff(PathBuf),
    /// Mounted, but not XFS.
    #[error("{0} is not an XFS filesystem")]
    NotXfs(PathBuf),
    /// A call failed.
    #[error("cannot use {path}")]
    Sys {
        /// Which.
        path: PathBuf,
        /// The call.
        #[source]
        source: SysError,
    },
    /// A directory cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The directories cannot be made.
    #[error("cannot make the directories of the data disk")]
    Layout(#[source] LayoutError),
}

/// `/data`, mounted.
#[derive(Debug)]
pub struct Data {
    /// The directory itself.
    pub dir: Dir,
    /// containerd's root.
    pub containerd: Dir,
    /// etcd's data.
    pub etcd: Dir,
    /// Of the Kubernetes parts.
    pub kubernetes: Kubernetes,
    /// The kubelet's directory.
    pub kubelet: Kubelet,
    /// Of the node itself: identity, parameters.
    pub node: Node,
    /// One entry per volume.
    pub volumes: DataVolumesDirectory,
    /// The volume engine's own state.
    pub volume_state: DataVolumeStateDirectory,
}

/// `/data/kubernetes`.
#[derive(Debug, Clone)]
pub struct Kubernetes {
    /// Keys and certificates.
    pub pki: Dir,
    /// Bound at `/var/log`.
    pub log: Dir,
}

/// The kubelet's root directory, at the path that programs use.
#[derive(Debug, Clone)]
pub struct Kubelet {
    /// `--root-dir`: `/var/lib/kubelet` once [`Data::bind_kubelet`] was called.
    pub dir: Dir,
    /// Where it really lies.
    pub backing: Dir,
    /// Certificates.
    pub pki: Dir,
    /// Seccomp profiles.
    pub seccomp: Dir,
    /// Sockets of CSI drivers.
    pub plugins: Dir,
    /// Registration sockets.
    pub plugins_registry: Dir,
    /// Pods' volumes.
    pub pods: Dir,
}

/// `/data/node`.
#[derive(Debug, Clone)]
pub struct Node {
    /// The directory itself.
    pub dir: Dir,
}

/// `/data/volumes`: one entry per volume and nothing else. Its existence as a value proves
/// that the data disk is mounted with enforced project quota.
#[derive(Debug, Clone)]
pub struct DataVolumesDirectory {
    pub(crate) dir: Dir,
}

impl DataVolumesDirectory {
    /// The directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }
}

/// `/data/volume-state`: the volume engine's own.
#[derive(Debug, Clone)]
pub struct DataVolumeStateDirectory {
    pub(crate) dir: Dir,
}

impl DataVolumeStateDirectory {
    /// The directory itself: registry and ballast lie in it.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Volumes being made.
    pub fn staging(&self) -> Dir {
        self.dir.join("staging")
    }

    /// Snapshots.
    pub fn snapshots(&self) -> Dir {
        self.dir.join("snapshots")
    }

    /// Deleted, to be purged.
    pub fn trash(&self) -> Dir {
        self.dir.join("trash")
    }

    /// Orphans an operator has put aside.
    pub fn quarantine(&self) -> Dir {
        self.dir.join("quarantine")
    }
}

impl Unmounted<Data> {
    /// Mounts `dev` here with `prjquota`, `noexec`, and makes the declared directories.
    pub fn mount(self, dev: &BlockDevice) -> Result<Data, MountDataError> {
        let source = dev.path().to_string_lossy();
        let attr = MountAttr { noexec: true, nosuid: true, ..MountAttr::default() };
        let params = [("source", Some(source.as_ref())), ("prjquota", None)];
        nodesys::mount_filesystem("xfs", &params, &self.at, attr).map_err(|source| {
            let path = dev.path().to_owned();
            if source.is(rustix::io::Errno::INVAL) {
                MountDataError::NoQuota { path, source }
            } else {
                MountDataError::Sys { path, source }
            }
        })?;
        self.attach()
    }

    /// Takes the filesystem that is already mounted here, and makes the declared directories.
    pub fn attach(self) -> Result<Data, MountDataError> {
        let dir = Dir::at(self.at);
        require_quota(&dir, &KernelFilesystem, &KernelQuota)?;
        Data::create(dir)
    }
}

/// Refuses everything but XFS with accounted and enforced project quota.
fn require_quota(dir: &Dir, fs: &dyn Filesystem, quota: &dyn Quota) -> Result<(), MountDataError> {
    let path = || dir.full_path().to_owned();
    let sys = |source| MountDataError::Sys { path: path(), source };
    let fd = dir.open().map_err(|source| MountDataError::Open { path: path(), source })?;
    if !fs.identity(fd.as_fd()).map_err(sys)?.xfs {
        return Err(MountDataError::NotXfs(path()));
    }
    let state = quota.state(fd.as_fd()).map_err(sys)?;
    if state.accounting && state.enforcing { Ok(()) } else { Err(MountDataError::QuotaOff(path())) }
}

impl Data {
    pub(crate) fn create(dir: Dir) -> Result<Data, MountDataError> {
        dir.create_all(layout::DATA.children).map_err(MountDataError::Layout)?;
        let kubernetes = dir.join("kubernetes");
        let backing = kubernetes.join("kubelet");
        Ok(Data {
            containerd: dir.join("containerd"),
            etcd: dir.join("etcd"),
            kubelet: Kubelet::at(backing.clone(), backing),
            kubernetes: Kubernetes { pki: kubernetes.join("pki"), log: kubernetes.join("log") },
            node: Node { dir: dir.join("node") },
            volumes: DataVolumesDirectory { dir: dir.join("volumes") },
            volume_state: DataVolumeStateDirectory { dir: dir.join("volume-state") },
            dir,
        })
    }

    /// Binds `kubernetes/kubelet` at `/var/lib/kubelet` without `noexec` and `kubernetes/log`
    /// at `/var/log`; from then on [`Data::kubelet`] names the former. Both directories must
    /// exist under `root` (`/` on a node).
    pub fn bind_kubelet(&mut self, root: &Path) -> Result<(), MountDataError> {
        // Charts hard-code the path; a pod in a user namespace would inherit `noexec` in every
        // emptyDir.
        let exec = MountAttr::default();
        let quiet = MountAttr { noexec: true, nosuid: true, nodev: true, ..MountAttr::default() };
        let under = |p: &str| root.join(p.trim_start_matches('/'));
        for (source, target, attr) in [
            (&self.kubelet.backing, under(KUBELET_ROOT), exec),
            (&self.kubernetes.log, under(VAR_LOG), quiet),
        ] {
            nodesys::bind_plain(source.full_path(), &target, attr)
                .map_err(|source| MountDataError::Sys { path: target, source })?;
        }
        self.kubelet = Kubelet::at(Dir::at(under(KUBELET_ROOT)), self.kubelet.backing.clone());
        Ok(())
    }
}

impl Kubelet {
    fn at(dir: Dir, backing: Dir) -> Kubelet {
        Kubelet {
            pki: dir.join("pki"),
            seccomp: dir.join("seccomp"),
            plugins: dir.join("plugins"),
            plugins_registry: dir.join("plugins_registry"),
            pods: dir.join("pods"),
            dir,
            backing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;

    #[test]
    fn l1_4_attach_refuses_what_is_not_xfs_and_makes_nothing() {
        let t = tempfile::tempdir_in("/dev/shm").expect("tempdir");
        std::fs::create_dir(t.path().join("data")).expect("mkdir");
        let root = Root::place(t.path()).expect("place");
        let e = root.data.attach().expect_err("tmpfs");
        assert!(matches!(e, MountDataError::NotXfs(_)), "{e:?}");
        assert_eq!(std::fs::read_dir(t.path().join("data")).expect("list").count(), 0);
    }

    #[test]
    fn l1_3_a_disk_of_a_release_without_volume_state_gets_it() {
        let t = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir_all(t.path().join("volumes/pvc-1")).expect("old volume");
        let data = Data::create(Dir::at(t.path().to_owned())).expect("create");
        assert!(data.volume_state.staging().full_path().is_dir());
        assert!(data.volume_state.trash().full_path().is_dir());
        assert!(data.volumes.dir().full_path().join("pvc-1").is_dir());
    }
}
