//! The way down: who asks for it, what is done (`plan`, pure), and the doing (`run`).
//!
//! Owner: the main thread of PID 1, which waits for one [`EndRequest`] and never returns.
//! Must not know: services.
mod plan;
mod run;

pub use plan::{
    Progress, Reason, Repeat, Step, UNMOUNT_ROUNDS, Unmount, hurried, plan, repeat, unmounts,
};
pub use run::{Standing, go_down, uptime_text};
use tokio::sync::mpsc;

use crate::params::EndAction;

/// How many requests may wait: one is served, one hurries it, the rest say nothing new.
const QUEUE: usize = 8;

/// Somebody wants the node to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndRequest {
    /// Why.
    pub reason: Reason,
    /// In words, for logs and consoles.
    pub text: String,
    /// Whether nothing is to be stopped in order (rule Q6's short way at once).
    pub force: bool,
}

/// A fatal end in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatalEnd {
    panicked: bool,
    text: String,
}

impl FatalEnd {
    /// By a panic.
    pub fn panicked(text: String) -> FatalEnd {
        FatalEnd { panicked: true, text }
    }

    /// By an error.
    pub fn failed(text: String) -> FatalEnd {
        FatalEnd { panicked: false, text }
    }

    /// The request to end the node so.
    pub fn request(self, action: EndAction) -> EndRequest {
        let reason = Reason::Fatal { panicked: self.panicked, action };
        EndRequest { reason, text: self.text, force: false }
    }
}

/// Asks the main thread to end the node. Clones share the queue.
#[derive(Debug, Clone)]
pub struct EndRequests {
    fatal_action: EndAction,
    queue: mpsc::Sender<EndRequest>,
}

/// The main thread's side.
pub type EndQueue = mpsc::Receiver<EndRequest>;

/// Makes the queue. `fatal_action` is what follows a fatal end.
pub fn end_requests(fatal_action: EndAction) -> (EndRequests, EndQueue) {
    let (queue, requests) = mpsc::channel(QUEUE);
    (EndRequests { fatal_action, queue }, requests)
}

impl EndRequests {
    /// Asks for an orderly end.
    pub fn ask(&self, reason: Reason, text: impl Into<String>) {
        self.send(EndRequest { reason, text: text.into(), force: false });
    }

    /// Asks for an end without order: sync and go.
    pub fn force(&self, reason: Reason, text: impl Into<String>) {
        self.send(EndRequest { reason, text: text.into(), force: true });
    }

    fn send(&self, request: EndRequest) {
        // A full queue means that the end is under way and somebody has already insisted.
        let _ = self.queue.try_send(request);
    }

    /// Reports that the node cannot go on.
    pub fn fatal(&self, ending: FatalEnd) {
        let request = ending.request(self.fatal_action);
        self.ask(request.reason, request.text);
    }

    /// What follows a fatal end.
    pub fn fatal_action(&self) -> EndAction {
        self.fatal_action
    }
}
