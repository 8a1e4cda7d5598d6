//! One-word answers for probes (rule W7).

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use supervisor::{Snapshot, Verdict};

use super::pages::path_dn;
use crate::problem::Problem;
use crate::sources::App;

/// Whether details are wanted; the shell asks for the token then.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Verbose {
    verbose: Option<String>,
}

/// `GET /livez`: the supervisor's driver is there.
pub(crate) async fn livez(State(app): State<Arc<App>>) -> Response {
    let alive = app.sources.tree.is_alive();
    answer(alive, "ok\n".to_owned(), "the supervisor does not turn\n")
}

/// `GET /readyz` and `GET /healthz`: booted, well enough, not going down.
pub(crate) async fn readyz(State(app): State<Arc<App>>, Query(asked): Query<Verbose>) -> Response {
    let tree = app.sources.moment().tree;
    let ready = tree.boot_finished && !tree.shutting_down && works(tree.verdict);
    if asked.verbose.is_none() {
        return answer(ready, "ok\n".to_owned(), "not ready\n");
    }
    let list = list(&tree);
    answer(ready, list.clone(), &list)
}

/// `GET /healthz/<dn>`: one service works.
pub(crate) async fn healthz_dn(
    State(app): State<Arc<App>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let dn = path_dn(path)?;
    let moment = app.sources.moment();
    let node = moment.find(&dn).ok_or_else(|| app.sources.unknown_dn(&dn))?;
    let why = format!("{}: {}\n", node.health.as_str(), crate::text::visible(&node.reason));
    Ok(answer(works(node.health), "ok\n".to_owned(), &why))
}

fn works(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Ok | Verdict::Degraded)
}

fn list(tree: &Snapshot) -> String {
    let mut out = String::new();
    for node in &tree.nodes {
        let reason = crate::text::visible(&node.reason);
        // Writing to a String cannot fail.
        let _ = match works(node.health) {
            true => writeln!(out, "[+]{} ok", node.dn),
            false => writeln!(out, "[-]{} {}: {reason}", node.dn, node.health.as_str()),
        };
    }
    let _ = writeln!(out, "verdict {}", tree.verdict.as_str());
    out
}

fn answer(good: bool, yes: String, no: &str) -> Response {
    match good {
        true => yes.into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, no.to_owned()).into_response(),
    }
}
