//! JSON, live stream and metrics for programs.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::pages::{bad_query, path_dn};
use crate::json::{self, Conditions, LogEntry, Logs, OfService, OfVolume};
use crate::metrics as metrics_page;
use crate::problem::Problem;
use crate::query::{LogQuery, RawLogQuery, switch};
use crate::reading;
use crate::sources::App;
use crate::stream::{self, Wanted};

/// `GET /api/v1/node`
pub(crate) async fn node(State(app): State<Arc<App>>) -> Response {
    Json(&*app.sources.moment().node).into_response()
}

/// `GET /api/v1/tree`
pub(crate) async fn tree(State(app): State<Arc<App>>) -> Response {
    Json(json::tree(&app.sources.moment().tree)).into_response()
}

/// `GET /api/v1/tree/<dn>`
pub(crate) async fn tree_dn(
    State(app): State<Arc<App>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let dn = path_dn(path)?;
    let moment = app.sources.moment();
    let node = moment.find(&dn).ok_or_else(|| app.sources.unknown_dn(&dn))?;
    Ok(Json(json::detail(node)).into_response())
}

/// `GET /api/v1/dns`: the DNs of the tree and those that have a log.
pub(crate) async fn dns(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "dns": app.sources.dns() }))
}

/// `GET /api/v1/logs`
pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    query: Result<Query<RawLogQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let query = LogQuery::parse(&query.map_err(bad_query)?.0)?;
    if query.follow {
        let body = Body::from_stream(stream::ndjson(&app, &query)?);
        return Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response());
    }
    let slice = if query.wait.is_zero() {
        reading::read(&app.sources.logs, &query)?
    } else {
        let _place = stream::place(&app)?;
        let mut closing = app.closing.subscribe();
        // Cancel safe: nothing is consumed by looking.
        tokio::select! {
            slice = reading::wait_and_read(&app.sources.logs, &query) => slice?,
            _ = closing.wait_for(|closing| *closing) => reading::read(&app.sources.logs, &query)?,
        }
    };
    let logs = Logs {
        entries: slice.entries.iter().map(|e| LogEntry(e)).collect(),
        cursor: slice.cursor,
        missed: slice.missed,
    };
    Ok(Json(logs).into_response())
}

/// `GET /api/v1/volumes`
pub(crate) async fn volumes(State(app): State<Arc<App>>) -> Response {
    Json(&*app.sources.moment().volumes).into_response()
}

/// `GET /api/v1/conditions`
pub(crate) async fn conditions(State(app): State<Arc<App>>) -> Response {
    let moment = app.sources.moment();
    let services = moment.tree.nodes.iter().flat_map(|n| {
        n.conditions.iter().map(|condition| OfService { dn: n.dn.as_str(), condition })
    });
    let volumes = moment.volumes.volumes.iter().flat_map(|v| {
        v.conditions.iter().map(|c| OfVolume { volume: &v.id, kind: &c.kind, message: &c.message })
    });
    let all = Conditions {
        services: services.collect(),
        volumes: volumes.collect(),
        node: &moment.node.conditions,
    };
    Json(all).into_response()
}

/// `GET /api/v1/processes`
pub(crate) async fn processes(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "processes": json::processes(&app.sources.moment().tree) }))
}

/// `GET /api/v1/transitions`
pub(crate) async fn transitions(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "transitions": json::transitions(&app.sources.moment().tree) }))
}

/// Which parts a stream carries.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Parts {
    tree: Option<String>,
    logs: Option<String>,
}

/// `GET /api/v1/stream`
pub(crate) async fn stream(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    parts: Result<Query<Parts>, QueryRejection>,
    query: Result<Query<RawLogQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(parts) = parts.map_err(bad_query)?;
    let query = LogQuery::parse(&query.map_err(bad_query)?.0)?;
    let logs = switch("logs", parts.logs.as_deref(), false)?;
    let tree = switch("tree", parts.tree.as_deref(), !logs)?;
    let resume = headers.get("last-event-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let wanted = Wanted { tree, logs: logs.then_some(query), resume };
    let body = Body::from_stream(stream::sse(&app, wanted)?);
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let page = metrics_page::page(&app).map_err(|_| Problem::internal())?;
    Ok(([(header::CONTENT_TYPE, metrics_page::CONTENT_TYPE)], page).into_response())
}
