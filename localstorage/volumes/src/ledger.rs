//! What is promised of the disk, to whom, and which project ids are taken. Pure.
//!
//! Invariants: a decision and its reservation are one call, so parallel requests cannot
//! overcommit; an id leaves the ledger only with its last record; the cursor only goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::id::VolumeId;
use crate::record::{Phase, Record, TrashRecord};
use crate::types::{Bytes, CapacityView, kind_name};

/// All volumes and trash items of the engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    /// By id: volumes, and snapshots, which come before all of them.
    pub(crate) volumes: BTreeMap<VolumeId, Record>,
    /// By key.
    pub(crate) trash: BTreeMap<String, TrashRecord>,
    /// Ids of the pool that somebody else uses.
    pub(crate) foreign: BTreeSet<u32>,
    /// Next project id to try.
    pub(crate) cursor: u32,
    /// Last creation number given out.
    pub(crate) seq: u64,
    taken: BTreeMap<u32, u32>,
    committed: u64,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

/// What the filesystem says, and the rules for dividing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Room {
    pub(crate) total: u64,
    pub(crate) other: u64,
    pub(crate) reserve: u64,
    pub(crate) ratio_permille: u64,
    pub(crate) unlimited: bool,
}

impl Room {
    /// Bytes that may be promised in all.
    fn usable(&self) -> u64 {
        let base = self.total.saturating_sub(self.reserve).saturating_sub(self.other);
        let scaled = u128::from(base) * u128::from(self.ratio_permille) / 1000;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// The default reserve: 5 % of the total, at least 256 MiB.
    pub(crate) fn default_reserve(total: u64) -> u64 {
        (total / 20).max(256 << 20)
    }
}

const SNAPSHOT: &str = "snapshot";

/// Kind and state of a record, for counting.
fn counted(r: &Record) -> (&'static str, &'static str) {
    let kind = if r.id.is_snapshot() { SNAPSHOT } else { kind_name(r.kind) };
    let state = match r.phase {
        Phase::Creating => "creating",
        Phase::Ready => "ready",
        Phase::Deleting => "deleting",
    };
    (kind, state)
}

impl Ledger {
    /// A ledger of what the registry holds.
    pub(crate) fn new(cursor: u32, seq: u64) -> Ledger {
        Ledger { cursor, seq, ..Ledger::default() }
    }

    /// How many snapshots are among the records.
    pub(crate) fn snapshot_count(&self) -> usize {
        let of_snapshots = self.counts.iter().filter(|((kind, _), _)| *kind == SNAPSHOT);
        let n: u64 = of_snapshots.map(|(_, n)| n).sum();
        usize::try_from(n).unwrap_or(usize::MAX)
    }

    /// How many objects there are by kind and state, also those of which there are none any
    /// more.
    pub(crate) fn counts(&self) -> impl Iterator<Item = ((&'static str, &'static str), u64)> + '_ {
        self.counts.iter().map(|(key, n)| (*key, *n))
    }

    /// Adds or replaces a record.
    pub(crate) fn put(&mut self, r: Record) {
        self.seq = self.seq.max(r.seq);
        self.take_id(r.project);
        *self.counts.entry(counted(&r)).or_default() += 1;
        self.committed = self.committed.saturating_add(r.reservation());
        if let Some(old) = self.volumes.insert(r.id.clone(), r) {
            self.release(&old);
        }
    }

    /// Removes a record with its reservation and its id.
    pub(crate) fn remove(&mut self, id: &VolumeId) -> Option<Record> {
        let old = self.volumes.remove(id)?;
        self.release(&old);
        Some(old)
    }

    /// Adds a trash item. It keeps its project id, but reserves nothing: what it still uses
    /// counts as "other".
    pub(crate) fn put_trash(&mut self, t: TrashRecord) {
        self.take_id(t.project);
        if let Some(old) = self.trash.insert(t.key.clone(), t) {
            self.free_id(old.project);
        }
    }

    /// Removes a trash item and frees its id.
    pub(crate) fn remove_trash(&mut self, key: &str) {
        if let Some(old) = self.trash.remove(key) {
            self.free_id(old.project);
        }
    }

    fn release(&mut self, old: &Record) {
        self.free_id(old.project);
        if let Some(n) = self.counts.get_mut(&counted(old)) {
            *n -= 1;
        }
        self.committed = self.committed.saturating_sub(old.reservation());
    }

    fn take_id(&mut self, id: u32) {
        if id != 0 {
            *self.taken.entry(id).or_default() += 1;
        }
    }

    fn free_id(&mut self, id: u32) {
        if let Some(n) = self.taken.get_mut(&id) {
            *n -= 1;
            if *n == 0 {
                self.taken.remove(&id);
            }
        }
    }

    /// Whether more than one record has this project id.
    pub(crate) fn is_shared(&self, id: u32) -> bool {
        self.taken.get(&id).is_some_and(|n| *n > 1)
    }

    /// The next project id to try, in order, wrapping only at the end of the pool, so that an
    /// id is used again as late as possible. `None`: all are taken.
    pub(crate) fn next_project(&mut self, pool: &RangeInclusive<u32>) -> Option<u32> {
        let (first, last) = (*pool.start(), *pool.end());
        if !pool.contains(&self.cursor) {
            self.cursor = first;
        }
        // One more than what may be in the way is always enough.
        let tries = self.taken.len() + self.foreign.len() + 1;
        for _ in 0..tries {
            let id = self.cursor;
            self.cursor = if id >= last { first } else { id + 1 };
            if !self.taken.contains_key(&id) && !self.foreign.contains(&id) {
                return Some(id);
            }
        }
        None
    }

    /// The next creation number.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The room as others see it.
    pub(crate) fn view(&self, room: Room, generation: u64) -> CapacityView {
        let available =
            if room.unlimited { room.total } else { room.usable().saturating_sub(self.committed) };
        CapacityView {
            total: Bytes(room.total),
            reserve: Bytes(room.reserve),
            other: Bytes(room.other),
            committed: Bytes(self.committed),
            available: Bytes(available),
            max_volume: Bytes(available),
            generation,
        }
    }

    /// Whether `more` bytes can be promised now; the bytes that could be otherwise.
    pub(crate) fn fits(&self, room: Room, more: u64) -> Result<(), Bytes> {
        let available = self.view(room, 0).available;
        if room.unlimited || more <= available.0 { Ok(()) } else { Err(available) }
    }

    /// Whether a volume of `limit` bytes could ever fit the disk.
    pub(crate) fn could_ever_fit(room: Room, limit: u64) -> bool {
        room.unlimited || limit <= room.usable()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::tests::sample;

    fn record(name: &str, project: u32, limit: u64) -> Record {
        let mut r = sample(name);
        r.project = project;
        r.size.limit = Bytes(limit);
        r
    }

    const ROOM: Room =
        Room { total: 1000, other: 100, reserve: 100, ratio_permille: 1000, unlimited: false };

    #[test]
    fn s9_1_available_is_what_is_neither_reserved_used_by_others_nor_promised() {
        let mut l = Ledger::new(0, 0);
        assert_eq!(l.view(ROOM, 1).available, Bytes(800));
        l.put(record("pvc-1", 5, 300));
        assert_eq!(l.view(ROOM, 1).available, Bytes(500));
        assert_eq!(l.fits(ROOM, 500), Ok(()));
        assert_eq!(l.fits(ROOM, 501), Err(Bytes(500)));
        // A ratio stretches the room, not the promises.
        assert_eq!(l.view(Room { ratio_permille: 1500, ..ROOM }, 1).available, Bytes(900));
        // Adopted volumes may exceed it: nothing is available, nothing underflows.
        l.put(record("pvc-2", 6, 5000));
        assert_eq!(l.view(ROOM, 1).available, Bytes(0));
        assert_eq!(l.fits(Room { unlimited: true, ..ROOM }, u64::MAX), Ok(()));
    }

    #[test]
    fn s9_1_a_hundred_tebibytes_do_not_fit_400_mebibytes() {
        let total = 400 << 20;
        let room = Room { total, reserve: Room::default_reserve(total), other: 0, ..ROOM };
        assert_eq!(room.reserve, 256 << 20);
        assert!(Ledger::new(0, 0).fits(room, 100 << 40).is_err());
        assert!(!Ledger::could_ever_fit(room, 100 << 40));
        assert_eq!(Room::default_reserve(100 << 30), 5 << 30);
    }

    #[test]
    fn s4_3_an_id_is_used_again_as_late_as_possible_and_never_while_taken() {
        let mut l = Ledger::new(10, 0);
        let pool = 10..=13;
        l.put(record("pvc-1", 11, 1));
        l.foreign.insert(12);
        assert_eq!(l.next_project(&pool), Some(10));
        assert_eq!(l.next_project(&pool), Some(13));
        assert_eq!(l.next_project(&pool), Some(10));
        l.remove(&record("pvc-1", 11, 1).id);
        assert_eq!(l.next_project(&pool), Some(11));
        for (i, id) in [10, 11, 13].into_iter().enumerate() {
            l.put(record(&format!("pvc-{i}"), id, 1));
        }
        assert_eq!(l.next_project(&pool), None);
    }

    #[test]
    fn s4_4_a_trashed_volume_keeps_its_id_until_it_is_purged() {
        let mut l = Ledger::new(10, 0);
        let pool = 10..=10;
        let r = record("pvc-1", 10, 100);
        l.put(r.clone());
        l.put_trash(TrashRecord::of(&r));
        l.remove(&r.id);
        assert_eq!((l.next_project(&pool), l.view(ROOM, 0).committed), (None, Bytes(0)));
        l.remove_trash(&r.trash_key());
        assert_eq!(l.next_project(&pool), Some(10));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn s15_reservations_add_up_and_ids_are_unique(
            ops in proptest::collection::vec((0_u8..12, 0_u64..400, any::<bool>()), 1..80)
        ) {
            let mut l = Ledger::new(10, 0);
            let pool = 10..=17;
            for (n, size, add) in ops {
                let name = format!("pvc-{n}");
                let id = VolumeId::parse(&name).expect("id");
                if !add {
                    l.remove(&id);
                } else if let Some(old) = l.volumes.get(&id).cloned() {
                    let more = size.saturating_sub(old.size.limit.0);
                    if l.fits(ROOM, more).is_ok() {
                        l.put(record(&name, old.project, old.size.limit.0.max(size)));
                    }
                } else if l.fits(ROOM, size).is_ok() && let Some(p) = l.next_project(&pool) {
                    l.put(record(&name, p, size));
                }
                let sum: u64 = l.volumes.values().map(Record::reservation).sum();
                prop_assert_eq!(l.view(ROOM, 0).committed, Bytes(sum));
                prop_assert!(sum <= 800, "overcommitted: {sum}");
                let ids: BTreeSet<_> = l.volumes.values().map(|r| r.project).collect();
                prop_assert_eq!(ids.len(), l.volumes.len());
                prop_assert!(ids.iter().all(|p| !l.is_shared(*p)));
            }
        }
    }
}
