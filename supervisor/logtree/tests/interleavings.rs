//! Append, evict and read under many orders of events (rule L6): the modules themselves, compiled
//! with locks and a Notify that a scheduler controls. Threads that wait by condition variable are
//! tested on real threads (`l6_of_8_writers_and_4_readers_…`).

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the modules under test are more than what is tested of them"
)]

use std::sync::Arc;

use logtree::{Dn, Entry, Level};

use crate::reader::{Backlog, Cursor, Query, Reader};
use crate::store::{Flags, Limits, Quota, Store};
use crate::sync::Mutex;

mod scheduled;

mod sync {
    use crate::scheduled::MutexGuard;
    pub(crate) use crate::scheduled::{AtomicBool, Mutex, Notify, Ordering};

    /// Nobody waits by it here.
    #[derive(Debug)]
    pub(crate) struct Condvar;

    pub(crate) struct Waited;

    impl Waited {
        pub(crate) fn timed_out(&self) -> bool {
            true
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar
        }

        pub(crate) fn notify_all(&self) {}

        pub(crate) fn wait<T>(&self, _: &mut MutexGuard<'_, T>) {}

        pub(crate) fn wait_until<T>(
            &self,
            _: &mut MutexGuard<'_, T>,
            _: std::time::Instant,
        ) -> Waited {
            Waited
        }
    }
}

mod entry {
    pub(crate) fn size_of_entry(_: &logtree::Entry) -> usize {
        100
    }
}

mod parse {
    pub(crate) use logtree::Format;
}

#[path = "../src/evicted.rs"]
mod evicted;
#[path = "../src/reader.rs"]
mod reader;
#[path = "../src/store.rs"]
mod store;

/// Orders tried per test.
const ORDERS: usize = 3_000;
/// Entries per writer.
const EACH: u64 = 4;

fn entry(dn: &Dn) -> Arc<Entry> {
    Arc::new(Entry {
        seq: 0,
        dn_seq: 0,
        dn: dn.clone(),
        wall_ns: 0,
        mono_ns: 0,
        level: Some(Level::Info),
        source: None,
        lines: vec!["x".to_owned()],
        fields: Vec::new(),
        original_len: 1,
    })
}

/// Two writers of two DNs of which the newest 2 entries are kept each.
fn race(read: impl FnOnce(Arc<Mutex<Store>>)) {
    let quota = Quota { entries: 2, bytes: 1 << 20 };
    let store = Arc::new(Mutex::new(Store::new(Limits { quota, ..Limits::default() })));
    let writers = ["a.x", "a.y"].map(|dn| {
        let store = store.clone();
        shuttle::thread::spawn(move || {
            let dn = Dn::from_static(dn);
            (0..EACH).for_each(|_| drop(store.lock().append(entry(&dn), Flags::default())));
        })
    });
    read(store);
    writers.into_iter().for_each(|w| w.join().expect("a writer ends"));
}

fn open(store: &Arc<Mutex<Store>>, backlog: Backlog) -> Reader {
    let query = Query { follow: true, backlog, ..Query::all(Dn::from_static("a")) };
    Reader::open(store.clone(), query).expect("a query that can be served")
}

#[test]
fn l6_a_reader_that_follows_sees_or_misses_each_entry_once_and_is_always_woken() {
    let test = || {
        race(|store| {
            let mut reader = open(&store, Backlog::After(Cursor(0)));
            let (mut read, mut missed, mut last) = (0, 0, 0);
            // A lost wake-up is a deadlock here, and the scheduler reports it.
            shuttle::future::block_on(async {
                while read + missed < 2 * EACH {
                    reader.changed().await;
                    let batch = reader.next(1);
                    missed += batch.missed;
                    for entry in batch.entries {
                        assert!(entry.seq > last, "out of order");
                        last = entry.seq;
                        read += 1;
                    }
                }
            });
            assert_eq!(read + missed, 2 * EACH);
        });
    };
    shuttle::check_random(test, ORDERS);
}

#[test]
fn l6_a_reader_resumed_by_cursor_amid_appends_loses_nothing_uncounted() {
    let test = || {
        race(|store| {
            let mut reader = open(&store, Backlog::After(Cursor(0)));
            let (mut read, mut missed) = (0, 0);
            shuttle::future::block_on(async {
                while read + missed < 2 * EACH {
                    reader.changed().await;
                    let batch = reader.next(1);
                    missed += batch.missed;
                    read += batch.entries.len() as u64;
                    reader = open(&store, Backlog::After(batch.cursor));
                }
            });
            assert_eq!(read + missed, 2 * EACH);
        });
    };
    shuttle::check_random(test, ORDERS);
}
