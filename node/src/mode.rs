//! What one binary does depends on how it was started (rule B1). Pure.
//!
//! Must not know: how a mode works.

/// What to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `/init` of the initramfs: find the root disk, go there.
    Initramfs,
    /// PID 1 of the node.
    Node,
    /// Print what this is.
    Help,
    /// Print the version.
    Version,
    /// The node was asked for where it cannot be.
    NodeElsewhere,
    /// Nothing that exists.
    Unknown,
}

/// How the process was started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Process id.
    pub pid: u32,
    /// Whether `/` is a memory file system.
    pub root_in_memory: bool,
    /// First argument.
    pub argument: Option<&'a str>,
}

/// Chooses the mode.
pub fn choose(start: Start<'_>) -> Mode {
    match (start.pid, start.argument) {
        // The kernel hands words of its command line that it does not know to PID 1.
        (1, _) if start.root_in_memory => Mode::Initramfs,
        (1, _) => Mode::Node,
        (_, Some("--version" | "-V" | "version")) => Mode::Version,
        (_, None | Some("--help" | "-h" | "help")) => Mode::Help,
        (_, Some("node")) => Mode::NodeElsewhere,
        (_, Some(_)) => Mode::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pid: u32, root_in_memory: bool, argument: Option<&str>) -> Mode {
        choose(Start { pid, root_in_memory, argument })
    }

    #[test]
    fn b1_pid_1_is_the_initramfs_or_the_node_whatever_its_arguments() {
        assert_eq!(at(1, true, None), Mode::Initramfs);
        assert_eq!(at(1, false, Some("--help")), Mode::Node);
    }

    #[test]
    fn b1_elsewhere_it_is_a_command_and_never_a_node() {
        assert_eq!(at(7, true, None), Mode::Help);
        assert_eq!(at(7, false, Some("--version")), Mode::Version);
        assert_eq!(at(7, false, Some("node")), Mode::NodeElsewhere);
        assert_eq!(at(7, false, Some("nod")), Mode::Unknown);
    }
}
