//! A keyed work queue: a key waits once, never runs twice at once, and may come back at a set time.
//!
//! Purpose: order the work on claims and on volumes; an item that is added while it runs runs once more after.
//! Owner: the controller has one for claims and one for volumes; workers call [`WorkQueue::next`].
//! Invariants: [`Queue`] is pure (times come in); a key is in at most one of ready and running; nothing added
//! is lost; memory is bounded by the number of distinct keys.
//! It must not know: what a key means.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// The pure part.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    ready: VecDeque<String>,
    /// Keys to be run: those in `ready`, and those in `running` that were added again.
    wanted: HashSet<String>,
    running: HashSet<String>,
    timers: BTreeSet<(Duration, String)>,
    timer_of: HashMap<String, Duration>,
}

impl Queue {
    /// Wants `key` now.
    pub(crate) fn add(&mut self, key: &str) {
        if self.wanted.insert(key.to_owned()) && !self.running.contains(key) {
            self.ready.push_back(key.to_owned());
        }
    }

    /// Wants `key` at `at`; of two times the earlier counts.
    pub(crate) fn add_at(&mut self, key: &str, at: Duration) {
        match self.timer_of.get(key) {
            Some(known) if *known <= at => return,
            Some(known) => {
                self.timers.remove(&(*known, key.to_owned()));
            }
            None => {}
        }
        self.timer_of.insert(key.to_owned(), at);
        self.timers.insert((at, key.to_owned()));
    }

    /// Takes the next key that is ready; a timer of it that has not run out is dropped.
    pub(crate) fn take(&mut self, now: Duration) -> Option<String> {
        while let Some((at, _)) = self.timers.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.timers.pop_first() {
                self.timer_of.remove(&key);
                self.add(&key);
            }
        }
        let key = self.ready.pop_front()?;
        self.wanted.remove(&key);
        if let Some(at) = self.timer_of.remove(&key) {
            self.timers.remove(&(at, key.clone()));
        }
        self.running.insert(key.clone());
        Some(key)
    }

    /// The run of `key` is over.
    pub(crate) fn done(&mut self, key: &str) {
        if self.running.remove(key) && self.wanted.contains(key) {
            self.ready.push_back(key.to_owned());
        }
    }

    /// When the next timer runs out.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// How many keys could run now.
    pub(crate) fn depth(&self) -> usize {
        self.ready.len()
    }
}

/// The queue that workers wait on.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<Queue>,
    changed: Notify,
    began: Instant,
}

impl WorkQueue {
    /// An empty queue whose times count from `began`.
    pub(crate) fn new(began: Instant) -> WorkQueue {
        WorkQueue { state: Mutex::default(), changed: Notify::new(), began }
    }

    /// Wants `key` now.
    pub(crate) fn add(&self, key: &str) {
        self.state.lock().add(key);
        self.changed.notify_one();
    }

    /// Wants `key` after `delay`.
    pub(crate) fn add_after(&self, key: &str, delay: Duration) {
        self.state.lock().add_at(key, self.began.elapsed() + delay);
        self.changed.notify_one();
    }

    /// Waits for the next key. Cancel safe: a key is taken only when it is returned.
    pub(crate) async fn next(&self) -> String {
        loop {
            let changed = self.changed.notified();
            let (key, more, timer) = {
                let mut q = self.state.lock();
                (q.take(self.began.elapsed()), q.depth() > 0, q.next_timer())
            };
            if let Some(key) = key {
                // One wake-up may stand for several additions: pass it on.
                if more || timer.is_some() {
                    self.changed.notify_one();
                }
                return key;
            }
            match timer {
                Some(at) => {
                    let _elapsed_or_changed =
                        tokio::time::timeout_at(self.began + at, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// The run of `key` is over.
    pub(crate) fn done(&self, key: &str) {
        self.state.lock().done(key);
        self.changed.notify_one();
    }

    /// How many keys could run now.
    pub(crate) fn depth(&self) -> usize {
        self.state.lock().depth()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn k15_a_key_waits_once_and_never_runs_twice_at_once() {
        let mut q = Queue::default();
        q.add("a");
        q.add("a");
        assert_eq!(q.take(s(0)).as_deref(), Some("a"));
        assert_eq!(q.take(s(0)), None);
        q.add("a");
        q.add("a");
        assert_eq!(q.take(s(0)), None, "it still runs");
        q.done("a");
        assert_eq!(q.take(s(0)).as_deref(), Some("a"));
        q.done("a");
        assert_eq!(q.take(s(0)), None);
    }

    #[test]
    fn the_earlier_of_two_timers_counts_and_a_run_ends_both() {
        let mut q = Queue::default();
        q.add_at("a", s(10));
        q.add_at("a", s(5));
        q.add_at("a", s(20));
        assert_eq!(q.next_timer(), Some(s(5)));
        assert_eq!(q.take(s(4)), None);
        assert_eq!(q.take(s(5)).as_deref(), Some("a"));
        q.done("a");
        assert_eq!(q.next_timer(), None);
        q.add_at("b", s(30));
        q.add("b");
        assert_eq!(q.take(s(6)).as_deref(), Some("b"));
        assert_eq!(q.next_timer(), None, "the run made the timer needless");
    }

    #[tokio::test(start_paused = true)]
    async fn workers_wait_for_additions_and_timers() {
        let q = WorkQueue::new(Instant::now());
        q.add_after("late", s(7));
        q.add("now");
        assert_eq!(q.next().await, "now");
        let before = Instant::now();
        assert_eq!(q.next().await, "late");
        assert_eq!(before.elapsed(), s(7));
    }

    #[tokio::test(start_paused = true)]
    async fn every_waiting_worker_gets_an_item() {
        let q = WorkQueue::new(Instant::now());
        let workers = futures::future::join_all((0..4).map(|_| q.next()));
        let adder = async {
            tokio::task::yield_now().await;
            for key in ["a", "b", "c", "d"] {
                q.add(key);
            }
        };
        let (mut got, ()) = tokio::join!(workers, adder);
        got.sort();
        assert_eq!(got, ["a", "b", "c", "d"]);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Add(u8),
        AddAt(u8, u64),
        Take,
        Done(u8),
        Later(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..4_u8).prop_map(Op::Add),
            (0..4_u8, 0..9_u64).prop_map(|(k, t)| Op::AddAt(k, t)),
            Just(Op::Take),
            (0..4_u8).prop_map(Op::Done),
            (0..9_u64).prop_map(Op::Later),
        ]
    }

    proptest! {
        /// Whatever happens, a key that was added runs after its last addition, and never twice at once.
        #[test]
        fn nothing_added_is_lost(ops in prop::collection::vec(op(), 0..60)) {
            let mut q = Queue::default();
            let mut now = s(0);
            let mut owed: HashSet<String> = HashSet::new();
            let mut running: HashSet<String> = HashSet::new();
            let key = |k: u8| format!("k{k}");
            for o in ops {
                match o {
                    Op::Add(k) => { q.add(&key(k)); owed.insert(key(k)); }
                    Op::AddAt(k, t) => { q.add_at(&key(k), now + s(t)); owed.insert(key(k)); }
                    Op::Take => if let Some(k) = q.take(now) {
                        prop_assert!(running.insert(k.clone()), "{} runs twice", k);
                        owed.remove(&k);
                    },
                    Op::Done(k) => { q.done(&key(k)); running.remove(&key(k)); }
                    Op::Later(t) => now += s(t),
                }
            }
            for k in running.drain() { q.done(&k); }
            while let Some(k) = q.take(now + s(100)) { owed.remove(&k); q.done(&k); }
            prop_assert!(owed.is_empty(), "lost: {:?}", owed);
        }
    }
}
