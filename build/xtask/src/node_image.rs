//! The node image: all its inputs, and the folder it is assembled in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::{Debian, Inputs, Manifest};
use sha2::{Digest, Sha256};

use crate::compile::{Flavour, hamlet};
use crate::ui::Ui;
use crate::{paths, upstream};

/// An assembled image.
#[derive(Debug)]
pub(crate) struct NodeImage {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// What is in it.
    pub(crate) manifest: Manifest,
}

/// Builds the image with a `hamlet` of the given flavour.
///
/// # Errors
/// Any of its parts cannot be had.
pub(crate) fn build(ui: &Ui, flavour: Flavour) -> Result<NodeImage> {
    let programs = upstream::programs_of(ui, flavour.faults)?;
    let binary = hamlet(ui, flavour)?;
    build_with(ui, binary, programs, flavour.name())
}

/// Builds the image with a binary that exists.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_with(
    ui: &Ui,
    hamlet: PathBuf,
    upstream: std::collections::BTreeMap<String, PathBuf>,
    name: &str,
) -> Result<NodeImage> {
    let mut stage = ui.stage("kernel and Debian parts");
    let debian = Debian::new(paths::cache()?.join("debian"));
    let kernel = debian.kernel(&mut |text| stage.note(text))?;
    let busybox = debian.busybox(&mut |text| stage.note(text))?;
    stage.done(&format!("Linux {}", kernel.release));

    let mut stage = ui.stage("image");
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let inputs = Inputs { hamlet, upstream, kernel, busybox, version };
    let folder = folder(name)?;
    let lock = std::fs::File::create(folder.with_extension("lock"))?;
    lock.lock().context("cannot take the lock of the image's folder")?;
    let manifest = image::assemble(&inputs, &folder, &mut |text| stage.note(text))?;
    let mib: u64 = manifest.sizes.values().sum::<u64>() >> 20;
    stage.done(&format!("{mib} MiB in {}", folder.display()));
    Ok(NodeImage { folder, manifest })
}

/// Name of an image around a binary that was built by hand.
pub(crate) fn name_of_binary(binary: &Path) -> String {
    format!("by-hand-{}", short_hash(binary))
}

/// Folder of an image of this checkout: two checkouts do not share one.
fn folder(name: &str) -> Result<PathBuf> {
    let images = paths::cache()?.join("image");
    std::fs::create_dir_all(&images)?;
    Ok(images.join(format!("{}-{name}", short_hash(&paths::repository()))))
}

fn short_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}
