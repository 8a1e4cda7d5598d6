//! Runs one incarnation: its main future, its tasks and its blocking jobs (rules X2, X3).
//!
//! Invariant: the exit is reported once, when the main future, all tasks and all jobs have ended.
//! Each poll happens under the DN of the node, with panics caught and its duration watched.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use logtree::{Dn, Name};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::context::{Context, Core};
use crate::tree::Exit;
use crate::{Condition, Outcome, Stop, StopReason, panics};

/// Nanoseconds of real time since the first call; never 0. For the duration of polls.
fn real_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed().as_nanos();
    u64::try_from(elapsed).unwrap_or(u64::MAX).max(1)
}

/// When the present poll of one future began.
#[derive(Debug, Clone, Default)]
struct PollClock(Arc<AtomicU64>);

impl PollClock {
    fn running_for(&self) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            began => Duration::from_nanos(real_ns().saturating_sub(began)),
        }
    }
}

/// A future whose panics are values and whose records carry the DN of its node.
struct Guarded<F: Future> {
    dn: Dn,
    span: tracing::Span,
    clock: PollClock,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Guarded<F> {
    fn new(dn: Dn, clock: PollClock, future: F) -> Guarded<F> {
        let span = logtree::dn_span(&dn);
        Guarded { dn, span, clock, future: Some(Box::pin(future)) }
    }

    fn under_dn<T>(&mut self, f: impl FnOnce(&mut Option<Pin<Box<F>>>) -> T) -> Result<T, String> {
        let Guarded { dn, span, clock, future } = self;
        clock.0.store(real_ns(), Ordering::Relaxed);
        let result =
            panics::catch(|| logtree::sync_with_dn(dn.clone(), || span.in_scope(|| f(future))));
        clock.0.store(0, Ordering::Relaxed);
        result
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let polled = self.under_dn(|future| match future {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Pending,
        });
        if let Ok(Poll::Pending) = polled {
            return Poll::Pending;
        }
        // Values may panic when dropped; that is a death too.
        let dropped = self.under_dn(|future| *future = None);
        match (polled, dropped) {
            (Ok(Poll::Ready(value)), Ok(())) => Poll::Ready(Ok(value)),
            (Ok(Poll::Ready(_)), Err(text)) | (Err(text), _) => Poll::Ready(Err(text)),
            (Ok(Poll::Pending), _) => Poll::Pending,
        }
    }
}

impl<F: Future> Drop for Guarded<F> {
    fn drop(&mut self) {
        // An aborted future that panics in Drop must not take its thread along.
        let _ = self.under_dn(|future| *future = None);
    }
}

/// One task or job.
#[derive(Debug)]
struct Running {
    name: Name,
    clock: PollClock,
    /// `None` for a blocking job, which cannot be aborted.
    abort: Option<AbortHandle>,
}

#[derive(Debug, Default)]
struct Tasks {
    next: u64,
    running: BTreeMap<u64, Running>,
    /// Set by the first task that failed, panicked or asked for a restart.
    failure: Option<Exit>,
    aborted: bool,
}

/// How many there are, and whether one has failed.
#[derive(Debug, Clone, Copy, Default)]
struct Summary {
    count: usize,
    failed: bool,
}

/// The tasks and jobs of one incarnation.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    main: PollClock,
    tasks: Mutex<Tasks>,
    summary: watch::Sender<Summary>,
}

impl TaskSet {
    fn register(&self, name: Name, clock: PollClock) -> u64 {
        let mut tasks = self.tasks.lock();
        let id = tasks.next;
        tasks.next += 1;
        tasks.running.insert(id, Running { name, clock, abort: None });
        self.publish(&tasks);
        id
    }

    fn publish(&self, tasks: &Tasks) {
        let summary = Summary { count: tasks.running.len(), failed: tasks.failure.is_some() };
        self.summary.send_replace(summary);
    }

    fn ended(&self, id: u64, failure: Option<Exit>) {
        let mut tasks = self.tasks.lock();
        tasks.running.remove(&id);
        if tasks.failure.is_none() {
            tasks.failure = failure;
        }
        self.publish(&tasks);
    }

    fn abort_all(&self) {
        let mut tasks = self.tasks.lock();
        tasks.aborted = true;
        let handles: Vec<_> = tasks.running.values().filter_map(|t| t.abort.clone()).collect();
        // Aborting may drop a future here and now, and that calls `ended`.
        drop(tasks);
        handles.iter().for_each(AbortHandle::abort);
    }

    async fn all_ended(&self) {
        let mut summary = self.summary.subscribe();
        // The sender is ours: it cannot be closed.
        let _ = summary.wait_for(|s| s.count == 0).await;
    }

    async fn failed(&self) {
        let mut summary = self.summary.subscribe();
        let _ = summary.wait_for(|s| s.failed).await;
    }

    /// Names of what has not ended.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.tasks.lock().running.values().map(|t| t.name.clone()).collect()
    }

    /// The longest poll that is running now, and whose it is (`None`: the main future's).
    pub(crate) fn longest_poll(&self) -> (Duration, Option<Name>) {
        let tasks = self.tasks.lock();
        // Jobs may block: that is what they are for.
        let polls = tasks.running.values().filter(|t| t.abort.is_some());
        let polls = polls.map(|t| (t.clock.running_for(), Some(t.name.clone())));
        polls.chain([(self.main.running_for(), None)]).max().unwrap_or_default()
    }
}

/// Removes a task from its set however it ends, also when it is dropped before its first poll.
struct Registered {
    core: Arc<Core>,
    id: u64,
    failure: Option<Exit>,
}

impl Registered {
    /// Ends the task, with what it failed of.
    fn end(mut self, failure: Option<Exit>) {
        self.failure = failure;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.core.tasks.ended(self.id, self.failure.take());
    }
}

/// Starts a task of an incarnation.
pub(crate) fn spawn_task<F>(core: &Arc<Core>, name: Name, future: F)
where
    F: Future<Output = Result<(), Stop>> + Send + 'static,
{
    let clock = PollClock::default();
    let id = core.tasks.register(name.clone(), clock.clone());
    let registered = Registered { core: core.clone(), id, failure: None };
    let guarded = Guarded::new(core.dn.clone(), clock, future);
    let handle = core.runtime().spawn(async move {
        let failure = match guarded.await {
            Ok(Ok(())) => None,
            Ok(Err(stop)) => match exit_of_stop(stop, registered.core.incarnation) {
                Exit::Cancelled => None,
                Exit::Failed(text) => Some(Exit::Failed(format!("task {name}: {text}"))),
                other => Some(other),
            },
            Err(text) => Some(Exit::Panicked(format!("task {name} {text}"))),
        };
        registered.end(failure);
    });
    let abort = handle.abort_handle();
    let mut tasks = core.tasks.tasks.lock();
    let late = tasks.aborted;
    if let Some(task) = tasks.running.get_mut(&id) {
        task.abort = Some(abort.clone());
    }
    drop(tasks);
    if late {
        abort.abort();
    }
}

/// Makes an incarnation last at least until `end`, also if it is aborted: for what goes on by
/// itself, such as a process that is being killed. Shown like a job; cannot be aborted either.
pub(crate) fn outlast<F>(core: &Arc<Core>, name: Name, end: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let id = core.tasks.register(name.clone(), PollClock::default());
    let registered = Registered { core: core.clone(), id, failure: None };
    let guarded = Guarded::new(core.dn.clone(), PollClock::default(), end);
    drop(core.runtime().spawn(async move {
        let failure = guarded.await.err();
        registered.end(failure.map(|text| Exit::Panicked(format!("{name} {text}"))));
    }));
}

/// Starts a blocking job of an incarnation.
pub(crate) fn spawn_job<T, F>(core: &Arc<Core>, name: Name, job: F) -> crate::Job<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (tx, rx) = tokio::sync::oneshot::channel();
    let id = core.tasks.register(name.clone(), PollClock::default());
    let registered = Registered { core: core.clone(), id, failure: None };
    // The handle is not needed: the job reports its own end.
    drop(core.runtime().spawn_blocking(move || {
        let dn = registered.core.dn.clone();
        let failure = match panics::catch(|| logtree::sync_with_dn(dn, job)) {
            Ok(value) => {
                // Nobody may be waiting for it, and it may panic when dropped.
                panics::catch(|| drop(tx.send(value))).err()
            }
            Err(text) => Some(text),
        };
        registered.end(failure.map(|text| Exit::Panicked(format!("job {name} {text}"))));
    }));
    crate::Job::new(rx)
}

fn exit_of_stop(stop: Stop, incarnation: u64) -> Exit {
    match stop {
        Stop::Cancelled(c) if c.incarnation == incarnation => Exit::Cancelled,
        Stop::Cancelled(_) => {
            Exit::Failed("returned the Cancelled of another incarnation".to_owned())
        }
        Stop::Restart(why) => Exit::Restart(why),
        Stop::Failed(failure) => Exit::Failed(failure.to_string()),
    }
}

fn exit_of(result: Result<Outcome, String>, incarnation: u64) -> Exit {
    match result {
        Ok(Ok(done)) if done.incarnation == incarnation => Exit::Done,
        Ok(Ok(_)) => Exit::Failed("returned the Done of another incarnation".to_owned()),
        Ok(Err(stop)) => exit_of_stop(stop, incarnation),
        Err(text) => Exit::Panicked(text),
    }
}

/// Runs an incarnation to its very end and reports its exit.
pub(crate) async fn run(core: Arc<Core>, run: crate::Run, stop_deadline: Duration) {
    let ctx = Context::new(core.clone());
    // The call itself is inside the future: it may panic too.
    let future = async move { run(ctx).await };
    let clock = core.tasks.main.clone();
    let mut main = Guarded::new(core.dn.clone(), clock, future);
    let mut abort = core.abort.subscribe();
    let ended = tokio::select! {
        biased;
        result = &mut main => Some(exit_of(result, core.incarnation)),
        () = core.tasks.failed() => None,
        _ = abort.wait_for(|a| *a) => Some(Exit::Aborted),
    };
    drop(main);
    core.ask_to_stop(StopReason::Ended);
    let mut exit = ended;
    if exit != Some(Exit::Aborted) {
        tokio::select! {
            biased;
            () = core.tasks.all_ended() => {}
            _ = abort.wait_for(|a| *a) => exit = Some(Exit::Aborted),
            () = tokio::time::sleep(stop_deadline) => {
                let names = core.tasks.names();
                slog::warn!(core.log, "tasks do not stop: aborted"; "tasks" => format!("{names:?}"));
            }
        }
    }
    core.tasks.abort_all();
    linger(&core).await;
    let failure = core.tasks.tasks.lock().failure.take();
    core.slot.exited(match (exit, failure) {
        // What made the main future end is the cause; a failure of a task beats a clean end.
        (None | Some(Exit::Done | Exit::Cancelled), Some(failure)) => failure,
        (Some(exit), _) => exit,
        (None, None) => Exit::Failed("a task failed".to_owned()),
    });
}

/// Waits for what cannot be aborted, visibly.
async fn linger(core: &Core) {
    if core.tasks.names().is_empty() {
        return;
    }
    let names = core.tasks.names();
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    let text = format!("has ended but for {}", names.join(", "));
    core.slot.set_own("Lingering", Some(Condition::degraded("Lingering", text)));
    core.tasks.all_ended().await;
    core.slot.set_own("Lingering", None);
}
