//! Group commit: whatever waits when the last flush is done goes into the next one.

use std::time::Instant;

use slog::{info, warn};

use super::{Completion, Owner, text};
use crate::commit;
use crate::id::VolumeId;
use crate::plan::Commit;
use crate::record::Record;
use crate::registry::{Change, CommitError};

/// What to do once a commit is durable.
pub(super) enum After {
    /// A step of an operation.
    Step(VolumeId, Commit),
    /// The record of an operation without further steps.
    Record(Box<Record>),
    /// A purge is complete.
    Purged(String),
    /// Nothing waits for it.
    Nothing,
}

impl After {
    fn point(&self) -> &'static str {
        match self {
            After::Step(_, step) => step.point(),
            After::Purged(_) => Commit::Purged.point(),
            After::Record(_) => "tag",
            After::Nothing => "note",
        }
    }
}

/// Changes that wait for a flush.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Vec<(Vec<Change>, After)>,
    running: bool,
}

/// A batch that was committed, or not.
pub(crate) struct Committed {
    after: Vec<After>,
    result: Result<(), String>,
    gave_ballast: bool,
}

impl Owner {
    /// Queues the commit `step` of the operation on `id`.
    pub(super) fn commit_step(&mut self, id: &VolumeId, step: Commit) {
        let Some(draft) = self.operations.get_mut(id).and_then(|op| op.draft.as_mut()) else {
            return;
        };
        let changes = commit::prepare(step, draft, &self.ledger);
        self.commits.waiting.push((changes, After::Step(id.clone(), step)));
    }

    /// Queues a new version of a record, which ends its operation.
    pub(super) fn commit_record(&mut self, r: Record) {
        let changes = vec![Change::Put(Box::new(r.clone()))];
        self.commits.waiting.push((changes, After::Record(Box::new(r))));
    }

    /// Queues changes.
    pub(super) fn commit(&mut self, changes: Vec<Change>, after: After) {
        self.commits.waiting.push((changes, after));
    }

    /// Starts a flush if none runs and something waits.
    pub(super) fn flush(&mut self) {
        if self.commits.running || self.commits.waiting.is_empty() {
            return;
        }
        self.commits.running = true;
        let batch = std::mem::take(&mut self.commits.waiting);
        let (registry, disk) = (self.registry.clone(), self.disk.clone());
        let metrics = self.shared.metrics.clone();
        let job = move || {
            let (changes, after): (Vec<Vec<Change>>, Vec<After>) = batch.into_iter().unzip();
            let changes: Vec<Change> = changes.into_iter().flatten().collect();
            let mut gave_ballast = false;
            let begun = Instant::now();
            let result = match registry.commit(&changes) {
                Err(CommitError::NoSpace(_)) if disk.drop_ballast() => {
                    gave_ballast = true;
                    registry.commit(&changes)
                }
                other => other,
            };
            metrics.commit(begun.elapsed());
            if result.is_ok() {
                after.iter().for_each(|a| disk.seams.faults.point(a.point()));
            }
            let result = result.map_err(|e| text(&e));
            Completion::Committed(Committed { after, result, gave_ballast })
        };
        self.spawn_aside("commit", Box::new(job));
    }

    /// Goes on with everything that waited for the batch.
    pub(super) fn committed(&mut self, batch: Committed) -> Result<(), String> {
        self.commits.running = false;
        if batch.gave_ballast {
            warn!(self.log, "gave up the ballast: the disk is full");
        }
        // Memory and file may differ now: only a new incarnation knows.
        batch.result.map_err(|e| format!("the registry cannot be written: {e}"))?;
        for after in batch.after {
            match after {
                After::Step(id, step) => self.settle(&id, step),
                After::Record(r) => {
                    let id = r.id.clone();
                    self.ledger.put(*r);
                    self.finish(&id);
                }
                After::Purged(key) => {
                    self.ledger.remove_trash(&key);
                    info!(self.log, "purged"; "item" => &key);
                    self.purge_ended(&key, true);
                    self.measure();
                }
                After::Nothing => {}
            }
        }
        Ok(())
    }

    fn settle(&mut self, id: &VolumeId, step: Commit) {
        let Some(op) = self.operations.get_mut(id) else { return };
        op.is_new = false;
        let Some(draft) = op.draft.clone() else { return };
        commit::settle(step, &draft, &mut self.ledger);
        match step {
            Commit::Trashed => {
                self.conditions.remove(id);
                self.orphans.remove(id);
                // Until it is measured, all of it may still be in use.
                self.room.other = self.room.other.saturating_add(draft.size.limit.0);
                self.purge_later(draft.trash_key());
            }
            Commit::Forget => {
                self.conditions.remove(id);
            }
            Commit::Intent
            | Commit::Ready
            | Commit::Target
            | Commit::Size
            | Commit::OldSize
            | Commit::Deleting
            | Commit::Purged => {}
        }
        self.advance(id);
    }
}
