//! One operation on one volume, from request to answer.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use slog::{info, warn};

use super::{Completion, OPERATIONS, Owner, Reply, Request, text};
use crate::disk::StepError;
use crate::error::{
    CreateError, DeleteError, ExpandError, PublishError, SnapshotError, StatsError, TagError,
    Trouble,
};
use crate::id::VolumeId;
use crate::plan::{self, Observed, Step, Want};
use crate::record::{Phase, Record};
use crate::types::{Bytes, Expanded, VolumeKind};

/// What was seen before planning.
pub(crate) struct Probe {
    pub(super) seen: Observed,
    pub(super) project_is_free: bool,
    pub(super) in_use: Option<PathBuf>,
}

/// Why an operation failed.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// A step did.
    Step(&'static str, Arc<StepError>),
    /// It is mounted there.
    Published(PathBuf),
}

/// An operation under way.
pub(crate) struct Operation {
    pub(super) request: Request,
    pub(super) replies: Vec<Reply>,
    pub(super) since: SystemTime,
    pub(super) want: Want,
    /// The record as it will be.
    pub(super) draft: Option<Record>,
    /// The record was not committed before this operation.
    pub(super) is_new: bool,
    pub(super) steps: VecDeque<Step>,
    /// The first failure; what follows undoes.
    pub(super) failure: Option<Failure>,
    pub(super) mounted: Option<Result<(), PublishError>>,
}

impl Owner {
    /// Takes a request: joins, refuses, answers at once, or begins.
    pub(super) fn accept(&mut self, id: VolumeId, request: Request, reply: Reply) {
        if let Some(running) = self.operations.get_mut(&id) {
            if running.request == request {
                running.replies.push(reply);
            } else {
                reply.trouble(Trouble::Busy(running.request.name()));
            }
            return;
        }
        if self.operations.len() >= OPERATIONS {
            let why = format!("{OPERATIONS} operations are running already");
            reply.trouble(Trouble::Unavailable(why));
            return;
        }
        match (&request, reply) {
            (Request::Create(r), Reply::Create(reply)) => {
                let r = r.clone();
                self.accept_create(id, *r, request, reply);
            }
            (Request::Delete, reply) => self.accept_delete(&id, request, reply),
            (Request::Expand(to), Reply::Expand(reply)) => {
                let to = *to;
                self.accept_expand(&id, to, request, reply);
            }
            (Request::Snapshot(r), Reply::Snapshot(reply)) => {
                let r = r.clone();
                self.accept_snapshot(id, r, None, reply);
            }
            (Request::Publish(_) | Request::Unpublish(_), Reply::Publish(reply)) => {
                self.accept_mount(&id, request, reply);
            }
            (Request::Tag(_), Reply::Tag(reply)) => self.accept_tag(&id, request, reply),
            // The handle pairs them (engine.rs).
            (_, reply) => reply.trouble(Trouble::Unsupported("a reply of another operation")),
        }
        self.publish_views();
    }

    fn accept_delete(&mut self, id: &VolumeId, request: Request, reply: Reply) {
        let Reply::Delete(reply) = reply else {
            return reply.trouble(Trouble::Unsupported("a reply of another operation"));
        };
        let Some(record) = self.ledger.volumes.get(id).cloned() else {
            drop(reply.send(Ok(())));
            return;
        };
        if self.is_source(id) {
            drop(reply.send(Err(DeleteError::Trouble(Trouble::Busy("copy")))));
            return;
        }
        // Rule 8.4: the audit line.
        match id.snapshot() {
            None => info!(self.log, "Deleting persistent volume {}", id;
                "project" => record.project),
            Some(id) => info!(self.log, "Deleting snapshot {}", id; "project" => record.project),
        }
        self.begin(request, Want::Delete, record, Reply::Delete(reply));
    }

    fn accept_tag(
        &mut self,
        id: &VolumeId,
        request: Request,
        reply: tokio::sync::oneshot::Sender<Result<(), TagError>>,
    ) {
        let found = self.ledger.volumes.get(id).filter(|r| r.phase == Phase::Ready).cloned();
        let (Some(mut record), Request::Tag(owner)) = (found, &request) else {
            drop(reply.send(Err(TagError::NotFound(id.clone()))));
            return;
        };
        record.owner = owner.clone();
        self.insert(request, Want::Recover, record.clone(), Reply::Tag(reply), false);
        self.commit_record(record);
    }

    fn accept_mount(
        &mut self,
        id: &VolumeId,
        request: Request,
        reply: tokio::sync::oneshot::Sender<Result<(), PublishError>>,
    ) {
        let record = self.ledger.volumes.get(id).cloned();
        let (disk, op) = (self.disk.clone(), request.clone());
        match (&request, record) {
            (Request::Publish(_), None) => {
                drop(reply.send(Err(PublishError::NotFound(id.clone()))));
            }
            (Request::Publish(_), Some(r)) if r.phase != Phase::Ready => {
                let busy =
                    Trouble::Busy(if r.phase == Phase::Creating { "create" } else { "delete" });
                drop(reply.send(Err(PublishError::Trouble(busy))));
            }
            (_, record) => {
                let job_id = id.clone();
                let job = move || {
                    let result = match (&op, &record) {
                        (Request::Publish(p), Some(r)) => disk.publish(r, p),
                        (Request::Unpublish(u), _) => disk.unpublish(u),
                        _ => Ok(()),
                    };
                    Completion::Mounted(job_id, result)
                };
                self.operations.insert(
                    id.clone(),
                    Operation {
                        request,
                        replies: vec![Reply::Publish(reply)],
                        since: self.now(),
                        want: Want::Recover,
                        draft: None,
                        is_new: false,
                        steps: VecDeque::new(),
                        failure: None,
                        mounted: None,
                    },
                );
                self.spawn("mount", Box::new(job));
            }
        }
    }

    /// Starts an operation on a committed record with a look at the disk.
    pub(super) fn begin(&mut self, request: Request, want: Want, draft: Record, reply: Reply) {
        let id = draft.id.clone();
        self.insert(request, want, draft, reply, false);
        self.probe(&id);
    }

    pub(super) fn insert(
        &mut self,
        request: Request,
        want: Want,
        draft: Record,
        reply: Reply,
        is_new: bool,
    ) {
        self.operations.insert(
            draft.id.clone(),
            Operation {
                request,
                replies: vec![reply],
                since: self.now(),
                want,
                draft: Some(draft),
                is_new,
                steps: VecDeque::new(),
                failure: None,
                mounted: None,
            },
        );
    }

    /// Looks at the disk before planning.
    pub(super) fn probe(&mut self, id: &VolumeId) {
        let Some(op) = self.operations.get(id) else { return };
        let Some(draft) = &op.draft else { return };
        let (disk, id, draft) = (self.disk.clone(), id.clone(), draft.clone());
        let (is_new, deleting) = (op.is_new, op.want == Want::Delete);
        let job = move || {
            let look = || -> Result<Probe, StepError> {
                let in_use = if deleting {
                    let (table, marks) = disk.mounts()?;
                    marks.in_use(&table, &id)
                } else {
                    None
                };
                let project_is_free = !is_new || disk.project_is_free(draft.project)?;
                Ok(Probe { seen: disk.observe(&draft)?, project_is_free, in_use })
            };
            let result = look().map_err(|e| Failure::Step("look at the disk", Arc::new(e)));
            Completion::Probed(id, result)
        };
        self.spawn("probe", Box::new(job));
    }

    pub(super) fn probed(&mut self, id: &VolumeId, result: Result<Probe, Failure>) {
        let probe = match result {
            Ok(probe) => probe,
            Err(f) => return self.failed(id, f),
        };
        let Some(op) = self.operations.get_mut(id) else { return };
        if !probe.project_is_free {
            return self.try_another_project(id);
        }
        if let (Some(target), Want::Delete) = (probe.in_use, op.want) {
            op.failure = Some(Failure::Published(target));
            return self.finish(id);
        }
        let committed = if op.is_new { None } else { op.draft.as_ref() };
        op.steps = plan::next(committed, probe.seen, op.want).into();
        self.advance(id);
    }

    /// Goes on with the next step: a commit, a run of steps on the disk, or the answer.
    pub(super) fn advance(&mut self, id: &VolumeId) {
        let Some(op) = self.operations.get_mut(id) else { return };
        let Some(first) = op.steps.front().copied() else { return self.finish(id) };
        if let Step::Commit(commit) = first {
            op.steps.pop_front();
            return self.commit_step(id, commit);
        }
        let mut run = Vec::new();
        while let Some(Step::Act(act)) = op.steps.front().copied() {
            op.steps.pop_front();
            run.push(act);
        }
        let Some(mut draft) = op.draft.clone() else { return };
        let (disk, id) = (self.disk.clone(), id.clone());
        let job = move || {
            let result = run.iter().try_for_each(|act| {
                disk.step(*act, &mut draft).map_err(|e| Failure::Step(act.point(), Arc::new(e)))
            });
            Completion::Stepped(id, result.map(|()| Box::new(draft)))
        };
        self.spawn("steps", Box::new(job));
    }

    pub(super) fn stepped(&mut self, id: &VolumeId, result: Result<Box<Record>, Failure>) {
        match result {
            Ok(draft) => {
                if let Some(op) = self.operations.get_mut(id) {
                    op.draft = Some(*draft);
                }
                self.advance(id);
            }
            Err(f) => self.failed(id, f),
        }
    }

    /// Undoes what can be undone; otherwise the record stays as it is and a retry or the next
    /// start continues.
    fn failed(&mut self, id: &VolumeId, f: Failure) {
        let Some(op) = self.operations.get_mut(id) else { return };
        if let Failure::Step(step, e) = &f {
            warn!(self.log, "step failed"; "volume" => id.as_str(),
                "operation" => op.request.name(), "step" => *step, "error" => text(e.as_ref()));
        }
        if op.failure.is_some() {
            // Undoing failed, too: the first failure is the answer.
            return self.finish(id);
        }
        op.failure = Some(f);
        op.steps.clear();
        match op.want {
            Want::Create if op.is_new => {
                // Nothing was committed: the reservation goes.
                self.ledger.remove(id);
                self.finish(id);
            }
            Want::Create => {
                op.want = Want::RollBack;
                self.probe(id);
            }
            Want::Expand => {
                op.want = Want::Shrink;
                if let Some(draft) = &mut op.draft {
                    draft.expand = None;
                }
                self.probe(id);
            }
            Want::RollBack | Want::Shrink | Want::Reassert | Want::Delete | Want::Recover => {
                self.finish(id);
            }
        }
    }

    pub(super) fn mounted(&mut self, id: &VolumeId, result: Result<(), PublishError>) {
        if let Some(op) = self.operations.get_mut(id) {
            op.mounted = Some(result);
        }
        self.finish(id);
        self.read_table();
    }

    /// Answers everybody who waits.
    pub(super) fn finish(&mut self, id: &VolumeId) {
        let Some(op) = self.operations.remove(id) else { return };
        let took = op.since.elapsed().unwrap_or_default();
        let ok = op.failure.is_none() && !matches!(op.mounted, Some(Err(_)));
        self.shared.metrics.operation(op.request.name(), ok, took);
        info!(self.log, "volume operation";
            "volume" => id.as_str(), "operation" => op.request.name(),
            "result" => if ok { "ok" } else { "failed" },
            "ms" => u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        for reply in op.replies {
            answer(reply, id, op.draft.as_ref(), op.failure.as_ref(), op.mounted.as_ref());
        }
        self.publish_views();
    }
}

fn trouble(id: &VolumeId, f: &Failure) -> Trouble {
    match f {
        Failure::Step(step, e) => Trouble::Step { step, id: id.to_string(), source: e.clone() },
        Failure::Published(_) => Trouble::Busy("publish"),
    }
}

fn answer(
    reply: Reply,
    id: &VolumeId,
    draft: Option<&Record>,
    failure: Option<&Failure>,
    mounted: Option<&Result<(), PublishError>>,
) {
    let gone = || Trouble::Unavailable("the operation was lost".to_owned());
    match reply {
        Reply::Create(r) => drop(r.send(match (failure, draft) {
            (Some(f), _) => Err(create_error(id, f, draft)),
            (None, Some(d)) => Ok(d.volume()),
            (None, None) => Err(CreateError::Trouble(gone())),
        })),
        Reply::Delete(r) => drop(r.send(match failure {
            Some(Failure::Published(target)) => {
                Err(DeleteError::Published { id: id.clone(), target: target.display().to_string() })
            }
            Some(f) => Err(DeleteError::Trouble(trouble(id, f))),
            None => Ok(()),
        })),
        Reply::Expand(r) => drop(r.send(match (failure, draft) {
            (Some(f), _) => Err(ExpandError::Trouble(trouble(id, f))),
            (None, Some(d)) => Ok(expanded(d)),
            (None, None) => Err(ExpandError::Trouble(gone())),
        })),
        Reply::Snapshot(r) => drop(r.send(match (failure, draft.and_then(Record::as_snapshot)) {
            (Some(f), _) => Err(snapshot_error(id, f, draft)),
            (None, Some(s)) => Ok(s),
            (None, None) => Err(SnapshotError::Trouble(gone())),
        })),
        Reply::Publish(r) => drop(r.send(match (mounted, failure) {
            (Some(result), _) => result.clone(),
            (None, Some(f)) => Err(PublishError::Trouble(trouble(id, f))),
            (None, None) => Err(PublishError::Trouble(gone())),
        })),
        Reply::Tag(r) => drop(r.send(match failure {
            Some(f) => Err(TagError::Trouble(trouble(id, f))),
            None => Ok(()),
        })),
    }
}

pub(super) fn expanded(r: &Record) -> Expanded {
    // A device has to be told on the node; limits of a directory are in force at once.
    let node_expansion_required = r.kind == VolumeKind::Block;
    Expanded { capacity: r.size.capacity, node_expansion_required }
}

fn create_error(id: &VolumeId, f: &Failure, draft: Option<&Record>) -> CreateError {
    match f {
        Failure::Step(_, e) if matches!(**e, StepError::HoldsData) => {
            CreateError::HoldsData(id.clone())
        }
        Failure::Step(_, e) if matches!(**e, StepError::SourceGone) => {
            let source = draft.and_then(Record::source_object);
            CreateError::SourceNotFound(source.map_or_else(String::new, |s| s.entry().to_owned()))
        }
        Failure::Step(_, e) if matches!(**e, StepError::Inconsistent(_)) => {
            CreateError::Trouble(Trouble::Busy("writers of the source"))
        }
        Failure::Step(_, e) if e.is_no_space() => CreateError::NoSpace {
            wanted: draft.map_or(Bytes(0), |d| d.size.limit),
            available: Bytes(0),
        },
        Failure::Step(..) | Failure::Published(_) => CreateError::Trouble(trouble(id, f)),
    }
}

fn snapshot_error(id: &VolumeId, f: &Failure, draft: Option<&Record>) -> SnapshotError {
    let source = draft.and_then(Record::source_object);
    match (f, source) {
        (Failure::Step(_, e), Some(source)) if matches!(**e, StepError::SourceGone) => {
            SnapshotError::SourceNotFound(source)
        }
        (Failure::Step(_, e), _) if matches!(**e, StepError::Inconsistent(_)) => {
            SnapshotError::Inconsistent(e.to_string())
        }
        (Failure::Step(_, e), _) if e.is_no_space() => SnapshotError::NoSpace {
            wanted: draft.map_or(Bytes(0), |d| d.size.limit),
            available: Bytes(0),
        },
        (f, _) => SnapshotError::Trouble(trouble(id, f)),
    }
}

/// Reads have no operation; their failures look the same.
pub(super) fn stats_error(id: &VolumeId, step: &'static str, e: StepError) -> StatsError {
    StatsError::Trouble(trouble(id, &Failure::Step(step, Arc::new(e))))
}
