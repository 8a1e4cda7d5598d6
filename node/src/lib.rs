//! PID 1 of the node: brings the machine up, owns all child processes, starts the tree, takes the
//! machine down without losing data.
//!
//! | module | what |
//! |---|---|
//! | `mode` | what the binary is this time (pure) |
//! | `initramfs` | the life before the root disk |
//! | `bringup` | `Kernel → Mounted → Logged → Tree`, each consuming the last |
//! | `params`, `nearest`, `disk`, `modules`, `mounts`, `outcome` | what bring-up reads and decides, mostly pure |
//! | `process` | reaper and spawner of all children |
//! | `root` | the service table; `services` are its own Runnables |
//! | `host` | the host's own channel |
//! | `shutdown` | the plan of the way down (pure) and its execution |
//! | `cli` | the binary as a command that looks into a node |
//!
//! Invariants: order of start by types; one owner of `wait`; PID 1 never returns and never exits.
//! Nothing depends on this crate but its own binary and tests.

pub mod announce;
pub mod bringup;
pub mod cli;
pub mod clock;
pub mod console;
pub mod data;
pub mod disk;
pub mod host;
pub mod initramfs;
pub mod mode;
pub mod modules;
pub mod mounts;
pub mod names;
pub mod nearest;
pub mod outcome;
pub mod params;
pub mod phases;
pub mod process;
pub mod readiness;
pub mod root;
pub mod services;
pub mod shutdown;
pub mod threads;

use std::process::ExitCode;

use mode::Mode;

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Chooses the mode and lives it.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let (program, argument) = (arguments.next(), arguments.next());
    let pid = std::process::id();
    let root_in_memory = pid == 1 && initramfs::root_in_memory();
    let (program, argument) = (program.as_deref(), argument.as_deref());
    match mode::choose(mode::Start { pid, root_in_memory, program, argument }) {
        Mode::Initramfs => initramfs::run(),
        Mode::Node => bringup::run(),
        Mode::Command => cli::main(),
        Mode::NodeElsewhere => {
            eprintln!("hamlet: the node is PID 1 of a machine of its own, not a command");
            ExitCode::from(2)
        }
    }
}
