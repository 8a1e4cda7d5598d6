//! The command line.

use std::path::PathBuf;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use serde_json::json;

use crate::compile::Flavour;
use crate::host::{self, For};
use crate::ui::Ui;
use crate::{bench, boot, node_image, test, tidy, up, upstream};

/// Build, boot and test Hamlet.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, arg_required_else_help = true)]
struct Cli {
    /// Say only errors and results.
    #[arg(long, global = true, conflicts_with = "json")]
    quiet: bool,
    /// Say everything as JSON, one object a line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build everything, boot a node, run the demonstration on it, stay until Ctrl-C.
    Up(up::Arguments),
    /// Run every check and test; a summary at the end.
    Test(test::Arguments),
    /// Measure.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Build the node image and print its folder.
    Image(ImageArguments),
    /// Boot an image with its console in front of you.
    Boot(boot::Arguments),
    /// Check the rules of this repository that no compiler checks.
    Tidy,
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
struct ImageArguments {
    /// With fault injection, as the VM tests need it.
    #[arg(long)]
    faults: bool,
    /// Optimised, for a published image.
    #[arg(long)]
    release: bool,
    /// Take this static binary for `hamlet` instead of building it.
    #[arg(long)]
    hamlet: Option<PathBuf>,
}

/// Reads the command line and does what it says.
///
/// # Errors
/// What the command says.
pub(crate) fn run() -> Result<()> {
    let cli = Cli::parse();
    let ui = Ui::new(cli.quiet, cli.json);
    match cli.command {
        Command::Up(arguments) => up::run(&ui, &arguments),
        Command::Test(arguments) => test::run(&ui, &arguments),
        Command::Bench(bench) => bench::run(&ui, &bench),
        Command::Image(arguments) => image(&ui, arguments),
        Command::Boot(arguments) => {
            host::ensure(&ui, For::Build)?;
            boot::run(&ui, arguments)
        }
        Command::Tidy => tidy::run(&ui),
        Command::Completions { shell } => {
            let mut command = Cli::command();
            clap_complete::generate(shell, &mut command, "cargo-xtask", &mut std::io::stdout());
            Ok(())
        }
    }
}

fn image(ui: &Ui, arguments: ImageArguments) -> Result<()> {
    host::ensure(ui, For::Build)?;
    let flavour = Flavour { faults: arguments.faults, release: arguments.release };
    let image = match arguments.hamlet {
        Some(binary) => {
            let name = node_image::name_of_binary(&binary);
            node_image::build_with(ui, binary, upstream::programs_of(ui, flavour.faults)?, &name)?
        }
        None => node_image::build(ui, flavour)?,
    };
    let folder = image.folder.display().to_string();
    let event = json!({
        "event": "image", "folder": folder, "key": image.manifest.key,
        "kernel": image.manifest.kernel, "sizes": image.manifest.sizes,
    });
    ui.result(&folder, event);
    Ok(())
}
