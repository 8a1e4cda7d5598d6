//! What the build machine needs, and how it gets it.
//!
//! A need is known by a file that is there when the Debian package is. As root
//! the missing packages are installed (and named); otherwise the one command
//! that does it is printed and the run stops.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use image::run_quiet;

use crate::ui::Ui;

/// One Debian package and the files of which one shows that it is installed.
struct Need {
    package: &'static str,
    files: &'static [&'static str],
}

const fn need(package: &'static str, files: &'static [&'static str]) -> Need {
    Need { package, files }
}

/// To build an image and to boot it.
const BUILD: &[Need] = &[
    need("binutils", &["/usr/bin/strip"]),
    need("erofs-utils", &["/usr/bin/mkfs.erofs"]),
    need("gcc", &["/usr/bin/gcc"]),
    need("kmod", &["/usr/sbin/depmod", "/sbin/depmod"]),
    need("libc6-dev", &["/usr/include/stdlib.h"]),
    need("libseccomp-dev", &["/usr/include/seccomp.h"]),
    need("mount", &["/usr/bin/mount", "/bin/mount"]),
    need("nftables", &["/usr/sbin/nft"]),
    need("pkg-config", &["/usr/bin/pkg-config"]),
    need("qemu-system-x86", &["/usr/bin/qemu-system-x86_64"]),
    need("qemu-utils", &["/usr/bin/qemu-img"]),
    need("util-linux", &["/usr/bin/setpriv"]),
    need("xfsprogs", &["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"]),
    need("xz-utils", &["/usr/bin/xz"]),
];

/// For the dashboard's tests in a real browser.
const TEST: &[Need] = &[need("chromium", &[BROWSER])];

/// The browser of the dashboard's tests.
pub(crate) const BROWSER: &str = "/usr/bin/chromium";

/// Which needs of a command apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// Build and boot an image.
    Build,
    /// Also run all tests.
    Test,
}

/// Sees to it that everything is installed.
///
/// # Errors
/// Something is missing and cannot be installed from here; says what to do.
pub(crate) fn ensure(ui: &Ui, purpose: For) -> Result<()> {
    for (tool, site) in [("cargo", "https://rustup.rs"), ("go", "https://go.dev/dl")] {
        if Command::new(tool)
            .arg(if tool == "go" { "version" } else { "--version" })
            .output()
            .is_err()
        {
            bail!("{tool} is not installed or not in PATH; get it from {site}");
        }
    }
    let extra = if purpose == For::Test { TEST } else { &[] };
    let missing = missing(BUILD.iter().chain(extra), |file| Path::new(file).exists());
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "these Debian packages (or what your system calls them) are missing: {}",
            missing.join(" ")
        );
    }
    if !is_root() {
        bail!("missing Debian packages; install them with\n\n    sudo {command}\n\nand try again");
    }
    ui.say(&format!("installing with apt: {}", missing.join(" ")));
    let mut stage = ui.stage("Debian packages");
    stage.note(&missing.join(" "));
    let install = |stage: &str| {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-o", "Acquire::Retries=3"]);
        apt.args(stage.split_whitespace());
        run_quiet(&mut apt)
    };
    let arguments = command.trim_start_matches("apt-get ");
    if install(arguments).is_err() {
        // A fresh machine has no package lists yet.
        install("update")?;
        install(arguments)?;
    }
    stage.done(&missing.join(" "));
    Ok(())
}

fn missing<'a>(
    needs: impl Iterator<Item = &'a Need>,
    exists: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    needs
        .filter(|need| !need.files.iter().any(|file| exists(file)))
        .map(|need| need.package)
        .collect()
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Memory that programs can get without swapping, in MiB.
pub(crate) fn available_memory_mib() -> Option<u64> {
    available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_needs_files_is_enough_and_only_missing_packages_are_named() {
        let needs = [need("a", &["/a1", "/a2"]), need("b", &["/b"])];
        assert_eq!(missing(needs.iter(), |file| file == "/a2"), ["b"]);
        assert!(missing(needs.iter(), |_| true).is_empty());
    }

    #[test]
    fn available_memory_is_read_in_mib() {
        assert_eq!(available("MemTotal: 1 kB\nMemAvailable:    2048 kB\n"), Some(2));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }
}
