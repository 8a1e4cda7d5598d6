//! CSI Node: publish, unpublish, statistics, health and expansion on this node.
//!
//! Each call is three steps: request to typed value, one or two calls of the engine, answer.

use std::sync::Arc;

use csi_proto::csi;
use csi_proto::csi::node_server::Node;
use csi_proto::csi::node_service_capability::{Rpc, Type, rpc};
use csi_proto::csi::volume_usage::Unit;
use tonic::{Request, Response, Status};
use volumes::{Bytes, CapacityRange, EnginePhase, StatsUsage};

use crate::config::CsiConfig;
use crate::engine::Engine;
use crate::error::{
    NodeExpandVolumeError, NodeGetVolumeHealthError, NodeGetVolumeStatsError,
    NodePublishVolumeError, NodeUnpublishVolumeError, not_served, status,
};
use crate::messages::{condition, health_entry, saturating};
use crate::publish::{capacity_range, publish_request, unpublish_request, volume_at, volume_id};

/// Serves Node.
pub(crate) struct NodeService<E> {
    pub(crate) config: Arc<CsiConfig>,
    pub(crate) engine: Arc<E>,
}

impl<E: Engine> NodeService<E> {
    async fn publish(
        &self,
        r: &csi::NodePublishVolumeRequest,
    ) -> Result<(), NodePublishVolumeError> {
        let request = publish_request(r).map_err(NodePublishVolumeError::Request)?;
        self.engine.publish(request).await.map_err(NodePublishVolumeError::Engine)
    }

    async fn unpublish(
        &self,
        r: &csi::NodeUnpublishVolumeRequest,
    ) -> Result<(), NodeUnpublishVolumeError> {
        let request = unpublish_request(r).map_err(NodeUnpublishVolumeError::Request)?;
        let done = self.engine.unpublish(request).await.map_err(NodeUnpublishVolumeError::Engine);
        match done {
            Err(e) if e.is_done() => Ok(()),
            other => other,
        }
    }

    async fn stats(
        &self,
        r: &csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, NodeGetVolumeStatsError> {
        let (id, at) =
            volume_at(&r.volume_id, &r.volume_path).map_err(NodeGetVolumeStatsError::Request)?;
        let at = at.ok_or_else(|| NodeGetVolumeStatsError::Nowhere(id.clone()))?;
        let stats = self.engine.stats(&id, &at).await.map_err(NodeGetVolumeStatsError::Engine)?;
        let inodes = stats.inodes.map(|i| usage(Unit::Inodes, i));
        let condition = self.config.health_api.condition().then(|| condition(&stats.conditions));
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: std::iter::once(usage(Unit::Bytes, stats.bytes)).chain(inodes).collect(),
            volume_condition: condition,
        })
    }

    async fn health(
        &self,
        r: &csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::VolumeHealth, NodeGetVolumeHealthError> {
        if !self.config.health_api.health() {
            return Err(NodeGetVolumeHealthError::NotEnabled);
        }
        let id = volume_id(&r.volume_id).map_err(NodeGetVolumeHealthError::Request)?;
        let conditions = self.engine.health(&id).await.map_err(NodeGetVolumeHealthError::Engine)?;
        let health_statuses = conditions.into_iter().map(health_entry).collect();
        Ok(csi::VolumeHealth { volume_id: r.volume_id.clone(), health_statuses })
    }

    /// Re-asserts the size the controller's part of an expansion has set; never grows a
    /// volume itself, so that the capacity of the PersistentVolume stays the truth.
    async fn expand(&self, r: &csi::NodeExpandVolumeRequest) -> Result<i64, NodeExpandVolumeError> {
        let (id, at) =
            volume_at(&r.volume_id, &r.volume_path).map_err(NodeExpandVolumeError::Request)?;
        let range =
            capacity_range(r.capacity_range.as_ref()).map_err(NodeExpandVolumeError::Range)?;
        let at = at.ok_or_else(|| NodeExpandVolumeError::Nowhere(id.clone()))?;
        self.engine.stats(&id, &at).await.map_err(NodeExpandVolumeError::Lookup)?;
        // "At least one byte" holds for every volume: the engine changes nothing but sets
        // the limits of the record again and answers the exact capacity.
        let to = CapacityRange { required: Some(Bytes(1)), limit: range.limit };
        let expanded = self.engine.expand(&id, to).await.map_err(NodeExpandVolumeError::Engine)?;
        let Bytes(capacity) = expanded.capacity;
        match range.required {
            Some(Bytes(required)) if required > capacity => {
                Err(NodeExpandVolumeError::NotExpanded { id, capacity, required })
            }
            _ => Ok(saturating(capacity)),
        }
    }
}

#[tonic::async_trait]
impl<E: Engine> Node for NodeService<E> {
    async fn node_publish_volume(
        &self,
        r: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        self.publish(r.get_ref()).await.map_err(status)?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        r: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        self.unpublish(r.get_ref()).await.map_err(status)?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        r: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        self.stats(r.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn node_get_volume_health(
        &self,
        r: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        let volume_health = Some(self.health(r.get_ref()).await.map_err(status)?);
        Ok(Response::new(csi::NodeGetVolumeHealthResponse { volume_health }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        if !self.config.health_api.health() {
            return Err(not_served("NodeGetStorageHealth"));
        }
        let backend_health = storage_health(self.engine.phase()).into_iter().collect();
        Ok(Response::new(csi::NodeGetStorageHealthResponse { backend_health }))
    }

    async fn node_expand_volume(
        &self,
        r: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let capacity_bytes = self.expand(r.get_ref()).await.map_err(status)?;
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use rpc::Type as Can;
        let mut can = vec![Can::ExpandVolume, Can::GetVolumeStats, Can::SingleNodeMultiWriter];
        if self.config.health_api.condition() {
            can.push(Can::VolumeCondition);
        }
        if self.config.health_api.health() {
            can.extend([Can::GetVolumeHealth, Can::GetStorageHealth]);
        }
        let capability = |t: Can| csi::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: t.into() })),
        };
        let capabilities = can.into_iter().map(capability).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let c = &self.config;
        let segments = [(c.topology_key.clone(), c.topology_value.clone())].into();
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: c.node_id.clone(),
            max_volumes_per_node: c.max_volumes_per_node.into(),
            accessible_topology: Some(csi::Topology { segments }),
        }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        Err(not_served("NodeStageVolume"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        Err(not_served("NodeUnstageVolume"))
    }
}

fn usage(unit: Unit, u: StatsUsage) -> csi::VolumeUsage {
    csi::VolumeUsage {
        available: saturating(u.available),
        total: saturating(u.total),
        used: saturating(u.used),
        unit: unit.into(),
    }
}

fn storage_health(
    phase: EnginePhase,
) -> Option<csi::node_get_storage_health_response::StorageBackendHealth> {
    use csi::StorageHealthErrorType as Severity;
    let (status, reason, message) = match phase {
        EnginePhase::Ready => return None,
        EnginePhase::Stopped => {
            (Severity::StorageUnreachable, "Stopped", "the volume engine does not run".to_owned())
        }
        EnginePhase::Recovering => {
            (Severity::StorageUnreachable, "Recovering", "the volume engine recovers".to_owned())
        }
        EnginePhase::Degraded(why) => (Severity::StorageDegraded, "Degraded", why),
    };
    Some(csi::node_get_storage_health_response::StorageBackendHealth {
        status: status.into(),
        reason: reason.to_owned(),
        message,
        volume_capability: None,
    })
}
