//! A child process as a service (rules R2 to R7, the policy side).
//!
//! Owner: the Runnable made by [`child`]. It starts the process through a [`Spawner`], reads its
//! pipes into the log, polls its probe, and turns its exit into an outcome. Must not know: cgroups,
//! pidfds, `wait`: whoever implements `Spawner` does.
//!
//! Invariants: the incarnation has not exited before the process has, nor, with scope `Cgroup`,
//! before everything it started has; pipes are read all the time; dropping the future (an abort)
//! kills the scope, because it drops the `Child`.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use logtree::{Dn, Format, LineSink, Name};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use crate::{
    Cancelled, ChildStats, Context, Handle, Health, Outcome, Policy, Running, Service, Stop,
};

/// First pause between two probes.
const PROBE_FIRST: Duration = Duration::from_millis(250);
/// Longest pause between two probes.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// One probe may take this long.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Grandchildren may keep the pipes open this long after the exit (rule R5).
const PIPES_AFTER_EXIT: Duration = Duration::from_secs(1);
/// Between the kill and the stop deadline, for the kill to work.
const KILL_MARGIN: Duration = Duration::from_secs(5);
/// Bytes read from a pipe at once.
const READ_BYTES: usize = 16 << 10;

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
    /// Ok if ready; otherwise what is missing. Polled every 250 ms to 2 s, each time for at most
    /// 5 s; dropped on stop.
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
    /// Working directory; default `/`.
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

impl std::fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments and environment may name secrets' places; the program is enough to recognise.
        f.debug_struct("ChildSpec").field("program", &self.program).finish_non_exhaustive()
    }
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

    /// The stop deadline a service needs that runs this child: grace and time for the kill.
    pub fn stop_deadline(&self) -> Duration {
        self.stop.grace + KILL_MARGIN
    }
}

/// A service that runs one child process: lines to its log, healthy when the probe passes, its exit
/// is the service's end. The stop deadline is grace + 5 s.
pub fn child(name: Name, spec: ChildSpec, spawner: Arc<dyn Spawner>) -> Service {
    let policy = Policy { stop_deadline: spec.stop_deadline(), ..Policy::default() };
    let run = move |ctx| run_child(ctx, spec.clone(), spawner.clone());
    Service::new(name, run).policy(policy)
}

/// The whole life of one child inside a Runnable of the caller's, which may prepare things first
/// and then hands its context over. The caller sets [`ChildSpec::stop_deadline`] in its policy.
pub async fn run_child(ctx: Context, spec: ChildSpec, spawner: Arc<dyn Spawner>) -> Outcome {
    let process = Process::start(&ctx, spec, spawner).await?;
    // A child that is up but not ready ends by the same rules as one that is ready.
    let health = ctx.health();
    let ready = process.become_ready(&health);
    tokio::select! {
        biased;
        cancelled = stopped(&ctx) => return process.stop(cancelled).await,
        status = process.child.wait() => {
            let finished = process.spec.one_shot && status.success();
            let running = finished.then(|| ctx.healthy());
            return process.ended(status, running).await;
        }
        () = ready => {}
    }
    let running = ctx.healthy();
    tokio::select! {
        biased;
        cancelled = stopped(&running) => process.stop(cancelled).await,
        status = process.child.wait() => process.ended(status, Some(running)).await,
    }
}

async fn stopped(handle: &impl Handle) -> Cancelled {
    handle.stop().stopped().await
}

/// One running process.
struct Process {
    child: Arc<dyn Child>,
    spec: ChildSpec,
    health: Health,
    log: slog::Logger,
    began: Instant,
    pipes: Pipes,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The numbers hold the child; dropping the last hold kills its scope.
        self.health.stats_from(None);
    }
}

impl Process {
    async fn start(
        ctx: &Context,
        spec: ChildSpec,
        spawner: Arc<dyn Spawner>,
    ) -> Result<Process, Stop> {
        let (dn, owned, lasting) = (ctx.dn().clone(), spec.clone(), ctx.lasting());
        let job = ctx.spawn_blocking(Name::from_static("spawn"), move || {
            let child = spawner.spawn(&dn, &owned)?;
            // Here and not after the await: an abort in between must not lose the process.
            let (exit, empty) = (child.wait(), child.scope_empty());
            lasting.until(Name::from_static("process"), async move {
                exit.await;
                empty.await;
            });
            Ok::<_, io::Error>(child)
        });
        let mut child = job.await??;
        let began = Instant::now();
        slog::info!(ctx.log(), "started"; "pid" => child.pid(),
            "program" => spec.program.display().to_string());
        let out = child.take_stdout().map(|fd| (fd, spec.stdout_format));
        let err = child.take_stderr().map(|fd| (fd, spec.stderr_format));
        let pipes = Pipes::read(ctx, out, err)?;
        let child: Arc<dyn Child> = Arc::from(child);
        let source = Arc::downgrade(&child);
        let health = ctx.health();
        health.stats_from(Some(Arc::new(move || {
            source.upgrade().map(|c| c.stats()).unwrap_or_default()
        })));
        Ok(Process { child, spec, health, log: ctx.log().clone(), began, pipes })
    }

    /// Returns when the probe has passed.
    async fn become_ready(&self, health: &Health) {
        let Some(probe) = &self.spec.probe else { return };
        let mut pause = PROBE_FIRST;
        loop {
            let missing = match tokio::time::timeout(PROBE_TIMEOUT, probe.ready()).await {
                Ok(Ok(())) => break,
                Ok(Err(text)) => text,
                Err(_) => format!("the probe took more than {} s", PROBE_TIMEOUT.as_secs()),
            };
            health.note(&missing);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PROBE_MAX);
        }
        health.note("");
    }

    /// Signal, grace, kill; then waits until it is really gone.
    async fn stop(self, cancelled: Cancelled) -> Outcome {
        if let Err(e) = self.child.signal(self.spec.stop.signal) {
            slog::debug!(self.log, "cannot signal"; "error" => e.to_string());
        }
        let exited = tokio::time::timeout(self.spec.stop.grace, self.child.wait()).await;
        if exited.is_err() {
            slog::warn!(self.log, "has not ended in time: killed";
                "grace_s" => self.spec.stop.grace.as_secs());
            self.kill();
            self.child.wait().await;
        }
        self.clear_scope().await;
        self.pipes.drain().await;
        Err(cancelled.into())
    }

    fn kill(&self) {
        if let Err(e) = self.child.kill_scope() {
            slog::error!(self.log, "cannot kill"; "error" => e.to_string());
        }
    }

    /// With scope `Cgroup`, nothing that the process started may outlive it.
    async fn clear_scope(&self) {
        match self.spec.kill_scope {
            KillScope::Cgroup => {
                self.kill();
                self.child.scope_empty().await;
            }
            KillScope::Process => {}
        }
    }

    /// It has ended unasked.
    async fn ended(self, status: ExitStatus, running: Option<Running>) -> Outcome {
        let after = self.began.elapsed();
        let oom_kills = self.child.stats().oom_kills;
        self.clear_scope().await;
        self.pipes.drain().await;
        if let Some(running) = running.filter(|_| self.spec.one_shot && status.success()) {
            return Ok(running.done());
        }
        let text = exit_text(status, after, oom_kills, self.spec.cgroup.memory_max);
        let last = self.pipes.last_stderr();
        Err(Stop::failed(if last.is_empty() { text } else { format!("{text}: {last}") }))
    }
}

/// `exited 1 after 3.2 s`, `killed by SIGKILL: out of memory (limit 512 MiB)`.
fn exit_text(
    status: ExitStatus,
    after: Duration,
    oom_kills: u64,
    memory_max: Option<u64>,
) -> String {
    let seconds = after.as_secs_f64();
    if let Some(code) = status.code() {
        return format!("exited {code} after {seconds:.1} s");
    }
    let signal = status.signal().unwrap_or(0);
    let name = signal_name(signal);
    if signal == 9 && oom_kills > 0 {
        let limit = match memory_max {
            Some(bytes) => format!("limit {} MiB", bytes >> 20),
            None => "no limit of its own".to_owned(),
        };
        return format!("killed by {name}: out of memory ({limit}) after {seconds:.1} s");
    }
    format!("killed by {name} after {seconds:.1} s")
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// The tasks that read stdout and stderr.
struct Pipes {
    /// Goes to false when all pipes are at their end.
    open: tokio::sync::watch::Receiver<usize>,
    cut: Arc<tokio::sync::watch::Sender<bool>>,
    last: Arc<Mutex<String>>,
}

impl Pipes {
    fn read(
        ctx: &Context,
        out: Option<(OwnedFd, Format)>,
        err: Option<(OwnedFd, Format)>,
    ) -> Result<Pipes, Stop> {
        let cut = Arc::new(tokio::sync::watch::Sender::new(false));
        let count = Arc::new(tokio::sync::watch::Sender::new(0usize));
        let last = Arc::new(Mutex::new(String::new()));
        let streams = [("stdout", out), ("stderr", err)];
        for (name, stream) in streams {
            let Some((fd, format)) = stream else { continue };
            let pipe = pipe::Receiver::from_owned_fd(fd)?;
            let sink = ctx.logs().sink(ctx.dn(), format);
            count.send_modify(|n| *n += 1);
            let (count, cut) = (count.clone(), cut.subscribe());
            let last = (name == "stderr").then(|| last.clone());
            ctx.spawn(Name::from_static(name), async move {
                read_pipe(pipe, sink, cut, last).await;
                count.send_modify(|n| *n -= 1);
                Ok(())
            });
        }
        Ok(Pipes { open: count.subscribe(), cut, last })
    }

    /// After the exit: reads what is left, for a while; grandchildren may hold the other ends.
    async fn drain(&self) {
        let mut open = self.open.clone();
        // Closed means that all readers are gone, which is what is waited for.
        let all_read = async { open.wait_for(|n| *n == 0).await.is_ok() };
        if tokio::time::timeout(PIPES_AFTER_EXIT, all_read).await.is_err() {
            self.cut.send_replace(true);
        }
    }

    fn last_stderr(&self) -> String {
        self.last.lock().clone()
    }
}

/// Reads a pipe to its end, or until it is cut.
async fn read_pipe(
    mut pipe: pipe::Receiver,
    mut sink: LineSink,
    mut cut: tokio::sync::watch::Receiver<bool>,
    last: Option<Arc<Mutex<String>>>,
) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = tokio::select! {
            biased;
            // An error means that the process is gone for good.
            _ = cut.wait_for(|cut| *cut) => break,
            read = pipe.read(&mut buffer) => read,
        };
        match read {
            Ok(0) | Err(_) => break,
            Ok(n) => sink.push(&buffer[..n]),
        }
        // Sinks never wait: give others a turn if the child writes without end.
        tokio::task::consume_budget().await;
    }
    sink.finish();
    if let Some(last) = last {
        *last.lock() = sink.last_line().to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r3_the_text_of_an_exit_says_how_when_and_why() {
        let exit = |raw| ExitStatus::from_raw(raw);
        let after = Duration::from_millis(3210);
        assert_eq!(exit_text(exit(1 << 8), after, 0, None), "exited 1 after 3.2 s");
        assert_eq!(exit_text(exit(0), after, 0, None), "exited 0 after 3.2 s");
        assert_eq!(exit_text(exit(11), after, 0, None), "killed by SIGSEGV after 3.2 s");
        assert_eq!(
            exit_text(exit(9), after, 1, Some(512 << 20)),
            "killed by SIGKILL: out of memory (limit 512 MiB) after 3.2 s"
        );
        assert_eq!(exit_text(exit(40), after, 0, None), "killed by signal 40 after 3.2 s");
    }
}
