//! Per-item back-off (B1) and the set of claims that wait because their request is infeasible (L4, L5, L17).
//!
//! Purpose: say how long to wait before the next attempt at an item.
//! Owner: the controller; one table for claims, one for volumes.
//! Invariants: pure; no clock (times come in as durations since the controller began); the delay of the
//! n-th failure is `min(max, start × 2ⁿ)`, without jitter.
//! It must not know: what an attempt does.

use std::{collections::HashMap, time::Duration};

/// First and largest delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure. Default 1 s (as `--retry-interval-start`).
    pub start: Duration,
    /// Largest delay. Default 5 min (as `--retry-interval-max`).
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { start: Duration::from_secs(1), max: Duration::from_secs(300) }
    }
}

impl Backoff {
    /// Delay after `failures` failures before this one.
    pub fn delay(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.min(31)).unwrap_or(u32::MAX);
        self.start.checked_mul(factor).map_or(self.max, |d| d.min(self.max))
    }
}

/// How often each item has failed in a row.
#[derive(Debug, Default)]
pub struct Attempts {
    failures: HashMap<String, u32>,
}

impl Attempts {
    /// Notes a failure of `key` and says how long to wait (B1: 1 2 4 .. 256 300 s).
    pub fn failed(&mut self, key: &str, backoff: Backoff) -> Duration {
        let n = self.failures.entry(key.to_owned()).or_insert(0);
        let delay = backoff.delay(*n);
        *n = n.saturating_add(1);
        delay
    }

    /// Whether `key` has failed since it was last forgotten.
    pub fn is_failing(&self, key: &str) -> bool {
        self.failures.contains_key(key)
    }

    /// Success, a reschedule or a new object: the next failure is the first again.
    pub fn forget(&mut self, key: &str) {
        self.failures.remove(key);
    }
}

/// What an infeasible request looked like: only a change of it is worth another attempt before the time is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// UID of the class the claim had.
    pub class_uid: String,
    /// The size it asked for, as text.
    pub size: String,
}

/// Claims whose request was infeasible, with the time at which they may be tried again.
#[derive(Debug, Default)]
pub struct SlowSet {
    waiting: HashMap<String, (Request, Duration)>,
}

impl SlowSet {
    /// L17: `key` asked for `request`, which cannot be met; try again at `until`.
    pub fn insert(&mut self, key: &str, request: Request, until: Duration) {
        self.waiting.insert(key.to_owned(), (request, until));
    }

    /// L4, L5: how long `key` still has to wait with this request. A different request ends the wait.
    pub fn remaining(&mut self, key: &str, request: &Request, now: Duration) -> Option<Duration> {
        let (known, until) = self.waiting.get(key)?;
        if known == request && *until > now {
            return Some(*until - now);
        }
        self.waiting.remove(key);
        None
    }

    /// The claim is gone or served.
    pub fn forget(&mut self, key: &str) {
        self.waiting.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_delays_double_up_to_five_minutes_and_stay_there() {
        let mut a = Attempts::default();
        let secs: Vec<u64> = (0..11).map(|_| a.failed("c", Backoff::default()).as_secs()).collect();
        assert_eq!(secs, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        for _ in 0..100 {
            assert_eq!(a.failed("c", Backoff::default()).as_secs(), 300);
        }
    }

    #[test]
    fn b1_success_resets_one_item_only() {
        let mut a = Attempts::default();
        a.failed("c", Backoff::default());
        a.failed("d", Backoff::default());
        a.forget("c");
        assert!(!a.is_failing("c"));
        assert_eq!(a.failed("c", Backoff::default()).as_secs(), 1);
        assert_eq!(a.failed("d", Backoff::default()).as_secs(), 2);
    }

    #[test]
    fn l4_an_infeasible_request_waits_and_l5_a_changed_one_does_not() {
        let mut s = SlowSet::default();
        let rq = |class: &str, size: &str| Request { class_uid: class.into(), size: size.into() };
        let at = Duration::from_secs;
        s.insert("c", rq("u1", "16Ei"), at(300));
        assert_eq!(s.remaining("c", &rq("u1", "16Ei"), at(10)), Some(at(290)));
        assert_eq!(s.remaining("c", &rq("u1", "1Gi"), at(10)), None);
        assert_eq!(s.remaining("c", &rq("u1", "16Ei"), at(11)), None, "the wait is over once left");
        s.insert("c", rq("u1", "16Ei"), at(300));
        assert_eq!(s.remaining("c", &rq("u1", "16Ei"), at(300)), None);
    }
}
