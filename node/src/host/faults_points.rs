//! Test operation `test.arm`: the power goes when the volume engine passes a named step.
//!
//! Owner: the engine's jobs pass the points; the channel arms one. Invariant: an armed point ends the
//! node at once, without a sync and without a way down, as a power cut does. Compiled only with
//! feature `faults`.
use std::sync::Arc;

use parking_lot::Mutex;
use volumes::Faults;

/// The point at which the power goes.
static ARMED: Mutex<Option<String>> = Mutex::new(None);

/// Arms `point`.
pub(crate) fn arm(point: &str) {
    *ARMED.lock() = Some(point.to_owned());
}

/// The engine's hook.
pub(crate) fn faults() -> Faults {
    Faults::new(Arc::new(|at: &str| {
        if ARMED.lock().as_deref() == Some(at) {
            // reboot(2) does not sync: what was not flushed is lost, in memory and in the log.
            let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
        }
    }))
}
