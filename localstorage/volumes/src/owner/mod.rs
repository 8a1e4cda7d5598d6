//! The owner task: decides, commits, and hands steps to the pool.
//!
//! Owner of: ledger, operations, and the only writer of the registry.
//!
//! Invariants: per volume one operation at a time, an identical request joins it, another
//! one is refused; a decision and its reservation are one step; commits of several
//! operations share one flush; nothing is answered before its commit is durable. When the
//! registry cannot be written the incarnation ends and a new one reads the truth.
//!
//! Must not know: how a step is done (`disk`, `mounting`).

mod background;
mod commits;
mod create;
mod operation;
mod reads;
mod snapshots;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use slog::{Logger, error, info};
use supervisor::{Outcome, Stop, StopToken};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior};

use crate::disk::Disk;
use crate::engine::{EngineConfig, Shared, shown};
use crate::error::{
    CreateError, DeleteError, ExpandError, PublishError, SnapshotError, StatsError, TagError,
    Trouble,
};
use crate::id::{SnapshotId, VolumeId};
use crate::ledger::{Ledger, Room};
use crate::pool::{Job, JobFuture, Pool};
use crate::record::Record;
use crate::recover::{Conditions, Started};
use crate::registry::Registry;
use crate::types::{
    CapacityRange, Condition, CreateSnapshot, CreateVolume, EnginePhase, Expanded, KnownHandles,
    OrphanReport, OwnerTag, Publish, Published, RecoveryReport, RunningOperation, Snapshot, Stats,
    Stored, Unpublish, Volume, VolumeSummary,
};

pub(crate) use commits::Committed;
pub(crate) use operation::{Failure, Operation, Probe};

/// Operations at the same time, waiting for the pool included (rule 7.2).
const OPERATIONS: usize = 256;
/// How often space is measured, mounts are compared and failed purges are tried again.
const TICK: Duration = Duration::from_secs(10);
/// Every so many ticks published volumes are audited: 60 s (rule 4.8).
const AUDIT_TICKS: u32 = 6;

/// What is asked of one volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Create(Box<CreateVolume>),
    Delete,
    Expand(CapacityRange),
    Snapshot(CreateSnapshot),
    Publish(Publish),
    Unpublish(Unpublish),
    Tag(OwnerTag),
}

impl Request {
    fn name(&self) -> &'static str {
        match self {
            Request::Create(_) => "create",
            Request::Delete => "delete",
            Request::Expand(_) => "expand",
            Request::Snapshot(_) => "snapshot",
            Request::Publish(_) => "publish",
            Request::Unpublish(_) => "unpublish",
            Request::Tag(_) => "tag",
        }
    }
}

/// Where an answer goes.
pub(crate) enum Reply {
    Create(oneshot::Sender<Result<Volume, CreateError>>),
    Delete(oneshot::Sender<Result<(), DeleteError>>),
    Expand(oneshot::Sender<Result<Expanded, ExpandError>>),
    Snapshot(oneshot::Sender<Result<Snapshot, SnapshotError>>),
    Publish(oneshot::Sender<Result<(), PublishError>>),
    Tag(oneshot::Sender<Result<(), TagError>>),
}

impl Reply {
    /// Answers with a cause that all operations share. A caller that went away is fine.
    fn trouble(self, t: Trouble) {
        match self {
            Reply::Create(r) => drop(r.send(Err(CreateError::Trouble(t)))),
            Reply::Delete(r) => drop(r.send(Err(DeleteError::Trouble(t)))),
            Reply::Expand(r) => drop(r.send(Err(ExpandError::Trouble(t)))),
            Reply::Snapshot(r) => drop(r.send(Err(SnapshotError::Trouble(t)))),
            Reply::Publish(r) => drop(r.send(Err(PublishError::Trouble(t)))),
            Reply::Tag(r) => drop(r.send(Err(TagError::Trouble(t)))),
        }
    }
}

/// What comes through the queue.
pub(crate) enum Command {
    Mutate {
        id: VolumeId,
        request: Request,
        reply: Reply,
    },
    Stats {
        id: VolumeId,
        at: PathBuf,
        reply: oneshot::Sender<Result<Stats, StatsError>>,
    },
    Health {
        id: VolumeId,
        reply: oneshot::Sender<Result<Vec<Condition>, StatsError>>,
    },
    Inventory(oneshot::Sender<Vec<Stored>>),
    Find {
        id: VolumeId,
        reply: oneshot::Sender<Option<Stored>>,
    },
    Page {
        after: Option<VolumeId>,
        max: usize,
        reply: oneshot::Sender<Vec<Stored>>,
    },
    FindSnapshot {
        id: SnapshotId,
        reply: oneshot::Sender<Option<Snapshot>>,
    },
    Snapshots {
        after: Option<SnapshotId>,
        source: Option<VolumeId>,
        max: usize,
        reply: oneshot::Sender<Vec<Snapshot>>,
    },
    Summaries(oneshot::Sender<Vec<VolumeSummary>>),
    Reconcile {
        known: KnownHandles,
        reply: oneshot::Sender<OrphanReport>,
    },
}

/// What a blocking job answers.
pub(crate) enum Completion {
    /// What was seen before planning.
    Probed(VolumeId, Result<Probe, Failure>),
    /// The steps are done, or one failed.
    Stepped(VolumeId, Result<Box<Record>, Failure>),
    /// What a volume uses, before a snapshot of it is decided.
    Charged(Box<snapshots::Charged>),
    /// Mounted or unmounted.
    Mounted(VolumeId, Result<(), PublishError>),
    /// A batch is durable, or not.
    Committed(Committed),
    /// A trash item is gone, or not.
    Purged(String, Result<(), Failure>),
    /// A leftover without a row is gone, or not.
    Swept(String, Result<(), Failure>),
    /// What a tick found.
    Measured(Box<background::Measured>),
    /// The mount table was read.
    Table(Option<Published>),
    /// A read has answered by itself.
    Read,
}

/// The engine of one incarnation.
pub(crate) struct Owner {
    disk: Arc<Disk>,
    registry: Arc<Registry>,
    config: EngineConfig,
    shared: Arc<Shared>,
    pool: Arc<dyn Pool>,
    log: Logger,
    ledger: Ledger,
    room: Room,
    generation: u64,
    conditions: Conditions,
    strangers: Vec<Stored>,
    orphans: BTreeMap<VolumeId, u64>,
    report: RecoveryReport,
    operations: BTreeMap<VolumeId, Operation>,
    jobs: FuturesUnordered<JobFuture>,
    /// Steps waiting for a place in the pool.
    waiting: VecDeque<(&'static str, Job)>,
    busy: usize,
    commits: commits::Queue,
    background: background::State,
    /// Files can share extents on this disk.
    can_clone: bool,
}

impl Owner {
    pub(crate) fn new(
        s: Started,
        config: &EngineConfig,
        shared: Arc<Shared>,
        pool: Arc<dyn Pool>,
        log: Logger,
    ) -> Owner {
        let mut owner = Owner {
            disk: Arc::new(s.disk),
            registry: Arc::new(s.registry),
            config: config.clone(),
            shared,
            pool,
            log,
            ledger: s.ledger,
            room: s.room,
            generation: 0,
            conditions: s.conditions,
            strangers: s.strangers,
            orphans: s.orphans,
            report: s.report,
            operations: BTreeMap::new(),
            jobs: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            busy: 0,
            commits: commits::Queue::default(),
            background: background::State::new(s.leftovers),
            can_clone: s.can_clone,
        };
        let can_clone = owner.can_clone;
        owner.shared.status.send_modify(|st| st.snapshots = can_clone);
        owner.shared.metrics.recovered(&owner.report);
        owner.count_conditions();
        owner.shared.published.send_replace(s.published);
        owner.shared.status.send_modify(|st| st.phase = EnginePhase::Ready);
        owner.publish_views();
        info!(owner.log, "volume engine is ready";
            "volumes" => owner.ledger.volumes.len(), "trash" => owner.ledger.trash.len(),
            "recovered" => format!("{:?}", owner.report.actions));
        owner
    }

    /// Serves until asked to stop or until the registry cannot be written.
    pub(crate) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        stop: StopToken,
    ) -> Outcome {
        let failure = tokio::select! {
            biased;
            // Dropping the other arm loses only answers: what runs is left to recovery.
            cancelled = stop.stopped() => return Err(cancelled.into()),
            failure = self.serve(&mut commands) => failure,
        };
        error!(self.log, "volume engine ends"; "error" => &failure);
        let phase = EnginePhase::Degraded(failure.clone());
        self.shared.status.send_modify(|s| s.phase = phase);
        Err(Stop::failed(failure))
    }

    /// The loop. Returns why it cannot go on.
    pub(crate) async fn serve(&mut self, commands: &mut mpsc::Receiver<Command>) -> String {
        let mut tick: Interval = tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mounts = background::MountChanges::new(&self.disk, &self.log);
        self.start_purges();
        loop {
            // Every arm is cancel safe: next() of a stream, recv(), tick() and a readiness wait
            // lose nothing when another one is taken.
            tokio::select! {
                biased;
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => {
                    let Some(done) = done else { return "a job panicked".to_owned() };
                    if let Err(e) = self.completed(done) {
                        return e;
                    }
                }
                () = mounts.changed() => self.read_table(),
                _ = tick.tick() => self.tick(),
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return "the queue was closed".to_owned(),
                },
            }
            self.flush();
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Mutate { id, request, reply } => self.accept(id, request, reply),
            Command::Stats { id, at, reply } => self.stats(&id, at, reply),
            Command::Health { id, reply } => self.health(&id, reply),
            Command::Inventory(reply) => drop(reply.send(self.inventory())),
            Command::Find { id, reply } => drop(reply.send(self.find(&id))),
            Command::Page { after, max, reply } => drop(reply.send(self.page(after, max))),
            Command::FindSnapshot { id, reply } => drop(reply.send(self.find_snapshot(&id))),
            Command::Snapshots { after, source, max, reply } => {
                drop(reply.send(self.snapshots(after, source.as_ref(), max)));
            }
            Command::Summaries(reply) => self.summaries(reply),
            Command::Reconcile { known, reply } => drop(reply.send(self.reconcile(&known))),
        }
    }

    fn completed(&mut self, done: Completion) -> Result<(), String> {
        match done {
            Completion::Probed(id, result) => {
                self.left_pool();
                self.probed(&id, result);
            }
            Completion::Stepped(id, result) => {
                self.left_pool();
                self.stepped(&id, result);
            }
            Completion::Charged(charged) => {
                self.left_pool();
                self.charged(*charged);
            }
            Completion::Mounted(id, result) => {
                self.left_pool();
                self.mounted(&id, result);
            }
            Completion::Committed(batch) => self.committed(batch)?,
            Completion::Purged(key, result) => self.purged(key, result),
            Completion::Swept(name, result) => self.swept(name, result),
            Completion::Measured(m) => self.measured(*m),
            Completion::Table(published) => self.table_read(published),
            Completion::Read => self.left_pool(),
        }
        Ok(())
    }

    /// Runs a job on the bounded pool, or queues it.
    fn spawn(&mut self, name: &'static str, job: Job) {
        if self.busy < self.config.workers.max(1) {
            self.busy += 1;
            self.jobs.push(self.pool.run(name, job));
        } else {
            self.waiting.push_back((name, job));
        }
    }

    fn left_pool(&mut self) {
        self.busy = self.busy.saturating_sub(1);
        if let Some((name, job)) = self.waiting.pop_front() {
            self.spawn(name, job);
        }
    }

    /// Runs a job beside the bounded pool: commits and background work have own bounds.
    fn spawn_aside(&mut self, name: &'static str, job: Job) {
        self.jobs.push(self.pool.run(name, job));
    }

    /// Brings the watches up to date.
    fn publish_views(&mut self) {
        let mut view = self.ledger.view(self.room, self.generation);
        self.shared.capacity.send_if_modified(|now| {
            view.generation = now.generation;
            if *now == view {
                return false;
            }
            view.generation += 1;
            *now = view;
            true
        });
        self.generation = view.generation;
        self.shared.metrics.space(&self.ledger, &view);
        let operations: Vec<RunningOperation> = self
            .operations
            .iter()
            .map(|(id, op)| RunningOperation {
                volume: id.to_string(),
                operation: op.request.name(),
                since: op.since,
            })
            .collect();
        self.shared.status.send_if_modified(|s| {
            let mut new = s.clone();
            new.operations = operations;
            new.recovery = self.report.clone();
            new.snapshot_count = self.ledger.snapshot_count();
            new.volumes = self.ledger.volumes.len() - new.snapshot_count;
            new.trash = self.ledger.trash.len() + self.background.leftovers();
            let changed = *s != new;
            *s = new;
            changed
        });
    }

    /// Tells how many volumes have which condition.
    fn count_conditions(&self) {
        let mut counts = BTreeMap::new();
        for kind in self.conditions.values().flat_map(BTreeMap::keys) {
            *counts.entry(*kind).or_default() += 1;
        }
        self.shared.metrics.conditions(&counts);
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Running jobs end after their step; purges after their entry.
        self.disk.stopping.store(true, Ordering::Relaxed);
    }
}

/// For errors of jobs.
fn text(e: &dyn std::error::Error) -> String {
    shown(e)
}
