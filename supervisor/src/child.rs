//! A child process as a service.
#![expect(clippy::todo, reason = "bodies follow within the hour")]
#![expect(unused_variables, reason = "bodies follow within the hour")]

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use logtree::{Dn, Format, Name};

use crate::{ChildStats, Service};

/// Starts processes. Implemented by whoever owns `wait`.
pub trait Spawner: Send + Sync + 'static {
    /// Starts one process: writes `files`, makes the cgroup, kills leftovers of an earlier
    /// incarnation there, executes. An error names path and errno.
    ///
    /// Blocks for as long as that takes; called on a blocking job.
    fn spawn(&self, dn: &Dn, spec: &ChildSpec) -> io::Result<Box<dyn Child>>;
}

/// A process that was started. Dropping it kills its scope and removes its files.
pub trait Child: Send + Sync + 'static {
    /// Its pid.
    fn pid(&self) -> i32;
    /// The reading end of its stdout; `Some` once.
    fn take_stdout(&mut self) -> Option<OwnedFd>;
    /// The reading end of its stderr; `Some` once.
    fn take_stderr(&mut self) -> Option<OwnedFd>;
    /// Resolves when the process has ended; may be called more than once.
    fn wait(&self) -> BoxFuture<'static, ExitStatus>;
    /// Resolves when nothing lives in its scope any more; at once for `KillScope::Process`.
    fn scope_empty(&self) -> BoxFuture<'static, ()>;
    /// Sends a signal to the process; an error once it has ended.
    fn signal(&self, signal: i32) -> io::Result<()>;
    /// Kills all of its scope, or the process alone for `KillScope::Process`.
    fn kill_scope(&self) -> io::Result<()>;
    /// Its numbers now.
    fn stats(&self) -> ChildStats;
}

/// Tells whether a child is ready to serve.
pub trait Probe: Send + Sync + 'static {
    /// Ok if ready; otherwise what is missing. Polled every 250 ms to 2 s; dropped on stop.
    fn ready(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// What is killed with a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KillScope {
    /// All of its cgroup.
    #[default]
    Cgroup,
    /// Only its process: what it has started outlives it (containerd's shims).
    Process,
}

/// How a child is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSpec {
    /// First this signal; default SIGTERM.
    pub signal: i32,
    /// After this long the kill; default 10 s.
    pub grace: Duration,
}

impl Default for StopSpec {
    fn default() -> StopSpec {
        StopSpec { signal: 15, grace: Duration::from_secs(10) }
    }
}

/// Limits of a cgroup; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CgroupLimits {
    /// memory.max in bytes.
    pub memory_max: Option<u64>,
    /// pids.max.
    pub pids_max: Option<u64>,
    /// cpu.weight, 1 to 10000.
    pub cpu_weight: Option<u64>,
}

/// A resource limit, soft and hard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// RLIMIT_* number.
    pub resource: i32,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// User and group of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A file in `/run/hamlet/<dn>/`, written before start, removed after exit.
#[derive(Clone, PartialEq, Eq)]
pub struct ChildFile {
    /// File name without a path.
    pub name: String,
    /// What is in it; never shown.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for ChildFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChildFile({:?}, {} bytes)", self.name, self.content.len())
    }
}

/// Everything about a child (rule R2).
#[derive(Clone)]
pub struct ChildSpec {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; `/` by default.
    pub cwd: PathBuf,
    /// User; `None` stays as is.
    pub user: Option<User>,
    /// Resource limits.
    pub rlimits: Vec<Rlimit>,
    /// Limits of its cgroup.
    pub cgroup: CgroupLimits,
    /// oom_score_adj, -1000 to 1000.
    pub oom_score_adj: i32,
    /// How stdout is read.
    pub stdout_format: Format,
    /// How stderr is read.
    pub stderr_format: Format,
    /// Configuration and secrets.
    pub files: Vec<ChildFile>,
    /// Tells when it is ready; `None`: as soon as it runs.
    pub probe: Option<Arc<dyn Probe>>,
    /// How it is asked to end.
    pub stop: StopSpec,
    /// What is killed with it.
    pub kill_scope: KillScope,
    /// Exit with code 0 is Done.
    pub one_shot: bool,
}

impl ChildSpec {
    /// A daemon with defaults for everything else.
    pub fn new(program: impl Into<PathBuf>) -> ChildSpec {
        ChildSpec {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            user: None,
            rlimits: Vec::new(),
            cgroup: CgroupLimits::default(),
            oom_score_adj: 0,
            stdout_format: Format::Auto,
            stderr_format: Format::Auto,
            files: Vec::new(),
            probe: None,
            stop: StopSpec::default(),
            kill_scope: KillScope::Cgroup,
            one_shot: false,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I, S>(mut self, args: I) -> ChildSpec
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds one variable.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> ChildSpec {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Sets the probe.
    #[must_use]
    pub fn probe(mut self, probe: impl Probe) -> ChildSpec {
        self.probe = Some(Arc::new(probe));
        self
    }
}

/// A service that runs one child process: lines to its log, healthy when the probe passes, its
/// exit is the service's end. The stop deadline is grace + 5 s.
pub fn child(name: Name, spec: ChildSpec, spawner: Arc<dyn Spawner>) -> Service {
    todo!()
}

/// The whole life of one child inside a Runnable of the caller's, which may prepare things first
/// (made-up arguments, imported images) and then hands its context over.
pub async fn run_child(
    ctx: crate::Context,
    spec: ChildSpec,
    spawner: Arc<dyn Spawner>,
) -> crate::Outcome {
    todo!()
}
