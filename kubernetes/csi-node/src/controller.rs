//! CSI Controller: volumes and snapshots of this node for its own sidecars (rules 12.2 to 12.5).
//!
//! Each call is three steps: request to typed value, one or two calls of the engine, answer.
//!
//! Invariants: an id outside the grammar never reaches the engine: to a deletion it is
//! something that is gone, to a look-up something unknown. A list is read in pages by id, so
//! its cost is that of the page, and a deletion between two pages loses nothing.

use std::sync::Arc;

use csi_proto::csi;
use csi_proto::csi::controller_server::Controller;
use csi_proto::csi::controller_service_capability::{Rpc, Type, rpc};
use tonic::{Request, Response, Status};
use volumes::{SnapshotId, Stored, StoredState, Trouble, VolumeId};

use crate::config::CsiConfig;
use crate::controller_error::{
    CreateSnapshotError, CreateVolumeError, DeleteObjectError, ExpandVolumeError, GetHealthError,
    ListError, LookupError,
};
use crate::create::{
    self, Page, Place, create_snapshot, create_volume, expand_range, page, params, token,
};
use crate::engine::Engine;
use crate::error::{not_served, status};
use crate::messages::{
    condition, content_source, health_entry, saturating, snapshot_message, volume_message,
};
use crate::publish::RequestError;

/// Entries read at once while looking for unhealthy volumes.
const SCAN: usize = 256;

/// Serves Controller.
pub(crate) struct ControllerService<E> {
    pub(crate) config: Arc<CsiConfig>,
    pub(crate) engine: Arc<E>,
}

/// The id of a look-up: missing is a bad request, outside the grammar is `None`.
fn lookup_id(text: &str) -> Result<Option<VolumeId>, RequestError> {
    match text {
        "" => Err(RequestError::Missing("volume_id")),
        text => Ok(VolumeId::parse(text).ok()),
    }
}

/// Cuts a list that was read one entry too far, and makes the token of what follows.
fn cut<T>(entries: &mut Vec<T>, max: Option<usize>, id: impl Fn(&T) -> String) -> String {
    match max {
        Some(max) if entries.len() > max => {
            entries.truncate(max);
            entries.last().map(|last| token(&id(last))).unwrap_or_default()
        }
        _ => String::new(),
    }
}

fn one_more(max: Option<usize>) -> usize {
    max.map_or(usize::MAX, |n| n.saturating_add(1))
}

fn shown_id(s: &Stored) -> String {
    s.id.as_ref().map(ToString::to_string).unwrap_or_default()
}

impl<E: Engine> ControllerService<E> {
    fn place(&self) -> Place<'_> {
        Place { key: &self.config.topology_key, value: &self.config.topology_value }
    }

    fn volume(&self, s: &Stored) -> csi::Volume {
        volume_message(s, self.place().topology())
    }

    fn told_condition(&self, s: &Stored) -> Option<csi::VolumeCondition> {
        self.config.health_api.condition().then(|| condition(&s.conditions))
    }

    async fn create(&self, r: &csi::CreateVolumeRequest) -> Result<csi::Volume, CreateVolumeError> {
        let request = create_volume(r, self.place()).map_err(CreateVolumeError::Request)?;
        let source = request.source.clone();
        let made = self.engine.create(request).await.map_err(CreateVolumeError::Engine)?;
        Ok(csi::Volume {
            capacity_bytes: saturating(made.capacity.0),
            volume_id: made.id.to_string(),
            volume_context: Default::default(),
            content_source: source.as_ref().map(content_source),
            accessible_topology: vec![self.place().topology()],
        })
    }

    async fn delete(&self, r: &csi::DeleteVolumeRequest) -> Result<(), DeleteObjectError> {
        match lookup_id(&r.volume_id).map_err(DeleteObjectError::Request)? {
            Some(id) => self.engine.delete(&id).await.map_err(DeleteObjectError::Engine),
            None => Ok(()),
        }
    }

    async fn find(&self, text: &str) -> Result<Stored, LookupError> {
        let unknown = || LookupError::NotFound(text.chars().take(128).collect());
        let id = lookup_id(text).map_err(LookupError::Request)?.ok_or_else(unknown)?;
        let found = self.engine.find(&id).await.map_err(LookupError::Engine)?;
        found.filter(|s| s.state == StoredState::Ready).ok_or_else(unknown)
    }

    async fn validate(
        &self,
        r: &csi::ValidateVolumeCapabilitiesRequest,
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse, LookupError> {
        if r.volume_capabilities.is_empty() && !r.volume_id.is_empty() {
            return Err(LookupError::Request(RequestError::Missing("volume_capabilities")));
        }
        let volume = self.find(&r.volume_id).await?;
        let refusal = match (create::kind(&r.volume_capabilities), params(&r.parameters)) {
            (Err(create::MakeError::Request(e)), _) => return Err(LookupError::Request(e)),
            (Err(e), _) | (_, Err(e)) => Some(volumes::chain(&e)),
            (Ok(kind), Ok(_)) if kind != volume.kind => Some(format!(
                "volume {} is a {} volume",
                r.volume_id,
                volumes::kind_name(volume.kind)
            )),
            (Ok(_), Ok(_)) if !r.mutable_parameters.is_empty() => {
                Some(create::MakeError::Mutable.to_string())
            }
            (Ok(_), Ok(_)) => None,
        };
        use csi::validate_volume_capabilities_response::Confirmed;
        let confirmed = refusal.is_none().then(|| Confirmed {
            volume_context: r.volume_context.clone(),
            volume_capabilities: r.volume_capabilities.clone(),
            parameters: r.parameters.clone(),
            mutable_parameters: Default::default(),
        });
        let message = refusal.unwrap_or_default();
        Ok(csi::ValidateVolumeCapabilitiesResponse { confirmed, message })
    }

    /// Volumes after `after` that are ready, in order of their ids, at most `max`. What is on
    /// its way in or out is not told.
    async fn ready(&self, after: Option<String>, max: usize) -> Result<Vec<Stored>, Trouble> {
        // A token is checked; one that names nothing any more still has its place.
        let after = after.and_then(|a| VolumeId::parse(&a).ok());
        self.engine.page(after, max).await
    }

    async fn list(
        &self,
        r: &csi::ListVolumesRequest,
    ) -> Result<csi::ListVolumesResponse, ListError> {
        let Page { after, max } =
            page(r.max_entries, &r.starting_token).map_err(ListError::Page)?;
        let mut found = self.ready(after, one_more(max)).await.map_err(ListError::Engine)?;
        let next_token = cut(&mut found, max, shown_id);
        use csi::list_volumes_response::{Entry, VolumeStatus};
        let entry = |s: &Stored| Entry {
            volume: Some(self.volume(s)),
            status: self.told_condition(s).map(|c| VolumeStatus {
                published_node_ids: Vec::new(),
                volume_condition: Some(c),
            }),
        };
        let entries = found.iter().map(entry).collect();
        Ok(csi::ListVolumesResponse { entries, next_token })
    }

    async fn list_health(
        &self,
        r: &csi::ControllerListVolumeHealthRequest,
    ) -> Result<csi::ControllerListVolumeHealthResponse, ListError> {
        if !self.config.health_api.health() {
            return Err(ListError::NotEnabled);
        }
        let Page { mut after, max } =
            page(r.max_entries, &r.starting_token).map_err(ListError::Page)?;
        let mut sick: Vec<Stored> = Vec::new();
        loop {
            let found = self.ready(after, SCAN).await.map_err(ListError::Engine)?;
            let end = found.len() < SCAN;
            after = found.last().map(shown_id);
            sick.extend(found.into_iter().filter(|s| !s.conditions.is_empty()));
            if end || max.is_some_and(|m| sick.len() > m) {
                break;
            }
        }
        let next_token = cut(&mut sick, max, shown_id);
        let entries = sick.into_iter().map(volume_health).collect();
        Ok(csi::ControllerListVolumeHealthResponse { entries, next_token })
    }

    async fn get_health(&self, text: &str) -> Result<csi::VolumeHealth, GetHealthError> {
        if !self.config.health_api.health() {
            return Err(GetHealthError::NotEnabled);
        }
        let mut volume = self.find(text).await.map_err(GetHealthError::Lookup)?;
        if let Some(id) = &volume.id {
            volume.conditions = self.engine.health(id).await.map_err(GetHealthError::Engine)?;
        }
        Ok(volume_health(volume))
    }

    /// What can still be created here; nothing is a number, never an error (rule 12.5).
    fn capacity(&self, r: &csi::GetCapacityRequest) -> csi::GetCapacityResponse {
        let elsewhere = r.accessible_topology.as_ref().is_some_and(|t| !self.place().is_in(t));
        let asked = &r.volume_capabilities;
        let impossible = !asked.is_empty() && create::kind(asked).is_err();
        let bytes = if elsewhere || impossible || params(&r.parameters).is_err() {
            0
        } else {
            saturating(self.engine.capacity().max_volume.0)
        };
        csi::GetCapacityResponse {
            available_capacity: bytes,
            maximum_volume_size: Some(bytes),
            minimum_volume_size: None,
        }
    }

    async fn expand(
        &self,
        r: &csi::ControllerExpandVolumeRequest,
    ) -> Result<csi::ControllerExpandVolumeResponse, ExpandVolumeError> {
        let bad = |e| ExpandVolumeError::Request(create::MakeError::Request(e));
        let id = lookup_id(&r.volume_id).map_err(bad)?;
        let to = expand_range(r.capacity_range.as_ref()).map_err(ExpandVolumeError::Request)?;
        let unknown = || ExpandVolumeError::NotFound(r.volume_id.chars().take(128).collect());
        let id = id.ok_or_else(unknown)?;
        let done = self.engine.expand(&id, to).await.map_err(ExpandVolumeError::Engine)?;
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: saturating(done.capacity.0),
            node_expansion_required: done.node_expansion_required,
        })
    }

    async fn snapshot(
        &self,
        r: &csi::CreateSnapshotRequest,
    ) -> Result<csi::Snapshot, CreateSnapshotError> {
        let unknown = || {
            CreateSnapshotError::NotFound(r.source_volume_id.chars().take(128).collect::<String>())
        };
        let request = create_snapshot(r).map_err(CreateSnapshotError::Request)?;
        let request = request.ok_or_else(unknown)?;
        let made = self.engine.snapshot(request).await.map_err(CreateSnapshotError::Engine)?;
        Ok(snapshot_message(&made))
    }

    async fn delete_snapshot_of(&self, text: &str) -> Result<(), DeleteObjectError> {
        if text.is_empty() {
            return Err(DeleteObjectError::Request(RequestError::Missing("snapshot_id")));
        }
        match SnapshotId::parse(text) {
            Ok(id) => self.engine.delete_snapshot(&id).await.map_err(DeleteObjectError::Engine),
            Err(_) => Ok(()),
        }
    }

    async fn snapshots(
        &self,
        r: &csi::ListSnapshotsRequest,
    ) -> Result<csi::ListSnapshotsResponse, ListError> {
        let Page { after, max } =
            page(r.max_entries, &r.starting_token).map_err(ListError::Page)?;
        let nothing = csi::ListSnapshotsResponse::default();
        let source = match r.source_volume_id.as_str() {
            "" => None,
            text => match VolumeId::parse(text) {
                Ok(id) => Some(id),
                Err(_) => return Ok(nothing),
            },
        };
        let mut found = match r.snapshot_id.as_str() {
            "" => {
                let after = after.and_then(|a| SnapshotId::parse(&a).ok());
                let all = self.engine.snapshots(after, source, one_more(max)).await;
                all.map_err(ListError::Engine)?
            }
            text => {
                let Ok(id) = SnapshotId::parse(text) else { return Ok(nothing) };
                let one = self.engine.find_snapshot(&id).await.map_err(ListError::Engine)?;
                let fits = |s: &volumes::Snapshot| source.as_ref().is_none_or(|v| s.source == *v);
                one.into_iter().filter(fits).collect()
            }
        };
        let next_token = cut(&mut found, max, |s| s.id.to_string());
        use csi::list_snapshots_response::Entry;
        let entry = |s| Entry { snapshot: Some(snapshot_message(s)) };
        Ok(csi::ListSnapshotsResponse { entries: found.iter().map(entry).collect(), next_token })
    }

    fn capabilities(&self) -> Vec<rpc::Type> {
        use rpc::Type as Can;
        let mut can = vec![Can::CreateDeleteVolume, Can::ListVolumes, Can::GetCapacity];
        if self.engine.can_snapshot() {
            can.extend([Can::CreateDeleteSnapshot, Can::ListSnapshots, Can::CloneVolume]);
        }
        can.extend([Can::ExpandVolume, Can::GetVolume, Can::SingleNodeMultiWriter]);
        if self.config.health_api.condition() {
            can.push(Can::VolumeCondition);
        }
        if self.config.health_api.health() {
            can.extend([Can::GetVolumeHealth, Can::ListVolumeHealth]);
        }
        can
    }
}

fn volume_health(s: Stored) -> csi::VolumeHealth {
    csi::VolumeHealth {
        volume_id: shown_id(&s),
        health_statuses: s.conditions.into_iter().map(health_entry).collect(),
    }
}

#[tonic::async_trait]
impl<E: Engine> Controller for ControllerService<E> {
    async fn create_volume(
        &self,
        r: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let volume = Some(self.create(r.get_ref()).await.map_err(status)?);
        Ok(Response::new(csi::CreateVolumeResponse { volume }))
    }

    async fn delete_volume(
        &self,
        r: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        self.delete(r.get_ref()).await.map_err(status)?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        Err(not_served("ControllerPublishVolume"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        Err(not_served("ControllerUnpublishVolume"))
    }

    async fn validate_volume_capabilities(
        &self,
        r: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        self.validate(r.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn list_volumes(
        &self,
        r: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        self.list(r.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn controller_list_volume_health(
        &self,
        r: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerListVolumeHealthResponse>, Status> {
        self.list_health(r.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn controller_get_volume_health(
        &self,
        r: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeHealthResponse>, Status> {
        let health = self.get_health(&r.get_ref().volume_id).await.map_err(status)?;
        let volume_health = Some(health);
        Ok(Response::new(csi::ControllerGetVolumeHealthResponse { volume_health }))
    }

    async fn get_capacity(
        &self,
        r: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        Ok(Response::new(self.capacity(r.get_ref())))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |t: rpc::Type| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: t.into() })),
        };
        let capabilities = self.capabilities().into_iter().map(capability).collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        r: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        let snapshot = Some(self.snapshot(r.get_ref()).await.map_err(status)?);
        Ok(Response::new(csi::CreateSnapshotResponse { snapshot }))
    }

    async fn delete_snapshot(
        &self,
        r: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        self.delete_snapshot_of(&r.get_ref().snapshot_id).await.map_err(status)?;
        Ok(Response::new(csi::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        r: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        self.snapshots(r.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn get_snapshot(
        &self,
        _: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        Err(not_served("GetSnapshot"))
    }

    async fn controller_expand_volume(
        &self,
        r: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        self.expand(r.get_ref()).await.map(Response::new).map_err(status)
    }

    async fn controller_get_volume(
        &self,
        r: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        let found = self.find(&r.get_ref().volume_id).await.map_err(status)?;
        use csi::controller_get_volume_response::VolumeStatus;
        let told = VolumeStatus {
            published_node_ids: Vec::new(),
            volume_condition: self.told_condition(&found),
        };
        let volume = Some(self.volume(&found));
        Ok(Response::new(csi::ControllerGetVolumeResponse { volume, status: Some(told) }))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        Err(not_served("ControllerModifyVolume"))
    }
}
