//! The supervisor as its owner sees it: start, look, restart, shut down.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use logtree::{Dn, LogTree};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use crate::driver::{Driver, Ground, Outputs, Request};
use crate::meter::Meter;
use crate::tree::Refusal;
use crate::tree::record::Recorder;
use crate::{Counters, Service, Snapshot, Verdict, panics};

/// Requests that may wait for the driver; an adder waits for room, nobody else adds.
const REQUESTS: usize = 256;
/// Least number of workers: one may block, another hold the I/O driver (rule X4).
const MIN_WORKERS: usize = 4;

/// Milliseconds since the first call.
pub(crate) fn monotonic_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What the supervisor needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it and its nodes log.
    pub logs: LogTree,
    /// Seed of the jitter.
    pub seed: u64,
    /// Runs driver and all nodes on the current (current-thread) runtime: for tests with a paused
    /// clock.
    pub on_current_runtime: bool,
}

impl Config {
    /// As in production: threads and a runtime of its own.
    pub fn new(logs: LogTree, seed: u64) -> Config {
        Config { logs, seed, on_current_runtime: false }
    }
}

/// Nothing lives any more but what is stuck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quiet {
    /// What did not end.
    pub stuck: Vec<Dn>,
}

/// The tree cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fatal {
    /// Whose fault.
    pub dn: Dn,
    /// In words.
    pub reason: String,
    /// Whether root had returned Done before.
    pub boot_finished: bool,
    /// It was a panic.
    pub panicked: bool,
}

/// A request to restart or stop a node that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// No such node.
    #[error("there is no node {0}")]
    Unknown(Dn),
    /// Root is neither restarted nor stopped.
    #[error("root cannot be restarted or stopped: reboot the node")]
    Root,
    /// Its parent is stopping or has ended.
    #[error("the parent of {0} is not running: restart that")]
    ParentDown(Dn),
    /// Too late.
    #[error("the tree is shutting down")]
    ShuttingDown,
}

/// The recording cannot be written as text.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the recording of the tree")]
pub struct RecordingError(#[source] serde_json::Error);

/// No runtime or thread could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the supervisor's {what}")]
pub struct StartError {
    what: &'static str,
    #[source]
    source: std::io::Error,
}

#[derive(Debug)]
struct Inner {
    requests: mpsc::Sender<Request>,
    view: watch::Receiver<Arc<Snapshot>>,
    fatal: watch::Receiver<Option<Fatal>>,
    quiet: watch::Receiver<Option<Quiet>>,
    logs: LogTree,
    shared: tokio::runtime::Handle,
    turned: Arc<AtomicU64>,
    meter: Meter,
    recorder: Arc<Mutex<Recorder>>,
    /// Ours, if we made it.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The plain drop blocks, which is an error in an async context.
            runtime.shutdown_background();
        }
    }
}

/// A running tree. Clones share it.
#[derive(Debug, Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

impl Supervisor {
    /// Starts the tree with its root.
    ///
    /// # Panics
    /// If the machine gives no thread or runtime: there is nothing to fall back to. Use
    /// [`Supervisor::try_start`] to handle it.
    pub fn start(root: Service, config: Config) -> Supervisor {
        match Supervisor::try_start(root, config) {
            Ok(supervisor) => supervisor,
            Err(e) => panic!("{e}: {}", e.source),
        }
    }

    /// Starts the tree with its root.
    pub fn try_start(root: Service, config: Config) -> Result<Supervisor, StartError> {
        panics::install(&config.logs);
        let (runtime, shared) = match config.on_current_runtime {
            true => (None, tokio::runtime::Handle::current()),
            false => {
                let runtime = shared_runtime()
                    .map_err(|source| StartError { what: "shared runtime", source })?;
                let handle = runtime.handle().clone();
                (Some(runtime), handle)
            }
        };
        let root_dn = Dn::from(root.name.clone());
        let (requests, receiver) = mpsc::channel(REQUESTS);
        let (view_tx, view) = watch::channel(Arc::new(first_snapshot()));
        let (fatal_tx, fatal) = watch::channel(None);
        let (quiet_tx, quiet) = watch::channel(None);
        let turned = Arc::new(AtomicU64::new(monotonic_ms()));
        let meter = Meter::default();
        let recorder = Arc::new(Mutex::new(Recorder::new(config.seed)));
        let outputs = Outputs {
            view: view_tx,
            fatal: fatal_tx.clone(),
            quiet: quiet_tx,
            turned: turned.clone(),
            meter: meter.clone(),
            recorder: recorder.clone(),
        };
        let ground = Ground { shared: shared.clone(), single: config.on_current_runtime };
        let (logs, seed) = (config.logs.clone(), config.seed);
        let channel = (requests.clone(), receiver);
        if config.on_current_runtime {
            let driver = Driver::new(seed, logs, ground, channel, outputs);
            drop(shared.spawn(driver.run(root)));
        } else {
            let body = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
                let run = || {
                    let driver = Driver::new(seed, logs, ground, channel, outputs);
                    runtime.block_on(driver.run(root));
                };
                panics::catch(run)
            };
            driver_thread(body, root_dn, fatal_tx)?;
        }
        let logs = config.logs;
        let inner =
            Inner { requests, view, fatal, quiet, logs, shared, turned, meter, recorder, runtime };
        Ok(Supervisor { inner: Arc::new(inner) })
    }

    /// What the tree looks like; the newest snapshot, and news of changes. Snapshots are paced by
    /// what they cost: of a tree of 60 nodes the newest is at most a millisecond old, in a storm of
    /// 10,000 some tens of milliseconds.
    pub fn view(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.inner.view.clone()
    }

    /// The log the tree writes to.
    pub fn logs(&self) -> &LogTree {
        &self.inner.logs
    }

    /// The shared runtime, for what is not in the tree.
    pub fn runtime(&self) -> tokio::runtime::Handle {
        self.inner.shared.clone()
    }

    /// Time since the driver's last turn; it turns at least every 5 s.
    pub fn driver_age(&self) -> Duration {
        let last = self.inner.turned.load(Ordering::Relaxed);
        Duration::from_millis(monotonic_ms().saturating_sub(last))
    }

    /// Stops everything in stages and waits until all is quiet; a second call waits for the first.
    pub async fn shutdown(&self) -> Quiet {
        // If the driver is gone, the channel is closed and there is nothing to ask.
        let _ = self.inner.requests.send(Request::Shutdown).await;
        let mut quiet = self.inner.quiet.clone();
        let said = quiet.wait_for(Option::is_some).await.ok().and_then(|q| q.clone());
        // A driver that panicked cannot say what lives; its last snapshot can.
        said.unwrap_or_else(|| {
            let view = self.inner.view.borrow();
            let live = view.nodes.iter().filter(|n| n.phase != crate::Phase::Ended);
            Quiet { stuck: live.map(|n| n.dn.clone()).collect() }
        })
    }

    /// Waits until the tree cannot go on; for ever if that never happens. Cancel safe.
    pub async fn fatal(&self) -> Fatal {
        let mut fatal = self.inner.fatal.clone();
        match fatal.wait_for(Option::is_some).await.ok().and_then(|f| f.clone()) {
            Some(fatal) => fatal,
            None => std::future::pending().await,
        }
    }

    /// Counters for metrics: a copy, at the price of one short lock.
    pub fn counters(&self) -> Counters {
        let view = self.inner.view.borrow().clone();
        self.inner.meter.read(&view)
    }

    /// The last 1024 events of the tree as text for [`crate::replay`], also after the driver has
    /// panicked. Contains what Runnables said about themselves and died of. The driver waits while
    /// it is written: some milliseconds.
    pub fn recording(&self) -> Result<String, RecordingError> {
        crate::replay::export(&self.inner.recorder.lock()).map_err(RecordingError)
    }

    /// Restarts the unit of a node, without backoff; returns when that has begun.
    pub async fn restart(&self, dn: &Dn) -> Result<(), RestartError> {
        let (reply, answer) = oneshot::channel();
        self.ask(dn, Request::Restart { dn: dn.clone(), reply }, answer).await
    }

    /// Stops a node and what is below it until it, its unit or an ancestor is restarted; returns
    /// when that has begun. A restart of its unit that was pending is called off.
    pub async fn stop(&self, dn: &Dn) -> Result<(), RestartError> {
        let (reply, answer) = oneshot::channel();
        self.ask(dn, Request::Stop { dn: dn.clone(), reply }, answer).await
    }

    async fn ask(
        &self,
        dn: &Dn,
        request: Request,
        answer: oneshot::Receiver<Result<(), Refusal>>,
    ) -> Result<(), RestartError> {
        if self.inner.requests.send(request).await.is_err() {
            return Err(RestartError::ShuttingDown);
        }
        match answer.await.unwrap_or(Err(Refusal::Stopping)) {
            Ok(()) => Ok(()),
            Err(Refusal::Unknown) => Err(RestartError::Unknown(dn.clone())),
            Err(Refusal::Root) => Err(RestartError::Root),
            Err(Refusal::ParentDown) => Err(RestartError::ParentDown(dn.clone())),
            Err(
                Refusal::Stopping
                | Refusal::EmptyGroup
                | Refusal::Duplicate(_)
                | Refusal::TooMany(_)
                | Refusal::Dn(..),
            ) => Err(RestartError::ShuttingDown),
        }
    }
}

fn first_snapshot() -> Snapshot {
    Snapshot {
        boot_finished: false,
        verdict: Verdict::Starting,
        verdict_dn: None,
        verdict_reason: String::new(),
        shutting_down: false,
        shutdown_stage: None,
        stale_events: 0,
        nodes: Vec::new(),
    }
}

fn shared_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(cpus.max(MIN_WORKERS)).thread_name("shared").enable_all();
    #[cfg(tokio_unstable)]
    builder.disable_lifo_slot().enable_eager_driver_handoff();
    builder.build()
}

/// Runs the driver on its thread; its panic is fatal (rule F2).
fn driver_thread(
    body: impl FnOnce() -> Result<(), String> + Send + 'static,
    root: Dn,
    fatal: watch::Sender<Option<Fatal>>,
) -> Result<(), StartError> {
    let thread = std::thread::Builder::new().name("supervisor".to_owned());
    let run = move || {
        if let Err(text) = body() {
            let reason = format!("internal panic in thread supervisor: {text}");
            let fatal_end = Fatal { dn: root, reason, boot_finished: false, panicked: true };
            fatal.send_if_modified(|now| {
                let first = now.is_none();
                now.get_or_insert(fatal_end);
                first
            });
        }
    };
    match thread.spawn(run) {
        Ok(_) => Ok(()),
        Err(source) => Err(StartError { what: "thread", source }),
    }
}
