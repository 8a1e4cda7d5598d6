//! What a commit step changes, in the registry and then in the ledger. Pure.
//!
//! Invariant: the ledger learns of a change only after it is durable, except for a
//! reservation, which is taken when the decision is made.

use crate::ledger::Ledger;
use crate::plan::Step;
use crate::record::{Phase, Record, TrashRecord};
use crate::registry::Change;

/// Moves `draft` to what it will be after `step`, and says what to commit for that.
pub(crate) fn prepare(step: Step, draft: &mut Record, ledger: &Ledger) -> Vec<Change> {
    let put = |r: &Record| Change::Put(Box::new(r.clone()));
    match step {
        Step::CommitIntent => {
            vec![put(draft), Change::Cursor(ledger.cursor), Change::Seq(ledger.seq)]
        }
        Step::CommitReady => {
            draft.phase = Phase::Ready;
            vec![put(draft)]
        }
        Step::CommitTarget => vec![put(draft)],
        Step::CommitSize => {
            draft.size = draft.expand.take().unwrap_or(draft.size);
            vec![put(draft)]
        }
        Step::CommitOldSize => {
            draft.expand = None;
            vec![put(draft)]
        }
        Step::CommitDeleting => {
            draft.phase = Phase::Deleting;
            vec![put(draft)]
        }
        Step::Forget => vec![Change::Remove(draft.id.clone()), Change::NoOrphan(draft.id.clone())],
        Step::CommitTrashed => vec![
            Change::Remove(draft.id.clone()),
            Change::NoOrphan(draft.id.clone()),
            Change::PutTrash(TrashRecord::of(draft)),
        ],
        Step::CommitPurged => vec![Change::RemoveTrash(draft.trash_key())],
        Step::ClearStaging
        | Step::TakeOver
        | Step::MakeStaging
        | Step::SetLimits
        | Step::SetProject
        | Step::WriteCopy
        | Step::Verify
        | Step::SyncStaging
        | Step::Place
        | Step::SyncPlaced
        | Step::FreeProject
        | Step::ReadBack
        | Step::RefreshCopy
        | Step::MoveToTrash
        | Step::SyncTrash
        | Step::Purge => vec![],
    }
}

/// Brings the ledger up to what was committed.
pub(crate) fn settle(step: Step, draft: &Record, ledger: &mut Ledger) {
    match step {
        Step::Forget => {
            ledger.remove(&draft.id);
        }
        Step::CommitTrashed => {
            // The id must be held all the time: trash first.
            ledger.put_trash(TrashRecord::of(draft));
            ledger.remove(&draft.id);
        }
        Step::CommitPurged => ledger.remove_trash(&draft.trash_key()),
        Step::CommitIntent
        | Step::CommitReady
        | Step::CommitTarget
        | Step::CommitSize
        | Step::CommitOldSize
        | Step::CommitDeleting => ledger.put(draft.clone()),
        Step::ClearStaging
        | Step::TakeOver
        | Step::MakeStaging
        | Step::SetLimits
        | Step::SetProject
        | Step::WriteCopy
        | Step::Verify
        | Step::SyncStaging
        | Step::Place
        | Step::SyncPlaced
        | Step::FreeProject
        | Step::ReadBack
        | Step::RefreshCopy
        | Step::MoveToTrash
        | Step::SyncTrash
        | Step::Purge => {}
    }
}
