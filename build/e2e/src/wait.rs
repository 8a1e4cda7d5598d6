//! Waiting for what tells nobody when it happens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long to wait for what a guest must do by itself, before it is said to hang. Not a measure:
/// an emulated guest on a busy machine takes several times what it takes on an idle one.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(250);

/// Looks again and again until `look` succeeds; only for what has no event to
/// wait for.
///
/// # Errors
/// What the last look said, when the time is over.
pub fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let until = Instant::now() + deadline;
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() >= until => {
                return Err(error).with_context(|| format!("{what}: not within {deadline:?}"));
            }
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_look_says_why_it_did_not_happen() {
        let error = eventually("tea", Duration::ZERO, || -> Result<()> { anyhow::bail!("cold") });
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("tea") && text.contains("cold"), "{text}");
    }
}
