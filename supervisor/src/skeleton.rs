//! Public shapes whose bodies follow.
#![expect(clippy::todo, reason = "bodies follow within the hour")]
#![expect(unused_variables, reason = "bodies follow within the hour")]
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use logtree::{Dn, LogTree, Name, NameError};
use tokio::sync::watch;

use crate::{Cancelled, Condition, Done, Service, Snapshot, Stop};

/// Why a child or sub-logger was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// A group needs a member.
    #[error("the group is empty")]
    EmptyGroup,
    /// Taken by a child or sub-logger.
    #[error("name {0} is taken")]
    Duplicate(Name),
    /// At most 1024.
    #[error("child {0} would be the 1025th")]
    TooMany(Name),
    /// Path too long or too deep.
    #[error("{name} does not fit below its parent")]
    Dn {
        /// Whose.
        name: Name,
        /// Why.
        #[source]
        source: NameError,
    },
    /// The parent was asked to stop: return the value.
    #[error("the parent is stopping")]
    Stopping(Cancelled),
}
/// What a Runnable gets: state New. Not Clone.
#[derive(Debug)]
pub struct Context(());
impl Context {
    /// Starts a child as a unit of its own.
    pub async fn run(&self, service: Service) -> Result<(), AddError> {
        todo!()
    }
    /// Starts children as one unit.
    pub async fn run_group(&self, group: Vec<Service>) -> Result<(), AddError> {
        todo!()
    }
    /// A logger below this DN.
    pub fn sub_logger(&self, name: Name) -> Result<slog::Logger, AddError> {
        todo!()
    }
    /// Says that all is ready.
    pub fn healthy(self) -> Running {
        todo!()
    }
}
/// What a Runnable has after healthy().
#[derive(Debug)]
pub struct Running(());
impl Running {
    /// Says that the work is finished for good.
    pub fn done(self) -> Done {
        todo!()
    }
}
/// What Context and Running have in common.
pub trait Handle {
    /// Path of this node.
    fn dn(&self) -> &Dn;
    /// Its logger.
    fn log(&self) -> &slog::Logger;
    /// Tells when it is asked to stop.
    fn stop(&self) -> StopToken;
    /// Says how it does.
    fn health(&self) -> Health;
    /// Starts a task that belongs to this incarnation: its failure or panic is the node's, it is
    /// dropped when the node ends.
    fn spawn<F>(&self, name: Name, future: F)
    where
        F: Future<Output = Result<(), Stop>> + Send + 'static;
    /// Runs a blocking job that belongs to this incarnation; the node has not ended before it.
    fn spawn_blocking<T, F>(&self, name: Name, job: F) -> Job<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static;
}
impl Handle for Context {
    fn dn(&self) -> &Dn {
        todo!()
    }
    fn log(&self) -> &slog::Logger {
        todo!()
    }
    fn stop(&self) -> StopToken {
        todo!()
    }
    fn health(&self) -> Health {
        todo!()
    }
    fn spawn<F>(&self, name: Name, future: F)
    where
        F: Future<Output = Result<(), Stop>> + Send + 'static,
    {
        todo!()
    }
    fn spawn_blocking<T, F>(&self, name: Name, job: F) -> Job<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        todo!()
    }
}
impl Handle for Running {
    fn dn(&self) -> &Dn {
        todo!()
    }
    fn log(&self) -> &slog::Logger {
        todo!()
    }
    fn stop(&self) -> StopToken {
        todo!()
    }
    fn health(&self) -> Health {
        todo!()
    }
    fn spawn<F>(&self, name: Name, future: F)
    where
        F: Future<Output = Result<(), Stop>> + Send + 'static,
    {
        todo!()
    }
    fn spawn_blocking<T, F>(&self, name: Name, job: F) -> Job<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        todo!()
    }
}
/// The job panicked, or its node was aborted; the node dies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the blocking job panicked")]
pub struct JobPanicked;
/// The result of a blocking job. Dropping it does not end the job.
#[derive(Debug)]
#[must_use = "await it, or drop it on purpose"]
pub struct Job<T>(tokio::sync::oneshot::Receiver<T>);
impl<T> Future for Job<T> {
    type Output = Result<T, JobPanicked>;
    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}
/// Why a node is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The whole tree goes down.
    Shutdown,
    /// Its unit or an ancestor is restarted.
    Restart,
    /// Its own main future has ended; asked are its tasks.
    Ended,
}
/// Tells when a node is asked to stop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StopToken(());
impl StopToken {
    /// Waits until asked. Cancel safe.
    pub async fn stopped(&self) -> Cancelled {
        todo!()
    }
    /// The output of `future`, or `Cancelled` if asked first (the future is dropped).
    pub async fn race<F: Future>(&self, future: F) -> Result<F::Output, Cancelled> {
        todo!()
    }
    /// Why, if asked.
    pub fn reason(&self) -> Option<StopReason> {
        todo!()
    }
}
/// Says how a node does. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health(());
impl Health {
    /// Sets a condition; replaces one of the same kind.
    pub fn set(&self, condition: Condition) {
        todo!()
    }
    /// Takes a condition back.
    pub fn clear(&self, kind: &str) {
        todo!()
    }
    /// What the node does or waits for now; "" for nothing.
    pub fn note(&self, now_doing: &str) {
        todo!()
    }
}
/// What the supervisor needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it logs.
    pub logs: LogTree,
    /// Of the jitter.
    pub seed: u64,
    /// Runs driver and all nodes on the current (current-thread) runtime, for tests with a
    /// paused clock.
    pub on_current_runtime: bool,
}
impl Config {
    /// Production defaults.
    pub fn new(logs: LogTree, seed: u64) -> Config {
        Config { logs, seed, on_current_runtime: false }
    }
}
/// Nothing lives any more but what is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiet {
    /// What did not end.
    pub stuck: Vec<Dn>,
}
/// The tree cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fatal {
    /// Whose fault.
    pub dn: Dn,
    /// In words.
    pub reason: String,
    /// Whether root had returned Done before.
    pub boot_finished: bool,
    /// A panic.
    pub panicked: bool,
}
/// A request for a restart that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// No such node.
    #[error("there is no node {0}")]
    Unknown(Dn),
    /// Root is not restarted.
    #[error("root cannot be restarted: reboot the node")]
    Root,
    /// Too late.
    #[error("the tree is shutting down")]
    ShuttingDown,
}
/// A running tree. Clones share it.
#[derive(Debug, Clone)]
pub struct Supervisor(());
impl Supervisor {
    /// Starts the tree.
    pub fn start(root: Service, config: Config) -> Supervisor {
        todo!()
    }
    /// What the tree looks like, always the newest.
    pub fn view(&self) -> watch::Receiver<Arc<Snapshot>> {
        todo!()
    }
    /// The log it writes to.
    pub fn logs(&self) -> &LogTree {
        todo!()
    }
    /// Stops everything in stages and waits until all is quiet.
    pub async fn shutdown(&self) -> Quiet {
        todo!()
    }
    /// Waits until the tree cannot go on.
    pub async fn fatal(&self) -> Fatal {
        todo!()
    }
    /// Restarts the unit of a node.
    pub async fn restart(&self, dn: &Dn) -> Result<(), RestartError> {
        todo!()
    }
    /// A handle to the shared runtime, for what is not in the tree (consoles, tests).
    pub fn runtime(&self) -> tokio::runtime::Handle {
        todo!()
    }
}
