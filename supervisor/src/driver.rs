//! Carries out what the tree decides: the one task that owns it (rule X1).
//!
//! Order within a turn: what incarnations have said and exits, then timers, then at most 64
//! requests. Runs on a thread and runtime of its own, so that restarts, shutdown and the watch over
//! long polls work while every worker of the shared runtime is busy. Wakes up only for events and,
//! every 5 s, to look for stalled polls (rules X4, X7).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use logtree::{Dn, Level, LogTree};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::context::Core;
use crate::meter::Meter;
use crate::runner::{self, TaskSet};
use crate::slot::{Mailbox, Slot};
use crate::tree::record::Recorder;
use crate::tree::{Effect, Event, Exit, Refusal, Spec, Tick, Tree, WallClock};
use crate::{Condition, Fatal, Placement, Quiet, Service, Snapshot};

/// How often stalled polls and child processes are looked at.
const CHECK: Duration = Duration::from_secs(5);
/// A poll that runs longer is stalled.
const STALLED: Duration = Duration::from_secs(1);
/// A snapshot is made again only after so many times the time it took: a few percent of the driver's
/// time. A tree of 60 nodes takes some 20 µs, so nobody sees the delay.
const PUBLISH_SHARE: u32 = 20;
/// The wall clock was set if it is off by more.
const CLOCK_SET_NS: u64 = 1_000_000_000;
/// Requests per turn: exits must not wait behind an endless spawner.
const REQUESTS_PER_TURN: usize = 64;

/// What others ask of the driver.
#[derive(Debug)]
pub(crate) enum Request {
    Add { parent: u64, group: Vec<Service>, reply: Reply },
    Restart { dn: Dn, reply: Reply },
    Stop { dn: Dn, reply: Reply },
    Shutdown,
}

type Reply = oneshot::Sender<Result<(), Refusal>>;

/// What the driver tells others.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) view: watch::Sender<Arc<Snapshot>>,
    pub(crate) fatal: watch::Sender<Option<Fatal>>,
    pub(crate) quiet: watch::Sender<Option<Quiet>>,
    /// Turns taken, and when the last one was: for the watchdog.
    pub(crate) turned: Arc<AtomicU64>,
    pub(crate) meter: Meter,
    /// Outlives the driver: it is wanted most when the driver has panicked.
    pub(crate) recorder: Arc<Mutex<Recorder>>,
}

/// Where nodes run.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) shared: tokio::runtime::Handle,
    /// Nodes with a thread of their own get none, and nothing is checked by the real clock.
    pub(crate) single: bool,
}

/// The driver. See the module.
#[derive(Debug)]
pub(crate) struct Driver {
    tree: Tree,
    logs: LogTree,
    ground: Ground,
    mailbox: Arc<Mailbox>,
    requests: mpsc::Receiver<Request>,
    /// Handed to incarnations; also keeps the channel open.
    sender: mpsc::Sender<Request>,
    outputs: Outputs,
    start: Instant,
    wall_at_start: i64,
    next_publish: Instant,
    timers: BTreeMap<(Tick, u64), ()>,
    deadlines: HashMap<u64, Tick>,
    live: HashMap<u64, Arc<Core>>,
    /// Incarnations whose poll was too long at the last look.
    stalled: HashSet<u64>,
    services: HashMap<u64, Service>,
    replies: HashMap<u64, Reply>,
    next_token: u64,
}

impl Driver {
    pub(crate) fn new(
        seed: u64,
        logs: LogTree,
        ground: Ground,
        (sender, requests): (mpsc::Sender<Request>, mpsc::Receiver<Request>),
        outputs: Outputs,
    ) -> Driver {
        Driver {
            tree: Tree::new(seed),
            logs,
            ground,
            mailbox: Arc::default(),
            requests,
            sender,
            outputs,
            start: Instant::now(),
            wall_at_start: wall_at_start(Tick(0)),
            next_publish: Instant::now(),
            timers: BTreeMap::new(),
            deadlines: HashMap::new(),
            live: HashMap::new(),
            stalled: HashSet::new(),
            services: HashMap::new(),
            replies: HashMap::new(),
            next_token: 0,
        }
    }

    /// Runs the tree until it is quiet and nothing lives any more.
    pub(crate) async fn run(mut self, root: Service) {
        let spec = self.admit(root);
        self.step(Event::Root { spec });
        let mut check = Instant::now() + CHECK;
        while !self.over() {
            self.turn();
            let publish = self.publish_when_due();
            if self.over() {
                break;
            }
            let timer = self.timers.first_key_value().map(|((at, _), ())| self.instant(*at));
            let timer = timer.into_iter().chain(publish).min();
            let wake = match (timer, self.ground.single) {
                (timer, true) => timer,
                (timer, false) => Some(timer.map_or(check, |t| t.min(check))),
            };
            let request = tokio::select! {
                biased;
                () = self.mailbox.raised() => None,
                () = sleep_until(wake) => None,
                request = self.requests.recv() => request,
            };
            if let Some(request) = request {
                // Exits that came meanwhile go first.
                self.read_slots();
                self.on_request(request);
            }
            if !self.ground.single && Instant::now() >= check {
                check = Instant::now() + CHECK;
                self.check();
            }
        }
        self.publish();
    }

    fn over(&self) -> bool {
        self.live.is_empty() && self.outputs.quiet.borrow().is_some()
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn instant(&self, at: Tick) -> Instant {
        self.start + Duration::from_nanos(at.0)
    }

    fn turn(&mut self) {
        self.outputs.turned.store(crate::api::monotonic_ms(), Ordering::Relaxed);
        self.read_slots();
        self.fire_timers();
        for _ in 0..REQUESTS_PER_TURN {
            let Ok(request) = self.requests.try_recv() else { break };
            self.on_request(request);
        }
        self.read_slots();
    }

    fn read_slots(&mut self) {
        loop {
            let raised = self.mailbox.take();
            if raised.is_empty() {
                return;
            }
            for incarnation in raised {
                self.read_slot(incarnation);
            }
        }
    }

    fn read_slot(&mut self, incarnation: u64) {
        let Some(core) = self.live.get(&incarnation) else { return };
        let news = core.slot.read();
        for name in news.reserved {
            self.step(Event::Reserve { incarnation, name });
        }
        if let Some((note, conditions, child)) = news.said {
            self.step(Event::Said { incarnation, note, conditions, child });
        }
        if news.healthy {
            self.step(Event::Healthy { incarnation });
        }
        if let Some(exit) = news.exit {
            self.live.remove(&incarnation);
            self.step(Event::Exited { incarnation, exit });
        }
    }

    fn fire_timers(&mut self) {
        let now = self.now();
        while let Some(((at, timer), ())) = self.timers.first_key_value() {
            if *at > now {
                return;
            }
            let (at, timer) = (*at, *timer);
            self.timers.remove(&(at, timer));
            self.deadlines.remove(&timer);
            self.step(Event::TimerFired { timer });
        }
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Add { parent, group, reply } => {
                let reply_id = self.keep_reply(reply);
                let group = group.into_iter().map(|s| self.admit(s)).collect::<Vec<Spec>>();
                let tokens: Vec<u64> = group.iter().map(|s| s.token).collect();
                let refused = self.step(Event::Add { parent, group, reply: reply_id });
                if refused {
                    tokens.iter().for_each(|t| drop(self.services.remove(t)));
                }
            }
            Request::Restart { dn, reply } => {
                let reply = self.keep_reply(reply);
                self.step(Event::RestartRequested { dn, reply });
            }
            Request::Stop { dn, reply } => {
                let reply = self.keep_reply(reply);
                self.step(Event::StopSubtree { dn, reply });
            }
            Request::Shutdown => {
                self.step(Event::Shutdown);
            }
        }
    }

    fn keep_reply(&mut self, reply: Reply) -> u64 {
        self.next_token += 1;
        self.replies.insert(self.next_token, reply);
        self.next_token
    }

    fn admit(&mut self, service: Service) -> Spec {
        self.next_token += 1;
        let token = self.next_token;
        let spec = Spec { name: service.name.clone(), policy: service.policy.clone(), token };
        self.services.insert(token, service);
        spec
    }

    /// Applies an event and carries out its effects; true if a request was refused.
    fn step(&mut self, event: Event) -> bool {
        let (kind, now) = (event.kind(), self.now());
        self.outputs.recorder.lock().before(now, &event);
        let began = std::time::Instant::now();
        let effects = self.tree.step(now, event);
        self.outputs.recorder.lock().after(effects.len());
        self.outputs.meter.stepped(kind, began.elapsed(), self.tree.stale());
        let mut refused = false;
        for effect in effects {
            refused |= matches!(&effect, Effect::Reply { result: Err(_), .. });
            self.carry_out(effect);
        }
        refused
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Start { incarnation, token, dn } => self.start_node(incarnation, token, dn),
            Effect::Stop { incarnation, reason } => {
                if let Some(core) = self.live.get(&incarnation) {
                    core.ask_to_stop(reason);
                }
            }
            Effect::Abort { incarnation } => {
                if let Some(core) = self.live.get(&incarnation) {
                    core.abort.send_replace(true);
                }
            }
            Effect::Arm { timer, at } => {
                self.timers.insert((at, timer), ());
                self.deadlines.insert(timer, at);
            }
            Effect::Disarm { timer } => {
                if let Some(at) = self.deadlines.remove(&timer) {
                    self.timers.remove(&(at, timer));
                }
            }
            Effect::Transition { dn, from, state, .. } => {
                self.outputs.meter.moved(&dn, from, state);
            }
            Effect::Reply { reply, result } => {
                if let Some(reply) = self.replies.remove(&reply) {
                    // Whoever asked may have gone.
                    let _ = reply.send(result);
                }
            }
            Effect::Log { dn, level, text } => self.log(&dn, level, &text),
            Effect::Stuck { incarnation, dn } => self.log_stuck(incarnation, &dn),
            Effect::Forget { dn, token } => {
                self.logs.vanished(&dn);
                token.and_then(|token| self.services.remove(&token));
            }
            Effect::Fatal(fatal) => {
                self.log(&fatal.dn, Level::Critical, &format!("fatal: {}", fatal.reason));
                self.outputs.fatal.send_replace(Some(fatal));
            }
            Effect::Quiet(quiet) => {
                self.publish();
                self.outputs.quiet.send_replace(Some(quiet));
            }
        }
    }

    fn log(&self, dn: &Dn, level: Level, text: &str) {
        let log = self.logs.logger(dn);
        match level {
            Level::Critical => slog::crit!(log, "{}", text),
            Level::Error => slog::error!(log, "{}", text),
            Level::Warning => slog::warn!(log, "{}", text),
            Level::Info => slog::info!(log, "{}", text),
            Level::Debug => slog::debug!(log, "{}", text),
            Level::Trace => slog::trace!(log, "{}", text),
        }
    }

    fn log_stuck(&self, incarnation: u64, dn: &Dn) {
        let names = self.live.get(&incarnation).map(|core| core.tasks.names()).unwrap_or_default();
        let what = match names.as_slice() {
            [] => "its main future does not yield".to_owned(),
            names => format!("still running: {names:?}"),
        };
        self.log(dn, Level::Error, &format!("stuck: aborted, but has not ended; {what}"));
    }

    fn start_node(&mut self, incarnation: u64, token: u64, dn: Dn) {
        let Some(service) = self.services.get(&token) else { return };
        let policy = service.policy.clone();
        let run = service.run.clone();
        self.logs.set_quota(&dn, policy.log);
        let core = Arc::new(Core {
            log: self.logs.logger(&dn),
            dn,
            incarnation,
            logs: self.logs.clone(),
            slot: Slot::new(incarnation, self.mailbox.clone()),
            tasks: TaskSet::default(),
            abort: watch::Sender::new(false),
            stop: Arc::new(watch::Sender::new(None)),
            requests: self.sender.clone(),
            runtime: Default::default(),
            names: Default::default(),
        });
        self.live.insert(incarnation, core.clone());
        let body = runner::run(core.clone(), run, policy.stop_deadline);
        match (policy.placement, self.ground.single) {
            (Placement::OwnThread, false) => own_thread(core, body),
            (Placement::OwnThread | Placement::Shared, _) => {
                // The runner reports its end through the slot.
                drop(self.ground.shared.spawn(body));
            }
        }
    }

    /// Publishes what has changed, or says when that may be done. Snapshots cost the size of the
    /// tree: in a storm they must not take more than a small share of the driver's time.
    fn publish_when_due(&mut self) -> Option<Instant> {
        if !self.tree.is_dirty() {
            return None;
        }
        let now = Instant::now();
        if !self.ground.single && now < self.next_publish {
            return Some(self.next_publish);
        }
        let began = std::time::Instant::now();
        self.publish();
        self.next_publish = now + began.elapsed() * PUBLISH_SHARE;
        None
    }

    fn publish(&mut self) {
        if self.tree.is_dirty() {
            let now = self.now();
            let at_start = wall_at_start(now);
            // Small differences are jitter, and one event should have one time in all snapshots;
            // a large one means that the clock was set. Virtual time has no such relation.
            if !self.ground.single && at_start.abs_diff(self.wall_at_start) > CLOCK_SET_NS {
                self.wall_at_start = at_start;
            }
            let snapshot = self.tree.snapshot(now, WallClock(self.wall_at_start));
            self.outputs.view.send_replace(Arc::new(snapshot));
        }
    }

    /// The look around every 5 s.
    fn check(&mut self) {
        // Also makes a parked worker of the shared runtime take over its I/O driver.
        drop(self.ground.shared.spawn(std::future::ready(())));
        // A passing level ends by itself also where nothing is said any more because of it.
        self.logs.expire_levels();
        for (incarnation, core) in &self.live {
            core.slot.refresh_stats();
            let (duration, task) = core.tasks.longest_poll();
            let stalled = (duration > STALLED).then(|| {
                let what = task.map_or("main future".to_owned(), |t| format!("task {t}"));
                let text = format!("{what} has not yielded for {:.0} s", duration.as_secs_f64());
                Condition::unhealthy("Stalled", text)
            });
            match stalled.is_some() {
                true if self.stalled.insert(*incarnation) => self.outputs.meter.stalled(&core.dn),
                true => {}
                false => drop(self.stalled.remove(incarnation)),
            }
            core.slot.set_own("Stalled", stalled);
        }
        self.stalled.retain(|incarnation| self.live.contains_key(incarnation));
        if self.tree.ages() {
            self.tree.grow_older();
        }
    }
}

/// Wall clock (ns since 1970) at tick 0, by the clock of now.
fn wall_at_start(now: Tick) -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX);
    wall.saturating_sub(i64::try_from(now.0).unwrap_or(i64::MAX))
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Runs a node on a thread and runtime of its own.
fn own_thread(core: Arc<Core>, body: impl Future<Output = ()> + Send + 'static) {
    let failed = core.clone();
    let thread = std::thread::Builder::new().name(core.dn.last().to_owned());
    let started = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(body),
            Err(e) => core.slot.exited(Exit::Failed(format!("no runtime: {e}"))),
        }
    });
    if let Err(e) = started {
        failed.slot.exited(Exit::Failed(format!("no thread: {e}")));
    }
}
