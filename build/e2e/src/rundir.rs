//! One folder per run, for sockets, disks and logs: two runs never share names.
//!
//! It lies in the user's runtime folder when there is one on a real disk's worth
//! of space, else in the cache folder, and is removed when it goes out of scope,
//! unless it is kept for someone to read.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Longest path of a unix socket, without the final zero byte (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// A folder of one run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    keep: bool,
}

/// Folder for everything that may be rebuilt: `$XDG_CACHE_HOME/hamlet`.
///
/// # Errors
/// Neither XDG_CACHE_HOME nor HOME is set.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    if let Some(cache) = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(cache).join("hamlet"));
    }
    let home = std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/hamlet"))
}

impl RunDir {
    /// Makes a new folder.
    ///
    /// # Errors
    /// No home, no space, or a home so deep that unix sockets cannot live there.
    pub fn new() -> Result<Self> {
        Self::under(&cache_dir()?.join("run"))
    }

    fn under(parent: &Path) -> Result<Self> {
        remove_leftovers(parent);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        if path.join("host.sock").as_os_str().len() > SOCKET_PATH_MAX {
            bail!(
                "{} is too long for a unix socket; set XDG_CACHE_HOME to a shorter path",
                path.display()
            );
        }
        if path.exists() {
            // An earlier process with this id did not come to its end.
            std::fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, keep: false })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Leaves the folder where it is when `self` goes.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // A failing test's console is what one wants to read; its disks are not.
        if self.keep || std::thread::panicking() {
            remove_disks(&self.path);
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Names of disks in a run's folder begin so.
const DISK_PREFIX: &str = "data.";

/// Logs of runs that did not clean up stay readable this long.
const KEEP_LOGS: Duration = Duration::from_secs(24 * 3600);

/// Disks, and after a day all else, of processes that are gone.
fn remove_leftovers(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().unwrap_or_default();
        if pid.is_empty() || Path::new("/proc").join(pid).exists() {
            continue;
        }
        let age = entry.metadata().ok().and_then(|data| data.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > KEEP_LOGS) {
            let _ = std::fs::remove_dir_all(entry.path());
        } else {
            remove_disks(&entry.path());
        }
    }
}

fn remove_disks(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(DISK_PREFIX) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_of_one_process_differ_and_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let (one, two) =
            (RunDir::under(parent.path()).unwrap(), RunDir::under(parent.path()).unwrap());
        assert_ne!(one.path(), two.path());
        let path = one.path().to_path_buf();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }

    #[test]
    fn a_kept_folder_keeps_its_logs_but_no_disks() {
        let parent = tempfile::tempdir().unwrap();
        let mut run = RunDir::under(parent.path()).unwrap();
        for name in ["serial.log", "data.img"] {
            std::fs::write(run.join(name), "").unwrap();
        }
        let path = run.path().to_path_buf();
        run.keep();
        drop(run);
        assert!(path.join("serial.log").exists() && !path.join("data.img").exists());
    }

    #[test]
    fn disks_of_processes_that_are_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        // Larger than the kernel's largest pid.
        let dead = parent.path().join("99999999-0");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join("data.qcow2"), "").unwrap();
        let _run = RunDir::under(parent.path()).unwrap();
        assert!(dead.exists() && !dead.join("data.qcow2").exists());
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_an_error_with_the_way_out() {
        let parent = tempfile::tempdir().unwrap();
        let deep = parent.path().join("x".repeat(120));
        let error = RunDir::under(&deep).unwrap_err().to_string();
        assert!(error.contains("XDG_CACHE_HOME"), "{error}");
    }
}
