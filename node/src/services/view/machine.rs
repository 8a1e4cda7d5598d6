//! Figures of the machine from `/proc` and `/sys`; the parsers are pure.
//!
//! Invariant: what cannot be read stays empty. Must not know: who shows it.
use std::fs;
use std::path::{Path, PathBuf};

use dashboard::{Disk, Memory, Mount, NodeView, Pressure};

use crate::mounts;

/// Types of mounts that are worth showing with their size.
const SIZED: &[&str] = &["xfs", "erofs", "tmpfs", "vfat"];

/// Looks at the machine again and again; what cannot change is kept.
pub(crate) struct Machine {
    kernel: String,
    data_device: PathBuf,
}

impl Machine {
    pub(crate) fn new(machine: &crate::root::Machine) -> Machine {
        Machine {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            data_device: machine.data_device.clone(),
        }
    }

    /// Everything read now.
    pub(crate) fn look(&mut self) -> NodeView {
        NodeView {
            kernel: self.kernel.clone(),
            mounts: self.mounts(),
            memory: memory(),
            disks: self.disks(),
            pressure: ["cpu", "memory", "io"].into_iter().filter_map(pressure).collect(),
            ..NodeView::default()
        }
    }

    /// The node's own mounts; those of pods would only fill the page.
    fn mounts(&self) -> Vec<Mount> {
        let own = |m: &mounts::Mounted| {
            !m.target.starts_with("/var/lib/kubelet/") && !m.target.starts_with("/run/containerd/")
        };
        mounts::current().into_iter().filter(own).map(mount).collect()
    }

    fn disks(&self) -> Vec<Disk> {
        let mut disks: Vec<Disk> = fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.path().join("device").exists())
            .map(|e| self.disk(&e.path(), e.file_name().to_string_lossy().into_owned()))
            .collect();
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        disks
    }

    fn disk(&self, path: &Path, name: String) -> Disk {
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        let sectors: u64 = read("size").trim().parse().unwrap_or(0);
        let serial = read("serial").trim().to_owned();
        let data = self.data_device.file_name().is_some_and(|f| f.to_string_lossy() == *name);
        let role = if data {
            "data"
        } else if mounts::current().iter().any(|m| m.target == "/" && m.source.ends_with(&name)) {
            "root"
        } else {
            ""
        };
        // sysfs counts in 512-byte units whatever the disk's sector is.
        Disk { name, serial, size_bytes: sectors * 512, role: role.to_owned() }
    }
}

fn mount(m: mounts::Mounted) -> Mount {
    let sized = SIZED.contains(&m.fs_type.as_str());
    let stat = sized.then(|| rustix::fs::statvfs(m.target.as_str()).ok()).flatten();
    Mount {
        total_bytes: stat.as_ref().map(|s| s.f_blocks * s.f_frsize),
        used_bytes: stat.as_ref().map(|s| s.f_blocks.saturating_sub(s.f_bfree) * s.f_frsize),
        source: m.source,
        target: m.target,
        fs_type: m.fs_type,
        options: m.options,
    }
}

fn memory() -> Memory {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Memory {
        total_bytes: kib(&info, "MemTotal:"),
        available_bytes: kib(&info, "MemAvailable:"),
        rss_self_bytes: rss_self(),
    }
}

/// Resident set of this process.
pub fn rss_self() -> u64 {
    kib(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmRSS:")
}

/// A line `key   123 kB` in bytes.
fn kib(text: &str, key: &str) -> u64 {
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn pressure(resource: &str) -> Option<Pressure> {
    let text = fs::read_to_string(Path::new("/proc/pressure").join(resource)).ok()?;
    Some(Pressure {
        resource: resource.to_owned(),
        some_avg10: avg10(&text, "some"),
        full_avg10: avg10(&text, "full"),
    })
}

fn avg10(text: &str, kind: &str) -> f64 {
    text.lines()
        .find_map(|l| {
            l.strip_prefix(kind)?.split_ascii_whitespace().find_map(|w| w.strip_prefix("avg10="))
        })
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_whole_keys_and_missing_ones_are_zero() {
        let info = "MemTotal:        2048 kB\nMemFree:  1 kB\n";
        assert_eq!(kib(info, "MemTotal:"), 2 << 20);
        assert_eq!(kib(info, "MemAvailable:"), 0);
        let psi = "some avg10=1.50 avg60=0.00 total=1\nfull avg10=0.25 avg60=0.00 total=1\n";
        assert!((avg10(psi, "some") - 1.5).abs() < f64::EPSILON);
        assert!((avg10(psi, "full") - 0.25).abs() < f64::EPSILON);
        assert!(avg10("", "some").abs() < f64::EPSILON);
    }
}
