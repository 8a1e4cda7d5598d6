//! Mounts: bind mounts that are never visible with wrong flags, new filesystems with
//! errors that carry the kernel's own text, and the mount table.
//!
//! Invariants: a bind gets its flags between `open_tree(CLONE)` and `move_mount`, so
//! there is no writable instant of a read-only bind. The table is parsed from
//! `/proc/self/mountinfo`; nothing ever stats a mount point to decide.
//!
//! Must not know: what is mounted where on the node.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use linux_raw_sys::general as raw;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::error::{Res, SysError, retry};

/// How access times of a mount are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// The kernel's default.
    #[default]
    Relative,
    /// `noatime`.
    Never,
    /// `strictatime`.
    Strict,
}

/// Flags of one bind mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountAttr {
    /// `ro`.
    pub read_only: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `relatime`, `noatime`, `strictatime`.
    pub atime: Atime,
    /// `nodiratime`.
    pub nodiratime: bool,
}

impl MountAttr {
    /// The `MOUNT_ATTR_*` bits to set; all others of this family are cleared.
    fn bits(self) -> u64 {
        let mut bits = match self.atime {
            Atime::Relative => raw::MOUNT_ATTR_RELATIME,
            Atime::Never => raw::MOUNT_ATTR_NOATIME,
            Atime::Strict => raw::MOUNT_ATTR_STRICTATIME,
        };
        for (on, bit) in [
            (self.read_only, raw::MOUNT_ATTR_RDONLY),
            (self.nosuid, raw::MOUNT_ATTR_NOSUID),
            (self.nodev, raw::MOUNT_ATTR_NODEV),
            (self.noexec, raw::MOUNT_ATTR_NOEXEC),
            (self.nodiratime, raw::MOUNT_ATTR_NODIRATIME),
        ] {
            if on {
                bits |= bit;
            }
        }
        u64::from(bits)
    }

    /// The flags in the words of mountinfo, in its order.
    pub fn options(self) -> Vec<&'static str> {
        let mut o = vec![if self.read_only { "ro" } else { "rw" }];
        for (on, word) in [(self.nosuid, "nosuid"), (self.nodev, "nodev"), (self.noexec, "noexec")]
        {
            if on {
                o.push(word);
            }
        }
        match self.atime {
            Atime::Relative => o.push("relatime"),
            Atime::Never => o.push("noatime"),
            Atime::Strict => {}
        }
        if self.nodiratime {
            o.push("nodiratime");
        }
        o
    }
}

const ALL_ATTRS: u32 = raw::MOUNT_ATTR_RDONLY
    | raw::MOUNT_ATTR_NOSUID
    | raw::MOUNT_ATTR_NODEV
    | raw::MOUNT_ATTR_NOEXEC
    | raw::MOUNT_ATTR__ATIME
    | raw::MOUNT_ATTR_NODIRATIME;

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Mount id.
    pub id: u64,
    /// Id of the mount it sits on.
    pub parent: u64,
    /// Device of the filesystem, `(major, minor)`.
    pub dev: (u32, u32),
    /// The directory of the filesystem that is mounted. Ends in `//deleted` when it is gone.
    pub root: PathBuf,
    /// Where.
    pub target: PathBuf,
    /// Options of this mount (`ro,nosuid,relatime`).
    pub options: Vec<String>,
    /// Filesystem type.
    pub fs_type: String,
    /// Source as given at mount.
    pub source: String,
    /// Options of the filesystem (`rw,prjquota`).
    pub super_options: Vec<String>,
}

impl Mount {
    /// Whether this mount has exactly the flags of `attr`.
    pub fn has(&self, attr: MountAttr) -> bool {
        let has = |w: &str| self.options.iter().any(|o| o == w);
        let atime = match (has("noatime"), has("relatime")) {
            (true, _) => Atime::Never,
            (false, true) => Atime::Relative,
            (false, false) => Atime::Strict,
        };
        has("ro") == attr.read_only
            && has("nosuid") == attr.nosuid
            && has("nodev") == attr.nodev
            && has("noexec") == attr.noexec
            && has("nodiratime") == attr.nodiratime
            && atime == attr.atime
    }
}

/// All mounts of this mount namespace, in the kernel's order (later ones are on top).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountTable {
    /// The lines.
    pub mounts: Vec<Mount>,
}

impl MountTable {
    /// The layers mounted at exactly `target`, bottom first.
    pub fn at<'a>(&'a self, target: &'a Path) -> impl DoubleEndedIterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |m| m.target == target)
    }

    /// The mount that `path` lies on.
    pub fn covering(&self, path: &Path) -> Option<&Mount> {
        self.mounts
            .iter()
            .filter(|m| path.starts_with(&m.target))
            .max_by_key(|m| m.target.as_os_str().len())
    }
}

/// Mounting of volumes.
pub trait Mounter: Send + Sync {
    /// Binds the directory or file `src` at `target`, with exactly these flags.
    fn bind(&self, src: BorrowedFd<'_>, target: &Path, a: MountAttr) -> Res<()>;
    /// Takes the topmost mount away from `target`, which is not followed if it is a symlink.
    fn unmount(&self, target: &Path) -> Res<()>;
    /// The mount table.
    fn table(&self) -> Res<MountTable>;
    /// A descriptor that polls with priority when the table changes; `None` if there is none.
    fn changes(&self) -> Res<Option<OwnedFd>>;
}

/// The kernel's mounts.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelMounter;

impl Mounter for KernelMounter {
    fn bind(&self, src: BorrowedFd<'_>, target: &Path, a: MountAttr) -> Res<()> {
        let at = || target.display().to_string();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = retry(|| rustix::mount::open_tree(src, "", flags))
            .map_err(|e| SysError::new("open_tree", at(), e))?;
        mount_setattr(tree.as_fd(), a).map_err(|e| SysError::new("mount_setattr", at(), e))?;
        move_to(tree.as_fd(), target)
    }

    fn unmount(&self, target: &Path) -> Res<()> {
        retry(|| rustix::mount::unmount(target, UnmountFlags::NOFOLLOW))
            .map_err(|e| SysError::new("umount2", target.display().to_string(), e))
    }

    fn table(&self) -> Res<MountTable> {
        let text = std::fs::read("/proc/self/mountinfo").map_err(|e| {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            SysError::new("read", "/proc/self/mountinfo", errno)
        })?;
        Ok(parse_mountinfo(&text))
    }

    fn changes(&self) -> Res<Option<OwnedFd>> {
        let path = "/proc/self/mountinfo";
        retry(|| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
            .map(Some)
            .map_err(|e| SysError::new("open", path, e))
    }
}

fn mount_setattr(tree: BorrowedFd<'_>, a: MountAttr) -> Result<(), Errno> {
    let bits = a.bits();
    let mut attr = raw::mount_attr {
        attr_set: bits,
        attr_clr: u64::from(ALL_ATTRS) & !bits | u64::from(raw::MOUNT_ATTR__ATIME),
        propagation: 0,
        userns_fd: 0,
    };
    retry(|| {
        // JUSTIFICATION: neither std, rustix nor libc wraps mount_setattr(2).
        // SAFETY: `tree` is open for the whole call, the path is a NUL-terminated literal, and
        // the kernel reads exactly `size_of::<mount_attr>()` bytes of `attr`, which outlives it.
        let r = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                std::ptr::from_mut(&mut attr),
                size_of::<raw::mount_attr>(),
            )
        };
        if r < 0 {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        } else {
            Ok(())
        }
    })
}

fn move_to(tree: BorrowedFd<'_>, target: &Path) -> Res<()> {
    retry(|| {
        rustix::mount::move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    })
    .map_err(|e| SysError::new("move_mount", target.display().to_string(), e))
}

/// Binds `src` at `target` as it is, sub-mounts excluded, with the given flags.
pub fn bind_plain(src: &Path, target: &Path, a: MountAttr) -> Res<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = retry(|| rustix::fs::open(src, flags, Mode::empty()))
        .map_err(|e| SysError::new("open", src.display().to_string(), e))?;
    KernelMounter.bind(fd.as_fd(), target, a)
}

/// Mounts a new filesystem of `fs_type` at `target`.
///
/// `params` are `key` or `key=value` parameters of the filesystem; `None` as value is a flag.
/// A refusal carries the kernel's own messages in [`SysError::object`].
pub fn mount_filesystem(
    fs_type: &str,
    params: &[(&str, Option<&str>)],
    target: &Path,
    a: MountAttr,
) -> Res<()> {
    let fail = |call, fs: Option<&OwnedFd>, e| {
        let said = fs.map(kernel_messages).unwrap_or_default();
        SysError::new(call, format!("{fs_type} at {}{said}", target.display()), e)
    };
    let fs = retry(|| rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC))
        .map_err(|e| fail("fsopen", None, e))?;
    for (key, value) in params {
        match value {
            Some(v) => retry(|| rustix::mount::fsconfig_set_string(fs.as_fd(), *key, *v)),
            None => retry(|| rustix::mount::fsconfig_set_flag(fs.as_fd(), *key)),
        }
        .map_err(|e| fail("fsconfig", Some(&fs), e))?;
    }
    retry(|| rustix::mount::fsconfig_create(fs.as_fd()))
        .map_err(|e| fail("fsconfig_create", Some(&fs), e))?;
    let bits = u32::try_from(a.bits()).unwrap_or(0);
    let attrs = MountAttrFlags::from_bits_retain(bits);
    let tree = retry(|| rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs))
        .map_err(|e| fail("fsmount", Some(&fs), e))?;
    move_to(tree.as_fd(), target)
}

/// What the kernel has to say about a filesystem context: `: message; message`.
fn kernel_messages(fs: &OwnedFd) -> String {
    let mut out = String::new();
    let mut buf = [0_u8; 512];
    // One message per read; the kernel keeps at most 8.
    for _ in 0..8 {
        let Ok(n) = rustix::io::read(fs, &mut buf) else { break };
        if n == 0 {
            break;
        }
        out.push_str(if out.is_empty() { ": " } else { "; " });
        out.push_str(String::from_utf8_lossy(&buf[..n]).trim());
    }
    out
}

/// Parses mountinfo. Lines that do not have its shape are skipped.
pub fn parse_mountinfo(text: &[u8]) -> MountTable {
    MountTable { mounts: text.split(|b| *b == b'\n').filter_map(parse_line).collect() }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let mut f = line.split(|b| *b == b' ');
    let id = number(f.next()?)?;
    let parent = number(f.next()?)?;
    let dev = std::str::from_utf8(f.next()?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let root = path(f.next()?);
    let target = path(f.next()?);
    let options = words(f.next()?);
    for optional in f.by_ref() {
        if optional == b"-" {
            let fs_type = text(f.next()?);
            let source = text(f.next().unwrap_or_default());
            let super_options = words(f.next().unwrap_or_default());
            let dev = (major.parse().ok()?, minor.parse().ok()?);
            return Some(Mount {
                id,
                parent,
                dev,
                root,
                target,
                options,
                fs_type,
                source,
                super_options,
            });
        }
    }
    None
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn words(field: &[u8]) -> Vec<String> {
    field.split(|b| *b == b',').map(text).collect()
}

/// Undoes the kernel's `\ooo` escapes (space, tab, newline, backslash, `#`).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) =
            (first, tail)
        {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_6_mountinfo_with_hostile_paths_is_decoded() {
        let text = b"36 35 98:0 /a\\040b /mnt/x\\011y\\012z\\134040 rw,noatime master:1 propagate_from:2 - ext3 /dev/ro\\040ot rw,errors=continue\n\
            37 36 0:5 / /plain ro,nosuid,nodev,relatime - tmpfs  rw\n\
            garbage\n\
            38 36 253:0 /volumes/pvc-1//deleted /t/- - rw - xfs /dev/vdb rw\n\
            39 36 253:0 / /t/\\777 rw shared:1 - xfs /dev/vdb rw,prjquota\n";
        let t = parse_mountinfo(text);
        let targets: Vec<_> = t.mounts.iter().map(|m| m.target.clone()).collect();
        assert_eq!(
            targets,
            [
                PathBuf::from("/mnt/x\ty\nz\\040"),
                PathBuf::from("/plain"),
                PathBuf::from("/t/-"),
                PathBuf::from("/t/\\777"),
            ]
        );
        assert_eq!(t.mounts[0].root, PathBuf::from("/a b"));
        assert_eq!(t.mounts[0].source, "/dev/ro ot");
        assert_eq!(t.mounts[0].dev, (98, 0));
        assert_eq!(t.mounts[1].source, "");
        assert_eq!(t.mounts[3].super_options, ["rw", "prjquota"]);
    }

    #[test]
    fn s2_6_a_target_that_is_not_utf_8_survives() {
        let t = parse_mountinfo(b"1 0 8:1 / /x\xff\xfe rw - xfs d rw\n");
        assert_eq!(t.mounts[0].target.as_os_str().as_encoded_bytes(), b"/x\xff\xfe");
    }

    #[test]
    fn s2_6_layers_of_a_target_come_bottom_first() {
        let t = parse_mountinfo(b"1 0 8:1 / / rw - xfs d rw\n2 1 8:2 /v/a /t rw - xfs d rw\n3 2 8:2 /v/b /t rw - xfs d rw\n");
        let roots: Vec<_> = t.at(Path::new("/t")).map(|m| m.root.clone()).collect();
        assert_eq!(roots, [PathBuf::from("/v/a"), PathBuf::from("/v/b")]);
        assert_eq!(t.covering(Path::new("/t/x")).map(|m| m.dev), Some((8, 2)));
        assert_eq!(t.covering(Path::new("/tx")).map(|m| m.dev), Some((8, 1)));
    }

    #[test]
    fn s5_3_flags_compare_with_what_mountinfo_shows() {
        let all = [false, true];
        for read_only in all {
            for nosuid in all {
                for atime in [Atime::Relative, Atime::Never, Atime::Strict] {
                    let a = MountAttr { read_only, nosuid, atime, ..MountAttr::default() };
                    let line = format!("1 0 8:1 / /t {} - xfs d rw", a.options().join(","));
                    let t = parse_mountinfo(line.as_bytes());
                    assert!(t.mounts[0].has(a));
                    assert!(!t.mounts[0].has(MountAttr { nodev: true, ..a }));
                    assert!(!t.mounts[0].has(MountAttr { read_only: !read_only, ..a }));
                }
            }
        }
    }
}
