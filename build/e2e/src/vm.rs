//! A running guest, from start to an end of whatever kind.
//!
//! ```text
//! start ──▶ running ──power off / reboot of the guest──▶ Ending
//!              └──power_cut, Drop, death of our process──▶ killed
//! ```

use std::fs::File;
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::channel::HostChannel;
use crate::ports::{check_port, free_port};
use crate::qemu::{Forward, VmConfig, arguments};
use crate::qmp::Qmp;
use crate::rundir::RunDir;
use crate::serial::{Listener, Serial};

/// How often other ports are tried when someone was faster than QEMU.
const PORT_ATTEMPTS: u32 = 5;

/// How a guest came to its end by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The guest powered off.
    PowerOff,
    /// The guest reset itself (and `exit_on_reboot` was set).
    Reboot,
    /// Anything else, in QEMU's words.
    Other(String),
}

/// A running guest. It is killed when it goes out of scope.
///
/// The kernel also kills QEMU when the **thread** that started it ends, so start
/// it on a thread that lives as long as the guest should.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    qmp: Qmp,
    serial: Serial,
    threads: Vec<JoinHandle<()>>,
    forwards: Vec<Forward>,
    run: RunDir,
    started: Instant,
}

impl Vm {
    /// Starts a guest whose sockets and logs are in `run`.
    ///
    /// # Errors
    /// A port that was asked for is taken, QEMU is not installed or refuses its
    /// arguments (its own words are in the error).
    pub fn start(config: &VmConfig, run: RunDir) -> Result<Self> {
        for forward in config.forwards.iter().filter(|forward| forward.host != 0) {
            check_port(forward.host)?;
        }
        let chosen = config.forwards.iter().any(|forward| forward.host == 0);
        let mut run = run;
        for _ in 1..PORT_ATTEMPTS {
            match Self::attempt(config, run) {
                Ok(vm) => return Ok(vm),
                Err((error, back)) => {
                    if !(chosen && format!("{error:#}").contains("host forwarding")) {
                        return Err(error);
                    }
                    run = back;
                }
            }
        }
        Self::attempt(config, run).map_err(|(error, _)| error)
    }

    fn attempt(config: &VmConfig, run: RunDir) -> Result<Self, (anyhow::Error, RunDir)> {
        match Self::launch(config, &run) {
            Ok(parts) => {
                let (child, qmp, serial, threads, forwards, started) = parts;
                Ok(Self { child, qmp, serial, threads, forwards, run, started })
            }
            Err(error) => Err((error, run)),
        }
    }

    fn launch(config: &VmConfig, run: &RunDir) -> Result<Parts> {
        let mut forwards = config.forwards.clone();
        for forward in forwards.iter_mut().filter(|forward| forward.host == 0) {
            forward.host = free_port()?;
        }
        let socket = run.join("qmp.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let started = Instant::now();
        let mut child = qemu(&arguments(config, &forwards, run.path()))
            .spawn()
            .context("cannot start setpriv (Debian package util-linux)")?;
        let listening: Option<Listener> =
            if config.show_console { Some(Box::new(|line| println!("{line}"))) } else { None };
        let stdout = child.stdout.take().context("QEMU has no standard output")?;
        let (serial, console) = Serial::capture(stdout, &run.join("serial.log"), listening)?;
        let stderr = child.stderr.take().context("QEMU has no standard error")?;
        let errors = collect_errors(stderr, run.join("qemu.log"), socket);
        // Either QEMU connects, or the thread above does when QEMU has ended.
        let greeted = listener.accept().map_err(Into::into).and_then(|(s, _)| Qmp::greet(s));
        match greeted {
            Ok(qmp) => Ok((child, qmp, serial, vec![console, errors], forwards, started)),
            Err(_) => {
                let _ = child.kill();
                let status = child.wait();
                let _ = errors.join();
                let _ = console.join();
                let words = std::fs::read_to_string(run.join("qemu.log")).unwrap_or_default();
                bail!("QEMU did not start ({status:?}): {}", words.trim());
            }
        }
    }

    /// The console.
    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    /// Time since power-on.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Folder with sockets and logs.
    pub fn run_dir(&self) -> &RunDir {
        &self.run
    }

    /// Leaves logs and sockets in place when the guest is gone.
    pub fn keep_run_dir(&mut self) {
        self.run.keep();
    }

    /// Port on 127.0.0.1 that leads to `guest`'s port.
    ///
    /// # Errors
    /// The configuration forwards no such port.
    pub fn port(&self, guest: u16) -> Result<u16> {
        let forward = self.forwards.iter().find(|forward| forward.guest == guest);
        Ok(forward.with_context(|| format!("port {guest} of the guest is not forwarded"))?.host)
    }

    /// A new client of the host's own channel. One at a time can be connected.
    pub fn channel(&self) -> HostChannel {
        HostChannel::new(&self.run.join("host.sock"))
    }

    /// QEMU's control socket.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Presses the power button.
    ///
    /// # Errors
    /// QEMU is gone.
    pub fn press_power_button(&mut self) -> Result<()> {
        self.qmp.command("system_powerdown", json!({})).map(drop)
    }

    /// Waits until the guest has ended by itself.
    ///
    /// # Errors
    /// It has not within `deadline`; the console's last lines are in the error.
    pub fn wait_end(mut self, deadline: Duration) -> Result<Ending> {
        if !self.serial.wait_end(deadline) {
            bail!(
                "the guest is still running after {:.0} s. Last lines (all in {}):\n    {}",
                deadline.as_secs_f64(),
                self.serial.log().display(),
                self.serial.tail()
            );
        }
        let reason = self.qmp.reason_of_end();
        let status = self.child.wait().context("cannot wait for QEMU")?;
        Ok(match reason.as_deref() {
            Some("guest-shutdown") => Ending::PowerOff,
            Some("guest-reset") => Ending::Reboot,
            other => Ending::Other(format!("{} ({status})", other.unwrap_or("QEMU ended"))),
        })
    }

    /// Cuts the power: QEMU is killed at once, and gone when this returns.
    pub fn power_cut(self) {
        drop(self);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

type Parts = (Child, Qmp, Serial, Vec<JoinHandle<()>>, Vec<Forward>, Instant);

/// QEMU under `setpriv --pdeathsig`: it dies with the thread that starts it,
/// even when that is killed. Its own process group keeps Ctrl-C away from it.
pub(crate) fn qemu(arguments: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

/// Writes QEMU's errors to a file; at their end wakes whoever still waits for
/// QEMU to connect.
fn collect_errors(
    mut source: impl Read + Send + 'static,
    log: PathBuf,
    wake: PathBuf,
) -> JoinHandle<()> {
    #[expect(clippy::disallowed_methods, reason = "the VM that owns the thread joins it")]
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = source.read_to_end(&mut text);
        let _ = std::fs::write(log, text);
        let _ = UnixStream::connect(wake);
    })
}

/// Makes a sparse raw disk; one that exists is left as it is.
///
/// # Errors
/// The file cannot be made.
pub fn create_raw_disk(path: &Path, bytes: u64) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let file =
        File::create_new(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.set_len(bytes).with_context(|| format!("cannot size {}", path.display()))
}

/// A data disk of a test that outlives the guests that use it.
#[derive(Debug)]
pub struct DataDisk {
    run: RunDir,
}

impl DataDisk {
    /// A new, empty disk.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(bytes: u64) -> Result<Self> {
        let disk = Self { run: RunDir::new()? };
        create_raw_disk(&disk.path(), bytes)?;
        Ok(disk)
    }

    /// The disk's file.
    pub fn path(&self) -> PathBuf {
        self.run.join("data.img")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_disk_that_exists_keeps_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, b"data").unwrap();
        create_raw_disk(&path, 1 << 20).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }
}
