//! The last events of the tree, and the tree as it was before them (rule T15).
//!
//! Purpose: what [`crate::Supervisor::recording`] hands out and [`crate::replay`] runs again. Pure.
//!
//! Invariants: at most [`KEPT`] events are kept; an event that leaves the list is applied to `base`,
//! so that base and list together always give the tree of now. That costs each step once more, no
//! copy of the tree is ever made, and the cost does not depend on the size of the tree (T13).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::node::{DEATH_TEXT_BYTES, cut};
use super::{Event, Exit, Tick, Tree};

/// Events kept.
pub(crate) const KEPT: usize = 1024;

/// One event as it came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) now: Tick,
    pub(crate) event: Event,
    /// Number of effects it had; `None` if the step never returned.
    pub(crate) effects: Option<usize>,
}

/// The list and what was before it.
#[derive(Debug)]
pub(crate) struct Recorder {
    base: Tree,
    events: VecDeque<Recorded>,
}

impl Recorder {
    /// For a tree made with this seed.
    pub(crate) fn new(seed: u64) -> Recorder {
        Recorder { base: Tree::new(seed), events: VecDeque::with_capacity(KEPT) }
    }

    /// Before the step: an event that breaks the tree is the one that is wanted most.
    pub(crate) fn before(&mut self, now: Tick, event: &Event) {
        if self.events.len() == KEPT
            && let Some(oldest) = self.events.pop_front()
        {
            self.base.step(oldest.now, oldest.event);
        }
        self.events.push_back(Recorded { now, event: shortened(event), effects: None });
    }

    /// After the step.
    pub(crate) fn after(&mut self, effects: usize) {
        if let Some(last) = self.events.back_mut() {
            last.effects = Some(effects);
        }
    }

    pub(crate) fn base(&self) -> &Tree {
        &self.base
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &Recorded> {
        self.events.iter()
    }
}

/// Memory is bounded: a text is as long as the history of a DN keeps it.
fn shortened(event: &Event) -> Event {
    let mut event = event.clone();
    if let Event::Exited { exit, .. } = &mut event {
        match exit {
            Exit::Restart(text) | Exit::Failed(text) | Exit::Panicked(text) => {
                *text = cut(text, DEATH_TEXT_BYTES).to_owned();
            }
            Exit::Done | Exit::Cancelled | Exit::Aborted => {}
        }
    }
    event
}
