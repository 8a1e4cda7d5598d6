//! How a Runnable ends.
//!
//! Purpose: `Outcome` says how one incarnation ended; `Done` and `Cancelled` are values that only
//! the supervisor hands out, so "returned because asked" cannot be claimed without having been
//! asked, and `Ok(())` does not compile (rule T3). Pure.

use std::error::Error;
use std::fmt;

/// What the function of a service returns.
pub type Outcome = Result<Done, Stop>;

/// The work is finished for good. Made by [`crate::Running::done`].
#[derive(Debug)]
#[must_use = "return it as Ok(done)"]
pub struct Done {
    pub(crate) incarnation: u64,
}

/// The Runnable was asked to stop. Made by [`crate::StopToken::stopped`].
#[derive(Debug, Clone, Copy)]
#[must_use = "return it as Err(cancelled.into())"]
pub struct Cancelled {
    pub(crate) incarnation: u64,
}

/// Why a Runnable ends without being done.
///
/// Any error becomes `Failed` by `?`; for that to be possible, `Stop` is no `Error` itself.
#[derive(Debug)]
pub enum Stop {
    /// It was asked to.
    Cancelled(Cancelled),
    /// It wants to be started anew, and says why. No death.
    Restart(String),
    /// It failed.
    Failed(Failure),
}

impl Stop {
    /// A failure with a text of its own.
    pub fn failed(text: impl Into<String>) -> Stop {
        Stop::Failed(Failure { chain: vec![text.into()] })
    }
}

impl From<Cancelled> for Stop {
    fn from(cancelled: Cancelled) -> Stop {
        Stop::Cancelled(cancelled)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Failed(Failure::from_error(&error))
    }
}

/// An error with all its sources, outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    chain: Vec<String>,
}

impl Failure {
    /// Takes the text of an error and of each of its sources.
    pub fn from_error(error: &(dyn Error + 'static)) -> Failure {
        let mut chain = vec![error.to_string()];
        let mut source = error.source();
        while let Some(e) = source {
            let text = e.to_string();
            // Some libraries print their source too; once is enough.
            if !chain.last().is_some_and(|last| last.ends_with(&text)) {
                chain.push(text);
            }
            source = e.source();
        }
        Failure { chain }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain.join(": "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open /data")]
    struct Open(#[source] std::io::Error);

    #[test]
    fn t3_a_failure_tells_the_whole_source_chain() {
        fn open() -> Outcome {
            Err(Open(std::io::Error::other("no such disk")))?;
            unreachable!()
        }
        let Err(Stop::Failed(failure)) = open() else { panic!("not failed") };
        assert_eq!(failure.to_string(), "cannot open /data: no such disk");
    }
}
