//! The seam between the services and the volume engine: exactly the calls they make.
//!
//! Implemented by [`VolumeEngine`] and, in tests, by a programmable fake.

use std::path::Path;

use volumes::{
    CapacityRange, Condition, EnginePhase, ExpandError, Expanded, Publish, PublishError, Stats,
    StatsError, Unpublish, VolumeEngine, VolumeId,
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
}
