//! Keeps the certificate tree current while the node runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pki::{Pki, PkiError, Report};
use supervisor::prelude::*;

use crate::inputs::Inputs;
use crate::metrics::Metrics;
use crate::table::certificate_request;

/// A certificate has four months left when it is renewed; an hour is what a node with a wrong
/// clock waits for good certificates after its clock was set.
const REFRESH_EVERY: Duration = Duration::from_secs(3600);
/// Less than this left means that renewal has been failing for months.
const ALARM_SECONDS: i64 = 30 * 24 * 3600;
const CONDITION: &str = "CertificatesEnding";

/// Brings the tree up to date and publishes it.
pub(crate) async fn ensure(
    ctx: &Context,
    inputs: &Inputs,
    metrics: &Metrics,
) -> Result<Arc<Pki>, Stop> {
    ctx.health().note("checking certificates");
    let (dir, request) = (inputs.dirs.pki.clone(), certificate_request(&inputs.node));
    let job = ctx.spawn_blocking(Name::from_static("certificates"), move || {
        Pki::ensure(&dir, request, now())
    });
    let (pki, report) = job.await??;
    let pki = Arc::new(pki);
    tell(ctx, metrics, &report);
    inputs.publisher.pki.send_replace(Some(pki.clone()));
    ctx.health().note("");
    Ok(pki)
}

/// Renews what ends, until asked to stop. A failure is told and tried again: certificates in use
/// are still good for months.
pub(crate) async fn keep(running: &Running, pki: Arc<Pki>, metrics: &Metrics) -> Cancelled {
    let stop = running.stop();
    loop {
        if let Err(cancelled) = stop.race(tokio::time::sleep(REFRESH_EVERY)).await {
            return cancelled;
        }
        let tree = pki.clone();
        let job =
            running.spawn_blocking(Name::from_static("certificates"), move || tree.refresh(now()));
        // A panicked job is the death of this Runnable anyway.
        if let Ok(result) = job.await {
            judge(running, metrics, result);
        }
    }
}

fn judge(running: &Running, metrics: &Metrics, result: Result<Report, PkiError>) {
    match result {
        Ok(report) => tell(running, metrics, &report),
        Err(error) => {
            let text = chain(&error);
            slog::error!(running.log(), "certificates cannot be renewed"; "error" => &text);
            running.health().set(Condition::degraded(CONDITION, text));
        }
    }
}

fn tell(handle: &impl Handle, metrics: &Metrics, report: &Report) {
    metrics.certificates(report);
    for issued in &report.issued {
        slog::info!(handle.log(), "{}", issued);
    }
    match report.expiries.first() {
        Some(first) if first.not_after - now() < ALARM_SECONDS => {
            handle.health().set(Condition::degraded(CONDITION, first.to_string()));
        }
        Some(first) => {
            slog::debug!(handle.log(), "{}", first);
            handle.health().clear(CONDITION);
        }
        None => handle.health().clear(CONDITION),
    }
}

/// Unix time; a clock before 1970 counts as 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        text.push_str(": ");
        text.push_str(&e.to_string());
        source = e.source();
    }
    text
}
