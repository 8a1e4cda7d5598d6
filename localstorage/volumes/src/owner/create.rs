//! Taking create and expand: sizes, room, project ids.

use std::sync::Arc;

use slog::warn;
use tokio::sync::oneshot;

use super::operation::expanded;
use super::{Failure, Owner, Reply, Request};
use crate::disk::StepError;
use crate::error::{CreateError, ExpandError, Trouble};
use crate::id::VolumeId;
use crate::ledger::Ledger;
use crate::params::{Params, Wipe};
use crate::plan::Want;
use crate::record::{NewRecord, Phase, Record, Size};
use crate::types::{Bytes, CapacityRange, CreateVolume, Expanded, Volume, VolumeKind, kind_name};

/// Size of a volume when none is asked for (rule 12.4).
const DEFAULT_CAPACITY: u64 = 1 << 30;

impl Owner {
    pub(super) fn accept_create(
        &mut self,
        id: VolumeId,
        r: CreateVolume,
        request: Request,
        reply: oneshot::Sender<Result<Volume, CreateError>>,
    ) {
        let begun = match self.ledger.volumes.get(&id) {
            Some(record) => existing(record, &r),
            None => self.new_record(id, &r).map(Begin::New),
        };
        match begun {
            Err(e) => drop(reply.send(Err(e))),
            Ok(Begin::Exists(v)) => drop(reply.send(Ok(v))),
            Ok(Begin::Continue(record)) => {
                self.begin(request, Want::Create, *record, Reply::Create(reply));
            }
            Ok(Begin::New(record)) => {
                let id = record.id.clone();
                // Decision and reservation are one step of this task.
                self.ledger.put((*record).clone());
                self.insert(request, Want::Create, *record, Reply::Create(reply), true);
                self.probe(&id);
            }
        }
    }

    fn new_record(&mut self, id: VolumeId, r: &CreateVolume) -> Result<Box<Record>, CreateError> {
        let unsupported = |what| Err(CreateError::Trouble(Trouble::Unsupported(what)));
        match r.params.wipe {
            Wipe::None => {}
            Wipe::Verified => return unsupported("wipe: verified comes with a later release"),
        }
        let size = self.size(r)?;
        if let Err(available) = self.ledger.fits(self.room, size.limit.0) {
            return Err(CreateError::NoSpace { wanted: size.limit, available });
        }
        let Some(project) = self.ledger.next_project(&self.config.project_ids) else {
            return Err(CreateError::Trouble(no_project(&id)));
        };
        let seq = self.ledger.next_seq();
        let (name, params, owner) = (r.name.clone(), r.params.clone(), r.owner.clone());
        let (kind, source) = (r.kind, r.source.clone());
        let new = NewRecord { id, name, kind, size, project, seq, params, owner, source };
        Ok(Box::new(Record::intent(new)))
    }

    fn size(&self, r: &CreateVolume) -> Result<Size, CreateError> {
        let source = r.source.as_ref().map(|s| self.content_source(s)).transpose()?;
        let least = match source {
            None => None,
            Some(s) if s.kind != r.kind => {
                let (has, asked) = (kind_name(s.kind), kind_name(r.kind));
                return Err(CreateError::InvalidParameters(format!(
                    "the content source is a {has} volume, a {asked} volume is asked for"
                )));
            }
            Some(s) => Some(s.size.capacity),
        };
        let range = match (r.capacity.required, least) {
            (None, Some(least)) => CapacityRange { required: Some(least), ..r.capacity },
            _ => r.capacity,
        };
        let capacity = wanted(range).map_err(CreateError::OutOfRange)?;
        if let Some(least) = least.filter(|l| capacity < l.0) {
            return Err(CreateError::OutOfRange(format!(
                "the content source has {least} bytes, {capacity} are asked for"
            )));
        }
        let size = size_of(r.kind, capacity, self.disk.block, &r.params);
        let size = size.ok_or_else(|| CreateError::OutOfRange(format!("{capacity} bytes")))?;
        match r.capacity.limit {
            // What is reported of an image is what it has: whole sectors.
            Some(limit) if limit.0 > 0 && size.capacity > limit => Err(CreateError::OutOfRange(
                format!("{} bytes after rounding, {limit} allowed", size.capacity),
            )),
            _ => Ok(size),
        }
    }

    /// The kernel knows somebody else with this project: mark it and take the next.
    pub(super) fn try_another_project(&mut self, id: &VolumeId) {
        let Some(op) = self.operations.get_mut(id) else { return };
        let Some(draft) = &mut op.draft else { return };
        warn!(self.log, "project is in use by something else, skipping it";
            "project" => draft.project);
        self.ledger.foreign.insert(draft.project);
        match self.ledger.next_project(&self.config.project_ids) {
            Some(project) => {
                draft.project = project;
                self.ledger.put(draft.clone());
                self.probe(id);
            }
            None => {
                op.failure = Some(Failure::Step("create.c0", Arc::new(StepError::NoProject)));
                self.ledger.remove(id);
                self.finish(id);
            }
        }
    }

    pub(super) fn accept_expand(
        &mut self,
        id: &VolumeId,
        to: CapacityRange,
        request: Request,
        reply: oneshot::Sender<Result<Expanded, ExpandError>>,
    ) {
        match self.target(id, to) {
            Err(e) => drop(reply.send(Err(e))),
            Ok(Target::Reached(record)) if record.kind == VolumeKind::Block => {
                self.begin(request, Want::Reassert, *record, Reply::Expand(reply));
            }
            Ok(Target::Reached(record)) => drop(reply.send(Ok(expanded(&record)))),
            Ok(Target::Grow(record)) => {
                self.ledger.put((*record).clone());
                self.begin(request, Want::Expand, *record, Reply::Expand(reply));
            }
        }
    }

    fn target(&self, id: &VolumeId, to: CapacityRange) -> Result<Target, ExpandError> {
        let found = self.ledger.volumes.get(id);
        let record = found.ok_or_else(|| ExpandError::NotFound(id.clone()))?;
        match record.phase {
            Phase::Ready => {}
            Phase::Creating => return Err(ExpandError::Trouble(Trouble::Busy("create"))),
            Phase::Deleting => return Err(ExpandError::NotFound(id.clone())),
        }
        if self.is_source(id) {
            return Err(ExpandError::Trouble(Trouble::Busy("copy")));
        }
        let current = record.size.capacity;
        if to.limit.is_some_and(|l| l < current) {
            return Err(ExpandError::OutOfRange(format!(
                "the volume has {current} bytes and cannot shrink"
            )));
        }
        let wanted = wanted(to).map_err(ExpandError::OutOfRange)?;
        if wanted <= current.0 || to.required.is_none() {
            return Ok(Target::Reached(Box::new(record.clone())));
        }
        let out = || ExpandError::OutOfRange(format!("{wanted} bytes"));
        let mut target =
            size_of(record.kind, wanted, self.disk.block, &record.params).ok_or_else(out)?;
        if to.limit.is_some_and(|l| l.0 > 0 && target.capacity > l) {
            return Err(out());
        }
        // An adopted volume may have more inodes than its parameters would give.
        target.inodes = target.inodes.max(record.size.inodes);
        if !Ledger::could_ever_fit(self.room, target.limit.0) {
            return Err(out());
        }
        let more = target.limit.0.saturating_sub(record.reservation());
        if let Err(available) = self.ledger.fits(self.room, more) {
            return Err(ExpandError::NoSpace { wanted: Bytes(more), available });
        }
        let mut grown = record.clone();
        grown.expand = Some(target);
        Ok(Target::Grow(Box::new(grown)))
    }
}

/// How a create goes on.
enum Begin {
    Exists(Volume),
    Continue(Box<Record>),
    New(Box<Record>),
}

/// How an expand goes on.
enum Target {
    Reached(Box<Record>),
    Grow(Box<Record>),
}

/// The size of a volume of `kind` for a request of `capacity`.
fn size_of(kind: VolumeKind, capacity: u64, block: u64, params: &Params) -> Option<Size> {
    match kind {
        VolumeKind::Filesystem => Size::of(capacity, block, params.inodes),
        VolumeKind::Block => Size::of_image(capacity, params.block_size),
    }
}

fn no_project(id: &VolumeId) -> Trouble {
    let source = Arc::new(StepError::NoProject);
    Trouble::Step { step: "create.c0", id: id.to_string(), source }
}

/// A record of this id exists: the same volume, a difference, or something unfinished.
fn existing(record: &Record, r: &CreateVolume) -> Result<Begin, CreateError> {
    if let Some(difference) = difference(record, r) {
        return Err(CreateError::AlreadyExists { id: record.id.clone(), difference });
    }
    match record.phase {
        Phase::Ready => Ok(Begin::Exists(record.volume())),
        Phase::Creating => Ok(Begin::Continue(Box::new(record.clone()))),
        Phase::Deleting => Err(CreateError::Trouble(Trouble::Busy("delete"))),
    }
}

fn difference(record: &Record, r: &CreateVolume) -> Option<String> {
    if record.name != r.name {
        return Some(format!("its name is {:?}", record.name));
    }
    if record.kind != r.kind {
        return Some("it is of another kind".to_owned());
    }
    if record.source != r.source {
        return Some("its content source is another".to_owned());
    }
    let has = record.size.capacity;
    let large = r.capacity.required.is_none_or(|b| b <= has);
    let small = r.capacity.limit.is_none_or(|b| b >= has);
    if !large || !small {
        return Some(format!("it has {has} bytes"));
    }
    // Only what applies to the kind; the rest is not in the copy of a record.
    let directory = |p: &Params| (p.inodes, p.mode, p.uid, p.gid, p.wipe);
    let image = |p: &Params| (p.preallocate, p.block_size, p.wipe);
    let (has, asked) = (&record.params, &r.params);
    let same = match record.kind {
        VolumeKind::Filesystem => directory(has) == directory(asked),
        VolumeKind::Block => image(has) == image(asked),
    };
    (!same).then(|| "its parameters are others".to_owned())
}

/// The capacity to make, from a range.
fn wanted(range: CapacityRange) -> Result<u64, String> {
    let limit = range.limit.filter(|l| l.0 > 0).map(|l| l.0);
    let required = range.required.filter(|r| r.0 > 0).map(|r| r.0);
    let wanted = match (required, limit) {
        (Some(r), _) => r,
        (None, Some(l)) => DEFAULT_CAPACITY.min(l),
        (None, None) => DEFAULT_CAPACITY,
    };
    if limit.is_some_and(|l| wanted > l) {
        return Err(format!("{wanted} bytes are required, {} allowed", limit.unwrap_or_default()));
    }
    if i64::try_from(wanted).is_err() {
        return Err(format!("{wanted} bytes"));
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s12_4_a_range_without_a_size_means_one_gibibyte_or_the_limit() {
        let w = |r: Option<u64>, l: Option<u64>| {
            wanted(CapacityRange { required: r.map(Bytes), limit: l.map(Bytes) })
        };
        assert_eq!(w(None, None), Ok(1 << 30));
        assert_eq!(w(None, Some(5)), Ok(5));
        assert_eq!(w(Some(0), Some(0)), Ok(1 << 30));
        assert_eq!(w(Some(7), None), Ok(7));
        assert_eq!(w(Some(7), Some(7)), Ok(7));
        assert!(w(Some(8), Some(7)).is_err());
        assert!(w(Some(u64::MAX), None).is_err());
    }
}
