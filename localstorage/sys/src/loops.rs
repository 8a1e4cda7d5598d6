//! Loop devices: attaching a file, finding who is attached to what, resizing, detaching.
//!
//! Purpose: the ioctls of `linux/loop.h` behind the seam [`Loops`]. The C layouts are
//! hand-written and tested for size.
//!
//! Invariants: a device is described by the device and inode behind it, its number is only a
//! name; a lost race for a free device closes its descriptor and is tried again, a bounded
//! number of times; nothing here detaches what it was not told to.
//!
//! Must not know: volumes, or where devices are bound.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Res, SysError, retry};

const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4c07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_ADD: libc::c_ulong = 0x4c80;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Races for a free device that are tried again.
const ATTEMPTS: u32 = 64;
const CONTROL: &str = "/dev/loop-control";

/// The number of a device: `/dev/loop<n>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopNo(pub u32);

/// How a file is attached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoopOptions {
    /// Writes through the device fail.
    pub read_only: bool,
    /// Sector size the device shows: 512 or 4096.
    pub block_size: u32,
    /// Numbers that must not be used: something still refers to them.
    pub avoid: Vec<LoopNo>,
}

/// A device and what is behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopStatus {
    /// Its number.
    pub no: LoopNo,
    /// Device `(major, minor)` of the filesystem of the file behind it.
    pub dev: (u32, u32),
    /// Inode of that file.
    pub inode: u64,
    /// Path of that file as the kernel sees it now; a hint, not an identity.
    pub path: PathBuf,
    /// Writes fail.
    pub read_only: bool,
    /// Detaches by itself at the last close.
    pub autoclear: bool,
    /// Whether it goes around the page cache, as is always asked for.
    pub direct_io: bool,
}

/// Loop devices.
pub trait Loops: Send + Sync {
    /// Attaches the open file `f` to a free device, without autoclear.
    fn attach(&self, f: BorrowedFd<'_>, o: &LoopOptions) -> Res<LoopNo>;
    /// All devices that have a file.
    fn list(&self) -> Res<Vec<LoopStatus>>;
    /// Takes over the size that the file behind has now.
    fn resize(&self, n: LoopNo) -> Res<()>;
    /// Takes the file away; as soon as the last user closes it, if it is in use.
    fn detach(&self, n: LoopNo) -> Res<()>;
    /// Writes out what was written to the device and is still cached.
    fn flush(&self, n: LoopNo) -> Res<()>;
    /// The device node as a place (O_PATH), to bind it somewhere.
    fn node(&self, n: LoopNo) -> Res<OwnedFd>;
}

/// The kernel's loop devices.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelLoops;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    lo_device: u64,
    lo_inode: u64,
    lo_rdevice: u64,
    lo_offset: u64,
    lo_sizelimit: u64,
    lo_number: u32,
    lo_encrypt_type: u32,
    lo_encrypt_key_size: u32,
    lo_flags: u32,
    lo_file_name: [u8; 64],
    lo_crypt_name: [u8; 64],
    lo_encrypt_key: [u8; 32],
    lo_init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);

const NO_INFO: LoopInfo64 = LoopInfo64 {
    lo_device: 0,
    lo_inode: 0,
    lo_rdevice: 0,
    lo_offset: 0,
    lo_sizelimit: 0,
    lo_number: 0,
    lo_encrypt_type: 0,
    lo_encrypt_key_size: 0,
    lo_flags: 0,
    lo_file_name: [0; 64],
    lo_crypt_name: [0; 64],
    lo_encrypt_key: [0; 32],
    lo_init: [0; 2],
};

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// An ioctl whose argument is a number, answering a number.
fn control(fd: BorrowedFd<'_>, op: libc::c_ulong, arg: libc::c_ulong) -> Result<u32, Errno> {
    retry(|| {
        // JUSTIFICATION: no crate wraps the loop ioctls.
        // SAFETY: `fd` is open for the whole call, and the operations passed here take a plain
        // number: the kernel touches no memory of ours.
        let r = unsafe { libc::ioctl(fd.as_raw_fd(), op as _, arg) };
        u32::try_from(r).map_err(|_| errno())
    })
}

fn configure(device: BorrowedFd<'_>, c: &LoopConfig) -> Result<(), Errno> {
    retry(|| {
        // JUSTIFICATION: no crate wraps LOOP_CONFIGURE.
        // SAFETY: `device` is open for the whole call; the kernel reads exactly the 304 bytes of
        // `loop_config` (size asserted above) from a reference that outlives it.
        let r =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, std::ptr::from_ref(c)) };
        if r < 0 { Err(errno()) } else { Ok(()) }
    })
}

fn status(device: BorrowedFd<'_>) -> Result<LoopInfo64, Errno> {
    let mut info = NO_INFO;
    retry(|| {
        // JUSTIFICATION: no crate wraps LOOP_GET_STATUS64.
        // SAFETY: `device` is open for the whole call; the kernel writes exactly the 232 bytes of
        // `loop_info64` (size asserted above), exclusively borrowed; any bytes are valid for it.
        let r = unsafe {
            libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, std::ptr::from_mut(&mut info))
        };
        if r < 0 { Err(errno()) } else { Ok(()) }
    })?;
    Ok(info)
}

fn name(n: LoopNo) -> String {
    format!("/dev/loop{}", n.0)
}

fn open(path: &str, flags: OFlags) -> Res<OwnedFd> {
    retry(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))
        .map_err(|e| SysError::new("open", path, e))
}

/// `(major, minor)` of the encoding that `lo_device` has (`huge_encode_dev`).
fn device_numbers(dev: u64) -> (u32, u32) {
    let major = (dev & 0xf_ff00) >> 8;
    let minor = (dev & 0xff) | ((dev >> 12) & 0xfff_ff00);
    (u32::try_from(major).unwrap_or(u32::MAX), u32::try_from(minor).unwrap_or(u32::MAX))
}

/// A free number that is not to be avoided.
fn free_number(control_fd: BorrowedFd<'_>, avoid: &[LoopNo]) -> Res<LoopNo> {
    let fail = |call, e| SysError::new(call, CONTROL, e);
    let free =
        control(control_fd, LOOP_CTL_GET_FREE, 0).map_err(|e| fail("LOOP_CTL_GET_FREE", e))?;
    if !avoid.contains(&LoopNo(free)) {
        return Ok(LoopNo(free));
    }
    let mut n = avoid.iter().map(|a| a.0).max().unwrap_or(free).max(free);
    loop {
        n += 1;
        match control(control_fd, LOOP_CTL_ADD, n.into()) {
            Ok(added) => return Ok(LoopNo(added)),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(fail("LOOP_CTL_ADD", e)),
        }
    }
}

impl Loops for KernelLoops {
    fn attach(&self, f: BorrowedFd<'_>, o: &LoopOptions) -> Res<LoopNo> {
        let control_fd = open(CONTROL, OFlags::RDWR)?;
        let mut flags = LO_FLAGS_DIRECT_IO;
        if o.read_only {
            flags |= LO_FLAGS_READ_ONLY;
        }
        // File descriptors are never negative.
        let fd = u32::try_from(f.as_raw_fd()).unwrap_or(u32::MAX);
        let info = LoopInfo64 { lo_flags: flags, ..NO_INFO };
        let config = LoopConfig { fd, block_size: o.block_size, info, reserved: [0; 8] };
        let mut last = Errno::BUSY;
        for _ in 0..ATTEMPTS {
            let no = free_number(control_fd.as_fd(), &o.avoid)?;
            // EBUSY at either call is a race that somebody else won.
            let mode = if o.read_only { OFlags::RDONLY } else { OFlags::RDWR };
            let device = match open(&name(no), mode) {
                Ok(device) => device,
                Err(e) if e.is(Errno::BUSY) => continue,
                Err(e) => return Err(e),
            };
            match configure(device.as_fd(), &config) {
                Ok(()) => return Ok(no),
                Err(Errno::BUSY) => last = Errno::BUSY,
                Err(e) => return Err(SysError::new("LOOP_CONFIGURE", name(no), e)),
            }
        }
        Err(SysError::new("LOOP_CONFIGURE", "any free device", last))
    }

    fn list(&self) -> Res<Vec<LoopStatus>> {
        let fail = |e: std::io::Error| {
            SysError::new("read", "/sys/block", Errno::from_io_error(&e).unwrap_or(Errno::IO))
        };
        let mut out = Vec::new();
        for entry in fs::read_dir("/sys/block").map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let file = entry.file_name();
            let number = file.to_str().and_then(|n| n.strip_prefix("loop")?.parse().ok());
            let Some(no) = number.map(LoopNo) else { continue };
            // Only a device with a file has this; opening the others would create nothing but work.
            let Ok(backing) = fs::read(entry.path().join("loop/backing_file")) else { continue };
            let device = match open(&name(no), OFlags::RDONLY) {
                Ok(device) => device,
                // Detached since.
                Err(e) if e.is(Errno::NXIO) || e.is(Errno::NOENT) => continue,
                Err(e) => return Err(e),
            };
            match status(device.as_fd()) {
                Ok(i) => out.push(LoopStatus {
                    no,
                    dev: device_numbers(i.lo_device),
                    inode: i.lo_inode,
                    path: path_of(&backing),
                    read_only: i.lo_flags & LO_FLAGS_READ_ONLY != 0,
                    autoclear: i.lo_flags & LO_FLAGS_AUTOCLEAR != 0,
                    direct_io: i.lo_flags & LO_FLAGS_DIRECT_IO != 0,
                }),
                Err(Errno::NXIO) => {}
                Err(e) => return Err(SysError::new("LOOP_GET_STATUS64", name(no), e)),
            }
        }
        out.sort_by_key(|s| s.no);
        Ok(out)
    }

    fn resize(&self, n: LoopNo) -> Res<()> {
        let device = open(&name(n), OFlags::RDONLY)?;
        control(device.as_fd(), LOOP_SET_CAPACITY, 0)
            .map(drop)
            .map_err(|e| SysError::new("LOOP_SET_CAPACITY", name(n), e))
    }

    fn detach(&self, n: LoopNo) -> Res<()> {
        let device = open(&name(n), OFlags::RDONLY)?;
        match control(device.as_fd(), LOOP_CLR_FD, 0) {
            Ok(_) | Err(Errno::NXIO) => Ok(()),
            Err(e) => Err(SysError::new("LOOP_CLR_FD", name(n), e)),
        }
    }

    fn flush(&self, n: LoopNo) -> Res<()> {
        let device = open(&name(n), OFlags::RDONLY)?;
        retry(|| rustix::fs::fsync(&device)).map_err(|e| SysError::new("fsync", name(n), e))
    }

    fn node(&self, n: LoopNo) -> Res<OwnedFd> {
        open(&name(n), OFlags::PATH | OFlags::NOFOLLOW)
    }
}

/// The path in `backing_file`: without the line's end.
fn path_of(line: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    PathBuf::from(std::ffi::OsString::from_vec(line.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_5_device_numbers_are_decoded_as_the_kernel_encodes_them() {
        assert_eq!(device_numbers(0xfe10), (254, 16));
        assert_eq!(device_numbers(0x801), (8, 1));
        // Minor 0x12345, major 0x103: minors above 255 wrap around the major.
        assert_eq!(device_numbers(0x1231_0345), (0x103, 0x1_2345));
    }

    #[test]
    fn s2_5_a_backing_path_loses_only_the_lines_end() {
        assert_eq!(path_of(b"/data/volumes/a b\n"), PathBuf::from("/data/volumes/a b"));
        assert_eq!(path_of(b"/x (deleted)\n"), PathBuf::from("/x (deleted)"));
    }
}
