//! The dashboard as a Runnable, on real sockets with a paused clock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod fixture;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use dashboard::Listen;
use fixture::{TOKEN, World};
use jiff::Timestamp;
use logtree::Dn;
use supervisor::testing::Harness;
use supervisor::{Placement, Service, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::Instant;

const DN: &str = "root.dashboard";

fn world() -> World {
    let now = Timestamp::from_second(1_795_276_800).unwrap();
    fixture::world(fixture::well(now), now)
}

fn service(world: &World, listen: SocketAddr) -> Service {
    dashboard::service(world.sources.clone(), world.access.clone(), listen)
}

/// A port that was free a moment ago.
async fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap()
}

/// What comes back for these bytes until the server closes.
async fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn request(path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

#[tokio::test(start_paused = true)]
async fn w10_the_service_runs_on_its_own_thread_and_stops_late() {
    let service = service(&world(), free_port().await);
    assert_eq!(service.policy.placement, Placement::OwnThread);
    assert_eq!(service.policy.stop_stage, Some(8));
    assert!(!service.policy.critical);
}

#[tokio::test(start_paused = true)]
async fn h3_healthy_is_said_after_the_socket_is_bound() {
    let (world, listen) = (world(), free_port().await);
    let harness = Harness::start(vec![service(&world, listen)]);
    harness.reached(DN, State::Healthy).await;
    let answer = exchange(listen, &request("/api/v1/node")).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\"node_name\":\"hamlet-0\""), "{answer}");
    assert_eq!(harness.node(DN).note.as_deref(), Some(format!("listening on {listen}").as_str()));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn x5_a_taken_port_is_a_death_and_a_freed_one_heals_it() {
    let (world, listen) = (world(), free_port().await);
    let taken = TcpListener::bind(listen).await.unwrap();
    let harness = Harness::start(vec![service(&world, listen)]);
    harness.may_die(DN);
    harness.reached("root", State::Healthy).await;
    while harness.node(DN).deaths < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let why = harness.node(DN).last_death.clone().unwrap().text;
    assert!(why.contains(&format!("cannot listen on {listen}")), "{why}");
    drop(taken);
    harness.reached(DN, State::Healthy).await;
    let answer = exchange(listen, &request("/livez")).await;
    assert!(answer.ends_with("ok\n"), "{answer}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn w10_half_a_request_is_cut_after_10_s_and_a_huge_head_is_431() {
    let (world, listen) = (world(), free_port().await);
    let harness = Harness::start(vec![service(&world, listen)]);
    harness.reached(DN, State::Healthy).await;
    let begin = Instant::now();
    exchange(listen, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow:").await;
    let took = begin.elapsed();
    assert!((10..12).contains(&took.as_secs()), "{took:?}");
    let huge = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n", "x".repeat(40 << 10));
    let answer = exchange(listen, huge.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 ") || answer.is_empty(), "{answer}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn w10_300_silent_connections_do_not_shut_out_a_reader_for_longer_than_their_timeout() {
    let (world, listen) = (world(), free_port().await);
    let harness = Harness::start(vec![service(&world, listen)]);
    harness.reached(DN, State::Healthy).await;
    let mut hostile = Vec::new();
    for _ in 0..300 {
        hostile.push(TcpStream::connect(listen).await.unwrap());
    }
    let begin = Instant::now();
    let answer = exchange(listen, &request("/livez")).await;
    assert!(answer.ends_with("ok\n"), "{answer}");
    assert!(begin.elapsed() <= Duration::from_secs(21), "{:?}", begin.elapsed());
    assert_eq!(harness.node(DN).deaths, 0);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn w5_a_client_that_reads_nothing_is_closed_after_30_s() {
    let (world, listen) = (world(), free_port().await);
    // More than the kernel buffers for one connection.
    for n in 0..30 {
        let log = world.logs.logger(&Dn::new(&format!("flood.n{n}")).unwrap());
        (0..220).for_each(|_| slog::info!(log, "{}", "x".repeat(4096)));
    }
    let harness = Harness::start(vec![service(&world, listen)]);
    harness.reached(DN, State::Healthy).await;
    let mut stream = TcpStream::connect(listen).await.unwrap();
    stream.write_all(&request("/api/v1/stream?logs=on&after=0")).await.unwrap();
    let streams = async || {
        let page = exchange(listen, &request("/metrics")).await;
        let line = page.lines().find(|l| l.starts_with("hamlet_dashboard_streams ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(streams().await, "1");
    tokio::time::sleep(Duration::from_secs(28)).await;
    assert_eq!(streams().await, "1");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(streams().await, "0");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn x6_an_open_stream_ends_when_the_dashboard_stops() {
    let (world, listen) = (world(), free_port().await);
    let harness = Harness::start(vec![service(&world, listen)]);
    harness.reached(DN, State::Healthy).await;
    let mut stream = TcpStream::connect(listen).await.unwrap();
    stream.write_all(&request("/api/v1/stream")).await.unwrap();
    let mut head = [0; 512];
    let n = stream.read(&mut head).await.unwrap();
    assert!(String::from_utf8_lossy(&head[..n]).contains("text/event-stream"));
    let begin = Instant::now();
    harness.end().await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "the stream was cut, not ended");
}

#[tokio::test(start_paused = true)]
async fn w6_the_control_socket_is_roots_alone_and_needs_no_token() {
    let (world, dir) = (world(), tempfile::tempdir().unwrap());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("control.sock");
    // As a killed incarnation leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = Listen { tcp: free_port().await, control: Some(path.clone()) };
    let service = dashboard::service(world.sources.clone(), world.access.clone(), listen);
    let harness = Harness::start(vec![service]);
    harness.reached(DN, State::Healthy).await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let root = rustix::process::geteuid().is_root();
    let ask = "POST /api/v1/restart/root.power HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(ask.as_bytes()).await.unwrap();
    let _ = stream.read_to_string(&mut answer).await;
    assert_eq!(answer.starts_with("HTTP/1.1 200"), root, "{answer}");
    assert_eq!(world.asked.lock().len(), usize::from(root));
    if root {
        assert_eq!(as_nobody(&path, ask), Err(io::ErrorKind::PermissionDenied));
        // Even where the mode would let it in.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let path = path.clone();
        #[expect(clippy::disallowed_methods, reason = "the test itself waits for it")]
        let refused = tokio::task::spawn_blocking(move || as_nobody(&path, ask)).await.unwrap();
        assert!(matches!(&refused, Ok(text) if text.is_empty()) || refused.is_err(), "{refused:?}");
        assert_eq!(world.asked.lock().len(), 1);
    }
    harness.end().await;
}

/// The answer to another user; only the thread that asks becomes that user.
fn as_nobody(path: &Path, ask: &str) -> Result<String, io::ErrorKind> {
    let (path, ask) = (path.to_owned(), ask.to_owned());
    let asking = move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).map_err(io::Error::from)?;
        let mut stream = std::os::unix::net::UnixStream::connect(path)?;
        stream.write_all(ask.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    #[expect(clippy::disallowed_methods, reason = "a thread that gives up its user must end")]
    let thread = std::thread::spawn(asking);
    thread.join().unwrap().map_err(|e: io::Error| e.kind())
}
