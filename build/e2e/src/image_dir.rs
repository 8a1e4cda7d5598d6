//! A folder with a built image: kernel, initramfs, root disk.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Environment variable that tells VM tests where the image is.
pub const IMAGE_VARIABLE: &str = "HAMLET_IMAGE_DIR";

/// A folder that holds an image.
#[derive(Debug, Clone)]
pub struct ImageDir {
    folder: PathBuf,
    key: String,
}

#[derive(Deserialize)]
struct Manifest {
    key: String,
}

impl ImageDir {
    /// Opens a folder.
    ///
    /// # Errors
    /// The folder does not hold a whole image.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        let path = folder.join("image.json");
        let text =
            std::fs::read(&path).with_context(|| format!("{} holds no image", folder.display()))?;
        let manifest: Manifest = serde_json::from_slice(&text)
            .with_context(|| format!("cannot parse {}", path.display()))?;
        let image = Self { folder, key: manifest.key };
        for file in [image.kernel(), image.initramfs(), image.root_disk()] {
            if !file.exists() {
                bail!("{} is missing", file.display());
            }
        }
        Ok(image)
    }

    /// The image VM tests run on, by [`IMAGE_VARIABLE`].
    ///
    /// # Errors
    /// The variable is not set, or names no image; says which command sets it.
    pub fn from_env() -> Result<Self> {
        let Some(folder) = std::env::var_os(IMAGE_VARIABLE) else {
            bail!("{IMAGE_VARIABLE} is not set: run the VM tests with `cargo xtask test`");
        };
        Self::open(PathBuf::from(folder))
    }

    /// Key of the image: differs whenever a byte of it does.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The initramfs.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs.zst")
    }

    /// The root disk.
    pub fn root_disk(&self) -> PathBuf {
        self.folder.join("root.erofs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_an_image_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = ImageDir::open(folder.path()).unwrap_err();
        assert!(format!("{error:#}").contains("holds no image"));
    }
}
