//! Writes a layout as a newc cpio archive, compressed with zstd.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use cpio::newc::{self, ModeFileType};

use crate::assemble::Sources;
use crate::layout::{Kind, Layout};

/// Level of compression: the guest unpacks it under emulation, and zstd unpacks
/// as fast from any level; this one still packs within a second.
const LEVEL: i32 = 6;

/// Bytes of the initramfs.
///
/// # Errors
/// A source that cannot be read.
pub(crate) fn bytes(layout: &Layout, sources: &Sources) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (number, entry) in layout.entries().enumerate() {
        let content = match &entry.kind {
            Kind::Dir | Kind::CharDevice { .. } => Vec::new(),
            Kind::Link(target) => target.clone().into_bytes(),
            Kind::File(origin) => sources.read(origin)?,
        };
        let ino = u32::try_from(number + 1).context("too many entries for an initramfs")?;
        let size = u32::try_from(content.len())
            .with_context(|| format!("{} is too large for an initramfs", entry.path))?;
        let mut builder = newc::Builder::new(entry.path.trim_start_matches('/'))
            .ino(ino)
            .mode(entry.mode)
            .set_mode_file_type(file_type(&entry.kind));
        if let Kind::CharDevice { major, minor } = entry.kind {
            builder = builder.rdev_major(major).rdev_minor(minor);
        }
        let mut writer = builder.write(&mut archive, size);
        writer.write_all(&content)?;
        writer.finish()?;
    }
    newc::trailer(&mut archive)?;
    zstd::bulk::compress(&archive, LEVEL).context("cannot compress the initramfs")
}

/// Writes the initramfs to `path`.
///
/// # Errors
/// A source that cannot be read, a file that cannot be written.
pub(crate) fn write(layout: &Layout, sources: &Sources, path: &Path) -> Result<()> {
    let bytes = bytes(layout, sources)?;
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn file_type(kind: &Kind) -> ModeFileType {
    match kind {
        Kind::Dir => ModeFileType::Directory,
        Kind::File(_) => ModeFileType::Regular,
        Kind::Link(_) => ModeFileType::Symlink,
        Kind::CharDevice { .. } => ModeFileType::Char,
    }
}
