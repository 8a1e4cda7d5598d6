//! Content of snapshots and copies: files share their extents with the source. Blocking.
//!
//! A block image is cloned in one call, between two writes. A directory tree is cloned file
//! by file, so each file is of one instant and the tree is not, unless nobody writes:
//! a volume that is published nowhere. Stopping the writers of a published one needs a
//! freezer, which this release does not have; `consistency: require` is refused then.
//!
//! Invariants: nothing outside the source and the copy is opened, however the tree is
//! changed meanwhile: each step is by descriptor, and a way up that does not lead back where
//! it came from ends the copy; depth costs neither stack nor descriptors; device nodes, FIFOs
//! and sockets are made anew and never opened.
//!
//! Must not know: registry, limits.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

use nodesys::{SysError, walk};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::disk::{Disk, StepError, component, sync};
use crate::id::VolumeId;
use crate::params::Consistency;
use crate::record::{Cut, Record, Shape, Size};
use crate::types::VolumeKind;

/// Names below a snapshot's entry.
const TREE: &CStr = c"tree";
const IMAGE: &CStr = c"image";

/// Extended attributes that belong to the content. Ours and the system's own are not copied.
const COPIED_XATTRS: [&[u8]; 3] = [b"user.", b"security.", b"system.posix_acl_"];

impl Disk {
    /// C5. A snapshot's record learns its cut and what it pins.
    pub(crate) fn fill(&self, r: &mut Record) -> Result<(), StepError> {
        if r.id.is_snapshot() {
            return self.cut(r);
        }
        let source = r.source_object();
        match (r.shape(), source) {
            (Shape::Directory, None) => Ok(()),
            (Shape::Directory, Some(source)) => {
                let from = self.content_dir(&source)?;
                if !source.is_snapshot() {
                    self.check_consistency(r, &source)?;
                }
                let to = self.staged(&component(r.id.as_str()), r)?;
                self.copy_tree(from, to)
            }
            (Shape::Image, source) => {
                let name = component(r.id.as_str());
                let file = walk::open_file(self.staging.as_fd(), &name, OFlags::RDWR);
                let file = file.map_err(StepError::Sys)?;
                if let Some(source) = source {
                    self.clone_image(&source, file.as_fd())?;
                }
                // What was allocated and never written is a hole in a clone: allocate again.
                self.size_image(file.as_fd(), r, r.size.limit.0)
            }
        }
    }

    fn cut(&self, r: &mut Record) -> Result<(), StepError> {
        let source = r.source_object().ok_or(StepError::SourceGone)?;
        let entry = self.staged(&component(r.id.as_str()), r)?;
        let atomic = match r.kind {
            VolumeKind::Block => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&entry, IMAGE, flags, Mode::RUSR | Mode::WUSR);
                let image = made.map_err(|e| sys("openat", IMAGE, e))?;
                self.clone_image(&source, image.as_fd())?;
                true
            }
            VolumeKind::Filesystem => {
                let atomic = self.check_consistency(r, &source)?;
                rustix::fs::mkdirat(&entry, TREE, Mode::RWXU)
                    .map_err(|e| sys("mkdirat", TREE, e))?;
                let tree = walk::open_dir(entry.as_fd(), TREE).map_err(StepError::Sys)?;
                self.copy_tree(self.content_dir(&source)?, tree)?;
                // Whoever published it meanwhile may have written.
                atomic && self.mounted_at(&source)?.is_none()
            }
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        r.cut = Some(Cut { unix_ms, atomic });
        let pinned = self.usage(r.project)?.unwrap_or_default().used_bytes;
        r.size = Size::of_snapshot(r.size.capacity, pinned);
        Ok(())
    }

    fn mounted_at(&self, source: &VolumeId) -> Result<Option<PathBuf>, StepError> {
        let (table, marks) = self.mounts()?;
        Ok(marks.in_use(&table, source))
    }

    /// Whether a cut of the directory volume `source` is of one instant; refused if it has to
    /// be and is not.
    fn check_consistency(&self, r: &Record, source: &VolumeId) -> Result<bool, StepError> {
        match self.mounted_at(source)? {
            None => Ok(true),
            Some(at) if r.params.consistency == Consistency::Require => {
                Err(StepError::Inconsistent(at.display().to_string()))
            }
            Some(_) => Ok(false),
        }
    }

    /// The root of the content of a directory volume or of a snapshot of one.
    fn content_dir(&self, source: &VolumeId) -> Result<OwnedFd, StepError> {
        let gone = |e: SysError| {
            if e.is(Errno::NOENT) { StepError::SourceGone } else { StepError::Sys(e) }
        };
        let entry = walk::open_dir(self.home(source), &component(source.entry())).map_err(gone)?;
        if source.is_snapshot() {
            return walk::open_dir(entry.as_fd(), TREE).map_err(gone);
        }
        Ok(entry)
    }

    /// Makes `to` share everything of the image of `source`.
    fn clone_image(&self, source: &VolumeId, to: BorrowedFd<'_>) -> Result<(), StepError> {
        let gone = |e: SysError| {
            if e.is(Errno::NOENT) { StepError::SourceGone } else { StepError::Sys(e) }
        };
        let name = component(source.entry());
        let from = if source.is_snapshot() {
            let entry = walk::open_dir(self.home(source), &name).map_err(gone)?;
            walk::open_file(entry.as_fd(), IMAGE, OFlags::RDONLY).map_err(gone)?
        } else {
            // What was written to the device may still be on its way to the file.
            let devices = self.devices()?;
            for (no, _) in devices.iter().filter(|(_, id)| *id == source) {
                self.seams.loops.flush(*no).map_err(StepError::Sys)?;
            }
            walk::open_file(self.volumes.as_fd(), &name, OFlags::RDONLY).map_err(gone)?
        };
        self.seams.extents.clone_file(from.as_fd(), to).map_err(StepError::Sys)
    }

    /// Whether files can share extents here: tried once at each start.
    pub(crate) fn can_clone(&self) -> bool {
        let try_it = || -> Result<(), StepError> {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let make = || {
                rustix::fs::openat(&self.staging, c".", flags, Mode::RUSR)
                    .map_err(|e| sys("openat", c"a probe", e))
            };
            let (from, to) = (make()?, make()?);
            rustix::io::write(&from, &[1; 4096]).map_err(|e| sys("write", c"a probe", e))?;
            self.seams.extents.clone_file(from.as_fd(), to.as_fd()).map_err(StepError::Sys)
        };
        try_it().is_ok()
    }

    /// C7. A copied tree is made durable file by file: syncing the whole filesystem would wait
    /// for everybody's data.
    pub(crate) fn sync_staging(&self, name: &CStr, r: &Record) -> Result<(), StepError> {
        let object = self.staged(name, r)?;
        if r.shape() == Shape::Directory && r.source.is_some() {
            let visit = |v: Visit<'_>| match v {
                Visit::Entry { dir, name, stat }
                    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile =>
                {
                    let file = walk::open_file(dir, name, OFlags::RDONLY);
                    sync(file.map_err(StepError::Sys)?.as_fd(), "a copied file")
                }
                Visit::Entry { .. } => Ok(()),
                Visit::Leave { dir } => sync(dir, "a copied directory"),
            };
            let root = rustix::io::dup(&object).map_err(|e| sys("dup", name, e))?;
            self.walk(root, visit)?;
        }
        sync(object.as_fd(), "staging")
    }

    /// Calls `visit` for each entry below `root` and for each directory after its entries.
    /// Nothing else may change this tree.
    fn walk(
        &self,
        root: OwnedFd,
        mut visit: impl FnMut(Visit<'_>) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let mut at = Place::enter(root)?;
        let mut above: Vec<Level> = Vec::new();
        loop {
            let Some(name) = at.level.todo.pop() else {
                visit(Visit::Leave { dir: at.dir.as_fd() })?;
                let Some(level) = above.pop() else { return Ok(()) };
                at = at.up(level)?;
                continue;
            };
            if !self.go_on() {
                return Err(StepError::Stopped);
            }
            let stat = stat_at(at.dir.as_fd(), &name)?;
            visit(Visit::Entry { dir: at.dir.as_fd(), name: &name, stat: &stat })?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let below = walk::open_dir(at.dir.as_fd(), &name).map_err(StepError::Sys)?;
                let here = std::mem::replace(&mut at, Place::enter(below)?);
                above.push(here.level);
            }
        }
    }

    /// Copies all of `from` into the empty directory `to`, and its own attributes at the end.
    fn copy_tree(&self, from: OwnedFd, to: OwnedFd) -> Result<(), StepError> {
        let root = rustix::io::dup(&to).map_err(|e| sys("dup", c"the copy", e))?;
        let mut copy = TreeCopy { disk: self, root, linked: HashMap::new() };
        let mut source = Place::enter(from)?;
        let mut target = Place { dir: to, level: Level::default() };
        target.level.inode = inode(target.dir.as_fd())?;
        let mut path = Rc::new(Path { name: None, parent: None });
        let mut above: Vec<(Level, Level, Rc<Path>)> = Vec::new();
        loop {
            let Some(name) = source.level.todo.pop() else {
                attributes(source.dir.as_fd(), target.dir.as_fd())?;
                let Some((s, t, p)) = above.pop() else { return Ok(()) };
                source = source.up(s)?;
                target = target.up(t)?;
                path = p;
                continue;
            };
            if !self.go_on() {
                return Err(StepError::Stopped);
            }
            let below = match copy.entry(source.dir.as_fd(), target.dir.as_fd(), &name, &path) {
                Ok(below) => below,
                // Removed by its owner since it was listed.
                Err(StepError::Sys(e)) if e.is(Errno::NOENT) => continue,
                Err(e) => return Err(e),
            };
            if let Some((s, t)) = below {
                let s = std::mem::replace(&mut source, Place::enter(s)?);
                let inode = inode(t.as_fd())?;
                let entered = Place { dir: t, level: Level { inode, todo: Vec::new() } };
                let t = std::mem::replace(&mut target, entered);
                let child = Rc::new(Path { name: Some(name), parent: Some(path.clone()) });
                above.push((s.level, t.level, std::mem::replace(&mut path, child)));
            }
        }
    }
}

/// What a walk meets.
enum Visit<'a> {
    Entry { dir: BorrowedFd<'a>, name: &'a CStr, stat: &'a Stat },
    Leave { dir: BorrowedFd<'a> },
}

/// Device and inode.
type Inode = (u64, u64);

/// What is kept of a directory while the walk is below it: no descriptor.
#[derive(Default)]
struct Level {
    inode: Inode,
    todo: Vec<CString>,
}

/// The directory a walk is in.
struct Place {
    dir: OwnedFd,
    level: Level,
}

impl Place {
    fn enter(dir: OwnedFd) -> Result<Place, StepError> {
        let todo = walk::names(dir.as_fd()).map_err(StepError::Sys)?;
        let level = Level { inode: inode(dir.as_fd())?, todo };
        Ok(Place { dir, level })
    }

    /// Back to the directory above, if it still is the one above.
    fn up(self, level: Level) -> Result<Place, StepError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, c"..", flags, Mode::empty())
            .map_err(|e| sys("openat", c"..", e))?;
        if inode(dir.as_fd())? == level.inode {
            Ok(Place { dir, level })
        } else {
            Err(StepError::Moved)
        }
    }
}

/// The way to a directory of the copy, as names from its root.
struct Path {
    name: Option<CString>,
    parent: Option<Rc<Path>>,
}

struct TreeCopy<'a> {
    disk: &'a Disk,
    root: OwnedFd,
    /// Files with several names: where the first one was made.
    linked: HashMap<Inode, (Rc<Path>, CString)>,
}

impl TreeCopy<'_> {
    /// Copies one entry. For a directory: both sides of it, to go on in.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        path: &Rc<Path>,
    ) -> Result<Option<(OwnedFd, OwnedFd)>, StepError> {
        let stat = stat_at(from, name)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let source = walk::open_dir(from, name).map_err(StepError::Sys)?;
            rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(|e| sys("mkdirat", name, e))?;
            let target = walk::open_dir(to, name).map_err(StepError::Sys)?;
            return Ok(Some((source, target)));
        }
        let key = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some((dir, first)) = self.linked.get(&key)
        {
            let dir = self.reopen(dir)?;
            rustix::fs::linkat(&dir, first, to, name, AtFlags::empty())
                .map_err(|e| sys("linkat", name, e))?;
            return Ok(None);
        }
        match kind {
            FileType::RegularFile => self.file(from, to, name)?,
            FileType::Symlink => symlink(from, to, name, &stat)?,
            _ => special(to, name, &stat, kind)?,
        }
        if stat.st_nlink > 1 {
            self.linked.insert(key, (path.clone(), name.to_owned()));
        }
        Ok(None)
    }

    fn file(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> Result<(), StepError> {
        let source = walk::open_file(from, name, OFlags::RDONLY).map_err(StepError::Sys)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| sys("openat", name, e))?;
        let cloned = self.disk.seams.extents.clone_file(source.as_fd(), target.as_fd());
        cloned.map_err(StepError::Sys)?;
        attributes(source.as_fd(), target.as_fd())
    }

    /// Opens a directory of the copy by its names.
    fn reopen(&self, path: &Rc<Path>) -> Result<OwnedFd, StepError> {
        let mut names = Vec::new();
        let mut at = Some(path);
        while let Some(p) = at {
            names.extend(p.name.as_deref());
            at = p.parent.as_ref();
        }
        let mut dir = rustix::io::dup(&self.root).map_err(|e| sys("dup", c"the copy", e))?;
        while let Some(name) = names.pop() {
            dir = walk::open_dir(dir.as_fd(), name).map_err(StepError::Sys)?;
        }
        Ok(dir)
    }
}

fn sys(call: &'static str, name: &CStr, e: Errno) -> StepError {
    StepError::Sys(SysError::new(call, name.to_string_lossy(), e))
}

fn stat_at(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, StepError> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| sys("fstatat", name, e))
}

fn inode(fd: BorrowedFd<'_>) -> Result<Inode, StepError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| sys("fstat", c"a directory", e))?;
    Ok((stat.st_dev, stat.st_ino))
}

fn times(stat: &Stat) -> Timestamps {
    let of = |tv_sec: i64, nanos: u64| Timespec {
        tv_sec,
        // Below a thousand million.
        tv_nsec: i64::try_from(nanos).unwrap_or(0),
    };
    Timestamps {
        last_access: of(stat.st_atime, stat.st_atime_nsec),
        last_modification: of(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

/// Gives `to` the owner, extended attributes, mode and times of `from`.
fn attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), StepError> {
    let stat = rustix::fs::fstat(from).map_err(|e| sys("fstat", c"a source", e))?;
    let (uid, gid) = owner(&stat);
    rustix::fs::fchown(to, uid, gid).map_err(|e| sys("fchown", c"a copy", e))?;
    xattrs(from, to)?;
    // After the owner, which clears set-id bits, and after ACLs, which set group bits.
    let mode = Mode::from_raw_mode(stat.st_mode);
    rustix::fs::fchmod(to, mode).map_err(|e| sys("fchmod", c"a copy", e))?;
    rustix::fs::futimens(to, &times(&stat)).map_err(|e| sys("futimens", c"a copy", e))
}

fn xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), StepError> {
    let mut names = vec![0_u8; 64 << 10];
    let n = match rustix::fs::flistxattr(from, &mut names[..]) {
        Ok(n) => n,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(e) => return Err(sys("flistxattr", c"a source", e)),
    };
    for name in names[..n].split(|b| *b == 0) {
        if !COPIED_XATTRS.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let Ok(name) = CString::new(name) else { continue };
        let mut value = vec![0_u8; 64 << 10];
        let n = match rustix::fs::fgetxattr(from, &name, &mut value[..]) {
            Ok(n) => n,
            Err(Errno::NODATA) => continue,
            Err(e) => return Err(sys("fgetxattr", &name, e)),
        };
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(to, &name, &value[..n], flags)
            .map_err(|e| sys("fsetxattr", &name, e))?;
    }
    Ok(())
}

fn symlink(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
) -> Result<(), StepError> {
    let text =
        rustix::fs::readlinkat(from, name, Vec::new()).map_err(|e| sys("readlinkat", name, e))?;
    rustix::fs::symlinkat(&text, to, name).map_err(|e| sys("symlinkat", name, e))?;
    own_and_time(to, name, stat)
}

fn special(to: BorrowedFd<'_>, name: &CStr, stat: &Stat, kind: FileType) -> Result<(), StepError> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev).map_err(|e| sys("mknodat", name, e))?;
    own_and_time(to, name, stat)?;
    // The umask may have taken bits away. No symlink: it was made two lines above.
    rustix::fs::chmodat(to, name, mode, AtFlags::empty()).map_err(|e| sys("fchmodat", name, e))
}

fn own_and_time(to: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<(), StepError> {
    let (uid, gid) = owner(stat);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(to, name, uid, gid, flags).map_err(|e| sys("fchownat", name, e))?;
    rustix::fs::utimensat(to, name, &times(stat), flags).map_err(|e| sys("utimensat", name, e))
}
