//! The rings: one per DN, behind one short lock.
//!
//! Invariants: `seq` rises over the whole tree, `dn_seq` has no gaps within a DN, both given under
//! the lock; a ring never exceeds its quota, nor the whole its total, except for what every DN may
//! keep (rule L5). Nothing is formatted and nothing logs while the lock is held. Rings are never
//! removed, so a ring's number is valid for ever.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::entry::size_of_entry;
use crate::{Dn, Entry, Level};

/// Entries every DN may keep when the whole log is full, unless they are larger than the next.
const FLOOR_ENTRIES: usize = 64;
/// Bytes every DN may keep when the whole log is full.
const FLOOR_BYTES: usize = 4 << 10;
/// Evicted at once when the whole log is full, so that the search for the largest DN is rare.
const SLACK_BYTES: usize = 64 << 10;
/// Evicted sequence numbers remembered per DN, for readers that resume by cursor.
const EVICTED_SEQS: usize = 1024;
/// Largest quota in bytes.
const MAX_QUOTA_BYTES: usize = 8 << 20;

/// How much of one DN is kept: entries and bytes, whichever is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Most entries; default 8192.
    pub entries: usize,
    /// Most bytes; default 1 MiB, at most 8 MiB.
    pub bytes: usize,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota { entries: 8192, bytes: 1 << 20 }
    }
}

/// Limits of the whole log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Per DN, unless set otherwise.
    pub quota: Quota,
    /// All DNs together, in bytes; default 32 MiB.
    pub total_bytes: usize,
    /// Most DNs; default 4096.
    pub dns: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { quota: Quota::default(), total_bytes: 32 << 20, dns: 4096 }
    }
}

/// Numbers of one DN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DnStats {
    /// Whose.
    pub dn: Dn,
    /// Bytes kept now.
    pub retained_bytes: u64,
    /// Entries kept now.
    pub retained_entries: u64,
    /// Leveled entries ever, indexed by `Level as usize`.
    pub entries: [u64; 6],
    /// Raw entries ever.
    pub raw: u64,
    /// Entries evicted ever.
    pub evicted: u64,
    /// Entries that were cut ever.
    pub truncated: u64,
    /// Lines that did not fit the format they were said to have.
    pub unparsed: u64,
}

/// What is counted beside an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flags {
    pub(crate) truncated: bool,
    pub(crate) unparsed: bool,
}

/// The log of one DN.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) dn: Dn,
    pub(crate) entries: VecDeque<Arc<Entry>>,
    /// Least level of its loggers, shared with them.
    pub(crate) level: Arc<AtomicU8>,
    next_dn_seq: u64,
    bytes: usize,
    quota: Quota,
    evicted_seqs: VecDeque<u64>,
    by_level: [u64; 6],
    raw: u64,
    evicted: u64,
    truncated: u64,
    unparsed: u64,
}

impl Ring {
    /// `dn_seq` of the oldest kept entry, or of the next one.
    pub(crate) fn first_dn_seq(&self) -> u64 {
        self.next_dn_seq - self.entries.len() as u64
    }

    /// `dn_seq` of the next entry.
    pub(crate) fn next_dn_seq(&self) -> u64 {
        self.next_dn_seq
    }

    /// `dn_seq` of the first entry after a sequence number, evicted ones as far as they are known.
    pub(crate) fn dn_seq_after(&self, seq: u64) -> u64 {
        let kept = self.entries.partition_point(|e| e.seq <= seq) as u64;
        match kept {
            0 => {
                let known = self.evicted_seqs.partition_point(|s| *s <= seq);
                self.first_dn_seq() - (self.evicted_seqs.len() - known) as u64
            }
            kept => self.first_dn_seq() + kept,
        }
    }

    fn evict(&mut self) -> usize {
        let Some(entry) = self.entries.pop_front() else { return 0 };
        let size = size_of_entry(&entry);
        self.bytes -= size;
        self.evicted += 1;
        if self.evicted_seqs.len() == EVICTED_SEQS {
            self.evicted_seqs.pop_front();
        }
        self.evicted_seqs.push_back(entry.seq);
        size
    }

    /// Whether the whole log may take its oldest entry.
    fn above_floor(&self) -> bool {
        let oldest = self.entries.front().map_or(0, |e| size_of_entry(e));
        self.entries.len() > FLOOR_ENTRIES || self.bytes - oldest >= FLOOR_BYTES
    }

    fn stats(&self) -> DnStats {
        DnStats {
            dn: self.dn.clone(),
            retained_bytes: self.bytes as u64,
            retained_entries: self.entries.len() as u64,
            entries: self.by_level,
            raw: self.raw,
            evicted: self.evicted,
            truncated: self.truncated,
            unparsed: self.unparsed,
        }
    }
}

/// How a reader is told of news.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) dn: Dn,
    pub(crate) children: bool,
    /// It wants to be told; told once per arming, so that an idle append costs one load.
    pub(crate) armed: AtomicBool,
    pub(crate) notify: Notify,
    pub(crate) flag: Mutex<bool>,
    pub(crate) condvar: Condvar,
}

impl Waiter {
    pub(crate) fn matches(&self, dn: &Dn) -> bool {
        self.dn == *dn || (self.children && self.dn.contains(dn))
    }

    fn tell(&self) {
        if self.armed.swap(false, Ordering::AcqRel) {
            *self.flag.lock() = true;
            self.condvar.notify_all();
            self.notify.notify_one();
        }
    }
}

#[derive(Debug, Clone)]
struct LevelRule {
    subtree: Dn,
    level: Level,
    until: Option<Instant>,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) rings: Vec<Ring>,
    by_dn: HashMap<Dn, usize>,
    pub(crate) waiters: Vec<Arc<Waiter>>,
    limits: Limits,
    total: usize,
    next_seq: u64,
    start: Instant,
    rules: Vec<LevelRule>,
    next_expiry: Option<Instant>,
    quotas: HashMap<Dn, Quota>,
    pub(crate) missed: u64,
}

/// Level of a DN nobody has set one for.
pub(crate) const DEFAULT_LEVEL: Level = Level::Debug;

impl Store {
    pub(crate) fn new(limits: Limits) -> Store {
        Store {
            rings: Vec::new(),
            by_dn: HashMap::new(),
            waiters: Vec::new(),
            limits,
            total: 0,
            next_seq: 1,
            start: Instant::now(),
            rules: Vec::new(),
            next_expiry: None,
            quotas: HashMap::new(),
            missed: 0,
        }
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// The ring of a DN, or of its nearest ancestor when there are too many.
    pub(crate) fn ring(&mut self, dn: &Dn) -> usize {
        if let Some(index) = self.by_dn.get(dn) {
            return *index;
        }
        if self.rings.len() >= self.limits.dns {
            let mut ancestor = dn.parent();
            while let Some(up) = ancestor {
                if let Some(index) = self.by_dn.get(&up) {
                    return *index;
                }
                ancestor = up.parent();
            }
            return 0;
        }
        let quota = self.quotas.get(dn).copied().unwrap_or(self.limits.quota);
        let level = self.level_of(dn);
        self.rings.push(Ring {
            dn: dn.clone(),
            entries: VecDeque::new(),
            level: Arc::new(AtomicU8::new(level as u8)),
            next_dn_seq: 1,
            bytes: 0,
            quota,
            evicted_seqs: VecDeque::new(),
            by_level: [0; 6],
            raw: 0,
            evicted: 0,
            truncated: 0,
            unparsed: 0,
        });
        self.by_dn.insert(dn.clone(), self.rings.len() - 1);
        self.rings.len() - 1
    }

    /// Adds an entry made for `entry.dn`; sequence numbers and monotonic time are set here.
    pub(crate) fn append(&mut self, mut entry: Entry, flags: Flags) {
        self.expire_levels();
        let index = self.ring(&entry.dn);
        if self.rings[index].dn != entry.dn {
            let dn = entry.dn.to_string();
            entry.fields.push(("dn_overflow".to_owned(), dn));
            entry.dn = self.rings[index].dn.clone();
        }
        entry.seq = self.next_seq;
        self.next_seq += 1;
        entry.mono_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let size = size_of_entry(&entry);
        let ring = &mut self.rings[index];
        entry.dn_seq = ring.next_dn_seq;
        ring.next_dn_seq += 1;
        match entry.level {
            Some(level) => ring.by_level[level as usize] += 1,
            None => ring.raw += 1,
        }
        ring.truncated += u64::from(flags.truncated);
        ring.unparsed += u64::from(flags.unparsed);
        ring.entries.push_back(Arc::new(entry));
        ring.bytes += size;
        self.total += size;
        while ring.entries.len() > ring.quota.entries
            || (ring.bytes > ring.quota.bytes && ring.entries.len() > 1)
        {
            self.total -= ring.evict();
        }
        if self.total > self.limits.total_bytes {
            self.shrink();
        }
        let dn = &self.rings[index].dn;
        for waiter in &self.waiters {
            if waiter.armed.load(Ordering::Acquire) && waiter.matches(dn) {
                waiter.tell();
            }
        }
    }

    /// Takes the oldest entries of the largest DNs until the whole fits again.
    fn shrink(&mut self) {
        let target = self.limits.total_bytes.saturating_sub(SLACK_BYTES);
        while self.total > target {
            let largest = self.rings.iter_mut().filter(|r| r.above_floor()).max_by_key(|r| r.bytes);
            let Some(ring) = largest else { return };
            let mut freed = 0;
            while freed < SLACK_BYTES && self.total - freed > target && ring.above_floor() {
                freed += ring.evict();
            }
            self.total -= freed;
        }
    }

    pub(crate) fn set_quota(&mut self, dn: &Dn, quota: Quota) {
        let quota = Quota { bytes: quota.bytes.min(MAX_QUOTA_BYTES), ..quota };
        if let Some(index) = self.by_dn.get(dn) {
            let ring = &mut self.rings[*index];
            ring.quota = quota;
            while ring.entries.len() > quota.entries || ring.bytes > quota.bytes {
                self.total -= ring.evict();
            }
        }
        if self.quotas.len() < self.limits.dns {
            self.quotas.insert(dn.clone(), quota);
        }
    }

    pub(crate) fn set_level(&mut self, subtree: &Dn, level: Level, ttl: Option<Duration>) {
        let until = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        // A lasting rule replaces all for that subtree; a passing one only other passing ones.
        self.rules.retain(|r| r.subtree != *subtree || (until.is_some() && r.until.is_none()));
        self.rules.push(LevelRule { subtree: subtree.clone(), level, until });
        self.apply_levels();
    }

    /// Takes back levels whose time is over.
    pub(crate) fn expire_levels(&mut self) {
        if let Some(at) = self.next_expiry {
            let now = Instant::now();
            if now >= at {
                self.rules.retain(|r| r.until.is_none_or(|until| until > now));
                self.apply_levels();
            }
        }
    }

    fn apply_levels(&mut self) {
        self.next_expiry = self.rules.iter().filter_map(|r| r.until).min();
        for ring in &self.rings {
            ring.level.store(self.level_of(&ring.dn) as u8, Ordering::Relaxed);
        }
    }

    /// The nearest ancestor's level; a passing rule beats a lasting one for the same subtree.
    pub(crate) fn level_of(&self, dn: &Dn) -> Level {
        let rules = self.rules.iter().filter(|r| r.subtree.contains(dn));
        let nearest = rules.max_by_key(|r| (r.subtree.depth(), r.until.is_some()));
        nearest.map_or(DEFAULT_LEVEL, |r| r.level)
    }

    /// Whether a level was set for exactly what contains this DN.
    pub(crate) fn has_rule(&self, dn: &Dn) -> bool {
        self.rules.iter().any(|r| !r.subtree.is_all() && r.subtree.contains(dn))
    }

    pub(crate) fn stats(&self) -> Vec<DnStats> {
        let mut all: Vec<DnStats> = self.rings.iter().map(Ring::stats).collect();
        all.sort_by(|a, b| a.dn.cmp(&b.dn));
        all
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.total
    }
}
