//! Publishes and unpublishes volumes on the disk. Blocking; what to do is decided in
//! `targets`.
//!
//! Invariants: a failed publish leaves neither mount nor target; nothing that is not ours
//! is unmounted or removed; a symlink at the target is refused, not followed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nodesys::{MountAttr, MountTable, SysError, walk};
use rustix::io::Errno;

use crate::disk::{Disk, StepError, component};
use crate::error::{PublishError, StatsError, Trouble};
use crate::id::VolumeId;
use crate::record::Record;
use crate::targets::{
    Marks, PublishDecision, UnpublishDecision, check_target, decide_publish, decide_unpublish,
};
use crate::types::{
    AccessMode, Condition, Publish, Published, Stats, StatsUsage, Unpublish, VolumeKind, kind_name,
};

/// Mode of directories made on the way to a target.
const PARENT_MODE: u32 = 0o750;

fn failed(step: &'static str, id: &VolumeId, e: StepError) -> Trouble {
    Trouble::Step { step, id: id.to_string(), source: Arc::new(e) }
}

fn sys(step: &'static str, id: &VolumeId) -> impl Fn(SysError) -> PublishError {
    let id = id.clone();
    move |e| PublishError::Trouble(failed(step, &id, StepError::Sys(e)))
}

fn file(step: &'static str, id: &VolumeId, path: &Path) -> impl Fn(io::Error) -> PublishError {
    let (id, path) = (id.clone(), path.display().to_string());
    move |e| PublishError::Trouble(failed(step, &id, StepError::File(path.clone(), e)))
}

impl Disk {
    /// The mount table and how volumes look in it.
    pub(crate) fn mounts(&self) -> Result<(MountTable, Marks), StepError> {
        let table = self.seams.mounter.table().map_err(StepError::Sys)?;
        let devices = self.devices()?;
        let marks = Marks::of(&table, &self.volumes_path, devices).ok_or_else(|| {
            StepError::Mismatch(format!("no mount below {}", self.volumes_path.display()))
        })?;
        Ok((table, marks))
    }

    /// Where all volumes are mounted.
    pub(crate) fn published(&self) -> Result<Published, StepError> {
        let (table, marks) = self.mounts()?;
        Ok(marks.published(&table))
    }

    /// Checks that `target` can be one at all.
    pub(crate) fn check_target(&self, target: &Path) -> Result<(), PublishError> {
        check_target(target, &[&self.volumes_path, &self.state_path])
            .map_err(PublishError::InvalidTarget)
    }

    /// Mounts the volume of `r`.
    pub(crate) fn publish(&self, r: &Record, p: &Publish) -> Result<(), PublishError> {
        let id = &r.id;
        self.check_target(&p.target)?;
        if p.kind != r.kind {
            return Err(PublishError::Precondition(format!(
                "volume {id} is a {} volume",
                kind_name(r.kind)
            )));
        }
        let attr = flags(r, p);
        let (table, marks) =
            self.mounts().map_err(|e| PublishError::Trouble(failed("publish.table", id, e)))?;
        match decide_publish(&marks, &table, (id, &p.target), attr, p.access) {
            PublishDecision::Done => Ok(()),
            PublishDecision::Bind => match r.kind {
                VolumeKind::Filesystem => self.bind_directory(id, &p.target, attr),
                VolumeKind::Block => self.bind_device(r, &table, &p.target, attr),
            },
            PublishDecision::OtherFlags(flags) => {
                let target = p.target.display().to_string();
                Err(PublishError::OtherFlags { id: id.clone(), target, flags })
            }
            PublishDecision::Refuse(why) => Err(PublishError::Precondition(why)),
        }
    }

    fn bind_directory(
        &self,
        id: &VolumeId,
        target: &Path,
        attr: MountAttr,
    ) -> Result<(), PublishError> {
        let name = component(id.as_str());
        let source = match walk::open_path(self.volumes.as_fd(), &name) {
            Ok(fd) => fd,
            Err(e) if e.is(Errno::NOENT) => return Err(PublishError::DataMissing(id.clone())),
            Err(e) => return Err(sys("publish.open", id)(e)),
        };
        let kind = rustix::fs::fstat(&source)
            .map_err(|e| sys("publish.open", id)(SysError::new("fstat", id.as_str(), e)))?
            .st_mode;
        if rustix::fs::FileType::from_raw_mode(kind) != rustix::fs::FileType::Directory {
            return Err(PublishError::DataMissing(id.clone()));
        }
        let made = make_target(id, target)?;
        self.bind(id, source.as_fd(), (target, made), attr)
    }

    /// A device on a file: nothing of it survives a reboot on disk (rule 6.4).
    fn bind_device(
        &self,
        r: &Record,
        table: &MountTable,
        target: &Path,
        attr: MountAttr,
    ) -> Result<(), PublishError> {
        let id = &r.id;
        let fail = |step| move |e| PublishError::Trouble(failed(step, id, e));
        match self.object(r) {
            Ok(image) => {
                let size = self.size_of(image.as_fd()).map_err(fail("publish.open"))?;
                if size < r.size.limit.0 {
                    return Err(PublishError::DataMissing(id.clone()));
                }
            }
            Err(e) if e.is(Errno::NOENT) || e.is(Errno::ISDIR) => {
                return Err(PublishError::DataMissing(id.clone()));
            }
            Err(e) => return Err(sys("publish.open", id)(e)),
        }
        let (device, attached) =
            self.attach(r, table, attr.read_only).map_err(fail("publish.attach"))?;
        self.seams.faults.point("publish.p0");
        let bound = self.seams.loops.node(device).map_err(sys("publish.node", id));
        let bound = bound.and_then(|node| {
            let made = make_file(id, target)?;
            self.bind(id, node.as_fd(), (target, made), attr)
        });
        if bound.is_err() && attached {
            // The first error is the one to report; the next start detaches a leftover.
            let _ = self.seams.loops.detach(device);
        }
        bound
    }

    fn bind(
        &self,
        id: &VolumeId,
        source: BorrowedFd<'_>,
        (target, made): (&Path, bool),
        attr: MountAttr,
    ) -> Result<(), PublishError> {
        self.seams.faults.point("publish.p1");
        if let Err(e) = self.seams.mounter.bind(source, target, attr) {
            if made {
                // The bind's error is the one to report; unpublish removes a leftover.
                let _ = remove_target(id, target);
            }
            return Err(sys("publish.bind", id)(e));
        }
        self.seams.faults.point("publish.p2");
        Ok(())
    }

    /// Unmounts every layer of the volume at the target and removes the target.
    pub(crate) fn unpublish(&self, u: &Unpublish) -> Result<(), PublishError> {
        let id = &u.id;
        self.check_target(&u.target)?;
        let (table, marks) =
            self.mounts().map_err(|e| PublishError::Trouble(failed("unpublish.table", id, e)))?;
        match decide_unpublish(&marks, &table, id, &u.target) {
            UnpublishDecision::Leave(why) => return Err(PublishError::Foreign(why)),
            UnpublishDecision::Unmount(layers) => {
                for _ in 0..layers {
                    self.seams.mounter.unmount(&u.target).map_err(sys("unpublish.unmount", id))?;
                    self.seams.faults.point("unpublish.u1");
                }
            }
        }
        remove_target(id, &u.target)?;
        self.seams.faults.point("unpublish.u2");
        self.detach_last(id, &marks)
            .map_err(|e| PublishError::Trouble(failed("unpublish.detach", id, e)))
    }

    /// Detaches what nothing is mounted from any more.
    fn detach_last(&self, id: &VolumeId, marks: &Marks) -> Result<(), StepError> {
        let mut ours = marks.devices.iter().filter(|(_, of)| *of == id).map(|(no, _)| *no);
        let Some(first) = ours.next() else { return Ok(()) };
        let table = self.seams.mounter.table().map_err(StepError::Sys)?;
        self.detach_unmounted(&table, std::iter::once(first).chain(ours))
    }

    /// Statistics of a volume that must be mounted at `at`.
    pub(crate) fn stats(
        &self,
        r: &Record,
        at: &Path,
        conditions: Vec<Condition>,
    ) -> Result<Stats, StatsError> {
        let fail = |e| StatsError::Trouble(failed("stats", &r.id, e));
        let (table, marks) = self.mounts().map_err(fail)?;
        let here = table.at(at).next_back().and_then(|m| marks.volume(m));
        if here.as_ref() != Some(&r.id) {
            return Err(StatsError::NotFound(r.id.clone()));
        }
        if r.kind == VolumeKind::Block {
            let total = r.size.limit.0;
            let bytes = StatsUsage { total, ..StatsUsage::default() };
            return Ok(Stats { bytes, inodes: None, conditions });
        }
        let u = self.usage(r.project).map_err(fail)?.unwrap_or_default();
        let free = self.free_bytes().map_err(fail)?;
        let (bytes, inodes) = (r.size.limit.0, r.size.inodes.0);
        Ok(Stats {
            bytes: StatsUsage {
                total: bytes,
                used: u.used_bytes,
                available: bytes.saturating_sub(u.used_bytes).min(free),
            },
            inodes: Some(StatsUsage {
                total: inodes,
                used: u.used_inodes,
                available: inodes.saturating_sub(u.used_inodes),
            }),
            conditions,
        })
    }
}

/// The flags of the mount. Those of a class are about files: a device node is bound with its
/// own, and must not be `nodev`.
fn flags(r: &Record, p: &Publish) -> MountAttr {
    let read_only = p.read_only || p.access == AccessMode::ReaderOnly || p.attr.read_only;
    match r.kind {
        VolumeKind::Filesystem => MountAttr { read_only, ..p.attr },
        VolumeKind::Block => {
            MountAttr { read_only, nosuid: true, noexec: true, ..MountAttr::default() }
        }
    }
}

fn make_parents(id: &VolumeId, target: &Path) -> Result<(), PublishError> {
    let Some(parent) = target.parent() else { return Ok(()) };
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(PARENT_MODE).create(parent);
    made.map_err(file("publish.mkdir", id, parent))
}

/// Makes the file a device is bound on; whether it is new. Only an empty one is taken over.
fn make_file(id: &VolumeId, target: &Path) -> Result<bool, PublishError> {
    make_parents(id, target)?;
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(target);
    match made {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(target).map_err(file("publish.create", id, target))?;
            if meta.is_file() && meta.len() == 0 {
                Ok(false)
            } else {
                let what = target.display();
                Err(PublishError::Precondition(format!("{what} exists and is no empty file")))
            }
        }
        Err(e) => Err(file("publish.create", id, target)(e)),
    }
}

/// Makes the target directory and its parents; whether the target is new.
fn make_target(id: &VolumeId, target: &Path) -> Result<bool, PublishError> {
    make_parents(id, target)?;
    match fs::DirBuilder::new().mode(PARENT_MODE).create(target) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(target).map_err(file("publish.mkdir", id, target))?;
            if meta.is_dir() {
                Ok(false)
            } else {
                Err(PublishError::Precondition(format!(
                    "{} exists and is not a directory",
                    target.display()
                )))
            }
        }
        Err(e) => Err(file("publish.mkdir", id, target)(e)),
    }
}

/// Removes an empty directory or empty file; anything else is left, with the reason.
fn remove_target(id: &VolumeId, target: &Path) -> Result<(), PublishError> {
    let left = |why: &str| Err(PublishError::Foreign(format!("{} {why}", target.display())));
    match fs::remove_dir(target) {
        Ok(()) => Ok(()),
        Err(e) => match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            io::ErrorKind::DirectoryNotEmpty => left("is not empty and was left"),
            io::ErrorKind::NotADirectory => match fs::symlink_metadata(target) {
                Ok(m) if m.is_file() && m.len() == 0 => {
                    fs::remove_file(target).map_err(file("unpublish.remove", id, target))
                }
                Ok(_) => left("is neither a directory nor an empty file and was left"),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(e) => Err(file("unpublish.remove", id, target)(e)),
            },
            _ => Err(file("unpublish.remove", id, target)(e)),
        },
    }
}
