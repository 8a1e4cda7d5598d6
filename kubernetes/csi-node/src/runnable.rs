//! The two Runnables of the driver. Each opens its socket anew in every incarnation and is
//! healthy once it listens; both remove their sockets when they end.
//!
//! ```text
//! csi-node:          bind ── healthy ── serve ──▶ asked to stop: drain, Cancelled
//! csi-registration:  probe csi.sock until ready ── bind ── healthy ── serve ──▶ Cancelled
//!                                                                └─▶ kubelet says no: Failed
//! ```
//! A refused registration fails on purpose: the restart makes a new socket, which is what
//! kubelets before 1.36 need to try again.

use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi::controller_server::ControllerServer;
use csi_proto::csi::identity_server::IdentityServer;
use csi_proto::csi::node_server::NodeServer;
use csi_proto::registration::registration_server::RegistrationServer;
use supervisor::{Context, Handle, Health, Name, Outcome, Policy, Service, Stop, StopToken};
use tokio::sync::watch;
use tonic::service::Routes;
use volumes::VolumeEngine;

use crate::config::CsiConfig;
use crate::controller::ControllerService;
use crate::engine::Engine;
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::observe::Observed;
use crate::registration::{Refused, RegistrationService, Verdict, probe};
use crate::server::serve;
use crate::socket::BoundSocket;

/// Pods are stopped in stage 2 and unpublish through the driver (spec of the shutdown).
const CSI_STOP_STAGE: u8 = 3;
/// With the kubelet, so that it does not see its plugin vanish.
const REGISTRATION_STOP_STAGE: u8 = 1;
/// First and longest pause between two probes of the driver.
const PROBE_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The driver: Identity, Controller and Node on [`CsiConfig::socket`]. Healthy once it listens; whether
/// the engine behind it is ready is what `Probe` tells.
pub fn csi_service(config: CsiConfig, engine: VolumeEngine) -> Service {
    csi_service_on(config, Arc::new(engine))
}

/// [`csi_service`] on any engine.
pub(crate) fn csi_service_on<E: Engine>(config: CsiConfig, engine: Arc<E>) -> Service {
    let config = Arc::new(config);
    let run = move |ctx| run_csi(ctx, config.clone(), engine.clone());
    let policy = Policy { stop_stage: Some(CSI_STOP_STAGE), ..Policy::default() };
    Service::new(Name::from_static("csi-node"), run).policy(policy)
}

/// Registration of the driver with the kubelet on [`CsiConfig::registration_socket`].
/// Healthy once the kubelet can find it; its note tells what the kubelet said.
pub fn registration_service(config: CsiConfig) -> Service {
    let config = Arc::new(config);
    let run = move |ctx| run_registration(ctx, config.clone());
    let policy = Policy { stop_stage: Some(REGISTRATION_STOP_STAGE), ..Policy::default() };
    Service::new(Name::from_static("csi-registration"), run).policy(policy)
}

async fn run_csi<E: Engine>(ctx: Context, config: Arc<CsiConfig>, engine: Arc<E>) -> Outcome {
    let (stop, log) = (ctx.stop(), ctx.log().clone());
    let app = csi_app(&config, engine, log.clone());
    let socket = stop.race(BoundSocket::bind(&config.socket)).await??;
    slog::info!(log, "serving CSI"; "driver" => &config.driver_name,
        "socket" => %config.socket.display());
    let running = ctx.healthy();
    let cancelled = serve(socket, app, config.peer_uid, running.stop().stopped()).await?;
    Err(cancelled.into())
}

/// The services of the driver's socket.
pub(crate) fn csi_app<E: Engine>(
    config: &Arc<CsiConfig>,
    engine: Arc<E>,
    log: slog::Logger,
) -> Observed {
    let identity = IdentityService { config: config.clone(), engine: engine.clone() };
    let controller = ControllerService { config: config.clone(), engine: engine.clone() };
    let node = NodeService { config: config.clone(), engine };
    let routes = Routes::new(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        .add_service(NodeServer::new(node));
    Observed { routes: routes.prepare(), log, metrics: Some(config.metrics.clone()) }
}

async fn run_registration(ctx: Context, config: Arc<CsiConfig>) -> Outcome {
    let (stop, log, health) = (ctx.stop(), ctx.log().clone(), ctx.health());
    driver_ready(&config, &stop, &health).await?;
    let (service, verdict) = RegistrationService::new(&config);
    let routes = Routes::new(RegistrationServer::new(service)).prepare();
    let app = Observed { routes, log: log.clone(), metrics: None };
    let socket = stop.race(BoundSocket::bind(&config.registration_socket)).await??;
    health.note("waiting for the kubelet");
    let running = ctx.healthy();
    let until = async {
        let stop = running.stop();
        tokio::select! {
            cancelled = stop.stopped() => Stop::Cancelled(cancelled),
            refused = refusal(verdict, &config, &health, &log) => Stop::from(refused),
        }
    };
    Err(serve(socket, app, config.peer_uid, until).await?)
}

/// Waits until the driver answers on its socket that it is ready.
async fn driver_ready(config: &CsiConfig, stop: &StopToken, health: &Health) -> Result<(), Stop> {
    let (mut pause, longest) = PROBE_PAUSE;
    while let Err(why) = stop.race(probe(&config.socket)).await? {
        health.note(&format!("waiting for the driver: {why}"));
        stop.race(tokio::time::sleep(pause)).await?;
        pause = (pause * 2).min(longest);
    }
    Ok(())
}

/// Follows what the kubelet says until it says no.
async fn refusal(
    mut verdict: watch::Receiver<Verdict>,
    config: &CsiConfig,
    health: &Health,
    log: &slog::Logger,
) -> Refused {
    loop {
        let said = verdict.borrow_and_update().clone();
        match said {
            Verdict::Waiting => {}
            Verdict::Registered => {
                slog::info!(log, "registered with the kubelet"; "driver" => &config.driver_name);
                health.note("registered with the kubelet");
            }
            Verdict::Refused(reason) => {
                return Refused { driver: config.driver_name.clone(), reason };
            }
        }
        if verdict.changed().await.is_err() {
            // The service is gone with the server, and this future with it.
            std::future::pending::<()>().await;
        }
    }
}
