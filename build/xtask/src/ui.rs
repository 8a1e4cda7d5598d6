//! What the user sees: stages with elapsed time, as moving bars on a terminal,
//! as plain lines elsewhere, as JSON lines for programs, or not at all.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Moving bars.
    Bars,
    /// One line when a stage starts and one when it ends.
    Lines,
    /// One JSON object a line.
    Json,
    /// Errors and results only.
    Quiet,
}

/// In `Lines`, a stage that goes on says so at most this often.
const LINE_INTERVAL: Duration = Duration::from_secs(15);

/// How often a bar's clock moves on.
const TICK: Duration = Duration::from_millis(200);

/// The user's view of a command.
#[derive(Debug)]
pub(crate) struct Ui {
    mode: Mode,
    started: Instant,
}

impl Ui {
    /// A view in the mode the flags ask for.
    pub(crate) fn new(quiet: bool, json: bool) -> Self {
        let mode = match (quiet, json) {
            (_, true) => Mode::Json,
            (true, false) => Mode::Quiet,
            (false, false) if std::io::stderr().is_terminal() => Mode::Bars,
            (false, false) => Mode::Lines,
        };
        Self { mode, started: Instant::now() }
    }

    /// Begins a stage.
    pub(crate) fn stage(&self, name: &str) -> Stage<'_> {
        let bar = (self.mode == Mode::Bars).then(|| {
            let bar = ProgressBar::new_spinner();
            let style =
                ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}");
            bar.set_style(style.expect("a template that indicatif knows"));
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(TICK);
            bar
        });
        match self.mode {
            Mode::Lines => self.line(&format!("{name} ...")),
            Mode::Json => self.json(json!({ "event": "stage", "stage": name, "state": "started" })),
            Mode::Bars | Mode::Quiet => {}
        }
        let now = Instant::now();
        Stage { ui: self, name: name.to_owned(), started: now, said: now, bar, open: true }
    }

    /// A result: shown in every mode but JSON, which gets `event` instead.
    pub(crate) fn result(&self, text: &str, event: Value) {
        if self.mode == Mode::Json {
            self.json(event);
        } else {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }

    /// Something to know in passing.
    pub(crate) fn say(&self, text: &str) {
        match self.mode {
            Mode::Bars => eprintln!("  {text}"),
            Mode::Lines => self.line(text),
            Mode::Json => self.json(json!({ "event": "note", "text": text })),
            Mode::Quiet => {}
        }
    }

    fn line(&self, text: &str) {
        eprintln!("[{:>6.1} s] {text}", self.started.elapsed().as_secs_f64());
    }

    fn json(&self, mut event: Value) {
        event["elapsed_s"] = json!(seconds(self.started.elapsed()));
        let _ = writeln!(std::io::stdout(), "{event}");
    }
}

fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

/// A stage that runs. It counts as failed unless [`Stage::done`] is called.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    ui: &'a Ui,
    name: String,
    started: Instant,
    said: Instant,
    bar: Option<ProgressBar>,
    open: bool,
}

impl Stage<'_> {
    /// What the stage is at now.
    pub(crate) fn note(&mut self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
        if self.ui.mode == Mode::Json {
            let event =
                json!({ "event": "stage", "stage": self.name, "state": "running", "note": text });
            self.ui.json(event);
        }
        if self.ui.mode == Mode::Lines && self.said.elapsed() >= LINE_INTERVAL {
            self.said = Instant::now();
            self.ui.line(&format!("{} ... {text}", self.name));
        }
    }

    /// How far the stage is.
    pub(crate) fn progress(&mut self, done: usize, total: usize, text: &str) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(total as u64) {
                bar.set_length(total as u64);
                let style = "{spinner} {prefix} {elapsed} [{bar:24}] {pos}/{len} {wide_msg:.dim}";
                let style = ProgressStyle::with_template(style);
                bar.set_style(
                    style.expect("a template that indicatif knows").progress_chars("=> "),
                );
            }
            bar.set_position(done as u64);
            bar.set_message(text.to_owned());
        } else if self.ui.mode == Mode::Lines {
            self.note(&format!("{done}/{total} {text}"));
        }
    }

    /// Ends the stage well; `detail` is what came out of it.
    pub(crate) fn done(mut self, detail: &str) {
        self.end("done", detail);
    }

    fn end(&mut self, state: &str, detail: &str) {
        self.open = false;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let took = self.started.elapsed();
        match self.ui.mode {
            Mode::Bars => {
                let mark = if state == "done" { "ok  " } else { "FAIL" };
                eprintln!("{mark} {:<28} {:>7.1} s  {detail}", self.name, took.as_secs_f64());
            }
            Mode::Lines => {
                let took = took.as_secs_f64();
                self.ui.line(&format!("{} {state} in {took:.1} s {detail}", self.name));
            }
            Mode::Json => self.ui.json(json!({
                "event": "stage", "stage": self.name, "state": state,
                "took_s": seconds(took), "detail": detail,
            })),
            Mode::Quiet => {}
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if self.open {
            self.end("failed", "");
        }
    }
}
