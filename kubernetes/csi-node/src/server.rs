//! Serves gRPC on a bound socket within the caller's own task.
//!
//! tonic's server spawns a detached task for each connection: its panics are swallowed and
//! it outlives the server. Here connections and the streams of HTTP/2 are futures of one
//! task instead. When [`serve`] returns or is dropped, nothing of it is left, and a panic in
//! a handler is the death of the Runnable, seen and restarted.
//!
//! The price, calls that share one task, does not matter: they wait for the engine, whose
//! work is done elsewhere.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use hyper::server::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use crate::observe::Observed;
use crate::socket::BoundSocket;

/// Connections at a time. A kubelet opens one per call and a few watchers beside it; more
/// wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 32;
/// Calls at a time on one connection.
const STREAMS_MAX: u32 = 64;
/// How long running calls may take to end after the socket is closed (rule X6).
const DRAIN: Duration = Duration::from_secs(5);

/// Why serving ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("cannot accept connections")]
pub(crate) struct ServeError(#[source] io::Error);

/// What hyper wants run beside a connection: one future per stream, bounded by
/// [`STREAMS_MAX`] × [`CONNECTIONS_MAX`], so the queue is too.
#[derive(Clone)]
struct Streams(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, future: F) {
        // Fails only while the server is being dropped, and then nobody waits for it.
        let _ = self.0.send(Box::pin(future));
    }
}

/// Serves until `until` ends; then closes the socket, lets running calls end within
/// [`DRAIN`], and drops the rest. Only peers with this uid, or our own, are served.
pub(crate) async fn serve<T>(
    socket: BoundSocket,
    app: Observed,
    peer_uid: u32,
    until: impl Future<Output = T>,
) -> Result<T, ServeError> {
    let mut until = pin!(until);
    let (quit, quitting) = watch::channel(());
    let (sender, mut started) = mpsc::unbounded_channel();
    let mut connections = FuturesUnordered::new();
    let mut streams = FuturesUnordered::new();
    let end = loop {
        // Every branch is cancel safe: accept and recv take nothing unless they return it,
        // and the sets keep their futures.
        tokio::select! {
            end = &mut until => break end,
            accepted = socket.listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                match accepted {
                    Ok((stream, _)) if may_connect(&stream, peer_uid, &app.log) => {
                        let streams = Streams(sender.clone());
                        connections.push(connection(stream, app.clone(), streams, quitting.clone()));
                    }
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(e) => return Err(ServeError(e)),
                }
            }
            Some(()) = connections.next() => {}
            Some(stream) = started.recv() => streams.push(stream),
            Some(()) = streams.next() => {}
        }
    };
    drop(socket);
    drop(quit);
    let drained = async {
        while !(connections.is_empty() && streams.is_empty()) {
            tokio::select! {
                Some(()) = connections.next() => {}
                Some(stream) = started.recv() => streams.push(stream),
                Some(()) = streams.next() => {}
            }
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        slog::warn!(app.log, "calls still running are cut off"; "after_s" => DRAIN.as_secs());
    }
    Ok(end)
}

async fn connection(
    stream: UnixStream,
    app: Observed,
    streams: Streams,
    mut quitting: watch::Receiver<()>,
) {
    let log = app.log.clone();
    let mut builder = http2::Builder::new(streams);
    builder.max_concurrent_streams(STREAMS_MAX);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), app));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        _ = quitting.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(e) = ended {
        // Peers that vanish in mid-sentence are ordinary: stale-socket probes do it.
        slog::debug!(log, "connection ended"; "error" => volumes::chain(&e));
    }
}

/// The file's mode keeps others out already; this also holds if it is loosened.
fn may_connect(stream: &UnixStream, peer_uid: u32, log: &slog::Logger) -> bool {
    let uid = match stream.peer_cred() {
        Ok(peer) => peer.uid(),
        Err(e) => {
            slog::warn!(log, "refused a connection: its peer is unknown"; "error" => %e);
            return false;
        }
    };
    let allowed = is_allowed(uid, peer_uid, rustix::process::geteuid().as_raw());
    if !allowed {
        slog::warn!(log, "refused a connection: its user may not"; "uid" => uid);
    }
    allowed
}

fn is_allowed(uid: u32, peer_uid: u32, own: u32) -> bool {
    uid == peer_uid || uid == own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c12_7_only_the_kubelets_user_and_our_own_may_connect() {
        let (kubelet, own) = (0, 1000);
        assert!(is_allowed(0, kubelet, own) && is_allowed(1000, kubelet, own));
        assert!(!is_allowed(1001, kubelet, own) && !is_allowed(u32::MAX, kubelet, own));
    }
}
