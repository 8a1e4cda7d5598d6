//! Signals of PID 1: blocked before any thread exists, then taken one by one by a thread of their own.
//!
//! Owner: the signal thread of `node`. Invariant: handlers are never installed, so no code runs in
//! signal context. Must not know: what a signal means to the node.
use std::io;

/// The signals that [`block`] has blocked; needed to wait for them.
#[derive(Clone, Copy)]
pub struct Blocked(libc::sigset_t);

/// One signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Signal number.
    pub signal: i32,
    /// Sending process, 0 for the kernel.
    pub from_pid: u32,
}

/// Faults are never blocked: they must end the process where they happen. SIGCHLD is left alone too: the
/// reaper waits without it.
const NOT_BLOCKED: [i32; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGCHLD,
];

/// Blocks all signals but faults in the calling thread; threads made later inherit it.
///
/// # Errors
/// The errno of pthread_sigmask.
pub fn block() -> io::Result<Blocked> {
    // JUSTIFICATION: rustix has no signal masks.
    // SAFETY: the set is initialised by sigfillset before use; all pointers are to this stack.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for signal in NOT_BLOCKED {
            libc::sigdelset(&raw mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) {
            0 => Ok(Blocked(set)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Blocked {
    /// Waits for the next blocked signal.
    ///
    /// # Errors
    /// The errno of sigwaitinfo, except EINTR (retried).
    pub fn wait(&self) -> io::Result<Received> {
        loop {
            // JUSTIFICATION: rustix has no sigwaitinfo.
            // SAFETY: the set was filled by `block`; siginfo_t is plain data that the kernel fills.
            let (signal, pid) = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let signal = libc::sigwaitinfo(&raw const self.0, &raw mut info);
                (signal, info.si_pid())
            };
            if signal > 0 {
                return Ok(Received { signal, from_pid: u32::try_from(pid).unwrap_or(0) });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl std::fmt::Debug for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Blocked")
    }
}
