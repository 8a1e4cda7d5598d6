//! Kernel modules in dependency order (rule B4): the pure part reads modules.dep, the rest loads.
//!
//! Owner: the initramfs mode and bring-up. Invariant: what is built in or already loaded is no error; a
//! missing mandatory module is named. Must not know: why a module is wanted.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What the root disk needs. virtio_pci is a bus driver: virtio_blk does not depend on it, but without it
/// there is no disk.
pub const INITRAMFS: &[Wanted] = &[must("virtio_pci"), must("virtio_blk"), must("erofs")];

/// What the node needs. The kernel's own module requests find no modprobe here: what is not listed is
/// not there.
pub const NODE: &[Wanted] = &[
    must("virtio_net"),
    must("overlay"),
    must("veth"),
    must("bridge"),
    must("br_netfilter"),
    must("loop"),
    must("xfs"),
    may("virtio_console"),
    may("virtio_rng"),
    may("qemu_fw_cfg"),
    may("evdev"),
    may("button"),
    // kube-proxy's nftables mode and the CNI's masquerading.
    may("nf_conntrack"),
    may("nf_tables"),
    may("nft_ct"),
    may("nft_nat"),
    may("nft_masq"),
    may("nft_chain_nat"),
    may("nft_fib"),
    may("nft_fib_inet"),
    may("nft_fib_ipv4"),
    may("nft_fib_ipv6"),
    may("nft_numgen"),
    may("nft_hash"),
    may("nft_limit"),
    may("nft_reject"),
    may("nft_reject_inet"),
    may("nft_reject_ipv4"),
    may("nft_reject_ipv6"),
    may("vfat"),
    may("nls_cp437"),
    may("nls_ascii"),
];

/// One module of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: &'static str,
    /// Whether the boot fails without it.
    pub mandatory: bool,
}

const fn must(name: &'static str) -> Wanted {
    Wanted { name, mandatory: true }
}

const fn may(name: &'static str) -> Wanted {
    Wanted { name, mandatory: false }
}

/// modules.dep and modules.builtin of one kernel.
#[derive(Debug, Default)]
pub struct Index {
    /// Name → path and the paths it depends on, in the file's order.
    modules: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

impl Index {
    /// Reads the two texts. Lines that do not fit are skipped: depmod writes none.
    pub fn parse(dep: &str, builtin: &str) -> Index {
        let mut index = Index::default();
        for line in dep.lines() {
            let Some((path, depends)) = line.split_once(':') else { continue };
            let depends = depends.split_ascii_whitespace().map(str::to_owned).collect();
            index.modules.insert(name_of(path), (path.trim().to_owned(), depends));
        }
        index.builtin = builtin.lines().map(name_of).collect();
        index
    }

    /// The files to load for `name`, dependencies first; empty for a built-in one, `None` if unknown.
    pub fn order(&self, name: &str) -> Option<Vec<&str>> {
        let name = name_of(name);
        let Some((path, depends)) = self.modules.get(&name) else {
            return self.builtin.contains(&name).then(Vec::new);
        };
        // depmod lists the nearest dependency first and each before what it needs itself.
        let mut order: Vec<&str> = depends.iter().rev().map(String::as_str).collect();
        order.push(path);
        Some(order)
    }
}

/// `kernel/net/br-x.ko.xz` → `br_x`: `-` and `_` are one in module names.
fn name_of(path: &str) -> String {
    let file = path.trim().rsplit('/').next().unwrap_or_default();
    let stem = file.find(".ko").map_or(file, |at| &file[..at]);
    stem.replace('-', "_")
}

/// Why a module is not there.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Neither in modules.dep nor built in.
    #[error("module {name} is not part of this image")]
    Unknown {
        /// Its name.
        name: &'static str,
    },
    /// A file of it could not be loaded.
    #[error("module {name} cannot be loaded from {}", file.display())]
    Load {
        /// Its name.
        name: &'static str,
        /// The file that failed: the module's own or a dependency's.
        file: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// What loading a list gave.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Mandatory modules that are missing.
    pub missing: Vec<ModuleError>,
    /// Optional modules that are missing.
    pub without: Vec<ModuleError>,
}

/// Loads a list. `root` is `/lib/modules/<version>`.
///
/// # Errors
/// modules.dep cannot be read. Modules that fail are part of the result.
pub fn load(root: &Path, wanted: &[Wanted]) -> io::Result<Loaded> {
    let dep = fs::read_to_string(root.join("modules.dep"))?;
    // Without the list of built-in modules nothing counts as built in.
    let builtin = fs::read_to_string(root.join("modules.builtin")).unwrap_or_default();
    let index = Index::parse(&dep, &builtin);
    let mut loaded = Loaded::default();
    let mut done = BTreeSet::new();
    for w in wanted {
        if let Err(error) = load_one(root, &index, w.name, &mut done) {
            if w.mandatory { &mut loaded.missing } else { &mut loaded.without }.push(error);
        }
    }
    Ok(loaded)
}

fn load_one(
    root: &Path,
    index: &Index,
    name: &'static str,
    done: &mut BTreeSet<String>,
) -> Result<(), ModuleError> {
    let order = index.order(name).ok_or(ModuleError::Unknown { name })?;
    for path in order {
        if done.contains(path) {
            continue;
        }
        let file = root.join(path);
        insert(&file).map_err(|source| ModuleError::Load { name, file, source })?;
        done.insert(path.to_owned());
    }
    Ok(())
}

fn insert(file: &Path) -> io::Result<()> {
    let fd = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::system::finit_module(&fd, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/net/bridge/br_netfilter.ko: kernel/net/bridge/bridge.ko kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/802/stp.ko: kernel/net/llc/llc.ko
kernel/net/llc/llc.ko:
kernel/drivers/char/hw_random/virtio-rng.ko.xz:
";

    #[test]
    fn b4_dependencies_come_before_what_needs_them() {
        let index = Index::parse(DEP, "");
        assert_eq!(
            index.order("br_netfilter").unwrap(),
            [
                "kernel/net/llc/llc.ko",
                "kernel/net/802/stp.ko",
                "kernel/net/bridge/bridge.ko",
                "kernel/net/bridge/br_netfilter.ko"
            ]
        );
    }

    #[test]
    fn b4_a_built_in_module_is_there_and_an_unknown_one_is_not() {
        let index = Index::parse(DEP, "kernel/drivers/virtio/virtio_pci.ko\n");
        assert_eq!(index.order("virtio_pci"), Some(vec![]));
        assert_eq!(index.order("xfs"), None);
    }

    #[test]
    fn b4_dash_underscore_and_compression_do_not_matter_in_a_name() {
        let index = Index::parse(DEP, "");
        for name in ["virtio_rng", "virtio-rng"] {
            assert_eq!(
                index.order(name).unwrap(),
                ["kernel/drivers/char/hw_random/virtio-rng.ko.xz"]
            );
        }
    }

    #[test]
    fn b4_a_missing_mandatory_module_is_named_and_an_optional_one_is_only_noted() {
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("modules.dep"), DEP).unwrap();
        let loaded = load(t.path(), &[must("xfs"), may("button")]).unwrap();
        assert_eq!(loaded.missing.len(), 1);
        assert_eq!(loaded.missing[0].to_string(), "module xfs is not part of this image");
        assert_eq!(loaded.without.len(), 1);
    }
}
