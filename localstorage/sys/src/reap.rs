//! Waiting for children: peek at who has exited, then take exactly that one.
//!
//! Owner: the reaper thread of `node`. Must not know: policy, registry, names.
//! Invariant: a peek never consumes a status, so that the owner of the pid can be found first.
use std::io;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned or called exit with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// Signal number.
        signal: i32,
        /// Whether a core was dumped.
        core: bool,
    },
}

/// Waits until any child has exited and returns its pid, leaving the status in place.
/// `None`: this process has no children at all.
///
/// # Errors
/// The errno of waitid, except EINTR (retried) and ECHILD.
pub fn peek_exited() -> io::Result<Option<u32>> {
    match wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT) {
        Ok(info) => Ok(info.map(|(pid, _)| pid)),
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Takes the status of `pid` if it has exited. `None`: it lives, is gone, or never was a child.
///
/// # Errors
/// The errno of waitid, except EINTR (retried) and ECHILD.
pub fn reap(pid: u32) -> io::Result<Option<Exit>> {
    match wait(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG) {
        Ok(info) => Ok(info.map(|(_, exit)| exit)),
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(e) => Err(e),
    }
}

fn wait(kind: libc::idtype_t, id: u32, options: i32) -> io::Result<Option<(u32, Exit)>> {
    loop {
        // JUSTIFICATION: rustix's waitid does not tell the pid of the peeked child.
        // SAFETY: siginfo_t is plain data for which zeroes are valid; the kernel fills it; the two
        // accessors read the fields that waitid defines.
        let (pid, code, status) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            if libc::waitid(kind, id, &raw mut info, options) < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            (info.si_pid(), info.si_code, info.si_status())
        };
        let Ok(pid) = u32::try_from(pid) else { return Ok(None) };
        if pid == 0 {
            return Ok(None);
        }
        let exit = match code {
            libc::CLD_KILLED => Exit::Signal { signal: status, core: false },
            libc::CLD_DUMPED => Exit::Signal { signal: status, core: true },
            _ => Exit::Code(status),
        };
        return Ok(Some((pid, exit)));
    }
}

/// Orphaned descendants become children of this process instead of PID 1 (for tests outside the image).
///
/// # Errors
/// The errno of prctl.
pub fn become_subreaper() -> io::Result<()> {
    // JUSTIFICATION: one prctl, kept beside the waits it belongs to.
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one integer and no pointers.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends a signal to every process but PID 1 and the caller.
///
/// # Errors
/// The errno of kill, except ESRCH (nobody was there).
pub fn signal_everybody(signal: i32) -> io::Result<()> {
    // JUSTIFICATION: rustix has no kill(-1).
    // SAFETY: no pointers; the effect is the documented one and the caller is PID 1 on its way down.
    if unsafe { libc::kill(-1, signal) } < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ESRCH) {
            return Err(error);
        }
    }
    Ok(())
}
