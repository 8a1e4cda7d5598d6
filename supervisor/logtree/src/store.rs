//! The rings: one per DN, behind one short lock.
//!
//! Invariants: `seq` rises over the whole tree, `dn_seq` has no gaps within a DN, both given under
//! the lock; a ring never exceeds its quota, nor the whole its total, except for what every DN may
//! keep (rule L5). Nothing is formatted and nothing logs while the lock is held. The place of a ring
//! is given to another DN only when its own has been gone for an hour; each tenant of a place has a
//! number of its own, and readers are told what was taken away from under them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::entry::size_of_entry;
use crate::evicted::Evicted;
use crate::parse::Format;
use crate::sync::{AtomicBool, Condvar, Mutex, Notify, Ordering};
use crate::{Dn, Entry, Level};

/// Entries every DN may keep when the whole log is full, unless they are larger than the next.
const FLOOR_ENTRIES: usize = 64;
/// Bytes every DN may keep when the whole log is full.
const FLOOR_BYTES: usize = 4 << 10;
/// Evicted at once when the whole log is full, so that the search for the largest DN is rare.
const SLACK_BYTES: usize = 64 << 10;
/// From then on a DN that has vanished is emptied first.
const VANISHED_FOR: Duration = Duration::from_secs(3600);
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
    /// The same by format; a format without any is not listed.
    pub unparsed_by_format: Vec<(&'static str, u64)>,
}

/// Entries taken out of the rings: freed by whoever gets this, after it has let go of the lock.
#[derive(Debug, Default)]
#[must_use = "drop it when the lock is free"]
pub(crate) struct Dropped {
    /// As an append usually takes out one, this costs no allocation.
    one: Option<Arc<Entry>>,
    more: Vec<Arc<Entry>>,
}

impl Dropped {
    fn push(&mut self, entry: Arc<Entry>) {
        match self.one {
            None => self.one = Some(entry),
            Some(_) => self.more.push(entry),
        }
    }
}

/// What is counted beside an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flags {
    pub(crate) truncated: bool,
    /// The format it was said to have.
    pub(crate) unparsed: Option<Format>,
}

/// The log of one DN.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Never used twice; a place in `Store::rings` may get another tenant.
    pub(crate) tenant: u64,
    pub(crate) dn: Dn,
    /// Since when nobody has the DN.
    pub(crate) vanished: Option<Instant>,
    pub(crate) entries: VecDeque<Arc<Entry>>,
    /// Least level of its loggers, shared with them.
    pub(crate) level: Arc<AtomicU8>,
    next_dn_seq: u64,
    bytes: usize,
    quota: Quota,
    gone: Evicted,
    by_level: [u64; 6],
    raw: u64,
    evicted: u64,
    truncated: u64,
    unparsed: BTreeMap<Format, u64>,
}

impl Ring {
    fn new(tenant: u64, dn: Dn, level: Level, quota: Quota) -> Ring {
        Ring {
            tenant,
            dn,
            vanished: None,
            entries: VecDeque::new(),
            level: Arc::new(AtomicU8::new(level as u8)),
            next_dn_seq: 1,
            bytes: 0,
            quota,
            gone: Evicted::default(),
            by_level: [0; 6],
            raw: 0,
            evicted: 0,
            truncated: 0,
            unparsed: BTreeMap::new(),
        }
    }

    /// Nobody has had its DN for so long that it is the first to go.
    fn is_past(&self, now: Instant) -> bool {
        self.vanished.is_some_and(|at| now.saturating_duration_since(at) >= VANISHED_FOR)
    }

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
            0 => self.first_dn_seq() - self.gone.after(seq),
            kept => self.first_dn_seq() + kept,
        }
    }

    /// Entries lost that came after a sequence number, as far as they are known.
    pub(crate) fn lost_after(&self, seq: u64) -> u64 {
        self.gone.after(seq)
    }

    /// Entries kept that came after a sequence number.
    pub(crate) fn kept_after(&self, seq: u64) -> u64 {
        (self.entries.len() - self.entries.partition_point(|e| e.seq <= seq)) as u64
    }

    fn evict(&mut self, dropped: &mut Dropped) -> usize {
        let Some(entry) = self.entries.pop_front() else { return 0 };
        let size = size_of_entry(&entry);
        self.bytes -= size;
        self.evicted += 1;
        self.gone.push(entry.seq);
        dropped.push(entry);
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
            unparsed: self.unparsed.values().sum(),
            unparsed_by_format: self.unparsed.iter().map(|(f, n)| (f.as_str(), *n)).collect(),
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
    /// What the reader is, for metrics.
    pub(crate) kind: Mutex<&'static str>,
    /// Tenants of its DNs that had to go, and the `dn_seq` after their last entry.
    pub(crate) departed: Mutex<Vec<(u64, u64)>>,
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
    next_tenant: u64,
    /// No DN has vanished before.
    first_vanished: Option<Instant>,
    /// Entries that readers missed, by kind of reader.
    pub(crate) missed: BTreeMap<&'static str, u64>,
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
            next_tenant: 1,
            first_vanished: None,
            missed: BTreeMap::new(),
        }
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// The ring of a DN, or of its nearest ancestor when there are too many.
    pub(crate) fn ring(&mut self, dn: &Dn, now: Instant) -> usize {
        if let Some(index) = self.by_dn.get(dn) {
            return *index;
        }
        let place = match self.rings.len() < self.limits.dns {
            true => None,
            false => match self.oldest_past(now, |_| true) {
                Some(index) => Some(index),
                None => return self.nearest(dn),
            },
        };
        let quota = self.quotas.get(dn).copied().unwrap_or(self.limits.quota);
        let ring = Ring::new(self.next_tenant, dn.clone(), self.level_of(dn), quota);
        self.next_tenant += 1;
        let index = match place {
            Some(index) => {
                self.retire(index);
                self.rings[index] = ring;
                index
            }
            None => {
                self.rings.push(ring);
                self.rings.len() - 1
            }
        };
        self.by_dn.insert(dn.clone(), index);
        index
    }

    /// The ring of the nearest ancestor, or the first of all.
    fn nearest(&self, dn: &Dn) -> usize {
        let mut ancestor = dn.parent();
        while let Some(up) = ancestor {
            if let Some(index) = self.by_dn.get(&up) {
                return *index;
            }
            ancestor = up.parent();
        }
        0
    }

    /// Of the rings whose DN has been gone for long, the one that has for longest.
    fn oldest_past(&self, now: Instant, also: impl Fn(&Ring) -> bool) -> Option<usize> {
        // Nearly always: nobody has gone for so long, and all rings need not be looked at.
        let first = self.first_vanished?;
        if now.saturating_duration_since(first) < VANISHED_FOR {
            return None;
        }
        let past = self.rings.iter().enumerate().filter(|(_, r)| r.is_past(now) && also(r));
        past.min_by_key(|(_, r)| r.vanished).map(|(index, _)| index)
    }

    /// Takes all that is kept of a ring, and its DN.
    fn retire(&mut self, index: usize) {
        let ring = &self.rings[index];
        for waiter in self.waiters.iter().filter(|w| w.matches(&ring.dn)) {
            waiter.departed.lock().push((ring.tenant, ring.next_dn_seq));
        }
        self.total -= ring.bytes;
        self.by_dn.remove(&ring.dn);
        self.quotas.remove(&ring.dn);
    }

    /// The level of a DN's loggers; who asks for it has the DN.
    pub(crate) fn level_cell(&mut self, dn: &Dn) -> Arc<AtomicU8> {
        let now = Instant::now();
        self.expire_levels_at(now);
        let index = self.ring(dn, now);
        let ring = &mut self.rings[index];
        if ring.dn == *dn {
            ring.vanished = None;
        }
        ring.level.clone()
    }

    /// Nobody has this DN any more.
    pub(crate) fn vanished(&mut self, dn: &Dn) {
        self.vanished_at(dn, Instant::now());
    }

    /// As `vanished`, at this moment.
    pub(crate) fn vanished_at(&mut self, dn: &Dn, now: Instant) {
        if let Some(index) = self.by_dn.get(dn) {
            self.rings[*index].vanished = Some(now);
            let others = self.first_vanished.filter(|first| *first < now);
            self.first_vanished = others.or(Some(now));
        }
    }

    pub(crate) fn count_missed(&mut self, reader: &Waiter, missed: u64) {
        if missed > 0 {
            *self.missed.entry(*reader.kind.lock()).or_default() += missed;
        }
    }

    pub(crate) fn readers_by_kind(&self) -> Vec<(&'static str, u64)> {
        let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
        for waiter in &self.waiters {
            *kinds.entry(*waiter.kind.lock()).or_default() += 1;
        }
        kinds.into_iter().collect()
    }

    /// Adds an entry made for `entry.dn`; sequence numbers and monotonic time are set here.
    pub(crate) fn append(&mut self, entry: Arc<Entry>, flags: Flags) -> Dropped {
        self.append_at(Instant::now(), entry, flags)
    }

    /// As `append`, at this moment.
    pub(crate) fn append_at(
        &mut self,
        now: Instant,
        mut shared: Arc<Entry>,
        flags: Flags,
    ) -> Dropped {
        self.expire_levels_at(now);
        // Made by the caller, so that nothing is allocated here; nobody else has it yet.
        let entry = Arc::make_mut(&mut shared);
        let index = self.ring(&entry.dn, now);
        if self.rings[index].dn != entry.dn {
            let dn = entry.dn.to_string();
            entry.fields.push(("dn_overflow".to_owned(), dn));
            entry.dn = self.rings[index].dn.clone();
        }
        entry.seq = self.next_seq;
        self.next_seq += 1;
        let elapsed = now.saturating_duration_since(self.start);
        entry.mono_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let size = size_of_entry(entry);
        let ring = &mut self.rings[index];
        entry.dn_seq = ring.next_dn_seq;
        ring.next_dn_seq += 1;
        match entry.level {
            Some(level) => ring.by_level[level as usize] += 1,
            None => ring.raw += 1,
        }
        ring.truncated += u64::from(flags.truncated);
        if let Some(format) = flags.unparsed {
            *ring.unparsed.entry(format).or_default() += 1;
        }
        // Last words of one who is gone: the hour begins anew.
        ring.vanished = ring.vanished.map(|_| now);
        ring.entries.push_back(shared);
        ring.bytes += size;
        self.total += size;
        let mut dropped = Dropped::default();
        while ring.entries.len() > ring.quota.entries
            || (ring.bytes > ring.quota.bytes && ring.entries.len() > 1)
        {
            self.total -= ring.evict(&mut dropped);
        }
        if self.total > self.limits.total_bytes {
            self.shrink(now, &mut dropped);
        }
        let dn = &self.rings[index].dn;
        for waiter in &self.waiters {
            if waiter.armed.load(Ordering::Acquire) && waiter.matches(dn) {
                waiter.tell();
            }
        }
        dropped
    }

    /// Empties the DNs that have been gone for long, then takes the oldest entries of the largest
    /// DNs, until the whole fits again.
    fn shrink(&mut self, now: Instant, dropped: &mut Dropped) {
        let target = self.limits.total_bytes.saturating_sub(SLACK_BYTES);
        while self.total > target {
            let Some(index) = self.oldest_past(now, |r| !r.entries.is_empty()) else { break };
            while self.total > target && !self.rings[index].entries.is_empty() {
                self.total -= self.rings[index].evict(dropped);
            }
        }
        while self.total > target {
            let largest = self.rings.iter_mut().filter(|r| r.above_floor()).max_by_key(|r| r.bytes);
            let Some(ring) = largest else { return };
            let mut freed = 0;
            while freed < SLACK_BYTES && self.total - freed > target && ring.above_floor() {
                freed += ring.evict(dropped);
            }
            self.total -= freed;
        }
    }

    pub(crate) fn set_quota(&mut self, dn: &Dn, quota: Quota) -> Dropped {
        let mut dropped = Dropped::default();
        let quota = Quota { bytes: quota.bytes.min(MAX_QUOTA_BYTES), ..quota };
        if let Some(index) = self.by_dn.get(dn) {
            let ring = &mut self.rings[*index];
            ring.quota = quota;
            while ring.entries.len() > quota.entries || ring.bytes > quota.bytes {
                self.total -= ring.evict(&mut dropped);
            }
        }
        if self.quotas.len() < self.limits.dns {
            self.quotas.insert(dn.clone(), quota);
        }
        dropped
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
        self.expire_levels_at(Instant::now());
    }

    fn expire_levels_at(&mut self, now: Instant) {
        if self.next_expiry.is_some_and(|at| now >= at) {
            self.rules.retain(|r| r.until.is_none_or(|until| until > now));
            self.apply_levels();
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
        // The series of a DN vanish with its node and its last entry.
        let there = self.rings.iter().filter(|r| r.vanished.is_none() || !r.entries.is_empty());
        let mut all: Vec<DnStats> = there.map(Ring::stats).collect();
        all.sort_by(|a, b| a.dn.cmp(&b.dn));
        all
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.total
    }
}
