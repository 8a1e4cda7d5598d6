//! `cargo xtask`: everything a person does with this repository.
//!
//! A command is a module with a function that gets its arguments and a `Ui`.
//! Errors come up here and are printed as one line with the next step.

mod bench;
mod bench_supervisor;
mod boot;
mod cli;
mod compile;
mod demo;
mod host;
mod interrupt;
mod node_image;
mod paths;
mod test;
mod tidy;
mod ui;
mod up;
mod upstream;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
