//! The service table of the node: which Runnables there are, in which order, stopped in which stage.
//!
//! Owner: the tree. Invariants: names are constants and mirror the source tree; what travels between
//! services is made here, their common ancestor; root is done when everything is started, and that means
//! "boot finished". Must not know: how a service works.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dashboard::{NodeView, VolumesView};
use localstorage::Data;
use logtree::{Level, LogTree, Name};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use supervisor::Supervisor;
use supervisor::prelude::*;
use tokio::sync::watch;
use volumes::{EngineConfig, Seams, VolumeDirs, VolumeEngine};

use crate::console::Consoles;
use crate::data::BootLedger;
use crate::host;
use crate::params::{Parameters, RunMode, TestRoot};
use crate::phases::Phases;
use crate::process::ProcessSpawner;
use crate::services;
use crate::shutdown::EndRequests;

/// What bring-up hands to the tree.
#[derive(Debug)]
pub struct Machine {
    /// Parameters of this boot.
    pub parameters: Arc<Parameters>,
    /// The log.
    pub logs: LogTree,
    /// The console writers.
    pub consoles: Consoles,
    /// Starts children.
    pub spawner: ProcessSpawner,
    /// Ends the node.
    pub ends: EndRequests,
    /// How far the boot has come.
    pub phases: Phases,
    /// Identity of this boot.
    pub boot_id: String,
    /// `/run`.
    pub run: localstorage::Run,
    /// The data disk.
    pub data: Arc<Data>,
    /// Its device.
    pub data_device: PathBuf,
    /// Records of boots.
    pub ledger: Option<Arc<Mutex<BootLedger>>>,
    /// The tree's own handle, there soon after the start.
    pub supervisor: watch::Receiver<Option<Supervisor>>,
}

/// What services share beside the machine; made by root.
#[derive(Clone)]
pub struct Shared {
    /// The machine.
    pub machine: Arc<Machine>,
    /// The volume engine.
    pub engine: VolumeEngine,
    /// What the cluster tells.
    pub cluster: kubernetes::View,
    /// Volumes as the dashboard shows them.
    pub volumes_view: watch::Sender<Arc<VolumesView>>,
    /// The node as the dashboard shows it.
    pub node_view: watch::Sender<Arc<NodeView>>,
    /// Secret of the dashboard.
    pub token: Arc<str>,
    /// Kernel messages that were overwritten before they were read.
    pub kmsg_lost: Arc<AtomicU64>,
    /// Set by the network service when the card has its address.
    pub network_up: watch::Sender<bool>,
    /// Raised to make the provisioner panic; test images only.
    pub provisioner_panic: watch::Sender<u64>,
}

impl Shared {
    /// The tree's own handle, as soon as there is one.
    pub async fn supervisor(&self) -> Option<Supervisor> {
        let mut slot = self.machine.supervisor.clone();
        let there = slot.wait_for(Option::is_some).await.ok()?;
        there.clone()
    }

    /// Where a browser on the node's network finds the dashboard, with the token that lets it in.
    pub fn dashboard_url(&self) -> String {
        format!("{}?token={}", self.dashboard_address(), self.token)
    }

    /// The same without the token.
    pub fn dashboard_address(&self) -> String {
        let listen = self.machine.parameters.dashboard_listen;
        let ip = if listen.ip().is_unspecified() {
            self.machine.parameters.network.address.into()
        } else {
            listen.ip()
        };
        format!("http://{}/", SocketAddr::new(ip, listen.port()))
    }
}

/// The root of the tree.
pub fn service(machine: Machine) -> Service {
    let machine = Arc::new(machine);
    Service::new(Name::from_static("root"), move |ctx| run(ctx, machine.clone()))
}

async fn run(ctx: Context, machine: Arc<Machine>) -> Outcome {
    match machine.parameters.test_root {
        TestRoot::None => {}
        TestRoot::Success => return Ok(ctx.healthy().done()),
        TestRoot::Error => return Err(Stop::failed("the root of this test image fails")),
        TestRoot::Panic => std::panic::panic_any(7_u32),
    }
    let (engine, engine_runnable) = VolumeEngine::new(
        VolumeDirs {
            volumes: machine.data.volumes.clone(),
            state: machine.data.volume_state.clone(),
        },
        EngineConfig::default(),
        seams(),
    );
    let (publisher, cluster) = kubernetes::channel();
    let shared = Shared {
        token: token(&machine.parameters)?,
        machine: machine.clone(),
        engine: engine.clone(),
        cluster,
        volumes_view: watch::channel(Arc::default()).0,
        node_view: watch::channel(Arc::default()).0,
        kmsg_lost: Arc::default(),
        network_up: watch::channel(false).0,
        provisioner_panic: watch::channel(0).0,
    };
    start_machine_services(&ctx, &shared, engine_runnable).await?;
    let metrics = Arc::new(Mutex::new(Registry::default()));
    engine.metrics().register(&mut metrics.lock());
    let cluster = (machine.parameters.run == RunMode::Cluster)
        .then(|| kubernetes::service(inputs(&shared, publisher, metrics.clone())));
    // Everything has registered by now: the registry only needs to be read from here on.
    let registry = std::mem::take(&mut *metrics.lock());
    let supervisor = ctx.stop().race(shared.supervisor()).await?;
    let supervisor = supervisor.ok_or_else(|| Stop::failed("the tree has no handle"))?;
    let (sources, access) = services::dashboard::parts(&shared, &supervisor, registry)?;
    let asked = dashboard::Local::new(sources.clone(), access.clone(), ctx.log().clone());
    add(&ctx, services::dashboard::service(&shared, sources, access), 8).await?;
    let status =
        services::status::service(status_facts(&shared), machine.phases.clone(), supervisor.view());
    add(&ctx, status, 8).await?;
    add(&ctx, services::view::service(shared.clone()), 8).await?;
    let node = host::Node { shared: shared.clone(), supervisor, dashboard: asked };
    add(&ctx, host::service(node), 8).await?;
    if cfg!(feature = "faults") && machine.parameters.run != RunMode::Cluster {
        let kubelet = machine.data.kubelet.dir.full_path();
        let name = &machine.parameters.node_name;
        let driver = kubernetes::driver_alone(name, kubelet, shared.engine.clone());
        add(&ctx, driver, 7).await?;
    }
    if let Some(mut cluster) = cluster {
        wait_for_network(&ctx, &shared).await?;
        cluster.policy.console = Level::Warning;
        added(ctx.run(cluster).await)?;
    }
    Ok(ctx.healthy().done())
}

fn status_facts(shared: &Shared) -> services::status::Facts {
    let machine = &shared.machine;
    let ledger = machine.ledger.as_ref().map(|l| l.lock());
    let previous = ledger.as_ref().and_then(|l| l.previous());
    services::status::Facts {
        node_name: machine.parameters.node_name.clone(),
        dashboard: shared.dashboard_address(),
        last_failure: previous.filter(|p| p.failed()).map(|p| p.text.clone()),
    }
}

/// The kernel, and in a test image the points at which the power may go.
#[cfg(feature = "faults")]
fn seams() -> Seams {
    Seams { faults: host::faults_points::faults(), ..Seams::kernel() }
}

#[cfg(not(feature = "faults"))]
fn seams() -> Seams {
    Seams::kernel()
}

async fn start_machine_services(
    ctx: &Context,
    shared: &Shared,
    engine: volumes::EngineRunnable,
) -> Result<(), Stop> {
    let machine = &shared.machine;
    add(ctx, services::kernel::service(machine.logs.clone(), shared.kmsg_lost.clone()), 9).await?;
    for console in machine.consoles.list() {
        add(ctx, services::console::service(console.clone()), 9).await?;
    }
    add(ctx, services::power::service(machine.ends.clone()), 8).await?;
    add(ctx, engine.service(Name::from_static("storage")), 7).await?;
    let network = machine.parameters.network;
    add(ctx, services::network::service(network, shared.network_up.clone()), 6).await
}

/// Adds a service that stops in `stage`.
async fn add(ctx: &Context, mut service: Service, stage: u8) -> Result<(), Stop> {
    service.policy.stop_stage = Some(stage);
    added(ctx.run(service).await)
}

fn added(result: Result<(), AddError>) -> Result<(), Stop> {
    match result {
        Err(AddError::Stopping(cancelled)) => Err(cancelled.into()),
        other => Ok(other?),
    }
}

/// The API server announces the node's address: it must be there first.
async fn wait_for_network(ctx: &Context, shared: &Shared) -> Result<(), Stop> {
    ctx.health().note("waits for the network");
    let mut up = shared.network_up.subscribe();
    let waited = ctx.stop().race(up.wait_for(|up| *up)).await?;
    waited.map(drop).map_err(Stop::from)
}

fn inputs(
    shared: &Shared,
    publisher: kubernetes::Publisher,
    metrics: Arc<Mutex<Registry>>,
) -> kubernetes::Inputs {
    let machine = &shared.machine;
    let data = &machine.data;
    kubernetes::Inputs {
        node: kubernetes::NodeSettings {
            name: machine.parameters.node_name.clone(),
            address: machine.parameters.network.address,
        },
        dirs: kubernetes::Directories {
            pki: data.kubernetes.pki.clone(),
            etcd: data.etcd.clone(),
            containerd: data.containerd.clone(),
            kubelet: data.kubelet.clone(),
            cni: machine.run.cni_net_d.clone(),
            volumes: data.volumes.clone(),
        },
        run: machine.run.hamlet.full_path().to_path_buf(),
        spawner: Arc::new(machine.spawner.clone()),
        engine: shared.engine.clone(),
        metrics,
        publisher,
        faults: kubernetes::Faults {
            provisioner_panic: cfg!(feature = "faults")
                .then(|| shared.provisioner_panic.subscribe()),
        },
    }
}

/// The dashboard's secret: given, or 128 random bits for this boot.
fn token(parameters: &Parameters) -> Result<Arc<str>, Stop> {
    if let Some(token) = &parameters.dashboard_token {
        return Ok(token.as_str().into());
    }
    let mut bytes = [0_u8; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got != bytes.len() {
        return Err(Stop::failed("the kernel gave too few random bytes"));
    }
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into())
}
