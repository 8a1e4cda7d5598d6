//! What one binary does depends on how it was started (rule B1). Pure.
//!
//! `hamlet node` is the command that shows the node (C1); the node itself cannot be asked for, only be PID 1.
//!
//! Must not know: how a mode works.

/// What to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `/init` of the initramfs: find the root disk, go there.
    Initramfs,
    /// PID 1 of the node.
    Node,
    /// A command that looks into a node, help and version among them.
    Command,
    /// The node was asked for where it cannot be.
    NodeElsewhere,
}

/// How the process was started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Process id.
    pub pid: u32,
    /// Whether `/` is a memory file system.
    pub root_in_memory: bool,
    /// What it was started as.
    pub program: Option<&'a str>,
    /// First argument.
    pub argument: Option<&'a str>,
}

/// Chooses the mode.
pub fn choose(start: Start<'_>) -> Mode {
    let name = start.program.and_then(|p| p.rsplit('/').next());
    match (start.pid, start.argument) {
        // The kernel hands words of its command line that it does not know to PID 1.
        (1, _) if start.root_in_memory => Mode::Initramfs,
        (1, _) => Mode::Node,
        (_, Some("init")) => Mode::NodeElsewhere,
        _ if name == Some("init") => Mode::NodeElsewhere,
        _ => Mode::Command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pid: u32, root_in_memory: bool, program: &str, argument: Option<&str>) -> Mode {
        choose(Start { pid, root_in_memory, program: Some(program), argument })
    }

    #[test]
    fn b1_pid_1_is_the_initramfs_or_the_node_whatever_its_arguments() {
        assert_eq!(at(1, true, "/init", None), Mode::Initramfs);
        assert_eq!(at(1, false, "/sbin/hamlet", Some("--help")), Mode::Node);
        assert_eq!(at(1, false, "/init", Some("tree")), Mode::Node);
    }

    #[test]
    fn b1_elsewhere_it_is_a_command_and_never_a_node() {
        for argument in [None, Some("--version"), Some("node"), Some("nonsense")] {
            assert_eq!(at(7, true, "/sbin/hamlet", argument), Mode::Command);
        }
        assert_eq!(at(7, false, "/sbin/hamlet", Some("init")), Mode::NodeElsewhere);
        assert_eq!(at(7, false, "/init", None), Mode::NodeElsewhere);
        assert_eq!(at(7, false, "/sbin/init", Some("6")), Mode::NodeElsewhere);
    }
}
