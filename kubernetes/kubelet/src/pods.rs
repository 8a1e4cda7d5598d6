//! The orderly end of pods at shutdown (supervisor rule Q2).
//!
//! While the node runs, this Runnable does nothing. When the node shuts down, the kubelet is
//! already gone (stage 1), so nobody restarts what is stopped here (stage 2): each container's
//! first process gets SIGTERM, and after [`GRACE`] the kernel kills what is left. preStop hooks
//! and a container's own STOPSIGNAL are not honoured: only the kubelet knows them.
//!
//! Everything is read from cgroupfs and procfs, so a hanging containerd changes nothing.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use supervisor::StopReason;
use supervisor::prelude::*;

/// The cgroup of all pods, made by the kubelet (cgroupRoot `/`, driver cgroupfs).
pub const KUBEPODS: &str = "/sys/fs/cgroup/kubepods";
/// How long containers may take after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(30);
/// How long the kernel may take to kill them.
const KILL_TIME: Duration = Duration::from_secs(5);
/// The stop deadline of this Runnable: both of the above and some air.
pub const STOP_DEADLINE: Duration = Duration::from_secs(40);

/// Why the pods' end could not be watched.
#[derive(Debug, thiserror::Error)]
enum PodsError {
    #[error("cannot {step} {path}")]
    Cgroup {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Waits for the shutdown, then ends the pods below `kubepods`.
///
/// # Errors
/// The cgroup can neither be watched nor killed; then step Q4 of the node's shutdown does it.
pub async fn run(ctx: Context, kubepods: PathBuf) -> Outcome {
    let running = ctx.healthy();
    let stop = running.stop();
    let cancelled = stop.stopped().await;
    if stop.reason() == Some(StopReason::Shutdown) {
        end_all(&running, kubepods).await?;
    }
    Err(cancelled.into())
}

async fn end_all(running: &Running, kubepods: PathBuf) -> Result<(), Stop> {
    running.health().note("waiting for containers to end");
    let log = running.log().clone();
    let job = running.spawn_blocking(Name::from_static("end-pods"), move || {
        let told = terminate(&kubepods);
        slog::info!(log, "containers told to end"; "containers" => told);
        if empty_within(&kubepods, GRACE)? {
            return Ok(());
        }
        slog::warn!(log, "containers still running after their grace are killed";
            "grace_s" => GRACE.as_secs());
        let path = kubepods.join("cgroup.kill");
        fs::write(&path, "1").map_err(|source| PodsError::Cgroup {
            step: "write",
            path,
            source,
        })?;
        if !empty_within(&kubepods, KILL_TIME)? {
            slog::error!(log, "containers survive their kill");
        }
        Ok::<(), PodsError>(())
    });
    Ok(job.await??)
}

/// Sends SIGTERM to the first process of each container; tells how many.
fn terminate(kubepods: &Path) -> usize {
    let mut told = 0;
    for pid in processes(kubepods) {
        if is_first_of_container(pid)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
            // One that has ended meanwhile is no error.
            && rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_ok()
        {
            told += 1;
        }
    }
    told
}

/// The shim is the parent of a container's first process and of nothing else in a pod's cgroup.
fn is_first_of_container(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    parent_of(&stat).is_some_and(|parent| {
        let comm = fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
        is_shim(&comm)
    })
}

/// Field 4 of `/proc/<pid>/stat`. The name before it is in parentheses and may hold anything.
fn parent_of(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The kernel keeps 15 bytes of a process's name.
fn is_shim(comm: &str) -> bool {
    comm.trim_end().starts_with("containerd-shim")
}

/// All processes of a cgroup and those below it.
fn processes(cgroup: &Path) -> Vec<i32> {
    let mut found: Vec<i32> = fs::read_to_string(cgroup.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|l| l.parse().ok())
        .collect();
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            found.extend(processes(&entry.path()));
        }
    }
    found
}

/// True as soon as no process is left; false after `limit`. A missing cgroup is empty.
///
/// Blocks in poll(2): the kernel reports a change of `populated` as an urgent event of
/// `cgroup.events` (cgroup-v2.rst), and reading the file from its start takes the event.
fn empty_within(kubepods: &Path, limit: Duration) -> Result<bool, PodsError> {
    let path = kubepods.join("cgroup.events");
    let fail = |step| {
        let path = path.clone();
        move |source| PodsError::Cgroup { step, path, source }
    };
    let file = match fs::File::open(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other.map_err(fail("open"))?,
    };
    let end = Instant::now() + limit;
    loop {
        let mut text = [0_u8; 256];
        let length = file.read_at(&mut text, 0).map_err(fail("read"))?;
        if !is_populated(&String::from_utf8_lossy(&text[..length])) {
            return Ok(true);
        }
        let left = end.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return Ok(false) };
        let mut waited = [PollFd::new(&file, PollFlags::PRI)];
        match poll(&mut waited, Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(fail("watch")(e.into())),
        }
    }
}

fn is_populated(events: &str) -> bool {
    events.lines().any(|l| l.trim_end() == "populated 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q2_the_parent_is_found_behind_any_name() {
        assert_eq!(parent_of("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12 (a) R 1 (b)) S 9 12"), Some(9));
        assert_eq!(parent_of(""), None);
        assert_eq!(parent_of("12 (sh"), None);
    }

    #[test]
    fn q2_a_shim_is_known_by_its_cut_name() {
        assert!(is_shim("containerd-shim\n"));
        assert!(is_shim("containerd-shim-runc-v2\n"));
        assert!(!is_shim("containerd\n"));
        assert!(!is_shim(""));
    }

    #[test]
    fn q2_processes_of_all_levels_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("burstable/pod1/abc");
        fs::create_dir_all(&pod).unwrap();
        fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        fs::write(pod.join("cgroup.procs"), "41\n42\n").unwrap();
        assert_eq!(processes(dir.path()), [41, 42]);
        assert!(processes(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn q2_only_populated_1_counts() {
        assert!(is_populated("populated 1\nfrozen 0\n"));
        assert!(!is_populated("populated 0\nfrozen 1\n"));
    }

    #[test]
    fn q2_without_pods_there_is_nothing_to_wait_for() {
        let gone = Path::new("/nonexistent/kubepods");
        assert!(empty_within(gone, Duration::from_secs(1)).unwrap());
    }
}
