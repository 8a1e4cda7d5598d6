//! What an attempt leaves behind (rules L18–L21).
//!
//! Purpose: keep or drop a claim in the in-progress set, and tell the scheduler to look again.
//! Invariants: pure; a claim whose volume may still be made never leaves the set (else it leaks, I5).
//! It must not know: why the attempt ended as it did.

use super::State;

/// What happens to the claim's place in the in-progress set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// Not in it any more.
    Out,
    /// In it.
    In,
}

/// What follows from the state of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// Place in the in-progress set afterwards.
    pub track: Track,
    /// Take the selected node off the claim, so that the scheduler chooses again (L18).
    pub reschedule: bool,
}

/// L18–L21: `in_progress` is the claim's place before, `selected` whether a node is named on it.
pub fn settle(state: State, in_progress: bool, selected: bool) -> Settle {
    let track = match state {
        State::Finished | State::Reschedule => Track::Out,
        State::InBackground => Track::In,
        State::NoChange if in_progress => Track::In,
        State::NoChange => Track::Out,
    };
    Settle { track, reschedule: state == State::Reschedule && selected }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATES: [State; 4] =
        [State::Finished, State::NoChange, State::InBackground, State::Reschedule];

    #[test]
    fn l18_to_l21_the_whole_table() {
        use State::*;
        let table = [
            (Finished, false, false, Track::Out, false),
            (Finished, true, true, Track::Out, false),
            (NoChange, false, true, Track::Out, false),
            (NoChange, true, true, Track::In, false),
            (InBackground, false, true, Track::In, false),
            (InBackground, true, false, Track::In, false),
            (Reschedule, false, true, Track::Out, true),
            (Reschedule, true, true, Track::Out, true),
            (Reschedule, true, false, Track::Out, false),
        ];
        for (state, in_progress, selected, track, reschedule) in table {
            assert_eq!(
                settle(state, in_progress, selected),
                Settle { track, reschedule },
                "{state:?} {in_progress} {selected}"
            );
        }
    }

    proptest! {
        /// Against a plain model: the backend is at work from the first BG until the next final answer.
        #[test]
        fn l21_a_claim_is_in_progress_exactly_while_the_backend_may_be_at_work(
            history in prop::collection::vec((prop::sample::select(STATES.to_vec()), any::<bool>()), 0..40),
        ) {
            let mut tracked = false;
            let mut at_work = false;
            for (state, selected) in history {
                match state {
                    State::InBackground => at_work = true,
                    State::Finished | State::Reschedule => at_work = false,
                    State::NoChange => {}
                }
                let s = settle(state, tracked, selected);
                tracked = s.track == Track::In;
                prop_assert_eq!(tracked, at_work);
                prop_assert!(!s.reschedule || (selected && !tracked), "never reschedule what may still be made");
            }
        }
    }
}
