//! The virtio-serial port, read and written by one blocking job.
//!
//! The port shows end of file while the host is not connected, at once and again and again; only the edge
//! of an epoll tells when somebody comes. tokio's readiness keeps "closed" for ever, hence a job of our
//! own. Must not know: what the lines mean.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use tokio::sync::{mpsc, oneshot};

use super::Request;
use super::answer::{Answer, Refusal};

/// Longest request line.
const LINE_BYTES: usize = 1 << 20;

/// How long a host that does not read may hold an answer up.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

const PORT: u64 = 0;
const CLOSE: u64 = 1;

/// The device of the port with this name.
///
/// # Errors
/// The list of ports cannot be read.
pub(crate) fn find(name: &str) -> io::Result<Option<PathBuf>> {
    let class = Path::new("/sys/class/virtio-ports");
    let entries = match fs::read_dir(class) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let named = fs::read_to_string(entry.path().join("name"));
        if named.is_ok_and(|n| n.trim() == name) {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// The open port.
pub(crate) struct Port {
    device: File,
    epoll: OwnedFd,
    input: Vec<u8>,
}

/// Ends [`Port::run`].
pub(crate) struct Closer(OwnedFd);

impl Closer {
    /// Wakes the job; it ends soon after.
    pub(crate) fn close(&self) {
        // The counter of an eventfd takes one always.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Port {
    /// Opens the port.
    ///
    /// # Errors
    /// It is in use, or the kernel gives no descriptors.
    pub(crate) fn open(path: &Path) -> io::Result<(Port, Closer)> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let close = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&epoll, device.as_fd(), EventData::new_u64(PORT), edges)?;
        epoll::add(&epoll, close.as_fd(), EventData::new_u64(CLOSE), EventFlags::IN)?;
        Ok((Port { device, epoll, input: Vec::new() }, Closer(close)))
    }

    /// Hands each line to `requests` and writes its answer, until closed.
    ///
    /// # Errors
    /// The port fails.
    pub(crate) fn run(mut self, requests: &mpsc::Sender<Request>) -> io::Result<()> {
        loop {
            while let Some(line) = self.line()? {
                let Some(answer) = ask(requests, line) else { return Ok(()) };
                if !self.write(answer)? {
                    return Ok(());
                }
            }
            if !self.wait(None)? {
                return Ok(());
            }
        }
    }

    /// Waits for an edge; false when closed.
    fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.and_then(|l| rustix::event::Timespec::try_from(l).ok());
        let mut events = Vec::with_capacity(2);
        loop {
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, limit.as_ref()) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(!events.iter().any(|e| e.data.u64() == CLOSE))
    }

    /// The next whole line, if the port has one now.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.input.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.input.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.input.len() > LINE_BYTES {
                // Too long to be a request: answered as such by what is left of it at its newline.
                self.input.clear();
            }
            match self.device.read(&mut chunk) {
                // Nobody is connected: a half line belonged to somebody who has left.
                Ok(0) => {
                    self.input.clear();
                    return Ok(None);
                }
                Ok(n) => self.input.extend_from_slice(chunk.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes an answer; false when closed meanwhile. A host that has left or does not read loses it.
    fn write(&mut self, mut answer: String) -> io::Result<bool> {
        answer.push('\n');
        let mut rest = answer.as_bytes();
        let end = std::time::Instant::now() + WRITE_LIMIT;
        while !rest.is_empty() {
            match self.device.write(rest) {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = end.saturating_duration_since(std::time::Instant::now());
                    if left.is_zero() {
                        return Ok(true);
                    }
                    if !self.wait(Some(left))? {
                        return Ok(false);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

/// The answer to a line; `None` when the Runnable is gone.
fn ask(requests: &mpsc::Sender<Request>, line: Vec<u8>) -> Option<String> {
    let Ok(line) = String::from_utf8(line) else {
        let refusal = Refusal::new("bad_request", "the line is not UTF-8");
        return Some(Answer::refused(refusal).to_line());
    };
    let (answer, answered) = oneshot::channel();
    requests.blocking_send(Request { line, answer }).ok()?;
    answered.blocking_recv().ok()
}
