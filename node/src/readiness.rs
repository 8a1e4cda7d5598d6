//! Readiness of device files on tokio, in the one place that says why that is sound.
use std::fs::File;
use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches an open file.
///
/// # Errors
/// The kind of file has no readiness, or there is no runtime with I/O.
#[expect(
    deprecated,
    reason = "deprecated for types that do not own their descriptor; a File does, and AsyncFd keeps it"
)]
pub fn watch(file: File, interest: Interest) -> io::Result<AsyncFd<File>> {
    AsyncFd::with_interest(file, interest)
}
