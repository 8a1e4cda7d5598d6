//! PURE: which kernel modules belong together, out of `modules.dep`.
//!
//! The kernel cannot ask for a module in the image (there is no /sbin/modprobe):
//! what is not listed here is not there. The loader in `nodesys` reads the same
//! `modules.dep` and `modules.builtin` on the node.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

/// What the initramfs must load to reach the root disk (spec supervisor B4).
pub const ROOT_DISK_MODULES: &[&str] =
    &["virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "erofs"];

/// What the node loads, or may load, afterwards: disks, network, containers,
/// kube-proxy's nftables rules, the host's channel, power button and watchdog.
pub const NODE_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "crc32c_generic",
    "crc32c-intel",
    "erofs",
    "virtio_net",
    "af_packet",
    "overlay",
    "veth",
    "bridge",
    "br_netfilter",
    "loop",
    "xfs",
    "virtio_console",
    "virtio-rng",
    "qemu_fw_cfg",
    "evdev",
    "button",
    "softdog",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nf_tables",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nft_ct",
    "nft_nat",
    "nft_masq",
    "nft_chain_nat",
    "nft_fib",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_numgen",
    "nft_hash",
    "nft_limit",
    "nft_reject",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_redir",
    "tun",
];

/// Modules that belong together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleSet {
    /// Paths relative to `/lib/modules/<kernel>`, needs first.
    pub paths: Vec<String>,
    /// Text of a modules.dep with just these.
    pub dep: String,
}

/// A parsed `modules.dep` with `modules.builtin`.
#[derive(Debug, Default)]
pub struct ModuleIndex {
    /// Module name → its path and the paths it needs, as modules.dep lists them.
    modules: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

impl ModuleIndex {
    /// Reads the two files' texts. Lines that do not fit are skipped: depmod
    /// writes both, and a module that is missed is an error of `closure`.
    pub fn parse(dep: &str, builtin: &str) -> Self {
        let mut index = Self::default();
        for line in dep.lines() {
            let Some((path, needs)) = line.split_once(':') else { continue };
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            index.modules.insert(name_of(path), (path.to_owned(), needs));
        }
        index.builtin.extend(builtin.lines().map(name_of));
        index
    }

    /// Paths of `wanted` and of all they need, each once, needs first.
    ///
    /// # Errors
    /// Names a wanted module that is neither a module nor built in.
    pub fn closure(&self, wanted: &[&str]) -> Result<ModuleSet> {
        let mut paths = Vec::new();
        for name in wanted {
            let name = name_of(name);
            if self.builtin.contains(&name) {
                continue;
            }
            let (path, needs) = self
                .modules
                .get(&name)
                .with_context(|| format!("the kernel package has no module {name}"))?;
            // modules.dep lists the nearest need first: load order is the reverse.
            for path in needs.iter().rev().chain([path]) {
                if !paths.contains(path) {
                    paths.push(path.clone());
                }
            }
        }
        let mut dep = String::new();
        for path in &paths {
            let needs = self.modules.get(&name_of(path)).map(|(_, needs)| needs.join(" "));
            dep.push_str(&format!("{path}: {}\n", needs.unwrap_or_default()));
        }
        Ok(ModuleSet { paths, dep })
    }
}

/// Name of a module from its path: base name without suffixes, `-` as `_`.
fn name_of(path: &str) -> String {
    let base = path.rsplit('/').next().unwrap_or(path);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/xfs/xfs.ko: kernel/lib/libcrc32c.ko\n\
        kernel/lib/libcrc32c.ko:\n\
        kernel/net/bridge/br_netfilter.ko: kernel/net/bridge/bridge.ko kernel/net/802/stp.ko \
        kernel/net/llc/llc.ko\n\
        kernel/drivers/char/hw_random/virtio-rng.ko:\n";

    #[test]
    fn needs_come_before_what_needs_them_and_each_path_once() {
        let index = ModuleIndex::parse(DEP, "");
        let ModuleSet { paths, dep } = index.closure(&["xfs", "br_netfilter", "xfs"]).unwrap();
        assert_eq!(dep.lines().count(), paths.len());
        assert!(dep.contains("xfs.ko: kernel/lib/libcrc32c.ko\n"), "{dep}");
        assert_eq!(
            paths,
            [
                "kernel/lib/libcrc32c.ko",
                "kernel/fs/xfs/xfs.ko",
                "kernel/net/llc/llc.ko",
                "kernel/net/802/stp.ko",
                "kernel/net/bridge/bridge.ko",
                "kernel/net/bridge/br_netfilter.ko",
            ]
        );
    }

    #[test]
    fn b4_dash_and_underscore_are_the_same_module() {
        let index = ModuleIndex::parse(DEP, "");
        assert_eq!(index.closure(&["virtio_rng"]).unwrap().paths.len(), 1);
        assert_eq!(index.closure(&["virtio-rng"]).unwrap().paths.len(), 1);
    }

    #[test]
    fn b4_a_built_in_module_needs_no_file_and_an_unknown_one_is_an_error_by_name() {
        let index = ModuleIndex::parse(DEP, "kernel/drivers/virtio/virtio_pci.ko\n");
        assert!(index.closure(&["virtio_pci"]).unwrap().paths.is_empty());
        let error = index.closure(&["xfs", "zfs"]).unwrap_err();
        assert!(error.to_string().contains("zfs"), "{error}");
    }
}
