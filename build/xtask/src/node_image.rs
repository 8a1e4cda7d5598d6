//! The node image: all its inputs, and the folder it is assembled in.

use std::path::PathBuf;

use anyhow::Result;
use image::{Debian, Inputs, Manifest};

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
    let programs = upstream::programs(ui)?;
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
    let manifest = image::assemble(&inputs, &folder, &mut |text| stage.note(text))?;
    let mib: u64 = manifest.sizes.values().sum::<u64>() >> 20;
    stage.done(&format!("{mib} MiB in {}", folder.display()));
    Ok(NodeImage { folder, manifest })
}

/// Folder of an image of this checkout: two checkouts do not share one.
fn folder(name: &str) -> Result<PathBuf> {
    use sha2::{Digest, Sha256};
    let here = paths::repository();
    let digest = Sha256::digest(here.as_os_str().as_encoded_bytes());
    let checkout: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(paths::cache()?.join("image").join(format!("{checkout}-{name}")))
}
