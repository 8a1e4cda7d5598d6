//! A ready cluster, frozen once per image and thawed for each test that may
//! share it: a few seconds instead of a whole boot.
//!
//! Tests of boots and of crashes never start from here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::cluster::{API_PORT, Cluster, DASHBOARD_PORT};
use crate::image_dir::ImageDir;
use crate::kvm::Accelerator;
use crate::qemu::{Cache, Disk, Format, VmConfig};
use crate::rundir::{RunDir, cache_dir};
use crate::vm::Vm;
use crate::wait::PATIENCE;

/// Name of the snapshot in the frozen disk.
const SNAPSHOT: &str = "ready";

/// Memory of a frozen cluster: all of it is copied for each thaw.
const MEMORY_MIB: u64 = 2048;

/// Size of a frozen cluster's data disk.
const DISK: &str = "8G";

/// Time in which a thawed node must answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// A ready cluster from `image`, its clock set to now. Freezes one first if
/// there is none of this image.
///
/// # Errors
/// The image does not become ready, or the frozen machine does not wake up.
pub fn thaw(image: &ImageDir, accelerator: Accelerator) -> Result<Cluster> {
    let frozen = frozen(image, accelerator)?;
    let run = RunDir::new()?;
    let disk = run.join("data.qcow2");
    std::fs::copy(&frozen, &disk).with_context(|| format!("cannot copy {}", frozen.display()))?;
    let mut config =
        config(image, accelerator, &disk).forward(0, API_PORT).forward(0, DASHBOARD_PORT);
    config.snapshot = Some(SNAPSHOT.into());
    let vm = Vm::start(&config, run)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    let now = u64::try_from(now.as_millis()).context("a clock after the year 500 million")?;
    vm.channel()
        .call_within("test.set_clock", json!({ "unix_ms": now }), ANSWER_DEADLINE)
        .context("the thawed node does not answer")?;
    Cluster::attach(vm, image)
}

fn config(image: &ImageDir, accelerator: Accelerator, disk: &Path) -> VmConfig {
    let mut config = VmConfig::new(image.clone(), accelerator).memory(MEMORY_MIB);
    config.disks.push(Disk {
        serial: "hamlet-data".into(),
        path: disk.to_path_buf(),
        format: Format::Qcow2,
        cache: Cache::Unsafe,
    });
    config
}

/// The frozen disk of this image; one process at a time looks or freezes.
fn frozen(image: &ImageDir, accelerator: Accelerator) -> Result<PathBuf> {
    let folder = cache_dir()?.join("frozen");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = File::create(folder.join("lock")).context("cannot create a lock")?;
    lock.lock().context("cannot take the lock of the frozen clusters")?;
    let name = format!("{}-{accelerator:?}.qcow2", image.key());
    let path = folder.join(&name);
    if !path.exists() {
        remove_older(&folder)?;
        freeze(image, accelerator, &path)?;
    }
    Ok(path)
}

/// Other images' machines: their builds are gone, and each takes most of a GiB.
fn remove_older(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "qcow2" || extension == "part") {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn freeze(image: &ImageDir, accelerator: Accelerator, path: &Path) -> Result<()> {
    let part = path.with_extension("part");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .arg(&part)
        .arg(DISK)
        .status()
        .context("cannot start qemu-img (Debian package qemu-utils)")?;
    if !made.success() {
        bail!("qemu-img could not create {}", part.display());
    }
    let mut cluster = Cluster::boot(config(image, accelerator, &part))?;
    // Made by a controller some time after the node is ready, and needed by every pod.
    cluster.kubectl.wait("serviceaccount/default", "create", PATIENCE)?;
    cluster.vm.qmp().monitor(&format!("savevm {SNAPSHOT}"))?;
    let _ = cluster.vm.qmp().command("quit", json!({}));
    drop(cluster);
    std::fs::rename(&part, path).with_context(|| format!("cannot rename {}", part.display()))
}
