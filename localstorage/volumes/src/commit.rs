//! What a commit changes, in the registry and then in the ledger. Pure.
//!
//! Invariant: the ledger learns of a change only after it is durable, except for a
//! reservation, which is taken when the decision is made.

use crate::ledger::Ledger;
use crate::plan::Commit;
use crate::record::{Phase, Record, TrashRecord};
use crate::registry::Change;

/// Moves `draft` to what it will be after `commit`, and says what to write for that.
pub(crate) fn prepare(commit: Commit, draft: &mut Record, ledger: &Ledger) -> Vec<Change> {
    let put = |r: &Record| Change::Put(Box::new(r.clone()));
    match commit {
        Commit::Intent => {
            vec![put(draft), Change::Cursor(ledger.cursor), Change::Seq(ledger.seq)]
        }
        Commit::Ready => {
            draft.phase = Phase::Ready;
            vec![put(draft)]
        }
        Commit::Target => vec![put(draft)],
        Commit::Size => {
            draft.size = draft.expand.take().unwrap_or(draft.size);
            vec![put(draft)]
        }
        Commit::OldSize => {
            draft.expand = None;
            vec![put(draft)]
        }
        Commit::Deleting => {
            draft.phase = Phase::Deleting;
            vec![put(draft)]
        }
        Commit::Forget => {
            vec![Change::Remove(draft.id.clone()), Change::NoOrphan(draft.id.clone())]
        }
        Commit::Trashed => vec![
            Change::Remove(draft.id.clone()),
            Change::NoOrphan(draft.id.clone()),
            Change::PutTrash(TrashRecord::of(draft)),
        ],
        Commit::Purged => vec![Change::RemoveTrash(draft.trash_key())],
    }
}

/// Brings the ledger up to what was committed.
pub(crate) fn settle(commit: Commit, draft: &Record, ledger: &mut Ledger) {
    match commit {
        Commit::Forget => {
            ledger.remove(&draft.id);
        }
        Commit::Trashed => {
            // The id must be held all the time: trash first.
            ledger.put_trash(TrashRecord::of(draft));
            ledger.remove(&draft.id);
        }
        Commit::Purged => ledger.remove_trash(&draft.trash_key()),
        Commit::Intent
        | Commit::Ready
        | Commit::Target
        | Commit::Size
        | Commit::OldSize
        | Commit::Deleting => ledger.put(draft.clone()),
    }
}
