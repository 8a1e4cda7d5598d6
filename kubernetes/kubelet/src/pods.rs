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
use std::path::{Path, PathBuf};
use std::time::Duration;

use supervisor::prelude::*;
use supervisor::StopReason;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

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
    let root = kubepods.clone();
    let job = running.spawn_blocking(Name::from_static("terminate"), move || terminate(&root));
    let told = job.await?;
    slog::info!(running.log(), "pods: containers told to end"; "containers" => told);
    running.health().note("waiting for containers to end");
    if empty_within(&kubepods, GRACE).await? {
        return Ok(());
    }
    slog::warn!(running.log(), "pods: containers still running after their grace are killed";
        "grace_s" => GRACE.as_secs());
    let path = kubepods.join("cgroup.kill");
    fs::write(&path, "1").map_err(|source| PodsError::Cgroup { step: "write", path, source })?;
    if !empty_within(&kubepods, KILL_TIME).await? {
        slog::error!(running.log(), "pods: containers survive their kill");
    }
    Ok(())
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
async fn empty_within(kubepods: &Path, limit: Duration) -> Result<bool, PodsError> {
    let path = kubepods.join("cgroup.events");
    let fail = |step| {
        let path = path.clone();
        move |source| PodsError::Cgroup { step, path, source }
    };
    let file = match fs::File::open(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other.map_err(fail("open"))?,
    };
    // The kernel reports a change of `populated` as an urgent event (cgroup-v2.rst).
    let events = AsyncFd::with_interest(file, Interest::PRIORITY).map_err(fail("watch"))?;
    let end = Instant::now() + limit;
    loop {
        // Opened anew: the position of the watched file belongs to the event.
        if !is_populated(&fs::read_to_string(&path).map_err(fail("read"))?) {
            return Ok(true);
        }
        match tokio::time::timeout_at(end, events.ready(Interest::PRIORITY)).await {
            Ok(guard) => guard.map_err(fail("watch"))?.clear_ready(),
            Err(_) => return Ok(false),
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

    #[tokio::test]
    async fn q2_without_pods_there_is_nothing_to_wait_for() {
        let gone = Path::new("/nonexistent/kubepods");
        assert!(empty_within(gone, Duration::from_secs(1)).await.unwrap());
    }
}
