//! The seam between the services and the volume engine: exactly the calls they make.
//!
//! Implemented by [`VolumeEngine`] and, in tests, by a programmable fake.

use std::path::Path;

use volumes::{
    CapacityRange, CapacityView, Condition, CreateError, CreateSnapshot, CreateVolume, DeleteError,
    EnginePhase, ExpandError, Expanded, Publish, PublishError, Snapshot, SnapshotError, SnapshotId,
    Stats, StatsError, Stored, Trouble, Unpublish, Volume, VolumeEngine, VolumeId,
};

/// What the services need of the engine.
#[tonic::async_trait]
pub(crate) trait Engine: Send + Sync + 'static {
    /// Mounts.
    async fn publish(&self, request: Publish) -> Result<(), PublishError>;
    /// Unmounts.
    async fn unpublish(&self, request: Unpublish) -> Result<(), PublishError>;
    /// Use of the volume mounted at this path.
    async fn stats(&self, id: &VolumeId, at: &Path) -> Result<Stats, StatsError>;
    /// What is wrong with a volume.
    async fn health(&self, id: &VolumeId) -> Result<Vec<Condition>, StatsError>;
    /// Grows a volume, or re-asserts its size.
    async fn expand(&self, id: &VolumeId, to: CapacityRange) -> Result<Expanded, ExpandError>;
    /// Makes a volume.
    async fn create(&self, request: CreateVolume) -> Result<Volume, CreateError>;
    /// Deletes a volume.
    async fn delete(&self, id: &VolumeId) -> Result<(), DeleteError>;
    /// One volume.
    async fn find(&self, id: &VolumeId) -> Result<Option<Stored>, Trouble>;
    /// Ready volumes after an id, in order.
    async fn page(&self, after: Option<VolumeId>, max: usize) -> Result<Vec<Stored>, Trouble>;
    /// Makes a snapshot.
    async fn snapshot(&self, request: CreateSnapshot) -> Result<Snapshot, SnapshotError>;
    /// Deletes a snapshot.
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), DeleteError>;
    /// One snapshot.
    async fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, Trouble>;
    /// Snapshots after an id, in order; of one volume if one is named.
    async fn snapshots(
        &self,
        after: Option<SnapshotId>,
        source: Option<VolumeId>,
        max: usize,
    ) -> Result<Vec<Snapshot>, Trouble>;
    /// Space.
    fn capacity(&self) -> CapacityView;
    /// Whether snapshots and clones work on this disk.
    fn can_snapshot(&self) -> bool;
    /// What the engine is doing.
    fn phase(&self) -> EnginePhase;
}

#[tonic::async_trait]
impl Engine for VolumeEngine {
    async fn publish(&self, request: Publish) -> Result<(), PublishError> {
        VolumeEngine::publish(self, request).await
    }

    async fn unpublish(&self, request: Unpublish) -> Result<(), PublishError> {
        VolumeEngine::unpublish(self, request).await
    }

    async fn stats(&self, id: &VolumeId, at: &Path) -> Result<Stats, StatsError> {
        VolumeEngine::stats(self, id, at).await
    }

    async fn health(&self, id: &VolumeId) -> Result<Vec<Condition>, StatsError> {
        VolumeEngine::health(self, id).await
    }

    async fn expand(&self, id: &VolumeId, to: CapacityRange) -> Result<Expanded, ExpandError> {
        VolumeEngine::expand(self, id, to).await
    }

    fn phase(&self) -> EnginePhase {
        self.status().borrow().phase.clone()
    }

    async fn create(&self, request: CreateVolume) -> Result<Volume, CreateError> {
        VolumeEngine::create(self, request).await
    }

    async fn delete(&self, id: &VolumeId) -> Result<(), DeleteError> {
        VolumeEngine::delete(self, id).await
    }

    async fn find(&self, id: &VolumeId) -> Result<Option<Stored>, Trouble> {
        VolumeEngine::find(self, id).await
    }

    async fn page(&self, after: Option<VolumeId>, max: usize) -> Result<Vec<Stored>, Trouble> {
        VolumeEngine::page(self, after, max).await
    }

    async fn snapshot(&self, request: CreateSnapshot) -> Result<Snapshot, SnapshotError> {
        VolumeEngine::snapshot(self, request).await
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), DeleteError> {
        VolumeEngine::delete_snapshot(self, id).await
    }

    async fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, Trouble> {
        VolumeEngine::find_snapshot(self, id).await
    }

    async fn snapshots(
        &self,
        after: Option<SnapshotId>,
        source: Option<VolumeId>,
        max: usize,
    ) -> Result<Vec<Snapshot>, Trouble> {
        VolumeEngine::snapshots(self, after, source, max).await
    }

    fn capacity(&self) -> CapacityView {
        *VolumeEngine::capacity(self).borrow()
    }

    fn can_snapshot(&self) -> bool {
        self.status().borrow().snapshots
    }
}
