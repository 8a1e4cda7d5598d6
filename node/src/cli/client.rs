//! Asking the node: HTTP over its control socket or the network, or its host channel.
//!
//! Owner: one command. Invariants: one connection is one boot of the node, so that a position in the log
//! that was read on it means something on it; nothing is retried here. No task is spawned: whoever waits
//! for an answer drives the connection. Must not know: commands.
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

use super::endpoint::Endpoint;
use super::failure::Failure;

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long an answer may take beyond what the question asks to wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long a stream may be silent; the node says something every 15 s.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);
/// Most bytes of one answer or one line.
const MAX_BYTES: usize = 16 << 20;

/// How the node is asked.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Endpoint,
    token: Option<String>,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Its text.
    pub body: Bytes,
}

/// One connection.
pub struct Connection {
    client: Client,
    way: Way,
}

enum Way {
    Http { sender: SendRequest<Full<Bytes>>, driver: Driver },
    Host { stream: BufReader<UnixStream>, next: u64 },
}

/// Lines that come as they are made.
pub struct Lines {
    client: Client,
    body: Incoming,
    driver: Driver,
    buffer: BytesMut,
}

/// The half of an HTTP connection that must be polled for the other to go on.
struct Driver {
    connection: Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>,
    ended: bool,
}

impl Driver {
    /// Waits for `what` and keeps the connection going meanwhile.
    async fn drive<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = std::pin::pin!(what);
        if !self.ended {
            tokio::select! {
                // Cancel safe: both are only borrowed.
                done = what.as_mut() => return done,
                // Its error reaches whoever waits for an answer.
                _ = self.connection.as_mut() => self.ended = true,
            }
        }
        what.await
    }
}

impl Client {
    /// A client of this endpoint.
    pub fn new(endpoint: Endpoint, token: Option<String>) -> Client {
        Client { endpoint, token }
    }

    /// Whether answers can be followed as they are made.
    pub fn streams(&self) -> bool {
        !matches!(self.endpoint, Endpoint::Host(_))
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody is there.
    pub async fn connect(&self) -> Result<Connection, Failure> {
        let way = match tokio::time::timeout(CONNECT_LIMIT, self.open()).await {
            Ok(way) => way?,
            Err(_) => return Err(self.unreachable("no connection within 10 s")),
        };
        Ok(Connection { client: self.clone(), way })
    }

    async fn open(&self) -> Result<Way, Failure> {
        match &self.endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|e| self.unreachable(e))?;
                self.http(stream).await
            }
            Endpoint::Http(address) => {
                let stream = TcpStream::connect(address).await.map_err(|e| self.unreachable(e))?;
                self.http(stream).await
            }
            Endpoint::Host(path) => {
                let stream = UnixStream::connect(path).await.map_err(|e| self.unreachable(e))?;
                Ok(Way::Host { stream: BufReader::new(stream), next: 1 })
            }
        }
    }

    async fn http<S>(&self, stream: S) -> Result<Way, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let made = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|e| self.unreachable(e))?;
        let driver = Driver { connection: Box::pin(connection), ended: false };
        Ok(Way::Http { sender, driver })
    }

    fn unreachable(&self, why: impl ToString) -> Failure {
        Failure::Unreachable {
            endpoint: self.endpoint.to_string(),
            why: why.to_string(),
            hint: self.endpoint.hint().to_owned(),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let host = match &self.endpoint {
            Endpoint::Http(address) => address.as_str(),
            Endpoint::Unix(_) | Endpoint::Host(_) => "localhost",
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::from(body)).map_err(|e| Failure::Usage(format!("not a request: {e}")))
    }
}

impl Connection {
    /// The answer to a question, whatever its status.
    ///
    /// # Errors
    /// The connection fails before the answer is whole.
    pub async fn get(&mut self, path: &str) -> Result<Reply, Failure> {
        self.ask(Method::GET, path, String::new()).await
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// The connection fails before the answer is whole.
    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Reply, Failure> {
        self.ask(Method::POST, path, body.to_string()).await
    }

    async fn ask(&mut self, method: Method, path: &str, body: String) -> Result<Reply, Failure> {
        let client = self.client.clone();
        match tokio::time::timeout(ANSWER_LIMIT, self.exchange(method, path, body)).await {
            Ok(reply) => reply,
            Err(_) => Err(client.unreachable("no answer within 30 s")),
        }
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Reply, Failure> {
        let client = &self.client;
        match &mut self.way {
            Way::Http { sender, driver } => {
                let request = client.request(method, path, body)?;
                let response = driver.drive(sender.send_request(request)).await;
                let response = response.map_err(|e| client.unreachable(e))?;
                let status = response.status().as_u16();
                let body = http_body_util::Limited::new(response.into_body(), MAX_BYTES);
                let body = driver.drive(body.collect()).await.map_err(|e| client.unreachable(e))?;
                Ok(Reply { status, body: body.to_bytes() })
            }
            Way::Host { stream, next } => {
                let id = *next;
                *next += 1;
                let ask = json!({ "id": id, "op": "api", "method": method.as_str(), "path": path, "body": body });
                let answer = host_exchange(stream, &ask).await;
                host_reply(&answer.map_err(|e| client.unreachable(e))?)
            }
        }
    }

    /// Follows what this address says.
    ///
    /// # Errors
    /// The connection fails, or the node refuses.
    pub async fn follow(self, path: &str) -> Result<Lines, Failure> {
        let client = self.client;
        let Way::Http { mut sender, mut driver } = self.way else {
            return Err(Failure::Usage("the host channel carries no streams".to_owned()));
        };
        let request = client.request(Method::GET, path, String::new())?;
        let response = driver.drive(sender.send_request(request)).await;
        let response = response.map_err(|e| client.unreachable(e))?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let said = driver.drive(body.collect()).await.map_err(|e| client.unreachable(e))?;
            return Err(Reply { status: status.as_u16(), body: said.to_bytes() }.refusal());
        }
        // Dropping the sender would end the connection after this answer, which is all that it is for.
        drop(sender);
        let _ = &mut body;
        Ok(Lines { client, body, driver, buffer: BytesMut::new() })
    }
}

impl Lines {
    /// The next line without its newline; none at the end of the stream.
    ///
    /// # Errors
    /// The connection fails or is silent for too long.
    pub async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            if self.buffer.len() > MAX_BYTES {
                return Err(Failure::Answer("a line that does not end".to_owned()));
            }
            let frame = tokio::time::timeout(SILENCE_LIMIT, self.driver.drive(self.body.frame()));
            match frame.await {
                Err(_) => return Err(self.client.unreachable("silent for 45 s")),
                Ok(None) => return Ok(None),
                Ok(Some(Err(e))) => return Err(self.client.unreachable(e)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// One line there, one line back; lines that answer somebody who left before are passed over.
async fn host_exchange(stream: &mut BufReader<UnixStream>, ask: &Value) -> std::io::Result<Value> {
    stream.get_mut().write_all(format!("{ask}\n").as_bytes()).await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Ok(answer) = serde_json::from_str::<Value>(&line)
            && answer.get("id") == ask.get("id")
        {
            return Ok(answer);
        }
    }
}

fn host_reply(answer: &Value) -> Result<Reply, Failure> {
    let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if answer.get("error").is_some() {
        return Err(Failure::Refused {
            message: text("/error/message").into(),
            hint: text("/error/hint").into(),
        });
    }
    let status = answer.pointer("/ok/status").and_then(Value::as_u64);
    match status.and_then(|s| u16::try_from(s).ok()) {
        Some(status) => Ok(Reply { status, body: Bytes::from(text("/ok/body").to_owned()) }),
        None => Err(Failure::Answer("it has no status".to_owned())),
    }
}

impl Reply {
    /// The JSON of an answer that was granted.
    ///
    /// # Errors
    /// The node refused, or sent something else.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failure> {
        if self.status >= 300 {
            return Err(self.refusal());
        }
        serde_json::from_slice(&self.body).map_err(|e| Failure::Answer(e.to_string()))
    }

    /// What the node says where it refuses.
    pub fn refusal(&self) -> Failure {
        let said: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text =
            |pointer: &str| said.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let message = match text("/error/message") {
            "" => format!("the node answers with status {}", self.status),
            message => message.to_owned(),
        };
        match self.status {
            401 => Failure::Refused {
                message: format!("the node wants to know you: {message}"),
                hint:
                    "Give --token or HAMLET_TOKEN; the node's console and its host channel know it."
                        .to_owned(),
            },
            404 => Failure::Name { message, hint: text("/error/hint").to_owned() },
            _ => Failure::Refused { message, hint: text("/error/hint").to_owned() },
        }
    }
}
