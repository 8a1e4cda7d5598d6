//! Readiness of the worker's children, all of it on this machine.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use supervisor::Probe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

const TIMEOUT: Duration = Duration::from_secs(5);
/// An answer's first line is all that is wanted.
const MAX_ANSWER: u64 = 4096;

/// GET on a loopback health port without TLS; 200 means ready. The kubelet and kube-proxy serve
/// nothing else there.
pub struct HealthPort {
    /// Port on 127.0.0.1.
    pub port: u16,
}

impl HealthPort {
    async fn ask(&self) -> Result<(), String> {
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port);
        let mut stream =
            TcpStream::connect(at).await.map_err(|e| format!("{at} does not answer: {e}"))?;
        let request = "GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
        let mut answer = Vec::new();
        let talk = async {
            stream.write_all(request.as_bytes()).await?;
            stream.take(MAX_ANSWER).read_to_end(&mut answer).await
        };
        talk.await.map_err(|e| format!("{at}/healthz: {e}"))?;
        status(&answer).map_err(|line| format!("{at}/healthz answers {line}"))
    }
}

impl Probe for HealthPort {
    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        within(self.ask()).boxed()
    }
}

/// A gRPC server on a unix socket: ready when it begins to speak HTTP/2. containerd binds its
/// socket before it serves, so a connection alone proves nothing.
pub struct GrpcSocket {
    /// The socket.
    pub path: PathBuf,
}

/// The client's preface and an empty SETTINGS frame (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

impl GrpcSocket {
    async fn ask(&self) -> Result<(), String> {
        let path = self.path.display();
        let mut stream =
            UnixStream::connect(&self.path).await.map_err(|e| format!("{path}: {e}"))?;
        let mut frame = [0_u8; 9];
        let talk = async {
            stream.write_all(PREFACE).await?;
            stream.read_exact(&mut frame).await
        };
        talk.await.map_err(|e| format!("{path} does not speak yet: {e}"))?;
        // The server's first frame is SETTINGS, type 4.
        if frame[3] == 4 { Ok(()) } else { Err(format!("{path} does not speak HTTP/2")) }
    }
}

impl Probe for GrpcSocket {
    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        within(self.ask()).boxed()
    }
}

async fn within(ask: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    match tokio::time::timeout(TIMEOUT, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    }
}

/// Ok for a 200; otherwise the status line as far as it can be shown.
fn status(answer: &[u8]) -> Result<(), String> {
    let line = answer.split(|b| *b == b'\r' || *b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some(version), Some("200")) if version.starts_with("HTTP/1.") => Ok(()),
        _ => Err(line.chars().filter(|c| !c.is_control()).take(100).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_is_ready() {
        assert_eq!(status(b"HTTP/1.0 200 OK\r\n\r\nok"), Ok(()));
        assert_eq!(
            status(b"HTTP/1.1 500 Internal Server Error\r\n"),
            Err("HTTP/1.1 500 Internal Server Error".to_owned())
        );
        assert!(status(b"").is_err());
        assert!(status(b"SSH-2.0 200 \r\n").is_err());
        assert!(status(b"\xff\xfe\x00").is_err());
    }

    #[tokio::test]
    async fn h3_a_closed_port_is_not_ready_and_says_which() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = HealthPort { port }.ready().await.unwrap_err();
        assert!(error.contains(&port.to_string()), "{error}");
    }

    #[tokio::test]
    async fn h3_a_socket_that_accepts_but_says_nothing_is_not_ready() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let probe = GrpcSocket { path };
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            drop(stream);
        };
        let (answer, ()) = tokio::join!(probe.ready(), serve);
        assert!(answer.unwrap_err().contains("does not speak"));
    }

    #[tokio::test]
    async fn h3_a_settings_frame_is_ready() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let probe = GrpcSocket { path };
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            stream
        };
        let (answer, _stream) = tokio::join!(probe.ready(), serve);
        assert_eq!(answer, Ok(()));
    }
}
