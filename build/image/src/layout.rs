//! PURE: the contents of the root image and of the initramfs as a list.
//!
//! A [`Layout`] maps each absolute path to an [`Entry`]: kind, mode and, for
//! files, the [`Origin`] from which an executor takes the bytes. Nothing here
//! touches a file system. Paths fixed by others (kubelet, containerd, CNI, the
//! dynamic loader) carry a note saying by whom.

use std::collections::BTreeMap;

use crate::modules::ModuleSet;
use crate::{CNI_PLUGINS, DEBIAN_PROGRAMS, KUBE_NAMES, UPSTREAM_PROGRAMS};

/// What the layout depends on, besides constants.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Release of the kernel, as `uname -r` says it.
    pub kernel: String,
    /// Modules of the root image.
    pub modules: ModuleSet,
    /// Modules of the initramfs.
    pub initramfs_modules: ModuleSet,
    /// Shared libraries and the dynamic loader, as absolute paths under `/usr`.
    pub libraries: Vec<String>,
    /// Version of Hamlet, for `/etc/os-release`.
    pub version: String,
    /// Programs of a test image; none in a published one.
    pub test_programs: Vec<String>,
}

/// Where the bytes of a file come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The `hamlet` binary, stripped.
    Hamlet,
    /// A program built from build/upstream, by name.
    Upstream(String),
    /// A program of a Debian package, by name.
    Debian(String),
    /// A shared library of the build machine, by its path.
    Library(String),
    /// A kernel module or module index, relative to the kernel's module folder.
    Module(String),
    /// A container image archive, by name.
    Archive(String),
    /// Text that is written here.
    Text(String),
}

/// One path's kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A regular file.
    File(Origin),
    /// A symbolic link and its target.
    Link(String),
    /// A character device (initramfs only).
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// One path of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// What it is.
    pub kind: Kind,
}

/// The paths of an image, sorted, parents before children.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    entries: BTreeMap<String, Entry>,
}

impl Layout {
    /// All entries; a directory comes before what is in it.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The entry at `path`.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// A text with one line for each entry; the kernel's release is masked, so
    /// that a moving Debian package does not change the listing.
    pub fn listing(&self, kernel: &str) -> String {
        let mut text = String::new();
        for entry in self.entries.values() {
            let line = match &entry.kind {
                Kind::Dir => format!("d {:04o} {}", entry.mode, entry.path),
                Kind::File(origin) => {
                    format!("f {:04o} {} <- {}", entry.mode, entry.path, describe(origin))
                }
                Kind::Link(target) => format!("l      {} -> {target}", entry.path),
                Kind::CharDevice { major, minor } => {
                    format!("c {:04o} {} {major}:{minor}", entry.mode, entry.path)
                }
            };
            text.push_str(&if kernel.is_empty() { line } else { line.replace(kernel, "<kernel>") });
            text.push('\n');
        }
        text
    }

    /// Without devices, which only an initramfs may hold.
    #[cfg(test)]
    pub(crate) fn without_devices(mut self) -> Self {
        self.entries.retain(|_, entry| !matches!(entry.kind, Kind::CharDevice { .. }));
        self
    }

    fn insert(&mut self, path: &str, mode: u32, kind: Kind) {
        assert!(path.starts_with('/') && !path.ends_with('/'), "layout path {path:?}");
        let mut parent = String::new();
        for part in path.trim_start_matches('/').split('/') {
            let child = format!("{parent}/{part}");
            if child != path && !self.entries.contains_key(&child) {
                let entry = Entry { path: child.clone(), mode: 0o755, kind: Kind::Dir };
                self.entries.insert(child.clone(), entry);
            }
            parent = child;
        }
        let entry = Entry { path: path.to_owned(), mode, kind };
        let previous = self.entries.insert(path.to_owned(), entry);
        let was_parent = matches!(&previous, Some(p) if p.kind == Kind::Dir);
        assert!(previous.is_none() || was_parent, "the layout names {path} twice");
    }

    fn dir(&mut self, path: &str, mode: u32) {
        self.insert(path, mode, Kind::Dir);
    }

    fn link(&mut self, path: &str, target: &str) {
        self.insert(path, 0o777, Kind::Link(target.to_owned()));
    }

    fn file(&mut self, path: &str, mode: u32, origin: Origin) {
        self.insert(path, mode, Kind::File(origin));
    }

    fn text(&mut self, path: &str, text: &str) {
        self.file(path, 0o644, Origin::Text(text.to_owned()));
    }

    fn kernel_modules(&mut self, kernel: &str, prefix: &str, modules: &ModuleSet) {
        let folder = format!("{prefix}/modules/{kernel}");
        // Only what is there: an optional module that is not is then known as missing.
        self.text(&format!("{folder}/modules.dep"), &modules.dep);
        let builtin = "modules.builtin".to_owned();
        self.file(&format!("{folder}/{builtin}"), 0o644, Origin::Module(builtin));
        for module in &modules.paths {
            self.file(&format!("{folder}/{module}"), 0o644, Origin::Module(module.clone()));
        }
    }
}

fn describe(origin: &Origin) -> String {
    match origin {
        Origin::Hamlet => "hamlet".to_owned(),
        Origin::Upstream(name) => format!("upstream {name}"),
        Origin::Debian(name) => format!("debian {name}"),
        Origin::Library(_) => "library".to_owned(),
        Origin::Module(_) => "kernel".to_owned(),
        Origin::Archive(name) => format!("archive {name}"),
        Origin::Text(text) => format!("text, {} lines", text.lines().count()),
    }
}

const PASSWD: &str =
    "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";
const PROTOCOLS: &str =
    "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n";

/// The root image.
pub fn root_layout(facts: &Facts) -> Layout {
    let mut layout = Layout::default();
    // Debian's merged /usr: its libraries and the loader's path expect it.
    layout.link("/bin", "usr/bin");
    layout.link("/sbin", "usr/sbin");
    layout.link("/lib", "usr/lib");
    layout.link("/lib64", "usr/lib64");

    layout.file("/usr/sbin/hamlet", 0o755, Origin::Hamlet);
    for name in UPSTREAM_PROGRAMS {
        layout.file(&format!("/usr/bin/{name}"), 0o755, Origin::Upstream((*name).to_owned()));
    }
    for name in &facts.test_programs {
        layout.file(&format!("/usr/bin/{name}"), 0o755, Origin::Upstream(name.clone()));
    }
    for name in KUBE_NAMES {
        layout.link(&format!("/usr/bin/{name}"), "kube");
    }
    for (name, _) in DEBIAN_PROGRAMS {
        layout.file(&format!("/usr/bin/{name}"), 0o755, Origin::Debian((*name).to_owned()));
    }
    for name in CNI_PLUGINS {
        layout.file(
            &format!("/usr/libexec/cni/{name}"),
            0o755,
            Origin::Upstream((*name).to_owned()),
        );
    }
    for library in &facts.libraries {
        layout.file(library, 0o755, Origin::Library(library.clone()));
    }
    layout.kernel_modules(&facts.kernel, "/usr/lib", &facts.modules);
    for name in ["busybox", "pause"] {
        let path = format!("/usr/share/hamlet/images/{name}.tar");
        layout.file(&path, 0o644, Origin::Archive(name.to_owned()));
    }
    etc(&mut layout, facts);
    mount_points(&mut layout);
    layout
}

fn etc(layout: &mut Layout, facts: &Facts) {
    // Written at boot: the image itself cannot be.
    for name in ["hostname", "hosts", "machine-id", "resolv.conf"] {
        layout.link(&format!("/etc/{name}"), &format!("/run/etc/{name}"));
    }
    layout.text("/etc/passwd", PASSWD);
    layout.text("/etc/group", GROUP);
    layout.text("/etc/nsswitch.conf", NSSWITCH);
    layout.text("/etc/protocols", PROTOCOLS);
    // kubelet reports PRETTY_NAME as the node's OS image.
    let release = format!(
        "ID=hamlet\nNAME=Hamlet\nVERSION_ID={0}\nPRETTY_NAME=\"Hamlet {0}\"\n",
        facts.version
    );
    layout.text("/etc/os-release", &release);
    layout.link("/etc/mtab", "/proc/self/mounts");
    // Fixed by containerd's CRI plugin and by kubelet's users.
    layout.link("/etc/cni", "/run/cni");
    layout.link("/opt/cni/bin", "/usr/libexec/cni");
}

fn mount_points(layout: &mut Layout) {
    for path in ["/data", "/dev", "/ephemeral", "/esp", "/proc", "/run", "/sys", "/var"] {
        layout.dir(path, 0o755);
    }
    layout.dir("/root", 0o700);
    layout.dir("/tmp", 0o1777);
}

/// The initramfs: the same binary as `/init`, and what the root disk needs.
pub fn initramfs_layout(facts: &Facts) -> Layout {
    let mut layout = Layout::default();
    layout.file("/init", 0o755, Origin::Hamlet);
    for path in ["/newroot", "/proc", "/run", "/sys"] {
        layout.dir(path, 0o755);
    }
    // The kernel opens it before the first program runs; without it PID 1 starts
    // with no standard streams.
    layout.insert("/dev/console", 0o600, Kind::CharDevice { major: 5, minor: 1 });
    layout.kernel_modules(&facts.kernel, "/lib", &facts.initramfs_modules);
    layout
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{ModuleIndex, NODE_MODULES, ROOT_DISK_MODULES};

    /// Taken from a 6.12 kernel's modules.dep, cut to what the image needs.
    const MODULES_DEP: &str = include_str!("../tests/modules.dep");
    const MODULES_BUILTIN: &str = include_str!("../tests/modules.builtin");

    fn facts() -> Facts {
        let index = ModuleIndex::parse(MODULES_DEP, MODULES_BUILTIN);
        Facts {
            kernel: "6.12.1-cloud-amd64".into(),
            modules: index.closure(NODE_MODULES).expect("fixture holds every module"),
            initramfs_modules: index.closure(ROOT_DISK_MODULES).expect("fixture"),
            libraries: vec![
                "/usr/lib/x86_64-linux-gnu/libc.so.6".into(),
                "/usr/lib64/ld-linux-x86-64.so.2".into(),
            ],
            version: "0.0.0".into(),
            test_programs: Vec::new(),
        }
    }

    #[test]
    fn root_image_listing_is_the_golden_one() {
        insta::assert_snapshot!(root_layout(&facts()).listing("6.12.1-cloud-amd64"));
    }

    #[test]
    fn initramfs_listing_is_the_golden_one() {
        insta::assert_snapshot!(initramfs_layout(&facts()).listing("6.12.1-cloud-amd64"));
    }

    #[test]
    fn a_directory_comes_before_what_is_in_it() {
        for layout in [root_layout(&facts()), initramfs_layout(&facts())] {
            let mut seen = vec![String::new()];
            for entry in layout.entries() {
                let parent = entry.path.rsplit_once('/').expect("absolute").0.to_owned();
                assert!(seen.contains(&parent), "{} comes before {parent}", entry.path);
                if entry.kind == Kind::Dir {
                    seen.push(entry.path.clone());
                }
            }
        }
    }

    #[test]
    fn nothing_in_the_root_image_is_writable_by_others_but_tmp() {
        for entry in root_layout(&facts()).entries() {
            let link = matches!(entry.kind, Kind::Link(_));
            assert!(link || entry.mode & 0o022 == 0 || entry.path == "/tmp", "{entry:?}");
        }
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn one_path_cannot_be_named_twice() {
        let mut layout = Layout::default();
        layout.text("/etc/passwd", "a");
        layout.text("/etc/passwd", "b");
    }
}
