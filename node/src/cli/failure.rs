//! Why a command does not do what it was asked, with the exit status of each reason (rule C3).
//!
//! Pure. Must not know: commands.
use std::io;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Nobody answers.
    #[error("cannot reach the node at {endpoint}: {why}")]
    Unreachable {
        /// The endpoint as it was given.
        endpoint: String,
        /// What failed.
        why: String,
        /// The next step.
        hint: String,
    },
    /// No service has this name, or several have.
    #[error("{message}")]
    Name {
        /// What is wrong.
        message: String,
        /// Names that were perhaps meant.
        hint: String,
    },
    /// The node says no.
    #[error("{message}")]
    Refused {
        /// What it says.
        message: String,
        /// The next step.
        hint: String,
    },
    /// The node answers what nobody understands.
    #[error("the node's answer cannot be read: {0}")]
    Answer(String),
    /// The output cannot be written.
    #[error("cannot write")]
    Output(#[source] io::Error),
}

impl Failure {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            // Whoever reads has had enough: that is no failure.
            Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Refused { .. } | Failure::Answer(_) | Failure::Output(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unreachable { .. } => 3,
            Failure::Name { .. } => 4,
        }
    }

    /// What to tell; none where silence is right.
    pub fn text(&self) -> Option<String> {
        let hint = match self {
            Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => return None,
            Failure::Output(e) => return Some(format!("hamlet: {self}: {e}")),
            Failure::Unreachable { hint, .. }
            | Failure::Name { hint, .. }
            | Failure::Refused { hint, .. } => hint,
            Failure::Usage(_) | Failure::Answer(_) => "",
        };
        let next = if hint.is_empty() { String::new() } else { format!("\n{hint}") };
        Some(format!("hamlet: {self}{next}"))
    }
}

impl From<io::Error> for Failure {
    /// Only output is written without further words.
    fn from(e: io::Error) -> Failure {
        Failure::Output(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c3_each_reason_has_its_exit_status() {
        let text = String::new;
        let name = Failure::Name { message: text(), hint: text() };
        let unreachable = Failure::Unreachable { endpoint: text(), why: text(), hint: text() };
        let refused = Failure::Refused { message: text(), hint: text() };
        let statuses = [refused, Failure::Usage(text()), unreachable, name].map(|f| f.status());
        assert_eq!(statuses, [1, 2, 3, 4]);
    }

    #[test]
    fn c3_a_closed_pipe_is_quiet_success() {
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((closed.status(), closed.text()), (0, None));
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.status(), 1);
        assert!(full.text().is_some());
    }
}
