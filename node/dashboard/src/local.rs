//! The dashboard's routes without a connection, for the host's own channel.
//!
//! Purpose: whoever speaks another protocol than HTTP asks the same questions and gets the same answers.
//! Owner: the Runnable that serves that protocol. Invariants: an answer is whole or an error; nothing is
//! streamed. Must not know: that protocol.

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{HeaderValue, Method, Request, StatusCode, header};
use tower::ServiceExt;

use crate::access::Access;
use crate::peer::Peer;
use crate::router::routes;
use crate::sources::{App, Sources};

/// Most bytes of one answer: 2000 entries of ordinary length are a tenth of it.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// One question.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// `GET`, `HEAD` or `POST`.
    pub method: String,
    /// Path and query, `/api/v1/tree`.
    pub path: String,
    /// JSON, for `POST`.
    pub body: String,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The text.
    pub body: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Method or path are none.
    #[error("{0} is no request")]
    Request(String),
    /// The answer would not end.
    #[error("this answer never ends; ask for logs with after and wait instead")]
    Endless,
    /// The answer is larger than a line should be.
    #[error("the answer has more than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
}

/// The routes. Clones share their counters.
#[derive(Clone)]
pub struct Local {
    routes: Router,
}

impl Local {
    /// Routes over these sources; what they log goes to `log`.
    pub fn new(sources: Sources, access: Access, log: slog::Logger) -> Local {
        Local { routes: routes(App::new(sources, access, log)) }
    }

    /// Asks as `peer`.
    ///
    /// # Errors
    /// See [`AskError`]. A refusal by the dashboard is an answer, with its status.
    pub async fn ask(&self, peer: Peer, ask: Ask) -> Result<Reply, AskError> {
        let bad = || AskError::Request(format!("{} {}", ask.method, ask.path));
        let method = Method::from_bytes(ask.method.as_bytes()).map_err(|_| bad())?;
        let request = Request::builder()
            .method(method)
            .uri(&ask.path)
            .header(header::CONTENT_TYPE, "application/json")
            .extension(peer)
            .body(Body::from(ask.body.clone()))
            .map_err(|_| bad())?;
        // The error type of a router is empty.
        let Ok(response) = self.routes.clone().oneshot(request).await;
        if is_endless(response.headers().get(header::CONTENT_TYPE)) {
            return Err(AskError::Endless);
        }
        let status = response.status();
        let body = to_bytes(response.into_body(), MAX_ANSWER_BYTES).await;
        let body = body.map_err(|_| AskError::TooLong)?;
        Ok(Reply { status: status.as_u16(), body: String::from_utf8_lossy(&body).into_owned() })
    }
}

impl Reply {
    /// Whether it was granted.
    pub fn is_success(&self) -> bool {
        StatusCode::from_u16(self.status).is_ok_and(|s| s.is_success())
    }
}

fn is_endless(kind: Option<&HeaderValue>) -> bool {
    let kind = kind.map(HeaderValue::as_bytes);
    matches!(kind, Some(b"text/event-stream" | b"application/x-ndjson"))
}
