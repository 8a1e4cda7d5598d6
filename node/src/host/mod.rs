//! Runnable `host-channel`: the host's own way into the node (rule B11), virtio-serial port `hamlet.host`.
//!
//! One JSON request a line, one JSON answer a line, in order. Only whoever runs the machine can reach it:
//! it alone gives out the admin kubeconfig and the dashboard's token. Operations that break things exist
//! only in builds with feature `faults`.
//! Invariants: a bad line is answered, never fatal; a slow host holds up only this Runnable.
mod answer;
#[cfg(feature = "faults")]
mod faults;
#[cfg(feature = "faults")]
pub(crate) mod faults_points;
#[cfg(feature = "faults")]
mod faults_run;
mod ops;
mod port;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slog::{info, warn};
use supervisor::prelude::*;
use tokio::sync::{mpsc, oneshot};

pub use ops::Node;

const PORT_NAME: &str = "hamlet.host";

/// How long one request may take; test operations that fill disks are the longest.
const REQUEST_LIMIT: Duration = Duration::from_secs(300);

/// The service.
pub fn service(node: Node) -> Service {
    let node = Arc::new(node);
    let mut service =
        Service::new(Name::from_static("host-channel"), move |ctx| run(ctx, node.clone()));
    service.policy.critical = false;
    service
}

async fn run(ctx: Context, node: Arc<Node>) -> Outcome {
    let Some(device) = port::find(PORT_NAME)? else {
        ctx.health().note("this machine has no host channel");
        let running = ctx.healthy();
        return Err(running.stop().stopped().await.into());
    };
    serve(ctx, &node, device).await
}

async fn serve(ctx: Context, node: &Node, device: PathBuf) -> Outcome {
    let stop = ctx.stop();
    // One request at a time: the thread waits for the answer before it reads on.
    let (requests, mut incoming) = mpsc::channel(1);
    let (port, closer) = port::Port::open(&device)?;
    let thread = ctx.spawn_blocking(Name::from_static("port"), move || port.run(&requests));
    let running = ctx.healthy();
    info!(running.log(), "the host can reach this node by {}", device.display());
    let outcome = loop {
        let request: Option<Request> = match stop.race(incoming.recv()).await {
            Ok(request) => request,
            Err(cancelled) => break Err(cancelled.into()),
        };
        // The thread has ended: its error is the outcome.
        let Some(request) = request else { break Err(Stop::failed("the port is closed")) };
        let answer = match stop.race(limited(node, &request.line)).await {
            Ok(answer) => answer,
            Err(cancelled) => break Err(cancelled.into()),
        };
        if let Err(e) = &answer.result {
            warn!(running.log(), "request refused: {}", e.message; "code" => e.code);
        }
        // The thread is gone only together with the port.
        let _ = request.answer.send(answer.to_line());
    };
    drop(incoming);
    closer.close();
    match thread.await {
        Ok(Err(error)) if matches!(outcome, Err(Stop::Failed(_))) => Err(error.into()),
        _ => outcome,
    }
}

async fn limited(node: &Node, line: &str) -> answer::Answer {
    match tokio::time::timeout(REQUEST_LIMIT, ops::handle(node, line)).await {
        Ok(answer) => answer,
        Err(_) => answer::Answer::refused(answer::Refusal::new(
            "timeout",
            "the operation took longer than 300 s",
        )),
    }
}

/// A line from the host and where its answer goes.
struct Request {
    line: String,
    answer: oneshot::Sender<String>,
}
