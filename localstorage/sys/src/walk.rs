//! Opening below a directory without ever leaving it, and removing whole trees.
//!
//! Invariants: nothing crosses a symlink, a mount or the starting directory
//! (`openat2(RESOLVE_BENEATH|NO_SYMLINKS|NO_XDEV)`); device nodes, FIFOs and sockets are
//! never opened; removal needs neither stack nor path length in proportion to depth.
//!
//! Must not know: what is removed or why.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Res, SysError, retry};

/// Deeper subtrees are renamed to the top and removed from there (rule 8.1).
const MAX_DEPTH: usize = 64;
/// `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`, and the flags that forbid removal.
const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
const FS_IMMUTABLE_FL: libc::c_int = 0x10;
const FS_APPEND_FL: libc::c_int = 0x20;

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV
}

/// Opens the directory `name` in `dir`; a symlink, mount point or file is an error.
pub fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> Res<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat2(dir, name, flags, Mode::empty(), beneath()))
        .map_err(|e| SysError::new("openat2", name.to_string_lossy(), e))
}

/// Opens the entry `name` in `dir` as a place (O_PATH), without following a symlink.
pub fn open_path(dir: BorrowedFd<'_>, name: &CStr) -> Res<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat2(dir, name, flags, Mode::empty(), beneath()))
        .map_err(|e| SysError::new("openat2", name.to_string_lossy(), e))
}

/// Opens the regular file `name` in `dir`; anything else is an error and is not opened.
pub fn open_file(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Res<OwnedFd> {
    let fail = |call, e| SysError::new(call, name.to_string_lossy(), e);
    let place = open_path(dir, name)?;
    let stat = retry(|| rustix::fs::fstat(&place)).map_err(|e| fail("fstat", e))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(fail("openat2", Errno::ISDIR)),
        FileType::Symlink => return Err(fail("openat2", Errno::LOOP)),
        _ => return Err(fail("openat2", Errno::INVAL)),
    }
    // NONBLOCK: should it have become a FIFO since, opening it does not wait.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = retry(|| rustix::fs::openat2(dir, name, flags, Mode::empty(), beneath()))
        .map_err(|e| fail("openat2", e))?;
    let opened = retry(|| rustix::fs::fstat(&fd)).map_err(|e| fail("fstat", e))?;
    if (opened.st_dev, opened.st_ino) == (stat.st_dev, stat.st_ino) {
        Ok(fd)
    } else {
        Err(fail("openat2", Errno::STALE))
    }
}

/// Names in the directory `dir`, without `.` and `..`.
pub fn names(dir: BorrowedFd<'_>) -> Res<Vec<CString>> {
    let fail = |e| SysError::new("getdents64", format!("fd {}", dir.as_raw_fd()), e);
    let mut out = Vec::new();
    for entry in Dir::read_from(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            out.push(name.to_owned());
        }
    }
    Ok(out)
}

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Entries removed.
    pub entries: u64,
    /// It was asked to stop before the end.
    pub stopped: bool,
}

/// Removes the entry `name` of `top` with everything below it. Resumable: call again.
///
/// Subtrees deeper than 64 levels are renamed into `top`, under names derived from `name`,
/// and removed from there. `go_on` is asked before each entry. A mount below is an error.
pub fn remove_tree(
    top: BorrowedFd<'_>,
    name: &CStr,
    go_on: &mut dyn FnMut() -> bool,
) -> Res<Removed> {
    let mut done = Removed::default();
    let mut queue = vec![name.to_owned()];
    let mut flattened = 0_u64;
    while let Some(next) = queue.pop() {
        match remove_entry(top, &next) {
            Ok(true) => {
                done.entries += 1;
                continue;
            }
            Ok(false) => {}
            Err(e) if e.is(Errno::NOENT) => continue,
            Err(e) => return Err(e),
        }
        let deep = empty_dir(top, &next, &mut done, go_on)?;
        if done.stopped {
            return Ok(done);
        }
        queue.push(next);
        if let Some((parent, child)) = deep {
            let to = free_name(top, name, &mut flattened)?;
            retry(|| rustix::fs::renameat(parent.as_fd(), &child, top, &to))
                .map_err(|e| SysError::new("renameat", child.to_string_lossy(), e))?;
            queue.push(to);
        }
    }
    Ok(done)
}

/// A name in `top` that nothing has: `NAME~<n>`, shortened to what a directory entry allows.
fn free_name(top: BorrowedFd<'_>, name: &CStr, n: &mut u64) -> Res<CString> {
    loop {
        *n += 1;
        let suffix = format!("~{n}");
        let keep = name.to_bytes().len().min(255 - suffix.len());
        let mut to = name.to_bytes()[..keep].to_vec();
        to.extend_from_slice(suffix.as_bytes());
        // The parts come from a C string and digits: no NUL inside.
        let Ok(to) = CString::new(to) else { continue };
        match retry(|| rustix::fs::statat(top, &to, AtFlags::SYMLINK_NOFOLLOW)) {
            Err(Errno::NOENT) => return Ok(to),
            Ok(_) => {}
            Err(e) => return Err(SysError::new("fstatat", to.to_string_lossy(), e)),
        }
    }
}

/// Removes one entry if it is no directory or an empty one; false = a directory with content.
fn remove_entry(dir: BorrowedFd<'_>, name: &CStr) -> Res<bool> {
    let fail = |call, e| SysError::new(call, name.to_string_lossy(), e);
    let stat = retry(|| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
        .map_err(|e| fail("fstatat", e))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_dir = kind == FileType::Directory;
    let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match retry(|| rustix::fs::unlinkat(dir, name, flags)) {
        Ok(()) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) if is_dir => Ok(false),
        Err(Errno::PERM) if is_dir || kind == FileType::RegularFile => {
            // Immutable or append-only, itself or the directory it is in.
            clear_flags(dir)?;
            clear_flags_at(dir, name, is_dir)?;
            match retry(|| rustix::fs::unlinkat(dir, name, flags)) {
                Ok(()) => Ok(true),
                Err(Errno::NOTEMPTY | Errno::EXIST) if is_dir => Ok(false),
                Err(e) => Err(fail("unlinkat", e)),
            }
        }
        Err(Errno::PERM) => {
            clear_flags(dir)?;
            retry(|| rustix::fs::unlinkat(dir, name, flags)).map_err(|e| fail("unlinkat", e))?;
            Ok(true)
        }
        Err(e) => Err(fail("unlinkat", e)),
    }
}

/// Empties the directory `name` of `top` depth first, down to the depth limit. Answers the
/// first directory below the limit that still has content, and stops there.
fn empty_dir(
    top: BorrowedFd<'_>,
    name: &CStr,
    done: &mut Removed,
    go_on: &mut dyn FnMut() -> bool,
) -> Res<Option<(OwnedFd, CString)>> {
    struct Level {
        dir: OwnedFd,
        todo: Vec<CString>,
    }
    let enter = |parent: BorrowedFd<'_>, name: &CStr| -> Res<Level> {
        let dir = open_dir(parent, name)?;
        let todo = names(dir.as_fd())?;
        Ok(Level { dir, todo })
    };
    let mut stack = vec![enter(top, name)?];
    loop {
        let depth = stack.len();
        let Some(level) = stack.last_mut() else { break };
        let Some(entry) = level.todo.pop() else {
            // Emptied: the level above has this directory on its list and removes it.
            stack.pop();
            continue;
        };
        if !go_on() {
            done.stopped = true;
            return Ok(None);
        }
        match remove_entry(level.dir.as_fd(), &entry) {
            Ok(true) => done.entries += 1,
            Err(e) if e.is(Errno::NOENT) => {}
            Err(e) => return Err(e),
            Ok(false) if depth >= MAX_DEPTH => {
                // The path from `top` to here is of no use any more: give up this walk.
                return Ok(stack.pop().map(|l| (l.dir, entry)));
            }
            Ok(false) => {
                let below = enter(level.dir.as_fd(), &entry)?;
                level.todo.push(entry);
                stack.push(below);
            }
        }
    }
    Ok(None)
}

fn clear_flags_at(dir: BorrowedFd<'_>, name: &CStr, is_dir: bool) -> Res<()> {
    let mut flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if is_dir {
        flags |= OFlags::DIRECTORY;
    }
    let fd = retry(|| rustix::fs::openat2(dir, name, flags, Mode::empty(), beneath()))
        .map_err(|e| SysError::new("openat2", name.to_string_lossy(), e))?;
    clear_flags(fd.as_fd())
}

/// Takes the immutable and append-only flags away from an open file.
fn clear_flags(f: BorrowedFd<'_>) -> Res<()> {
    let mut flags: libc::c_int = 0;
    let fail = |call, e| SysError::new(call, format!("fd {}", f.as_raw_fd()), e);
    match flags_ioctl(f, FS_IOC_GETFLAGS, &mut flags) {
        Ok(()) => {}
        // A filesystem without flags: they are not the reason.
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(e) => return Err(fail("FS_IOC_GETFLAGS", e)),
    }
    if flags & (FS_IMMUTABLE_FL | FS_APPEND_FL) == 0 {
        return Ok(());
    }
    flags &= !(FS_IMMUTABLE_FL | FS_APPEND_FL);
    flags_ioctl(f, FS_IOC_SETFLAGS, &mut flags).map_err(|e| fail("FS_IOC_SETFLAGS", e))
}

fn flags_ioctl(f: BorrowedFd<'_>, op: libc::c_ulong, flags: &mut libc::c_int) -> Result<(), Errno> {
    retry(|| {
        // JUSTIFICATION: rustix's ioctl_setflags has no way to keep unknown flags.
        // SAFETY: `f` is open for the whole call; although the request says `long`, the kernel
        // reads and writes an `int` (ioctl_iflags(2)), which is exclusively borrowed.
        let r = unsafe { libc::ioctl(f.as_raw_fd(), op as _, std::ptr::from_mut(flags)) };
        if r < 0 {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        } else {
            Ok(())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top() -> (tempfile::TempDir, OwnedFd) {
        let t = tempfile::tempdir().expect("tempdir");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = rustix::fs::open(t.path(), flags, Mode::empty()).expect("open");
        (t, fd)
    }

    /// A chain of directories too deep for any path.
    fn chain(top: BorrowedFd<'_>, name: &CStr, depth: usize) {
        rustix::fs::mkdirat(top, name, Mode::RWXU).expect("mkdir");
        let mut at = open_dir(top, name).expect("open");
        for _ in 1..depth {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).expect("mkdir");
            let flags = OFlags::CREATE | OFlags::WRONLY;
            drop(rustix::fs::openat(&at, c"f", flags, Mode::RUSR).expect("create"));
            at = open_dir(at.as_fd(), c"d").expect("open");
        }
    }

    #[test]
    fn s8_1_a_tree_deeper_than_any_path_is_removed() {
        let (_t, fd) = top();
        chain(fd.as_fd(), c"x", 5000);
        let done = remove_tree(fd.as_fd(), c"x", &mut || true).expect("remove");
        assert_eq!(done, Removed { entries: 5000 + 4999, stopped: false });
        assert_eq!(names(fd.as_fd()).expect("list"), Vec::<CString>::new());
    }

    #[test]
    fn s8_1_a_removal_that_was_stopped_anywhere_is_continued() {
        let (_t, fd) = top();
        chain(fd.as_fd(), c"x", 1000);
        let mut rounds = 0;
        loop {
            rounds += 1;
            // Enough to reach the depth limit, too little for one round to do it all.
            let mut budget = 150;
            let mut go_on = || {
                budget -= 1;
                budget >= 0
            };
            // What a kill leaves: the item itself and flattened parts of it.
            let left = names(fd.as_fd()).expect("list");
            let Some(item) = left.first() else { break };
            remove_tree(fd.as_fd(), item, &mut go_on).expect("remove");
        }
        assert!(rounds > 5);
    }

    #[test]
    fn s2_7_symlinks_fifos_and_odd_names_are_removed_and_never_followed() {
        let (t, fd) = top();
        let keep = t.path().join("keep");
        std::fs::write(&keep, "x").expect("write");
        let x = t.path().join("x");
        std::fs::create_dir(&x).expect("mkdir");
        std::os::unix::fs::symlink("../keep", x.join("link")).expect("symlink");
        std::os::unix::fs::symlink("..", x.join("up")).expect("symlink");
        rustix::fs::mknodat(&fd, "x/fifo", FileType::Fifo, Mode::RUSR, 0).expect("mkfifo");
        std::fs::write(x.join("n".repeat(255)), "").expect("write");
        let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe\n");
        std::fs::write(x.join(odd), "").expect("write");
        assert!(open_dir(fd.as_fd(), c"x/up").is_err());
        remove_tree(fd.as_fd(), c"x", &mut || true).expect("remove");
        assert!(keep.exists() && !x.exists());
        // The trash item itself may be a symlink or be gone already.
        std::os::unix::fs::symlink("keep", t.path().join("l")).expect("symlink");
        remove_tree(fd.as_fd(), c"l", &mut || true).expect("remove");
        remove_tree(fd.as_fd(), c"gone", &mut || true).expect("nothing to do");
        assert!(keep.exists());
    }

    use std::os::unix::ffi::OsStrExt;
}
