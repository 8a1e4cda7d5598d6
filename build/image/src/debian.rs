//! The kernel and the small static shell, from Debian's own archive.
//!
//! Packages are downloaded with `apt-get download` and unpacked into a cache
//! folder; nothing is installed. The kernel package's name moves with every
//! update and old ones leave the archive, so that it is never pinned: the name is
//! the dependency of the meta package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{run, run_quiet};

/// Meta packages of the kernel, best first (6.12 has complete id-mapped mounts).
const KERNEL_METAS: &[&str] = &["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"];

/// Package of the static busybox that becomes the test image.
const BUSYBOX: &str = "busybox-static";

/// File that says that a folder of the cache is whole.
const COMPLETE: &str = ".complete";

/// A kernel, unpacked.
#[derive(Debug, Clone)]
pub struct KernelFiles {
    /// Release, as `uname -r` says it.
    pub release: String,
    /// The bootable kernel.
    pub image: PathBuf,
    /// Folder with modules.dep and the decompressed modules.
    pub modules: PathBuf,
}

/// Cache of unpacked Debian packages.
#[derive(Debug, Clone)]
pub struct Debian {
    cache: PathBuf,
}

impl Debian {
    /// A cache in `folder`, which is made when it is needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { cache: folder.into() }
    }

    /// The kernel; `note` hears what takes time.
    ///
    /// # Errors
    /// No Debian kernel is known to apt, the download fails and no earlier one is
    /// in the cache, or the package does not look like a kernel.
    pub fn kernel(&self, note: &mut dyn FnMut(&str)) -> Result<KernelFiles> {
        let package =
            match kernel_package().or_else(|_| refresh(note).and_then(|()| kernel_package())) {
                Ok(package) => package,
                Err(error) => self.newest("linux-image-").ok_or(error)?,
            };
        let folder = match self.unpacked(&package, note, prepare_kernel) {
            Ok(folder) => folder,
            Err(error) => match self.newest("linux-image-") {
                Some(older) => {
                    note(&format!("{error:#}; using {older} from the cache"));
                    self.cache.join(older)
                }
                None => return Err(error),
            },
        };
        let release = only_entry(&folder.join("lib/modules"))?;
        Ok(KernelFiles {
            image: folder.join(format!("boot/vmlinuz-{release}")),
            modules: folder.join("lib/modules").join(&release),
            release,
        })
    }

    /// The static busybox.
    ///
    /// # Errors
    /// The download fails and no earlier one is in the cache.
    pub fn busybox(&self, note: &mut dyn FnMut(&str)) -> Result<PathBuf> {
        let folder = self.unpacked(BUSYBOX, note, |_, _| Ok(()))?;
        ["bin/busybox", "usr/bin/busybox"]
            .iter()
            .map(|path| folder.join(path))
            .find(|path| path.exists())
            .with_context(|| format!("package {BUSYBOX} holds no busybox"))
    }

    /// Folder with the package's files. Downloads into a folder beside it and
    /// renames: a run that was stopped leaves nothing that looks whole.
    fn unpacked(
        &self,
        package: &str,
        note: &mut dyn FnMut(&str),
        prepare: impl FnOnce(&Path, &mut dyn FnMut(&str)) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = self.cache.join(package);
        if folder.join(COMPLETE).exists() {
            return Ok(folder);
        }
        let work = self.cache.join(format!("{package}.part"));
        for stale in [&work, &folder] {
            if stale.exists() {
                fs::remove_dir_all(stale)
                    .with_context(|| format!("cannot remove {}", stale.display()))?;
            }
        }
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        note(&format!("downloading {package}"));
        download(package, &work).or_else(|error| match refresh(note) {
            Ok(()) => download(package, &work),
            Err(_) => Err(error),
        })?;
        let archive = archive_in(&work)?;
        note(&format!("unpacking {package}"));
        run_quiet(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&work))?;
        fs::remove_file(&archive)?;
        prepare(&work, note)?;
        fs::write(work.join(COMPLETE), "")?;
        fs::rename(&work, &folder).with_context(|| format!("cannot rename {}", work.display()))?;
        Ok(folder)
    }

    /// Name of a whole folder of the cache that starts with `prefix`.
    fn newest(&self, prefix: &str) -> Option<String> {
        let mut found: Vec<_> = fs::read_dir(&self.cache)
            .ok()?
            .filter_map(Result::ok)
            .filter(|entry| entry.path().join(COMPLETE).exists())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.file_name())))
            .collect();
        found.sort();
        Some(found.pop()?.1.to_string_lossy().into_owned())
    }
}

/// Name of the kernel's package: the dependency of the first meta package that
/// apt knows.
fn kernel_package() -> Result<String> {
    for meta in KERNEL_METAS {
        let Ok(text) = run(Command::new("apt-cache").args(["depends", "--important", meta])) else {
            continue;
        };
        if let Some(package) = first_dependency(&text) {
            return Ok(package);
        }
    }
    bail!(
        "apt knows neither {}; run `apt-get update` on a Debian 12 machine with its security \
         archive, then try again",
        KERNEL_METAS.join(" nor ")
    )
}

fn first_dependency(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    lines.find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

/// Fetches apt's lists anew: a fresh machine has none, old ones name packages
/// that have left the archive. Only root may.
fn refresh(note: &mut dyn FnMut(&str)) -> Result<()> {
    note("apt-get update");
    run_quiet(Command::new("apt-get").args(["-qq", "-o", "Acquire::Retries=3", "update"]))
        .context("apt has no usable package lists; run `apt-get update` as root, then try again")
}

fn download(package: &str, folder: &Path) -> Result<()> {
    run_quiet(
        Command::new("apt-get")
            .args(["download", "-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=root"])
            .arg(package)
            .current_dir(folder),
    )
    .with_context(|| {
        format!(
            "cannot download the Debian package {package}; check the network, run \
             `apt-get update`, then try again"
        )
    })
}

fn archive_in(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?;
    let found = entries.filter_map(Result::ok).map(|entry| entry.path());
    found
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get download left no .deb file")
}

/// Decompresses the modules and writes modules.dep, which the package lacks.
fn prepare_kernel(folder: &Path, note: &mut dyn FnMut(&str)) -> Result<()> {
    let modules = folder.join("lib/modules");
    let release = only_entry(&modules)?;
    let mut packed = Vec::new();
    find_packed(&modules, &mut packed)?;
    if !packed.is_empty() {
        note(&format!("decompressing {} kernel modules", packed.len()));
        for chunk in packed.chunks(100) {
            run_quiet(Command::new("xz").arg("-d").args(chunk))?;
        }
    }
    run_quiet(Command::new("depmod").arg("-b").arg(folder).arg(&release))
}

fn find_packed(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            find_packed(&path, found)?;
        } else if path.to_string_lossy().ends_with(".ko.xz") {
            found.push(path);
        }
    }
    Ok(())
}

fn only_entry(folder: &Path) -> Result<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        _ => bail!("{} should hold one kernel release", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_dependency_of_the_meta_package() {
        let text = "linux-image-6.12-cloud-amd64\n  Depends: linux-image-6.12.1-cloud-amd64\n";
        assert_eq!(first_dependency(text).unwrap(), "linux-image-6.12.1-cloud-amd64");
        assert_eq!(first_dependency("N: Unable to locate package\n"), None);
    }

    #[test]
    fn a_folder_without_its_mark_is_not_taken_for_whole() {
        let cache = tempfile::tempdir().unwrap();
        fs::create_dir(cache.path().join("linux-image-1")).unwrap();
        let debian = Debian::new(cache.path());
        assert_eq!(debian.newest("linux-image-"), None);
        fs::write(cache.path().join("linux-image-1").join(COMPLETE), "").unwrap();
        assert_eq!(debian.newest("linux-image-").unwrap(), "linux-image-1");
    }
}
