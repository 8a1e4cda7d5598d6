//! Answers that change nothing (but the time an orphan was first seen).

use std::ops::Bound;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;

use super::commits::After;
use super::operation::stats_error;
use super::{Completion, Owner};
use crate::error::StatsError;
use crate::id::VolumeId;
use crate::record::{Phase, Record};
use crate::recover::unix_now;
use crate::registry::Change;
use crate::types::{
    Bytes, Condition, ConditionKind, KnownHandles, OrphanReport, OwnerTag, Stats, Stored,
    StoredState, VolumeKind, VolumeSummary,
};

fn state(p: Phase) -> StoredState {
    match p {
        Phase::Creating => StoredState::Creating,
        Phase::Ready => StoredState::Ready,
        Phase::Deleting => StoredState::Deleting,
    }
}

impl Owner {
    pub(super) fn conditions_of(&self, id: &VolumeId) -> Vec<Condition> {
        let found = self.conditions.get(id).into_iter().flatten();
        found.map(|(kind, message)| Condition { kind: *kind, message: message.clone() }).collect()
    }

    pub(super) fn stats(
        &mut self,
        id: &VolumeId,
        at: PathBuf,
        reply: oneshot::Sender<Result<Stats, StatsError>>,
    ) {
        let Some(record) = self.ledger.volumes.get(id).cloned() else {
            drop(reply.send(Err(StatsError::NotFound(id.clone()))));
            return;
        };
        let (disk, conditions) = (self.disk.clone(), self.conditions_of(id));
        let job = move || {
            drop(reply.send(disk.stats(&record, &at, conditions)));
            Completion::Read
        };
        self.spawn("stats", Box::new(job));
    }

    /// Looks whether the entry is there; the rest is known.
    pub(super) fn health(
        &mut self,
        id: &VolumeId,
        reply: oneshot::Sender<Result<Vec<Condition>, StatsError>>,
    ) {
        let Some(record) = self.ledger.volumes.get(id).cloned() else {
            drop(reply.send(Err(StatsError::NotFound(id.clone()))));
            return;
        };
        let (disk, mut conditions) = (self.disk.clone(), self.conditions_of(id));
        let job = move || {
            use crate::plan::Entry;
            let seen = disk.observe(&record);
            let answer = seen.map_err(|e| stats_error(&record.id, "health", e)).map(|seen| {
                let known = conditions.iter().any(|c| c.kind == ConditionKind::DataMissing);
                match seen.entry {
                    Entry::Absent | Entry::Alien if record.phase == Phase::Ready && !known => {
                        conditions.push(Condition {
                            kind: ConditionKind::DataMissing,
                            message: "the volume's directory is missing".to_owned(),
                        });
                    }
                    Entry::Absent | Entry::Alien | Entry::Ours | Entry::Altered => {}
                }
                conditions.extend(disk.truncated(&record));
                conditions
            });
            drop(reply.send(answer));
            Completion::Read
        };
        self.spawn("health", Box::new(job));
    }

    fn stored(&self, r: &Record) -> Stored {
        Stored {
            id: Some(r.id.clone()),
            entry: r.id.to_string(),
            name: r.name.clone(),
            kind: r.kind,
            state: state(r.phase),
            capacity: r.size.capacity,
            project_id: r.project,
            owner: r.owner.clone(),
            source: r.source.clone(),
            conditions: self.conditions_of(&r.id),
        }
    }

    pub(super) fn find(&self, id: &VolumeId) -> Option<Stored> {
        self.ledger.volumes.get(id).map(|r| self.stored(r))
    }

    pub(super) fn page(&self, after: Option<VolumeId>, max: usize) -> Vec<Stored> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.ledger.volumes.range((from, Bound::Unbounded)).map(|(_, r)| r);
        let ready = rows.filter(|r| r.phase == Phase::Ready && !r.id.is_snapshot());
        ready.take(max).map(|r| self.stored(r)).collect()
    }

    pub(super) fn inventory(&self) -> Vec<Stored> {
        let volumes = self.ledger.volumes.values().filter(|r| !r.id.is_snapshot());
        let volumes = volumes.map(|r| self.stored(r));
        let trash = self.ledger.trash.values().map(|t| Stored {
            id: Some(t.id.clone()),
            entry: t.key.clone(),
            name: t.id.to_string(),
            kind: VolumeKind::Filesystem,
            state: StoredState::Trashed,
            capacity: Bytes(0),
            project_id: t.project,
            owner: OwnerTag::none(),
            source: None,
            conditions: self
                .purge_failures()
                .get(&t.key)
                .map(|m| Condition { kind: ConditionKind::PurgeFailed, message: m.clone() })
                .into_iter()
                .collect(),
        });
        volumes.chain(self.strangers.iter().cloned()).chain(trash).collect()
    }

    pub(super) fn summaries(&mut self, reply: oneshot::Sender<Vec<VolumeSummary>>) {
        let published = self.shared.published.borrow().clone();
        let rows = self.ledger.volumes.values().filter(|r| !r.id.is_snapshot());
        let all: Vec<(Record, Vec<Condition>)> =
            rows.map(|r| (r.clone(), self.conditions_of(&r.id))).collect();
        let disk = self.disk.clone();
        let job = move || {
            let summary = |(r, conditions): (Record, Vec<Condition>)| {
                // A volume whose use cannot be read is still shown.
                let u = disk.usage(r.project).ok().flatten().unwrap_or_default();
                VolumeSummary {
                    id: r.id.to_string(),
                    name: r.name,
                    kind: r.kind,
                    state: state(r.phase),
                    capacity_bytes: r.size.capacity.0,
                    limit_bytes: r.size.limit.0,
                    used_bytes: u.used_bytes,
                    inode_limit: r.size.inodes.0,
                    inodes_used: u.used_inodes,
                    project_id: r.project,
                    conditions,
                    targets: published
                        .targets
                        .get(&r.id)
                        .map(|t| t.iter().cloned().collect())
                        .unwrap_or_default(),
                    owner: r.owner.as_str().to_owned(),
                }
            };
            drop(reply.send(all.into_iter().map(summary).collect()));
            Completion::Read
        };
        self.spawn("summaries", Box::new(job));
    }

    /// Rule 8.3 with policy `report`.
    pub(super) fn reconcile(&mut self, known: &KnownHandles) -> OrphanReport {
        let now = unix_now();
        let mut report = OrphanReport::default();
        let mut changes = Vec::new();
        let ready = |r: &&Record| r.phase == Phase::Ready && !r.id.is_snapshot();
        for r in self.ledger.volumes.values().filter(ready) {
            if known.handles.contains(&r.id) {
                if self.orphans.remove(&r.id).is_some() {
                    changes.push(Change::NoOrphan(r.id.clone()));
                }
            } else if known.complete {
                let since = *self.orphans.entry(r.id.clone()).or_insert_with(|| {
                    changes.push(Change::Orphan(r.id.clone(), now));
                    now
                });
                let age = Duration::from_secs(now.saturating_sub(since));
                report.unknown_entries.push((r.id.clone(), age));
            }
        }
        for id in &known.handles {
            let missing = !self.ledger.volumes.contains_key(id)
                || self
                    .conditions
                    .get(id)
                    .is_some_and(|c| c.contains_key(&ConditionKind::DataMissing));
            if missing {
                report.missing.push(id.clone());
            }
        }
        self.shared.metrics.orphans(report.unknown_entries.len(), report.missing.len());
        if !changes.is_empty() {
            self.commit(changes, After::Nothing);
        }
        report
    }
}
