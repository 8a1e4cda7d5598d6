//! `cargo xtask up`: from nothing to a running node with a demonstration on it.
//!
//! ```text
//! packages → components → hamlet → image → boot → demonstration → stays up
//!                                              └── Ctrl-C, --once ──▶ orderly shutdown
//! ```

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::{
    API_PORT, Cache, DASHBOARD_PORT, Ending, HostChannel, ImageDir, Kubectl, RunDir, Vm, VmConfig,
    check_port, create_raw_disk, probe, write_kubeconfig,
};
use serde_json::json;

use crate::compile::Flavour;
use crate::demo::{self, Outcome};
use crate::host::{self, For};
use crate::interrupt::Interrupt;
use crate::node_image;
use crate::ui::Ui;

/// Size of the data disk, sparse.
const DISK_BYTES: u64 = 16 << 30;

/// Each phase of the boot takes seconds; a busy machine under emulation, minutes.
const PHASE_DEADLINE: Duration = Duration::from_secs(300);

/// The node's own budget for an orderly shutdown is 120 s.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(130);

/// Phases the node announces, and what they mean to a person.
const PHASES: &[(&str, &str)] = &[
    ("mounted", "kernel and PID 1"),
    ("tree", "supervisor tree"),
    ("storage", "storage"),
    ("controlplane", "control plane"),
    ("node-ready", "node ready"),
];

/// Options of `up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// End after the demonstration.
    #[arg(long)]
    once: bool,
    /// Keep the data disk in this folder, for the next time.
    #[arg(long, value_name = "DIR")]
    keep_data: Option<PathBuf>,
    /// Memory of the node, in MiB.
    #[arg(long, default_value_t = 3072, value_parser = clap::value_parser!(u64).range(1536..=1_048_576))]
    memory: u64,
    /// Port of the dashboard on 127.0.0.1 (default: any free one).
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Port of the API server on 127.0.0.1 (default: any free one).
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    api_port: Option<u16>,
    /// Optimised build, as for a published image.
    #[arg(long)]
    release: bool,
}

/// Brings a node up and stays until Ctrl-C.
///
/// # Errors
/// Any step fails; says which, and the next step.
pub(crate) fn run(ui: &Ui, arguments: &Arguments) -> Result<()> {
    host::ensure(ui, For::Build)?;
    check(arguments)?;
    let flavour = Flavour { faults: false, release: arguments.release };
    let image = ImageDir::open(node_image::build(ui, flavour)?.folder)?;
    let mut vm = start(ui, arguments, &image)?;
    let (end, ended) = mpsc::channel();
    let interrupt = Interrupt::listen(vm.serial().clone(), end.clone())?;
    let came_up = bring_up(ui, &vm, &image);
    let result = match came_up {
        Ok(()) if arguments.once => Ok(()),
        Ok(()) => {
            watch(&vm, end);
            ui.say("press Ctrl-C to shut the node down");
            let _ = ended.recv();
            Ok(())
        }
        Err(_) if interrupt.asked() => Err(anyhow::anyhow!("interrupted")),
        Err(error) => Err(error),
    };
    if result.is_err() {
        // What went wrong is in its logs.
        vm.keep_run_dir();
    }
    let down = shut_down(ui, vm);
    result.and(down)
}

fn check(arguments: &Arguments) -> Result<()> {
    for port in [arguments.port, arguments.api_port].into_iter().flatten() {
        check_port(port)?;
    }
    if arguments.port.is_some() && arguments.port == arguments.api_port {
        bail!("--port and --api-port are the same; choose two ports");
    }
    if let Some(folder) = &arguments.keep_data {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    match host::available_memory_mib() {
        Some(free) if free < arguments.memory => bail!(
            "the node needs {} MiB of memory, this machine has {free} MiB free; close programs, or \
             ask for less with --memory (1536 at least)",
            arguments.memory
        ),
        _ => Ok(()),
    }
}

fn start(ui: &Ui, arguments: &Arguments, image: &ImageDir) -> Result<Vm> {
    let mut stage = ui.stage("virtual machine");
    stage.note("looking whether KVM works here");
    let accelerator = probe(&image.kernel())?;
    let run = RunDir::new()?;
    let disk = match &arguments.keep_data {
        Some(folder) => folder.join("data.img"),
        None => run.join("data.img"),
    };
    let known = disk.exists();
    create_raw_disk(&disk, DISK_BYTES)?;
    let config = VmConfig::new(image.clone(), accelerator)
        .memory(arguments.memory)
        .data_disk(&disk, Cache::Writeback)
        .forward(arguments.api_port.unwrap_or(0), API_PORT)
        .forward(arguments.port.unwrap_or(0), DASHBOARD_PORT);
    let vm = Vm::start(&config, run)?;
    let disk = if known { "known data disk" } else { "new data disk" };
    stage.done(&format!("{accelerator:?}, {} MiB, {disk}", arguments.memory));
    Ok(vm)
}

fn bring_up(ui: &Ui, vm: &Vm, image: &ImageDir) -> Result<()> {
    for (phase, meaning) in PHASES {
        let stage = ui.stage(meaning);
        let marker = format!("HAMLET phase={phase} ");
        let (at, _) = vm.serial().wait_for(&marker, PHASE_DEADLINE)?;
        stage.done(&format!("{:.1} s after power-on", at.as_secs_f64()));
    }
    let mut channel = vm.channel();
    let kubeconfig = vm.run_dir().join("kubeconfig");
    write_kubeconfig(&mut channel, vm.port(API_PORT)?, &kubeconfig)?;
    let kubectl = Kubectl::new(image.folder().join("kubectl"), kubeconfig);
    let mut stage = ui.stage("demonstration");
    stage.note("applying build/demo");
    demo::apply(&kubectl)?;
    stage.note("the claim waits for its volume");
    demo::wait_bound(&kubectl)?;
    stage.note("the pod starts");
    demo::wait_running(&kubectl)?;
    stage.note("the pod fills its volume");
    let outcome = demo::outcome(&kubectl, &mut channel)?;
    stage.done("");
    report(ui, vm, image, &kubectl, &mut channel, &outcome)
}

fn report(
    ui: &Ui,
    vm: &Vm,
    image: &ImageDir,
    kubectl: &Kubectl,
    channel: &mut HostChannel,
    outcome: &Outcome,
) -> Result<()> {
    let dashboard = channel.call("dashboard", json!({}))?;
    let token = dashboard["token"].as_str().context("the node sent no token")?;
    let url = format!("http://127.0.0.1:{}/?token={token}", vm.port(DASHBOARD_PORT)?);
    let program = image.folder().join("kubectl");
    let event = json!({
        "event": "up", "demo": outcome, "dashboard": url,
        "kubeconfig": kubectl.kubeconfig(), "kubectl": program,
        "uptime_s": vm.uptime().as_secs_f64(),
    });
    let channel = vm.run_dir().join("host.sock");
    ui.result(&words(outcome, &url, kubectl, &image.folder().display(), &channel.display()), event);
    Ok(())
}

fn words(
    outcome: &Outcome,
    url: &str,
    kubectl: &Kubectl,
    folder: &impl Display,
    channel: &impl Display,
) -> String {
    let [size, used, free] = outcome.df_kib;
    let kubeconfig = kubectl.kubeconfig().display();
    format!(
        "
  claim        default/demo is Bound to {volume} ({capacity})
  df           in the pod: {size} KiB, {used} used, {free} free
  at the limit {written} bytes written, then: {error}
  the kernel   counts {counted} of {limit} bytes by project quota

  dashboard    {url}
  kubeconfig   {kubeconfig}

Try next:
  export KUBECONFIG={kubeconfig} PATH={folder}:$PATH HAMLET_ENDPOINT=host:{channel}
  hamlet tree                                        # what runs, what died, and why
  kubectl exec demo -- sh -c 'rm /data/fill; df -h /data'
  kubectl delete -f build/demo/pod.yaml -f build/demo/claim.yaml   # the space comes back
",
        volume = outcome.volume,
        capacity = outcome.capacity,
        written = outcome.written_bytes,
        error = outcome.error,
        counted = outcome.used_bytes,
        limit = outcome.limit_bytes,
    )
}

/// Says so when the guest ends by itself.
fn watch(vm: &Vm, end: mpsc::Sender<()>) {
    /// Longer than anyone stays.
    const EVER: Duration = Duration::from_secs(365 * 24 * 3600);
    let serial = vm.serial().clone();
    #[expect(clippy::disallowed_methods, reason = "ends with the guest")]
    std::thread::spawn(move || {
        serial.wait_end(EVER);
        let _ = end.send(());
    });
}

fn shut_down(ui: &Ui, mut vm: Vm) -> Result<()> {
    let mut stage = ui.stage("shutdown");
    if !vm.serial().wait_end(Duration::ZERO) {
        stage.note("asking the node to power off");
        if vm.channel().call("poweroff", json!({})).is_err() {
            vm.press_power_button()?;
        }
    }
    match vm.wait_end(SHUTDOWN_DEADLINE)? {
        Ending::PowerOff => {
            stage.done("in order");
            Ok(())
        }
        Ending::Reboot => bail!("the node restarted by itself"),
        Ending::Other(how) => bail!("the node ended: {how}"),
    }
}
