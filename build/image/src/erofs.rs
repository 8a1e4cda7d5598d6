//! Writes a layout as an EROFS image, by way of a staging folder and mkfs.erofs.
//!
//! Reproducible: one time stamp, one identifier, all files owned by root, no
//! extended attributes; mkfs.erofs sorts directories by itself. Not compressed:
//! most of the image is programs that the guest maps and runs at once.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::assemble::Sources;
use crate::layout::{Kind, Layout};
use crate::run::run_quiet;

/// Identifier of the file system: fixed, so that equal inputs give equal bytes.
const UUID: &str = "68616d6c-6574-4000-8000-726f6f740000";

/// Writes the image to `path`; `staging` must not exist and does not afterwards.
///
/// # Errors
/// A source that cannot be read, a full disk, mkfs.erofs missing or failing.
pub(crate) fn write(layout: &Layout, sources: &Sources, staging: &Path, path: &Path) -> Result<()> {
    stage(layout, sources, staging)?;
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
    }
    let made = run_quiet(
        Command::new("mkfs.erofs")
            .args(["--quiet", "--all-root", "-T0", "-x-1", "-U", UUID])
            .arg(path)
            .arg(staging),
    );
    fs::remove_dir_all(staging).with_context(|| format!("cannot remove {}", staging.display()))?;
    made
}

/// Puts the layout's paths into `staging`.
fn stage(layout: &Layout, sources: &Sources, staging: &Path) -> Result<()> {
    fs::create_dir_all(staging).with_context(|| format!("cannot create {}", staging.display()))?;
    for entry in layout.entries() {
        let path = staging.join(entry.path.trim_start_matches('/'));
        let made = match &entry.kind {
            Kind::Dir => fs::create_dir(&path).map_err(Into::into),
            Kind::Link(target) => symlink(target, &path).map_err(Into::into),
            Kind::File(origin) => sources.copy(origin, &path),
            Kind::CharDevice { .. } => bail!("{}: no device belongs into the image", entry.path),
        };
        made.with_context(|| format!("cannot stage {}", entry.path))?;
        if !matches!(entry.kind, Kind::Link(_)) {
            fs::set_permissions(&path, Permissions::from_mode(entry.mode))
                .with_context(|| format!("cannot set the mode of {}", path.display()))?;
        }
    }
    Ok(())
}
