//! The placed tree: one value from which every service's directories are handed out.
//!
//! Invariants: the data disk's directories exist as values only once it is mounted;
//! directories are created at every start.

use std::path::{Path, PathBuf};

use crate::dir::{Dir, LayoutError};
use crate::layout;

/// The node's tree.
#[derive(Debug)]
pub struct Root {
    /// Only where the machine has an EFI system partition.
    pub esp: Option<Esp>,
    /// `/data`, to be mounted.
    pub data: Unmounted<crate::Data>,
    /// `/ephemeral`.
    pub ephemeral: Ephemeral,
    /// `/run`.
    pub run: Run,
    /// `/tmp`.
    pub tmp: Dir,
}

/// A place whose medium is not mounted yet.
#[derive(Debug)]
pub struct Unmounted<T> {
    pub(crate) at: PathBuf,
    pub(crate) what: std::marker::PhantomData<fn() -> T>,
}

impl<T> Unmounted<T> {
    pub(crate) fn at(at: PathBuf) -> Unmounted<T> {
        Unmounted { at, what: std::marker::PhantomData }
    }

    /// Where it will be.
    pub fn mount_point(&self) -> &Path {
        &self.at
    }
}

/// `/esp`.
#[derive(Debug, Clone)]
pub struct Esp {
    /// The directory itself.
    pub dir: Dir,
}

/// `/ephemeral`.
#[derive(Debug, Clone)]
pub struct Ephemeral {
    /// The directory itself.
    pub dir: Dir,
    /// For containerd.
    pub containerd: Dir,
    /// For a later consensus service.
    pub consensus: Dir,
}

/// `/run`.
#[derive(Debug, Clone)]
pub struct Run {
    /// The directory itself.
    pub dir: Dir,
    /// Sockets and state of the node's own.
    pub hamlet: Dir,
    /// What `/etc` links to.
    pub etc: RunEtc,
    /// containerd's sockets and state.
    pub containerd: Dir,
    /// CNI configuration, linked from `/etc/cni`.
    pub cni: Dir,
    /// CNI network configurations.
    pub cni_net_d: Dir,
}

/// `/run/etc`: the files that `/etc/{hosts,…}` link to.
#[derive(Debug, Clone)]
pub struct RunEtc {
    /// The directory itself.
    pub dir: Dir,
}

impl Root {
    /// Places the declared tree under `at` (`/` on a node). Touches nothing.
    pub fn place(at: &Path) -> Result<Root, LayoutError> {
        if !at.is_absolute() {
            return Err(LayoutError::NotAbsolute(at.to_owned()));
        }
        for tree in layout::TREES {
            layout::check_name(tree.name)
                .and_then(|()| layout::check(tree.children))
                .map_err(LayoutError::Declaration)?;
        }
        let run = Dir::at(at.join(layout::RUN.name));
        let ephemeral = Dir::at(at.join(layout::EPHEMERAL.name));
        let esp = Dir::at(at.join(layout::ESP.name));
        Ok(Root {
            esp: Some(Esp { dir: esp }),
            data: Unmounted::at(at.join(layout::DATA.name)),
            ephemeral: Ephemeral {
                containerd: ephemeral.join("containerd"),
                consensus: ephemeral.join("consensus"),
                dir: ephemeral,
            },
            run: Run {
                hamlet: run.join("hamlet"),
                etc: RunEtc { dir: run.join("etc") },
                containerd: run.join("containerd"),
                cni: run.join("cni"),
                cni_net_d: run.join("cni").join("net.d"),
                dir: run,
            },
            tmp: Dir::at(at.join(layout::TMP.name)),
        })
    }

    /// Makes the directories of the memory filesystems, which must be mounted.
    pub fn create_memory(&self) -> Result<(), LayoutError> {
        self.run.dir.create_all(layout::RUN.children)?;
        self.ephemeral.dir.create_all(layout::EPHEMERAL.children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_1_the_root_must_be_absolute() {
        assert!(matches!(Root::place(Path::new("x")), Err(LayoutError::NotAbsolute(_))));
    }

    #[test]
    fn l1_3_memory_directories_are_made_again_and_again() {
        let t = tempfile::tempdir().expect("tempdir");
        let root = Root::place(t.path()).expect("place");
        for d in ["run", "ephemeral"] {
            std::fs::create_dir(t.path().join(d)).expect("mount point");
        }
        root.create_memory().expect("create");
        root.create_memory().expect("create again");
        for d in
            [&root.run.hamlet, &root.run.etc.dir, &root.run.cni_net_d, &root.ephemeral.containerd]
        {
            assert!(d.full_path().is_dir(), "{:?}", d.full_path());
        }
    }
}
