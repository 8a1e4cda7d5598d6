//! A recording of the tree as text, and running it again (rule T15).
//!
//! Purpose: what a node recorded in the field and what a failing property test writes are the same
//! file. NDJSON: first line the format's version and the tree before the first event, then one event
//! a line. Must not know: where the text comes from; a text that is no recording is an error, never a
//! panic.

use serde::{Deserialize, Serialize};

use crate::panics;
use crate::tree::Tree;
use crate::tree::record::{Recorded, Recorder};

/// Version of the format; the tree inside is the tree of one release.
const VERSION: u32 = 1;

/// Why a text cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is not even a first line.
    #[error("the recording is empty")]
    Empty,
    /// Written by another release.
    #[error("the recording has version {0}, this is version {VERSION}")]
    Version(u32),
    /// A line is not what it should be.
    #[error("line {line} is no part of a recording")]
    Line {
        /// From 1.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// What came of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Events applied.
    pub events: usize,
    /// Each event with its time and, indented, its effects; in order.
    pub steps: Vec<String>,
    /// Index of the first event that had another number of effects than when it was recorded: this
    /// code does not decide as the recorded one did.
    pub differs_at: Option<usize>,
    /// The tree broke at the last of `steps`: the panic's text.
    pub panicked: Option<String>,
}

#[derive(Serialize)]
struct HeaderOut<'a> {
    version: u32,
    base: &'a Tree,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Deserialize)]
struct HeaderIn {
    base: Tree,
}

/// The text of a recording.
pub(crate) fn export(recorder: &Recorder) -> Result<String, serde_json::Error> {
    let header = HeaderOut { version: VERSION, base: recorder.base() };
    let mut out = serde_json::to_string(&header)?;
    for event in recorder.events() {
        out.push('\n');
        out.push_str(&serde_json::to_string(event)?);
    }
    out.push('\n');
    Ok(out)
}

/// The parts of a recording.
pub(crate) fn import(text: &str) -> Result<(Tree, Vec<Recorded>), ReplayError> {
    let at = |line: usize| move |source| ReplayError::Line { line: line + 1, source };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (number, first) = lines.next().ok_or(ReplayError::Empty)?;
    let Version { version } = serde_json::from_str(first).map_err(at(number))?;
    if version != VERSION {
        return Err(ReplayError::Version(version));
    }
    let HeaderIn { base } = serde_json::from_str(first).map_err(at(number))?;
    let mut events = Vec::new();
    for (number, line) in lines {
        events.push(serde_json::from_str(line).map_err(at(number))?);
    }
    Ok((base, events))
}

/// Runs a recording against the tree of this program.
pub fn replay(text: &str) -> Result<Replay, ReplayError> {
    let (mut tree, events) = import(text)?;
    let mut replay = Replay { events: 0, steps: Vec::new(), differs_at: None, panicked: None };
    for (index, Recorded { now, event, effects }) in events.into_iter().enumerate() {
        let seconds = now.0 as f64 / 1e9;
        let mut step = format!("{seconds:.6} {event:?}");
        // The tree in the text may be one that no event could have made.
        match panics::catch(|| tree.step(now, event)) {
            Ok(done) => {
                if effects != Some(done.len()) {
                    replay.differs_at.get_or_insert(index);
                }
                for effect in done {
                    step.push_str(&format!("\n  {effect:?}"));
                }
            }
            Err(text) => replay.panicked = Some(text),
        }
        replay.steps.push(step);
        replay.events += 1;
        if replay.panicked.is_some() {
            break;
        }
    }
    Ok(replay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Event, Exit, Spec, Tick};
    use crate::{Name, Policy};

    fn spec(name: &'static str) -> Spec {
        Spec { name: Name::from_static(name), policy: Policy::default(), token: 0 }
    }

    /// A root with a child that dies `deaths` times.
    fn recorded(deaths: u64) -> (Recorder, Tree) {
        let (mut recorder, mut tree) = (Recorder::new(9), Tree::new(9));
        let mut step = |now: u64, event: Event| {
            recorder.before(Tick(now), &event);
            let effects = tree.step(Tick(now), event);
            recorder.after(effects.len());
            effects
        };
        step(0, Event::Root { spec: spec("root") });
        step(1, Event::Add { parent: 1, group: vec![spec("a")], reply: 0 });
        let (mut incarnation, mut now) = (2, 2);
        for _ in 0..deaths {
            let exit = Exit::Failed("x".repeat(10_000));
            for effect in step(now, Event::Exited { incarnation, exit }) {
                if let crate::tree::Effect::Arm { timer, at } = effect {
                    now = at.0;
                    step(now, Event::TimerFired { timer });
                }
            }
            incarnation += 1;
        }
        (recorder, tree)
    }

    #[test]
    fn t15_a_text_that_is_no_recording_is_an_error_and_no_panic() {
        assert!(matches!(replay(""), Err(ReplayError::Empty)));
        assert!(matches!(replay("hello"), Err(ReplayError::Line { line: 1, .. })));
        assert!(matches!(replay("{\"version\":99}"), Err(ReplayError::Version(99))));
        let good = export(&recorded(1).0).unwrap();
        let bad = format!("{good}{{\"now\":1}}\n");
        assert!(matches!(replay(&bad), Err(ReplayError::Line { .. })));
        // A tree that contradicts itself: its root is a node that is not there.
        let broken = good.replace("\"root\":null", "\"root\":77");
        assert_ne!(good, broken);
        let replayed = replay(&broken).unwrap();
        assert!(replayed.panicked.is_some() || replayed.differs_at.is_some(), "{replayed:?}");
    }

    #[test]
    fn t15_the_last_1024_events_and_the_tree_before_them_give_the_tree_of_now() {
        let (recorder, tree) = recorded(2000);
        assert_eq!(recorder.events().count(), crate::tree::record::KEPT);
        let text = export(&recorder).unwrap();
        let (mut again, events) = import(&text).unwrap();
        for Recorded { now, event, effects } in events {
            assert_eq!(Some(again.step(now, event).len()), effects);
        }
        // Texts of deaths are shortened in both, so the trees are the same to the last byte.
        let json = |tree: &Tree| serde_json::to_value(tree).unwrap();
        assert_eq!(json(&again), json(&tree));
        let replayed = replay(&text).unwrap();
        assert_eq!((replayed.events, replayed.differs_at, replayed.panicked), (1024, None, None));
        assert!(replayed.steps[0].contains("TimerFired") || replayed.steps[0].contains("Exited"));
    }
}
