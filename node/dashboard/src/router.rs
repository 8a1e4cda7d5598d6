//! Routes, and the shell around all of them.
//!
//! Purpose: which address shows what, and what holds for every answer: GET and HEAD only, access,
//! headers, a panic is a 500 and a count, refusals as a page for browsers and as JSON for
//! programs. Must not know: connections.

use std::net::{IpAddr, Ipv4Addr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use futures::FutureExt;
use http::{HeaderValue, Method, StatusCode, Uri, header};
use maud::Markup;
use serde::Deserialize;

use crate::access::{Access, Credentials, Judgement};
use crate::counters;
use crate::handlers::{api, health, pages};
use crate::page;
use crate::problem::Problem;
use crate::sources::{App, Sources};

/// Longest path and query that is looked at, in bytes.
const MAX_URI_BYTES: usize = 8 << 10;

const CSP: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                   img-src 'self' data:; form-action 'self'; base-uri 'none'; \
                   frame-ancestors 'none'";

/// Who sent the request; set by whoever accepts connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// The dashboard as a router, for whoever serves connections by other means.
///
/// Requests count as those of one unknown peer; wrong tokens of one shut out all.
pub fn router(sources: Sources, access: Access) -> Router {
    routes(App::new(sources, access, slog::Logger::root(slog::Discard, slog::o!())))
}

pub(crate) fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(pages::overview))
        .route("/dn/{dn}", get(pages::dn))
        .route("/logs", get(pages::logs))
        .route("/volumes", get(pages::volumes))
        .route("/volumes/{id}", get(pages::volume))
        .route("/node", get(pages::node))
        .route("/style.css", get(pages::style))
        .route("/app.js", get(pages::script))
        .route("/api/v1/node", get(api::node))
        .route("/api/v1/tree", get(api::tree))
        .route("/api/v1/tree/{dn}", get(api::tree_dn))
        .route("/api/v1/logs", get(api::logs))
        .route("/api/v1/volumes", get(api::volumes))
        .route("/api/v1/conditions", get(api::conditions))
        .route("/api/v1/processes", get(api::processes))
        .route("/api/v1/transitions", get(api::transitions))
        .route("/api/v1/stream", get(api::stream))
        .route("/metrics", get(api::metrics))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/healthz", get(health::readyz))
        .route("/healthz/{dn}", get(health::healthz_dn))
        .fallback(nothing_here)
        .layer(from_fn_with_state(app.clone(), shell))
        .with_state(app)
}

async fn nothing_here(uri: Uri) -> Problem {
    let path = crate::text::clipped(uri.path(), 128);
    Problem::not_found(format!("there is nothing at {path}"), "The first page links to all others.")
}

/// What holds for every request and answer.
async fn shell(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = match request.extensions().get::<MatchedPath>() {
        Some(path) => path.as_str().to_owned(),
        None => "none".to_owned(),
    };
    let html = wants_html(&request);
    let response = match admit(&app, &request) {
        Some(refusal) => refusal,
        None => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                app.counters.panics.inc();
                slog::error!(app.log, "a request handler panicked"; "route" => &route);
                Problem::internal().into_response()
            }
        },
    };
    let mut response = if html { as_page(response) } else { response };
    set_headers(&mut response);
    let code = response.status().as_u16();
    app.counters.requests.get_or_create(&counters::Request { route, code }).inc();
    response
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Admission {
    token: Option<String>,
    verbose: Option<String>,
}

/// The answer to a request that goes no further.
fn admit(app: &App, request: &Request) -> Option<Response> {
    let uri = request.uri();
    if uri.path().len() + uri.query().map_or(0, str::len) > MAX_URI_BYTES {
        return Some(Problem::uri_too_long(MAX_URI_BYTES).into_response());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Some(Problem::method().into_response());
    }
    // A query that cannot be read carries no token; its handler says what is wrong with it.
    let query = Query::<Admission>::try_from_uri(uri).map(|q| q.0).unwrap_or_default();
    if is_open(uri.path(), query.verbose.is_some()) {
        return None;
    }
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let shown = Credentials {
        bearer: text(header::AUTHORIZATION).and_then(bearer),
        link: query.token.as_deref().filter(|_| uri.path() == "/"),
        cookies: text(header::COOKIE),
    };
    let peer = request.extensions().get::<Peer>().map_or(Ipv4Addr::UNSPECIFIED.into(), |p| p.0);
    match app.access.judge(peer, shown) {
        Judgement::Granted => None,
        Judgement::LoggedIn { cookie } => Some(logged_in(&cookie)),
        Judgement::Missing => {
            Some(Problem::unauthorized("no valid token came with the request").into_response())
        }
        Judgement::Wrong => {
            slog::warn!(app.log, "a wrong dashboard token was sent"; "peer" => %peer);
            Some(Problem::unauthorized("the token is wrong").into_response())
        }
        Judgement::Limited { wait_s } => Some(Problem::too_many(wait_s).into_response()),
    }
}

/// What needs no token: two answers of one word, and files that are the same on every node.
fn is_open(path: &str, verbose: bool) -> bool {
    match path {
        "/livez" | "/readyz" => !verbose,
        "/style.css" | "/app.js" => true,
        _ => false,
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn logged_in(cookie: &str) -> Response {
    let mut response = Redirect::to("/").into_response();
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Whether the answer is for a person: never under the addresses made for programs.
fn wants_html(request: &Request) -> bool {
    let path = request.uri().path();
    let for_programs = ["/api/", "/metrics", "/livez", "/readyz", "/healthz"];
    let accepts = request.headers().get(header::ACCEPT).and_then(|v| v.to_str().ok());
    !for_programs.iter().any(|p| path.starts_with(p))
        && accepts.is_some_and(|a| a.contains("text/html"))
}

/// Turns a refusal into a page.
fn as_page(mut response: Response) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let page: Markup = match problem.status {
        StatusCode::UNAUTHORIZED => page::login_page(&problem),
        _ => page::refusal_page(&problem),
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    (parts.status, parts.headers, page).into_response()
}

fn set_headers(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CSP),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
