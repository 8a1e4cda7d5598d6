//! QMP: QEMU's own control socket, line by line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Longest answer time: a snapshot of a whole machine is written meanwhile.
const ANSWER_DEADLINE: Duration = Duration::from_secs(180);

/// A connection to QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
    /// Reason of the last SHUTDOWN event.
    shutdown: Option<String>,
}

impl Qmp {
    /// Greets QEMU and leaves the negotiation mode.
    ///
    /// # Errors
    /// No QEMU at the other end.
    pub(crate) fn greet(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        let mut qmp = Self { stream: BufReader::new(stream), shutdown: None };
        qmp.read()?;
        qmp.command("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its answer; events in between are skipped.
    ///
    /// # Errors
    /// QEMU is gone or says that the command failed.
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let line = json!({ "execute": name, "arguments": arguments }).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).context("QEMU is gone")?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refused {name}: {}", error["desc"].as_str().unwrap_or("no reason"));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Runs a command of the human monitor.
    ///
    /// # Errors
    /// As [`Qmp::command`]; any text the monitor answers is taken for an error,
    /// because the commands used here say nothing when they succeed.
    pub fn monitor(&mut self, line: &str) -> Result<()> {
        let answer = self.command("human-monitor-command", json!({ "command-line": line }))?;
        match answer.as_str().map(str::trim) {
            None | Some("") => Ok(()),
            Some(text) => bail!("QEMU's monitor on {line:?}: {text}"),
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).context("no answer from QEMU")? == 0 {
            bail!("QEMU closed its control socket");
        }
        let message: Value =
            serde_json::from_str(&line).with_context(|| format!("QEMU said {line:?}"))?;
        if message["event"] == "SHUTDOWN" {
            self.shutdown = message["data"]["reason"].as_str().map(str::to_owned);
        }
        Ok(message)
    }

    /// Reads until QEMU closes the connection; the reason it gave for its end.
    pub(crate) fn reason_of_end(&mut self) -> Option<String> {
        while self.read().is_ok() {}
        self.shutdown.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qemu(answers: Vec<&'static str>) -> (UnixStream, std::thread::JoinHandle<()>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        #[expect(clippy::disallowed_methods, reason = "joined at the end of the test")]
        let server = std::thread::spawn(move || {
            theirs.write_all(b"{\"QMP\":{}}\n").unwrap();
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for answer in answers {
                lines.next().unwrap().unwrap();
                theirs.write_all(answer.as_bytes()).unwrap();
            }
        });
        (ours, server)
    }

    #[test]
    fn events_before_the_answer_are_skipped_and_errors_carry_qemus_words() {
        let (stream, server) = qemu(vec![
            "{\"return\":{}}\n",
            "{\"event\":\"STOP\"}\n{\"return\":7}\n",
            "{\"error\":{\"desc\":\"no such thing\"}}\n",
        ]);
        let mut qmp = Qmp::greet(stream).unwrap();
        assert_eq!(qmp.command("stop", json!({})).unwrap(), json!(7));
        let error = qmp.command("fly", json!({})).unwrap_err().to_string();
        assert!(error.contains("no such thing"), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn the_reason_of_the_end_is_that_of_the_shutdown_event() {
        let event =
            "{\"return\":{}}\n{\"event\":\"SHUTDOWN\",\"data\":{\"reason\":\"guest-reset\"}}\n";
        let (stream, server) = qemu(vec![event]);
        let mut qmp = Qmp::greet(stream).unwrap();
        server.join().unwrap();
        assert_eq!(qmp.reason_of_end().as_deref(), Some("guest-reset"));
    }
}
