//! What to do on the way down (rules Q1 to Q6). Pure: reason, phase and mount table in, steps out.
//!
//! Diagram: `Request → Steps::{StopTree, StopOthers, Record, Unmount, Sync, End}`; a second request at
//! least 1 s later goes straight to `Sync, End`.
//! Must not know: how a step is done.
use std::time::Duration;

use crate::mounts::Mounted;
use crate::params::EndAction;

/// Two requests closer than this are one: a key that bounces, a sender that repeats itself.
pub(crate) const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// Rounds of unmounting; what is busy in the first may be free in the next.
pub const UNMOUNT_ROUNDS: usize = 3;

/// Why the node goes down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// ACPI power button.
    PowerButton,
    /// A signal to PID 1.
    Signal(i32),
    /// Somebody at the host channel.
    Host(EndAction),
    /// Somebody at the dashboard.
    Dashboard(EndAction),
    /// The tree or bring-up cannot go on.
    Fatal {
        /// Error or panic.
        panicked: bool,
        /// What the parameter says about fatal ends.
        action: EndAction,
    },
}

impl Reason {
    /// The reason a signal stands for; `None` for signals that mean nothing to the node.
    pub fn of_signal(signal: i32) -> Option<Reason> {
        end_of_signal(signal).map(|_| Reason::Signal(signal))
    }

    /// How the machine ends.
    pub fn end(&self) -> EndAction {
        match self {
            Reason::PowerButton => EndAction::PowerOff,
            Reason::Signal(s) => end_of_signal(*s).unwrap_or(EndAction::Reboot),
            Reason::Host(action) | Reason::Dashboard(action) => *action,
            Reason::Fatal { action, .. } => *action,
        }
    }

    /// The word of the outcome in records and markers.
    pub fn outcome(&self) -> &'static str {
        self.end().as_str()
    }

    /// The word of the reason in records and markers.
    pub fn word(&self) -> String {
        match self {
            Reason::PowerButton => "power-button".to_owned(),
            Reason::Signal(s) => format!("signal-{s}"),
            Reason::Host(_) => "host-channel".to_owned(),
            Reason::Dashboard(_) => "dashboard".to_owned(),
            Reason::Fatal { panicked: true, .. } => "panic".to_owned(),
            Reason::Fatal { panicked: false, .. } => "error".to_owned(),
        }
    }
}

/// Rule Q1. SIGINT is Ctrl-Alt-Del.
fn end_of_signal(signal: i32) -> Option<EndAction> {
    const SIGINT: i32 = 2;
    const SIGUSR1: i32 = 10;
    const SIGUSR2: i32 = 12;
    const SIGTERM: i32 = 15;
    const SIGPWR: i32 = 30;
    match signal {
        SIGINT | SIGTERM => Some(EndAction::Reboot),
        SIGUSR2 | SIGPWR => Some(EndAction::PowerOff),
        SIGUSR1 => Some(EndAction::Halt),
        _ => None,
    }
}

/// How far the node had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Only the kernel's mounts.
    Mounted,
    /// Logtree and reaper live.
    Logged,
    /// The tree runs.
    Tree,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Stop the tree in its stages, wait until it is quiet.
    StopTree,
    /// TERM to all other processes, then KILL.
    StopOthers,
    /// Write the outcome into the boot's record.
    Record,
    /// Unmount what holds data.
    Unmount,
    /// Flush what could not be unmounted.
    Sync,
    /// reboot(2).
    End(EndAction),
}

/// The steps for a first request.
pub fn plan(reason: &Reason, progress: Progress) -> Vec<Step> {
    let mut steps = Vec::new();
    if progress >= Progress::Tree {
        steps.push(Step::StopTree);
    }
    if progress >= Progress::Logged {
        steps.extend([Step::StopOthers, Step::Record]);
    }
    steps.extend([Step::Unmount, Step::Sync, Step::End(reason.end())]);
    steps
}

/// The steps for a second request, or when the budget is over.
pub fn hurried(reason: &Reason) -> Vec<Step> {
    vec![Step::Sync, Step::End(reason.end())]
}

/// What a request does while another one is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Too soon after the first: nothing.
    Ignore,
    /// Somebody insists: skip to the end.
    Hurry,
}

/// Judges a request that came `after` the first.
pub fn repeat(after: Duration) -> Repeat {
    if after < REPEAT_WINDOW { Repeat::Ignore } else { Repeat::Hurry }
}

/// Types whose mounts are the kernel's own and hold nothing.
const KERNEL_TYPES: &[&str] = &[
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup2",
    "mqueue",
    "bpf",
    "tracefs",
    "pstore",
    "efivarfs",
    "securityfs",
    "debugfs",
    "configfs",
    "rootfs",
    "nsfs",
    "hugetlbfs",
    "binfmt_misc",
];

/// Last of all, in this order: everything else may use them.
const LAST: &[&str] = &["/data", "/esp"];

/// One mount to undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmount {
    /// Where.
    pub target: String,
    /// A device is behind it: if it stays mounted, the end is not clean.
    pub holds_data: bool,
}

/// The mounts to undo, last mounted first, `/data` and `/esp` at the end.
pub fn unmounts(table: &[Mounted]) -> Vec<Unmount> {
    let ours = |m: &&Mounted| {
        m.target != "/"
            && !KERNEL_TYPES.contains(&m.fs_type.as_str())
            && m.target != "/dev/shm"
            && m.target != "/run"
    };
    let undo = |m: &Mounted| Unmount {
        target: m.target.clone(),
        holds_data: m.source.starts_with("/dev/"),
    };
    let mut early: Vec<Unmount> = Vec::new();
    let mut late: Vec<Unmount> = Vec::new();
    for m in table.iter().rev().filter(ours) {
        let last = LAST.contains(&m.target.as_str());
        if last { &mut late } else { &mut early }.push(undo(m));
    }
    early.extend(late);
    early
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::parse_mounts;

    #[test]
    fn q1_each_source_has_its_end() {
        assert_eq!(Reason::PowerButton.end(), EndAction::PowerOff);
        for (signal, end) in [
            (2, EndAction::Reboot),
            (15, EndAction::Reboot),
            (12, EndAction::PowerOff),
            (30, EndAction::PowerOff),
            (10, EndAction::Halt),
        ] {
            assert_eq!(Reason::of_signal(signal).unwrap().end(), end, "signal {signal}");
        }
        assert_eq!(Reason::of_signal(1), None);
        assert_eq!(Reason::Host(EndAction::Halt).end(), EndAction::Halt);
    }

    #[test]
    fn q1_a_bouncing_request_is_ignored_and_an_insisting_one_hurries() {
        assert_eq!(repeat(Duration::from_millis(999)), Repeat::Ignore);
        assert_eq!(repeat(Duration::from_secs(1)), Repeat::Hurry);
        let hurried = hurried(&Reason::PowerButton);
        assert_eq!(hurried, [Step::Sync, Step::End(EndAction::PowerOff)]);
    }

    #[test]
    fn q4_the_tree_goes_before_other_processes_and_those_before_the_mounts() {
        let steps = plan(&Reason::PowerButton, Progress::Tree);
        assert_eq!(
            steps,
            [
                Step::StopTree,
                Step::StopOthers,
                Step::Record,
                Step::Unmount,
                Step::Sync,
                Step::End(EndAction::PowerOff)
            ]
        );
        let fatal = Reason::Fatal { panicked: false, action: EndAction::Reboot };
        let early = plan(&fatal, Progress::Mounted);
        assert_eq!(early, [Step::Unmount, Step::Sync, Step::End(EndAction::Reboot)]);
    }

    #[test]
    fn q5_the_last_mount_goes_first_and_the_data_disk_last() {
        let table = parse_mounts(
            "rootfs / rootfs rw 0 0\n/dev/vda / erofs ro 0 0\nproc /proc proc rw 0 0\n\
             tmpfs /run tmpfs rw 0 0\ntmpfs /var tmpfs rw 0 0\n/dev/vdb /data xfs rw 0 0\n\
             /dev/vdb /var/lib/kubelet xfs rw 0 0\n/dev/vdb /var/lib/kubelet/pods/x xfs rw 0 0\n\
             tmpfs /var/lib/kubelet/pods/t tmpfs rw 0 0\n",
        );
        let order: Vec<(String, bool)> =
            unmounts(&table).into_iter().map(|u| (u.target, u.holds_data)).collect();
        assert_eq!(
            order,
            [
                ("/var/lib/kubelet/pods/t".to_owned(), false),
                ("/var/lib/kubelet/pods/x".to_owned(), true),
                ("/var/lib/kubelet".to_owned(), true),
                ("/var".to_owned(), false),
                ("/data".to_owned(), true),
            ]
        );
    }

    #[test]
    fn a_fatal_end_is_told_apart_by_error_and_panic() {
        let fatal = |panicked| Reason::Fatal { panicked, action: EndAction::Reboot };
        assert_eq!((fatal(true).outcome(), fatal(true).word()), ("reboot", "panic".to_owned()));
        assert_eq!((fatal(false).outcome(), fatal(false).word()), ("reboot", "error".to_owned()));
        assert_eq!(Reason::Signal(15).outcome(), "reboot");
        assert_eq!(Reason::Signal(15).word(), "signal-15");
    }
}
