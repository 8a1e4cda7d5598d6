//! `hamlet` as a command: looks into a node, this one or another (rules C1 to C3).
//!
//! ```text
//! args (clap) → commands, logs ── client (HTTP | host channel) ──▶ the node's JSON
//!                     │                                              │
//!                     └── screen ◀── render (pure) ◀── model ◀───────┘
//! ```
//!
//! Owner: a process of its own, never PID 1. Invariants: text for people is made by pure functions; JSON for
//! programs is the node's own; nothing is changed without being asked for. Must not know: the tree, storage,
//! Kubernetes: only the node's JSON.
pub mod args;
pub mod client;
mod commands;
pub mod endpoint;
pub mod failure;
mod logs;
pub mod model;
pub mod render;
mod screen;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

pub use screen::Screen;

use args::{Cli, Command};
use client::Client;
use commands::Asked;
use endpoint::Endpoint;
use failure::Failure;

/// Status of a command that was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("hamlet: {e}");
            return ExitCode::FAILURE;
        }
    };
    let status = runtime.block_on(async {
        let mut screen = Screen::stdout();
        // Cancel safe: an interrupted command leaves nothing behind.
        tokio::select! {
            status = run(std::env::args_os(), &mut screen) => status,
            Ok(()) = tokio::signal::ctrl_c() => INTERRUPTED,
        }
    });
    ExitCode::from(status)
}

/// Runs a command line and returns its exit status. What went wrong is said on stderr.
pub async fn run<I>(arguments: I, screen: &mut Screen) -> u8
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors; a closed pipe is none either.
            let _ = e.print();
            return u8::try_from(e.exit_code()).unwrap_or(2);
        }
    };
    match execute(&cli, screen).await {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(failure) => {
            if let Some(text) = failure.text() {
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            failure.status()
        }
    }
}

/// Runs a command; the answer is whether it is a yes.
///
/// # Errors
/// See [`Failure`].
pub async fn execute(cli: &Cli, screen: &mut Screen) -> Result<bool, Failure> {
    if let Command::Completions { shell } = &cli.command {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), "hamlet", &mut script);
        screen.write(&String::from_utf8_lossy(&script))?;
        return Ok(true);
    }
    let endpoint = Endpoint::parse(&cli.common.endpoint).map_err(Failure::Usage)?;
    let client = Client::new(endpoint, cli.common.token.clone());
    let asked = Asked { client, output: cli.common.output };
    match &cli.command {
        Command::Tree { dn, watch } => {
            commands::tree(&asked, dn.as_deref(), *watch, screen).await?
        }
        Command::Logs(arguments) => logs::run(&asked, arguments, screen).await?,
        Command::Top { once } => commands::top(&asked, *once, screen).await?,
        Command::Crash { dn } => commands::crash(&asked, dn, screen).await?,
        Command::Health { wait, timeout } => {
            return commands::health(&asked, wait.map(|_| *timeout), screen).await;
        }
        Command::Volumes => commands::volumes(&asked, screen).await?,
        Command::Node => commands::node(&asked, screen).await?,
        Command::Restart { dn } => commands::restart(&asked, dn, screen).await?,
        Command::Level { assignment, time } => {
            commands::level(&asked, assignment, *time, screen).await?;
        }
        Command::Reboot(end) => commands::power(&asked, "reboot", end, screen).await?,
        Command::Poweroff(end) => commands::power(&asked, "poweroff", end, screen).await?,
        Command::Completions { .. } => {}
    }
    Ok(true)
}
