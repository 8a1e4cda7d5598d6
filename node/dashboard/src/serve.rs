//! The dashboard as a Runnable: listens, owns every connection, drains on stop.
//!
//! Purpose: rule W10. Connections live in a `JoinSet` of the Runnable: a panic in one ends that
//! one and is counted, and none outlives its incarnation. Hostile clients cost at most
//! [`MAX_CONNECTIONS`] places, each for a bounded time: [`HEADER_TIME`] to send a request,
//! [`STALL_TIME`] to take the next part of an answer.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context as Poller, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use supervisor::{
    Cancelled, Condition, Context, Handle, Name, Outcome, Placement, Policy, Running, Service,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Sleep, sleep, timeout};
use tower::ServiceExt;

use crate::access::Access;
use crate::router::{Peer, routes};
use crate::sources::{App, Sources};

/// Most connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
/// Most bytes of a request's head.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Time to send a request's head, and longest idle time of a connection.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Time to take what is being sent.
const STALL_TIME: Duration = Duration::from_secs(30);
/// Time for connections to end by themselves when the dashboard stops.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Pause after a failed accept, so that a lack of file descriptors is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Stage of the shutdown in which the dashboard stops: late, so that it shows the others go.
const STOP_STAGE: u8 = 8;

/// Why the dashboard does not run.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot listen on {listen}")]
    Bind {
        listen: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// The dashboard as a service, on a thread of its own. Its death degrades the node at most.
pub fn service(sources: Sources, access: Access, listen: SocketAddr) -> Service {
    let run = move |ctx| run(ctx, sources.clone(), access.clone(), listen);
    Service::new(Name::from_static("dashboard"), run).policy(Policy {
        placement: Placement::OwnThread,
        critical: false,
        stop_stage: Some(STOP_STAGE),
        ..Policy::default()
    })
}

async fn run(ctx: Context, sources: Sources, access: Access, listen: SocketAddr) -> Outcome {
    let listener =
        TcpListener::bind(listen).await.map_err(|source| ServeError::Bind { listen, source })?;
    let app = App::new(sources, access, ctx.log().clone());
    let running = ctx.healthy();
    if let Ok(bound) = listener.local_addr() {
        slog::info!(running.log(), "listening"; "address" => %bound);
        running.health().note(&format!("listening on {bound}"));
    }
    let mut connections = JoinSet::new();
    let cancelled = accept_all(&running, &app, &listener, &mut connections).await;
    drop(listener);
    app.closing.send_replace(true);
    let drained = timeout(DRAIN_TIME, async {
        while let Some(ended) = connections.join_next().await {
            ended_connection(&app, ended);
        }
    });
    if drained.await.is_err() {
        slog::warn!(running.log(), "connections dropped"; "count" => connections.len());
        connections.shutdown().await;
    }
    Err(cancelled.into())
}

/// Accepts until asked to stop.
async fn accept_all(
    running: &Running,
    app: &Arc<App>,
    listener: &TcpListener,
    connections: &mut JoinSet<()>,
) -> Cancelled {
    let stop = running.stop();
    let routes = routes(app.clone());
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        tokio::select! {
            // All arms are cancel safe: `accept` gives its place back if dropped before a
            // connection came, and the others only wait.
            cancelled = stop.stopped() => return cancelled,
            Some(ended) = connections.join_next() => ended_connection(app, ended),
            accepted = accept(listener, &places) => match accepted {
                Ok((stream, peer, place)) => {
                    running.health().clear("AcceptFailing");
                    let connection = connection(app.clone(), routes.clone(), stream, peer);
                    let dn = running.dn().clone();
                    connections.spawn(logtree::with_dn(dn, async move {
                        connection.await;
                        drop(place);
                    }));
                }
                Err(e) => {
                    let why = format!("no connection can be accepted: {e}");
                    running.health().set(Condition::degraded("AcceptFailing", why));
                    if let Err(cancelled) = stop.race(sleep(ACCEPT_PAUSE)).await {
                        return cancelled;
                    }
                }
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}

fn ended_connection(app: &App, ended: Result<(), JoinError>) {
    if ended.is_err_and(|e| e.is_panic()) {
        app.counters.panics.inc();
        slog::error!(app.log, "a connection panicked");
    }
}

/// Serves one connection to its end.
async fn connection(app: Arc<App>, routes: Router, stream: TcpStream, peer: SocketAddr) {
    // Live events are small and must not wait for company.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let routes = routes.clone();
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer.ip()));
            routes.oneshot(request).await
        }
    });
    let mut closing = app.closing.subscribe();
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream)), service)
    );
    let ended: Result<(), Result<(), hyper::Error>> = tokio::select! {
        // Cancel safe: the connection is only borrowed.
        ended = connection.as_mut() => Err(ended),
        _ = closing.wait_for(|closing| *closing) => Ok(()),
    };
    let ended = match ended {
        Err(ended) => ended,
        Ok(()) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // A browser that closes a page cuts its stream: that is no news.
    if let Err(e) = ended
        && !e.is_incomplete_message()
    {
        slog::debug!(app.log, "connection ended early"; "peer" => %peer, "error" => %e);
    }
}

/// A stream that fails when its reader takes nothing for [`STALL_TIME`].
struct Patient<T> {
    stream: T,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    fn new(stream: T) -> Patient<T> {
        Patient { stream, stalled: None }
    }

    /// Passes progress on; without progress counts the time.
    fn patience<R>(
        &mut self,
        cx: &mut Poller<'_>,
        poll: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL_TIME)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Poller<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Poller<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.patience(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Poller<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.patience(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        self.patience(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.patience(cx, poll)
    }
}
