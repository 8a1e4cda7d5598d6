//! For tests: a tree on one paused runtime, and Runnables that do as they are told (rule X8).
//!
//! ```ignore
//! #[tokio::test(start_paused = true)]
//! async fn x() {
//!     let (service, remote) = Remote::new("a");
//!     let tree = Harness::start(vec![service]);
//!     tree.settled().await;
//!     remote.healthy().await;
//!     tree.end().await;
//! }
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use logtree::{Dn, Limits, LogTree, Name, Query};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::{
    AddError, Config, Context, Handle, NodeSnapshot, Outcome, Phase, Quiet, Running, Service,
    Snapshot, State, Stop, StopReason, Supervisor,
};

/// A tree whose root starts the given services, says healthy and waits.
#[derive(Debug)]
pub struct Harness {
    /// The tree.
    pub supervisor: Supervisor,
    logs: LogTree,
    may_die: Mutex<BTreeSet<Dn>>,
    ended: bool,
}

impl Harness {
    /// Starts the tree on the current runtime.
    pub fn start(services: Vec<Service>) -> Harness {
        let root = Service::new(Name::from_static("root"), move |ctx: Context| {
            let services = services.clone();
            async move {
                for service in services {
                    // A stopping root is cancelled right after.
                    if let Err(AddError::Stopping(cancelled)) = ctx.run(service).await {
                        return Err(cancelled.into());
                    }
                }
                let running = ctx.healthy();
                Err(running.stop().stopped().await.into())
            }
        });
        Harness::start_root(root)
    }

    /// Starts a tree with a root of the caller's.
    pub fn start_root(root: Service) -> Harness {
        let logs = LogTree::new(Limits::default());
        let config = Config { logs: logs.clone(), seed: 1, on_current_runtime: true };
        let supervisor = Supervisor::start(root, config);
        Harness { supervisor, logs, may_die: Mutex::default(), ended: false }
    }

    /// The log of the tree.
    pub fn logs(&self) -> &LogTree {
        &self.logs
    }

    /// Deaths of this node and below it are no failure of the test.
    pub fn may_die(&self, dn: &'static str) {
        self.may_die.lock().insert(Dn::from_static(dn));
    }

    /// Waits until nothing can run any more: with a paused clock, time passes only then.
    pub async fn settled(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// The tree now.
    pub fn view(&self) -> Arc<Snapshot> {
        self.supervisor.view().borrow().clone()
    }

    /// One node now.
    pub fn find(&self, dn: &str) -> Option<Arc<NodeSnapshot>> {
        self.view().nodes.iter().find(|n| n.dn.as_str() == dn).cloned()
    }

    /// One node now.
    ///
    /// # Panics
    /// If there is no such node: the test expects one.
    pub fn node(&self, dn: &str) -> Arc<NodeSnapshot> {
        match self.find(dn) {
            Some(node) => node,
            None => panic!("there is no node {dn}"),
        }
    }

    /// State and phase of a node now, as `healthy running`.
    pub fn state(&self, dn: &str) -> String {
        let node = self.node(dn);
        format!("{} {}", node.state.as_str(), node.phase.as_str())
    }

    /// The changes of a node so far, as `new running`.
    pub fn transitions(&self, dn: &str) -> Vec<String> {
        let node = self.node(dn);
        node.transitions.iter().map(|t| format!("{} {}", t.to.as_str(), t.phase)).collect()
    }

    /// Waits until a node has this state and its Runnable runs, as long as it takes.
    pub async fn reached(&self, dn: &str, state: State) {
        let mut view = self.supervisor.view();
        let there = |s: &Arc<Snapshot>| {
            let mut nodes = s.nodes.iter();
            nodes.any(|n| n.dn.as_str() == dn && n.state == state && n.phase == Phase::Running)
        };
        // The tree outlives the harness that holds it.
        let _ = view.wait_for(there).await;
    }

    /// Waits until a node has this state, whatever is being done with it, as long as it takes.
    pub async fn reached_state(&self, dn: &str, state: State) {
        let mut view = self.supervisor.view();
        let there =
            |s: &Arc<Snapshot>| s.nodes.iter().any(|n| n.dn.as_str() == dn && n.state == state);
        let _ = view.wait_for(there).await;
    }

    /// The log of a DN and below as text.
    pub fn log_of(&self, dn: &str) -> String {
        let query = Dn::new(dn).map(Query::all).unwrap_or_else(|_| Query::all(Dn::ALL));
        let Ok(mut reader) = self.logs.read(query) else { return String::new() };
        reader.next(usize::MAX).entries.iter().map(|e| logtree::to_text(e)).collect()
    }

    /// Ends the test without shutting the tree down: it was, or something is stuck on purpose.
    pub fn abandon(mut self) {
        self.ended = true;
    }

    /// Shuts the tree down.
    ///
    /// # Panics
    /// If something is stuck, or died that was not allowed to.
    pub async fn end(mut self) {
        self.ended = true;
        let quiet = self.supervisor.shutdown().await;
        assert_eq!(quiet, Quiet { stuck: Vec::new() }, "{}", self.log_of(""));
        let may_die = self.may_die.lock().clone();
        for node in &self.view().nodes {
            let allowed = may_die.iter().any(|dn| dn.contains(&node.dn));
            assert!(allowed || node.deaths == 0, "{} died:\n{}", node.dn, self.log_of(""));
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_of(""));
        } else {
            assert!(self.ended, "end the test by `harness.end().await`");
        }
    }
}

/// What a [`Remote`] is told.
enum Command {
    Run(Vec<Service>, oneshot::Sender<Result<(), AddError>>),
    Healthy,
    End(End),
    IgnoreStop,
    Block(oneshot::Receiver<()>),
    Task(End),
    Act(Act),
}

type Act = Box<dyn FnOnce(&dyn Health) + Send>;

enum End {
    Done,
    Fail(String),
    Panic,
    Restart(String),
}

/// What [`Remote::act`] may do.
pub trait Health {
    /// The node's health.
    fn health(&self) -> crate::Health;
    /// Why it is asked to stop.
    fn reason(&self) -> Option<StopReason>;
}

#[derive(Debug, Default)]
struct Shared {
    commands: Mutex<Option<mpsc::Sender<Command>>>,
}

/// Controls a Runnable that does as it is told; always its present incarnation.
#[derive(Debug, Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

impl Remote {
    /// A service and its control.
    pub fn new(name: &'static str) -> (Service, Remote) {
        let shared = Arc::new(Shared::default());
        let remote = Remote { shared: shared.clone() };
        let service = Service::new(Name::from_static(name), move |ctx| obey(ctx, shared.clone()));
        (service, remote)
    }

    async fn tell(&self, command: Command) {
        let sender = self.shared.commands.lock().clone();
        let Some(sender) = sender else { panic!("the Runnable was not started") };
        assert!(sender.send(command).await.is_ok(), "the Runnable does not run");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Makes it start children as one unit.
    pub async fn run_group(&self, group: Vec<Service>) -> Result<(), AddError> {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Run(group, reply)).await;
        match answer.await {
            Ok(result) => result,
            Err(_) => panic!("the Runnable ended meanwhile"),
        }
    }

    /// Makes it start a child that it controls.
    pub async fn run(&self, name: &'static str) -> Remote {
        let (service, remote) = Remote::new(name);
        if let Err(e) = self.run_group(vec![service]).await {
            panic!("{e}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        remote
    }

    /// Makes it say healthy.
    pub async fn healthy(&self) {
        self.tell(Command::Healthy).await;
    }

    /// Makes it return Done.
    pub async fn done(&self) {
        self.tell(Command::End(End::Done)).await;
    }

    /// Makes it fail.
    pub async fn fail(&self, text: &str) {
        self.tell(Command::End(End::Fail(text.to_owned()))).await;
    }

    /// Makes it panic.
    pub async fn panic(&self) {
        self.tell(Command::End(End::Panic)).await;
    }

    /// Makes it ask for a restart.
    pub async fn restart(&self, why: &str) {
        self.tell(Command::End(End::Restart(why.to_owned()))).await;
    }

    /// Makes it deaf to stop.
    pub async fn ignore_stop(&self) {
        self.tell(Command::IgnoreStop).await;
    }

    /// Makes it start a blocking job that ends when the sender is used or dropped.
    pub async fn block(&self) -> oneshot::Sender<()> {
        let (release, released) = oneshot::channel();
        self.tell(Command::Block(released)).await;
        release
    }

    /// Makes a task of it fail.
    pub async fn fail_task(&self, text: &str) {
        self.tell(Command::Task(End::Fail(text.to_owned()))).await;
    }

    /// Makes a task of it panic.
    pub async fn panic_task(&self) {
        self.tell(Command::Task(End::Panic)).await;
    }

    /// Runs a function in it.
    pub async fn act(&self, f: impl FnOnce(&dyn Health) + Send + 'static) {
        self.tell(Command::Act(Box::new(f))).await;
    }
}

enum Stage {
    New(Context),
    Healthy(Running),
}

macro_rules! either {
    ($stage:expr, $handle:ident => $body:expr) => {
        match $stage {
            Stage::New($handle) => $body,
            Stage::Healthy($handle) => $body,
        }
    };
}

impl Health for Stage {
    fn health(&self) -> crate::Health {
        either!(self, h => h.health())
    }

    fn reason(&self) -> Option<StopReason> {
        either!(self, h => h.stop().reason())
    }
}

async fn obey(ctx: Context, shared: Arc<Shared>) -> Outcome {
    let (sender, mut commands) = mpsc::channel(16);
    *shared.commands.lock() = Some(sender);
    let mut deaf = false;
    let stop = ctx.stop();
    let mut stage = Stage::New(ctx);
    loop {
        let command = tokio::select! {
            biased;
            Some(command) = commands.recv() => command,
            cancelled = stop.stopped(), if !deaf => return Err(cancelled.into()),
        };
        match command {
            Command::Run(group, reply) => {
                let Stage::New(ctx) = &stage else { panic!("run after healthy") };
                let _ = reply.send(ctx.run_group(group).await);
            }
            Command::Healthy => {
                let Stage::New(ctx) = stage else { panic!("healthy said twice") };
                stage = Stage::Healthy(ctx.healthy());
            }
            Command::IgnoreStop => deaf = true,
            Command::Act(f) => f(&stage),
            Command::Block(released) => {
                let name = Name::from_static("block");
                let job = move || drop(released.blocking_recv());
                drop(either!(&stage, h => h.spawn_blocking(name, job)));
            }
            Command::Task(end) => {
                let name = Name::from_static("task");
                let task = async move {
                    match end {
                        End::Panic => panic!("told to"),
                        End::Fail(text) | End::Restart(text) => Err(Stop::failed(text)),
                        End::Done => Ok(()),
                    }
                };
                either!(&stage, h => h.spawn(name, task));
            }
            Command::End(End::Done) => {
                let Stage::Healthy(running) = stage else { panic!("done before healthy") };
                return Ok(running.done());
            }
            Command::End(End::Fail(text)) => return Err(Stop::failed(text)),
            Command::End(End::Restart(why)) => return Err(Stop::Restart(why)),
            Command::End(End::Panic) => panic!("told to"),
        }
    }
}
