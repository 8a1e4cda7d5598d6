//! Programmable fakes of the seams: quota, mounts, loop devices, attributes and space kept
//! in memory, over files that are real.
//!
//! Invariants: a file is identified by device and inode, so renames keep what the kernel
//! would keep. Every call passes a hook that may fail it or stop the test's program.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use rustix::io::Errno;

use crate::attributes::Attributes;
use crate::error::{Res, SysError};
use crate::filesystem::{Extents, Filesystem, FsIdentity, Space};
use crate::loops::{LoopNo, LoopOptions, LoopStatus, Loops};
use crate::mounts::{Mount, MountAttr, MountTable, Mounter};
use crate::quota::{Limits, Project, ProjectId, Quota, QuotaState, Usage};

/// Device, inode and birth: a number that is used again is another file.
type Inode = (u32, u32, u64, i64, u32);
/// Device of the one filesystem of this kernel, whatever the real ones are.
const DEVICE: (u32, u32) = (8, 1);
/// Device of the filesystem that device nodes are on.
const DEVTMPFS: (u32, u32) = (0, 6);
/// What the node of a device is called until it is bound.
const LOOP_NODE: &str = "fake-loop-";
/// Asked before each call with its name; an errno makes it fail.
pub type Hook = Arc<dyn Fn(&'static str) -> Option<Errno> + Send + Sync>;

#[derive(Default)]
struct State {
    projects: BTreeMap<Inode, Project>,
    limits: BTreeMap<u32, Limits>,
    usage: BTreeMap<u32, (u64, u64)>,
    xattrs: BTreeMap<(Inode, String), Vec<u8>>,
    owners: BTreeMap<Inode, (u32, u32, u32)>,
    mounts: Vec<Mount>,
    loops: BTreeMap<LoopNo, FakeLoop>,
    next_mount: u64,
    space: Space,
    quota_off: bool,
    hook: Option<Hook>,
}

/// An attached device: the file behind it, and the size it shows.
struct FakeLoop {
    file: OwnedFd,
    options: LoopOptions,
    size: u64,
}

/// A kernel in memory: implements every seam; clones share one state.
#[derive(Clone)]
pub struct FakeKernel {
    state: Arc<Mutex<State>>,
}

impl FakeKernel {
    /// A kernel whose filesystem has `total` bytes, all free.
    pub fn new(total: u64) -> FakeKernel {
        let state =
            State { space: Space { total, free: total }, next_mount: 2, ..State::default() };
        FakeKernel { state: Arc::new(Mutex::new(state)) }
    }

    /// Installs or removes the hook.
    pub fn set_hook(&self, hook: Option<Hook>) {
        self.state.lock().hook = hook;
    }

    /// Sets what the files of a project use, beside its directory.
    pub fn set_usage(&self, id: u32, bytes: u64, inodes: u64) {
        self.state.lock().usage.insert(id, (bytes, inodes));
    }

    /// Sets limits as a stranger would.
    pub fn set_foreign_limits(&self, id: u32, limits: Limits) {
        self.state.lock().limits.insert(id, limits);
    }

    /// Sets the filesystem's space.
    pub fn set_space(&self, space: Space) {
        self.state.lock().space = space;
    }

    /// Turns quota enforcement off.
    pub fn set_quota_off(&self, off: bool) {
        self.state.lock().quota_off = off;
    }

    /// Limits of a project, if any were set.
    pub fn limits_of(&self, id: u32) -> Option<Limits> {
        self.state.lock().limits.get(&id).copied()
    }

    /// Owner, group and mode that were set on a file.
    pub fn owner_of(&self, path: &Path) -> Option<(u32, u32, u32)> {
        let inode = inode_of_path(path)?;
        self.state.lock().owners.get(&inode).copied()
    }

    /// Project that was set on a file.
    pub fn project_of(&self, path: &Path) -> Option<Project> {
        let inode = inode_of_path(path)?;
        self.state.lock().projects.get(&inode).copied()
    }

    /// Sets a file's project as the owner of a volume could.
    pub fn set_project_of(&self, path: &Path, project: Project) {
        if let Some(inode) = inode_of_path(path) {
            self.state.lock().projects.insert(inode, project);
        }
    }

    /// Forgets everything a power cut forgets: mounts and loop devices.
    pub fn reboot(&self) {
        let mut s = self.state.lock();
        s.mounts.clear();
        s.loops.clear();
    }

    /// Sizes of the attached devices, by number.
    pub fn loop_sizes(&self) -> BTreeMap<u32, u64> {
        self.state.lock().loops.iter().map(|(n, l)| (n.0, l.size)).collect()
    }

    /// Attaches a file as somebody else would.
    pub fn attach_foreign(&self, path: &Path) -> Option<LoopNo> {
        let file = std::fs::File::open(path).ok()?;
        self.attach(file.as_fd(), &LoopOptions::default()).ok()
    }

    /// Number of mounts.
    pub fn mount_count(&self) -> usize {
        self.state.lock().mounts.len()
    }

    /// Adds a mount that is not ours.
    pub fn mount_foreign(&self, target: &Path) {
        self.push_mount((99, 0), PathBuf::from("/"), target, MountAttr::default());
    }

    fn push_mount(&self, dev: (u32, u32), root: PathBuf, target: &Path, a: MountAttr) {
        let mut s = self.state.lock();
        s.next_mount += 1;
        let mount = Mount {
            id: s.next_mount,
            parent: 1,
            dev,
            root,
            target: target.to_owned(),
            options: a.options().into_iter().map(str::to_owned).collect(),
            fs_type: "xfs".to_owned(),
            source: "fake".to_owned(),
            super_options: vec!["rw".to_owned(), "prjquota".to_owned()],
        };
        s.mounts.push(mount);
    }

    fn check(&self, call: &'static str) -> Res<()> {
        let hook = self.state.lock().hook.clone();
        match hook.and_then(|h| h(call)) {
            Some(e) => Err(SysError::new(call, "a fake", e)),
            None => Ok(()),
        }
    }
}

fn inode_of_path(path: &Path) -> Option<Inode> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let s = rustix::fs::statx(CWD, path, flags, StatxFlags::INO | StatxFlags::BTIME).ok()?;
    Some(key(&s))
}

fn inode(f: BorrowedFd<'_>) -> Res<Inode> {
    let flags = AtFlags::EMPTY_PATH;
    let s = rustix::fs::statx(f, "", flags, StatxFlags::INO | StatxFlags::BTIME)
        .map_err(|e| SysError::new("statx", "a fake", e))?;
    Ok(key(&s))
}

fn key(s: &Statx) -> Inode {
    let born = s.stx_btime;
    (s.stx_dev_major, s.stx_dev_minor, s.stx_ino, born.tv_sec, born.tv_nsec)
}

impl State {
    fn usage_of(&self, id: u32) -> Usage {
        let (used_bytes, files) = self.usage.get(&id).copied().unwrap_or_default();
        // A project with a directory uses at least that inode while the directory exists; the
        // model forgets directories only when told (`set_usage`), so they do not count here.
        Usage {
            limits: self.limits.get(&id).copied().unwrap_or_default(),
            used_bytes,
            used_inodes: files,
        }
    }

    fn known(&self, id: u32) -> bool {
        self.limits.contains_key(&id) || self.usage.contains_key(&id)
    }
}

impl Quota for FakeKernel {
    fn state(&self, _fs: BorrowedFd<'_>) -> Res<QuotaState> {
        self.check("state")?;
        let on = !self.state.lock().quota_off;
        Ok(QuotaState { accounting: on, enforcing: on })
    }

    fn project(&self, f: BorrowedFd<'_>) -> Res<Project> {
        self.check("project")?;
        Ok(self.state.lock().projects.get(&inode(f)?).copied().unwrap_or_default())
    }

    fn set_project(&self, f: BorrowedFd<'_>, p: Project) -> Res<()> {
        self.check("set_project")?;
        self.state.lock().projects.insert(inode(f)?, p);
        Ok(())
    }

    fn set_limits(&self, _fs: BorrowedFd<'_>, id: ProjectId, l: Limits) -> Res<()> {
        self.check("set_limits")?;
        self.state.lock().limits.insert(id.get(), l);
        Ok(())
    }

    fn get(&self, _fs: BorrowedFd<'_>, id: ProjectId) -> Res<Option<Usage>> {
        self.check("get")?;
        let s = self.state.lock();
        Ok(s.known(id.get()).then(|| s.usage_of(id.get())))
    }

    fn unowned(&self, _fs: BorrowedFd<'_>) -> Res<Usage> {
        self.check("unowned")?;
        Ok(self.state.lock().usage_of(0))
    }

    fn next(&self, _fs: BorrowedFd<'_>, from: ProjectId) -> Res<Option<(ProjectId, Usage)>> {
        self.check("next")?;
        let s = self.state.lock();
        let first = s.limits.range(from.get()..).map(|(id, _)| *id).next();
        let second = s.usage.range(from.get()..).map(|(id, _)| *id).next();
        let id = match (first, second) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => return Ok(None),
        };
        Ok(ProjectId::new(id).ok().map(|p| (p, s.usage_of(id))))
    }
}

impl Attributes for FakeKernel {
    fn get(&self, f: BorrowedFd<'_>, name: &str) -> Res<Option<Vec<u8>>> {
        self.check("fgetxattr")?;
        Ok(self.state.lock().xattrs.get(&(inode(f)?, name.to_owned())).cloned())
    }

    fn set(&self, f: BorrowedFd<'_>, name: &str, value: &[u8]) -> Res<()> {
        self.check("fsetxattr")?;
        self.state.lock().xattrs.insert((inode(f)?, name.to_owned()), value.to_vec());
        Ok(())
    }

    fn own(&self, f: BorrowedFd<'_>, uid: u32, gid: u32, mode: u32) -> Res<()> {
        self.check("own")?;
        self.state.lock().owners.insert(inode(f)?, (uid, gid, mode));
        Ok(())
    }
}

impl Filesystem for FakeKernel {
    fn identity(&self, _fs: BorrowedFd<'_>) -> Res<FsIdentity> {
        self.check("identity")?;
        Ok(FsIdentity { xfs: true, uuid: [7; 16], block_size: 4096 })
    }

    fn space(&self, _fs: BorrowedFd<'_>) -> Res<Space> {
        self.check("space")?;
        Ok(self.state.lock().space)
    }
}

impl Extents for FakeKernel {
    fn preallocate(&self, f: BorrowedFd<'_>, len: u64) -> Res<()> {
        self.check("preallocate")?;
        rustix::fs::ftruncate(f, len).map_err(|e| SysError::new("ftruncate", "a fake", e))
    }

    fn clone_file(&self, src: BorrowedFd<'_>, dst: BorrowedFd<'_>) -> Res<()> {
        self.check("clone_file")?;
        // As the kernel: whatever the position of either, all of the source and nothing else.
        let fail = |e: std::io::Error| {
            SysError::new("FICLONE", "a fake", Errno::from_io_error(&e).unwrap_or(Errno::IO))
        };
        let link = |f: BorrowedFd<'_>| format!("/proc/self/fd/{}", f.as_raw_fd());
        let content = std::fs::read(link(src)).map_err(fail)?;
        std::fs::write(link(dst), content).map_err(fail)
    }
}

impl Loops for FakeKernel {
    fn attach(&self, f: BorrowedFd<'_>, o: &LoopOptions) -> Res<LoopNo> {
        self.check("loop_attach")?;
        let fail = |call, e| SysError::new(call, "a fake", e);
        let size = rustix::fs::fstat(f).map_err(|e| fail("fstat", e))?.st_size;
        let file = rustix::io::dup(f).map_err(|e| fail("dup", e))?;
        let mut s = self.state.lock();
        let free = |n: &LoopNo| !s.loops.contains_key(n) && !o.avoid.contains(n);
        let no = (0..).map(LoopNo).find(free).unwrap_or(LoopNo(0));
        let size = u64::try_from(size).unwrap_or(0);
        s.loops.insert(no, FakeLoop { file, options: o.clone(), size });
        Ok(no)
    }

    fn list(&self) -> Res<Vec<LoopStatus>> {
        self.check("loop_list")?;
        let s = self.state.lock();
        let one = |(no, l): (&LoopNo, &FakeLoop)| {
            let stat = rustix::fs::fstat(&l.file).ok()?;
            let link = format!("/proc/self/fd/{}", l.file.as_raw_fd());
            Some(LoopStatus {
                no: *no,
                dev: (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)),
                inode: stat.st_ino,
                path: std::fs::read_link(link).ok()?,
                read_only: l.options.read_only,
                autoclear: false,
                direct_io: true,
            })
        };
        Ok(s.loops.iter().filter_map(one).collect())
    }

    fn resize(&self, n: LoopNo) -> Res<()> {
        self.check("loop_resize")?;
        let mut s = self.state.lock();
        let missing = || SysError::new("LOOP_SET_CAPACITY", "a fake", Errno::NXIO);
        let l = s.loops.get_mut(&n).ok_or_else(missing)?;
        let stat = rustix::fs::fstat(&l.file).map_err(|e| SysError::new("fstat", "a fake", e))?;
        l.size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(())
    }

    fn detach(&self, n: LoopNo) -> Res<()> {
        self.check("loop_detach")?;
        self.state.lock().loops.remove(&n);
        Ok(())
    }

    fn flush(&self, _n: LoopNo) -> Res<()> {
        self.check("loop_flush")
    }

    fn node(&self, n: LoopNo) -> Res<OwnedFd> {
        self.check("loop_node")?;
        // Known again by `bind` by its name.
        let name = format!("{LOOP_NODE}{}", n.0);
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|e| SysError::new("memfd_create", "a fake", e))
    }
}

impl Mounter for FakeKernel {
    fn bind(&self, src: BorrowedFd<'_>, target: &Path, a: MountAttr) -> Res<()> {
        self.check("bind")?;
        let fail = |e| SysError::new("bind", target.display().to_string(), e);
        rustix::fs::lstat(target).map_err(fail)?;
        let link = format!("/proc/self/fd/{}", src.as_raw_fd());
        let root = std::fs::read_link(link).map_err(|_| fail(Errno::BADF))?;
        let shown = root.to_string_lossy().into_owned();
        match shown.strip_prefix(&format!("/memfd:{LOOP_NODE}")) {
            Some(rest) => {
                let number = rest.split(' ').next().unwrap_or_default();
                let node = PathBuf::from(format!("/loop{number}"));
                self.push_mount(DEVTMPFS, node, target, a);
                if let Some(m) = self.state.lock().mounts.last_mut() {
                    m.fs_type = "devtmpfs".to_owned();
                }
            }
            None => self.push_mount(DEVICE, root, target, a),
        }
        Ok(())
    }

    fn unmount(&self, target: &Path) -> Res<()> {
        self.check("unmount")?;
        let mut s = self.state.lock();
        let Some(at) = s.mounts.iter().rposition(|m| m.target == target) else {
            return Err(SysError::new("umount2", target.display().to_string(), Errno::INVAL));
        };
        s.mounts.remove(at);
        Ok(())
    }

    /// The filesystem of every file is mounted at `/`, so a root is an absolute path.
    fn table(&self) -> Res<MountTable> {
        self.check("table")?;
        let base = Mount {
            id: 1,
            parent: 0,
            dev: DEVICE,
            root: PathBuf::from("/"),
            target: PathBuf::from("/"),
            options: vec!["rw".to_owned(), "relatime".to_owned()],
            fs_type: "xfs".to_owned(),
            source: "fake".to_owned(),
            super_options: vec!["rw".to_owned()],
        };
        let mut mounts = vec![base];
        mounts.extend(self.state.lock().mounts.iter().cloned());
        Ok(MountTable { mounts })
    }

    fn changes(&self) -> Res<Option<OwnedFd>> {
        Ok(None)
    }
}
