//! The Runnable: watches, workers, and their life (rules S10, S11, L1, B2, W1, W2).
//!
//! ```text
//! watches ──▶ mirrors ──▶ queues ──▶ 4 + 4 workers ──▶ backend, API server ──▶ events task
//!    ▲                      ▲
//! API server      backend changes, resync timer, inventory (recover)
//! ```
//!
//! Purpose: start everything that belongs to one incarnation, be healthy when it can serve, end when asked.
//! Owner: `Provisioner::run`; all tasks are spawned on its context, so that their death is its death.
//! Invariants: healthy only when every mirror saw a complete list and the backend's unfinished volumes are
//! queued; a panic while handling an item fails that item only; asked to stop, an item gets 5 s to end
//! (what is dropped then is found again at the next start).
//! It must not know: how items are handled.

use std::{any::Any, fmt::Debug, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use supervisor::{Condition, Context, Handle, Health, Name, Outcome, Severity, Stop, StopToken};
use tokio::time::Instant;

use crate::{
    Config,
    api::chain,
    backend::{Backend, Change},
    claims,
    core::{ClaimMeta, Core, Next},
    metrics::Metrics,
    mirror::{Delta, Mirror},
    names::{HOSTNAME_LABEL, node_label_key, node_label_value},
    plan, recover, volumes,
};

/// S10: how long an item may go on after the Runnable was asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// The controller. Made anew for each incarnation.
pub struct Provisioner<B> {
    core: Arc<Core<B>>,
}

/// One of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Claims,
    Volumes,
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Lane::Claims => "claims",
            Lane::Volumes => "volumes",
        }
    }
}

impl<B: Backend> Provisioner<B> {
    /// A controller that serves the claims of `backend`'s node. Does nothing yet. Called inside the service's
    /// run, so that nothing survives an incarnation but `metrics`.
    pub fn new(
        client: kube::Client,
        backend: B,
        config: Config,
        log: slog::Logger,
        metrics: Metrics,
    ) -> Provisioner<B> {
        Provisioner { core: Arc::new(Core::new(client, backend, config, log, metrics)) }
    }

    /// Serves until asked to stop.
    ///
    /// Guarantees: healthy after the first complete lists and the backend's inventory; every task ends with it.
    /// Errors: none of its own; it fails only by a panic outside the handling of an item.
    pub async fn run(self, ctx: Context) -> Outcome {
        let core = self.core;
        let stop = ctx.stop();
        let mut fault = core.config.fault.clone();
        if let Some(f) = &mut fault {
            f.mark_unchanged();
        }
        start_watches(&core, &ctx);
        let health = ctx.health();
        stop.race(synced(&core, &health)).await?;
        let unfinished = stop.race(recover::load(&core, |text| health.note(text))).await?;
        if unfinished > 0 {
            slog::info!(core.log, "volumes without a stored PV found"; "count" => unfinished);
        }
        let running = ctx.healthy();
        start_workers(&core, &running);
        let injected = async {
            let changed = match &mut fault {
                Some(f) => f.changed().await.is_ok(),
                None => false,
            };
            if !changed {
                // No sender any more, or none at all: no faults.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            // Both arms are cancel safe: neither has done anything before it ends.
            asked = stop.stopped() => Err(asked.into()),
            () = injected => panic!("injected by test"),
        }
    }
}

/// Waits for the first complete list of every watch.
async fn synced<B: Backend>(core: &Core<B>, health: &Health) {
    health.note("waits for the first complete list of claims");
    core.claims.synced().await;
    health.note("waits for the first complete list of volumes");
    core.volumes.synced().await;
    health.note("waits for the first complete list of classes");
    core.classes.synced().await;
    health.note("waits for the first list of its node");
    core.nodes.synced().await;
    health.note("");
}

fn start_watches<B: Backend>(core: &Arc<Core<B>>, ctx: &Context) {
    let client = core.api.client.clone();
    let facts = core.backend.facts();
    let own = format!("{}={}", node_label_key(&facts.driver), node_label_value(&facts.node));
    let all = watcher::Config::default;
    let claims: Api<ClaimMeta> = Api::all(client.clone());
    let pvs: Api<DeserializeGuard<PersistentVolume>> = Api::all(client.clone());
    let classes: Api<DeserializeGuard<StorageClass>> = Api::all(client.clone());
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client);
    let me = format!("metadata.name={}", facts.node);
    let watch = |kind| Watch { kind, stop: ctx.stop(), health: ctx.health() };
    let (c, w) = (Arc::clone(core), watch("PersistentVolumeClaims"));
    ctx.spawn(Name::from_static("watch-claims"), async move {
        w.run(&c, &c.claims, (claims, all()), Ok, on_claim).await
    });
    let (c, w) = (Arc::clone(core), watch("PersistentVolumes"));
    ctx.spawn(Name::from_static("watch-volumes"), async move {
        w.run(&c, &c.volumes, (pvs, all().labels(&own)), unguard, on_volume).await
    });
    let (c, w) = (Arc::clone(core), watch("StorageClasses"));
    ctx.spawn(Name::from_static("watch-classes"), async move {
        w.run(&c, &c.classes, (classes, all()), unguard, |core, _| wake_claims(core)).await
    });
    let (c, w) = (Arc::clone(core), watch("Nodes"));
    ctx.spawn(Name::from_static("watch-node"), async move {
        w.run(&c, &c.nodes, (nodes, all().fields(&me)), Ok, on_node).await
    });
}

fn start_workers<B: Backend>(core: &Arc<Core<B>>, running: &supervisor::Running) {
    let stop = running.stop();
    for lane in [Lane::Claims, Lane::Volumes] {
        for n in 0..core.config.workers.max(1) {
            let name = Name::new(&format!("{}-{n}", lane.name()))
                .unwrap_or_else(|_| Name::from_static("worker"));
            running.spawn(name, worker(Arc::clone(core), stop.clone(), lane));
        }
    }
    let owned = |work: futures::future::BoxFuture<'static, ()>| {
        let stop = stop.clone();
        async move { stop.race(work).await.map_err(Stop::from) }
    };
    let c = Arc::clone(core);
    running.spawn(
        Name::from_static("events"),
        owned(async move { c.events.write(&c.api, &c.log).await }.boxed()),
    );
    let c = Arc::clone(core);
    running.spawn(
        Name::from_static("inventory"),
        owned(async move { recover::watch_over(&*c).await }.boxed()),
    );
    let c = Arc::clone(core);
    running.spawn(
        Name::from_static("backend-changes"),
        owned(async move { follow(&c).await }.boxed()),
    );
    let c = Arc::clone(core);
    running.spawn(Name::from_static("resync"), owned(async move { resync(&c).await }.boxed()));
}

/// One watch of the API server.
struct Watch {
    kind: &'static str,
    stop: StopToken,
    health: Health,
}

/// One object the API server sent could not be read: which, and why.
struct Unreadable {
    name: String,
    why: String,
}

fn unguard<K>(guarded: DeserializeGuard<K>) -> Result<K, Unreadable>
where
    K: Resource<DynamicType = ()>,
{
    guarded.0.map_err(|bad| Unreadable {
        name: bad.metadata.name.clone().unwrap_or_default(),
        why: bad.error.to_string(),
    })
}

impl Watch {
    async fn run<B, W, K>(
        &self,
        core: &Core<B>,
        mirror: &Mirror<K>,
        (api, config): (Api<W>, watcher::Config),
        read: fn(W) -> Result<K, Unreadable>,
        tell: fn(&Core<B>, Delta<K>),
    ) -> Result<(), Stop>
    where
        B: Backend,
        W: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K: Resource,
    {
        let condition = format!("Watch{}", self.kind);
        let mut last_error = String::new();
        let mut stream = pin!(watcher::watcher(api, config).default_backoff());
        loop {
            let Some(next) = self.stop.race(stream.next()).await? else {
                return Err(Stop::failed(format!("the watch of {} ended", self.kind)));
            };
            let event = match next {
                Ok(event) => event,
                Err(e) => {
                    // Logged when it changes, not at each of the retries.
                    let text = chain(&e);
                    if text != last_error {
                        slog::warn!(core.log, "watch interrupted"; "resource" => self.kind, "error" => &text);
                        self.health.set(Condition {
                            kind: condition.clone(),
                            severity: Severity::Degraded,
                            message: format!("cannot watch {}: {text}", self.kind),
                        });
                        last_error = text;
                    }
                    continue;
                }
            };
            if !last_error.is_empty() {
                last_error.clear();
                self.health.clear(&condition);
                slog::info!(core.log, "watch restored"; "resource" => self.kind);
            }
            for delta in self.take(core, mirror, read, event) {
                tell(core, delta);
            }
        }
    }

    /// Reads the object of an event; one that cannot be read stops nothing but itself.
    fn take<B, W, K: Resource>(
        &self,
        core: &Core<B>,
        mirror: &Mirror<K>,
        read: fn(W) -> Result<K, Unreadable>,
        event: Event<W>,
    ) -> Vec<Delta<K>> {
        let unreadable = |bad: Unreadable| {
            slog::warn!(core.log, "object not understood"; "resource" => self.kind, "name" => &bad.name, "error" => bad.why);
            mirror.unreadable(&bad.name).into_iter().collect()
        };
        let (object, wrap): (W, fn(K) -> Event<K>) = match event {
            Event::Init => return mirror.apply(Event::Init),
            Event::InitDone => return mirror.apply(Event::InitDone),
            Event::Apply(o) => (o, Event::Apply),
            Event::InitApply(o) => (o, Event::InitApply),
            Event::Delete(o) => (o, Event::Delete),
        };
        match read(object) {
            Ok(object) => mirror.apply(wrap(object)),
            Err(bad) => unreadable(bad),
        }
    }
}

fn on_claim<B: Backend>(core: &Core<B>, delta: Delta<ClaimMeta>) {
    match delta {
        Delta::Changed(old, new) => {
            let Some(uid) = new.metadata.uid.as_deref() else { return };
            let facts = core.backend.facts();
            let moved = old.is_none_or(|o| {
                plan::selected(&o.metadata, facts) != plan::selected(&new.metadata, facts)
            });
            // A claim that fails is looked at when its back-off is over, not at each of its events.
            if moved || !core.claim_memory.lock().attempts.is_failing(uid) {
                core.claim_queue.add(uid);
            }
        }
        Delta::Gone(old) => {
            if let Some(uid) = old.metadata.uid.as_deref() {
                core.claim_queue.add(uid);
            }
        }
    }
}

fn on_volume<B: Backend>(core: &Core<B>, delta: Delta<PersistentVolume>) {
    // E1: a claim that grows may have waited for its PV to be bound.
    if let Delta::Changed(old, new) = &delta
        && plan::PvView(new).phase() == "Bound"
        && old.as_ref().is_none_or(|old| plan::PvView(old).phase() != "Bound")
        && let Some(uid) = plan::PvView(new).claim_uid()
        && core.claims.get(uid).is_some()
    {
        core.claim_queue.add(uid);
    }
    let (Delta::Changed(_, pv) | Delta::Gone(pv)) = delta;
    let Some(name) = pv.metadata.name.as_deref() else { return };
    if !core.volume_memory.lock().attempts.is_failing(name) {
        core.volume_queue.add(name);
    }
}

fn on_node<B: Backend>(core: &Core<B>, delta: Delta<PartialObjectMeta<Node>>) {
    let label = |n: &PartialObjectMeta<Node>| {
        n.metadata.labels.as_ref().and_then(|l| l.get(HOSTNAME_LABEL)).cloned()
    };
    let same = match &delta {
        Delta::Changed(Some(old), new) => label(old) == label(new),
        Delta::Changed(None, _) | Delta::Gone(_) => false,
    };
    if !same {
        wake_claims(core);
        wake_volumes(core);
    }
}

/// B2: something all claims depend on has changed.
fn wake_claims<B: Backend>(core: &Core<B>) {
    for claim in core.claims.all() {
        if let Some(uid) = claim.metadata.uid.as_deref()
            && core.known_volume(uid).is_none()
        {
            core.claim_queue.add(uid);
        }
    }
}

fn wake_volumes<B: Backend>(core: &Core<B>) {
    for pv in core.volumes.all() {
        if let Some(name) = pv.metadata.name.as_deref() {
            core.volume_queue.add(name);
        }
    }
}

/// B2, V8: more room wakes failing claims, an unmount wakes volumes that wait for it.
async fn follow<B: Backend>(core: &Core<B>) {
    let mut changes = core.backend.changes();
    let mut available = None;
    while let Some(change) = changes.next().await {
        match change {
            Change::Capacity(room) => {
                let rose = available.is_some_and(|before| room.available_bytes > before);
                available = Some(room.available_bytes);
                if rose {
                    wake_claims(core);
                }
            }
            Change::Published => {
                let waiting: Vec<String> =
                    core.volume_memory.lock().waiting.keys().cloned().collect();
                for name in waiting {
                    core.volume_queue.add(&name);
                }
            }
            // What waits for it waits in `recover`, or retries.
            Change::Status => {}
        }
    }
    // The backend's owner is gone; the Runnable is about to be stopped.
    std::future::pending().await
}

/// L1: every so often everything is looked at again, from the copies.
async fn resync<B: Backend>(core: &Core<B>) {
    loop {
        tokio::time::sleep(core.config.resync).await;
        wake_claims(core);
        wake_volumes(core);
    }
}

async fn worker<B: Backend>(core: Arc<Core<B>>, stop: StopToken, lane: Lane) -> Result<(), Stop> {
    let queue = match lane {
        Lane::Claims => &core.claim_queue,
        Lane::Volumes => &core.volume_queue,
    };
    loop {
        let key = stop.race(queue.next()).await?;
        let began = Instant::now();
        let item = async {
            match lane {
                Lane::Claims => claims::handle(&*core, &key).await,
                Lane::Volumes => volumes::handle(&*core, &key).await,
            }
        };
        let handled = AssertUnwindSafe(item).catch_unwind();
        let deadline = async {
            let asked = stop.stopped().await;
            tokio::time::sleep(DRAIN).await;
            asked
        };
        let next = tokio::select! {
            // Dropping the item is safe: its intent is durable and its steps can be repeated.
            biased;
            next = handled => next,
            asked = deadline => return Err(asked.into()),
        };
        let next = next.unwrap_or_else(|payload| {
            core.metrics.panicked();
            slog::error!(core.log, "handling an item panicked"; "queue" => lane.name(), "item" => &key,
                "panic" => panic_text(&*payload));
            Next::Retry
        });
        settle(&core, lane, &key, next);
        queue.done(&key);
        core.metrics.worked(lane.name(), queue.depth(), began.elapsed(), next == Next::Retry);
    }
}

/// Puts the item back as its handler said.
fn settle<B: Backend>(core: &Core<B>, lane: Lane, key: &str, next: Next) {
    match (lane, next) {
        (_, Next::Forget) => {}
        (Lane::Claims, Next::Retry) => {
            let delay = core.claim_memory.lock().attempts.failed(key, core.config.backoff);
            core.claim_queue.add_after(key, delay);
        }
        (Lane::Volumes, Next::Retry) => {
            let delay = core.volume_memory.lock().attempts.failed(key, core.config.backoff);
            core.volume_queue.add_after(key, delay);
        }
        (Lane::Claims, Next::After(delay)) => core.claim_queue.add_after(key, delay),
        (Lane::Volumes, Next::After(delay)) => core.volume_queue.add_after(key, delay),
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
