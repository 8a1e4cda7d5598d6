//! The host's own channel into a node (spec supervisor B11): a virtio-serial
//! port with one JSON request a line and one JSON answer a line.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Time an ordinary answer may take, including the time until the node listens.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// Why a request has no answer that could be used.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The node answered with an error.
    #[error("the node refused: {message} ({code})")]
    Refused {
        /// Machine-readable code.
        code: String,
        /// What went wrong, and the node's hint.
        message: String,
    },
    /// The node did not answer in time.
    #[error("no answer from the node within {:.0} s", .0.as_secs_f64())]
    Silent(Duration),
    /// QEMU is gone.
    #[error("the channel to the node is closed")]
    Closed(#[source] std::io::Error),
}

impl ChannelError {
    /// The node's error code, when the node answered.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Silent(_) | Self::Closed(_) => None,
        }
    }
}

/// A client of the channel. A request that was given up on does not disturb the
/// next one: answers are matched by their number.
#[derive(Debug)]
pub struct HostChannel {
    path: PathBuf,
    stream: Option<UnixStream>,
    received: Vec<u8>,
    next: u64,
}

impl HostChannel {
    /// A client of the socket at `path`; connects with the first request.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), stream: None, received: Vec::new(), next: 1 }
    }

    /// Sends `op` with `arguments` (an object) and returns the answer.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn call(&mut self, op: &str, arguments: Value) -> Result<Value, ChannelError> {
        self.call_within(op, arguments, ANSWER_DEADLINE)
    }

    /// As [`HostChannel::call`], with another deadline.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn call_within(
        &mut self,
        op: &str,
        arguments: Value,
        deadline: Duration,
    ) -> Result<Value, ChannelError> {
        let answer = self.exchange(op, arguments, deadline);
        if matches!(answer, Err(ChannelError::Closed(_))) {
            self.stream = None;
            self.received.clear();
        }
        answer
    }

    fn exchange(
        &mut self,
        op: &str,
        arguments: Value,
        deadline: Duration,
    ) -> Result<Value, ChannelError> {
        let id = self.next;
        self.next += 1;
        let mut request = arguments;
        request["id"] = json!(id);
        request["op"] = json!(op);
        let until = Instant::now() + deadline;
        self.stream()?
            .write_all((request.to_string() + "\n").as_bytes())
            .map_err(ChannelError::Closed)?;
        loop {
            let line = self.line(until, deadline)?;
            let Ok(mut answer) = serde_json::from_slice::<Value>(&line) else { continue };
            if answer["id"] != json!(id) {
                continue;
            }
            let Some(error) = answer.get("error") else { return Ok(answer["ok"].take()) };
            let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
            let hint = text("hint");
            let hint = if hint.is_empty() { hint } else { format!("; {hint}") };
            return Err(ChannelError::Refused {
                code: text("code"),
                message: text("message") + &hint,
            });
        }
    }

    fn stream(&mut self) -> Result<&mut UnixStream, ChannelError> {
        if self.stream.is_none() {
            let stream = UnixStream::connect(&self.path).map_err(ChannelError::Closed)?;
            self.stream = Some(stream);
        }
        Ok(self.stream.as_mut().expect("connected above"))
    }

    fn line(&mut self, until: Instant, deadline: Duration) -> Result<Vec<u8>, ChannelError> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                return Ok(self.received.drain(..=end).collect());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ChannelError::Silent(deadline));
            }
            let mut buffer = [0; 16384];
            let stream = self.stream()?;
            stream.set_read_timeout(Some(left)).map_err(ChannelError::Closed)?;
            let read = match stream.read(&mut buffer) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
                other => other,
            };
            let read = read.map_err(ChannelError::Closed)?;
            self.received.extend_from_slice(&buffer[..read]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use super::*;

    /// A node that answers the n-th request with the n-th text.
    fn node(answers: Vec<&'static str>) -> (tempfile::TempDir, HostChannel, JoinHandle<()>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.sock");
        let listener = UnixListener::bind(&path).unwrap();
        #[expect(clippy::disallowed_methods, reason = "joined at the end of the test")]
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for answer in answers {
                lines.next().unwrap().unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
            assert!(lines.next().is_none_or(|line| line.is_err()));
        });
        (folder, HostChannel::new(&path), thread)
    }

    #[test]
    fn b11_a_late_answer_is_not_taken_for_the_next_request() {
        let (_folder, mut channel, thread) =
            node(vec!["", "{\"id\":1,\"ok\":1}\n{\"id\":2,\"ok\":2}\n"]);
        let late = channel.call_within("status", json!({}), Duration::from_millis(50));
        assert!(matches!(late, Err(ChannelError::Silent(_))));
        assert_eq!(channel.call("status", json!({})).unwrap(), json!(2));
        drop(channel);
        thread.join().unwrap();
    }

    #[test]
    fn b11_an_error_answer_carries_code_message_and_hint() {
        let (_folder, mut channel, thread) = node(vec![
            "{\"id\":1,\"error\":{\"code\":\"not_ready\",\"message\":\"no PKI yet\",\
             \"hint\":\"ask again\"}}\n",
        ]);
        let error = channel.call("kubeconfig", json!({})).unwrap_err();
        assert_eq!(error.code(), Some("not_ready"));
        assert!(error.to_string().contains("no PKI yet; ask again"), "{error}");
        drop(channel);
        thread.join().unwrap();
    }
}
