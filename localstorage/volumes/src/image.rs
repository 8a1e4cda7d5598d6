//! Image files of block volumes: their space and their devices. Blocking.
//!
//! Invariants: an image that could not be grown has its old size and keeps no block behind
//! its end; a device is ours by the inode behind it, never by its number; a device is
//! detached only when nothing is mounted from it; a number that a mount still refers to is
//! not used for another image.
//!
//! Must not know: targets and how they are made (`mounting`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use nodesys::{LoopNo, LoopOptions, LoopStatus, MountTable, SysError, walk};
use rustix::fs::{AtFlags, OFlags};

use crate::disk::{Disk, StepError, component};
use crate::id::VolumeId;
use crate::record::{Record, Shape};
use crate::targets::loop_of;
use crate::types::{Condition, ConditionKind};

/// Attached devices by number, with the volume each is of.
pub(crate) type Devices = BTreeMap<LoopNo, VolumeId>;

impl Disk {
    /// The size of an open file.
    pub(crate) fn size_of(&self, file: BorrowedFd<'_>) -> Result<u64, StepError> {
        let stat = rustix::fs::fstat(file)
            .map_err(|e| StepError::Sys(SysError::new("fstat", "an image", e)))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Gives an image `bytes`, allocated if its parameters say so. On failure it has the size
    /// it had.
    pub(crate) fn size_image(
        &self,
        file: BorrowedFd<'_>,
        r: &Record,
        bytes: u64,
    ) -> Result<(), StepError> {
        let before = self.size_of(file)?;
        if !r.params.preallocate || bytes < before {
            return truncate(file, r, bytes);
        }
        self.seams.extents.preallocate(file, bytes).map_err(|e| {
            // This also drops the blocks behind the end that a failed call leaves; its error is
            // the one to report.
            let _ = truncate(file, r, before);
            StepError::Sys(e)
        })
    }

    /// Whether an image is shorter than its record says.
    pub(crate) fn truncated(&self, r: &Record) -> Option<Condition> {
        if r.shape() != Shape::Image {
            return None;
        }
        let found = self.size_of(self.object(r).ok()?.as_fd()).ok()?;
        let wanted = r.size.limit.0;
        (found < wanted).then(|| Condition {
            kind: ConditionKind::ImageTruncated,
            message: format!("its image has {found} bytes instead of {wanted}"),
        })
    }

    /// E2 of an image.
    pub(crate) fn resize_image(&self, r: &Record) -> Result<(), StepError> {
        let name = component(r.id.entry());
        let file = walk::open_file(self.volumes.as_fd(), &name, OFlags::RDWR);
        let file = file.map_err(StepError::Sys)?;
        match r.expand {
            Some(target) => self.size_image(file.as_fd(), r, target.limit.0)?,
            // Back to the size it had: what is behind that goes, and nothing is allocated.
            None => truncate(file.as_fd(), r, r.size.limit.0)?,
        }
        crate::disk::sync(file.as_fd(), "an image")
    }

    /// All devices of the image of `r`.
    pub(crate) fn devices_of(&self, r: &Record) -> Result<Vec<LoopStatus>, StepError> {
        if r.shape() != Shape::Image {
            return Ok(Vec::new());
        }
        let all = self.seams.loops.list().map_err(StepError::Sys)?;
        Ok(all.into_iter().filter(|s| self.is_behind(s, &r.id)).collect())
    }

    /// Whether the image of `id` is the file behind the device.
    fn is_behind(&self, s: &LoopStatus, id: &VolumeId) -> bool {
        let name = component(id.entry());
        let stat = rustix::fs::statat(&self.volumes, &name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| {
            let dev = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
            (dev, stat.st_ino) == (s.dev, s.inode)
        })
    }

    /// The volume whose image is behind a device. The kernel's path is a hint: the inode
    /// decides.
    fn volume_behind(&self, s: &LoopStatus) -> Option<VolumeId> {
        let name = s.path.strip_prefix(&self.volumes_path).ok()?;
        let id = VolumeId::parse(name.to_str()?).ok()?;
        self.is_behind(s, &id).then_some(id)
    }

    /// All devices of volumes.
    pub(crate) fn devices(&self) -> Result<Devices, StepError> {
        let all = self.seams.loops.list().map_err(StepError::Sys)?;
        Ok(all.iter().filter_map(|s| Some((s.no, self.volume_behind(s)?))).collect())
    }

    /// E4: attached devices take over the size of the image.
    pub(crate) fn resize_devices(&self, r: &Record) -> Result<(), StepError> {
        for device in self.devices_of(r)? {
            self.seams.loops.resize(device.no).map_err(StepError::Sys)?;
        }
        Ok(())
    }

    /// The device of `r` that is there, or a new one; whether it is new. At most one is
    /// read-only and one is not.
    pub(crate) fn attach(
        &self,
        r: &Record,
        table: &MountTable,
        read_only: bool,
    ) -> Result<(LoopNo, bool), StepError> {
        let there = self.devices_of(r)?.into_iter().find(|d| d.read_only == read_only);
        if let Some(device) = there {
            return Ok((device.no, false));
        }
        let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let file = walk::open_file(self.volumes.as_fd(), &component(r.id.entry()), flags);
        let file = file.map_err(StepError::Sys)?;
        let avoid = table.mounts.iter().filter_map(loop_of).collect();
        let options = LoopOptions { read_only, block_size: r.params.block_size, avoid };
        let no = self.seams.loops.attach(file.as_fd(), &options).map_err(StepError::Sys)?;
        Ok((no, true))
    }

    /// Detaches the devices of `r` that nothing is mounted from.
    pub(crate) fn detach_unused(&self, r: &Record) -> Result<(), StepError> {
        let devices = self.devices_of(r)?;
        if devices.is_empty() {
            return Ok(());
        }
        let table = self.seams.mounter.table().map_err(StepError::Sys)?;
        self.detach_unmounted(&table, devices.iter().map(|d| d.no))
    }

    /// Detaches those devices that `table` has no mount of.
    pub(crate) fn detach_unmounted(
        &self,
        table: &MountTable,
        devices: impl Iterator<Item = LoopNo>,
    ) -> Result<(), StepError> {
        for no in devices {
            if !table.mounts.iter().any(|m| loop_of(m) == Some(no)) {
                self.seams.loops.detach(no).map_err(StepError::Sys)?;
            }
        }
        Ok(())
    }

    /// Rule 6.7, at start: devices of ours that nothing is mounted from are detached, and
    /// those whose image is gone. Answers how many, and the volumes that lost theirs.
    pub(crate) fn reconcile_devices(&self) -> Result<(u64, Vec<VolumeId>), StepError> {
        let table = self.seams.mounter.table().map_err(StepError::Sys)?;
        let (mut detached, mut lost) = (0, Vec::new());
        for s in self.seams.loops.list().map_err(StepError::Sys)? {
            let ours =
                s.path.starts_with(&self.volumes_path) || s.path.starts_with(&self.state_path);
            if !ours {
                continue;
            }
            let mounted = table.mounts.iter().any(|m| loop_of(m) == Some(s.no));
            match self.volume_behind(&s) {
                Some(_) if mounted => {}
                Some(_) => {
                    self.seams.loops.detach(s.no).map_err(StepError::Sys)?;
                    detached += 1;
                }
                None => {
                    self.seams.loops.detach(s.no).map_err(StepError::Sys)?;
                    detached += 1;
                    lost.extend(named(&s));
                }
            }
        }
        Ok((detached, lost))
    }
}

fn truncate(file: BorrowedFd<'_>, r: &Record, bytes: u64) -> Result<(), StepError> {
    rustix::fs::ftruncate(file, bytes)
        .map_err(|e| StepError::Sys(SysError::new("ftruncate", r.id.as_str(), e)))
}

/// The volume that a device names whose image is not that volume's any more.
fn named(s: &LoopStatus) -> Option<VolumeId> {
    let name = s.path.file_name()?.to_str()?;
    VolumeId::parse(name.strip_suffix(" (deleted)").unwrap_or(name)).ok()
}
