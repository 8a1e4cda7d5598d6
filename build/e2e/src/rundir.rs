//! One folder per run, for sockets, disks and logs: two runs never share names.
//!
//! It lies in the user's runtime folder when there is one on a real disk's worth
//! of space, else in the cache folder, and is removed when it goes out of scope,
//! unless it is kept for someone to read.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

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
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
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
    fn a_path_too_long_for_a_socket_is_an_error_with_the_way_out() {
        let parent = tempfile::tempdir().unwrap();
        let deep = parent.path().join("x".repeat(120));
        let error = RunDir::under(&deep).unwrap_err().to_string();
        assert!(error.contains("XDG_CACHE_HOME"), "{error}");
    }
}
