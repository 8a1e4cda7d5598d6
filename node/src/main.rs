//! The `hamlet` binary: PID 1 of the node, `/init` of its initramfs, or a command, depending on how it
//! was started.
use std::process::ExitCode;

fn main() -> ExitCode {
    node::main()
}
