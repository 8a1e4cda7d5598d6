//! CSI Identity: who this is, what it can do, whether it is ready (rule 12.1).

use std::sync::Arc;

use csi_proto::csi;
use csi_proto::csi::identity_server::Identity;
use csi_proto::csi::plugin_capability::{
    Service, Type, VolumeExpansion, service, volume_expansion,
};
use tonic::{Request, Response, Status};
use volumes::EnginePhase;

use crate::config::CsiConfig;
use crate::engine::Engine;
use crate::error::{ProbeError, status};

/// Serves Identity.
pub(crate) struct IdentityService<E> {
    pub(crate) config: Arc<CsiConfig>,
    pub(crate) engine: Arc<E>,
}

/// Whether the engine works; `false` while it may yet become so by itself.
fn readiness(phase: EnginePhase) -> Result<bool, ProbeError> {
    match phase {
        EnginePhase::Ready => Ok(true),
        EnginePhase::Stopped | EnginePhase::Recovering => Ok(false),
        EnginePhase::Degraded(why) => Err(ProbeError::Unhealthy(why)),
    }
}

#[tonic::async_trait]
impl<E: Engine> Identity for IdentityService<E> {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: self.config.driver_name.clone(),
            vendor_version: self.config.version.clone(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let controller = service::Type::ControllerService.into();
        let topology = service::Type::VolumeAccessibilityConstraints.into();
        let online = volume_expansion::Type::Online.into();
        let capabilities = [
            Type::Service(Service { r#type: controller }),
            Type::Service(Service { r#type: topology }),
            Type::VolumeExpansion(VolumeExpansion { r#type: online }),
        ];
        let capabilities = capabilities.map(|t| csi::PluginCapability { r#type: Some(t) }).to_vec();
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        let ready = readiness(self.engine.phase()).map_err(status)?;
        Ok(Response::new(csi::ProbeResponse { ready: Some(ready) }))
    }
}
