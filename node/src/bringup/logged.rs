//! The third step: logtree, reaper, consoles, signal thread, standard output (rules B7, B8, R1).
//!
//! Invariant: from here on nothing is said but through the log. Must not know: services.
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use logtree::{Dn, Format, Limits, LogTree};
use nodesys::signals::Blocked;
use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};
use slog::{info, warn};

use super::{BringupFailed, Mounted, chain, mounted};
use crate::console::Consoles;
use crate::data::{self, BootLedger, DataDiskUp};
use crate::outcome::previous_marker;
use crate::params::Parameters;
use crate::phases::Phases;
use crate::process::{ProcessSpawner, Reaper, SpawnLayout};
use crate::shutdown::{EndQueue, EndRequests, FatalEnd, Reason, Standing, end_requests};
use crate::threads;

/// The machine with its log, its consoles and its reaper.
#[derive(Debug)]
pub struct Logged {
    pub(super) parameters: Parameters,
    pub(super) logs: LogTree,
    pub(super) consoles: Consoles,
    pub(super) spawner: ProcessSpawner,
    pub(super) ends: EndRequests,
    pub(super) phases: Phases,
    pub(super) boot_id: String,
    pub(super) data: localstorage::Unmounted<localstorage::Data>,
    pub(super) run: localstorage::Run,
}

impl Mounted {
    /// Starts what must be there before the first child and the first Runnable.
    ///
    /// # Errors
    /// The kernel gives no thread or pipe.
    pub fn log(
        self,
        standing: &mut Standing,
        queue: &mut Option<EndQueue>,
    ) -> Result<Logged, BringupFailed> {
        let failed = |e: io::Error| BringupFailed::one("log", &e);
        let logs = LogTree::new(Limits::default());
        for (dn, level) in &self.parameters.log {
            logs.set_level(dn, *level, None);
        }
        let (ends, requests) = end_requests(self.parameters.fatal);
        *queue = Some(requests);
        // Fails only if it was done before, which the types exclude.
        let _ = logtree::install_global(logs.clone());
        let consoles = Consoles::start(&self.consoles, &logs, &ends).map_err(failed)?;
        standing.logs = Some(logs.clone());
        standing.consoles = Some(consoles.clone());
        capture_output(&logs, &ends).map_err(failed)?;
        // The console writers show what matters from now on; the kernel keeps its panics.
        let _ = fs::write("/proc/sys/kernel/printk", "1");
        let reaper = start_reaper(&ends).map_err(failed)?;
        standing.reaper = Some(reaper.clone());
        watch_signals(self.signals, &logs, &ends).map_err(failed)?;
        let log = logs.logger(&Dn::from_static("init"));
        info!(log, "hamlet {} on Linux {}", crate::VERSION,
            rustix::system::uname().release().to_string_lossy(); "boot_id" => self.boot_id.clone());
        for note in &self.notes {
            warn!(log, "{}", note);
        }
        take_last_words(&logs, Path::new("/sys/fs/pstore"));
        self.phases.reach("logged");
        let layout = SpawnLayout {
            cgroups: Some(self.cgroups),
            files: self.run.hamlet.full_path().to_path_buf(),
        };
        Ok(Logged {
            parameters: self.parameters,
            logs,
            consoles,
            spawner: ProcessSpawner::new(reaper, layout),
            ends,
            phases: self.phases,
            boot_id: self.boot_id,
            data: self.data,
            run: self.run,
        })
    }
}

/// Logs what the kernel kept of an earlier boot's end, then deletes it (rule B10).
fn take_last_words(logs: &LogTree, pstore: &Path) {
    let log = logs.logger(&Dn::from_static("init.pstore"));
    let records = match fs::read_dir(pstore) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return,
        Err(e) => return warn!(log, "cannot list the records of earlier boots: {}", e),
        Ok(records) => records,
    };
    for path in records.flatten().map(|r| r.path()) {
        match fs::read(&path) {
            Ok(bytes) => {
                let mut sink = logs.sink(&Dn::from_static("init.pstore"), Format::Raw);
                sink.push(&bytes);
                sink.finish();
                if let Err(e) = fs::remove_file(&path) {
                    warn!(log, "{} stays: {}", path.display(), e);
                }
            }
            // Once a boot is enough: it is read again at the next one.
            Err(e) => warn!(log, "cannot read {}: {}", path.display(), e),
        }
    }
}

/// Leads this process's own standard output and error into the log (rule B7).
fn capture_output(logs: &LogTree, ends: &EndRequests) -> io::Result<()> {
    let (out, out_end) = pipe_with(PipeFlags::CLOEXEC)?;
    let (err, err_end) = pipe_with(PipeFlags::CLOEXEC)?;
    for (pipe, dn) in [(out, "init.stdout"), (err, "init.stderr")] {
        let sink = logs.sink(&Dn::from_static(dn), Format::Raw);
        threads::critical(dn, ends.clone(), move || copy(pipe, sink))?;
    }
    nodesys::stdio::redirect_output(out_end.as_fd(), err_end.as_fd())
}

fn copy(pipe: OwnedFd, mut sink: impl Write) {
    let mut pipe = File::from(pipe);
    let mut buffer = [0; 4096];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            // The log takes everything: it has no way to fail.
            Ok(n) => drop(sink.write_all(buffer.get(..n).unwrap_or_default())),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn start_reaper(ends: &EndRequests) -> io::Result<Reaper> {
    let reaper = Reaper::new();
    let (thread, fatal) = (reaper.clone(), ends.clone());
    threads::critical("reaper", ends.clone(), move || match thread.run() {
        Ok(never) => match never {},
        Err(e) => fatal.fatal(FatalEnd::failed(chain(&e))),
    })?;
    Ok(reaper)
}

/// One thread takes all signals of PID 1 (rules B2, Q1).
fn watch_signals(signals: Blocked, logs: &LogTree, ends: &EndRequests) -> io::Result<()> {
    let log = logs.logger(&Dn::from_static("init"));
    let asks = ends.clone();
    let body = move || {
        loop {
            let received = match signals.wait() {
                Ok(received) => received,
                Err(e) => {
                    asks.fatal(FatalEnd::failed(format!("waiting for signals failed: {e}")));
                    return;
                }
            };
            let from = received.from_pid;
            match Reason::of_signal(received.signal) {
                Some(reason) => {
                    asks.ask(reason, format!("signal {} from process {from}", received.signal));
                }
                None => info!(log, "signal {} ignored", received.signal; "from_pid" => from),
            }
        }
    };
    threads::critical("signals", ends.clone(), body)?;
    Ok(())
}

/// The data disk, ready, with the record of this boot begun.
pub(super) struct DataReady {
    pub(super) up: DataDiskUp,
    pub(super) ledger: Option<Arc<Mutex<BootLedger>>>,
}

/// Mounts the data disk and begins this boot's record (rule B10).
pub(super) fn mount_data(
    logged: Logged,
    standing: &mut Standing,
) -> Result<(Shell, DataReady), BringupFailed> {
    let Logged { parameters, logs, consoles, spawner, ends, phases, boot_id, data, run } = logged;
    let log = logs.logger(&Dn::from_static("init"));
    let up = data::bring_up(data, &parameters.data_disk, &spawner)
        .map_err(|e| BringupFailed::one("data disk", &e))?;
    let did = if up.formatted { "formatted and mounted" } else { "mounted" };
    info!(log, "data disk {} {}", up.device.display(), did);
    let (ledger, warning) = BootLedger::begin(&up.data, &boot_id);
    if let Some(warning) = warning {
        warn!(log, "the record of boots: {}", warning);
    }
    if let Some(previous) = ledger.as_ref().and_then(BootLedger::previous) {
        standing.announcer.line(&previous_marker(previous));
        info!(
            log,
            "the boot before ended by {} ({}), clean: {}",
            previous.outcome,
            previous.reason,
            previous.clean
        );
        if previous.failed() {
            warn!(log, "the boot before failed: {}", previous.text);
        }
    }
    match data::machine_id(&up.data) {
        Ok(id) => {
            if let Err(e) = mounted::write_etc(&run, "machine-id", &format!("{id}\n")) {
                warn!(log, "no machine id: {}", e);
            }
        }
        Err(e) => warn!(log, "no machine id: {}", e),
    }
    let ledger = ledger.map(|l| Arc::new(Mutex::new(l)));
    standing.ledger.clone_from(&ledger);
    let shell = Shell { parameters, logs, consoles, spawner, ends, phases, boot_id, run };
    Ok((shell, DataReady { up, ledger }))
}

/// What is left of [`Logged`] when the data disk was taken out of it.
pub(super) struct Shell {
    pub(super) parameters: Parameters,
    pub(super) logs: LogTree,
    pub(super) consoles: Consoles,
    pub(super) spawner: ProcessSpawner,
    pub(super) ends: EndRequests,
    pub(super) phases: Phases,
    pub(super) boot_id: String,
    pub(super) run: localstorage::Run,
}

#[cfg(test)]
mod tests {
    use super::*;
    use logtree::Query;

    #[test]
    fn b10_last_words_of_an_earlier_boot_are_logged_and_deleted() {
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("dmesg-1"), "Panic#1\nKernel panic").unwrap();
        // A folder cannot be read as a record: one warning, no loop.
        fs::create_dir(t.path().join("odd")).unwrap();
        let logs = LogTree::new(Limits::default());
        take_last_words(&logs, t.path());
        assert!(!t.path().join("dmesg-1").exists());
        let batch = logs.read(Query::all(Dn::from_static("init.pstore"))).unwrap().next(10);
        let mut lines: Vec<String> = batch.entries.iter().map(|e| e.message()).collect();
        lines.sort();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[..2], ["Kernel panic", "Panic#1"]);
        take_last_words(&logs, &t.path().join("missing"));
    }
}
