//! The log as its users see it: loggers, sinks, readers, levels, numbers.
//!
//! Must not know: who the DNs are, consoles, HTTP. Never logs by itself (rule L10).

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::drain::DnDrain;
use crate::store::{DnStats, Flags, Limits, Quota, Store};
use crate::{Dn, Format, Level, LineSink, Query, QueryError, Reader, Record, time};

/// How long the panic hook waits for the log (rule L10).
const PANIC_WAIT: Duration = Duration::from_millis(100);

/// Numbers of the whole log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Per DN, in the order of DNs.
    pub dns: Vec<DnStats>,
    /// Bytes kept now.
    pub retained_bytes: u64,
    /// Open readers.
    pub readers: u64,
    /// Open readers by kind (see [`Reader::named`]), in the order of kinds.
    pub readers_by_kind: Vec<(&'static str, u64)>,
    /// Entries that readers missed ever.
    pub missed: u64,
    /// Entries that readers missed ever, by their kind.
    pub missed_by_kind: Vec<(&'static str, u64)>,
}

/// The log. Clones share it.
#[derive(Clone)]
pub struct LogTree {
    store: Arc<Mutex<Store>>,
    /// A level was set for a library once: what callsites have cached does not hold any more.
    library_rules: Arc<AtomicBool>,
}

// The lock has no poisoning and the store is whole between any two statements that can panic:
// slog asks for these of a drain.
impl UnwindSafe for LogTree {}
impl RefUnwindSafe for LogTree {}

impl fmt::Debug for LogTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogTree")
    }
}

impl LogTree {
    /// An empty log.
    pub fn new(limits: Limits) -> LogTree {
        LogTree { store: Arc::new(Mutex::new(Store::new(limits))), library_rules: Arc::default() }
    }

    /// A logger that writes under `dn`; no key of a record can change that.
    pub fn logger(&self, dn: &Dn) -> slog::Logger {
        let level = self.level_cell(dn);
        slog::Logger::root(DnDrain::new(self.clone(), dn.clone(), level), slog::o!())
    }

    /// A sink for the output of a child.
    pub fn sink(&self, dn: &Dn, format: Format) -> LineSink {
        LineSink::new(self.clone(), dn.clone(), format)
    }

    /// Adds one record.
    pub fn append(&self, dn: &Dn, record: Record) {
        let len = record.message.len();
        self.append_cut(dn, record, len, None);
    }

    /// Adds a record of which `original_len` bytes of message were seen.
    pub(crate) fn append_cut(
        &self,
        dn: &Dn,
        record: Record,
        original_len: usize,
        unparsed: Option<Format>,
    ) {
        let (entry, truncated) = record.into_entry(dn.clone(), time::now_ns(), original_len);
        let entry = Arc::new(entry);
        let dropped = self.store.lock().append(entry, Flags { truncated, unparsed });
        drop(dropped);
    }

    /// As `append`, for the panic hook: gives up if the log is busy; false if it did.
    pub fn append_or_give_up(&self, dn: &Dn, record: Record) -> bool {
        let len = record.message.len();
        let (entry, truncated) = record.into_entry(dn.clone(), time::now_ns(), len);
        let entry = Arc::new(entry);
        let appended = self
            .store
            .try_lock_for(PANIC_WAIT)
            .map(|mut store| store.append(entry, Flags { truncated, unparsed: None }));
        appended.is_some()
    }

    /// Keeps the log busy.
    #[cfg(test)]
    pub(crate) fn lock_for_test(&self) -> parking_lot::MutexGuard<'_, Store> {
        self.store.lock()
    }

    /// Sets the least level of a subtree, for a while or for good; reaches live loggers at once.
    /// The nearest ancestor's level wins.
    pub fn set_level(&self, subtree: &Dn, level: Level, ttl: Option<Duration>) {
        self.store.lock().set_level(subtree, level, ttl);
        let libraries = Dn::from_static(crate::library::ROOT);
        if libraries.contains(subtree) && !self.library_rules.swap(true, Ordering::AcqRel) {
            tracing::callsite::rebuild_interest_cache();
        }
    }

    /// Takes back the levels whose time is over. Every append and read does so too; somebody with
    /// a clock should call it now and then for a log in which nothing is said any more, because a
    /// passing level forbids it.
    pub fn expire_levels(&self) {
        self.store.lock().expire_levels();
    }

    /// The least level of a DN now.
    pub fn level(&self, dn: &Dn) -> Level {
        let mut store = self.store.lock();
        store.expire_levels();
        store.level_of(dn)
    }

    /// Sets how much of a DN is kept.
    pub fn set_quota(&self, dn: &Dn, quota: Quota) {
        let dropped = self.store.lock().set_quota(dn, quota);
        drop(dropped);
    }

    /// Says that nobody has this DN any more. Its entries stay readable; from an hour later on they
    /// are the first to go when room is needed, and its place is free for another DN. Asking for a
    /// logger of the DN takes it back.
    pub fn vanished(&self, dn: &Dn) {
        self.store.lock().vanished(dn);
    }

    /// Opens a reader. An unknown DN reads as empty; following waits for it to appear.
    pub fn read(&self, query: Query) -> Result<Reader, QueryError> {
        Reader::open(self.store.clone(), query)
    }

    /// All DNs that were ever written to, in order.
    pub fn dns(&self) -> Vec<Dn> {
        let store = self.store.lock();
        let with_entries = store.rings.iter().filter(|r| r.next_dn_seq() > 1);
        let mut dns: Vec<Dn> = with_entries.map(|r| r.dn.clone()).collect();
        dns.sort();
        dns
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> Stats {
        let store = self.store.lock();
        Stats {
            dns: store.stats(),
            retained_bytes: store.total_bytes() as u64,
            readers: store.waiters.len() as u64,
            readers_by_kind: store.readers_by_kind(),
            missed: store.missed.values().sum(),
            missed_by_kind: store.missed.iter().map(|(kind, n)| (*kind, *n)).collect(),
        }
    }

    fn level_cell(&self, dn: &Dn) -> Arc<AtomicU8> {
        self.store.lock().level_cell(dn)
    }

    /// Whether a level was ever set for a library.
    pub(crate) fn has_library_rules(&self) -> bool {
        self.library_rules.load(Ordering::Acquire)
    }

    /// The level set for a library now, if any.
    pub(crate) fn library_level(&self, dn: &Dn) -> Option<Level> {
        let mut store = self.store.lock();
        store.expire_levels();
        store.has_rule(dn).then(|| store.level_of(dn))
    }
}

/// Whether a level passes the least level in a cell.
pub(crate) fn passes(level: Level, least: &AtomicU8) -> bool {
    level as u8 >= least.load(Ordering::Relaxed)
}
