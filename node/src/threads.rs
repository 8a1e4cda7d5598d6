//! The few threads that are not the supervisor's: reaper, signals, consoles, standard output.
//!
//! Owner: PID 1. Invariant: none of them may end by a panic unseen: that is fatal (rule F2).
//! Must not know: what they do.
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crate::shutdown::{EndRequests, FatalEnd};

/// Enough for loops without deep calls; a thread's touched stack counts as memory of PID 1.
const STACK_BYTES: usize = 256 << 10;

/// Starts a thread whose panic is the end of the node.
///
/// # Errors
/// The kernel gives no thread.
pub fn critical(
    name: &str,
    ends: EndRequests,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let thread = name.to_owned();
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            ends.fatal(FatalEnd::panicked(format!(
                "internal panic in thread {thread}: {}",
                payload_text(panic.as_ref())
            )));
        }
    })
}

/// The text of a panic's payload, whatever its type.
pub fn payload_text(payload: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "(a payload that is no text)"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::EndAction;
    use crate::shutdown::{Reason, end_requests};

    #[test]
    fn f2_a_panic_with_any_payload_is_a_fatal_request() {
        let (ends, mut requests) = end_requests(EndAction::Reboot);
        let body = || std::panic::panic_any(7_u32);
        critical("doomed", ends, body).unwrap().join().unwrap();
        let request = requests.try_recv().unwrap();
        assert_eq!(request.reason, Reason::Fatal { panicked: true, action: EndAction::Reboot });
        assert_eq!(request.text, "internal panic in thread doomed: (a payload that is no text)");
    }
}
