//! What has to be done next with one volume. Pure: no I/O, no clock.
//!
//! ```text
//!            create                      delete                 purge
//!  (none) ─ intent ─► Creating ─► Ready ─ intent ─► Deleting ─► trash ─► (none)
//!                        │                            ▲
//!                        └── rolled back ─► (none)    └ also from Creating with an entry
//! ```
//!
//! Invariants: the steps of a request depend only on the committed record and on what is
//! on disk, so a crash after any step and a recovery give the same result as no crash
//! (property test below). Limits come before the id, the id before the content, and all
//! before the rename, so an entry in `volumes` is never unlimited or half made.

use crate::record::{Phase, Record};

/// What is in `volumes/<id>`, or in `snapshots/<id>` for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing.
    Absent,
    /// What the record says (a directory or an image) with the record's project.
    Ours,
    /// The same with another project.
    Altered,
    /// Anything else: never touched.
    Alien,
}

/// What was seen on disk before planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observed {
    /// Something is at `staging/<id>`.
    pub(crate) staging: bool,
    /// What is at `volumes/<id>`.
    pub(crate) entry: Entry,
}

/// What is wanted of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// It should exist.
    Create,
    /// A create that failed should leave nothing.
    RollBack,
    /// It should be as large as its record's target.
    Expand,
    /// An expand that failed should leave the old size.
    Shrink,
    /// Its devices should have its size.
    Reassert,
    /// It should not exist.
    Delete,
    /// After a start: whatever was begun should be finished or undone.
    Recover,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Changes the registry; done by the owner task.
    Commit(Commit),
    /// Changes the disk or the kernel; done by a blocking job.
    Act(Act),
}

/// A change of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Commit {
    /// C1.
    Intent,
    /// C10.
    Ready,
    /// The record is removed.
    Forget,
    /// E1.
    Target,
    /// E5.
    Size,
    /// E5 of a failed expansion.
    OldSize,
    /// D2.
    Deleting,
    /// D4.
    Trashed,
    /// D7.
    Purged,
}

/// Work on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// What an earlier attempt left in `staging` goes to the trash.
    ClearStaging,
    /// An empty directory in `volumes` without a record makes way; one with data stops us.
    TakeOver,
    /// C2.
    MakeStaging,
    /// C3.
    SetLimits,
    /// C4.
    SetProject,
    /// C5: the space of an image, the content of a source.
    Fill,
    /// C6, first half.
    WriteCopy,
    /// C6, second half.
    Verify,
    /// C7.
    SyncStaging,
    /// C8.
    Place,
    /// C9.
    SyncPlaced,
    /// Limits of the project are zeroed, its usage is verified to be nothing (also D6).
    FreeProject,
    /// E2.
    Resize,
    /// E3.
    ReadBack,
    /// E4.
    ResizeDevices,
    /// The copy on the entry; may be refused for space.
    RefreshCopy,
    /// D3.
    MoveToTrash,
    /// D3, second half.
    SyncTrash,
    /// D5.
    Purge,
}

impl Step {
    /// Name of the crash point after this step and of the step in errors.
    pub(crate) fn point(self) -> &'static str {
        match self {
            Step::Commit(c) => c.point(),
            Step::Act(a) => a.point(),
        }
    }
}

impl Commit {
    /// See [`Step::point`].
    pub(crate) fn point(self) -> &'static str {
        match self {
            Commit::Intent => "create.c1",
            Commit::Ready => "create.c10",
            Commit::Forget => "create.forget",
            Commit::Target => "expand.e1",
            Commit::Size => "expand.e5",
            Commit::OldSize => "expand.undo",
            Commit::Deleting => "delete.d2",
            Commit::Trashed => "delete.d4",
            Commit::Purged => "delete.d7",
        }
    }
}

impl Act {
    /// See [`Step::point`].
    pub(crate) fn point(self) -> &'static str {
        match self {
            Act::ClearStaging => "create.clear",
            Act::TakeOver => "create.takeover",
            Act::MakeStaging => "create.c2",
            Act::SetLimits => "create.c3",
            Act::SetProject => "create.c4",
            Act::Fill => "create.c5",
            Act::WriteCopy => "create.c6w",
            Act::Verify => "create.c6",
            Act::SyncStaging => "create.c7",
            Act::Place => "create.c8",
            Act::SyncPlaced => "create.c9",
            Act::FreeProject => "delete.d6",
            Act::Resize => "expand.e2",
            Act::ReadBack => "expand.e3",
            Act::ResizeDevices => "expand.e4",
            Act::RefreshCopy => "expand.e4c",
            Act::MoveToTrash => "delete.d3",
            Act::SyncTrash => "delete.d3s",
            Act::Purge => "delete.d5",
        }
    }
}

const MAKE: [Step; 10] = [
    Step::Act(Act::MakeStaging),
    Step::Act(Act::SetLimits),
    Step::Act(Act::SetProject),
    Step::Act(Act::Fill),
    Step::Act(Act::WriteCopy),
    Step::Act(Act::Verify),
    Step::Act(Act::SyncStaging),
    Step::Act(Act::Place),
    Step::Act(Act::SyncPlaced),
    Step::Commit(Commit::Ready),
];
const TRASH: [Step; 3] =
    [Step::Act(Act::MoveToTrash), Step::Act(Act::SyncTrash), Step::Commit(Commit::Trashed)];
const GROW: [Step; 5] = [
    Step::Act(Act::Resize),
    Step::Act(Act::ReadBack),
    Step::Act(Act::ResizeDevices),
    Step::Act(Act::RefreshCopy),
    Step::Commit(Commit::Size),
];
const SHRINK: [Step; 4] = [
    Step::Act(Act::Resize),
    Step::Act(Act::ReadBack),
    Step::Act(Act::ResizeDevices),
    Step::Commit(Commit::OldSize),
];

/// What a job does with an item in the trash; [`Commit::Purged`] follows.
pub(crate) const PURGE: [Act; 2] = [Act::Purge, Act::FreeProject];

/// The steps that remain. `record` is the committed one; for a new volume there is none.
/// Empty: nothing to do.
pub(crate) fn next(record: Option<&Record>, seen: Observed, want: Want) -> Vec<Step> {
    let Some(record) = record else {
        return match want {
            Want::Create => make_new(seen),
            Want::RollBack
            | Want::Expand
            | Want::Shrink
            | Want::Reassert
            | Want::Delete
            | Want::Recover => vec![],
        };
    };
    match record.phase {
        Phase::Creating => creating(seen, want),
        Phase::Ready => ready(record, seen, want),
        Phase::Deleting => deleting(seen),
    }
}

fn make_new(seen: Observed) -> Vec<Step> {
    let mut steps = vec![Step::Commit(Commit::Intent)];
    steps.extend(make(seen));
    steps
}

fn make(seen: Observed) -> Vec<Step> {
    let mut steps = vec![];
    if seen.entry != Entry::Absent {
        steps.push(Step::Act(Act::TakeOver));
    }
    if seen.staging {
        steps.push(Step::Act(Act::ClearStaging));
    }
    steps.extend(MAKE);
    steps
}

fn creating(seen: Observed, want: Want) -> Vec<Step> {
    let placed = seen.entry == Entry::Ours;
    match want {
        // The rename may not be durable yet: sync again before saying so.
        Want::Create | Want::Recover if placed => {
            vec![Step::Act(Act::SyncPlaced), Step::Commit(Commit::Ready)]
        }
        Want::Create => make(seen),
        Want::Delete | Want::RollBack if placed => {
            let mut steps = vec![Step::Commit(Commit::Deleting)];
            steps.extend(TRASH);
            steps
        }
        Want::Recover | Want::RollBack | Want::Delete => {
            let mut steps = vec![];
            if seen.staging {
                steps.push(Step::Act(Act::ClearStaging));
            }
            steps.extend([Step::Act(Act::FreeProject), Step::Commit(Commit::Forget)]);
            steps
        }
        Want::Expand | Want::Shrink | Want::Reassert => vec![],
    }
}

fn ready(record: &Record, seen: Observed, want: Want) -> Vec<Step> {
    match want {
        Want::Create | Want::RollBack => vec![],
        Want::Expand => {
            let mut steps = vec![Step::Commit(Commit::Target)];
            steps.extend(GROW);
            steps
        }
        Want::Shrink => SHRINK.to_vec(),
        Want::Reassert => vec![Step::Act(Act::ResizeDevices)],
        Want::Recover if record.expand.is_some() => GROW.to_vec(),
        // A missing entry stays missing: it is never made anew empty.
        Want::Recover => vec![],
        Want::Delete => {
            let mut steps = vec![Step::Commit(Commit::Deleting)];
            steps.extend(deleting(seen));
            steps
        }
    }
}

fn deleting(seen: Observed) -> Vec<Step> {
    match seen.entry {
        Entry::Ours | Entry::Altered => TRASH.to_vec(),
        // Moved before the crash, or never there. What is not a directory is not our volume.
        Entry::Absent | Entry::Alien => {
            vec![Step::Act(Act::SyncTrash), Step::Commit(Commit::Trashed)]
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::record::{Size, TrashRecord, tests::sample};
    use crate::types::Bytes;

    /// Registry and disk of one volume id, as far as the protocol sees them. Each field is
    /// durable: what a step has done survives the crash after it.
    #[derive(Debug, Clone, Default, PartialEq)]
    struct Model {
        record: Option<Record>,
        trash_rows: BTreeMap<String, TrashRecord>,
        staging: Option<Made>,
        entry: Option<Made>,
        trash: BTreeMap<String, Made>,
        limits: BTreeMap<u32, u64>,
        seq: u64,
    }

    #[derive(Debug, Clone, Default, PartialEq)]
    struct Made {
        project: u32,
        copied: bool,
    }

    impl Model {
        fn observe(&self) -> Observed {
            let project = self.record.as_ref().map(|r| r.project);
            Observed {
                staging: self.staging.is_some(),
                entry: match &self.entry {
                    None => Entry::Absent,
                    Some(m) if Some(m.project) == project && m.copied => Entry::Ours,
                    Some(_) => Entry::Altered,
                },
            }
        }

        fn apply(&mut self, step: Step, draft: &mut Record) {
            match step {
                Step::Commit(Commit::Intent) => self.record = Some(draft.clone()),
                Step::Act(Act::ClearStaging) => {
                    let made = self.staging.take().expect("something to clear");
                    self.trash.insert(format!("{}.s{}", draft.id, self.seq), made);
                }
                Step::Act(Act::TakeOver) => panic!("nobody else makes entries in this model"),
                Step::Act(Act::MakeStaging) => {
                    assert_eq!(self.staging, None, "staging is made twice");
                    self.staging = Some(Made::default());
                }
                Step::Act(Act::SetLimits | Act::Resize) => {
                    let size = draft.expand.unwrap_or(draft.size);
                    self.limits.insert(draft.project, size.limit.0);
                }
                Step::Act(Act::SetProject) => {
                    assert!(self.limits.contains_key(&draft.project), "limits come first");
                    self.staging.as_mut().expect("made").project = draft.project;
                }
                Step::Act(Act::WriteCopy) => self.staging.as_mut().expect("made").copied = true,
                Step::Act(Act::Fill) => {
                    let made = self.staging.as_ref().expect("made");
                    assert_eq!(made.project, draft.project, "the project comes before the content");
                }
                Step::Act(
                    Act::Verify
                    | Act::SyncStaging
                    | Act::SyncPlaced
                    | Act::SyncTrash
                    | Act::ReadBack
                    | Act::ResizeDevices
                    | Act::RefreshCopy,
                ) => {}
                Step::Act(Act::Place) => {
                    assert_eq!(self.entry, None, "two entries");
                    self.entry = self.staging.take();
                }
                Step::Commit(Commit::Ready) => {
                    draft.phase = Phase::Ready;
                    self.record = Some(draft.clone());
                }
                Step::Act(Act::FreeProject) => {
                    let used = |m: &Made| m.project == draft.project;
                    assert!(!self.entry.iter().any(used), "limits taken from a live volume");
                    self.limits.remove(&draft.project);
                }
                Step::Commit(Commit::Forget) => self.record = None,
                Step::Commit(Commit::Target) => {
                    self.record = Some(draft.clone());
                }
                Step::Commit(Commit::Size) => {
                    draft.size = draft.expand.take().unwrap_or(draft.size);
                    self.record = Some(draft.clone());
                }
                Step::Commit(Commit::OldSize) => {
                    draft.expand = None;
                    self.record = Some(draft.clone());
                }
                Step::Commit(Commit::Deleting) => {
                    draft.phase = Phase::Deleting;
                    self.record = Some(draft.clone());
                }
                Step::Act(Act::MoveToTrash) => {
                    let made = self.entry.take().expect("an entry to move");
                    self.trash.insert(draft.trash_key(), made);
                }
                Step::Commit(Commit::Trashed) => {
                    self.record = None;
                    self.trash_rows.insert(draft.trash_key(), TrashRecord::of(draft));
                }
                Step::Act(Act::Purge) | Step::Commit(Commit::Purged) => {
                    panic!("not a step of a volume")
                }
            }
        }

        fn run(&mut self, steps: &[Step], draft: &mut Record, crash_after: Option<usize>) -> bool {
            for (i, step) in steps.iter().enumerate() {
                self.apply(*step, draft);
                self.never_unlimited();
                if crash_after == Some(i) {
                    return false;
                }
            }
            true
        }

        fn never_unlimited(&self) {
            if let Some(e) = &self.entry {
                assert!(e.copied && self.limits.contains_key(&e.project), "{self:?}");
            }
        }

        /// What a start does: recover the record, then empty the trash.
        fn restart(&mut self) {
            let seen = self.observe();
            if let Some(mut r) = self.record.clone() {
                let steps = next(Some(&r), seen, Want::Recover);
                assert!(self.run(&steps, &mut r, None));
            }
            if let Some(left) = self.staging.take() {
                self.trash.insert("leftover".into(), left);
            }
            self.trash.clear();
            for row in std::mem::take(&mut self.trash_rows).into_values() {
                self.limits.remove(&row.project);
            }
        }

        fn settled(&self) {
            assert!(self.staging.is_none() && self.trash.is_empty() && self.trash_rows.is_empty());
            match &self.record {
                None => assert!(self.entry.is_none() && self.limits.is_empty(), "{self:?}"),
                Some(r) => {
                    assert_eq!((r.phase, r.expand), (Phase::Ready, None));
                    assert_eq!(self.entry.as_ref().map(|e| e.project), Some(r.project));
                    assert_eq!(self.limits.get(&r.project), Some(&r.size.limit.0));
                    assert_eq!(self.limits.len(), 1);
                }
            }
        }
    }

    fn request(m: &mut Model, want: Want, crash_after: Option<usize>) {
        let seen = m.observe();
        let mut draft = m.record.clone().unwrap_or_else(|| {
            m.seq += 1;
            let mut r = sample("pvc-1");
            r.seq = m.seq;
            r.project += u32::try_from(m.seq).expect("few");
            r
        });
        if want == Want::Expand && m.record.is_some() {
            let limit = Bytes(draft.size.limit.0 * 2);
            draft.expand = Some(Size { limit, capacity: limit, ..draft.size });
        }
        let steps = next(m.record.as_ref(), seen, want);
        if !m.run(&steps, &mut draft, crash_after) {
            m.restart();
            m.settled();
        }
    }

    fn wants() -> impl Strategy<Value = (Want, Option<usize>)> {
        (
            prop_oneof![Just(Want::Create), Just(Want::Delete), Just(Want::Expand)],
            prop_oneof![Just(None), (0_usize..12).prop_map(Some)],
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn s15_random_requests_with_a_crash_after_any_step_converge(
            requests in proptest::collection::vec(wants(), 1..24)
        ) {
            let mut m = Model::default();
            for (want, crash) in requests {
                request(&mut m, want, crash);
                m.never_unlimited();
            }
            m.restart();
            m.settled();
        }
    }

    #[test]
    fn s7_3_a_create_has_the_order_of_the_protocol() {
        let seen = Observed { staging: false, entry: Entry::Absent };
        let mut points: Vec<_> =
            next(None, seen, Want::Create).into_iter().map(Step::point).collect();
        points.retain(|p| *p != "create.c6w");
        let want: Vec<_> = (1..=10).map(|n| format!("create.c{n}")).collect();
        assert_eq!(points, want);
    }

    #[test]
    fn s7_6_the_recovery_table_for_directories() {
        let r = |phase| Record { phase, ..sample("pvc-1") };
        let at = |staging, entry| Observed { staging, entry };
        let plan = |p, seen| next(Some(&r(p)), seen, Want::Recover);
        // Creating, entry verifies: Ready.
        assert_eq!(
            plan(Phase::Creating, at(false, Entry::Ours)),
            [Step::Act(Act::SyncPlaced), Step::Commit(Commit::Ready)]
        );
        // Creating, staging or nothing: rolled back.
        assert_eq!(
            plan(Phase::Creating, at(true, Entry::Absent)),
            [
                Step::Act(Act::ClearStaging),
                Step::Act(Act::FreeProject),
                Step::Commit(Commit::Forget)
            ]
        );
        assert_eq!(
            plan(Phase::Creating, at(false, Entry::Altered)),
            [Step::Act(Act::FreeProject), Step::Commit(Commit::Forget)]
        );
        // Deleting, entry exists: D3 again; gone: on to D4.
        assert_eq!(plan(Phase::Deleting, at(false, Entry::Ours)), TRASH);
        assert_eq!(
            plan(Phase::Deleting, at(false, Entry::Absent)),
            [Step::Act(Act::SyncTrash), Step::Commit(Commit::Trashed)]
        );
        // Ready, entry missing: stays, never recreated.
        assert_eq!(plan(Phase::Ready, at(false, Entry::Absent)), []);
        // An expansion is done again.
        let mut growing = r(Phase::Ready);
        growing.expand = Some(growing.size);
        assert_eq!(next(Some(&growing), at(false, Entry::Ours), Want::Recover), GROW);
    }

    #[test]
    fn s7_5_what_is_no_directory_is_never_moved_to_the_trash() {
        let r = Record { phase: Phase::Ready, ..sample("pvc-1") };
        let seen = Observed { staging: false, entry: Entry::Alien };
        assert!(!next(Some(&r), seen, Want::Delete).contains(&Step::Act(Act::MoveToTrash)));
    }
}
