//! Where things are: the repository, the user's cache.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2);
    root.expect("the crate lies two folders below the root").to_path_buf()
}

/// Folder for everything that may be rebuilt: `$XDG_CACHE_HOME/hamlet`.
///
/// # Errors
/// Neither XDG_CACHE_HOME nor HOME is set, or the folder cannot be made.
pub(crate) fn cache() -> Result<PathBuf> {
    let folder = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(cache) => PathBuf::from(cache).join("hamlet"),
        None => {
            let home =
                std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
            PathBuf::from(home).join(".cache/hamlet")
        }
    };
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}
