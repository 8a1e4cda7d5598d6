//! Bring-up of the node: `Kernel → Mounted → Logged → Tree`, each step consuming the one before.
//!
//! Owner: the main thread of PID 1. Invariants: the order is enforced by the types; every step finds and
//! keeps what is already there; errors are collected within a step and end in one [`BringupFailed`] that
//! names them all; whatever happens, the way down runs with what stands by then.
//! Must not know: Kubernetes (see `root`).
mod grown;
mod kernel;
mod logged;
mod mounted;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use grown::Tree;
pub use kernel::Kernel;
pub use logged::Logged;
pub use mounted::Mounted;

use crate::params::EndAction;
use crate::shutdown::{EndQueue, EndRequest, FatalEnd, Standing, go_down};
use crate::threads::payload_text;

/// A step of bring-up that failed; fatal.
#[derive(Debug, thiserror::Error)]
#[error("bring-up failed at {step}: {}", reasons.join("; "))]
pub struct BringupFailed {
    /// Which step.
    pub step: &'static str,
    /// Everything that failed in it.
    pub reasons: Vec<String>,
}

impl BringupFailed {
    fn one(step: &'static str, error: &(dyn Error + 'static)) -> BringupFailed {
        BringupFailed { step, reasons: vec![chain(error)] }
    }
}

/// An error with all its sources.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    supervisor::Failure::from_error(error).to_string()
}

/// Lives as PID 1 of the node.
pub fn run() -> ! {
    let mut standing = Standing::default();
    let mut queue = None;
    let mut fatal = EndAction::Reboot;
    let life = AssertUnwindSafe(|| live(&mut standing, &mut queue, &mut fatal));
    let request = match catch_unwind(life) {
        Ok(Ok(request)) => request,
        Ok(Err(failed)) => FatalEnd::failed(chain(&failed)).request(fatal),
        Err(panic) => {
            let text = format!("internal panic in thread main: {}", payload_text(panic.as_ref()));
            FatalEnd::panicked(text).request(fatal)
        }
    };
    go_down(standing, &request, queue)
}

/// From the first instruction to the first request to end.
fn live(
    standing: &mut Standing,
    queue: &mut Option<EndQueue>,
    fatal: &mut EndAction,
) -> Result<EndRequest, BringupFailed> {
    let kernel = Kernel::enter()?;
    let mounted = kernel.mount(standing)?;
    *fatal = mounted.parameters().fatal;
    let logged = mounted.log(standing, queue)?;
    let tree = logged.start(standing)?;
    Ok(tree.wait(standing, queue))
}
