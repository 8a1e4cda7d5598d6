//! A listening unix socket that is private from birth and is gone when its owner is.
//!
//! Invariants: mode 0600 before anybody can connect; a path is taken over only if it is a
//! socket on which nothing answers; on drop it is removed only if it is still ours.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// Connections the kernel keeps waiting for `accept`; a kubelet opens a handful.
const BACKLOG: i32 = 64;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Its directory cannot be made.
    #[error("cannot create directory {0}")]
    Directory(PathBuf, #[source] io::Error),
    /// What is at the path cannot be examined.
    #[error("cannot examine {0}")]
    Examine(PathBuf, #[source] io::Error),
    /// A file or directory, not a socket.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// Another process serves it.
    #[error("another process answers on {0}")]
    InUse(PathBuf),
    /// The stale one cannot be removed.
    #[error("cannot remove the stale socket {0}")]
    Unlink(PathBuf, #[source] io::Error),
    /// The new one cannot be made.
    #[error("cannot listen on {0}")]
    Listen(PathBuf, #[source] io::Error),
}

/// A bound socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of our file: after a takeover by somebody else it is not ours.
    identity: (u64, u64),
}

impl BoundSocket {
    /// Makes the directory if need be, removes a stale socket, listens.
    pub(crate) async fn bind(path: &Path) -> Result<BoundSocket, SocketError> {
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o750)
                .create(parent)
                .map_err(|e| SocketError::Directory(parent.to_owned(), e))?;
        }
        remove_stale(path).await?;
        let listen = |e: io::Error| SocketError::Listen(path.to_owned(), e);
        let listener = listen_privately(path).map_err(listen)?;
        let identity = identity(path).map_err(listen)?;
        Ok(BoundSocket { listener, path: path.to_owned(), identity })
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // Nothing to be done about a failure: the next bind finds it stale.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let m = std::fs::symlink_metadata(path)?;
    Ok((m.dev(), m.ino()))
}

async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(SocketError::Examine(path.to_owned(), e)),
        Ok(m) if !m.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| SocketError::Unlink(path.to_owned(), e))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(SocketError::Examine(path.to_owned(), e)),
    }
}

/// The file gets the mode of the socket itself: set on the descriptor before `bind`, there
/// is no instant at which others could connect (and the umask of the process is not touched,
/// which all threads share).
fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    UnixListener::from_std(StdListener::from(fd))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn c12_7_a_socket_is_0600_and_gone_with_its_owner() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("plugins/driver/csi.sock");
        let socket = BoundSocket::bind(&path).await.expect("bind");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn c12_7_a_stale_socket_is_replaced_and_a_served_one_is_not() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("csi.sock");
        drop(StdListener::bind(&path).expect("std leaves its file behind"));
        let socket = BoundSocket::bind(&path).await.expect("takes over");
        let second = BoundSocket::bind(&path).await;
        assert!(matches!(second, Err(SocketError::InUse(_))), "{second:?}");
        drop(socket);
        BoundSocket::bind(&path).await.expect("free again");
    }

    #[tokio::test]
    async fn c12_7_what_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("csi.sock");
        std::fs::write(&path, "precious").expect("write");
        let refused = BoundSocket::bind(&path).await;
        assert!(matches!(refused, Err(SocketError::NotASocket(_))), "{refused:?}");
        assert_eq!(std::fs::read_to_string(&path).expect("kept"), "precious");
    }

    #[tokio::test]
    async fn c12_7_a_successor_at_the_same_path_is_not_removed() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("csi.sock");
        let first = BoundSocket::bind(&path).await.expect("bind");
        std::fs::remove_file(&path).expect("somebody removes it");
        let _second = BoundSocket::bind(&path).await.expect("bind again");
        drop(first);
        assert!(path.exists());
    }
}
