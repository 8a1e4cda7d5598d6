//! Whether KVM can be used: only a kernel that really boots under it says so.
//!
//! `/dev/kvm` may open, and even make a VM, on hosts where an ordinary kernel
//! hangs right after the firmware (nested, paravirtual hosts). So the image's
//! kernel is started without a root disk: its panic about that is the proof.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::rundir::{RunDir, cache_dir};
use crate::serial::Serial;
use crate::vm::qemu;

/// How the guest's processor is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// By the host's processor.
    Kvm,
    /// By translation: slower, works everywhere.
    Tcg,
}

/// Enough for a kernel to reach its panic under KVM, many times over.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// What a kernel without a root disk says last.
const PROOF: &str = "Unable to mount root fs";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    /// Release of the host's kernel: another one is asked again.
    host: String,
    accelerator: Accelerator,
}

/// The accelerator to use. `HAMLET_ACCEL=kvm|tcg` decides without a probe; a
/// verdict is remembered until the host's kernel changes.
///
/// # Errors
/// HAMLET_ACCEL has another value; the cache folder cannot be written.
pub fn probe(kernel: &Path) -> Result<Accelerator> {
    match std::env::var("HAMLET_ACCEL").as_deref() {
        Ok("kvm") => return Ok(Accelerator::Kvm),
        Ok("tcg") => return Ok(Accelerator::Tcg),
        Ok(other) => anyhow::bail!("HAMLET_ACCEL is {other:?}; it can be kvm or tcg"),
        Err(_) => {}
    }
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if device.is_err() {
        return Ok(Accelerator::Tcg);
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let file = cache_dir()?.join("accelerator.json");
    if let Some(known) = read(&file).filter(|verdict| verdict.host == host) {
        return Ok(known.accelerator);
    }
    let accelerator = if boots(kernel)? { Accelerator::Kvm } else { Accelerator::Tcg };
    let verdict = Verdict { host, accelerator };
    std::fs::write(&file, serde_json::to_vec(&verdict)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(accelerator)
}

fn read(file: &PathBuf) -> Option<Verdict> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Starts the kernel under KVM with nothing else.
fn boots(kernel: &Path) -> Result<bool> {
    let run = RunDir::new()?;
    let kernel = kernel.to_string_lossy();
    let arguments = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-machine",
        "q35",
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-m",
        "256M",
        "-nic",
        "none",
        "-no-reboot",
        "-serial",
        "stdio",
        "-kernel",
        kernel.as_ref(),
        "-append",
        "console=ttyS0 panic=-1",
    ];
    let mut child = qemu(&arguments.map(str::to_owned)).spawn().context("cannot start QEMU")?;
    let stdout = child.stdout.take().context("QEMU has no standard output")?;
    let (serial, thread) = Serial::capture(stdout, &run.join("serial.log"), None)?;
    let proven = serial.wait_for(PROOF, PROBE_DEADLINE).is_ok();
    let _ = child.kill();
    let _ = child.wait();
    let _ = thread.join();
    Ok(proven)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_verdict_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("accelerator.json");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(read(&file), None);
        let verdict = Verdict { host: "6".into(), accelerator: Accelerator::Tcg };
        std::fs::write(&file, serde_json::to_vec(&verdict).unwrap()).unwrap();
        assert_eq!(read(&file), Some(verdict));
    }
}
