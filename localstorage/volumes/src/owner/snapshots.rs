//! Taking snapshots, and finding sources: who may be copied, what that pins.
//!
//! Invariants: the space a snapshot may pin is reserved with its intent; while something is
//! copied its source is neither deleted nor resized; a snapshot of an id and source that
//! exists is the answer.

use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::operation::stats_error;
use super::{Completion, Owner, Reply, Request};
use crate::disk::StepError;
use crate::error::{CreateError, SnapshotError, StatsError, Trouble};
use crate::id::{SnapshotId, VolumeId};
use crate::params::Params;
use crate::plan::Want;
use crate::record::{NewRecord, Phase, Record, Size};
use crate::types::{ContentSource, CreateSnapshot, OwnerTag, Snapshot};

type Sender = oneshot::Sender<Result<Snapshot, SnapshotError>>;

/// A measured source, and who asked.
pub(crate) struct Charged {
    id: VolumeId,
    request: CreateSnapshot,
    reply: Sender,
    used: Result<u64, StepError>,
}

/// Why something cannot be copied now.
pub(super) enum NoSource {
    Unknown,
    Busy(&'static str),
}

impl Owner {
    /// The ready volume or snapshot `id`, if nothing changes it now.
    pub(super) fn source(&self, id: &VolumeId) -> Result<&Record, NoSource> {
        let record = self.ledger.volumes.get(id).ok_or(NoSource::Unknown)?;
        match record.phase {
            Phase::Ready => {}
            Phase::Creating => return Err(NoSource::Busy("create")),
            Phase::Deleting => return Err(NoSource::Unknown),
        }
        match self.operations.get(id).map(|op| &op.request) {
            Some(r @ (Request::Delete | Request::Expand(_))) => Err(NoSource::Busy(r.name())),
            _ => Ok(record),
        }
    }

    /// Whether something is being copied from `id`.
    pub(super) fn is_source(&self, id: &VolumeId) -> bool {
        self.operations.values().filter_map(|op| op.draft.as_ref()).any(|draft| {
            draft.phase == Phase::Creating && draft.source_object().as_ref() == Some(id)
        })
    }

    /// Takes a snapshot request; `used` is what its source uses, once that is known.
    pub(super) fn accept_snapshot(
        &mut self,
        id: VolumeId,
        r: CreateSnapshot,
        used: Option<u64>,
        reply: Sender,
    ) {
        let fail = |reply: Sender, e| drop(reply.send(Err(e)));
        if !self.can_clone {
            let why = "this filesystem cannot share extents (reflink)";
            return fail(reply, SnapshotError::Trouble(Trouble::Unsupported(why)));
        }
        let request = Request::Snapshot(r.clone());
        if let Some(record) = self.ledger.volumes.get(&id) {
            return match existing(record, &r) {
                Err(e) => fail(reply, e),
                Ok(Some(snapshot)) => drop(reply.send(Ok(snapshot))),
                Ok(None) => {
                    let record = record.clone();
                    self.begin(request, Want::Create, record, Reply::Snapshot(reply));
                }
            };
        }
        let source = match self.source(&r.source) {
            Ok(source) => source.clone(),
            Err(NoSource::Unknown) => {
                return fail(reply, SnapshotError::SourceNotFound(r.source));
            }
            Err(NoSource::Busy(by)) => {
                return fail(reply, SnapshotError::Trouble(Trouble::Busy(by)));
            }
        };
        let Some(used) = used else { return self.charge(id, r, &source, reply) };
        match self.new_snapshot(id, &r, &source, used) {
            Err(e) => fail(reply, e),
            Ok(record) => {
                let id = record.id.clone();
                // Decision and reservation are one step of this task.
                self.ledger.put(record.clone());
                self.insert(request, Want::Create, record, Reply::Snapshot(reply), true);
                self.probe(&id);
            }
        }
        self.publish_views();
    }

    /// Asks the kernel what the source uses: the most that its snapshot can pin.
    fn charge(&mut self, id: VolumeId, request: CreateSnapshot, source: &Record, reply: Sender) {
        let (disk, project) = (self.disk.clone(), source.project);
        let job = move || {
            let used = disk.usage(project).map(|u| u.unwrap_or_default().used_bytes);
            Completion::Charged(Box::new(Charged { id, request, reply, used }))
        };
        self.spawn("charge", Box::new(job));
    }

    /// Goes on with a request whose source was measured; meanwhile everything may have changed.
    pub(super) fn charged(&mut self, c: Charged) {
        let Charged { id, request, reply, used } = c;
        if let Some(running) = self.operations.get_mut(&id) {
            let reply = Reply::Snapshot(reply);
            if running.request == Request::Snapshot(request) {
                running.replies.push(reply);
            } else {
                reply.trouble(Trouble::Busy(running.request.name()));
            }
            return;
        }
        match used {
            Ok(used) => self.accept_snapshot(id, request, Some(used), reply),
            Err(e) => {
                let trouble = match stats_error(&id, "create.c0", e) {
                    StatsError::Trouble(t) => t,
                    StatsError::NotFound(_) => Trouble::Busy("delete"),
                };
                drop(reply.send(Err(SnapshotError::Trouble(trouble))));
            }
        }
    }

    fn new_snapshot(
        &mut self,
        id: VolumeId,
        r: &CreateSnapshot,
        source: &Record,
        used: u64,
    ) -> Result<Record, SnapshotError> {
        let size = Size::of_snapshot(source.size.capacity, used);
        if let Err(available) = self.ledger.fits(self.room, used) {
            return Err(SnapshotError::NoSpace { wanted: size.limit, available });
        }
        let Some(project) = self.ledger.next_project(&self.config.project_ids) else {
            let (id, source) = (id.to_string(), Arc::new(StepError::NoProject));
            let trouble = Trouble::Step { step: "create.c0", id, source };
            return Err(SnapshotError::Trouble(trouble));
        };
        let seq = self.ledger.next_seq();
        let params = Params { consistency: r.consistency, ..source.params.clone() };
        Ok(Record::intent(NewRecord {
            id,
            name: r.name.clone(),
            kind: source.kind,
            size,
            project,
            seq,
            params,
            owner: OwnerTag::none(),
            source: Some(ContentSource::Volume(source.id.to_string())),
        }))
    }

    pub(super) fn find_snapshot(&self, id: &SnapshotId) -> Option<Snapshot> {
        let record = self.ledger.volumes.get(&VolumeId::of_snapshot(id))?;
        if record.phase == Phase::Ready { record.as_snapshot() } else { None }
    }

    pub(super) fn snapshots(
        &self,
        after: Option<SnapshotId>,
        source: Option<&VolumeId>,
        max: usize,
    ) -> Vec<Snapshot> {
        let after = after.map(|id| VolumeId::of_snapshot(&id));
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.ledger.volumes.range((from, Bound::Unbounded)).map(|(_, r)| r);
        rows.take_while(|r| r.id.is_snapshot())
            .filter(|r| r.phase == Phase::Ready)
            .filter_map(Record::as_snapshot)
            .filter(|s| source.is_none_or(|v| s.source == *v))
            .take(max)
            .collect()
    }

    /// The record that a volume is to be copied from.
    pub(super) fn content_source(&self, s: &ContentSource) -> Result<&Record, CreateError> {
        let (text, id) = match s {
            ContentSource::Snapshot(text) => {
                (text, SnapshotId::parse(text).map(|id| VolumeId::of_snapshot(&id)))
            }
            ContentSource::Volume(text) => (text, VolumeId::parse(text)),
        };
        let unknown = || CreateError::SourceNotFound(text.chars().take(128).collect());
        let id = id.map_err(|_| unknown())?;
        match self.source(&id) {
            Ok(record) if self.can_clone => Ok(record),
            Ok(_) => {
                let why = "this filesystem cannot share extents (reflink)";
                Err(CreateError::Trouble(Trouble::Unsupported(why)))
            }
            Err(NoSource::Unknown) => Err(unknown()),
            Err(NoSource::Busy(by)) => Err(CreateError::Trouble(Trouble::Busy(by))),
        }
    }
}

/// A snapshot of this id exists: it is the answer, something unfinished, or another one.
fn existing(record: &Record, r: &CreateSnapshot) -> Result<Option<Snapshot>, SnapshotError> {
    let of = record.source_object();
    match (record.id.snapshot(), of) {
        (Some(id), Some(source_volume)) if source_volume != r.source || record.name != r.name => {
            Err(SnapshotError::AlreadyExists { id, source_volume })
        }
        _ => match record.phase {
            Phase::Ready => Ok(record.as_snapshot()),
            Phase::Creating => Ok(None),
            Phase::Deleting => Err(SnapshotError::Trouble(Trouble::Busy("delete"))),
        },
    }
}
