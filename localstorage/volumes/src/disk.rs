//! Does the steps of the protocol on the disk. Blocking; called on the pool and at start.
//!
//! Owner: nobody; shared by all jobs of one incarnation. Two jobs never work on the same
//! volume, because the owner task gives each volume one operation at a time.
//!
//! Invariants: every path is an id relative to a held directory; what is not a directory is
//! never opened, followed or removed in `volumes`; a step that failed may be done again.
//!
//! Must not know: why a step is done, or the registry.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodesys::{Limits, Project, ProjectId, SysError, Usage, walk};
use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Errno;

use crate::engine::{Seams, VolumeDirs};
use crate::id::VolumeId;
use crate::ledger::Room;
use crate::plan::{Entry, Observed, Step};
use crate::record::{Record, decode_copy, encode_copy};

/// Where an entry keeps the copy of its record.
const COPY: &str = "trusted.hamlet.volume";
/// Given up when the registry finds no space, so that deletes work on a full disk.
const BALLAST: &str = "ballast";
const BALLAST_BYTES: u64 = 8 << 20;
/// How often and how long to wait for XFS to finish removed inodes in the background, which
/// it does not announce: 5, 10, … 320 ms.
const INACTIVATION_TRIES: u32 = 7;

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
    staging: OwnedFd,
    trash: OwnedFd,
    /// Canonical paths, as the mount table shows them.
    pub(crate) volumes_path: PathBuf,
    pub(crate) state_path: PathBuf,
    pub(crate) seams: Seams,
    pub(crate) uuid: [u8; 16],
    pub(crate) block: u64,
    /// Set when the incarnation ends: long work gives up at the next entry.
    pub(crate) stopping: Arc<AtomicBool>,
}

/// What was found on an entry of `volumes` without a record.
pub(crate) enum Found {
    /// A directory with a valid copy of its record.
    Copy(Box<Record>),
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
            staging,
            trash,
            seams,
            uuid: identity.uuid,
            block: identity.block_size,
            stopping: Arc::new(AtomicBool::new(false)),
        })
    }

    fn go_on(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed)
    }

    /// Does one step for the volume of `r`. Commits are not done here.
    pub(crate) fn step(&self, step: Step, r: &Record) -> Result<(), StepError> {
        if !self.go_on() {
            return Err(StepError::Stopped);
        }
        self.act(step, r)?;
        self.seams.faults.point(step.point());
        Ok(())
    }

    fn act(&self, step: Step, r: &Record) -> Result<(), StepError> {
        let name = component(r.id.as_str());
        match step {
            Step::ClearStaging => self.clear_staging(&name),
            Step::TakeOver => self.take_over(&name),
            Step::MakeStaging => {
                retry(|| rustix::fs::mkdirat(&self.staging, &name, Mode::RWXU), "mkdirat", r)
            }
            Step::SetLimits => self.set_limits(r.project, limits(r)),
            Step::SetProject => self.set_project(&name, r),
            Step::WriteCopy => {
                let dir = self.staged(&name)?;
                let copy = encode_copy(r);
                self.seams.attributes.set(dir.as_fd(), COPY, &copy).map_err(StepError::Sys)
            }
            Step::Verify => self.verify(&name, r),
            Step::SyncStaging => sync(self.staged(&name)?.as_fd(), "staging"),
            Step::Place => {
                let flags = RenameFlags::NOREPLACE;
                let (from, to) = (&self.staging, &self.volumes);
                let rename = || rustix::fs::renameat_with(from, &name, to, &name, flags);
                retry(rename, "renameat2", r)
            }
            Step::SyncPlaced => {
                sync(self.volumes.as_fd(), "volumes")?;
                sync(self.staging.as_fd(), "staging")
            }
            Step::FreeProject => self.free_project(r.project),
            Step::ReadBack => self.read_back(r),
            Step::RefreshCopy => self.refresh_copy(&name, r),
            Step::MoveToTrash => {
                let to = component(&r.trash_key());
                let flags = RenameFlags::NOREPLACE;
                let (from, trash) = (&self.volumes, &self.trash);
                let rename = || rustix::fs::renameat_with(from, &name, trash, &to, flags);
                retry(rename, "renameat2", r)
            }
            Step::SyncTrash => {
                sync(self.trash.as_fd(), "trash")?;
                sync(self.volumes.as_fd(), "volumes")
            }
            Step::Purge => self.purge(&r.trash_key()),
            Step::CommitIntent
            | Step::CommitReady
            | Step::Forget
            | Step::CommitTarget
            | Step::CommitSize
            | Step::CommitOldSize
            | Step::CommitDeleting
            | Step::CommitTrashed
            | Step::CommitPurged => Ok(()),
        }
    }

    /// What is on disk for `id`, whose record has `project`.
    pub(crate) fn observe(&self, id: &VolumeId, project: u32) -> Result<Observed, StepError> {
        let name = component(id.as_str());
        let staging = match rustix::fs::statat(&self.staging, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => true,
            Err(Errno::NOENT) => false,
            Err(e) => {
                return Err(StepError::Sys(SysError::new("fstatat", id.as_str(), e)));
            }
        };
        let entry = match walk::open_dir(self.volumes.as_fd(), &name) {
            Ok(dir) => {
                let p = self.seams.quota.project(dir.as_fd()).map_err(StepError::Sys)?;
                let ours = p == Project { id: project, inherit: true };
                if ours { Entry::Ours } else { Entry::Altered }
            }
            Err(e) if e.is(Errno::NOENT) => Entry::Absent,
            Err(e) if e.is(Errno::NOTDIR) || e.is(Errno::LOOP) || e.is(Errno::XDEV) => Entry::Alien,
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

    fn set_limits(&self, project: u32, l: Limits) -> Result<(), StepError> {
        let id = ProjectId::new(project).map_err(|_| StepError::NoProject)?;
        self.seams.quota.set_limits(self.volumes.as_fd(), id, l).map_err(StepError::Sys)
    }

    fn staged(&self, name: &CStr) -> Result<OwnedFd, StepError> {
        walk::open_dir(self.staging.as_fd(), name).map_err(StepError::Sys)
    }

    fn set_project(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        let dir = self.staged(name)?;
        let project = Project { id: r.project, inherit: true };
        self.seams.quota.set_project(dir.as_fd(), project).map_err(StepError::Sys)?;
        let p = &r.params;
        self.seams.attributes.own(dir.as_fd(), p.uid, p.gid, p.mode).map_err(StepError::Sys)
    }

    /// C6: reads everything back and compares.
    fn verify(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        let dir = self.staged(name)?;
        let p = self.seams.quota.project(dir.as_fd()).map_err(StepError::Sys)?;
        if p != (Project { id: r.project, inherit: true }) {
            return Err(StepError::Mismatch(format!("project {} inherit {}", p.id, p.inherit)));
        }
        let copy = self.seams.attributes.get(dir.as_fd(), COPY).map_err(StepError::Sys)?;
        let same = copy.is_some_and(|c| c == encode_copy(r));
        if !same {
            return Err(StepError::Mismatch("the record's copy".to_owned()));
        }
        self.read_back(r)
    }

    /// The kernel's limits are those of the record.
    fn read_back(&self, r: &Record) -> Result<(), StepError> {
        let found = self.usage(r.project)?.unwrap_or_default().limits;
        if found == limits(r) {
            Ok(())
        } else {
            let Limits { bytes, inodes } = found;
            Err(StepError::Mismatch(format!("limits of {bytes} bytes and {inodes} inodes")))
        }
    }

    /// A full volume may have no room for a longer copy: the registry has the record.
    fn refresh_copy(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        let dir = walk::open_dir(self.volumes.as_fd(), name).map_err(StepError::Sys)?;
        let mut shown = r.clone();
        shown.size = r.expand.unwrap_or(r.size);
        match self.seams.attributes.set(dir.as_fd(), COPY, &encode_copy(&shown)) {
            Err(e) if e.is(Errno::NOSPC) || e.is(Errno::DQUOT) => Ok(()),
            other => other.map_err(StepError::Sys),
        }
    }

    /// Moves what an earlier attempt left to the trash and removes it there. A volume without
    /// content source holds nothing while it is staged.
    fn clear_staging(&self, name: &CStr) -> Result<(), StepError> {
        let to = self.trash_name(name)?;
        let flags = RenameFlags::NOREPLACE;
        let (from, trash) = (&self.staging, &self.trash);
        rustix::fs::renameat_with(from, name, trash, &to, flags)
            .map_err(|e| StepError::Sys(SysError::new("renameat2", to.to_string_lossy(), e)))?;
        self.remove(&to)
    }

    /// A name in the trash that nothing has: `NAME.s<n>`.
    fn trash_name(&self, name: &CStr) -> Result<CString, StepError> {
        for n in 0_u64.. {
            let to = component(&format!("{}.s{n}", name.to_string_lossy()));
            match rustix::fs::statat(&self.trash, &to, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(to),
                Ok(_) => {}
                Err(e) => {
                    let what = to.to_string_lossy();
                    return Err(StepError::Sys(SysError::new("fstatat", what, e)));
                }
            }
        }
        Err(StepError::Stopped)
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

    /// D6: zero limits, nothing in use.
    pub(crate) fn free_project(&self, project: u32) -> Result<(), StepError> {
        if project == 0 {
            return Ok(());
        }
        self.set_limits(project, Limits::default())?;
        for n in 0..INACTIVATION_TRIES {
            let u = self.usage(project)?.unwrap_or_default();
            if u.used_bytes == 0 && u.used_inodes == 0 {
                return Ok(());
            }
            if n + 1 == INACTIVATION_TRIES || !self.go_on() {
                let (bytes, inodes) = (u.used_bytes, u.used_inodes);
                return Err(StepError::StillInUse { bytes, inodes });
            }
            // XFS finishes removed inodes in the background; asking for id 0 expedites it.
            self.seams.quota.unowned(self.volumes.as_fd()).map_err(StepError::Sys)?;
            std::thread::sleep(Duration::from_millis(5 << n));
        }
        Ok(())
    }

    /// D5 for the item `key`, and for parts of it that an interrupted purge has flattened.
    pub(crate) fn purge(&self, key: &str) -> Result<(), StepError> {
        let prefix = format!("{key}~").into_bytes();
        for name in walk::names(self.trash.as_fd()).map_err(StepError::Sys)? {
            if name.as_bytes().starts_with(&prefix) {
                self.remove(&name)?;
            }
        }
        self.remove(&component(key))
    }

    fn remove(&self, name: &CStr) -> Result<(), StepError> {
        let mut go_on = || self.go_on();
        let done = walk::remove_tree(self.trash.as_fd(), name, &mut go_on);
        if done.map_err(StepError::Sys)?.stopped { Err(StepError::Stopped) } else { Ok(()) }
    }

    /// Names of the trash items.
    pub(crate) fn trash_names(&self) -> Result<Vec<String>, StepError> {
        let names = walk::names(self.trash.as_fd()).map_err(StepError::Sys)?;
        Ok(names.into_iter().filter_map(|n| n.into_string().ok()).collect())
    }

    /// Moves everything in `staging` that is not in `keep` to the trash; how many.
    pub(crate) fn sweep_staging(&self, keep: &dyn Fn(&str) -> bool) -> Result<u64, StepError> {
        let mut n = 0;
        for name in walk::names(self.staging.as_fd()).map_err(StepError::Sys)? {
            if !name.to_str().is_ok_and(keep) {
                self.clear_staging(&name)?;
                n += 1;
            }
        }
        Ok(n)
    }

    /// Names in `volumes`.
    pub(crate) fn entries(&self) -> Result<Vec<CString>, StepError> {
        walk::names(self.volumes.as_fd()).map_err(StepError::Sys)
    }

    /// What the entry of `id` is, judged without a record (rule 7.8).
    pub(crate) fn examine(&self, id: &VolumeId) -> Result<Found, StepError> {
        let name = component(id.as_str());
        let Ok(dir) = walk::open_dir(self.volumes.as_fd(), &name) else {
            return Ok(Found::Foreign);
        };
        let p = self.seams.quota.project(dir.as_fd()).map_err(StepError::Sys)?;
        let copy = self.seams.attributes.get(dir.as_fd(), COPY).map_err(StepError::Sys)?;
        if let Some(r) = copy.and_then(|c| decode_copy(id, &c)) {
            // The copy is believed where the kernel agrees.
            if p.id == r.project {
                return Ok(Found::Copy(Box::new(r)));
            }
        }
        match self.usage(p.id)? {
            Some(u) if p.id != 0 && u.limits.bytes != 0 => Ok(Found::Limited(p.id, u)),
            _ => Ok(Found::Unlimited),
        }
    }

    /// Whether root id, PROJINHERIT and limits are those of the record; repairs them if not
    /// and says what was wrong. `None`: the entry is missing or not a directory.
    pub(crate) fn reassert(&self, r: &Record) -> Result<Option<Vec<String>>, StepError> {
        let name = component(r.id.as_str());
        let dir = match walk::open_dir(self.volumes.as_fd(), &name) {
            Ok(dir) => dir,
            Err(e) if [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].iter().any(|n| e.is(*n)) => {
                return Ok(None);
            }
            Err(e) => return Err(StepError::Sys(e)),
        };
        let mut wrong = Vec::new();
        let want = limits(r);
        let found = self.usage(r.project)?.unwrap_or_default().limits;
        if found != want {
            wrong.push(format!("limits were {} bytes, {} inodes", found.bytes, found.inodes));
            self.set_limits(r.project, want)?;
        }
        let project = Project { id: r.project, inherit: true };
        let p = self.seams.quota.project(dir.as_fd()).map_err(StepError::Sys)?;
        if p != project {
            wrong.push(format!("project of the root was {}, inherit {}", p.id, p.inherit));
            self.seams.quota.set_project(dir.as_fd(), project).map_err(StepError::Sys)?;
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

    /// Makes the ballast if it is missing. No space for it is no error.
    pub(crate) fn make_ballast(&self) -> Result<(), StepError> {
        let path = self.state_path.join(BALLAST);
        let fail = |e| StepError::File(path.display().to_string(), e);
        if path.exists() {
            return Ok(());
        }
        let file = fs::File::create_new(&path).map_err(fail)?;
        if let Err(e) = self.seams.extents.preallocate(file.as_fd(), BALLAST_BYTES) {
            fs::remove_file(&path).map_err(fail)?;
            return if e.is(Errno::NOSPC) { Ok(()) } else { Err(StepError::Sys(e)) };
        }
        Ok(())
    }

    /// Gives the ballast up; whether there was one.
    pub(crate) fn drop_ballast(&self) -> bool {
        fs::remove_file(self.state_path.join(BALLAST)).is_ok()
    }
}

/// The limits that are to be in force: those of the target while an expansion runs.
fn limits(r: &Record) -> Limits {
    let size = r.expand.unwrap_or(r.size);
    Limits { bytes: size.limit.0, inodes: size.inodes.0 }
}

/// Ids and trash keys contain no NUL (id.rs).
pub(crate) fn component(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn sync(fd: BorrowedFd<'_>, what: &'static str) -> Result<(), StepError> {
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
