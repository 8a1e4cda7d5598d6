//! The dashboard as a Runnable: listens, owns every connection, drains on stop.
//!
//! Purpose: rule W10, and the two ways in of W6: TCP for readers, the control socket for the node's own
//! root user. Connections live in a `JoinSet` of the Runnable: a panic in one ends that
//! one and is counted, and none outlives its incarnation. Hostile clients cost at most
//! [`MAX_CONNECTIONS`] places, each for a bounded time: [`HEADER_TIME`] to send a request, half a
//! minute to take the next part of an answer. They cannot shut out the control socket, which has
//! places of its own.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use supervisor::{
    Cancelled, Condition, Context, Handle, Name, Outcome, Placement, Policy, Running, Service,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

use crate::access::Access;
use crate::patient::Patient;
use crate::peer::Peer;
use crate::router::routes;
use crate::sources::{App, Sources};

/// Most connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
/// Most connections at the control socket.
const MAX_CONTROL_CONNECTIONS: usize = 16;
/// Who may use the control socket.
const ROOT: u32 = 0;
/// Most bytes of a request's head.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Time to send a request's head, and longest idle time of a connection.
const HEADER_TIME: Duration = Duration::from_secs(10);
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
    #[error("cannot make the control socket {}", path.display())]
    Control {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Where the dashboard listens.
#[derive(Debug, Clone)]
pub struct Listen {
    /// For readers: pages, JSON and metrics with a token.
    pub tcp: SocketAddr,
    /// For the root user of the node, who may do everything: the path of a unix socket, made anew with
    /// mode 0600 by each incarnation. Its folder must exist and belong to root alone.
    pub control: Option<PathBuf>,
}

impl From<SocketAddr> for Listen {
    /// TCP only.
    fn from(tcp: SocketAddr) -> Listen {
        Listen { tcp, control: None }
    }
}

/// The dashboard as a service, on a thread of its own. Its death degrades the node at most.
pub fn service(sources: Sources, access: Access, listen: impl Into<Listen>) -> Service {
    let listen = listen.into();
    let run = move |ctx| run(ctx, sources.clone(), access.clone(), listen.clone());
    Service::new(Name::from_static("dashboard"), run).policy(Policy {
        placement: Placement::OwnThread,
        critical: false,
        stop_stage: Some(STOP_STAGE),
        ..Policy::default()
    })
}

async fn run(ctx: Context, sources: Sources, access: Access, listen: Listen) -> Outcome {
    let doors = Doors::open(&listen).await?;
    let app = App::new(sources, access, ctx.log().clone());
    let running = ctx.healthy();
    if let Ok(bound) = doors.tcp.local_addr() {
        slog::info!(running.log(), "listening"; "address" => %bound);
        running.health().note(&format!("listening on {bound}"));
    }
    let mut connections = JoinSet::new();
    let cancelled = accept_all(&running, &app, &doors, &mut connections).await;
    drop(doors);
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

/// What is listened on, with the places of each.
struct Doors {
    tcp: TcpListener,
    tcp_places: Arc<Semaphore>,
    control: Option<UnixListener>,
    control_places: Arc<Semaphore>,
}

/// A connection whose peer is known, or one that is refused.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Control(UnixStream),
}

impl Doors {
    async fn open(listen: &Listen) -> Result<Doors, ServeError> {
        let bind = |source| ServeError::Bind { listen: listen.tcp, source };
        let control = listen.control.as_deref().map(|path| {
            control_socket(path)
                .map_err(|source| ServeError::Control { path: path.to_owned(), source })
        });
        Ok(Doors {
            tcp: TcpListener::bind(listen.tcp).await.map_err(bind)?,
            tcp_places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            control: control.transpose()?,
            control_places: Arc::new(Semaphore::new(MAX_CONTROL_CONNECTIONS)),
        })
    }

    /// The next connection of either. Cancel safe: a place is given back if dropped before a
    /// connection came.
    async fn accept(&self) -> io::Result<(Accepted, OwnedSemaphorePermit)> {
        let tcp = async {
            let place = place(&self.tcp_places).await?;
            let (stream, peer) = self.tcp.accept().await?;
            Ok((Accepted::Tcp(stream, peer), place))
        };
        let control = async {
            let Some(listener) = &self.control else { return std::future::pending().await };
            let place = place(&self.control_places).await?;
            let (stream, _) = listener.accept().await?;
            Ok((Accepted::Control(stream), place))
        };
        tokio::select! {
            accepted = tcp => accepted,
            accepted = control => accepted,
        }
    }
}

async fn place(places: &Arc<Semaphore>) -> io::Result<OwnedSemaphorePermit> {
    // The semaphores are never closed.
    places.clone().acquire_owned().await.map_err(io::Error::other)
}

/// Makes the socket under another name first: at its own it never stands with other permissions, and
/// one that an earlier incarnation has left is replaced in one step.
fn control_socket(path: &Path) -> io::Result<UnixListener> {
    let fresh = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
    fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Accepts until asked to stop.
async fn accept_all(
    running: &Running,
    app: &Arc<App>,
    doors: &Doors,
    connections: &mut JoinSet<()>,
) -> Cancelled {
    let stop = running.stop();
    let routes = routes(app.clone());
    loop {
        tokio::select! {
            // All arms are cancel safe: see `accept`; the others only wait.
            cancelled = stop.stopped() => return cancelled,
            Some(ended) = connections.join_next() => ended_connection(app, ended),
            accepted = doors.accept() => match accepted {
                Ok((accepted, place)) => {
                    running.health().clear("AcceptFailing");
                    let connection = serve_accepted(app.clone(), routes.clone(), accepted);
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

/// Serves one connection by who is at its other end.
async fn serve_accepted(app: Arc<App>, routes: Router, accepted: Accepted) {
    match accepted {
        Accepted::Tcp(stream, peer) => {
            // Live events are small and must not wait for company.
            let _ = stream.set_nodelay(true);
            connection(app, routes, stream, Peer::Network(peer.ip())).await;
        }
        // The mode of the socket already keeps the others out; this is the second lock.
        Accepted::Control(stream) => match stream.peer_cred() {
            Ok(who) if who.uid() == ROOT => {
                let peer = Peer::Socket { pid: who.pid().unwrap_or_default() };
                connection(app, routes, stream, peer).await;
            }
            Ok(who) => {
                let (uid, pid) = (who.uid(), who.pid());
                slog::warn!(app.log, "control socket refused"; "uid" => uid, "pid" => pid);
            }
            Err(e) => slog::warn!(app.log, "control socket refused: {}", e),
        },
    }
}

fn ended_connection(app: &App, ended: Result<(), JoinError>) {
    if ended.is_err_and(|e| e.is_panic()) {
        app.counters.panics.inc();
        slog::error!(app.log, "a connection panicked");
    }
}

/// Serves one connection to its end.
async fn connection<S>(app: Arc<App>, routes: Router, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let who = peer.clone();
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (routes, who) = (routes.clone(), who.clone());
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(who);
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
