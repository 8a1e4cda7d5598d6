//! Readers: cursors into the rings (rules L6, L7).
//!
//! A reader holds, for each ring it reads, the `dn_seq` it expects next. What is no longer there
//! was evicted, and the difference is exactly what was missed. Producers never wait for readers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::store::{Ring, Store, Waiter};
use crate::sync::{AtomicBool, Condvar, Mutex, Notify, Ordering};
use crate::{Dn, Entry, Level};

/// Entries copied per lock.
const CHUNK: usize = 256;
/// Most entries `Last(n)` may ask for.
pub const MAX_LAST: usize = 100_000;

/// Where a reader stands: the sequence number of the last entry it has looked at.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Cursor(pub u64);

/// Which old entries a reader gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backlog {
    /// None.
    None,
    /// All that are kept.
    All,
    /// The last n that match, in order.
    Last(usize),
    /// What came after the cursor. What was evicted since is missed: counted exactly for a query of
    /// everything; for some DNs as far back as 1024 stretches of entries that each DN has lost, and
    /// what was lost before that is not counted.
    After(Cursor),
    /// What was said at or after this time (ns since 1970).
    Since(i64),
}

/// Which kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Both.
    #[default]
    Any,
    /// With a level.
    Leveled,
    /// Raw lines.
    Raw,
}

/// What to read. All filters hold for backlog and follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Whose log.
    pub dn: Dn,
    /// And that of everything below.
    pub children: bool,
    /// Old entries.
    pub backlog: Backlog,
    /// New ones too.
    pub follow: bool,
    /// Least level; raw lines count as Info.
    pub min_level: Option<Level>,
    /// Which kind.
    pub kind: Kind,
    /// Literal text that one line of the message must contain.
    pub contains: Option<String>,
}

impl Query {
    /// All kept entries of a DN and of everything below it, without following.
    pub fn all(dn: Dn) -> Query {
        Query {
            dn,
            children: true,
            backlog: Backlog::All,
            follow: false,
            min_level: None,
            kind: Kind::Any,
            contains: None,
        }
    }

    fn check(&self) -> Result<(), QueryError> {
        if self.kind == Kind::Raw && self.min_level.is_some_and(|l| l > Level::Info) {
            return Err(QueryError::RawAboveInfo);
        }
        match self.backlog {
            Backlog::Last(n) if n > MAX_LAST => Err(QueryError::TooMany(n)),
            Backlog::None
            | Backlog::All
            | Backlog::Last(_)
            | Backlog::After(_)
            | Backlog::Since(_) => Ok(()),
        }
    }

    fn matches(&self, entry: &Entry) -> bool {
        let kind = match self.kind {
            Kind::Any => true,
            Kind::Leveled => entry.level.is_some(),
            Kind::Raw => entry.level.is_none(),
        };
        kind && self.min_level.is_none_or(|l| entry.level_or_info() >= l)
            && self
                .contains
                .as_ref()
                .is_none_or(|text| entry.lines.iter().any(|l| l.contains(text)))
    }
}

/// A query that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Raw lines count as Info, so nothing could match.
    #[error("kind raw with a level above info matches nothing: raw lines count as info")]
    RawAboveInfo,
    /// More than [`MAX_LAST`].
    #[error("the last {0} entries are more than the 100000 one query may ask for")]
    TooMany(usize),
}

/// One helping of entries.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// In the order of their sequence numbers.
    pub entries: Vec<Arc<Entry>>,
    /// Entries of its DNs that were evicted before they could be read, before filters; exact.
    pub missed: u64,
    /// To resume from.
    pub cursor: Cursor,
    /// Nothing more will come.
    pub end: bool,
}

/// What a reader knows of one place.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The ring that was there when it looked.
    tenant: u64,
    /// `None`: not its business.
    at: Option<Position>,
}

/// Where a reader stands in one ring.
#[derive(Debug, Clone, Copy)]
struct Position {
    next: u64,
    /// Exclusive; for readers that do not follow.
    end: u64,
    /// Evicted before `next` and not told yet: told when the cursor has passed them, or a reader
    /// resumed from it would be told again.
    lost: u64,
}

/// A cursor into the log. Dropping it frees it at once.
#[derive(Debug)]
pub struct Reader {
    store: Arc<Mutex<Store>>,
    query: Query,
    waiter: Arc<Waiter>,
    places: Vec<Place>,
    /// Entries up to here are backlog and must be younger than `since`.
    opened_at: u64,
    since: Option<i64>,
    cursor: u64,
    missed: u64,
}

impl Reader {
    pub(crate) fn open(store: Arc<Mutex<Store>>, query: Query) -> Result<Reader, QueryError> {
        query.check()?;
        let waiter = Arc::new(Waiter {
            dn: query.dn.clone(),
            children: query.children,
            armed: AtomicBool::new(false),
            notify: Notify::new(),
            flag: Mutex::new(false),
            condvar: Condvar::new(),
            kind: Mutex::new(if query.follow { "follow" } else { "once" }),
            departed: Mutex::new(Vec::new()),
        });
        let mut locked = store.lock();
        locked.expire_levels();
        locked.waiters.push(waiter.clone());
        let last_seq = locked.last_seq();
        let since = match query.backlog {
            Backlog::Since(t) => Some(t),
            Backlog::None | Backlog::All | Backlog::Last(_) | Backlog::After(_) => None,
        };
        let after = match query.backlog {
            Backlog::None | Backlog::Last(0) => last_seq,
            Backlog::All | Backlog::Since(_) => 0,
            Backlog::After(cursor) => cursor.0.min(last_seq),
            Backlog::Last(n) => nth_last(&locked, &query, &waiter, n),
        };
        let mut places = Vec::with_capacity(locked.rings.len());
        for ring in &locked.rings {
            let next = match query.backlog {
                Backlog::After(_) => ring.dn_seq_after(after),
                Backlog::None | Backlog::All | Backlog::Last(_) | Backlog::Since(_) => {
                    ring.dn_seq_after(after).max(ring.first_dn_seq())
                }
            };
            let end = if query.follow { u64::MAX } else { ring.next_dn_seq() };
            let at = waiter.matches(&ring.dn).then_some(Position { next, end, lost: 0 });
            places.push(Place { tenant: ring.tenant, at });
        }
        let missed = unremembered(&locked, &query, after);
        locked.count_missed(&waiter, missed);
        drop(locked);
        let opened_at = last_seq;
        Ok(Reader { store, query, waiter, places, opened_at, since, cursor: after, missed })
    }

    /// Says what the reader is, for metrics: `console`, `stream`. By default `follow` or `once`.
    #[must_use]
    pub fn named(self, kind: &'static str) -> Reader {
        *self.waiter.kind.lock() = kind;
        self
    }

    /// The next entries, at most `max`; none if there are none now.
    pub fn next(&mut self, max: usize) -> Batch {
        let mut batch = Batch::default();
        loop {
            let want = (max - batch.entries.len()).min(CHUNK);
            if want == 0 {
                break;
            }
            let chunk = self.take(want);
            let exhausted = chunk.len() < want;
            let matching = chunk.into_iter().filter(|e| self.wants(e));
            batch.entries.extend(matching);
            if exhausted {
                batch.end = !self.query.follow;
                break;
            }
        }
        batch.missed = std::mem::take(&mut self.missed);
        batch.cursor = Cursor(self.cursor);
        batch
    }

    /// Waits until `next` may have something. Cancel safe.
    pub async fn changed(&mut self) {
        loop {
            self.waiter.armed.store(true, Ordering::Release);
            if self.has_more() {
                return;
            }
            self.waiter.notify.notified().await;
        }
    }

    /// As `changed`, for threads; false if there was nothing new for `d`.
    pub fn wait(&mut self, d: Duration) -> bool {
        let deadline = Instant::now().checked_add(d);
        loop {
            self.waiter.armed.store(true, Ordering::Release);
            if self.has_more() {
                return true;
            }
            let mut told = self.waiter.flag.lock();
            while !*told {
                let timed_out = match deadline {
                    Some(at) => self.waiter.condvar.wait_until(&mut told, at).timed_out(),
                    None => {
                        self.waiter.condvar.wait(&mut told);
                        false
                    }
                };
                if timed_out {
                    drop(told);
                    return self.has_more();
                }
            }
            *told = false;
        }
    }

    fn wants(&self, entry: &Entry) -> bool {
        let old = entry.seq <= self.opened_at && self.since.is_some_and(|t| entry.wall_ns < t);
        !old && self.query.matches(entry)
    }

    fn has_more(&mut self) -> bool {
        if !self.query.follow {
            return true;
        }
        let store = self.store.clone();
        let mut store = store.lock();
        self.meet_new_rings(&mut store);
        let mut rings = store.rings.iter().zip(&self.places);
        rings.any(|(ring, place)| place.at.is_some_and(|at| at.next < ring.next_dn_seq()))
    }

    /// Rings that appeared since, some in the place of others: all of their entries are newer than
    /// this reader.
    fn meet_new_rings(&mut self, store: &mut Store) {
        let mut missed = 0;
        let departed = std::mem::take(&mut *self.waiter.departed.lock());
        for (tenant, after_last) in departed {
            let place = self.places.iter_mut().find(|p| p.tenant == tenant);
            if let Some(at) = place.and_then(|p| p.at.take()) {
                missed += at.lost + after_last.min(at.end).saturating_sub(at.next);
            }
        }
        self.missed += missed;
        store.count_missed(&self.waiter, missed);
        let end = if self.query.follow { u64::MAX } else { 0 };
        for (index, ring) in store.rings.iter().enumerate() {
            let known = self.places.get(index).is_some_and(|p| p.tenant == ring.tenant);
            if known {
                continue;
            }
            let at = self.waiter.matches(&ring.dn).then_some(Position { next: 1, end, lost: 0 });
            let place = Place { tenant: ring.tenant, at };
            match self.places.get_mut(index) {
                Some(old) => *old = place,
                None => self.places.push(place),
            }
        }
    }

    /// Copies up to `max` entries of all rings, merged by sequence number, under one lock.
    fn take(&mut self, max: usize) -> Vec<Arc<Entry>> {
        let shared = self.store.clone();
        let mut store = shared.lock();
        self.meet_new_rings(&mut store);
        let mut missed = 0;
        let mut heap = BinaryHeap::new();
        for (index, (ring, place)) in store.rings.iter().zip(&mut self.places).enumerate() {
            let Some(at) = &mut place.at else { continue };
            let first = ring.first_dn_seq().min(at.end);
            if at.next < first {
                at.lost += first - at.next;
                at.next = first;
            }
            if let Some(entry) = entry_at(&store, index, *at) {
                heap.push(Reverse((entry.seq, index)));
            }
        }
        let mut out = Vec::with_capacity(max.min(heap.len() * CHUNK));
        while out.len() < max {
            let Some(Reverse((seq, index))) = heap.pop() else { break };
            let Some(at) = &mut self.places[index].at else { continue };
            let Some(entry) = entry_at(&store, index, *at) else { continue };
            out.push(entry.clone());
            at.next += 1;
            self.cursor = seq;
            if let Some(next) = entry_at(&store, index, *at) {
                heap.push(Reverse((next.seq, index)));
            }
        }
        if heap.is_empty() && self.query.follow {
            // All that exists was looked at, also in DNs that are not ours.
            self.cursor = self.cursor.max(store.last_seq());
        }
        let upto = if heap.is_empty() { u64::MAX } else { self.cursor };
        for (ring, place) in store.rings.iter().zip(&mut self.places) {
            let Some(at) = place.at.as_mut().filter(|at| at.lost > 0) else { continue };
            let later = ring.lost_after(upto).min(at.lost);
            missed += at.lost - later;
            at.lost = later;
        }
        store.count_missed(&self.waiter, missed);
        self.missed += missed;
        out
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut store = self.store.lock();
        store.waiters.retain(|w| !Arc::ptr_eq(w, &self.waiter));
    }
}

/// Entries after a cursor that no ring remembers to have lost: a ring remembers so much only. Exact
/// for a query of everything, because the numbers of the whole log have no gaps; 0 for others.
fn unremembered(store: &Store, query: &Query, after: u64) -> u64 {
    let everything = query.dn.is_all() && query.children;
    if !everything || !matches!(query.backlog, Backlog::After(_)) {
        return 0;
    }
    let known = |ring: &Ring| {
        let evicted = ring.first_dn_seq().saturating_sub(ring.dn_seq_after(after));
        evicted + ring.kept_after(after)
    };
    (store.last_seq() - after).saturating_sub(store.rings.iter().map(known).sum())
}

fn entry_at(store: &Store, index: usize, at: Position) -> Option<&Arc<Entry>> {
    let ring = &store.rings[index];
    if at.next >= at.end || at.next >= ring.next_dn_seq() {
        return None;
    }
    let offset = usize::try_from(at.next.checked_sub(ring.first_dn_seq())?).ok()?;
    ring.entries.get(offset)
}

/// The sequence number just before the n-th last matching entry; 0 if there are fewer.
fn nth_last(store: &Store, query: &Query, waiter: &Waiter, n: usize) -> u64 {
    let rings = store.rings.iter().filter(|r| waiter.matches(&r.dn));
    let mut tails: Vec<_> = rings.map(|r| r.entries.iter().rev().peekable()).collect();
    let mut heap: BinaryHeap<(u64, usize)> = BinaryHeap::new();
    for (i, tail) in tails.iter_mut().enumerate() {
        heap.extend(tail.peek().map(|e| (e.seq, i)));
    }
    let mut found = 0;
    while let Some((seq, i)) = heap.pop() {
        let Some(entry) = tails[i].next() else { continue };
        found += usize::from(query.matches(entry));
        if found == n {
            return seq - 1;
        }
        heap.extend(tails[i].peek().map(|e| (e.seq, i)));
    }
    0
}
