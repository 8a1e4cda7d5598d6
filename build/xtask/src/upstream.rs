//! The real components, built from the Go modules in build/upstream.
//!
//! Each folder there is a module set of its own (their Kubernetes versions
//! conflict). Its programs are kept in the cache under a hash of everything that
//! decides their bytes: go.mod, go.sum, our mains, flags and the Go version.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::paths;
use crate::ui::{Stage, Ui};

/// The Kubernetes version that is compiled in; scheduler and kubelet refuse to
/// work with an API server that does not say its version.
const KUBERNETES: (&str, &str, &str) = ("1", "36", "3");

/// Lines of a failed Go build that are repeated.
const TAIL_LINES: usize = 15;

struct ModuleSet {
    folder: &'static str,
    /// Program → package.
    programs: &'static [(&'static str, &'static str)],
    tags: &'static str,
    cgo: bool,
}

const SETS: &[ModuleSet] = &[
    ModuleSet { folder: "pause", programs: &[("pause", ".")], tags: "", cgo: false },
    ModuleSet {
        folder: "etcd",
        programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
        tags: "",
        cgo: false,
    },
    ModuleSet {
        folder: "cni",
        programs: &[
            ("bridge", "github.com/containernetworking/plugins/plugins/main/bridge"),
            ("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
            ("loopback", "github.com/containernetworking/plugins/plugins/main/loopback"),
            ("portmap", "github.com/containernetworking/plugins/plugins/meta/portmap"),
            ("ptp", "github.com/containernetworking/plugins/plugins/main/ptp"),
        ],
        tags: "",
        cgo: false,
    },
    ModuleSet {
        folder: "runc",
        programs: &[("runc", "github.com/opencontainers/runc")],
        // Without seccomp every pod sandbox fails.
        tags: "netgo,osusergo,seccomp",
        cgo: true,
    },
    ModuleSet {
        folder: "ctr",
        programs: &[
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            (
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            ),
            ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
        tags: "no_btrfs,no_devmapper,no_zfs",
        cgo: false,
    },
    ModuleSet { folder: "k8s", programs: &[("kube", "./kube")], tags: "", cgo: false },
];

/// What test images have beside that.
const TEST_SETS: &[ModuleSet] = &[ModuleSet {
    folder: "csi",
    programs: &[("csi-sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")],
    tags: "",
    cgo: false,
}];

impl ModuleSet {
    fn linker_flags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        if self.cgo {
            flags.push_str(" -linkmode external -extldflags -static");
        }
        if self.folder == "k8s" {
            let (major, minor, patch) = KUBERNETES;
            let version = "k8s.io/component-base/version";
            flags.push_str(&format!(
                " -X {version}.gitVersion=v{major}.{minor}.{patch} -X {version}.gitMajor={major} \
                 -X {version}.gitMinor={minor}"
            ));
        }
        flags
    }

    fn arguments(&self, output: &Path, package: &str) -> Vec<String> {
        let mut arguments = vec!["build".to_owned(), "-v".into(), "-trimpath".into()];
        // The commit of this repository does not belong into other people's programs.
        arguments.push("-buildvcs=false".into());
        if !self.tags.is_empty() {
            arguments.extend(["-tags".to_owned(), self.tags.to_owned()]);
        }
        arguments.extend(["-ldflags".to_owned(), self.linker_flags()]);
        arguments.extend(["-o".to_owned(), output.to_string_lossy().into_owned()]);
        arguments.push(package.to_owned());
        arguments
    }

    fn go(&self, source: &Path) -> Command {
        let mut go = Command::new("go");
        go.current_dir(source)
            .env("CGO_ENABLED", if self.cgo { "1" } else { "0" })
            .env("GOWORK", "off")
            .env("GOFLAGS", "-mod=readonly");
        go
    }

    fn key(&self, source: &Path, go: &str) -> Result<String> {
        let mut hash = Sha256::new();
        let mut add = |text: &[u8]| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        for text in [go, self.tags, &self.linker_flags()] {
            add(text.as_bytes());
        }
        for (program, package) in self.programs {
            add(program.as_bytes());
            add(package.as_bytes());
        }
        for file in sources(source)? {
            add(file.strip_prefix(source)?.to_string_lossy().as_bytes());
            add(&fs::read(&file)?);
        }
        Ok(format!("{:x}", hash.finalize())[..16].to_owned())
    }
}

/// go.mod, go.sum and our own mains, in order of their names.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut sources(&path)?);
        } else if path.extension().is_some_and(|e| e == "go" || e == "mod" || e == "sum") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// All programs of an image, by name; builds what is not in the cache.
///
/// # Errors
/// Go is missing, a module cannot be downloaded, a program does not compile.
pub(crate) fn programs(ui: &Ui) -> Result<BTreeMap<String, PathBuf>> {
    programs_of(ui, false)
}

/// As [`programs`]; with those of test images if it is one.
///
/// # Errors
/// As [`programs`].
pub(crate) fn programs_of(ui: &Ui, for_tests: bool) -> Result<BTreeMap<String, PathBuf>> {
    let mut stage = ui.stage("Go components");
    let cache = paths::cache()?.join("upstream");
    fs::create_dir_all(&cache)?;
    let lock = fs::File::create(cache.join("lock"))?;
    lock.lock().context("cannot take the lock of the upstream cache")?;
    let go = image::run(Command::new("go").args(["env", "GOVERSION"]))?;
    let (mut programs, mut built) = (BTreeMap::new(), 0);
    for set in SETS.iter().chain(TEST_SETS.iter().filter(|_| for_tests)) {
        let source = paths::repository().join("build/upstream").join(set.folder);
        let folder = cache.join(format!("{}-{}", set.folder, set.key(&source, go.trim())?));
        if !folder.exists() {
            built += set.programs.len();
            build(set, &source, &folder, &mut stage)?;
        }
        for (program, _) in set.programs {
            programs.insert((*program).to_owned(), folder.join(program));
        }
    }
    let cached = programs.len() - built;
    stage.done(&format!("{} programs, {cached} from the cache", programs.len()));
    Ok(programs)
}

/// Builds into a folder beside `folder` and renames it when all is there.
fn build(set: &ModuleSet, source: &Path, folder: &Path, stage: &mut Stage<'_>) -> Result<()> {
    let part = folder.with_extension("part");
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    fs::create_dir_all(&part)?;
    for (program, package) in set.programs {
        stage.note(&format!("{program}: looking at its modules"));
        let packages =
            image::run(set.go(source).args(["list", "-deps", "-tags", set.tags, package]))
                .with_context(|| {
                    format!(
                        "cannot get the Go modules of {program}; check the network, then try again"
                    )
                })?;
        let total = packages.lines().count();
        compile(set, source, &part.join(program), (program, package), total, stage)?;
    }
    fs::rename(&part, folder).with_context(|| format!("cannot rename {}", part.display()))
}

fn compile(
    set: &ModuleSet,
    source: &Path,
    output: &Path,
    (program, package): (&str, &str),
    total: usize,
    stage: &mut Stage<'_>,
) -> Result<()> {
    let mut child = set
        .go(source)
        .args(set.arguments(output, package))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start go")?;
    let stderr = child.stderr.take().context("go has no standard error")?;
    let (mut lines, mut done) = (Vec::new(), 0);
    for line in BufReader::new(stderr).lines() {
        let line = line.unwrap_or_default();
        // -v prints one line for each package when its compilation starts.
        if !line.contains(' ') {
            done = (done + 1).min(total);
        }
        stage.progress(done, total, &format!("{program}: {line}"));
        lines.push(line);
    }
    if child.wait().context("cannot wait for go")?.success() {
        return Ok(());
    }
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
    bail!("Go could not build {program}:\n    {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_the_image_is_built_once() {
        let mut built: Vec<_> = SETS.iter().flat_map(|set| set.programs).map(|p| p.0).collect();
        built.sort_unstable();
        let mut wanted = [image::UPSTREAM_PROGRAMS, image::CNI_PLUGINS, &["pause"]].concat();
        wanted.sort_unstable();
        assert_eq!(built, wanted);
        let tests = TEST_SETS.iter().flat_map(|set| set.programs).map(|p| p.0);
        assert_eq!(tests.collect::<Vec<_>>(), image::TEST_PROGRAMS);
    }

    #[test]
    fn the_cache_key_follows_sources_and_go_version() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("go.mod"), "module a\n").unwrap();
        let key = |go: &str| SETS[0].key(folder.path(), go).unwrap();
        let before = key("go1.26");
        assert_eq!(before, key("go1.26"));
        assert_ne!(before, key("go1.27"));
        fs::write(folder.path().join("main.go"), "package main\n").unwrap();
        assert_ne!(before, key("go1.26"));
    }
}
