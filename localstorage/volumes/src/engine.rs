//! The engine's handle, what it is built from, and its service.
//!
//! Invariants: the handle outlives incarnations; between two every operation answers
//! `Unavailable`; dropping a call does not cancel an operation that has begun.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use localstorage::{DataVolumeStateDirectory, DataVolumesDirectory};
use nodesys::{Attributes, Extents, Filesystem, Loops, Mounter, Quota};
use parking_lot::RwLock;
use supervisor::{Context, Handle, Name, Outcome, Service};
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{
    CreateError, DeleteError, ExpandError, PublishError, SnapshotError, StatsError, TagError,
    Trouble, chain,
};
use crate::faults::Faults;
use crate::id::{NameError, SnapshotId, VolumeId};
use crate::metrics::VolumeMetrics;
use crate::owner::{self, Command, Reply, Request};
use crate::pool::Supervised;
use crate::recover;
use crate::types::{
    CapacityRange, CapacityView, Condition, CreateSnapshot, CreateVolume, EnginePhase,
    EngineStatus, Expanded, KnownHandles, OrphanReport, OwnerTag, Publish, Published, Snapshot,
    Stats, Stored, Unpublish, Volume, VolumeSummary,
};

/// Requests that wait for the owner task (rule 7.2). They are small; a queue that is full
/// means that the disk does not keep up.
const QUEUE: usize = 256;

/// The two directories the engine owns.
#[derive(Debug, Clone)]
pub struct VolumeDirs {
    /// One entry per volume and nothing else.
    pub volumes: DataVolumesDirectory,
    /// Registry, staging, trash.
    pub state: DataVolumeStateDirectory,
}

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Project ids for volumes. The kubelet's own begin at 1048577.
    pub project_ids: RangeInclusive<u32>,
    /// Bytes never promised to volumes; default the larger of 5 % and 256 MiB.
    pub reserve: Option<u64>,
    /// Promised bytes per 1000 usable ones.
    pub ratio_permille: u64,
    /// Directory volumes are never refused for space.
    pub overcommit_unlimited: bool,
    /// Blocking jobs at the same time, purges aside; at least 1.
    pub workers: usize,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            project_ids: 1_000_000_000..=1_999_999_999,
            reserve: None,
            ratio_permille: 1000,
            overcommit_unlimited: false,
            workers: 8,
        }
    }
}

/// The kernel, as far as the engine needs it.
#[derive(Clone)]
pub struct Seams {
    /// Project quota.
    pub quota: Arc<dyn Quota>,
    /// Mounts.
    pub mounter: Arc<dyn Mounter>,
    /// Loop devices.
    pub loops: Arc<dyn Loops>,
    /// Preallocation and shared extents.
    pub extents: Arc<dyn Extents>,
    /// Extended attributes and ownership.
    pub attributes: Arc<dyn Attributes>,
    /// Identity and space of the filesystem.
    pub filesystem: Arc<dyn Filesystem>,
    /// Crash points; nothing without the feature `faults`.
    pub faults: Faults,
}

impl Seams {
    /// The real ones.
    pub fn kernel() -> Seams {
        Seams {
            quota: Arc::new(nodesys::KernelQuota),
            mounter: Arc::new(nodesys::KernelMounter),
            loops: Arc::new(nodesys::KernelLoops),
            extents: Arc::new(nodesys::KernelFilesystem),
            attributes: Arc::new(nodesys::KernelAttributes),
            filesystem: Arc::new(nodesys::KernelFilesystem),
            faults: Faults::default(),
        }
    }
}

/// What handle and incarnations share.
pub(crate) struct Shared {
    /// Of the incarnation that serves now.
    pub(crate) queue: RwLock<Option<mpsc::Sender<Command>>>,
    pub(crate) capacity: watch::Sender<CapacityView>,
    pub(crate) published: watch::Sender<Published>,
    pub(crate) status: watch::Sender<EngineStatus>,
    pub(crate) metrics: VolumeMetrics,
}

/// Handle of the volume engine; cheap to clone.
#[derive(Clone)]
pub struct VolumeEngine {
    shared: Arc<Shared>,
}

/// The engine's service: each incarnation opens the registry and the queue anew.
pub struct EngineRunnable {
    dirs: VolumeDirs,
    config: EngineConfig,
    seams: Seams,
    shared: Arc<Shared>,
}

impl EngineRunnable {
    /// The service that runs the engine.
    pub fn service(self, name: Name) -> Service {
        let this = Arc::new(self);
        Service::new(name, move |ctx| this.clone().run(ctx))
    }

    async fn run(self: Arc<Self>, ctx: Context) -> Outcome {
        let shared = &self.shared;
        let stop = ctx.stop();
        shared.status.send_modify(|s| s.phase = EnginePhase::Recovering);
        let _stopped = Stopped(shared.clone());
        let (this, log) = (self.clone(), ctx.log().clone());
        let job = ctx.spawn_blocking(Name::from_static("recover"), move || {
            recover::start(&this.dirs, &this.config, this.seams.clone(), &log)
        });
        let started = stop.race(job).await???;
        let (queue, commands) = mpsc::channel(QUEUE);
        let log = ctx.log().clone();
        let running = Arc::new(ctx.healthy());
        let pool = Arc::new(Supervised(running.clone()));
        let owner = owner::Owner::new(started, &self.config, shared.clone(), pool, log);
        *shared.queue.write() = Some(queue);
        owner.run(commands, stop).await
    }
}

/// Takes the queue away when an incarnation ends, however it ends.
struct Stopped(Arc<Shared>);

impl Drop for Stopped {
    fn drop(&mut self) {
        *self.0.queue.write() = None;
        self.0.status.send_modify(|s| {
            if !matches!(s.phase, EnginePhase::Degraded(_)) {
                s.phase = EnginePhase::Stopped;
            }
            s.operations.clear();
        });
        self.0.capacity.send_modify(|c| {
            c.available = crate::types::Bytes(0);
            c.max_volume = crate::types::Bytes(0);
            c.generation += 1;
        });
    }
}

impl VolumeEngine {
    /// An engine and the runnable that makes it serve.
    pub fn new(d: VolumeDirs, c: EngineConfig, s: Seams) -> (VolumeEngine, EngineRunnable) {
        let shared = Arc::new(Shared {
            queue: RwLock::new(None),
            capacity: watch::Sender::default(),
            published: watch::Sender::default(),
            status: watch::Sender::default(),
            metrics: VolumeMetrics::default(),
        });
        let runnable = EngineRunnable { dirs: d, config: c, seams: s, shared: shared.clone() };
        (VolumeEngine { shared }, runnable)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Puts a command into the queue; the answer comes through `reply`.
    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Trouble> {
        let down = || Trouble::Unavailable("it is not running".to_owned());
        let queue = self.shared.queue.read().clone().ok_or_else(down)?;
        let (reply, answer) = oneshot::channel();
        queue.try_send(make(reply)).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => {
                Trouble::Unavailable(format!("{QUEUE} requests are waiting already"))
            }
            mpsc::error::TrySendError::Closed(_) => down(),
        })?;
        drop(queue);
        answer.await.map_err(|_| Trouble::Unavailable("it stopped meanwhile".to_owned()))
    }

    /// Makes a volume; one of this name that exists and fits is the answer, too.
    ///
    /// # Guarantees
    /// On `Ok` the volume is durable with its limits in force. On an error of kind
    /// [`Trouble::Step`] nothing is left, or the next call or start continues.
    /// # Cancel safety
    /// Dropping the call does not stop what has begun.
    pub async fn create(&self, r: CreateVolume) -> Result<Volume, CreateError> {
        let id = VolumeId::from_name(&r.name)
            .map_err(|e: NameError| CreateError::InvalidName(e.to_string()))?;
        self.ask(|reply| Command::Mutate {
            id,
            request: Request::Create(Box::new(r)),
            reply: Reply::Create(reply),
        })
        .await
        .unwrap_or_else(|t| Err(CreateError::Trouble(t)))
    }

    /// Deletes a volume: on `Ok` it is durably gone from `volumes`; its data is purged in the
    /// background. An unknown volume is `Ok`.
    pub async fn delete(&self, id: &VolumeId) -> Result<(), DeleteError> {
        self.ask(|reply| Command::Mutate {
            id: id.clone(),
            request: Request::Delete,
            reply: Reply::Delete(reply),
        })
        .await
        .unwrap_or_else(|t| Err(DeleteError::Trouble(t)))
    }

    /// Makes a volume larger, online. A target it already has is `Ok`.
    pub async fn expand(&self, id: &VolumeId, to: CapacityRange) -> Result<Expanded, ExpandError> {
        self.ask(|reply| Command::Mutate {
            id: id.clone(),
            request: Request::Expand(to),
            reply: Reply::Expand(reply),
        })
        .await
        .unwrap_or_else(|t| Err(ExpandError::Trouble(t)))
    }

    /// Mounts a volume. Mounted there already with the same flags is `Ok`.
    pub async fn publish(&self, r: Publish) -> Result<(), PublishError> {
        self.ask(|reply| Command::Mutate {
            id: r.id.clone(),
            request: Request::Publish(r),
            reply: Reply::Publish(reply),
        })
        .await
        .unwrap_or_else(|t| Err(PublishError::Trouble(t)))
    }

    /// Unmounts a volume and removes the target. Nothing there is `Ok`.
    pub async fn unpublish(&self, r: Unpublish) -> Result<(), PublishError> {
        self.ask(|reply| Command::Mutate {
            id: r.id.clone(),
            request: Request::Unpublish(r),
            reply: Reply::Publish(reply),
        })
        .await
        .unwrap_or_else(|t| Err(PublishError::Trouble(t)))
    }

    /// Statistics of a volume that is mounted at `at`.
    pub async fn stats(&self, id: &VolumeId, at: &Path) -> Result<Stats, StatsError> {
        let (id, at) = (id.clone(), at.to_owned());
        self.ask(|reply| Command::Stats { id, at, reply })
            .await
            .unwrap_or_else(|t| Err(StatsError::Trouble(t)))
    }

    /// What is wrong with a volume.
    pub async fn health(&self, id: &VolumeId) -> Result<Vec<Condition>, StatsError> {
        let id = id.clone();
        self.ask(|reply| Command::Health { id, reply })
            .await
            .unwrap_or_else(|t| Err(StatsError::Trouble(t)))
    }

    /// Every object with its state and tag, ordered by id; empty while the engine is down (see
    /// [`VolumeEngine::try_inventory`] where that matters).
    pub async fn inventory(&self) -> Vec<Stored> {
        self.try_inventory().await.unwrap_or_default()
    }

    /// As [`VolumeEngine::inventory`], but tells "none" from "unavailable".
    pub async fn try_inventory(&self) -> Result<Vec<Stored>, Trouble> {
        self.ask(Command::Inventory).await
    }

    /// One volume, whatever its state.
    pub async fn find(&self, id: &VolumeId) -> Result<Option<Stored>, Trouble> {
        let id = id.clone();
        self.ask(|reply| Command::Find { id, reply }).await
    }

    /// Ready volumes in order of their ids, those after `after`, at most `max`. Costs what it
    /// answers, however many volumes there are.
    pub async fn page(&self, after: Option<VolumeId>, max: usize) -> Result<Vec<Stored>, Trouble> {
        self.ask(|reply| Command::Page { after, max, reply }).await
    }

    /// Makes a snapshot; one of this name and source that exists is the answer, too.
    ///
    /// # Guarantees
    /// On `Ok` the snapshot is durable and independent of its source.
    /// # Cancel safety
    /// Dropping the call does not stop what has begun.
    pub async fn snapshot(&self, r: CreateSnapshot) -> Result<Snapshot, SnapshotError> {
        let id = SnapshotId::from_name(&r.name)
            .map_err(|e: NameError| SnapshotError::InvalidName(e.to_string()))?;
        self.ask(|reply| Command::Mutate {
            id: VolumeId::of_snapshot(&id),
            request: Request::Snapshot(r),
            reply: Reply::Snapshot(reply),
        })
        .await
        .unwrap_or_else(|t| Err(SnapshotError::Trouble(t)))
    }

    /// Deletes a snapshot. An unknown one is `Ok`.
    pub async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), DeleteError> {
        self.delete(&VolumeId::of_snapshot(id)).await
    }

    /// One snapshot.
    pub async fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, Trouble> {
        let id = id.clone();
        self.ask(|reply| Command::FindSnapshot { id, reply }).await
    }

    /// Snapshots in order of their ids, those after `after`, at most `max`; only those of
    /// `source` if it is given.
    pub async fn snapshots(
        &self,
        after: Option<SnapshotId>,
        source: Option<VolumeId>,
        max: usize,
    ) -> Result<Vec<Snapshot>, Trouble> {
        self.ask(|reply| Command::Snapshots { after, source, max, reply }).await
    }

    /// All volumes with their use, for dashboards; empty while the engine is down.
    pub async fn summaries(&self) -> Vec<VolumeSummary> {
        self.ask(Command::Summaries).await.unwrap_or_default()
    }

    /// Replaces the caller's tag, durably.
    pub async fn tag(&self, id: &VolumeId, owner: OwnerTag) -> Result<(), TagError> {
        self.ask(|reply| Command::Mutate {
            id: id.clone(),
            request: Request::Tag(owner),
            reply: Reply::Tag(reply),
        })
        .await
        .unwrap_or_else(|t| Err(TagError::Trouble(t)))
    }

    /// Compares the caller's handles with the volumes. Reports, and touches nothing.
    pub async fn reconcile_known(&self, known: KnownHandles) -> OrphanReport {
        self.ask(|reply| Command::Reconcile { known, reply }).await.unwrap_or_default()
    }

    /// Space, always the newest.
    pub fn capacity(&self) -> watch::Receiver<CapacityView> {
        self.shared.capacity.subscribe()
    }

    /// Where volumes are mounted, always the newest.
    pub fn published(&self) -> watch::Receiver<Published> {
        self.shared.published.subscribe()
    }

    /// What the engine counts, over all incarnations; to be registered once.
    pub fn metrics(&self) -> VolumeMetrics {
        self.shared.metrics.clone()
    }

    /// What the engine is doing, always the newest.
    pub fn status(&self) -> watch::Receiver<EngineStatus> {
        self.shared.status.subscribe()
    }
}

/// For log lines of the owner.
pub(crate) fn shown(e: &dyn std::error::Error) -> String {
    chain(e)
}
