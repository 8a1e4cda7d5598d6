//! `cargo xtask test`: every check there is, then a summary.
//!
//! A failing step does not hide the ones after it, except where these need its
//! result.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::compile::Flavour;
use crate::host::{self, For};
use crate::ui::Ui;
use crate::{node_image, paths, tidy, upstream};

/// The test runner, installed into the cache where it is not there already.
const NEXTEST_VERSION: &str = "0.9.151";

/// Tests that boot a VM: the integration tests of crate e2e.
const VM_TESTS: &str = "package(e2e) & kind(test)";

/// Tests that run the real control plane, without a VM.
const NATIVE_TESTS: &str = "package(controlplane) & binary(native)";

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Without VMs.
    #[arg(long)]
    fast: bool,
    /// Only the VM tests whose name contains this.
    #[arg(long, value_name = "TEXT", conflicts_with = "fast")]
    vm: Option<String>,
}

/// What came of one step.
#[derive(Debug, Default)]
struct Outcome {
    passed: u64,
    failed: u64,
    skipped: u64,
    error: Option<String>,
}

struct Step {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// Runs the checks and prints the summary.
///
/// # Errors
/// Any check failed.
pub(crate) fn run(ui: &Ui, arguments: &Arguments) -> Result<()> {
    host::ensure(ui, if arguments.fast { For::Build } else { For::Test })?;
    let nextest = nextest(ui)?;
    let mut steps = Vec::new();
    let mut step = |name: &'static str, check: &dyn Fn() -> Result<Outcome>| {
        ui.say(&format!("=== {name}"));
        let started = Instant::now();
        let outcome = check().unwrap_or_else(|error| Outcome {
            failed: 1,
            error: Some(format!("{error:#}")),
            ..Outcome::default()
        });
        if let Some(error) = &outcome.error {
            eprintln!("{name}: {error}");
        }
        steps.push(Step { name, outcome, took: started.elapsed() });
    };
    if arguments.vm.is_none() {
        step("fmt", &|| cargo(&["fmt", "--all", "--", "--check"]));
        step("clippy", &|| cargo(CLIPPY));
        step("clippy, test image", &|| cargo(CLIPPY_FAULTS));
        step("tidy", &|| tidy::run(ui).map(|()| Outcome { passed: 1, ..Outcome::default() }));
        step("unit tests", &|| {
            let filter = format!("not ({VM_TESTS}) & not ({NATIVE_TESTS})");
            run_nextest(&nextest, &["--workspace", "-E", &filter], &[])
        });
        step("doc tests", &|| cargo(&["test", "--workspace", "--doc", "--locked", "--quiet"]));
    }
    if !arguments.fast && arguments.vm.is_none() {
        step("control plane", &|| native_tests(ui, &nextest));
    }
    if !arguments.fast {
        step("VM tests", &|| vm_tests(ui, &nextest, arguments.vm.as_deref()));
    }
    summary(ui, &steps)
}

const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];

const CLIPPY_FAULTS: &[&str] = &[
    "clippy",
    "--package",
    "node",
    "--features",
    "faults",
    "--locked",
    "--quiet",
    "--",
    "-D",
    "warnings",
];

/// Variable with the folders of the programs built from source, separated as in PATH.
const UPSTREAM_VARIABLE: &str = "HAMLET_UPSTREAM_BIN";

fn native_tests(ui: &Ui, nextest: &PathBuf) -> Result<Outcome> {
    let programs = upstream::programs(ui)?;
    let folders = programs.values().filter_map(|program| program.parent());
    let folders = std::env::join_paths(folders.collect::<BTreeSet<_>>())?;
    let arguments = ["--workspace", "-E", NATIVE_TESTS];
    run_nextest(nextest, &arguments, &[(UPSTREAM_VARIABLE, folders.as_os_str())])
}

fn vm_tests(ui: &Ui, nextest: &PathBuf, only: Option<&str>) -> Result<Outcome> {
    let flavour = Flavour { faults: true, release: false };
    let image = node_image::build(ui, flavour)?;
    // The whole workspace again, so that nothing is compiled with other features than before.
    let (scope, filter): (&[&str], String) = match only {
        Some(text) => (&["--package", "e2e"], format!("{VM_TESTS} & test({text})")),
        None => (&["--workspace"], VM_TESTS.to_owned()),
    };
    let image = (e2e::IMAGE_VARIABLE, image.folder.as_os_str());
    run_nextest(nextest, &[scope, &["-E", &filter]].concat(), &[image])
}

fn cargo_command() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::repository()).stdin(Stdio::null());
    cargo
}

fn cargo(arguments: &[&str]) -> Result<Outcome> {
    let status = cargo_command().args(arguments).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed", arguments.join(" "));
    }
    Ok(Outcome { passed: 1, ..Outcome::default() })
}

fn run_nextest(
    nextest: &PathBuf,
    arguments: &[&str],
    variables: &[(&str, &OsStr)],
) -> Result<Outcome> {
    let mut command = Command::new(nextest);
    command.current_dir(paths::repository()).args(["nextest", "run", "--locked"]).args(arguments);
    command.args(["--no-tests", "warn"]);
    if Path::new(host::BROWSER).exists() {
        // The dashboard's browser tests may not pass by finding none.
        command.env("HAMLET_BROWSER", "required");
    }
    command.envs(variables.iter().copied());
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", nextest.display()))?;
    let stderr = child.stderr.take().context("nextest has no standard error")?;
    let mut outcome = None;
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        eprintln!("{line}");
        outcome = parse_summary(&line).or(outcome);
    }
    let status = child.wait().context("cannot wait for nextest")?;
    let mut outcome = outcome.context("nextest ended without a summary")?;
    if !status.success() {
        outcome.failed = outcome.failed.max(1);
        outcome.error = Some("see the failures above".into());
    }
    Ok(outcome)
}

/// Reads `Summary [ 1.2s] 5 tests run: 3 passed (1 slow), 2 failed, 1 skipped`.
fn parse_summary(line: &str) -> Option<Outcome> {
    let plain = without_colours(line);
    let (_, counts) = plain.trim_start().strip_prefix("Summary")?.split_once("run:")?;
    let mut outcome = Outcome::default();
    let words: Vec<&str> = counts.split([' ', ',', '(', ')']).filter(|w| !w.is_empty()).collect();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else { continue };
        match pair[1] {
            "passed" => outcome.passed += number,
            "failed" | "timed" | "exec" => outcome.failed += number,
            "skipped" => outcome.skipped += number,
            _ => {}
        }
    }
    Some(outcome)
}

fn without_colours(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

/// The program `cargo-nextest`: of this machine, or of our cache.
fn nextest(ui: &Ui) -> Result<PathBuf> {
    let tools = paths::cache()?.join("tools");
    let ours = tools.join("bin/cargo-nextest");
    for program in [PathBuf::from("cargo-nextest"), ours.clone()] {
        if Command::new(&program).args(["nextest", "--version"]).output().is_ok() {
            return Ok(program);
        }
    }
    let mut stage = ui.stage("cargo-nextest");
    stage.note("compiling it, once");
    let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Outside of the repository: its static linking is not for tools.
    install.current_dir(tools.parent().context("a cache folder")?).env_remove("CARGO_TARGET_DIR");
    install.args(["install", "--locked", "--quiet", "--version", NEXTEST_VERSION, "--root"]);
    image::run_quiet(install.arg(&tools).arg("cargo-nextest")).with_context(|| {
        format!("cannot install cargo-nextest {NEXTEST_VERSION}; check the network, then try again")
    })?;
    stage.done(NEXTEST_VERSION);
    Ok(ours)
}

fn summary(ui: &Ui, steps: &[Step]) -> Result<()> {
    let mut lines = vec![String::new()];
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for Step { name, outcome, took } in steps {
        let mark = if outcome.failed == 0 { "ok  " } else { "FAIL" };
        lines.push(format!(
            "{mark} {name:<20} {:>7.1} s  {} passed, {} failed",
            took.as_secs_f64(),
            outcome.passed,
            outcome.failed
        ));
        passed += outcome.passed;
        failed += outcome.failed;
        skipped += outcome.skipped;
    }
    lines.push(format!("{passed} passed, {failed} failed"));
    let event = json!({ "event": "tests", "passed": passed, "failed": failed, "skipped": skipped });
    ui.result(&lines.join("\n"), event);
    if failed > 0 {
        let names: Vec<_> =
            steps.iter().filter(|step| step.outcome.failed > 0).map(|step| step.name).collect();
        bail!("failed: {}", names.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nextests_summary_is_read_with_and_without_colours() {
        for line in [
            "     Summary [   1.234s] 7 tests run: 4 passed (1 slow), 2 failed, 1 timed out, 5 skipped",
            "\u{1b}[32m     Summary\u{1b}[0m [ 1s] \u{1b}[1m7\u{1b}[0m tests run: \u{1b}[1m4\u{1b}[0m \
             passed, 3 failed, 5 skipped",
        ] {
            let outcome = parse_summary(line).unwrap();
            assert_eq!((outcome.passed, outcome.failed, outcome.skipped), (4, 3, 5), "{line}");
        }
        assert!(parse_summary("        PASS [   0.1s] e2e a_test").is_none());
    }
}
