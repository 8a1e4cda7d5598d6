//! XFS project quota: project ids of files, limits and usage of projects.
//!
//! Purpose: `FS_IOC_FS[GS]ETXATTR` and `quotactl_fd` with the XFS commands, behind the
//! seam [`Quota`]. The C layouts are hand-written (no crate has them) and tested for size.
//!
//! Invariants: limits of project 0 cannot be set (for id 0 XFS changes the *defaults of
//! every project*): [`ProjectId`] excludes it. "Quota is off" (ESRCH, ENOSYS) is an error
//! and never reads as "no such project".

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::error::{Res, SysError, retry};

/// `XQM(n)` commands of `linux/dqblk_xfs.h`.
const Q_XGETQUOTA: u32 = 0x5803;
const Q_XSETQLIM: u32 = 0x5804;
const Q_XGETQSTATV: u32 = 0x5808;
const Q_XGETNEXTQUOTA: u32 = 0x5809;
/// `PRJQUOTA` of `linux/quota.h`, the type part of a quotactl command.
const PRJQUOTA: u32 = 2;
/// `FS_DQUOT_VERSION`, `FS_PROJ_QUOTA`.
const DQUOT_VERSION: i8 = 1;
const FS_PROJ_QUOTA: i8 = 2;
/// `FS_DQ_{ISOFT,IHARD,BSOFT,BHARD}`: the limits we write.
const FIELDS: u16 = 1 | 2 | 4 | 8;
/// `FS_QUOTA_PDQ_{ACCT,ENFD}` of `qs_flags`.
const PDQ_ACCT: u16 = 0x10;
const PDQ_ENFD: u16 = 0x20;
/// Quota block counts are in basic blocks of 512 bytes, whatever the filesystem's block size.
const BASIC_BLOCK: u64 = 512;
/// `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`, `FS_XFLAG_PROJINHERIT` of `linux/fs.h`.
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::c_ulong = 0x401c_5820;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

/// A project that can have limits: 1 to `u32::MAX - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectId(u32);

/// The number cannot be a project with limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("project id {0} is not in 1..={max}", max = u32::MAX - 1)]
pub struct ProjectIdError(pub u32);

impl ProjectId {
    /// Checks that `id` is neither 0 (defaults of all projects) nor the "invalid" id.
    pub fn new(id: u32) -> Result<ProjectId, ProjectIdError> {
        if id == 0 || id == u32::MAX { Err(ProjectIdError(id)) } else { Ok(ProjectId(id)) }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Project membership of one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Project {
    /// The id; 0 is "no project".
    pub id: u32,
    /// New entries of this directory get the same id.
    pub inherit: bool,
}

/// Hard limits of a project. 0 means unlimited. Soft limits are set to the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes, a multiple of 512 (rounded up otherwise).
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What a project uses and may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The hard limits.
    pub limits: Limits,
    /// Bytes in use, delayed allocations included.
    pub used_bytes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
}

impl Usage {
    /// Nothing used and nothing limited: the id is free for somebody else.
    pub fn is_zero(&self) -> bool {
        *self == Usage::default()
    }
}

/// Whether project quota is accounted and enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaState {
    /// `PDQ_ACCT`.
    pub accounting: bool,
    /// `PDQ_ENFD`.
    pub enforcing: bool,
}

/// Project quota of one filesystem. `fs` is any open file on it.
pub trait Quota: Send + Sync {
    /// Whether project quota works here.
    fn state(&self, fs: BorrowedFd<'_>) -> Res<QuotaState>;
    /// Project of the open file or directory `f`.
    fn project(&self, f: BorrowedFd<'_>) -> Res<Project>;
    /// Sets it; all other flags of the inode survive.
    fn set_project(&self, f: BorrowedFd<'_>, p: Project) -> Res<()>;
    /// Sets the limits of `id`.
    fn set_limits(&self, fs: BorrowedFd<'_>, id: ProjectId, l: Limits) -> Res<()>;
    /// Limits and usage of `id`; `None` if the kernel has no such project.
    fn get(&self, fs: BorrowedFd<'_>, id: ProjectId) -> Res<Option<Usage>>;
    /// Usage of project 0: everything that belongs to no project.
    fn unowned(&self, fs: BorrowedFd<'_>) -> Res<Usage>;
    /// The first project with an id ≥ `from`; `None` at the end of the list.
    fn next(&self, fs: BorrowedFd<'_>, from: ProjectId) -> Res<Option<(ProjectId, Usage)>>;
}

/// `struct fs_disk_quota` of `linux/dqblk_xfs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct FsDiskQuota {
    d_version: i8,
    d_flags: i8,
    d_fieldmask: u16,
    d_id: u32,
    d_blk_hardlimit: u64,
    d_blk_softlimit: u64,
    d_ino_hardlimit: u64,
    d_ino_softlimit: u64,
    d_bcount: u64,
    d_icount: u64,
    d_itimer: i32,
    d_btimer: i32,
    d_iwarns: u16,
    d_bwarns: u16,
    d_itimer_hi: i8,
    d_btimer_hi: i8,
    d_rtbtimer_hi: i8,
    d_padding2: i8,
    d_rtb_hardlimit: u64,
    d_rtb_softlimit: u64,
    d_rtbcount: u64,
    d_rtbtimer: i32,
    d_rtbwarns: u16,
    d_padding3: i16,
    d_padding4: [i8; 8],
}

/// `struct fs_qfilestatv` and `struct fs_quota_statv`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct QFileStatV {
    qfs_ino: u64,
    qfs_nblks: u64,
    qfs_nextents: u32,
    qfs_pad: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct FsQuotaStatV {
    qs_version: i8,
    qs_pad1: u8,
    qs_flags: u16,
    qs_incoredqs: u32,
    qs_uquota: QFileStatV,
    qs_gquota: QFileStatV,
    qs_pquota: QFileStatV,
    qs_btimelimit: i32,
    qs_itimelimit: i32,
    qs_rtbtimelimit: i32,
    qs_bwarnlimit: u16,
    qs_iwarnlimit: u16,
    qs_rtbwarnlimit: u16,
    qs_pad3: u16,
    qs_pad4: u32,
    qs_pad2: [u64; 7],
}

/// `struct fsxattr` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct FsXattr {
    fsx_xflags: u32,
    fsx_extsize: u32,
    fsx_nextents: u32,
    fsx_projid: u32,
    fsx_cowextsize: u32,
    fsx_pad: [u8; 8],
}

const _: () = assert!(size_of::<FsDiskQuota>() == 112);
const _: () = assert!(size_of::<FsXattr>() == 28);
const _: () = assert!(size_of::<FsQuotaStatV>() == 160);

/// The kernel's project quota.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelQuota;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `quotactl_fd` with an argument the kernel reads or writes as a whole.
fn quotactl<T>(fs: BorrowedFd<'_>, cmd: u32, id: u32, arg: &mut T) -> Result<(), Errno> {
    let full = (cmd << 8) | PRJQUOTA;
    retry(|| {
        // JUSTIFICATION: neither std, rustix nor libc wraps quotactl_fd(2).
        // SAFETY: `fs` is open for the whole call, and each caller passes the C struct that
        // belongs to `cmd` (sizes asserted above), exclusively borrowed, so the kernel reads
        // and writes only memory we own; all bit patterns are valid for these plain integers.
        let r = unsafe {
            libc::syscall(
                libc::SYS_quotactl_fd,
                fs.as_raw_fd(),
                full,
                id,
                std::ptr::from_mut(arg).cast::<libc::c_void>(),
            )
        };
        if r < 0 { Err(last_errno()) } else { Ok(()) }
    })
}

fn fsxattr_ioctl(f: BorrowedFd<'_>, op: libc::c_ulong, arg: &mut FsXattr) -> Result<(), Errno> {
    retry(|| {
        // JUSTIFICATION: no safe wrapper knows the FS_IOC_FS*XATTR ioctls.
        // SAFETY: `f` is open for the whole call; both operations use exactly the 28 bytes of
        // `FsXattr` (size asserted above), exclusively borrowed.
        let r = unsafe { libc::ioctl(f.as_raw_fd(), op as _, std::ptr::from_mut(arg)) };
        if r < 0 { Err(last_errno()) } else { Ok(()) }
    })
}

fn get_fsxattr(f: BorrowedFd<'_>) -> Res<FsXattr> {
    let mut x = FsXattr::default();
    fsxattr_ioctl(f, FS_IOC_FSGETXATTR, &mut x)
        .map_err(|e| SysError::new("FS_IOC_FSGETXATTR", format!("fd {}", f.as_raw_fd()), e))?;
    Ok(x)
}

fn usage(q: &FsDiskQuota) -> Usage {
    Usage {
        limits: Limits {
            bytes: q.d_blk_hardlimit.saturating_mul(BASIC_BLOCK),
            inodes: q.d_ino_hardlimit,
        },
        used_bytes: q.d_bcount.saturating_mul(BASIC_BLOCK),
        used_inodes: q.d_icount,
    }
}

fn get_quota(
    fs: BorrowedFd<'_>,
    cmd: u32,
    call: &'static str,
    id: u32,
) -> Res<Option<FsDiskQuota>> {
    let mut q = FsDiskQuota::default();
    match quotactl(fs, cmd, id, &mut q) {
        Ok(()) => Ok(Some(q)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(SysError::new(call, format!("project {id}"), e)),
    }
}

impl Quota for KernelQuota {
    fn state(&self, fs: BorrowedFd<'_>) -> Res<QuotaState> {
        let mut s = FsQuotaStatV { qs_version: 1, ..FsQuotaStatV::default() };
        quotactl(fs, Q_XGETQSTATV, 0, &mut s)
            .map_err(|e| SysError::new("Q_XGETQSTATV", "the filesystem", e))?;
        Ok(QuotaState {
            accounting: s.qs_flags & PDQ_ACCT != 0,
            enforcing: s.qs_flags & PDQ_ENFD != 0,
        })
    }

    fn project(&self, f: BorrowedFd<'_>) -> Res<Project> {
        let x = get_fsxattr(f)?;
        Ok(Project { id: x.fsx_projid, inherit: x.fsx_xflags & FS_XFLAG_PROJINHERIT != 0 })
    }

    fn set_project(&self, f: BorrowedFd<'_>, p: Project) -> Res<()> {
        let mut x = get_fsxattr(f)?;
        x.fsx_projid = p.id;
        x.fsx_xflags &= !FS_XFLAG_PROJINHERIT;
        if p.inherit {
            x.fsx_xflags |= FS_XFLAG_PROJINHERIT;
        }
        fsxattr_ioctl(f, FS_IOC_FSSETXATTR, &mut x)
            .map_err(|e| SysError::new("FS_IOC_FSSETXATTR", format!("project {}", p.id), e))
    }

    fn set_limits(&self, fs: BorrowedFd<'_>, id: ProjectId, l: Limits) -> Res<()> {
        let blocks = l.bytes.div_ceil(BASIC_BLOCK);
        let mut q = FsDiskQuota {
            d_version: DQUOT_VERSION,
            d_flags: FS_PROJ_QUOTA,
            d_fieldmask: FIELDS,
            d_id: id.get(),
            d_blk_hardlimit: blocks,
            d_blk_softlimit: blocks,
            d_ino_hardlimit: l.inodes,
            d_ino_softlimit: l.inodes,
            ..FsDiskQuota::default()
        };
        quotactl(fs, Q_XSETQLIM, id.get(), &mut q)
            .map_err(|e| SysError::new("Q_XSETQLIM", format!("project {}", id.get()), e))
    }

    fn get(&self, fs: BorrowedFd<'_>, id: ProjectId) -> Res<Option<Usage>> {
        Ok(get_quota(fs, Q_XGETQUOTA, "Q_XGETQUOTA", id.get())?.as_ref().map(usage))
    }

    fn unowned(&self, fs: BorrowedFd<'_>) -> Res<Usage> {
        Ok(get_quota(fs, Q_XGETQUOTA, "Q_XGETQUOTA", 0)?.as_ref().map(usage).unwrap_or_default())
    }

    fn next(&self, fs: BorrowedFd<'_>, from: ProjectId) -> Res<Option<(ProjectId, Usage)>> {
        let Some(q) = get_quota(fs, Q_XGETNEXTQUOTA, "Q_XGETNEXTQUOTA", from.get())? else {
            return Ok(None);
        };
        match ProjectId::new(q.d_id) {
            Ok(id) => Ok(Some((id, usage(&q)))),
            Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_4_project_zero_and_the_invalid_id_cannot_get_limits() {
        assert_eq!(ProjectId::new(0), Err(ProjectIdError(0)));
        assert_eq!(ProjectId::new(u32::MAX), Err(ProjectIdError(u32::MAX)));
        assert_eq!(ProjectId::new(1).map(ProjectId::get), Ok(1));
        assert_eq!(ProjectId::new(u32::MAX - 1).map(ProjectId::get), Ok(u32::MAX - 1));
    }

    #[test]
    fn s2_3_block_counts_are_in_units_of_512_bytes() {
        let q = FsDiskQuota {
            d_blk_hardlimit: 16_384,
            d_ino_hardlimit: 7,
            d_bcount: 3,
            d_icount: 2,
            ..FsDiskQuota::default()
        };
        let u = usage(&q);
        assert_eq!(u.limits, Limits { bytes: 8 * 1024 * 1024, inodes: 7 });
        assert_eq!((u.used_bytes, u.used_inodes), (1536, 2));
    }

    #[test]
    fn s2_3_quota_on_a_filesystem_without_it_is_an_error_and_not_an_end_of_list() {
        let proc = std::fs::File::open("/proc").expect("open /proc");
        let fd = std::os::fd::AsFd::as_fd(&proc);
        let id = ProjectId::new(5).expect("in range");
        assert!(KernelQuota.get(fd, id).is_err());
        assert!(KernelQuota.next(fd, id).is_err());
        assert!(KernelQuota.state(fd).is_err());
    }
}
