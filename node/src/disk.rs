//! Finding the disk a parameter names (rule B0).
//!
//! Owner: bring-up. Invariant: only the named disk is ever found, never "the first that fits".
//! Must not know: what is on the disk.
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// How a parameter names a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskRef {
    /// Serial number of a virtio disk.
    Serial(String),
    /// Label of a GPT partition.
    PartLabel(String),
    /// Unique id of a GPT partition.
    Uuid(String),
    /// Device file below `/dev`.
    Path(PathBuf),
}

impl DiskRef {
    /// Reads `serial:X`, `partlabel:X`, `uuid:X` or `/dev/…`.
    pub fn parse(text: &str) -> Option<DiskRef> {
        let plain = |s: &str| (!s.is_empty() && !s.contains(['/', '\0'])).then(|| s.to_owned());
        if let Some(path) = text.strip_prefix("/dev/") {
            let fits = !path.is_empty() && path.split('/').all(|p| !matches!(p, "" | "." | ".."));
            return fits.then(|| DiskRef::Path(PathBuf::from(text)));
        }
        match text.split_once(':')? {
            ("serial", s) => plain(s).map(DiskRef::Serial),
            ("partlabel", s) => plain(s).map(DiskRef::PartLabel),
            ("uuid", s) => plain(s).map(DiskRef::Uuid),
            _ => None,
        }
    }
}

impl fmt::Display for DiskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskRef::Serial(s) => write!(f, "serial:{s}"),
            DiskRef::PartLabel(s) => write!(f, "partlabel:{s}"),
            DiskRef::Uuid(s) => write!(f, "uuid:{s}"),
            DiskRef::Path(p) => write!(f, "{}", p.display()),
        }
    }
}

/// The device file of the named disk, if it is there now. `sys` is `/sys`, `dev` is `/dev`.
///
/// # Errors
/// The list of block devices cannot be read.
pub fn find(disk: &DiskRef, sys: &Path, dev: &Path) -> io::Result<Option<PathBuf>> {
    if let DiskRef::Path(path) = disk {
        return Ok(path.exists().then(|| path.clone()));
    }
    let class = sys.join("class/block");
    let entries = match fs::read_dir(&class) {
        Ok(entries) => entries,
        // No block device at all yet.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let entry = entry?;
        if matches(disk, &entry.path()) {
            return Ok(Some(dev.join(entry.file_name())));
        }
    }
    Ok(None)
}

/// Waits for the named disk until the kernel announces it. `None`: it did not come in time.
///
/// # Errors
/// The kernel's announcements or the list of block devices cannot be read.
pub fn wait(disk: &DiskRef, limit: Duration) -> io::Result<Option<PathBuf>> {
    let end = Instant::now() + limit;
    // Listen before the first look, so that no disk can appear in between unseen.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let events =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
    bind(&events, &SocketAddrNetlink::new(0, 1))?;
    loop {
        if let Some(device) = find(disk, Path::new("/sys"), Path::new("/dev"))? {
            return Ok(Some(device));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let mut fds = [PollFd::new(&events, PollFlags::IN)];
        poll(&mut fds, Timespec::try_from(left).ok().as_ref())?;
        let mut text = [0_u8; 4096];
        // What it says does not matter: the disks are looked at again after each announcement. An
        // overrun (ENOBUFS) is one more reason to look.
        let _ = rustix::io::read(&events, &mut text);
    }
}

fn matches(disk: &DiskRef, device: &Path) -> bool {
    match disk {
        DiskRef::Serial(want) => {
            fs::read_to_string(device.join("serial")).is_ok_and(|have| have.trim() == want)
        }
        DiskRef::PartLabel(want) => uevent(device, "PARTNAME").as_deref() == Some(want),
        DiskRef::Uuid(want) => {
            uevent(device, "PARTUUID").is_some_and(|have| have.eq_ignore_ascii_case(want))
        }
        DiskRef::Path(_) => false,
    }
}

fn uevent(device: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(device.join("uevent")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='))?;
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b0_disks_are_named_by_serial_label_id_or_path() {
        assert_eq!(DiskRef::parse("serial:a-b"), Some(DiskRef::Serial("a-b".to_owned())));
        assert_eq!(DiskRef::parse("partlabel:x"), Some(DiskRef::PartLabel("x".to_owned())));
        assert_eq!(DiskRef::parse("/dev/vda1"), Some(DiskRef::Path(PathBuf::from("/dev/vda1"))));
        for bad in ["", "vda", "serial:", "serial:a/b", "/dev/", "/dev/../etc/passwd", "label:x"] {
            assert_eq!(DiskRef::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_disk_with_exactly_this_serial_is_found() {
        let t = tempfile::tempdir().unwrap();
        let add = |name: &str, file: &str, text: &str| {
            let d = t.path().join("class/block").join(name);
            fs::create_dir_all(&d).unwrap();
            fs::write(d.join(file), text).unwrap();
        };
        add("vda", "serial", "hamlet-data-2\n");
        add("vdb", "serial", "hamlet-data\n");
        add("vdc1", "uevent", "MAJOR=254\nPARTUUID=AB-CD\nPARTNAME=esp\n");
        let look =
            |d: &str| find(&DiskRef::parse(d).unwrap(), t.path(), Path::new("/dev")).unwrap();
        assert_eq!(look("serial:hamlet-data"), Some(PathBuf::from("/dev/vdb")));
        assert_eq!(look("serial:hamlet"), None);
        assert_eq!(look("partlabel:esp"), Some(PathBuf::from("/dev/vdc1")));
        assert_eq!(look("uuid:ab-cd"), Some(PathBuf::from("/dev/vdc1")));
        assert_eq!(look("/dev/no-such-disk"), None);
    }
}
