//! Pages for people.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header;
use logtree::Dn;
use maud::Markup;
use serde::Deserialize;

use crate::page::{self, LogPage, LogTail};
use crate::peer::Role;
use crate::problem::Problem;
use crate::query::{self, LogQuery, RawLogQuery};
use crate::reading;
use crate::sources::App;
use crate::stream;

/// Entries on the first page: enough to see what just happened, small enough to stay quick.
const OVERVIEW_ENTRIES: usize = 30;
/// Entries on the page of a DN.
const DN_ENTRIES: usize = 100;

/// The parameters of the first page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OverviewQuery {
    log: Option<String>,
}

/// `GET /`
pub(crate) async fn overview(
    State(app): State<Arc<App>>,
    Extension(role): Extension<Role>,
    query: Result<Query<OverviewQuery>, QueryRejection>,
) -> Result<Markup, Problem> {
    let Query(asked) = query.map_err(bad_query)?;
    let dn = query::dn(asked.log.as_deref().unwrap_or(""))?;
    let slice = tail(&app, &dn, OVERVIEW_ENTRIES)?;
    let choices = app.sources.dns();
    let tail =
        LogTail { dn: &dn, choices: &choices, entries: &slice.entries, cursor: slice.cursor };
    Ok(page::overview_page(&app.sources.moment().known(role), &tail))
}

/// `GET /dn/<dn>`
pub(crate) async fn dn(
    State(app): State<Arc<App>>,
    Extension(role): Extension<Role>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Markup, Problem> {
    let dn = path_dn(path)?;
    let moment = app.sources.moment();
    let node = moment.find(&dn);
    if node.is_none() && !app.sources.dns().iter().any(|d| dn.contains(d)) {
        return Err(app.sources.unknown_dn(&dn));
    }
    let slice = tail(&app, &dn, DN_ENTRIES)?;
    let tail = LogTail { dn: &dn, choices: &[], entries: &slice.entries, cursor: slice.cursor };
    Ok(match node {
        Some(node) => page::dn_page(&moment.known(role), node, &tail),
        None => page::vanished_page(&moment.known(role), &tail),
    })
}

/// `GET /logs`
pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    Extension(role): Extension<Role>,
    query: Result<Query<RawLogQuery>, QueryRejection>,
) -> Result<Markup, Problem> {
    let query = LogQuery::parse(&query.map_err(bad_query)?.0)?;
    let slice = reading::read(&app.sources.logs, &query)?;
    let choices = app.sources.dns();
    let page = LogPage {
        query: &query,
        choices: &choices,
        entries: &slice.entries,
        missed: slice.missed,
        cursor: slice.cursor,
    };
    Ok(page::log_page(&app.sources.moment().known(role), &page))
}

/// `GET /logs.txt`: all that matches, as a file, however much it is.
pub(crate) async fn log_file(
    State(app): State<Arc<App>>,
    query: Result<Query<RawLogQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let query = LogQuery::parse(&query.map_err(bad_query)?.0)?;
    let place = stream::place(&app)?;
    let reader = reading::all(&app.sources.logs, &query)?;
    let parts =
        futures::stream::unfold((reader, query, place), |(mut reader, query, place)| async {
            let text = reading::next_text(&mut reader, &query)?;
            Some((Ok::<_, Infallible>(Bytes::from(text)), (reader, query, place)))
        });
    let node = app.sources.moment().node;
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
    let name: String = node.node_name.chars().map(safe).collect();
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}-log.txt\"")),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

/// `GET /volumes`
pub(crate) async fn volumes(
    State(app): State<Arc<App>>,
    Extension(role): Extension<Role>,
) -> Markup {
    page::volumes_page(&app.sources.moment().known(role))
}

/// `GET /volumes/<id>`
pub(crate) async fn volume(
    State(app): State<Arc<App>>,
    Extension(role): Extension<Role>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Markup, Problem> {
    let Path(id) = path.map_err(bad_path)?;
    let moment = app.sources.moment();
    let volume = moment.volumes.volumes.iter().find(|v| v.id == id).ok_or_else(|| {
        let shown = crate::text::clipped(&id, 128);
        Problem::not_found(format!("there is no volume {shown}"), "All volumes are at /volumes.")
    })?;
    Ok(page::volume_page(&moment.known(role), volume))
}

/// `GET /node`
pub(crate) async fn node(State(app): State<Arc<App>>, Extension(role): Extension<Role>) -> Markup {
    page::node_page(&app.sources.moment().known(role))
}

/// `GET /style.css`
pub(crate) async fn style() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("../../assets/style.css"))
}

/// `GET /app.js`
pub(crate) async fn script() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    (
        [(header::CONTENT_TYPE, "text/javascript; charset=utf-8")],
        include_str!("../../assets/app.js"),
    )
}

fn tail(app: &App, dn: &Dn, n: usize) -> Result<reading::Slice, Problem> {
    reading::read(&app.sources.logs, &LogQuery::newest(dn.clone(), n))
}

/// The DN in an address.
pub(super) fn path_dn(path: Result<Path<String>, PathRejection>) -> Result<Dn, Problem> {
    let Path(text) = path.map_err(bad_path)?;
    query::dn(&text)
}

pub(super) fn bad_path(_: PathRejection) -> Problem {
    Problem::bad("the address is not valid UTF-8", "Encode it as UTF-8.")
}

pub(super) fn bad_query(e: QueryRejection) -> Problem {
    Problem::bad(
        crate::text::clipped(&e.body_text(), 200).into_owned(),
        "Give every parameter once.",
    )
}
