//! The guest's serial console: every line is kept, written to a log file, and
//! can be waited for.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::{Condvar, Mutex};

/// How the node says how a boot went.
const OUTCOME: &str = "HAMLET outcome=";

/// What it says when all is well; after any other word no marker comes.
const SUCCESS: &str = "HAMLET outcome=success";

/// Lines of the console that are repeated when something did not happen.
const TAIL_LINES: usize = 30;

#[derive(Debug, Default)]
struct State {
    lines: Vec<(Duration, String)>,
    ended: bool,
    interrupted: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What to call with each line of the console, as it comes.
pub(crate) type Listener = Box<dyn Fn(&str) + Send>;

/// Captured console output. Clones see the same lines.
#[derive(Debug, Clone)]
pub struct Serial {
    shared: Arc<Shared>,
    log: PathBuf,
}

impl Serial {
    /// Starts a thread that reads `source` until its end. The thread ends with
    /// the guest; its handle is for the owner of the guest to join.
    pub(crate) fn capture(
        mut source: impl Read + Send + 'static,
        log: &Path,
        listener: Option<Listener>,
    ) -> Result<(Self, JoinHandle<()>)> {
        let serial = Self { shared: Arc::new(Shared::default()), log: log.to_path_buf() };
        let shared = Arc::clone(&serial.shared);
        let mut file =
            File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        #[expect(clippy::disallowed_methods, reason = "the VM that owns the thread joins it")]
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            let (mut partial, mut buffer) = (Vec::new(), [0; 4096]);
            loop {
                let read = source.read(&mut buffer).unwrap_or(0);
                let _ = file.write_all(&buffer[..read]);
                partial.extend_from_slice(&buffer[..read]);
                let mut state = shared.state.lock();
                while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = partial.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if let Some(listener) = &listener {
                        listener(&line);
                    }
                    state.lines.push((started.elapsed(), line));
                }
                if read == 0 {
                    state.ended = true;
                    shared.changed.notify_all();
                    return;
                }
                shared.changed.notify_all();
            }
        });
        Ok((serial, thread))
    }

    /// File with the whole output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// All lines until now.
    pub fn lines(&self) -> Vec<String> {
        self.shared.state.lock().lines.iter().map(|(_, line)| line.clone()).collect()
    }

    /// Last lines, for error messages.
    pub fn tail(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ")
    }

    /// Ends all present and future waits for markers: someone pressed Ctrl-C.
    pub fn interrupt(&self) {
        self.shared.state.lock().interrupted = true;
        self.shared.changed.notify_all();
    }

    /// Waits until the guest's console is closed, which is when QEMU ends.
    /// Returns whether that happened in time.
    pub fn wait_end(&self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        let mut state = self.shared.state.lock();
        while !state.ended {
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                return state.ended;
            }
        }
        true
    }

    /// First line that contains `marker`, and when it came after power-on; waits
    /// for it at most until `deadline` after now.
    ///
    /// # Errors
    /// The node gave up, the guest ended, the wait was interrupted, or the time is
    /// over; with the console's last lines.
    pub fn wait_for(&self, marker: &str, deadline: Duration) -> Result<(Duration, String)> {
        let until = Instant::now() + deadline;
        let mut state = self.shared.state.lock();
        loop {
            if let Some(found) = state.lines.iter().find(|(_, line)| line.contains(marker)) {
                return Ok(found.clone());
            }
            let gave_up = state
                .lines
                .iter()
                .find(|(_, line)| line.contains(OUTCOME) && !line.contains(SUCCESS));
            let why = if let Some((_, line)) = gave_up {
                format!("the node said {line:?}")
            } else if state.interrupted {
                "the wait was interrupted".to_owned()
            } else if state.ended {
                "the guest ended".to_owned()
            } else if self.shared.changed.wait_until(&mut state, until).timed_out() {
                format!("the {:.0} s for it are over", deadline.as_secs_f64())
            } else {
                continue;
            };
            drop(state);
            bail!(
                "no {marker:?} on the console: {why}. Last lines (all in {}):\n    {}",
                self.log.display(),
                self.tail()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_came_before_the_wait_is_found_with_its_whole_text() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("serial.log");
        let text: &[u8] = b"boot\r\nHAMLET phase=mounted uptime=1.5\r\npartial";
        let (serial, thread) = Serial::capture(text, &log, None).unwrap();
        thread.join().unwrap();
        let (_, line) = serial.wait_for("phase=mounted", Duration::ZERO).unwrap();
        assert_eq!(line, "HAMLET phase=mounted uptime=1.5");
        assert_eq!(std::fs::read(&log).unwrap(), text);
    }

    #[test]
    fn b9_a_node_that_gave_up_ends_the_wait_and_a_finished_boot_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("serial.log");
        let text = "HAMLET outcome=success reason=up clean=true\nHAMLET ready dashboard=x\n";
        let (serial, thread) = Serial::capture(text.as_bytes(), &log, None).unwrap();
        thread.join().unwrap();
        assert!(serial.wait_for("HAMLET ready", Duration::ZERO).is_ok());
        let text = "HAMLET outcome=reboot reason=storage clean=true\n";
        let (serial, thread) = Serial::capture(text.as_bytes(), &log, None).unwrap();
        thread.join().unwrap();
        let error = serial.wait_for("HAMLET ready", Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("reason=storage"), "{error}");
    }

    #[test]
    fn a_wait_ends_at_once_when_the_guest_is_gone_and_shows_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("serial.log");
        let (serial, thread) = Serial::capture(&b"last words\n"[..], &log, None).unwrap();
        thread.join().unwrap();
        let error = serial.wait_for("ready", Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("the guest ended") && error.contains("last words"), "{error}");
    }
}
