//! What a Runnable holds: its context and the handles made from it.
//!
//! Invariants: `Context` is not Clone and `healthy` consumes it, so children are added only in
//! state New and healthy() is said once; `Done` and `Cancelled` carry the number of their
//! incarnation. Nothing here blocks: signals go through the slot, requests through a bounded
//! channel on which only the one who adds waits.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use logtree::{Dn, LogTree, Name, NameError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::driver::Request;
use crate::runner::{self, TaskSet};
use crate::slot::{Slot, StatsSource};
use crate::tree::Refusal;
use crate::{Cancelled, Condition, Done, Service, Stop};

/// Longest kind of a condition in bytes.
const KIND_BYTES: usize = 64;
/// Longest message of a condition in bytes.
const MESSAGE_BYTES: usize = 1 << 10;
/// Longest note in bytes.
const NOTE_BYTES: usize = 256;

/// Why a node is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The whole tree goes down.
    Shutdown,
    /// Its unit or an ancestor is restarted, or ended.
    Restart,
    /// Its own main future has ended; asked are its tasks.
    Ended,
}

/// Why a child or sub-logger was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// A group needs a member.
    #[error("the group is empty")]
    EmptyGroup,
    /// A child or sub-logger has it.
    #[error("name {0} is taken")]
    Duplicate(Name),
    /// A node has at most 1024 children.
    #[error("{0} would be the 1025th child")]
    TooMany(Name),
    /// The path would be too long or too deep.
    #[error("{name} does not fit below its parent")]
    Dn {
        /// Whose.
        name: Name,
        /// Why.
        #[source]
        source: NameError,
    },
    /// The parent is to stop: return the value.
    #[error("the parent is stopping")]
    Stopping(Cancelled),
}

/// What belongs to one incarnation, shared by its handles, its runner and the driver.
pub(crate) struct Core {
    pub(crate) dn: Dn,
    pub(crate) incarnation: u64,
    pub(crate) log: slog::Logger,
    pub(crate) logs: LogTree,
    pub(crate) slot: Slot,
    pub(crate) tasks: TaskSet,
    pub(crate) abort: watch::Sender<bool>,
    pub(crate) stop: Arc<watch::Sender<Option<StopReason>>>,
    pub(crate) requests: mpsc::Sender<Request>,
    /// Where its tasks run; set by the runner before anything else.
    pub(crate) runtime: OnceLock<tokio::runtime::Handle>,
    /// Names of children and sub-loggers.
    pub(crate) names: Mutex<BTreeSet<Name>>,
}

impl Core {
    /// The first reason stays.
    pub(crate) fn ask_to_stop(&self, reason: StopReason) {
        self.stop.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(reason);
            first
        });
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.runtime.get_or_init(tokio::runtime::Handle::current)
    }

    fn cancelled(&self) -> Cancelled {
        Cancelled { incarnation: self.incarnation }
    }

    fn token(&self) -> StopToken {
        StopToken { incarnation: self.incarnation, stop: self.stop.clone() }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.dn, self.incarnation)
    }
}

/// What a Runnable gets: its state is New until it gives this up for a [`Running`]. Not Clone.
///
/// The order of signals is checked by the compiler (rules T3, T4). As it should be:
///
/// ```
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     if let Err(AddError::Stopping(cancelled)) = ctx.run_group(Vec::new()).await {
///         return Err(cancelled.into());
///     }
///     let running = ctx.healthy();
///     Ok(running.done())
/// }
/// ```
///
/// Done before healthy:
///
/// ```compile_fail,E0599
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     Ok(ctx.done())
/// }
/// ```
///
/// Healthy twice:
///
/// ```compile_fail,E0382
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     let _first = ctx.healthy();
///     let second = ctx.healthy();
///     Ok(second.done())
/// }
/// ```
///
/// Done twice:
///
/// ```compile_fail,E0382
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     let running = ctx.healthy();
///     let _first = running.done();
///     Ok(running.done())
/// }
/// ```
///
/// A child after healthy:
///
/// ```compile_fail,E0599
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     let running = ctx.healthy();
///     let _ = running.run_group(Vec::new()).await;
///     Ok(running.done())
/// }
/// ```
///
/// Success without done:
///
/// ```compile_fail,E0308
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     let _running = ctx.healthy();
///     Ok(())
/// }
/// ```
///
/// Claiming to have been asked to stop:
///
/// ```compile_fail,E0451
/// # use supervisor::prelude::*;
/// async fn run(_ctx: Context) -> Outcome {
///     Err(Cancelled { incarnation: 1 }.into())
/// }
/// ```
///
/// A second context:
///
/// ```compile_fail,E0599
/// # use supervisor::prelude::*;
/// async fn run(ctx: Context) -> Outcome {
///     let second = ctx.clone();
///     let _first = ctx.healthy();
///     Ok(second.healthy().done())
/// }
/// ```
#[derive(Debug)]
pub struct Context {
    core: Arc<Core>,
}

impl Context {
    pub(crate) fn new(core: Arc<Core>) -> Context {
        Context { core }
    }

    /// Starts a child as a unit of its own; returns when it is started, not when it is healthy.
    ///
    /// # Cancel safety
    /// Dropped early, the child may or may not have been started.
    pub async fn run(&self, service: Service) -> Result<(), AddError> {
        self.run_group(vec![service]).await
    }

    /// Starts children as one unit: if one ends, all restart together.
    pub async fn run_group(&self, group: Vec<Service>) -> Result<(), AddError> {
        let core = &self.core;
        let mut added: Vec<Name> = Vec::new();
        let mut taken = None;
        {
            let mut names = core.names.lock();
            for service in &group {
                if !names.insert(service.name.clone()) {
                    taken = Some(service.name.clone());
                    break;
                }
                added.push(service.name.clone());
            }
        }
        let result = match taken {
            Some(name) => Err(Refusal::Duplicate(name)),
            None => self.request(group).await,
        };
        if result.is_err() {
            let mut names = core.names.lock();
            names.retain(|name| !added.contains(name));
        }
        result.map_err(|refusal| self.add_error(refusal))
    }

    async fn request(&self, group: Vec<Service>) -> Result<(), Refusal> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Add { parent: self.core.incarnation, group, reply };
        // No driver, no tree: as good as stopping.
        self.core.requests.send(request).await.map_err(|_| Refusal::Stopping)?;
        answer.await.unwrap_or(Err(Refusal::Stopping))
    }

    fn add_error(&self, refusal: Refusal) -> AddError {
        match refusal {
            Refusal::EmptyGroup => AddError::EmptyGroup,
            Refusal::Duplicate(name) => AddError::Duplicate(name),
            Refusal::TooMany(name) => AddError::TooMany(name),
            Refusal::Dn(name, source) => AddError::Dn { name, source },
            Refusal::Stopping | Refusal::Unknown | Refusal::Root | Refusal::ParentDown => {
                AddError::Stopping(self.core.cancelled())
            }
        }
    }

    /// A logger below this DN, for a part that is no Runnable.
    pub fn sub_logger(&self, name: Name) -> Result<slog::Logger, AddError> {
        let core = &self.core;
        let dn = core.dn.child(&name);
        let dn = dn.map_err(|source| AddError::Dn { name: name.clone(), source })?;
        if !core.names.lock().insert(name.clone()) {
            return Err(AddError::Duplicate(name));
        }
        core.slot.reserve(name);
        Ok(core.logs.logger(&dn))
    }

    /// The log its DN is in.
    pub(crate) fn logs(&self) -> &LogTree {
        &self.core.logs
    }

    /// Can make this incarnation last until something has ended, from any thread.
    pub(crate) fn lasting(&self) -> Lasting {
        Lasting(self.core.clone())
    }

    /// Says that all is ready: sockets bound, probes passed, children started.
    pub fn healthy(self) -> Running {
        self.core.slot.healthy();
        Running { core: self.core }
    }
}

/// See [`Context::lasting`].
pub(crate) struct Lasting(Arc<Core>);

impl Lasting {
    pub(crate) fn until<F>(&self, name: Name, end: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        runner::outlast(&self.0, name, end);
    }
}

/// What a Runnable has after healthy().
#[derive(Debug)]
pub struct Running {
    core: Arc<Core>,
}

impl Running {
    /// Says that the work is finished for good; children live on.
    pub fn done(self) -> Done {
        Done { incarnation: self.core.incarnation }
    }
}

/// What [`Context`] and [`Running`] have in common.
pub trait Handle {
    /// Path of this node.
    fn dn(&self) -> &Dn;

    /// Its logger.
    fn log(&self) -> &slog::Logger;

    /// Tells when it is asked to stop.
    fn stop(&self) -> StopToken;

    /// Says how it does.
    fn health(&self) -> Health;

    /// Starts a task that belongs to this incarnation.
    ///
    /// Its failure or panic is the node's death. When the main future ends, the tasks are asked to
    /// stop and aborted at the stop deadline; the node has not ended before them.
    fn spawn<F>(&self, name: Name, future: F)
    where
        F: Future<Output = Result<(), Stop>> + Send + 'static;

    /// Runs a blocking job that belongs to this incarnation. Its panic is the node's death; it
    /// cannot be aborted, and the node has not ended before it.
    fn spawn_blocking<T, F>(&self, name: Name, job: F) -> Job<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static;
}

macro_rules! handle {
    ($type:ident) => {
        impl Handle for $type {
            fn dn(&self) -> &Dn {
                &self.core.dn
            }

            fn log(&self) -> &slog::Logger {
                &self.core.log
            }

            fn stop(&self) -> StopToken {
                self.core.token()
            }

            fn health(&self) -> Health {
                Health { core: self.core.clone() }
            }

            fn spawn<F>(&self, name: Name, future: F)
            where
                F: Future<Output = Result<(), Stop>> + Send + 'static,
            {
                runner::spawn_task(&self.core, name, future);
            }

            fn spawn_blocking<T, F>(&self, name: Name, job: F) -> Job<T>
            where
                T: Send + 'static,
                F: FnOnce() -> T + Send + 'static,
            {
                runner::spawn_job(&self.core, name, job)
            }
        }
    };
}
handle!(Context);
handle!(Running);

/// The job panicked; its node dies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the blocking job panicked")]
pub struct JobPanicked;

/// The result of a blocking job. Dropping it does not end the job.
#[derive(Debug)]
#[must_use = "await it, or drop it on purpose"]
pub struct Job<T>(oneshot::Receiver<T>);

impl<T> Job<T> {
    pub(crate) fn new(receiver: oneshot::Receiver<T>) -> Job<T> {
        Job(receiver)
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T, JobPanicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|_| JobPanicked)
    }
}

/// Tells when a node is asked to stop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StopToken {
    incarnation: u64,
    stop: Arc<watch::Sender<Option<StopReason>>>,
}

impl StopToken {
    /// Waits until asked; at once if it was. Cancel safe.
    pub async fn stopped(&self) -> Cancelled {
        let mut stop = self.stop.subscribe();
        // Never closed: we hold the sender.
        let _ = stop.wait_for(Option::is_some).await;
        Cancelled { incarnation: self.incarnation }
    }

    /// The output of `future`, or `Cancelled` if asked first; then the future is dropped.
    pub async fn race<F: Future>(&self, future: F) -> Result<F::Output, Cancelled> {
        tokio::select! {
            biased;
            cancelled = self.stopped() => Err(cancelled),
            output = future => Ok(output),
        }
    }

    /// Why, if asked.
    pub fn reason(&self) -> Option<StopReason> {
        *self.stop.borrow()
    }
}

/// Says how a node does (rule H1). Cheap to clone; says nothing once the incarnation has ended.
#[derive(Debug, Clone)]
pub struct Health {
    core: Arc<Core>,
}

impl Health {
    /// Sets a condition; replaces one of the same kind. The 33rd kind is logged and left out.
    pub fn set(&self, condition: Condition) {
        let condition = Condition {
            kind: cut(&condition.kind, KIND_BYTES).to_owned(),
            severity: condition.severity,
            message: cut(&condition.message, MESSAGE_BYTES).to_owned(),
        };
        let kind = condition.kind.clone();
        if !self.core.slot.set(condition) {
            slog::warn!(self.core.log, "too many conditions, left out"; "kind" => kind);
        }
    }

    /// Takes a condition back.
    pub fn clear(&self, kind: &str) {
        self.core.slot.clear(kind);
    }

    /// What the node does or waits for now; `""` for nothing.
    pub fn note(&self, now_doing: &str) {
        self.core.slot.note(cut(now_doing, NOTE_BYTES));
    }

    /// Where the numbers of the node's child process come from.
    pub(crate) fn stats_from(&self, source: Option<StatsSource>) {
        self.core.slot.set_stats(source);
    }
}

fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
