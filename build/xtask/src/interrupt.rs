//! Ctrl-C and SIGTERM while a guest runs.
//!
//! The first one ends what is being waited for, so that the guest can be shut
//! down in order; the second one ends us at once, and the kernel then ends QEMU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use e2e::Serial;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status after a second Ctrl-C, as shells write it.
const INTERRUPTED: i32 = 130;

/// Whether somebody asked to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on: ends waits on `serial`, tells `end`.
    ///
    /// # Errors
    /// The signals cannot be had.
    pub(crate) fn listen(serial: Serial, end: Sender<()>) -> Result<Self> {
        let interrupt = Self::default();
        let asked = Arc::clone(&interrupt.asked);
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for Ctrl-C")?;
        #[expect(clippy::disallowed_methods, reason = "lives until the process ends")]
        std::thread::spawn(move || {
            for _ in signals.forever() {
                if asked.swap(true, Ordering::SeqCst) {
                    std::process::exit(INTERRUPTED);
                }
                serial.interrupt();
                let _ = end.send(());
            }
        });
        Ok(interrupt)
    }

    /// Whether somebody asked to end.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
