//! Puts an image together: collects sources, decides the layout, runs the
//! executors, and writes `image.json` beside the results.
//!
//! A folder whose `image.json` carries the key of the same inputs is left as it
//! is: the key is a hash over the listing and every file's bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::debian::KernelFiles;
use crate::layout::{Facts, Kind, Layout, Origin, initramfs_layout, root_layout};
use crate::modules::{ModuleIndex, NODE_MODULES, ROOT_DISK_MODULES};
use crate::run::run_quiet;
use crate::{DEBIAN_PROGRAMS, TEST_PROGRAMS, elf, erofs, initramfs, oci};

/// What an image is made of.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The `hamlet` binary, static; it is stripped on the way.
    pub hamlet: PathBuf,
    /// The programs of build/upstream, by name. Those of [`TEST_PROGRAMS`] make a test image.
    pub upstream: BTreeMap<String, PathBuf>,
    /// The kernel.
    pub kernel: KernelFiles,
    /// A static busybox.
    pub busybox: PathBuf,
    /// Version of Hamlet.
    pub version: String,
}

/// `image.json`: what an assembled folder holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Hash of everything that went in; names the image in caches.
    pub key: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Size of each file of the folder.
    pub sizes: BTreeMap<String, u64>,
}

/// Names of the files of an image folder.
const FILES: &[&str] = &["root.erofs", "initramfs.zst", "vmlinuz"];

impl Manifest {
    /// Reads the manifest of an image folder.
    ///
    /// # Errors
    /// The folder holds none, or it cannot be read.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("image.json");
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))
    }
}

/// Files of the build machine behind each origin.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    hamlet: PathBuf,
    upstream: BTreeMap<String, PathBuf>,
    modules: PathBuf,
    debian: BTreeMap<String, PathBuf>,
    libraries: BTreeMap<String, PathBuf>,
    archives: BTreeMap<String, Vec<u8>>,
}

enum Source<'a> {
    File(PathBuf),
    Bytes(&'a [u8]),
}

impl Sources {
    fn find<'a>(&'a self, origin: &'a Origin) -> Result<Source<'a>> {
        Ok(match origin {
            Origin::Hamlet => Source::File(self.hamlet.clone()),
            Origin::Upstream(name) => Source::File(upstream(&self.upstream, name)?.clone()),
            Origin::Module(path) => Source::File(self.modules.join(path)),
            Origin::Debian(name) => {
                Source::File(self.debian.get(name).context("unknown Debian program")?.clone())
            }
            Origin::Library(path) => {
                Source::File(self.libraries.get(path).context("unknown library")?.clone())
            }
            Origin::Archive(name) => {
                Source::Bytes(self.archives.get(name).context("unknown archive")?)
            }
            Origin::Text(text) => Source::Bytes(text.as_bytes()),
        })
    }

    /// Bytes of an origin.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn read(&self, origin: &Origin) -> Result<Vec<u8>> {
        match self.find(origin)? {
            Source::File(path) => {
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
            }
            Source::Bytes(bytes) => Ok(bytes.to_vec()),
        }
    }

    /// Copies an origin to a new file.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub(crate) fn copy(&self, origin: &Origin, to: &Path) -> Result<()> {
        match self.find(origin)? {
            Source::File(path) => fs::copy(&path, to)
                .map(drop)
                .with_context(|| format!("cannot copy {}", path.display())),
            Source::Bytes(bytes) => fs::write(to, bytes).context("cannot write"),
        }
    }

    fn hash(&self, origin: &Origin, into: &mut Sha256) -> Result<()> {
        let path = match self.find(origin)? {
            Source::Bytes(bytes) => {
                into.update(bytes);
                return Ok(());
            }
            Source::File(path) => path,
        };
        let mut file =
            fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            into.update(&buffer[..read]);
        }
    }
}

/// Assembles the image in `folder`; `note` hears what takes time. Returns what
/// the folder holds afterwards.
///
/// # Errors
/// A missing input or program, a library that is nowhere, a full disk.
pub fn assemble(inputs: &Inputs, folder: &Path, note: &mut dyn FnMut(&str)) -> Result<Manifest> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (sources, facts) = collect(inputs, folder)?;
    let (root, initramfs) = (root_layout(&facts), initramfs_layout(&facts));
    let key = key(&[&root, &initramfs], &sources, &inputs.kernel.image)?;
    if let Ok(manifest) = Manifest::read(folder)
        && manifest.key == key
        && FILES.iter().all(|name| folder.join(name).exists())
    {
        return Ok(manifest);
    }
    // Without its manifest a folder is not an image: it goes first, comes last.
    let manifest_path = folder.join("image.json");
    if manifest_path.exists() {
        fs::remove_file(&manifest_path)?;
    }
    note("writing the root image");
    let staging = folder.join(".staging");
    if staging.exists() {
        fs::remove_dir_all(&staging)?;
    }
    erofs::write(&root, &sources, &staging, &folder.join("root.erofs"))?;
    note("writing the initramfs");
    initramfs::write(&initramfs, &sources, &folder.join("initramfs.zst"))?;
    fs::copy(&inputs.kernel.image, folder.join("vmlinuz")).context("cannot copy the kernel")?;
    fs::write(folder.join("root.listing"), root.listing(&facts.kernel))?;
    fs::write(folder.join("initramfs.listing"), initramfs.listing(&facts.kernel))?;
    link_kubectl(upstream(&inputs.upstream, "kube")?, folder)?;
    let mut sizes = BTreeMap::new();
    for name in FILES {
        sizes.insert((*name).to_owned(), fs::metadata(folder.join(name))?.len());
    }
    let manifest = Manifest { key, kernel: facts.kernel, sizes };
    fs::write(&manifest_path, serde_json::to_vec_pretty(&manifest)?)?;
    Ok(manifest)
}

fn upstream<'a>(programs: &'a BTreeMap<String, PathBuf>, name: &str) -> Result<&'a PathBuf> {
    programs.get(name).with_context(|| format!("build/upstream gave no {name}"))
}

/// kubectl for the host: the multicall binary under another name.
fn link_kubectl(kube: &Path, folder: &Path) -> Result<()> {
    let link = folder.join("kubectl");
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    let kube = fs::canonicalize(kube)?;
    std::os::unix::fs::symlink(kube, link).context("cannot link kubectl")
}

fn collect(inputs: &Inputs, folder: &Path) -> Result<(Sources, Facts)> {
    let hamlet = folder.join("hamlet");
    // Debug sections go, the symbol table stays: a panic's backtrace has names.
    run_quiet(
        Command::new("strip").arg("--strip-debug").arg("-o").arg(&hamlet).arg(&inputs.hamlet),
    )?;
    let mut debian = BTreeMap::new();
    for (name, places) in DEBIAN_PROGRAMS {
        let found = places.iter().map(PathBuf::from).find(|path| path.exists());
        let found = found.with_context(|| format!("program {name} is not installed"))?;
        debian.insert((*name).to_owned(), fs::canonicalize(found)?);
    }
    let programs: Vec<PathBuf> = debian.values().cloned().collect();
    let libraries = elf::closure(&programs)?;
    let modules = &inputs.kernel.modules;
    let read = |name: &str| {
        let path = modules.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let index = ModuleIndex::parse(&read("modules.dep")?, &read("modules.builtin")?);
    let facts = Facts {
        kernel: inputs.kernel.release.clone(),
        modules: index.closure(NODE_MODULES)?,
        initramfs_modules: index.closure(ROOT_DISK_MODULES)?,
        libraries: libraries.keys().cloned().collect(),
        version: inputs.version.clone(),
        test_programs: TEST_PROGRAMS
            .iter()
            .filter(|name| inputs.upstream.contains_key(**name))
            .map(|name| (*name).to_owned())
            .collect(),
    };
    let pause = oci::archive(&oci::pause(fs::read(upstream(&inputs.upstream, "pause")?)?))?;
    let busybox = oci::archive(&oci::busybox(fs::read(&inputs.busybox)?))?;
    let archives = BTreeMap::from([("pause".to_owned(), pause), ("busybox".to_owned(), busybox)]);
    let sources = Sources {
        hamlet,
        upstream: inputs.upstream.clone(),
        modules: modules.clone(),
        debian,
        libraries,
        archives,
    };
    Ok((sources, facts))
}

fn key(layouts: &[&Layout], sources: &Sources, kernel: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    for layout in layouts {
        hash.update(layout.listing(""));
        for entry in layout.entries() {
            if let Kind::File(origin) = &entry.kind {
                sources.hash(origin, &mut hash)?;
            }
        }
    }
    hash.update(fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?);
    Ok(format!("{:x}", hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_layout() -> (Layout, Sources, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("hamlet");
        fs::write(&binary, vec![7; 70_000]).unwrap();
        for name in ["modules.dep", "modules.builtin"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let modules = folder.path().to_path_buf();
        let sources = Sources { hamlet: binary, modules, ..Sources::default() };
        let facts = Facts { kernel: "6.0.0".into(), ..Facts::default() };
        (initramfs_layout(&facts), sources, folder)
    }

    #[test]
    fn two_initramfs_of_the_same_inputs_are_equal_byte_for_byte() {
        let (layout, sources, _folder) = small_layout();
        let bytes = initramfs::bytes(&layout, &sources).unwrap();
        assert_eq!(bytes, initramfs::bytes(&layout, &sources).unwrap());
        let archive = zstd::bulk::decompress(&bytes, 1 << 20).unwrap();
        assert!(archive.starts_with(b"070701"));
        assert!(archive.windows(10).any(|window| window == b"TRAILER!!!"));
    }

    #[test]
    fn two_root_images_of_the_same_inputs_are_equal_byte_for_byte() {
        if Command::new("mkfs.erofs").arg("--help").output().is_err() {
            // A machine that only compiles; `xtask test` installs the package first.
            return;
        }
        let (layout, sources, folder) = small_layout();
        let layout = layout.without_devices();
        let bytes = |name: &str| {
            let (staging, image) = (folder.path().join(name), folder.path().join("root.erofs"));
            erofs::write(&layout, &sources, &staging, &image).unwrap();
            fs::read(image).unwrap()
        };
        assert_eq!(bytes("one"), bytes("other-name"));
    }

    #[test]
    fn another_byte_in_a_file_is_another_key() {
        let (layout, sources, folder) = small_layout();
        let kernel = folder.path().join("modules.dep");
        let before = key(&[&layout], &sources, &kernel).unwrap();
        assert_eq!(before, key(&[&layout], &sources, &kernel).unwrap());
        fs::write(&sources.hamlet, vec![8; 70_000]).unwrap();
        assert_ne!(before, key(&[&layout], &sources, &kernel).unwrap());
    }
}
