//! What surrounds every call: duration, count, and a line in the local log for each failure.
//!
//! It sits outside the generated code, so that it also sees what never reaches a handler:
//! unknown methods, messages that do not decode, messages that are too large.

use std::convert::Infallible;
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::ServiceExt;

use crate::metrics::{CsiMetrics, code_name};

/// Label of a call to a method that does not exist: the caller's text is not ours to keep.
const UNKNOWN_METHOD: &str = "unknown";

/// The services of one socket, observed.
#[derive(Clone)]
pub(crate) struct Observed {
    pub(crate) routes: Routes,
    pub(crate) log: slog::Logger,
    pub(crate) metrics: Option<CsiMetrics>,
}

impl hyper::service::Service<Request<Incoming>> for Observed {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let Observed { routes, log, metrics } = self.clone();
        Box::pin(async move {
            let started = Instant::now();
            let path = request.uri().path().to_owned();
            let response = routes.oneshot(request).await?;
            let (response, status) = judged(response);
            let code = status.as_ref().map_or(Code::Ok, Status::code);
            let known = code != Code::Unimplemented;
            if let Some(metrics) = metrics {
                let method = if known { path.as_str() } else { UNKNOWN_METHOD };
                metrics.observe(method, code, started.elapsed());
            }
            if let Some(status) = status {
                report(&log, &path, &status);
            }
            Ok(response)
        })
    }
}

/// The failure of a response. A call without one has its status in the trailers, which is OK
/// for unary calls: a handler that fails answers with headers only.
fn judged(response: Response<Body>) -> (Response<Body>, Option<Status>) {
    let Some(status) = Status::from_header_map(response.headers()) else {
        return (response, None);
    };
    match status.code() {
        Code::Ok => (response, None),
        // The transport says OUT_OF_RANGE, which in CSI is a verdict on a capacity.
        Code::OutOfRange if status.message().contains("message length too large") => {
            let status = Status::resource_exhausted(status.message());
            (status.clone().into_http(), Some(status))
        }
        _ => (response, Some(status)),
    }
}

fn report(log: &slog::Logger, path: &str, status: &Status) {
    let (code, why) = (code_name(status.code()), status.message());
    // A path is the caller's text: bounded before it is kept.
    let method: String = path.chars().take(128).collect();
    match status.code() {
        Code::Internal | Code::DataLoss | Code::Unknown => {
            slog::error!(log, "call failed"; "method" => method, "code" => code, "error" => why);
        }
        _ => slog::warn!(log, "call refused"; "method" => method, "code" => code, "error" => why),
    }
}
