//! What the driver counts beside the tree, for metrics (spec §12).
//!
//! Owner: the driver writes, anybody reads a copy. Numbers that belong to a DN stay while its node
//! is away, so that a counter goes on where it was when the node is back; they are shown only while
//! the node is there. Must not know: how metrics are written down.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use logtree::Dn;
use parking_lot::Mutex;

use crate::{Snapshot, State};

/// Upper bounds of the buckets of [`StepTimes`] in seconds. A step of a 60-node tree takes some
/// microseconds; a second is what the watch over polls calls stalled.
pub const STEP_BUCKETS: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
/// DNs without a node whose numbers are kept, as many as the tree remembers.
const REMEMBERED_DNS: usize = 4096;

/// How long the steps of the tree took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTimes {
    /// Steps within each of [`STEP_BUCKETS`] and above the one before it; the last is "longer".
    pub buckets: [u64; STEP_BUCKETS.len() + 1],
    /// All steps.
    pub count: u64,
    /// Their time in all, in seconds.
    pub sum_seconds: f64,
}

impl StepTimes {
    fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = STEP_BUCKETS.iter().position(|upper| seconds <= *upper);
        self.buckets[bucket.unwrap_or(STEP_BUCKETS.len())] += 1;
        self.count += 1;
        self.sum_seconds += seconds;
    }
}

/// The counters of one DN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnCounters {
    /// Whose.
    pub dn: Dn,
    /// Changes of state by state before (`None` at first sight) and after.
    pub transitions: Vec<(Option<State>, State, u64)>,
    /// Polls that were found running for more than 1 s.
    pub stalled_polls: u64,
}

/// Counters since the start of the supervisor.
#[derive(Debug, Clone, PartialEq)]
pub struct Counters {
    /// Events of the tree by kind; a kind that never came is not listed.
    pub events: Vec<(&'static str, u64)>,
    /// Events for an incarnation or timer that was gone.
    pub stale_events: u64,
    /// Time the tree took for its decisions.
    pub step_seconds: StepTimes,
    /// Per DN that has a node now, parents before children.
    pub dns: Vec<DnCounters>,
}

#[derive(Debug, Default)]
struct OfDn {
    transitions: BTreeMap<(Option<State>, State), u64>,
    stalled_polls: u64,
}

#[derive(Debug, Default)]
struct Counts {
    events: BTreeMap<&'static str, u64>,
    stale: u64,
    steps: StepTimes,
    dns: HashMap<Dn, OfDn>,
}

/// The counters, shared between the driver and readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Counts>>);

impl Meter {
    /// One step of the tree.
    pub(crate) fn stepped(&self, kind: &'static str, took: Duration, stale: u64) {
        let mut counts = self.0.lock();
        *counts.events.entry(kind).or_default() += 1;
        counts.steps.add(took);
        counts.stale = stale;
    }

    /// One change of a node; a change of phase alone is none of state.
    pub(crate) fn moved(&self, dn: &Dn, from: Option<State>, to: State) {
        if from == Some(to) {
            return;
        }
        let mut counts = self.0.lock();
        let of_dn = counts.dns.entry(dn.clone()).or_default();
        *of_dn.transitions.entry((from, to)).or_default() += 1;
    }

    /// A poll of a node was found running for too long.
    pub(crate) fn stalled(&self, dn: &Dn) {
        self.0.lock().dns.entry(dn.clone()).or_default().stalled_polls += 1;
    }

    /// A copy, for the nodes of this snapshot.
    pub(crate) fn read(&self, tree: &Snapshot) -> Counters {
        let mut counts = self.0.lock();
        if counts.dns.len() > tree.nodes.len() + REMEMBERED_DNS {
            let there: std::collections::HashSet<&Dn> = tree.nodes.iter().map(|n| &n.dn).collect();
            counts.dns.retain(|dn, _| there.contains(dn));
        }
        let dns = tree.nodes.iter().map(|node| {
            let of_dn = counts.dns.get(&node.dn);
            let transitions = of_dn.into_iter().flat_map(|d| &d.transitions);
            DnCounters {
                dn: node.dn.clone(),
                transitions: transitions.map(|((from, to), n)| (*from, *to, *n)).collect(),
                stalled_polls: of_dn.map_or(0, |d| d.stalled_polls),
            }
        });
        Counters {
            dns: dns.collect(),
            events: counts.events.iter().map(|(kind, n)| (*kind, *n)).collect(),
            stale_events: counts.stale,
            step_seconds: counts.steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_counted_in_the_first_bucket_that_holds_it() {
        let mut times = StepTimes::default();
        for micros in [0, 1, 2, 1_000_000, 1_000_001] {
            times.add(Duration::from_micros(micros));
        }
        assert_eq!(times.buckets, [2, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(times.count, 5);
    }
}
