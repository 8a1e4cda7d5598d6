//! Serving a socket as a Runnable (rule X6), on tokio alone.
//!
//! The socket is bound inside of the run, a stale unix socket is unlinked first; healthy is said
//! after the bind. What speaks on the socket is the caller's closure: it gets the listener and a
//! future that resolves when it should finish. On stop it has 5 s to drain, then it is dropped.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};

use crate::{Context, Handle, Outcome, Stop, StopToken};

/// Time to drain connections after being asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// There is something at the path that is no socket: it is not ours to remove.
    #[error("{0} exists and is no socket")]
    NotASocket(PathBuf),
    /// Removing the stale socket failed.
    #[error("cannot remove the stale socket {path}")]
    Unlink {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Binding failed.
    #[error("cannot listen on {at}")]
    Bind {
        /// Path or address.
        at: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Resolves when the server should take no more connections and finish.
#[derive(Debug)]
pub struct Draining(StopToken);

impl Draining {
    /// Waits for it. Cancel safe.
    pub async fn wait(self) {
        // The outcome is made by the helper, which was asked as well.
        let _cancelled = self.0.stopped().await;
    }
}

/// Serves a unix socket with the given mode of its file.
pub async fn serve_unix<F, Fut, E>(ctx: Context, path: &Path, mode: u32, server: F) -> Outcome
where
    F: FnOnce(UnixListener, Draining) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    Stop: From<E>,
{
    let listener = bind_unix(path, mode)?;
    let outcome = serve(ctx, listener, server).await;
    // Nobody should connect to a socket without a server; a leftover is unlinked by the next run.
    let _ = std::fs::remove_file(path);
    outcome
}

/// Serves a TCP address; the closure can ask the listener which port it got.
pub async fn serve_tcp<F, Fut, E>(ctx: Context, at: SocketAddr, server: F) -> Outcome
where
    F: FnOnce(TcpListener, Draining) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    Stop: From<E>,
{
    let bound = TcpListener::bind(at).await;
    let listener = bound.map_err(|source| BindError::Bind { at: at.to_string(), source })?;
    serve(ctx, listener, server).await
}

async fn serve<L, F, Fut, E>(ctx: Context, listener: L, server: F) -> Outcome
where
    F: FnOnce(L, Draining) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    Stop: From<E>,
{
    let running = ctx.healthy();
    let mut serving = std::pin::pin!(server(listener, Draining(running.stop())));
    let cancelled = tokio::select! {
        biased;
        cancelled = async { running.stop().stopped().await } => cancelled,
        ended = &mut serving => {
            ended?;
            return match running.stop().reason() {
                Some(_) => Err(running.stop().stopped().await.into()),
                None => Err(Stop::failed("the server ended by itself")),
            };
        }
    };
    match tokio::time::timeout(DRAIN, serving).await {
        Ok(ended) => ended?,
        Err(_) => slog::warn!(running.log(), "connections do not end: dropped"),
    }
    Err(cancelled.into())
}

fn bind_unix(path: &Path, mode: u32) -> Result<UnixListener, BindError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path)
            .map_err(|source| BindError::Unlink { path: path.to_owned(), source })?,
        Ok(_) => return Err(BindError::NotASocket(path.to_owned())),
        // Whatever else is wrong, bind will say.
        Err(_) => {}
    }
    let error = |source| BindError::Bind { at: path.display().to_string(), source };
    let listener = UnixListener::bind(path).map_err(error)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(error)?;
    Ok(listener)
}
