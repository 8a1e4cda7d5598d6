//! Facts about the filesystem as a whole, and extents of files.
//!
//! Purpose: XFS identity, free space, preallocation. The first two are seams because the
//! test machine has no XFS.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::{Res, SysError, retry};

/// `XFS_SUPER_MAGIC`.
const XFS_SUPER_MAGIC: i128 = 0x5846_5342;
/// `XFS_IOC_FSGEOMETRY_V1`: `_IOR('X', 100, struct xfs_fsop_geom_v1)`.
const XFS_IOC_FSGEOMETRY_V1: libc::c_ulong = 0x8070_5864;

/// What a filesystem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsIdentity {
    /// Whether it is XFS.
    pub xfs: bool,
    /// Its UUID; zero if it is not XFS.
    pub uuid: [u8; 16],
    /// Its block size in bytes.
    pub block_size: u64,
}

/// Space of a filesystem in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Everything but metadata of fixed size and the log.
    pub total: u64,
    /// Not in use.
    pub free: u64,
}

/// Facts about a filesystem.
pub trait Filesystem: Send + Sync {
    /// Which filesystem `fs` is on.
    fn identity(&self, fs: BorrowedFd<'_>) -> Res<FsIdentity>;
    /// Its space. `fs` must not belong to a project: there, XFS answers with the project's limit.
    fn space(&self, fs: BorrowedFd<'_>) -> Res<Space>;
}

/// Extents of an open file.
pub trait Extents: Send + Sync {
    /// Allocates `len` bytes from 0 and sets the size. Not atomic: on error blocks may remain.
    fn preallocate(&self, f: BorrowedFd<'_>, len: u64) -> Res<()>;
    /// Makes `dst` share all extents of `src`, at one instant between two writes. What was
    /// allocated and never written becomes a hole.
    fn clone_file(&self, src: BorrowedFd<'_>, dst: BorrowedFd<'_>) -> Res<()>;
}

/// The kernel's answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelFilesystem;

/// `struct xfs_fsop_geom_v1` of `xfs/xfs_fs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct XfsGeometryV1 {
    blocksize: u32,
    rtextsize: u32,
    agblocks: u32,
    agcount: u32,
    logblocks: u32,
    sectsize: u32,
    inodesize: u32,
    imaxpct: u32,
    datablocks: u64,
    rtblocks: u64,
    rtextents: u64,
    logstart: u64,
    uuid: [u8; 16],
    sunit: u32,
    swidth: u32,
    version: i32,
    flags: u32,
    logsectsize: u32,
    rtsectsize: u32,
    dirblocksize: u32,
}

const _: () = assert!(size_of::<XfsGeometryV1>() == 112);

fn xfs_geometry(fs: BorrowedFd<'_>) -> Result<XfsGeometryV1, Errno> {
    let mut g = XfsGeometryV1::default();
    retry(|| {
        // JUSTIFICATION: no crate wraps XFS_IOC_FSGEOMETRY.
        // SAFETY: `fs` is open for the whole call; the kernel writes exactly the 112 bytes that
        // the request's size field names, into a struct of plain integers of that size.
        let r = unsafe {
            libc::ioctl(fs.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, std::ptr::from_mut(&mut g))
        };
        if r < 0 {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        } else {
            Ok(())
        }
    })?;
    Ok(g)
}

impl Filesystem for KernelFilesystem {
    fn identity(&self, fs: BorrowedFd<'_>) -> Res<FsIdentity> {
        let what = || format!("fd {}", fs.as_raw_fd());
        let s =
            retry(|| rustix::fs::fstatfs(fs)).map_err(|e| SysError::new("fstatfs", what(), e))?;
        let xfs = i128::from(s.f_type) == XFS_SUPER_MAGIC;
        let block_size = s.f_bsize as u64;
        let uuid = if xfs {
            xfs_geometry(fs).map_err(|e| SysError::new("XFS_IOC_FSGEOMETRY", what(), e))?.uuid
        } else {
            [0; 16]
        };
        Ok(FsIdentity { xfs, uuid, block_size })
    }

    fn space(&self, fs: BorrowedFd<'_>) -> Res<Space> {
        let s = retry(|| rustix::fs::fstatvfs(fs))
            .map_err(|e| SysError::new("fstatvfs", format!("fd {}", fs.as_raw_fd()), e))?;
        Ok(Space {
            total: s.f_blocks.saturating_mul(s.f_frsize),
            free: s.f_bfree.saturating_mul(s.f_frsize),
        })
    }
}

impl Extents for KernelFilesystem {
    fn preallocate(&self, f: BorrowedFd<'_>, len: u64) -> Res<()> {
        retry(|| rustix::fs::fallocate(f, FallocateFlags::empty(), 0, len))
            .map_err(|e| SysError::new("fallocate", format!("fd {}", f.as_raw_fd()), e))
    }

    fn clone_file(&self, src: BorrowedFd<'_>, dst: BorrowedFd<'_>) -> Res<()> {
        retry(|| rustix::fs::ioctl_ficlone(dst, src))
            .map_err(|e| SysError::new("FICLONE", format!("fd {}", src.as_raw_fd()), e))
    }
}
