//! Routes, and the shell around all of them.
//!
//! Purpose: which address shows what, and what holds for every answer: methods, access, headers,
//! writes for admins only and never from another site, a panic is a 500 and a count, refusals as a page for browsers and as JSON for
//! programs. Must not know: connections.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use futures::FutureExt;
use http::{HeaderValue, StatusCode, Uri, header};
use maud::Markup;
use serde::Deserialize;

use crate::access::{Access, Credentials, Judgement};
use crate::counters;
use crate::handlers::{api, health, pages, writes};
use crate::page;
use crate::peer::{Peer, Role};
use crate::problem::Problem;
use crate::sources::{App, Sources};

/// Longest path and query that is looked at, in bytes.
const MAX_URI_BYTES: usize = 8 << 10;

const CSP: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                   img-src 'self' data:; form-action 'self'; base-uri 'none'; \
                   frame-ancestors 'none'";

/// The dashboard as a router, for whoever serves connections by other means.
///
/// A request without a [`Peer`] among its extensions counts as one of an unknown peer; wrong tokens of
/// one such shut out all.
pub fn router(sources: Sources, access: Access) -> Router {
    routes(App::new(sources, access, slog::Logger::root(slog::Discard, slog::o!())))
}

pub(crate) fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(pages::overview))
        .route("/dn/{dn}", get(pages::dn))
        .route("/logs", get(pages::logs))
        .route("/logs.txt", get(pages::log_file))
        .route("/volumes", get(pages::volumes))
        .route("/volumes/{id}", get(pages::volume))
        .route("/node", get(pages::node))
        .route("/style.css", get(pages::style))
        .route("/app.js", get(pages::script))
        .route("/restart/{dn}", post(writes::restart_form))
        .route("/level", post(writes::level_form))
        .route("/power", post(writes::power_form))
        .route("/api/v1/restart/{dn}", post(writes::restart))
        .route("/api/v1/level", post(writes::level))
        .route("/api/v1/power", post(writes::power))
        .route("/api/v1/node", get(api::node))
        .route("/api/v1/tree", get(api::tree))
        .route("/api/v1/tree/{dn}", get(api::tree_dn))
        .route("/api/v1/dns", get(api::dns))
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
async fn shell(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let route = match request.extensions().get::<MatchedPath>() {
        Some(path) => path.as_str().to_owned(),
        None => "none".to_owned(),
    };
    let html = wants_html(&request);
    let response = match admit(&app, &mut request) {
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

/// The answer to a request that goes no further; the others learn their peer and role.
fn admit(app: &App, request: &mut Request) -> Option<Response> {
    let uri = request.uri();
    if uri.path().len() + uri.query().map_or(0, str::len) > MAX_URI_BYTES {
        return Some(Problem::uri_too_long(MAX_URI_BYTES).into_response());
    }
    let write = is_write(uri.path());
    let allowed = if write { "POST" } else { "GET, HEAD" };
    if !allowed.split(", ").any(|m| m == request.method()) {
        return Some(Problem::method(allowed).into_response());
    }
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    let role = match peer.role() {
        Some(role) => Some(role),
        None => match by_token(app, request, &peer) {
            Ok(role) => role,
            Err(refusal) => return Some(*refusal),
        },
    };
    if write && let Err(problem) = may_write(request, role) {
        slog::warn!(app.log, "refused: {}", problem.message;
            "path" => crate::text::clipped(request.uri().path(), 128).into_owned(), "peer" => %peer);
        return Some(problem.into_response());
    }
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(role.unwrap_or(Role::Viewer));
    None
}

/// What a request may do by what it shows; none where nothing needs to be shown.
fn by_token(app: &App, request: &Request, peer: &Peer) -> Result<Option<Role>, Box<Response>> {
    let uri = request.uri();
    // A query that cannot be read carries no token; its handler says what is wrong with it.
    let query = Query::<Admission>::try_from_uri(uri).map(|q| q.0).unwrap_or_default();
    if is_open(uri.path(), query.verbose.is_some()) {
        return Ok(None);
    }
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    let shown = Credentials {
        bearer: text(header::AUTHORIZATION).and_then(bearer),
        link: query.token.as_deref().filter(|_| uri.path() == "/"),
        cookies: text(header::COOKIE),
    };
    let problem = match app.access.judge(peer.address(), shown) {
        Judgement::Granted => return Ok(Some(Role::Viewer)),
        Judgement::LoggedIn { cookie } => return Err(Box::new(logged_in(&cookie))),
        Judgement::Missing => Problem::unauthorized("no valid token came with the request"),
        Judgement::Wrong => {
            slog::warn!(app.log, "a wrong dashboard token was sent"; "peer" => %peer);
            Problem::unauthorized("the token is wrong")
        }
        Judgement::Limited { wait_s } => Problem::too_many(wait_s),
    };
    Err(Box::new(problem.into_response()))
}

/// Addresses that change something.
fn is_write(path: &str) -> bool {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    path == "/level" || path == "/power" || path.starts_with("/restart/")
}

/// Whether this request may change something: an admin's, and not sent by a page of another site, which
/// a browser would give the admin's certificate too.
fn may_write(request: &Request, role: Option<Role>) -> Result<(), Problem> {
    if role != Some(Role::Admin) {
        return Err(Problem::forbidden(
            "this is for admins: a token only reads",
            "Use the control socket on the node, its host channel, or an admin client certificate.",
        ));
    }
    let text = |name| request.headers().get(name).map(|v: &HeaderValue| v.to_str().unwrap_or("?"));
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    let host = text(header::HOST).unwrap_or_default();
    let origin = text(header::ORIGIN).map(|o| o.split_once("://").map_or(o, |(_, rest)| rest));
    let foreign = site.is_some_and(|s| !matches!(s, "same-origin" | "none"))
        || origin.is_some_and(|o| o != host);
    if foreign {
        return Err(Problem::forbidden(
            "a page of another site sent this",
            "Open the dashboard itself and do it there.",
        ));
    }
    Ok(())
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
