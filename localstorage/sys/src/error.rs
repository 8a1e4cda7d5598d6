//! The one error of this crate: which call failed, on what, and with which errno.
//!
//! Invariant: [`SysError`] never hides the errno, so that callers can decide.

use rustix::io::Errno;

/// Result of a system call.
pub type Res<T> = Result<T, SysError>;

/// A failed system call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} on {object} failed")]
pub struct SysError {
    /// Name of the call, as in its manual page or header (`Q_XSETQLIM`).
    pub call: &'static str,
    /// What it was applied to: a path, an id, or a file descriptor.
    pub object: String,
    /// What the kernel answered.
    #[source]
    pub errno: Errno,
}

impl SysError {
    /// Makes an error for `call` on `object`.
    pub fn new(call: &'static str, object: impl Into<String>, errno: Errno) -> SysError {
        SysError { call, object: object.into(), errno }
    }

    /// Whether the kernel answered `errno`.
    pub fn is(&self, errno: Errno) -> bool {
        self.errno == errno
    }
}

/// Repeats `call` while the kernel answers EINTR.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
