//! Which sequence numbers a ring has lost, as far back as there is room to remember.
//!
//! Purpose: a reader that resumes by cursor is told how many entries it has missed. Pure. Numbers are
//! kept as stretches without a gap: a DN that talks alone for a while costs one stretch.

use std::collections::VecDeque;

/// Stretches remembered; 16 bytes each.
const STRETCHES: usize = 1024;

/// First number and how many follow each other.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    first: u64,
    count: u64,
}

/// Evicted numbers, rising.
#[derive(Debug, Default)]
pub(crate) struct Evicted(VecDeque<Stretch>);

impl Evicted {
    /// One more; larger than all before.
    pub(crate) fn push(&mut self, seq: u64) {
        if let Some(last) = self.0.back_mut()
            && last.first + last.count == seq
        {
            last.count += 1;
            return;
        }
        if self.0.len() == STRETCHES {
            self.0.pop_front();
        }
        self.0.push_back(Stretch { first: seq, count: 1 });
    }

    /// How many came after `seq`, of those that are remembered.
    pub(crate) fn after(&self, seq: u64) -> u64 {
        let newer = self.0.iter().rev().take_while(|s| s.first + s.count - 1 > seq);
        newer.map(|s| s.count - seq.saturating_add(1).saturating_sub(s.first)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn l6_what_came_after_a_number_is_counted_exactly(
            gaps in prop::collection::vec(1u64..4, 1..400),
            cursor in 0u64..1000,
        ) {
            let mut evicted = Evicted::default();
            let mut plain = Vec::new();
            let mut seq = 0;
            for gap in gaps {
                seq += gap;
                evicted.push(seq);
                plain.push(seq);
            }
            let after = plain.iter().filter(|s| **s > cursor).count() as u64;
            prop_assert_eq!(evicted.after(cursor), after);
        }
    }

    #[test]
    fn l6_the_memory_of_evicted_entries_is_bounded() {
        let mut evicted = Evicted::default();
        (0..100_000).for_each(|n| evicted.push(2 * n));
        assert_eq!(evicted.0.len(), STRETCHES);
        assert_eq!(evicted.after(2 * 99_990), 9);
        (300_000..400_000).for_each(|n| evicted.push(n));
        assert_eq!(evicted.after(299_999), 100_000, "one stretch");
    }
}
