//! The engine's handle and what it is built from.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use localstorage::{DataVolumeStateDirectory, DataVolumesDirectory};
use nodesys::{Attributes, Extents, Filesystem, Mounter, Quota};
use tokio::sync::watch;

use crate::error::{CreateError, DeleteError, ExpandError, PublishError, StatsError, TagError};
use crate::id::VolumeId;
use crate::types::{
    CapacityRange, CapacityView, Condition, CreateVolume, EngineStatus, Expanded, KnownHandles,
    OrphanReport, OwnerTag, Publish, Published, Stats, Stored, Unpublish, Volume, VolumeSummary,
};

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
    /// Blocking jobs at the same time, purges aside.
    pub workers: usize,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            project_ids: 1_000_000_000..=1_999_999_999,
            reserve: None,
            ratio_permille: 1000,
            overcommit_unlimited: false,
            workers: 4,
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
    /// Preallocation.
    pub extents: Arc<dyn Extents>,
    /// Extended attributes and ownership.
    pub attributes: Arc<dyn Attributes>,
    /// Identity and space of the filesystem.
    pub filesystem: Arc<dyn Filesystem>,
}

/// Handle of the volume engine; cheap to clone. Between two incarnations every operation
/// answers `Unavailable`.
#[derive(Clone)]
pub struct VolumeEngine;

/// The engine's service: each incarnation opens the registry and the queue anew.
pub struct EngineRunnable;

#[expect(clippy::todo, missing_docs, reason="bodies follow")]
impl EngineRunnable {
    pub fn service(self, name: supervisor::Name) -> supervisor::Service {
        todo!()
    }
}

#[expect(clippy::todo, missing_docs, reason="bodies follow")]
impl Seams {
    pub fn kernel() -> Seams {
        todo!()
    }
}

#[expect(clippy::todo, missing_docs, unused_variables, reason="bodies follow")]
impl VolumeEngine {
    pub fn new(d: VolumeDirs, c: EngineConfig, s: Seams) -> (VolumeEngine, EngineRunnable) {
        todo!()
    }
    pub async fn create(&self, r: CreateVolume) -> Result<Volume, CreateError> {
        todo!()
    }
    pub async fn delete(&self, id: &VolumeId) -> Result<(), DeleteError> {
        todo!()
    }
    pub async fn expand(&self, id: &VolumeId, to: CapacityRange) -> Result<Expanded, ExpandError> {
        todo!()
    }
    pub async fn publish(&self, r: Publish) -> Result<(), PublishError> {
        todo!()
    }
    pub async fn unpublish(&self, r: Unpublish) -> Result<(), PublishError> {
        todo!()
    }
    pub async fn stats(&self, id: &VolumeId, at: &Path) -> Result<Stats, StatsError> {
        todo!()
    }
    pub async fn health(&self, id: &VolumeId) -> Result<Vec<Condition>, StatsError> {
        todo!()
    }
    pub async fn inventory(&self) -> Vec<Stored> {
        todo!()
    }
    pub async fn summaries(&self) -> Vec<VolumeSummary> {
        todo!()
    }
    pub async fn tag(&self, id: &VolumeId, owner: OwnerTag) -> Result<(), TagError> {
        todo!()
    }
    pub async fn reconcile_known(&self, known: KnownHandles) -> OrphanReport {
        todo!()
    }
    pub fn capacity(&self) -> watch::Receiver<CapacityView> {
        todo!()
    }
    pub fn published(&self) -> watch::Receiver<Published> {
        todo!()
    }
    pub fn status(&self) -> watch::Receiver<EngineStatus> {
        todo!()
    }
}
