//! `cargo xtask bench supervisor`: runs crate `bench` and prints its rows as a table.
//!
//! The measurements live in that crate, so that this one needs neither the supervisor nor tokio.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::paths;
use crate::ui::Ui;

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Optimised build; without it the numbers are those of the node image of this checkout.
    #[arg(long)]
    release: bool,
    /// A tenth of everything: seconds instead of minutes, and less steady.
    #[arg(long)]
    quick: bool,
}

/// Measures.
///
/// # Errors
/// The crate does not compile, or one of its measurements finds something lost or stuck.
pub(crate) fn run(ui: &Ui, arguments: &Arguments) -> Result<()> {
    let stage = ui.stage("bench supervisor");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::repository());
    cargo.args(["run", "--quiet", "--locked", "--package", "bench"]);
    cargo.args(arguments.release.then_some("--release"));
    cargo.args(["--", "supervisor"]);
    cargo.args(arguments.quick.then_some("--quick"));
    let output = cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the measurements have failed: {}", output.status);
    }
    let rows: Value = serde_json::from_slice(&output.stdout).context("no rows came back")?;
    stage.done("");
    ui.result(&table(&rows), json!({ "event": "bench", "rows": rows }));
    Ok(())
}

/// One line a row; a ratio of 1 is as costly as what it is compared with, less is cheaper.
fn table(rows: &Value) -> String {
    let line = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let value = row["value"].as_f64().unwrap_or_default();
        let compared = match row["ratio"].as_f64() {
            Some(ratio) => format!("{ratio:>8.2} × {}", text("against")),
            None => String::new(),
        };
        let line = format!("{:<44} {value:>10.2} {:<12}{compared}", text("name"), text("unit"));
        line.trim_end().to_owned()
    };
    rows.as_array().into_iter().flatten().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_lines_with_their_ratio_where_there_is_one() {
        let rows = json!([
            { "name": "a", "value": 1.5, "unit": "µs", "against": null, "ratio": null },
            { "name": "b", "value": 3.0, "unit": "µs", "against": "a", "ratio": 2.0 },
        ]);
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("1.50 µs"), "{text}");
        assert!(lines[1].ends_with("2.00 × a"), "{text}");
    }
}
