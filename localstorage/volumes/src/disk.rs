//! Does the steps of the protocol on the disk. Blocking; called on the pool and at start.
//!
//! Owner: nobody; shared by all jobs of one incarnation. Two jobs never work on the same
//! volume, because the owner task gives each volume one operation at a time.
//!
//! Invariants: every path is an id relative to a held directory; what is neither a directory
//! nor a regular file is never opened, followed or removed in `volumes`; a step that failed may
//! be done again.
//!
//! Must not know: why a step is done, or the registry.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nodesys::{Limits, Project, ProjectId, SysError, Usage, walk};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::engine::{Seams, VolumeDirs};
use crate::id::VolumeId;
use crate::ledger::Room;
use crate::plan::{Act, Entry, Observed};
use crate::record::{Record, Shape, decode_copy, encode_copy};

/// Where an entry keeps the copy of its record.
const COPY: &str = "trusted.hamlet.volume";

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("system call")]
    Sys(#[source] SysError),
    #[error("{0}")]
    File(String, #[source] io::Error),
    #[error("the entry already holds data")]
    HoldsData,
    #[error("read back {0} instead of what was written")]
    Mismatch(String),
    #[error("the project still uses {bytes} bytes and {inodes} inodes")]
    StillInUse { bytes: u64, inodes: u64 },
    #[error("no project id is free")]
    NoProject,
    #[error("the content source is gone")]
    SourceGone,
    #[error("its writers cannot be stopped: the source is mounted at {0}")]
    Inconsistent(String),
    #[error("a directory changed its place while it was copied")]
    Moved,
    #[error("the engine is stopping")]
    Stopped,
}

impl StepError {
    /// Whether the disk or the quota is full.
    pub(crate) fn is_no_space(&self) -> bool {
        match self {
            StepError::Sys(e) => e.is(Errno::NOSPC) || e.is(Errno::DQUOT),
            StepError::File(_, e) => e.kind() == io::ErrorKind::StorageFull,
            StepError::HoldsData
            | StepError::Mismatch(_)
            | StepError::StillInUse { .. }
            | StepError::NoProject
            | StepError::SourceGone
            | StepError::Inconsistent(_)
            | StepError::Moved
            | StepError::Stopped => false,
        }
    }
}

/// Why the engine cannot use its directories.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("cannot open {0}")]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot examine {0}")]
    Sys(PathBuf, #[source] SysError),
    #[error("{0} is not on XFS")]
    NotXfs(PathBuf),
    #[error("{0}: project quota is not enforced")]
    NoQuota(PathBuf),
    #[error("{0} and {1} are on different filesystems")]
    OtherDevice(PathBuf, PathBuf),
    #[error("{0} belongs to project {1}; it must belong to none")]
    HasProject(PathBuf, u32),
}

/// The engine's directories, open.
pub(crate) struct Disk {
    pub(crate) volumes: OwnedFd,
    pub(crate) snapshots: OwnedFd,
    pub(crate) staging: OwnedFd,
    pub(crate) trash: OwnedFd,
    /// Canonical paths, as the mount table shows them.
    pub(crate) volumes_path: PathBuf,
    pub(crate) state_path: PathBuf,
    pub(crate) seams: Seams,
    pub(crate) uuid: [u8; 16],
    pub(crate) block: u64,
    /// Set when the incarnation ends: long work gives up at the next entry.
    pub(crate) stopping: Arc<AtomicBool>,
}

/// What was found on an entry without a record.
pub(crate) enum Found {
    /// One with a valid copy of its record.
    Copy(Box<Record>),
    /// An image without one, of so many bytes.
    Image(u64),
    /// A directory with a project and limits.
    Limited(u32, Usage),
    /// A directory without.
    Unlimited,
    /// Something else.
    Foreign,
}

impl Disk {
    /// Opens and checks the directories (rules 3.2, 3.3).
    pub(crate) fn open(dirs: &VolumeDirs, seams: Seams) -> Result<Disk, DiskError> {
        let open = |d: &localstorage::Dir| {
            let fd = d.open().map_err(|e| DiskError::Open(d.full_path().to_owned(), e))?;
            let sys = |e| DiskError::Sys(d.full_path().to_owned(), e);
            let p = seams.quota.project(fd.as_fd()).map_err(sys)?;
            // A rename into a directory with PROJINHERIT and another id is EXDEV.
            if p != Project::default() {
                return Err(DiskError::HasProject(d.full_path().to_owned(), p.id));
            }
            Ok(fd)
        };
        let volumes = open(dirs.volumes.dir())?;
        let state = open(dirs.state.dir())?;
        let [staging, trash, snapshots, quarantine] = [
            open(&dirs.state.staging())?,
            open(&dirs.state.trash())?,
            open(&dirs.state.snapshots())?,
            open(&dirs.state.quarantine())?,
        ];
        let path = dirs.volumes.dir().full_path().to_owned();
        let sys = |e| DiskError::Sys(path.clone(), e);
        let device = |fd: BorrowedFd<'_>| {
            rustix::fs::fstat(fd)
                .map(|s| s.st_dev)
                .map_err(|e| sys(SysError::new("fstat", path.display().to_string(), e)))
        };
        for other in [&state, &staging, &trash, &snapshots, &quarantine] {
            if device(other.as_fd())? != device(volumes.as_fd())? {
                let state = dirs.state.dir().full_path().to_owned();
                return Err(DiskError::OtherDevice(path, state));
            }
        }
        let identity = seams.filesystem.identity(volumes.as_fd()).map_err(sys)?;
        if !identity.xfs {
            return Err(DiskError::NotXfs(path));
        }
        let quota = seams.quota.state(volumes.as_fd()).map_err(sys)?;
        if !quota.accounting || !quota.enforcing {
            return Err(DiskError::NoQuota(path));
        }
        let canonical = |p: &Path| p.canonicalize().map_err(|e| DiskError::Open(p.to_owned(), e));
        Ok(Disk {
            volumes_path: canonical(&path)?,
            state_path: canonical(dirs.state.dir().full_path())?,
            volumes,
            snapshots,
            staging,
            trash,
            seams,
            uuid: identity.uuid,
            block: identity.block_size,
            stopping: Arc::new(AtomicBool::new(false)),
        })
    }

    pub(crate) fn go_on(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed)
    }

    /// Does one step for the object of `r`, whose record may learn from it.
    pub(crate) fn step(&self, act: Act, r: &mut Record) -> Result<(), StepError> {
        if !self.go_on() {
            return Err(StepError::Stopped);
        }
        self.act(act, r)?;
        self.seams.faults.point(act.point());
        Ok(())
    }

    fn act(&self, act: Act, r: &mut Record) -> Result<(), StepError> {
        let staged = component(r.id.as_str());
        match act {
            Act::ClearStaging => self.clear_staging(&staged),
            Act::TakeOver => self.take_over(&component(r.id.entry())),
            Act::MakeStaging => self.make_staging(&staged, r),
            Act::SetLimits => self.set_limits(r.project, limits(r)),
            Act::SetProject => self.set_project(&staged, r),
            Act::Fill => self.fill(r),
            Act::WriteCopy => {
                let object = self.staged(&staged, r)?;
                let copy = encode_copy(r);
                self.seams.attributes.set(object.as_fd(), COPY, &copy).map_err(StepError::Sys)
            }
            Act::Verify => self.verify(&staged, r),
            Act::SyncStaging => self.sync_staging(&staged, r),
            Act::Place => self.place(&staged, r),
            Act::SyncPlaced => {
                self.recall(r)?;
                sync(self.home(&r.id), "volumes")?;
                sync(self.staging.as_fd(), "staging")
            }
            Act::FreeProject => self.free_project(r.project),
            Act::Resize => self.resize(r),
            Act::ReadBack => self.read_back(r),
            Act::ResizeDevices => self.resize_devices(r),
            Act::RefreshCopy => self.refresh_copy(r),
            Act::MoveToTrash => self.move_to_trash(r),
            Act::SyncTrash => {
                sync(self.trash.as_fd(), "trash")?;
                sync(self.home(&r.id), "volumes")
            }
            Act::Purge => self.purge(&r.trash_key()),
        }
    }

    /// Where finished objects of this kind are.
    pub(crate) fn home(&self, id: &VolumeId) -> BorrowedFd<'_> {
        if id.is_snapshot() { self.snapshots.as_fd() } else { self.volumes.as_fd() }
    }

    /// The object in its place, open for reading.
    pub(crate) fn object(&self, r: &Record) -> Result<OwnedFd, SysError> {
        self.shaped(self.home(&r.id), &component(r.id.entry()), r)
    }

    /// The object in staging, open for reading.
    pub(crate) fn staged(&self, name: &CStr, r: &Record) -> Result<OwnedFd, StepError> {
        self.shaped(self.staging.as_fd(), name, r).map_err(StepError::Sys)
    }

    fn shaped(&self, dir: BorrowedFd<'_>, name: &CStr, r: &Record) -> Result<OwnedFd, SysError> {
        match r.shape() {
            Shape::Directory => walk::open_dir(dir, name),
            Shape::Image => walk::open_file(dir, name, OFlags::RDONLY),
        }
    }

    fn make_staging(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        match r.shape() {
            Shape::Directory => {
                retry(|| rustix::fs::mkdirat(&self.staging, name, Mode::RWXU), "mkdirat", r)
            }
            Shape::Image => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let mode = Mode::RUSR | Mode::WUSR;
                let make = || rustix::fs::openat(&self.staging, name, flags, mode).map(drop);
                retry(make, "openat", r)
            }
        }
    }

    fn place(&self, staged: &CStr, r: &Record) -> Result<(), StepError> {
        let (flags, to) = (RenameFlags::NOREPLACE, component(r.id.entry()));
        let (from, home) = (&self.staging, self.home(&r.id));
        retry(|| rustix::fs::renameat_with(from, staged, home, &to, flags), "renameat2", r)
    }

    fn move_to_trash(&self, r: &Record) -> Result<(), StepError> {
        // A device that nothing uses would keep the image's space.
        self.detach_unused(r)?;
        let (name, to) = (component(r.id.entry()), component(&r.trash_key()));
        let (flags, home) = (RenameFlags::NOREPLACE, self.home(&r.id));
        retry(|| rustix::fs::renameat_with(home, &name, &self.trash, &to, flags), "renameat2", r)
    }

    /// What is on disk for the object of `r`.
    pub(crate) fn observe(&self, r: &Record) -> Result<Observed, StepError> {
        let name = component(r.id.as_str());
        let staging = match rustix::fs::statat(&self.staging, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => true,
            Err(Errno::NOENT) => false,
            Err(e) => {
                return Err(StepError::Sys(SysError::new("fstatat", r.id.as_str(), e)));
            }
        };
        let entry = match self.object(r) {
            Ok(object) => {
                let p = self.seams.quota.project(object.as_fd()).map_err(StepError::Sys)?;
                if p == project(r) { Entry::Ours } else { Entry::Altered }
            }
            Err(e) if e.is(Errno::NOENT) => Entry::Absent,
            Err(e) if is_other(&e) => Entry::Alien,
            Err(e) => return Err(StepError::Sys(e)),
        };
        Ok(Observed { staging, entry })
    }

    /// Whether nobody uses `project`.
    pub(crate) fn project_is_free(&self, project: u32) -> Result<bool, StepError> {
        let usage = self.usage(project)?;
        Ok(usage.is_none_or(|u| u.is_zero()))
    }

    /// Limits and usage of a project, if the kernel knows it.
    pub(crate) fn usage(&self, project: u32) -> Result<Option<Usage>, StepError> {
        let Ok(id) = ProjectId::new(project) else { return Ok(None) };
        self.seams.quota.get(self.volumes.as_fd(), id).map_err(StepError::Sys)
    }

    pub(crate) fn set_limits(&self, project: u32, l: Limits) -> Result<(), StepError> {
        let id = ProjectId::new(project).map_err(|_| StepError::NoProject)?;
        self.seams.quota.set_limits(self.volumes.as_fd(), id, l).map_err(StepError::Sys)
    }

    fn set_project(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        let object = self.staged(name, r)?;
        self.seams.quota.set_project(object.as_fd(), project(r)).map_err(StepError::Sys)?;
        if !r.is_limited() {
            // Images and snapshots are for nobody but us: they stay as they were made.
            return Ok(());
        }
        let p = &r.params;
        self.seams.attributes.own(object.as_fd(), p.uid, p.gid, p.mode).map_err(StepError::Sys)
    }

    /// C6: reads everything back and compares.
    fn verify(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        let object = self.staged(name, r)?;
        let p = self.seams.quota.project(object.as_fd()).map_err(StepError::Sys)?;
        if p != project(r) {
            return Err(StepError::Mismatch(format!("project {} inherit {}", p.id, p.inherit)));
        }
        let copy = self.seams.attributes.get(object.as_fd(), COPY).map_err(StepError::Sys)?;
        let same = copy.is_some_and(|c| c == encode_copy(r));
        if !same {
            return Err(StepError::Mismatch("the record's copy".to_owned()));
        }
        self.check_size(object.as_fd(), r)?;
        self.check_limits(r)
    }

    /// After a crash the record of a snapshot knows nothing of its cut: its copy does.
    fn recall(&self, r: &mut Record) -> Result<(), StepError> {
        if !r.id.is_snapshot() || r.cut.is_some() {
            return Ok(());
        }
        let object = self.object(r).map_err(StepError::Sys)?;
        let copy = self.seams.attributes.get(object.as_fd(), COPY).map_err(StepError::Sys)?;
        let found = copy.and_then(|c| decode_copy(&r.id, &c));
        let found = found.ok_or_else(|| StepError::Mismatch("no copy of the record".to_owned()))?;
        (r.cut, r.size) = (found.cut, found.size);
        Ok(())
    }

    /// E3: what the kernel has is what the record says.
    fn read_back(&self, r: &Record) -> Result<(), StepError> {
        if r.shape() == Shape::Image {
            self.check_size(self.object(r).map_err(StepError::Sys)?.as_fd(), r)?;
        }
        self.check_limits(r)
    }

    /// The kernel's limits are those of the record.
    fn check_limits(&self, r: &Record) -> Result<(), StepError> {
        let found = self.usage(r.project)?.unwrap_or_default().limits;
        if found == limits(r) {
            Ok(())
        } else {
            let Limits { bytes, inodes } = found;
            Err(StepError::Mismatch(format!("limits of {bytes} bytes and {inodes} inodes")))
        }
    }

    /// An image has the size of the record.
    fn check_size(&self, object: BorrowedFd<'_>, r: &Record) -> Result<(), StepError> {
        let wanted = r.expand.unwrap_or(r.size).limit.0;
        match r.shape() {
            Shape::Directory => Ok(()),
            Shape::Image => match self.size_of(object)? {
                found if found == wanted => Ok(()),
                found => Err(StepError::Mismatch(format!("an image of {found} bytes"))),
            },
        }
    }

    /// E2: new limits, or a new size of the image.
    fn resize(&self, r: &Record) -> Result<(), StepError> {
        match r.shape() {
            Shape::Directory => self.set_limits(r.project, limits(r)),
            Shape::Image => self.resize_image(r),
        }
    }

    /// A full volume may have no room for a longer copy: the registry has the record.
    fn refresh_copy(&self, r: &Record) -> Result<(), StepError> {
        let object = self.object(r).map_err(StepError::Sys)?;
        let mut shown = r.clone();
        shown.size = r.expand.unwrap_or(r.size);
        match self.seams.attributes.set(object.as_fd(), COPY, &encode_copy(&shown)) {
            Err(e) if e.is(Errno::NOSPC) || e.is(Errno::DQUOT) => Ok(()),
            other => other.map_err(StepError::Sys),
        }
    }

    /// Gives an adopted image its project and its copy.
    pub(crate) fn mark_adopted(&self, r: &Record) -> Result<(), StepError> {
        let object = self.object(r).map_err(StepError::Sys)?;
        self.seams.quota.set_project(object.as_fd(), project(r)).map_err(StepError::Sys)?;
        self.refresh_copy(r)
    }

    /// An empty directory without a project makes way (rule 7.8 d); anything else stays.
    fn take_over(&self, name: &CStr) -> Result<(), StepError> {
        let dir = walk::open_dir(self.volumes.as_fd(), name).map_err(|_| StepError::HoldsData)?;
        let p = self.seams.quota.project(dir.as_fd()).map_err(StepError::Sys)?;
        if p.id != 0 {
            return Err(StepError::HoldsData);
        }
        match rustix::fs::unlinkat(&self.volumes, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Err(StepError::HoldsData),
            Err(e) => Err(StepError::Sys(SysError::new("rmdir", name.to_string_lossy(), e))),
        }
    }

    /// Names in `volumes`, or in `snapshots`.
    pub(crate) fn entries(&self, of_snapshots: bool) -> Result<Vec<CString>, StepError> {
        let dir = if of_snapshots { &self.snapshots } else { &self.volumes };
        walk::names(dir.as_fd()).map_err(StepError::Sys)
    }

    /// What the entry of `id` is, judged without a record (rule 7.8).
    pub(crate) fn examine(&self, id: &VolumeId) -> Result<Found, StepError> {
        let name = component(id.entry());
        let (object, shape) = match walk::open_dir(self.home(id), &name) {
            Ok(dir) => (dir, Shape::Directory),
            Err(_) => match walk::open_file(self.home(id), &name, OFlags::RDONLY) {
                Ok(file) => (file, Shape::Image),
                Err(_) => return Ok(Found::Foreign),
            },
        };
        let p = self.seams.quota.project(object.as_fd()).map_err(StepError::Sys)?;
        let copy = self.seams.attributes.get(object.as_fd(), COPY).map_err(StepError::Sys)?;
        if let Some(r) = copy.and_then(|c| decode_copy(id, &c)) {
            // The copy is believed where the kernel agrees.
            if p.id == r.project && shape == r.shape() {
                return Ok(Found::Copy(Box::new(r)));
            }
        }
        if id.is_snapshot() {
            return Ok(Found::Foreign);
        }
        if shape == Shape::Image {
            // Whole sectors: an image of an earlier release. Anything else is none of ours.
            return Ok(match self.size_of(object.as_fd())? {
                0 => Found::Foreign,
                n if n.is_multiple_of(512) => Found::Image(n),
                _ => Found::Foreign,
            });
        }
        match self.usage(p.id)? {
            Some(u) if p.id != 0 && u.limits.bytes != 0 => Ok(Found::Limited(p.id, u)),
            _ => Ok(Found::Unlimited),
        }
    }

    /// Whether project and limits are those of the record; repairs them if not and says what
    /// was wrong. `None`: the object is missing or something else.
    pub(crate) fn reassert(&self, r: &Record) -> Result<Option<Vec<String>>, StepError> {
        let object = match self.object(r) {
            Ok(object) => object,
            Err(e) if e.is(Errno::NOENT) || is_other(&e) => return Ok(None),
            Err(e) => return Err(StepError::Sys(e)),
        };
        let mut wrong = Vec::new();
        let want = limits(r);
        let found = self.usage(r.project)?.unwrap_or_default().limits;
        if found != want {
            wrong.push(format!("limits were {} bytes, {} inodes", found.bytes, found.inodes));
            self.set_limits(r.project, want)?;
        }
        let p = self.seams.quota.project(object.as_fd()).map_err(StepError::Sys)?;
        if p != project(r) {
            wrong.push(format!("project of the root was {}, inherit {}", p.id, p.inherit));
            self.seams.quota.set_project(object.as_fd(), project(r)).map_err(StepError::Sys)?;
        }
        Ok(Some(wrong))
    }

    /// Projects with limits or usage in `pool` that are not `known`.
    pub(crate) fn foreign_projects(
        &self,
        pool: &std::ops::RangeInclusive<u32>,
        known: &dyn Fn(u32) -> bool,
    ) -> Result<Vec<u32>, StepError> {
        let mut out = Vec::new();
        let mut from = *pool.start();
        while let Ok(id) = ProjectId::new(from) {
            let next = self.seams.quota.next(self.volumes.as_fd(), id).map_err(StepError::Sys)?;
            let Some((found, usage)) = next else { break };
            if found.get() > *pool.end() {
                break;
            }
            if !usage.is_zero() && !known(found.get()) {
                out.push(found.get());
            }
            from = found.get() + 1;
        }
        Ok(out)
    }

    /// Total and other bytes; `others` are projects that are not volumes.
    pub(crate) fn room(&self, others: &[u32], base: Room) -> Result<Room, StepError> {
        let space = self.seams.filesystem.space(self.volumes.as_fd()).map_err(StepError::Sys)?;
        let unowned = self.seams.quota.unowned(self.volumes.as_fd()).map_err(StepError::Sys)?;
        let mut other = unowned.used_bytes;
        for id in others {
            other = other.saturating_add(self.usage(*id)?.unwrap_or_default().used_bytes);
        }
        Ok(Room { total: space.total, other, ..base })
    }

    /// Bytes free on the filesystem.
    pub(crate) fn free_bytes(&self) -> Result<u64, StepError> {
        let space = self.seams.filesystem.space(self.volumes.as_fd()).map_err(StepError::Sys)?;
        Ok(space.free)
    }
}

/// Whether something is there that is not what was looked for.
fn is_other(e: &SysError) -> bool {
    let other = [Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::XDEV, Errno::INVAL, Errno::STALE];
    other.iter().any(|n| e.is(*n))
}

/// The project that the object of `r` has to have. Only a directory hands it on.
fn project(r: &Record) -> Project {
    Project { id: r.project, inherit: r.shape() == Shape::Directory }
}

/// The limits that are to be in force: those of the target while an expansion runs.
fn limits(r: &Record) -> Limits {
    if !r.is_limited() {
        return Limits::default();
    }
    let size = r.expand.unwrap_or(r.size);
    Limits { bytes: size.limit.0, inodes: size.inodes.0 }
}

/// Ids and trash keys contain no NUL (id.rs).
pub(crate) fn component(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

pub(crate) fn sync(fd: BorrowedFd<'_>, what: &'static str) -> Result<(), StepError> {
    rustix::fs::fsync(fd).map_err(|e| StepError::Sys(SysError::new("fsync", what, e)))
}

fn retry(
    mut call: impl FnMut() -> Result<(), Errno>,
    name: &'static str,
    r: &Record,
) -> Result<(), StepError> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => {
                return other.map_err(|e| StepError::Sys(SysError::new(name, r.id.as_str(), e)));
            }
        }
    }
}
