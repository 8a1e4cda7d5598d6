//! The kubelet's plugin registration: it finds our socket, asks who we are, and tells what
//! became of it (rule 12.7).

use std::path::Path;
use std::time::Duration;

use csi_proto::csi;
use csi_proto::csi::identity_client::IdentityClient;
use csi_proto::registration as api;
use csi_proto::registration::registration_server::Registration;
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use crate::config::CsiConfig;

/// Versions of CSI told to the kubelet; it wants one it knows (1.x), not the newest.
const CSI_VERSIONS: [&str; 1] = ["1.0.0"];
/// How long one probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the kubelet has said last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Verdict {
    /// Nothing yet.
    #[default]
    Waiting,
    /// The driver is registered.
    Registered,
    /// It is not, for this reason.
    Refused(String),
}

/// The kubelet did not take the driver.
#[derive(Debug, thiserror::Error)]
#[error("the kubelet refused driver {driver}: {reason}")]
pub(crate) struct Refused {
    pub(crate) driver: String,
    pub(crate) reason: String,
}

/// Serves Registration.
pub(crate) struct RegistrationService {
    info: api::PluginInfo,
    verdict: watch::Sender<Verdict>,
}

impl RegistrationService {
    /// The service of one incarnation, and where its verdict appears.
    pub(crate) fn new(config: &CsiConfig) -> (RegistrationService, watch::Receiver<Verdict>) {
        let info = api::PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: config.driver_name.clone(),
            endpoint: config.socket.to_string_lossy().into_owned(),
            supported_versions: CSI_VERSIONS.map(str::to_owned).to_vec(),
        };
        let (verdict, seen) = watch::channel(Verdict::default());
        (RegistrationService { info, verdict }, seen)
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(
        &self,
        _: Request<api::InfoRequest>,
    ) -> Result<Response<api::PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        r: Request<api::RegistrationStatus>,
    ) -> Result<Response<api::RegistrationStatusResponse>, Status> {
        let api::RegistrationStatus { plugin_registered, error } = r.into_inner();
        self.verdict.send_replace(if plugin_registered {
            Verdict::Registered
        } else {
            Verdict::Refused(error)
        });
        Ok(Response::new(api::RegistrationStatusResponse {}))
    }
}

/// Asks the driver's own socket whether it is ready; the text says why not. The question
/// takes the kubelet's way, so a yes proves that the kubelet's calls will arrive.
pub(crate) async fn probe(socket: &Path) -> Result<(), String> {
    let ask = async {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))
            .map_err(|e| volumes::chain(&e))?;
        let channel = endpoint.connect().await.map_err(|e| volumes::chain(&e))?;
        let answer = IdentityClient::new(channel).probe(csi::ProbeRequest {}).await;
        match answer.map(|a| a.into_inner().ready) {
            // CSI: an absent value means ready.
            Ok(None | Some(true)) => Ok(()),
            Ok(Some(false)) => Err("the driver is not ready yet".to_owned()),
            Err(status) => Err(status.message().to_owned()),
        }
    };
    match tokio::time::timeout(PROBE_TIMEOUT, ask).await {
        Ok(result) => result,
        Err(_) => Err(format!("the driver did not answer within {} s", PROBE_TIMEOUT.as_secs())),
    }
}
