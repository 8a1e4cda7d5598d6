//! cgroup v2 of the children: one below `/sys/fs/cgroup/hamlet.slice` per DN.
//!
//! Owner: the spawner. Invariants: all controllers are enabled from the root down before the first child;
//! a cgroup is killed as a whole by the kernel (`cgroup.kill`). Must not know: what runs inside.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use logtree::Dn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use supervisor::CgroupLimits;

/// How long the leftovers of an earlier incarnation may take to vanish after their kill.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(5);

/// The folder of all children's cgroups.
#[derive(Debug, Clone)]
pub struct Cgroups {
    slice: PathBuf,
}

impl Cgroups {
    /// Below `/sys/fs/cgroup/hamlet.slice`, made if need be, with all controllers.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn set_up(root: &Path) -> io::Result<Cgroups> {
        let slice = root.join("hamlet.slice");
        make(&slice)?;
        enable_controllers(root)?;
        enable_controllers(&slice)?;
        Ok(Cgroups { slice })
    }

    /// Moves the calling process into `hamlet.slice/init`.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn enter_init(&self) -> io::Result<()> {
        let init = self.slice.join("init");
        make(&init)?;
        fs::write(init.join("cgroup.procs"), "0")
    }

    /// The cgroup of a child, made if need be, with its limits.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn of(&self, dn: &Dn, limits: &CgroupLimits) -> io::Result<Cgroup> {
        let path = self.slice.join(dn.as_str());
        make(&path)?;
        let cgroup = Cgroup { path };
        cgroup.limit("memory.max", limits.memory_max)?;
        cgroup.limit("pids.max", limits.pids_max)?;
        if let Some(weight) = limits.cpu_weight {
            cgroup.write("cpu.weight", &weight.to_string())?;
        }
        Ok(cgroup)
    }
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Hands every controller of a cgroup to its children.
///
/// # Errors
/// The list cannot be read, or a controller is refused.
pub fn enable_controllers(path: &Path) -> io::Result<()> {
    let all = fs::read_to_string(path.join("cgroup.controllers"))?;
    let on: Vec<String> = all.split_ascii_whitespace().map(|c| format!("+{c}")).collect();
    fs::write(path.join("cgroup.subtree_control"), on.join(" "))
}

/// One cgroup.
#[derive(Debug, Clone)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path.join(file))?.write_all(text.as_bytes())
    }

    /// Sets or lifts a limit; a kernel without the controller is fine as long as nothing is asked of it.
    fn limit(&self, file: &str, value: Option<u64>) -> io::Result<()> {
        let text = value.map_or_else(|| "max".to_owned(), |v| v.to_string());
        match self.write(file, &text) {
            Err(e) if value.is_none() && e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// `cgroup.procs`, open for the child to enter by.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// `cgroup.events`, which wakes a poll for priority data when it changes.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn events(&self) -> io::Result<File> {
        File::open(self.path.join("cgroup.events"))
    }

    /// Whether anything lives in it or below.
    pub fn populated(&self) -> bool {
        self.read("cgroup.events").lines().any(|l| l == "populated 1")
    }

    /// Kills all of it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn kill(&self) -> io::Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Kills what an earlier incarnation has left and waits until it is gone.
    ///
    /// # Errors
    /// `TimedOut` if it does not go, else what the file system says.
    pub fn clear(&self) -> io::Result<()> {
        if !self.populated() {
            return Ok(());
        }
        self.kill()?;
        let end = Instant::now() + LEFTOVERS_LIMIT;
        let events = self.events()?;
        while self.populated() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "processes of an earlier incarnation do not end",
                ));
            }
            // A short cap, should a change slip in between the read and the poll.
            let step = left.min(Duration::from_millis(100));
            let mut fds = [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::PRI)];
            poll(&mut fds, Timespec::try_from(step).ok().as_ref())?;
        }
        Ok(())
    }

    /// CPU time in nanoseconds, bytes of memory, processes killed for want of memory.
    pub fn usage(&self) -> (u64, u64, u64) {
        let cpu_us = keyed(&self.read("cpu.stat"), "usage_usec");
        let memory = self.read("memory.current").trim().parse().unwrap_or(0);
        let oom = keyed(&self.read("memory.events"), "oom_kill");
        (cpu_us.saturating_mul(1000), memory, oom)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }
}

/// The number after `key` in a flat keyed file.
fn keyed(text: &str, key: &str) -> u64 {
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_keyed_files_are_read_by_whole_keys() {
        let text = "oom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(keyed(text, "oom_kill"), 2);
        assert_eq!(keyed(text, "oom"), 3);
        assert_eq!(keyed(text, "max"), 0);
    }
}
