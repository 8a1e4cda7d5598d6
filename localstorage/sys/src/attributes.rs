//! Extended attributes and ownership of files: what needs root on a real node.
//!
//! Invariant: works on descriptors only, so no path is resolved twice.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Res, SysError, retry};

/// Attributes of an open file or directory.
pub trait Attributes: Send + Sync {
    /// The value of `name`, if the file has it; longer than 4 KiB is ERANGE.
    fn get(&self, f: BorrowedFd<'_>, name: &str) -> Res<Option<Vec<u8>>>;
    /// Sets it, whether or not it was there.
    fn set(&self, f: BorrowedFd<'_>, name: &str, value: &[u8]) -> Res<()>;
    /// Sets owner and permission bits.
    fn own(&self, f: BorrowedFd<'_>, uid: u32, gid: u32, mode: u32) -> Res<()>;
}

/// The kernel's attributes.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelAttributes;

impl Attributes for KernelAttributes {
    fn get(&self, f: BorrowedFd<'_>, name: &str) -> Res<Option<Vec<u8>>> {
        let mut buf = vec![0_u8; 4096];
        match retry(|| rustix::fs::fgetxattr(f, name, &mut buf[..])) {
            Ok(n) => {
                buf.truncate(n);
                Ok(Some(buf))
            }
            Err(Errno::NODATA) => Ok(None),
            Err(e) => Err(SysError::new("fgetxattr", format!("{name} of fd {}", f.as_raw_fd()), e)),
        }
    }

    fn set(&self, f: BorrowedFd<'_>, name: &str, value: &[u8]) -> Res<()> {
        retry(|| rustix::fs::fsetxattr(f, name, value, XattrFlags::empty()))
            .map_err(|e| SysError::new("fsetxattr", format!("{name} of fd {}", f.as_raw_fd()), e))
    }

    fn own(&self, f: BorrowedFd<'_>, uid: u32, gid: u32, mode: u32) -> Res<()> {
        let what = || format!("fd {}", f.as_raw_fd());
        // Owner first: chown clears the set-id bits.
        retry(|| rustix::fs::fchown(f, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))
            .map_err(|e| SysError::new("fchown", what(), e))?;
        retry(|| rustix::fs::fchmod(f, Mode::from_raw_mode(mode)))
            .map_err(|e| SysError::new("fchmod", what(), e))
    }
}
