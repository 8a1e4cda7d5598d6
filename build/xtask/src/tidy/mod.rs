//! The rules of this repository that no compiler checks; also a test.
//!
//! `sources` reads every Rust file, `graph` the dependency graph of cargo. Both
//! are pure over what they are given; only this module reads files.

mod graph;
mod licence;
mod sources;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::paths;
use crate::ui::Ui;

/// Checks every rule.
///
/// # Errors
/// Names every place that breaks one.
pub(crate) fn run(ui: &Ui) -> Result<()> {
    let findings = check(&paths::repository())?;
    if !findings.is_empty() {
        bail!("{} findings:\n  {}", findings.len(), findings.join("\n  "));
    }
    ui.say("tidy: nothing found");
    Ok(())
}

fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut files = Vec::new();
    rust_files(root, root, &mut files)?;
    let mut texts = Vec::new();
    for file in files {
        let text = fs::read_to_string(root.join(&file));
        texts.push((file.clone(), text.with_context(|| format!("reading {file}"))?));
    }
    let tests: Vec<String> =
        texts.iter().flat_map(|(file, text)| sources::test_modules(file, text)).collect();
    for (file, text) in &texts {
        let is_test = tests.iter().any(|test| {
            file.strip_suffix(".rs") == Some(test) || file.starts_with(&format!("{test}/"))
        });
        findings.extend(sources::check(file, text, is_test));
    }
    let metadata = image::run(
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(root)
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"]),
    )?;
    let metadata = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    findings.extend(graph::check(&metadata, root)?);
    Ok(findings)
}

/// Paths of all Rust files, relative to `root`, without what tools write.
fn rust_files(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            rust_files(root, &path, found)?;
        } else if name.ends_with(".rs") {
            found.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_keeps_its_own_rules() {
        let findings = check(&paths::repository()).unwrap();
        assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    }
}
