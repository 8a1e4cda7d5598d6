//! The kernel's own file systems (rule B3): a constant plan, and the code that carries it out.
//!
//! Owner: bring-up. Invariants: what is already mounted there with that type is kept; best-effort mounts
//! never fail a boot. Must not know: the data disk (see `data`).
use std::ffi::CString;
use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// One mount of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// File system type, also used as source.
    pub fs_type: &'static str,
    /// Where.
    pub target: &'static str,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Options of the file system.
    pub options: &'static str,
    /// Whether the boot goes on without it.
    pub best_effort: bool,
}

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC).union(MountFlags::NODEV);
const TERMINALS: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);
const MEMORY: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// What every PID 1 needs first; the initramfs mounts these and hands them over.
pub const FIRST: &[Planned] = &[
    must("proc", "/proc", SAFE, ""),
    must("sysfs", "/sys", SAFE, ""),
    must("devtmpfs", "/dev", MountFlags::NOSUID, "mode=755"),
];

/// The rest, in order.
pub const KERNEL: &[Planned] = &[
    must("devpts", "/dev/pts", TERMINALS, "mode=620,ptmxmode=666"),
    must("tmpfs", "/dev/shm", SAFE, "mode=1777"),
    must("cgroup2", "/sys/fs/cgroup", SAFE, "nsdelegate,memory_recursiveprot"),
    try_to("mqueue", "/dev/mqueue", SAFE),
    try_to("bpf", "/sys/fs/bpf", SAFE),
    try_to("tracefs", "/sys/kernel/tracing", SAFE),
    try_to("pstore", "/sys/fs/pstore", SAFE),
    try_to("efivarfs", "/sys/firmware/efi/efivars", SAFE),
];

/// Memory file systems of the node itself. `/run` may execute nothing, `/ephemeral` and `/var` may.
pub const MEMORY_TREES: &[Planned] = &[
    must("tmpfs", "/run", SAFE, "mode=755"),
    must("tmpfs", "/tmp", SAFE, "mode=1777"),
    must("tmpfs", "/ephemeral", MEMORY, "mode=700"),
    must("tmpfs", "/var", MEMORY, "mode=755"),
];

const fn must(
    fs_type: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: &'static str,
) -> Planned {
    Planned { fs_type, target, flags, options, best_effort: false }
}

const fn try_to(fs_type: &'static str, target: &'static str, flags: MountFlags) -> Planned {
    Planned { fs_type, target, flags, options: "", best_effort: true }
}

/// A mount that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot mount {fs_type} on {target}")]
pub struct MountError {
    /// File system type.
    pub fs_type: String,
    /// Where.
    pub target: String,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// One line of `/proc/self/mounts`, escapes decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Device or source.
    pub source: String,
    /// Where.
    pub target: String,
    /// File system type.
    pub fs_type: String,
    /// Options.
    pub options: String,
}

/// Reads the text of `/proc/self/mounts`; the first mounted comes first.
pub fn parse_mounts(text: &str) -> Vec<Mounted> {
    let line = |l: &str| {
        let mut words = l.split(' ').map(unescape);
        Some(Mounted {
            source: words.next()?,
            target: words.next()?,
            fs_type: words.next()?,
            options: words.next()?,
        })
    };
    text.lines().filter_map(line).collect()
}

/// Decodes the octal escapes of space, tab, newline and backslash.
fn unescape(word: &str) -> String {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if first == b'\\' => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The mounts of this process now; empty before `/proc` is there.
pub fn current() -> Vec<Mounted> {
    fs::read_to_string("/proc/self/mounts").map(|t| parse_mounts(&t)).unwrap_or_default()
}

/// Carries a plan out. The first list are failures of needed mounts, the second of best-effort ones.
pub fn apply(plan: &[Planned]) -> (Vec<MountError>, Vec<MountError>) {
    let mut failed = (Vec::new(), Vec::new());
    for p in plan {
        if let Err(source) = apply_one(p) {
            let error =
                MountError { fs_type: p.fs_type.to_owned(), target: p.target.to_owned(), source };
            if p.best_effort { &mut failed.1 } else { &mut failed.0 }.push(error);
        }
    }
    failed
}

fn apply_one(p: &Planned) -> io::Result<()> {
    let there = current().iter().any(|m| m.target == p.target && m.fs_type == p.fs_type);
    if there {
        return Ok(());
    }
    // A directory of the read-only root that exists is no error, nor is one that sysfs offers itself.
    if !Path::new(p.target).is_dir() {
        match fs::create_dir_all(p.target) {
            // sysfs offers no such place: this machine or kernel has no such thing.
            Err(_) if p.best_effort => return Ok(()),
            other => other?,
        }
    }
    let options = CString::new(p.options)?;
    let options = (!p.options.is_empty()).then_some(options.as_c_str());
    Ok(mount(p.fs_type, p.target, p.fs_type, p.flags, options)?)
}

/// Makes every mount below `/` propagate, as the kubelet expects.
///
/// # Errors
/// The errno of mount.
pub fn share_root() -> io::Result<()> {
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    Ok(mount_change("/", flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_the_plan_mounts_parents_before_children_and_nothing_twice() {
        let all: Vec<&Planned> = FIRST.iter().chain(KERNEL).chain(MEMORY_TREES).collect();
        for (i, p) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|q| q.target != p.target), "{} twice", p.target);
            let late_parent =
                all[i..].iter().any(|q| p.target.starts_with(&format!("{}/", q.target)));
            assert!(!late_parent, "a parent of {} comes after it", p.target);
        }
    }

    #[test]
    fn b3_cgroups_are_delegated_and_devices_exist_only_in_dev() {
        let cgroup = KERNEL.iter().find(|p| p.fs_type == "cgroup2").unwrap();
        assert_eq!(cgroup.options, "nsdelegate,memory_recursiveprot");
        for p in FIRST.iter().chain(KERNEL).chain(MEMORY_TREES) {
            let devices = matches!(p.fs_type, "devtmpfs" | "devpts");
            assert_eq!(p.flags.contains(MountFlags::NODEV), !devices, "{}", p.target);
            assert!(p.flags.contains(MountFlags::NOSUID), "{}", p.target);
        }
    }

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        let table = parse_mounts(
            "/dev/vdb /data xfs rw,prjquota 0 0\ntmpfs /a\\040b\\134c tmpfs rw 0 0\nbroken\n",
        );
        assert_eq!(table.len(), 2);
        assert_eq!(table[0].source, "/dev/vdb");
        assert_eq!(table[0].options, "rw,prjquota");
        assert_eq!(table[1].target, "/a b\\c");
    }
}
