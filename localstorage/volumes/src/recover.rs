//! What every start does before the engine serves: open, finish or undo, adopt, repair.
//!
//! Owner: one blocking job of a new incarnation; nothing else touches the disk meanwhile.
//!
//! Invariants: the recovery table of the specification (7.6) is `plan::next` with
//! `Want::Recover`; adoption comes before the first allocation; a volume that cannot be
//! recovered is reported and does not keep the others from serving; an entry that is not
//! understood is never touched.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use slog::{Logger, info, warn};

use crate::commit;
use crate::disk::{Disk, DiskError, Found, StepError};
use crate::engine::{EngineConfig, Seams, VolumeDirs};
use crate::error::chain;
use crate::id::{SnapshotId, VolumeId};
use crate::ledger::{Ledger, Room};
use crate::params::Params;
use crate::plan::{self, Commit, Step, Want};
use crate::record::{NewRecord, Phase, Record, Size};
use crate::registry::{self, Change, CommitError, OpenError, Registry};
use crate::types::{
    Bytes, ConditionKind, Inodes, OwnerTag, Published, RecoveryReport, Stored, StoredState,
    VolumeKind,
};

const REGISTRY: &str = "registry.redb";

/// Conditions of volumes, by kind, with their messages.
pub(crate) type Conditions = BTreeMap<VolumeId, BTreeMap<ConditionKind, String>>;

/// The engine could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the engine's directories cannot be used")]
    Disk(#[source] DiskError),
    #[error("the registry cannot be used")]
    Registry(#[source] OpenError),
    #[error("the registry cannot be written")]
    Commit(#[source] CommitError),
    #[error("{0} failed")]
    Step(&'static str, #[source] StepError),
}

/// What an incarnation starts with.
pub(crate) struct Started {
    pub(crate) disk: Disk,
    pub(crate) registry: Registry,
    pub(crate) ledger: Ledger,
    pub(crate) room: Room,
    pub(crate) report: RecoveryReport,
    pub(crate) conditions: Conditions,
    /// Entries that are no volumes.
    pub(crate) strangers: Vec<Stored>,
    /// Volumes whose entry is missing.
    pub(crate) orphans: BTreeMap<VolumeId, u64>,
    /// Trash items without a row.
    pub(crate) leftovers: Vec<String>,
    pub(crate) published: Published,
    /// Files can share extents on this disk.
    pub(crate) can_clone: bool,
}

/// Seconds since 1970; 0 on a clock before that.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Opens everything and recovers.
pub(crate) fn start(
    dirs: &VolumeDirs,
    config: &EngineConfig,
    seams: Seams,
    log: &Logger,
) -> Result<Started, StartError> {
    let disk = Disk::open(dirs, seams).map_err(StartError::Disk)?;
    let path = disk.state_path.join(REGISTRY);
    let (registry, contents, aside) =
        registry::open_or_rebuild(&path, disk.uuid, unix_now()).map_err(StartError::Registry)?;
    let mut report = RecoveryReport::default();
    if let Some(aside) = aside {
        report.registry_rebuilt = true;
        warn!(log, "registry was unreadable, rebuilding it"; "kept" => aside.display().to_string());
    }
    let mut ledger = Ledger::new(contents.cursor, contents.seq);
    contents.volumes.into_iter().for_each(|r| ledger.put(r));
    contents.trash.into_iter().for_each(|t| ledger.put_trash(t));
    let mut recovery = Recovery {
        disk: &disk,
        registry: &registry,
        log,
        ledger,
        report,
        conditions: Conditions::new(),
        strangers: Vec::new(),
    };
    recovery.records()?;
    recovery.staging()?;
    recovery.adopt_snapshots()?;
    recovery.adopt(config)?;
    recovery.repair();
    recovery.foreign(config)?;
    recovery.devices()?;
    let leftovers = recovery.leftovers()?;
    let Recovery { ledger, report, conditions, strangers, .. } = recovery;
    if let Err(e) = disk.make_ballast() {
        warn!(log, "no ballast"; "error" => chain(&e));
    }
    let can_clone = disk.can_clone();
    let published = disk.published().map_err(|e| StartError::Step("reading mounts", e))?;
    let room = first_room(&disk, config, &ledger)?;
    let orphans = contents.orphans.into_iter().collect();
    Ok(Started {
        room,
        ledger,
        report,
        conditions,
        strangers,
        orphans,
        leftovers,
        published,
        can_clone,
        disk,
        registry,
    })
}

fn first_room(disk: &Disk, config: &EngineConfig, ledger: &Ledger) -> Result<Room, StartError> {
    let base = Room {
        ratio_permille: config.ratio_permille,
        unlimited: config.overcommit_unlimited,
        ..Room::default()
    };
    let room = disk
        .room(&others(ledger), base)
        .map_err(|e| StartError::Step("reading the filesystem's space", e))?;
    let reserve = config.reserve.unwrap_or_else(|| Room::default_reserve(room.total));
    Ok(Room { reserve, ..room })
}

/// Projects whose use counts as "other".
pub(crate) fn others(ledger: &Ledger) -> Vec<u32> {
    let trash = ledger.trash.values().map(|t| t.project);
    ledger.foreign.iter().copied().chain(trash).filter(|p| *p != 0).collect()
}

struct Recovery<'a> {
    disk: &'a Disk,
    registry: &'a Registry,
    log: &'a Logger,
    ledger: Ledger,
    report: RecoveryReport,
    conditions: Conditions,
    strangers: Vec<Stored>,
}

impl Recovery<'_> {
    fn count(&mut self, action: &'static str) {
        *self.report.actions.entry(action).or_default() += 1;
    }

    fn condition(&mut self, id: &VolumeId, kind: ConditionKind, message: String) {
        warn!(self.log, "volume has a condition";
            "volume" => id.as_str(), "condition" => format!("{kind:?}"), "message" => &message);
        self.conditions.entry(id.clone()).or_default().insert(kind, message);
    }

    /// Finishes or undoes what each record was at.
    fn records(&mut self) -> Result<(), StartError> {
        let ids: Vec<VolumeId> = self.ledger.volumes.keys().cloned().collect();
        for id in ids {
            let Some(record) = self.ledger.volumes.get(&id).cloned() else { continue };
            match self.disk.observe(&record) {
                Ok(seen) => {
                    let steps = plan::next(Some(&record), seen, Want::Recover);
                    self.run(record, &steps)?;
                }
                Err(e) => {
                    warn!(self.log, "cannot examine volume";
                        "volume" => id.as_str(), "error" => chain(&e));
                    self.count("failed");
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, mut draft: Record, steps: &[Step]) -> Result<(), StartError> {
        if let Some(last) = steps.last() {
            info!(self.log, "recovering volume";
                "volume" => draft.id.as_str(), "until" => last.point());
        }
        for step in steps {
            match step {
                Step::Commit(commit) => {
                    let changes = commit::prepare(*commit, &mut draft, &self.ledger);
                    self.commit(&changes)?;
                    commit::settle(*commit, &draft, &mut self.ledger);
                    self.disk.seams.faults.point(step.point());
                }
                Step::Act(act) => {
                    if let Err(e) = self.disk.step(*act, &mut draft) {
                        warn!(self.log, "recovery stopped at a step; it is tried again later";
                            "volume" => draft.id.as_str(), "step" => step.point(),
                            "error" => chain(&e));
                        self.count("failed");
                        return Ok(());
                    }
                }
            }
        }
        match steps.last() {
            Some(Step::Commit(Commit::Ready)) => self.count("completed"),
            Some(Step::Commit(Commit::Forget)) => self.count("rolled_back"),
            Some(Step::Commit(Commit::Trashed)) => self.count("trashed"),
            Some(Step::Commit(Commit::Size)) => self.count("expanded"),
            Some(_) | None => {}
        }
        Ok(())
    }

    fn commit(&self, changes: &[Change]) -> Result<(), StartError> {
        match self.registry.commit(changes) {
            Err(CommitError::NoSpace(_)) if self.disk.drop_ballast() => {
                self.registry.commit(changes).map_err(StartError::Commit)
            }
            other => other.map_err(StartError::Commit),
        }
    }

    /// No record, something staged: to the trash.
    fn staging(&mut self) -> Result<(), StartError> {
        let known = |name: &str| {
            VolumeId::stored(name).is_ok_and(|id| self.ledger.volumes.contains_key(&id))
        };
        let n = self.disk.sweep_staging(&known);
        let n = n.map_err(|e| StartError::Step("sweeping staging", e))?;
        for _ in 0..n {
            self.count("swept");
        }
        Ok(())
    }

    /// No record, but an entry: rule 7.8.
    fn adopt(&mut self, config: &EngineConfig) -> Result<(), StartError> {
        let fail = |e| StartError::Step("listing volumes", e);
        for entry in self.disk.entries(false).map_err(fail)? {
            let shown = entry.to_string_lossy().into_owned();
            let Some(id) = entry.to_str().ok().and_then(|n| VolumeId::parse(n).ok()) else {
                self.stranger(None, shown, StoredState::Foreign);
                continue;
            };
            if self.ledger.volumes.contains_key(&id) {
                continue;
            }
            match self.disk.examine(&id) {
                Ok(Found::Copy(mut r)) => {
                    r.seq = self.ledger.next_seq();
                    self.take(*r)?;
                }
                Ok(Found::Limited(project, usage)) => {
                    let (bytes, inodes) = (usage.limits.bytes, usage.limits.inodes);
                    let size = Size {
                        capacity: Bytes(bytes),
                        limit: Bytes(bytes),
                        inodes: Inodes(inodes),
                    };
                    let r = self.adopted(id, VolumeKind::Filesystem, size, project);
                    self.take(r)?;
                }
                Ok(Found::Image(bytes)) => self.adopt_image(config, id, bytes)?,
                Ok(Found::Unlimited) => self.stranger(Some(id), shown, StoredState::Unlimited),
                Ok(Found::Foreign) => self.stranger(Some(id), shown, StoredState::Foreign),
                Err(e) => {
                    warn!(self.log, "cannot examine entry"; "entry" => &shown, "error" => chain(&e));
                    self.stranger(Some(id), shown, StoredState::Foreign);
                }
            }
        }
        Ok(())
    }

    /// The record of an entry that an earlier release has left.
    fn adopted(&mut self, id: VolumeId, kind: VolumeKind, size: Size, project: u32) -> Record {
        let (seq, name) = (self.ledger.next_seq(), id.to_string());
        let (params, owner, source) = (Params::default(), OwnerTag::none(), None);
        let new = NewRecord { id, name, kind, size, project, seq, params, owner, source };
        let mut r = Record::intent(new);
        r.phase = Phase::Ready;
        r
    }

    /// Rule 7.8 c: an image without a record gets a project to be accounted by.
    fn adopt_image(
        &mut self,
        config: &EngineConfig,
        id: VolumeId,
        bytes: u64,
    ) -> Result<(), StartError> {
        let fail = |e| StartError::Step("adopting an image", e);
        let Some(size) = Size::of_image(bytes, Params::default().block_size) else {
            self.stranger(Some(id.clone()), id.to_string(), StoredState::Foreign);
            return Ok(());
        };
        let project = loop {
            let Some(next) = self.ledger.next_project(&config.project_ids) else {
                self.stranger(Some(id.clone()), id.to_string(), StoredState::Foreign);
                return Ok(());
            };
            if self.disk.project_is_free(next).map_err(fail)? {
                break next;
            }
            self.ledger.foreign.insert(next);
        };
        let r = self.adopted(id, VolumeKind::Block, size, project);
        self.take(r.clone())?;
        self.disk.mark_adopted(&r).map_err(fail)
    }

    /// No record, but a snapshot: rebuilt from its copy.
    fn adopt_snapshots(&mut self) -> Result<(), StartError> {
        let fail = |e| StartError::Step("listing snapshots", e);
        for entry in self.disk.entries(true).map_err(fail)? {
            let shown = entry.to_string_lossy().into_owned();
            let id = entry.to_str().ok().and_then(|n| SnapshotId::parse(n).ok());
            let Some(id) = id.map(|id| VolumeId::of_snapshot(&id)) else {
                self.stranger(None, shown, StoredState::Foreign);
                continue;
            };
            if self.ledger.volumes.contains_key(&id) {
                continue;
            }
            match self.disk.examine(&id) {
                Ok(Found::Copy(mut r)) => {
                    r.seq = self.ledger.next_seq();
                    self.take(*r)?;
                }
                Ok(_) => self.stranger(None, shown, StoredState::Foreign),
                Err(e) => {
                    warn!(self.log, "cannot examine snapshot";
                        "entry" => &shown, "error" => chain(&e));
                    self.stranger(None, shown, StoredState::Foreign);
                }
            }
        }
        Ok(())
    }

    /// Rule 6.7: devices that an earlier process has left.
    fn devices(&mut self) -> Result<(), StartError> {
        let found = self.disk.reconcile_devices();
        let (detached, lost) = found.map_err(|e| StartError::Step("listing loop devices", e))?;
        for _ in 0..detached {
            self.count("detached");
        }
        for id in lost {
            if self.ledger.volumes.contains_key(&id) {
                let message = "a device was attached to an image that is gone".to_owned();
                self.condition(&id, ConditionKind::DeviceDetached, message);
            }
        }
        Ok(())
    }

    fn take(&mut self, r: Record) -> Result<(), StartError> {
        info!(self.log, "adopting volume";
            "volume" => r.id.as_str(), "project" => r.project, "limit" => r.size.limit.0);
        self.commit(&[Change::Put(Box::new(r.clone())), Change::Seq(r.seq)])?;
        self.ledger.put(r);
        self.count("adopted");
        Ok(())
    }

    fn stranger(&mut self, id: Option<VolumeId>, entry: String, state: StoredState) {
        warn!(self.log, "entry without a record and without limits, left alone";
            "entry" => &entry, "state" => format!("{state:?}"));
        self.count("foreign");
        self.strangers.push(Stored {
            id,
            name: entry.clone(),
            entry,
            kind: VolumeKind::Filesystem,
            state,
            capacity: Bytes(0),
            project_id: 0,
            owner: OwnerTag::none(),
            source: None,
            conditions: Vec::new(),
        });
    }

    /// Re-asserts id, PROJINHERIT and limits of every volume (rule 4.5).
    fn repair(&mut self) {
        let records: Vec<Record> = self.ledger.volumes.values().cloned().collect();
        for r in records.iter().filter(|r| r.phase == Phase::Ready) {
            if self.ledger.is_shared(r.project) {
                let message = format!("project {} has several volumes", r.project);
                self.condition(&r.id, ConditionKind::ProjectIdShared, message);
                continue;
            }
            match self.disk.reassert(r) {
                Ok(None) => {
                    let message = "the volume's directory is missing".to_owned();
                    self.condition(&r.id, ConditionKind::DataMissing, message);
                }
                Ok(Some(wrong)) if wrong.is_empty() => {}
                Ok(Some(wrong)) => {
                    self.count("repaired");
                    self.condition(&r.id, ConditionKind::QuotaEscaped, wrong.join(", "));
                }
                Err(e) => {
                    self.condition(&r.id, ConditionKind::QuotaNotEnforced, chain(&e));
                }
            }
        }
    }

    /// Marks the ids of the pool that others use.
    fn foreign(&mut self, config: &EngineConfig) -> Result<(), StartError> {
        let ours: std::collections::BTreeSet<u32> = self
            .ledger
            .volumes
            .values()
            .map(|r| r.project)
            .chain(self.ledger.trash.values().map(|t| t.project))
            .collect();
        let found = self
            .disk
            .foreign_projects(&config.project_ids, &|p| ours.contains(&p))
            .map_err(|e| StartError::Step("listing projects", e))?;
        self.ledger.foreign.extend(found);
        Ok(())
    }

    fn leftovers(&self) -> Result<Vec<String>, StartError> {
        let names =
            self.disk.trash_names().map_err(|e| StartError::Step("listing the trash", e))?;
        Ok(names.into_iter().filter(|n| !self.ledger.trash.contains_key(n)).collect())
    }
}
