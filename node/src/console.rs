//! The log on the machine's consoles (rule B8): one thread each, so that a blocked serial line holds up
//! only itself.
//!
//! Owner: PID 1, from before the tree until the very end (last words are drained); the Runnables
//! `console-<dev>` only report how they do. Invariants: each console has its own reader and learns how
//! many entries it missed; what is shown is the policy of the DN's node, not a list of names here.
//! Must not know: services.
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use logtree::{Backlog, Dn, Entry, Kind, Level, LogTree, Query, Reader};
use parking_lot::{Condvar, Mutex};
use rustix::fs::OFlags;
use supervisor::Snapshot;
use tokio::sync::watch;

use crate::shutdown::EndRequests;
use crate::threads;

/// Columns of a console line.
const WIDTH: usize = 120;

/// Entries taken from the log at a time.
const BATCH: usize = 64;

/// The reader wakes by events; this only bounds a wait that nothing ends.
const IDLE: Duration = Duration::from_secs(3600);

/// All console writers. Clones share them.
#[derive(Debug, Clone)]
pub struct Consoles {
    shared: Arc<Shared>,
    writers: Arc<Vec<ConsoleInfo>>,
}

/// One console.
#[derive(Debug, Clone)]
pub struct ConsoleInfo {
    /// Name below `/dev`.
    pub name: String,
    /// Entries it had to leave out so far because it was too slow.
    pub missed: watch::Receiver<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    tree: Mutex<Option<watch::Receiver<Arc<Snapshot>>>>,
    draining: AtomicBool,
    drained: Mutex<usize>,
    changed: Condvar,
}

impl Consoles {
    /// Starts a writer for each of the consoles that opens.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(names: &[String], logs: &LogTree, ends: &EndRequests) -> io::Result<Consoles> {
        let shared = Arc::new(Shared::default());
        let mut writers = Vec::new();
        for name in names {
            let Ok(device) = open(&Path::new("/dev").join(name)) else { continue };
            let Ok(reader) = logs.read(everything()) else { continue };
            let reader = reader.named("console");
            let (count, missed) = watch::channel(0);
            let writer =
                Writer { device, reader, count, levels: Levels::default(), shared: shared.clone() };
            let thread = format!("console-{name}");
            threads::critical(&thread, ends.clone(), move || writer.run())?;
            writers.push(ConsoleInfo { name: name.clone(), missed });
        }
        Ok(Consoles { shared, writers: Arc::new(writers) })
    }

    /// The consoles that opened.
    pub fn list(&self) -> &[ConsoleInfo] {
        &self.writers
    }

    /// From now on the levels of the tree's nodes hold.
    pub fn follow(&self, tree: watch::Receiver<Arc<Snapshot>>) {
        *self.shared.tree.lock() = Some(tree);
    }

    /// Ends the writers once they have written all there is, and waits for them at most `limit`.
    pub fn drain(&self, logs: &LogTree, limit: Duration) {
        self.shared.draining.store(true, Ordering::SeqCst);
        // An entry wakes the readers.
        slog::debug!(logs.logger(&Dn::from_static("init")), "the consoles end");
        let end = Instant::now() + limit;
        let mut drained = self.shared.drained.lock();
        while *drained < self.writers.len() {
            if self.shared.changed.wait_until(&mut drained, end).timed_out() {
                return;
            }
        }
    }
}

fn everything() -> Query {
    Query {
        dn: Dn::ALL,
        children: true,
        backlog: Backlog::All,
        follow: true,
        min_level: None,
        kind: Kind::Any,
        contains: None,
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NOCTTY.bits()).unwrap_or_default();
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

struct Writer {
    device: File,
    reader: Reader,
    count: watch::Sender<u64>,
    levels: Levels,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self) {
        // A console that is gone stays gone; the others go on.
        let _ = self.write_all_entries();
        *self.shared.drained.lock() += 1;
        self.shared.changed.notify_all();
    }

    fn write_all_entries(&mut self) -> io::Result<()> {
        loop {
            // Read before the batch: what was logged before the order to drain is in a batch after it.
            let draining = self.shared.draining.load(Ordering::SeqCst);
            let batch = self.reader.next(BATCH);
            if batch.missed > 0 {
                self.count.send_modify(|n| *n += batch.missed);
                self.device.write_all(format!("[{} entries missed]\n", batch.missed).as_bytes())?;
            }
            self.levels.refresh(&self.shared);
            for entry in &batch.entries {
                if self.levels.shows(entry) {
                    let text = logtree::to_concise(entry, WIDTH);
                    self.device.write_all(text.as_bytes())?;
                    if !text.ends_with('\n') {
                        self.device.write_all(b"\n")?;
                    }
                }
            }
            if batch.entries.is_empty() {
                if draining || batch.end {
                    return Ok(());
                }
                self.reader.wait(IDLE);
            }
        }
    }
}

/// Least level shown per DN, from the policies of the tree's nodes.
#[derive(Default)]
struct Levels {
    tree: Option<watch::Receiver<Arc<Snapshot>>>,
    nodes: HashMap<Dn, Level>,
}

impl Levels {
    fn refresh(&mut self, shared: &Shared) {
        if self.tree.is_none() {
            self.tree = shared.tree.lock().clone();
        } else if !self.tree.as_ref().is_some_and(|t| t.has_changed().unwrap_or(false)) {
            return;
        }
        if let Some(tree) = &mut self.tree {
            let snapshot = tree.borrow_and_update().clone();
            self.nodes = snapshot.nodes.iter().map(|n| (n.dn.clone(), n.console)).collect();
        }
    }

    /// The level of the nearest node above decides; libraries outside the tree must have a warning.
    fn shows(&self, entry: &Entry) -> bool {
        let mut dn = Some(entry.dn.clone());
        while let Some(at) = dn {
            if let Some(least) = self.nodes.get(&at) {
                return entry.level_or_info() >= *least;
            }
            dn = at.parent().filter(|p| !p.is_all());
        }
        let library = entry.dn.as_str().starts_with("libs.");
        entry.level_or_info() >= if library { Level::Warning } else { Level::Info }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(dn: &'static str, level: Option<Level>) -> Entry {
        Entry {
            seq: 0,
            dn_seq: 0,
            dn: Dn::from_static(dn),
            wall_ns: 0,
            mono_ns: 0,
            level,
            source: None,
            lines: vec![],
            fields: vec![],
            original_len: 0,
        }
    }

    #[test]
    fn b8_the_level_of_the_nearest_node_above_decides() {
        let mut levels = Levels::default();
        levels.nodes.insert(Dn::from_static("root"), Level::Info);
        levels.nodes.insert(Dn::from_static("root.a"), Level::Warning);
        assert!(levels.shows(&entry("root.b", Some(Level::Info))));
        assert!(!levels.shows(&entry("root.a.sub", Some(Level::Info))));
        assert!(!levels.shows(&entry("root.a", None)));
        assert!(levels.shows(&entry("root.a", Some(Level::Error))));
        assert!(levels.shows(&entry("root.ab", None)));
    }

    #[test]
    fn b8_outside_the_tree_libraries_need_a_warning_and_the_rest_info() {
        let levels = Levels::default();
        assert!(levels.shows(&entry("init.stderr", None)));
        assert!(!levels.shows(&entry("init", Some(Level::Debug))));
        assert!(!levels.shows(&entry("libs.hyper", Some(Level::Info))));
        assert!(levels.shows(&entry("libs.hyper", Some(Level::Warning))));
    }
}
