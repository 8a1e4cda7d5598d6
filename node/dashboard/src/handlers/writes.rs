//! What changes something: restart a service, set log levels, end the node (rule W9).
//!
//! Purpose: one implementation behind two addresses each, `/api/v1/…` for programs (JSON) and `/…` for
//! the forms of the pages (back to the page). The shell has admitted admins only, so nothing here
//! asks again. Every request is logged with who sent it. Must not know: how it is carried out.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Form, Json};
use http::header;
use logtree::{Dn, Level};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use supervisor::RestartError;

use super::pages::path_dn;
use crate::control::{PowerAction, PowerRequest};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::query;
use crate::sources::App;

/// How long a level holds where the request says nothing.
const LEVEL_TIME_S: u64 = 15 * 60;
/// Longest time a level may hold; 0 means until the next boot.
const MAX_LEVEL_TIME_S: u64 = 7 * 24 * 3600;

/// `POST /api/v1/restart/<dn>`
pub(crate) async fn restart(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let dn = path_dn(path)?;
    restart_dn(&app, &peer, &dn).await?;
    Ok(Json(json!({ "restarted": dn })))
}

/// `POST /restart/<dn>`
pub(crate) async fn restart_form(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let dn = path_dn(path)?;
    restart_dn(&app, &peer, &dn).await?;
    Ok(Redirect::to(&format!("/dn/{dn}")).into_response())
}

async fn restart_dn(app: &App, peer: &Peer, dn: &Dn) -> Result<(), Problem> {
    let done = app.sources.controls.restart(dn.clone()).await;
    match &done {
        Ok(()) => slog::info!(app.log, "restart of {} requested", dn; "peer" => %peer),
        Err(e) => slog::warn!(app.log, "restart refused: {}", e; "peer" => %peer),
    }
    done.map_err(|e| match e {
        RestartError::Unknown(dn) => app.sources.unknown_dn(&dn),
        RestartError::Root => {
            Problem::bad(e.to_string(), "POST power with action=reboot does that.")
        }
        other => Problem::conflict(other.to_string(), "Look at the tree, then try again."),
    })
}

/// Parameters of `level`.
#[derive(Debug, Deserialize)]
pub(crate) struct LevelRequest {
    #[serde(default)]
    dn: String,
    level: String,
    for_s: Option<u64>,
}

/// `POST /api/v1/level`
pub(crate) async fn level(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    set_level(&app, &peer, &fields(request).await?).map(Json)
}

/// `POST /level`
pub(crate) async fn level_form(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: LevelRequest = fields(request).await?;
    set_level(&app, &peer, &asked)?;
    let back = if asked.dn.is_empty() { "/logs".to_owned() } else { format!("/dn/{}", asked.dn) };
    Ok(Redirect::to(&back).into_response())
}

fn set_level(app: &App, peer: &Peer, asked: &LevelRequest) -> Result<Value, Problem> {
    let dn = query::dn(&asked.dn)?;
    let level: Level = query::level(&asked.level)?;
    let for_s = asked.for_s.unwrap_or(LEVEL_TIME_S);
    if for_s > MAX_LEVEL_TIME_S {
        let hint = format!("Allowed are 1 to {MAX_LEVEL_TIME_S} s, and 0 for until the next boot.");
        return Err(Problem::bad(format!("for_s={for_s} is too long"), hint));
    }
    if !app.sources.dns().iter().any(|known| dn.contains(known)) {
        return Err(app.sources.unknown_dn(&dn));
    }
    let ttl = (for_s > 0).then(|| Duration::from_secs(for_s));
    app.sources.logs.set_level(&dn, level, ttl);
    slog::info!(app.log, "log level of {:?} set to {}", dn.as_str(), level;
        "for_s" => for_s, "peer" => %peer);
    Ok(json!({ "dn": dn, "level": level, "for_s": for_s }))
}

/// Parameters of `power`.
#[derive(Debug, Deserialize)]
pub(crate) struct PowerFields {
    action: String,
    #[serde(default)]
    force: Option<Value>,
}

/// `POST /api/v1/power`
pub(crate) async fn power(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    end(&app, &peer, &fields(request).await?).map(Json)
}

/// `POST /power`
pub(crate) async fn power_form(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, Problem> {
    end(&app, &peer, &fields(request).await?)?;
    Ok(Redirect::to("/").into_response())
}

fn end(app: &App, peer: &Peer, asked: &PowerFields) -> Result<Value, Problem> {
    let action = match asked.action.as_str() {
        "reboot" => PowerAction::Reboot,
        "poweroff" => PowerAction::PowerOff,
        other => {
            let other = crate::text::clipped(other, 64);
            let message = format!("there is no action {other}");
            return Err(Problem::bad(message, "Allowed are reboot and poweroff."));
        }
    };
    // JSON says true, a form says on.
    let force = match &asked.force {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::String(text)) => query::switch("force", Some(text), false)?,
        Some(_) => {
            return Err(Problem::bad("force is not a switch", "Allowed are true and false."));
        }
    };
    slog::warn!(app.log, "{} requested", action.as_str(); "force" => force, "peer" => %peer);
    app.sources.controls.power(PowerRequest { action, force, peer: peer.to_string() });
    Ok(json!({ "action": action, "force": force }))
}

/// The parameters of a request, as a form sends them or as JSON.
async fn fields<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    let form = kind.is_some_and(|k| k.starts_with("application/x-www-form-urlencoded"));
    let bad = |text: String| {
        Problem::bad(
            crate::text::clipped(&text, 200).into_owned(),
            "Send one JSON object with Content-Type application/json, or a form.",
        )
    };
    match form {
        true => Form::from_request(request, &()).await.map(|f| f.0).map_err(|e| bad(e.body_text())),
        false => {
            Json::from_request(request, &()).await.map(|j| j.0).map_err(|e| bad(e.body_text()))
        }
    }
}
