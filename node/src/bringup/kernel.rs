//! The first step: what PID 1 does to itself before any thread exists (rule B2).
//!
//! Invariant: signals are blocked before the first thread. Must not know: mounts.
use nodesys::signals::{self, Blocked};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::RebootCommand;

use super::BringupFailed;

/// Descriptors PID 1 may have open: sockets of all pods' probes and logs fit.
const OPEN_FILES: u64 = 1 << 20;

/// PID 1 with its signals blocked, nothing mounted by it yet.
#[derive(Debug)]
pub struct Kernel {
    pub(super) signals: Blocked,
    /// What went wrong without being worth an end; logged once there is a log.
    pub(super) notes: Vec<String>,
}

impl Kernel {
    /// Sets the process up.
    ///
    /// # Errors
    /// Signals cannot be blocked.
    pub fn enter() -> Result<Kernel, BringupFailed> {
        let signals = signals::block().map_err(|e| BringupFailed::one("signals", &e))?;
        let mut notes = Vec::new();
        let mut note = |what: &str, result: rustix::io::Result<()>| {
            if let Err(e) = result {
                notes.push(format!("{what}: {e}"));
            }
        };
        note("Ctrl-Alt-Del stays the kernel's", rustix::system::reboot(RebootCommand::CadOff));
        // EPERM: the kernel's init process may lead a session already.
        let _ = rustix::process::setsid();
        rustix::process::umask(Mode::from_raw_mode(0o022));
        for (resource, value) in [(Resource::Nofile, OPEN_FILES), (Resource::Core, 0)] {
            let limit = Rlimit { current: Some(value), maximum: Some(value) };
            note("resource limit", setrlimit(resource, limit));
        }
        Ok(Kernel { signals, notes })
    }
}
