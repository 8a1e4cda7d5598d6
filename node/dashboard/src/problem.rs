//! The answer to a request that cannot be served.
//!
//! Purpose: one type for every refusal, with a code for programs, a sentence for people and the
//! next step (rule W8, §16). It answers as JSON; the shell of the router turns it into a page for
//! a browser. Must not know: routes.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// Stable word for programs.
    pub(crate) code: &'static str,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do about it; may be empty.
    pub(crate) hint: String,
    extra: Extra,
}

/// The header that some statuses must carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Allow(&'static str),
    Authenticate,
    RetryAfter(u64),
}

impl Extra {
    fn header(self) -> Option<(HeaderName, HeaderValue)> {
        Some(match self {
            Extra::None => return None,
            Extra::Allow(methods) => (header::ALLOW, HeaderValue::from_static(methods)),
            Extra::Authenticate => {
                (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"hamlet\""))
            }
            Extra::RetryAfter(seconds) => (header::RETRY_AFTER, HeaderValue::from(seconds)),
        })
    }
}

#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    code: &'a str,
    message: &'a str,
    hint: &'a str,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, message: String, hint: String) -> Problem {
        Problem { status, code, message, hint, extra: Extra::None }
    }

    fn with(self, extra: Extra) -> Problem {
        Problem { extra, ..self }
    }

    /// 400: a parameter is wrong; the hint names the allowed values.
    pub(crate) fn bad(message: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_request", message.into(), hint.into())
    }

    /// 401: no or wrong credentials.
    pub(crate) fn unauthorized(message: &str) -> Problem {
        let hint = "Open the link that the node printed on its console, or send the token as \
                    `Authorization: Bearer <token>`.";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message.into(), hint.into())
            .with(Extra::Authenticate)
    }

    /// 404: nothing there.
    pub(crate) fn not_found(message: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", message.into(), hint.into())
    }

    /// 403: known, but not allowed to do this.
    pub(crate) fn forbidden(message: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", message.into(), hint.into())
    }

    /// 409: not as things stand.
    pub(crate) fn conflict(message: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, "conflict", message.into(), hint.into())
    }

    /// 405: this address is for other methods.
    pub(crate) fn method(allowed: &'static str) -> Problem {
        let message = "this address cannot be used so".to_owned();
        let hint = format!("Use {}.", allowed.replace(", ", " or "));
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message, hint)
            .with(Extra::Allow(allowed))
    }

    /// 414: the address is too long.
    pub(crate) fn uri_too_long(max: usize) -> Problem {
        let message = format!("the address is longer than {max} bytes");
        Problem::new(StatusCode::URI_TOO_LONG, "uri_too_long", message, "Shorten it.".into())
    }

    /// 429: too many failed attempts.
    pub(crate) fn too_many(wait_s: u64) -> Problem {
        let message = "too many wrong tokens from your address".to_owned();
        let hint = format!("Wait {wait_s} s, then try again.");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message, hint)
            .with(Extra::RetryAfter(wait_s))
    }

    /// 503: all places for streams are taken.
    pub(crate) fn busy(max: usize) -> Problem {
        let message = format!("all {max} live streams are in use");
        let hint = "Close a page that is no longer needed, or wait.".to_owned();
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message, hint)
            .with(Extra::RetryAfter(5))
    }

    /// 500: a defect of the dashboard.
    pub(crate) fn internal() -> Problem {
        let message = "this page could not be made".to_owned();
        let hint = "The cause is in the log of the dashboard. Other pages still work.".to_owned();
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message, hint)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body =
            Body { error: Inner { code: self.code, message: &self.message, hint: &self.hint } };
        let mut response = (self.status, Json(body)).into_response();
        if let Some((name, value)) = self.extra.header() {
            response.headers_mut().insert(name, value);
        }
        response.extensions_mut().insert(self);
        response
    }
}
