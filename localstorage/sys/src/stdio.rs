//! Standard output and error of this very process, led elsewhere.
//!
//! Owner: bring-up. Must not know: who reads the other ends.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes `out` and `err` this process's standard output and error.
///
/// # Errors
/// The errno of dup2.
pub fn redirect_output(out: BorrowedFd<'_>, err: BorrowedFd<'_>) -> io::Result<()> {
    for (from, to) in [(out, libc::STDOUT_FILENO), (err, libc::STDERR_FILENO)] {
        // JUSTIFICATION: replacing a standard descriptor has no safe wrapper in use here.
        // SAFETY: `from` is open; nobody owns descriptors 1 and 2 but the process as a whole.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
