//! Running a program of the build machine, with errors that say what it said.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Longest part of a program's error output that is repeated in our own error.
const TAIL_LINES: usize = 12;

/// Runs `command` and returns its standard output.
///
/// # Errors
/// The program is missing, or ends with another status than 0; then the end of
/// what it wrote is in the error.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {name}; is it installed?"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.trim().is_empty() {
        text = String::from_utf8_lossy(&output.stdout).into_owned();
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
    bail!("{name} failed ({}):\n    {tail}", output.status)
}

/// As [`run`], for programs whose output nobody reads.
///
/// # Errors
/// As [`run`].
pub fn run_quiet(command: &mut Command) -> Result<()> {
    run(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_named_with_what_it_wrote() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("sh failed") && text.contains("broken"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("/nonexistent/program")).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/program"));
    }
}
