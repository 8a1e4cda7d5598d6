//! The `hamlet` binary, built by cargo.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::paths;
use crate::ui::Ui;

/// Which binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flavour {
    /// With the fault injection that only test images may have.
    pub(crate) faults: bool,
    /// Optimised, for a published image.
    pub(crate) release: bool,
}

impl Flavour {
    /// Name of the flavour, for folders and messages.
    pub(crate) fn name(self) -> &'static str {
        match (self.faults, self.release) {
            (false, false) => "dev",
            (true, false) => "test",
            (false, true) => "release",
            (true, true) => "release-test",
        }
    }
}

/// Builds the binary and says where it is.
///
/// # Errors
/// It does not compile; the compiler's words are in the error.
pub(crate) fn hamlet(ui: &Ui, flavour: Flavour) -> Result<PathBuf> {
    let mut stage = ui.stage("hamlet");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::repository()).args(["build", "--package", "node", "--bin", "hamlet"]);
    cargo.args(["--locked", "--message-format", "json-render-diagnostics"]);
    if flavour.faults {
        cargo.args(["--features", "faults"]);
    }
    if flavour.release {
        cargo.arg("--release");
    }
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stderr = child.stderr.take().context("cargo has no standard error")?;
    #[expect(clippy::disallowed_methods, reason = "joined below; it ends with cargo")]
    let diagnostics = std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let is_progress = |line: &String| {
            let word = line.split_whitespace().next().unwrap_or_default();
            matches!(word, "Compiling" | "Downloading" | "Downloaded" | "Finished" | "Blocking")
        };
        lines.filter(|line| !is_progress(line)).collect::<Vec<String>>()
    });
    let stdout = child.stdout.take().context("cargo has no standard output")?;
    let (mut binary, mut compiled) = (None, 0);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        compiled += 1;
        let name = message["target"]["name"].as_str().unwrap_or_default();
        stage.note(&format!("{compiled} units, {name}"));
        if let (true, Some(path)) = (name == "hamlet", message["executable"].as_str()) {
            binary = Some(PathBuf::from(path));
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    let words = diagnostics.join().unwrap_or_default().join("\n");
    if !status.success() {
        bail!("the node does not compile:\n{words}");
    }
    stage.done(flavour.name());
    binary.context("cargo did not say where the binary is")
}
