//! The rules of this repository that no compiler checks; also a test.

use anyhow::{Result, bail};

use crate::ui::Ui;

/// Checks every rule.
///
/// # Errors
/// Names every place that breaks one.
pub(crate) fn run(ui: &Ui) -> Result<()> {
    let findings: Vec<String> = Vec::new();
    if !findings.is_empty() {
        bail!("{} findings:\n{}", findings.len(), findings.join("\n"));
    }
    ui.say("tidy");
    Ok(())
}
