//! Carrying out the plan of the way down, with what stands at that moment.
//!
//! Owner: the main thread of PID 1. Invariants: ends in reboot(2) whatever fails before; a watchdog thread
//! of its own ends it when the budget is over. Must not know: services.
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logtree::{Dn, LogTree};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::system::RebootCommand;
use slog::{crit, info, warn};
use supervisor::{Supervisor, Verdict};

use super::plan::{
    Progress, Reason, Repeat, Step, UNMOUNT_ROUNDS, hurried, plan, repeat, unmounts,
};
use super::{EndQueue, EndRequest};
use crate::announce::Announcer;
use crate::clock;
use crate::console::Consoles;
use crate::data::BootLedger;
use crate::mounts;
use crate::outcome::{Ending, outcome_marker};
use crate::params::EndAction;
use crate::process::Reaper;

/// How long other processes get after their TERM.
const OTHERS_GRACE: Duration = Duration::from_secs(5);

/// How long they may take to vanish after their KILL.
const OTHERS_KILLED: Duration = Duration::from_secs(2);

/// How long a last sync may take; a dead disk must not hold the end up.
const SYNC_LIMIT: Duration = Duration::from_secs(5);

/// How long consoles may take for the last words.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// What stands when the end comes: the way down uses what there is.
#[derive(Debug, Default)]
pub struct Standing {
    /// Lines that must reach people.
    pub announcer: Announcer,
    /// The log.
    pub logs: Option<LogTree>,
    /// The consoles.
    pub consoles: Option<Consoles>,
    /// The reaper.
    pub reaper: Option<Reaper>,
    /// The tree.
    pub tree: Option<Supervisor>,
    /// The record of this boot.
    pub ledger: Option<Arc<Mutex<BootLedger>>>,
    /// Whether the boot had finished.
    pub boot_finished: bool,
    /// Longest way down.
    pub budget: Option<Duration>,
}

impl Standing {
    fn progress(&self) -> Progress {
        match (&self.tree, &self.reaper) {
            (Some(_), _) => Progress::Tree,
            (None, Some(_)) => Progress::Logged,
            (None, None) => Progress::Mounted,
        }
    }

    fn say(&self, level: Verdict, text: &str) {
        match &self.logs {
            Some(logs) => {
                let log = logs.logger(&Dn::from_static("init"));
                match level {
                    Verdict::Ok | Verdict::Starting => info!(log, "{}", text),
                    Verdict::Degraded | Verdict::Restarting => warn!(log, "{}", text),
                    Verdict::Failing => crit!(log, "{}", text),
                }
            }
            None => self.announcer.line(text),
        }
    }
}

/// Takes the machine down. `queue` may bring a second request, which hurries.
pub fn go_down(mut standing: Standing, request: &EndRequest, mut queue: Option<EndQueue>) -> ! {
    let began = Instant::now();
    let budget = standing.budget.unwrap_or(Duration::from_secs(120));
    let end = request.reason.end();
    start_watchdog(budget, end);
    announce(&standing, request);
    doom(&standing, request);
    let mut down = Down { began, budget, clean: true };
    let orderly =
        if request.force { Vec::new() } else { plan(&request.reason, standing.progress()) };
    for step in orderly {
        let insisted = down.insisted(&mut queue);
        if insisted || !down.step(step, &mut standing, &request.reason, &mut queue) {
            break;
        }
    }
    standing.say(Verdict::Degraded, "the way down is cut short");
    for step in hurried(&request.reason) {
        down.clean = false;
        down.step(step, &mut standing, &request.reason, &mut None);
    }
    restart(end)
}

fn announce(standing: &Standing, request: &EndRequest) {
    if matches!(request.reason, Reason::Fatal { .. }) {
        standing.say(Verdict::Failing, &format!("Fatal error: {}", request.text));
        let what = if standing.boot_finished {
            "This node has failed."
        } else {
            "This node could not be started."
        };
        let next = match request.reason.end() {
            EndAction::Reboot => "Rebooting...",
            EndAction::PowerOff => "Powering off...",
            EndAction::Halt => "Halting...",
        };
        standing.say(Verdict::Failing, &format!("{what} {next}"));
    } else {
        let text =
            format!("{}: the node goes down ({})", request.text, request.reason.end().as_str());
        standing.say(Verdict::Ok, &text);
    }
}

/// Writes the reason down first: what follows may hang, or lose its power.
fn doom(standing: &Standing, request: &EndRequest) {
    let Some(ledger) = &standing.ledger else { return };
    if let Err(e) = ledger.lock().doom(&request.reason.word(), &request.text) {
        standing.say(Verdict::Degraded, &format!("cannot record why this boot ends: {e}"));
    }
}

struct Down {
    began: Instant,
    budget: Duration,
    clean: bool,
}

impl Down {
    /// Whether somebody has asked again, late enough to mean it.
    fn insisted(&self, queue: &mut Option<EndQueue>) -> bool {
        let Some(queue) = queue else { return false };
        while queue.try_recv().is_ok() {
            if repeat(self.began.elapsed()) == Repeat::Hurry {
                return true;
            }
        }
        false
    }

    /// Does one step; false if the rest shall be hurried.
    fn step(
        &mut self,
        step: Step,
        standing: &mut Standing,
        reason: &Reason,
        queue: &mut Option<EndQueue>,
    ) -> bool {
        match step {
            Step::StopTree => return self.stop_tree(standing, queue),
            Step::StopOthers => self.stop_others(standing),
            Step::Record => self.record(standing, reason),
            Step::Unmount => self.unmount_all(standing, reason),
            Step::Sync => sync(),
            Step::End(end) => self.finish(standing, reason, end),
        }
        true
    }

    fn stop_tree(&mut self, standing: &mut Standing, queue: &mut Option<EndQueue>) -> bool {
        let Some(tree) = standing.tree.clone() else { return true };
        let left = self.budget.saturating_sub(self.began.elapsed());
        let began = self.began;
        let quiet = tree.runtime().block_on(async {
            let insist = async {
                loop {
                    let asked = match queue {
                        Some(queue) => queue.recv().await,
                        None => None,
                    };
                    match asked {
                        Some(_) if repeat(began.elapsed()) == Repeat::Hurry => return,
                        Some(_) => {}
                        None => std::future::pending().await,
                    }
                }
            };
            // Cancel safe: a shutdown that has begun goes on whoever waits for it.
            tokio::select! {
                quiet = tree.shutdown() => Some(quiet),
                () = insist => None,
                () = tokio::time::sleep(left) => None,
            }
        });
        match quiet {
            Some(quiet) if quiet.stuck.is_empty() => true,
            Some(quiet) => {
                self.clean = false;
                let stuck: Vec<&str> = quiet.stuck.iter().map(Dn::as_str).collect();
                standing.say(Verdict::Degraded, &format!("did not end: {}", stuck.join(", ")));
                true
            }
            None => false,
        }
    }

    fn stop_others(&mut self, standing: &mut Standing) {
        // Handles of the tree hold files on the data disk open.
        standing.tree = None;
        let Some(reaper) = &standing.reaper else { return };
        for (signal, grace) in [(SIGTERM, OTHERS_GRACE), (SIGKILL, OTHERS_KILLED)] {
            if reaper.wait_childless(Duration::ZERO) {
                return;
            }
            if let Err(e) = nodesys::reap::signal_everybody(signal) {
                standing.say(Verdict::Degraded, &format!("cannot signal the other processes: {e}"));
            }
            if reaper.wait_childless(grace) {
                return;
            }
        }
        self.clean = false;
        standing.say(Verdict::Degraded, "some processes do not end");
    }

    fn ending(&self, reason: &Reason) -> Ending {
        Ending { outcome: reason.outcome().to_owned(), reason: reason.word(), clean: self.clean }
    }

    fn record(&self, standing: &Standing, reason: &Reason) {
        let Some(ledger) = &standing.ledger else { return };
        if let Err(e) = ledger.lock().complete(&self.ending(reason)) {
            standing.say(Verdict::Degraded, &format!("cannot record how this boot ends: {e}"));
        }
    }

    fn unmount_all(&mut self, standing: &Standing, reason: &Reason) {
        let mut left = Vec::new();
        for _ in 0..UNMOUNT_ROUNDS {
            left.clear();
            for u in unmounts(&mounts::current()) {
                if let Err(e) = unmount(u.target.as_str(), UnmountFlags::empty()) {
                    left.push((u, io::Error::from(e)));
                }
            }
            if !left.iter().any(|(u, _)| u.holds_data) {
                break;
            }
        }
        left.retain(|(u, _)| u.holds_data);
        if left.is_empty() {
            return;
        }
        for (u, e) in &left {
            let who = users(Path::new(&u.target)).join(", ");
            let text = format!("cannot unmount {}: {e}; held by: {who}", u.target);
            standing.say(Verdict::Degraded, &text);
        }
        self.clean = false;
        self.record(standing, reason);
        for (u, _) in &left {
            // A read-only XFS has an empty log: its next mount recovers nothing.
            if let Err(e) = mount_remount(u.target.as_str(), MountFlags::RDONLY, c"") {
                let text = format!("cannot make {} read-only: {e}", u.target);
                standing.say(Verdict::Degraded, &text);
            }
        }
    }

    fn finish(&self, standing: &Standing, reason: &Reason, end: EndAction) {
        if let (Some(consoles), Some(logs)) = (&standing.consoles, &standing.logs) {
            consoles.drain(logs, DRAIN_LIMIT);
        }
        standing.announcer.line(&outcome_marker(&self.ending(reason)));
        restart(end)
    }
}

/// Who has a file open below `path`, or works there; for the log.
fn users(path: &Path) -> Vec<String> {
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let links = ["cwd", "root"].map(|l| entry.path().join(l)).into_iter();
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let held = links
            .chain(open.map(|f| f.path()))
            .filter_map(|l| fs::read_link(l).ok())
            .find(|target| target.starts_with(path));
        if let Some(file) = held {
            users.push(format!("{name} ({})", file.display()));
        }
    }
    users
}

/// Flushes everything, for at most [`SYNC_LIMIT`].
fn sync() {
    let done = Arc::new((Mutex::new(false), parking_lot::Condvar::new()));
    let waiter = done.clone();
    let thread = std::thread::Builder::new().name("sync".to_owned()).spawn(move || {
        rustix::fs::sync();
        *waiter.0.lock() = true;
        waiter.1.notify_all();
    });
    if thread.is_err() {
        // No thread to wait beside: then without a limit.
        rustix::fs::sync();
        return;
    }
    let mut synced = done.0.lock();
    let end = Instant::now() + SYNC_LIMIT;
    while !*synced {
        if done.1.wait_until(&mut synced, end).timed_out() {
            return;
        }
    }
}

/// Ends the machine when the budget is over, whatever hangs (rule Q6).
fn start_watchdog(budget: Duration, end: EndAction) {
    let limit = budget + SYNC_LIMIT;
    let watchdog = move || {
        let over = Instant::now() + limit;
        while let Some(left) = over.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left);
        }
        sync();
        restart(end);
    };
    // Without it the way down has only its own limits.
    let _ = std::thread::Builder::new().name("shutdown-budget".to_owned()).spawn(watchdog);
}

/// reboot(2). Should the kernel refuse, waits for somebody to pull the plug.
fn restart(end: EndAction) -> ! {
    let command = match end {
        EndAction::Reboot => RebootCommand::Restart,
        EndAction::PowerOff => RebootCommand::PowerOff,
        EndAction::Halt => RebootCommand::Halt,
    };
    loop {
        // A machine without power management refuses to power off: then it halts.
        let _ = rustix::system::reboot(command);
        let _ = rustix::system::reboot(RebootCommand::Halt);
        std::thread::park_timeout(Duration::from_secs(60));
    }
}

/// Uptime as people read it, for the log.
pub fn uptime_text() -> String {
    format!("{:.1} s", clock::uptime().as_secs_f64())
}
