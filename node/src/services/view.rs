//! Runnable `node-view`: fills what the dashboard and the host channel show, and marks boot phases.
//!
//! Owner of the two watch values `NodeView` and `VolumesView`. Invariants: reads only; nothing it cannot
//! learn stops it. Must not know: how anything is shown.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dashboard::{
    BootOutcome, Capacity, ChildExits, NodeCondition, NodeView, Phase, VolumeCondition, VolumeView,
    VolumesView,
};
use futures::FutureExt;
use jiff::Timestamp;
use logtree::Dn;
use supervisor::prelude::*;
use tokio::sync::watch;
use volumes::{CapacityView, EnginePhase, VolumeSummary};

use crate::clock;
use crate::outcome::{BootRecord, ready_marker};
use crate::params::RunMode;
use crate::root::Shared;

mod history;
mod machine;

pub use machine::rss_self;

/// Figures that no event announces (memory, pressure, used bytes) are read this often.
const REFRESH: Duration = Duration::from_secs(5);

/// Changes that come in a burst are shown together.
const COALESCE: Duration = Duration::from_millis(200);

/// The service.
pub fn service(shared: Shared) -> Service {
    let mut service =
        Service::new(Name::from_static("node-view"), move |ctx| run(ctx, shared.clone()));
    service.policy.critical = false;
    service
}

async fn run(ctx: Context, shared: Shared) -> Outcome {
    let booted = Timestamp::now().checked_sub(clock::uptime()).ok();
    let mut sources = Sources::of(&shared);
    let mut machine = machine::Machine::new(&shared.machine);
    let mut history = history::History::default();
    let running = ctx.healthy();
    let stop = running.stop();
    loop {
        phases(&shared, &sources);
        let mut volumes = volumes_view(&shared).await;
        let mut node = node_view(&shared, &sources, &mut machine, booted);
        history.note(clock::uptime(), Timestamp::now(), &mut node, &mut volumes);
        publish(&shared.volumes_view, volumes);
        publish(&shared.node_view, node);
        stop.race(sources.changed()).await?;
        stop.race(tokio::time::sleep(COALESCE)).await?;
    }
}

fn publish<T: PartialEq>(to: &watch::Sender<Arc<T>>, value: T) {
    to.send_if_modified(|old| {
        let changed = **old != value;
        if changed {
            *old = Arc::new(value);
        }
        changed
    });
}

/// What announces its changes.
struct Sources {
    status: watch::Receiver<volumes::EngineStatus>,
    published: watch::Receiver<volumes::Published>,
    progress: watch::Receiver<kubernetes::Progress>,
    cluster: watch::Receiver<kubernetes::NodeStatus>,
}

impl Sources {
    fn of(shared: &Shared) -> Sources {
        Sources {
            status: shared.engine.status(),
            published: shared.engine.published(),
            progress: shared.cluster.progress.clone(),
            cluster: shared.cluster.node.clone(),
        }
    }

    /// Waits for a change or for [`REFRESH`]. Cancel safe: it only looks.
    async fn changed(&mut self) {
        // A sender that is gone never changes again and must not wake us for ever.
        let news = futures::future::select_all([
            seen(&mut self.status).boxed(),
            seen(&mut self.published).boxed(),
            seen(&mut self.progress).boxed(),
            seen(&mut self.cluster).boxed(),
        ]);
        let _ = tokio::time::timeout(REFRESH, news).await;
    }
}

async fn seen<T>(from: &mut watch::Receiver<T>) {
    if from.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn phases(shared: &Shared, sources: &Sources) {
    let phases = &shared.machine.phases;
    let storage = matches!(sources.status.borrow().phase, EnginePhase::Ready);
    let progress = *sources.progress.borrow();
    let cluster = shared.machine.parameters.run == RunMode::Cluster;
    if storage {
        phases.reach("storage");
    }
    if progress.controlplane_ready {
        phases.reach("controlplane");
    }
    if progress.node_ready {
        phases.reach("node-ready");
    }
    // The dashboard was started before this Runnable and binds its socket first of all.
    if storage && (!cluster || progress.node_ready) {
        phases.announce_once("ready", || ready_marker(&shared.dashboard_url()));
    }
}

async fn volumes_view(shared: &Shared) -> VolumesView {
    let capacity = *shared.engine.capacity().borrow();
    let summaries = shared.engine.summaries().await;
    let kubelet = &shared.machine.data.kubelet;
    let bind = Bind { backing: kubelet.backing.full_path(), shown: kubelet.dir.full_path() };
    VolumesView {
        capacity: capacity_view(capacity),
        volumes: summaries.into_iter().map(|v| volume_view(v, &bind)).collect(),
    }
}

/// One directory that can be seen at two places.
struct Bind<'a> {
    backing: &'a Path,
    shown: &'a Path,
}

/// The mount table lists what is mounted below a shared bind once at each of its two places; people mounted
/// it once, at the place that programs know.
fn folded(targets: &[PathBuf], bind: &Bind<'_>) -> Vec<String> {
    let twin = |target: &PathBuf| {
        let rest = target.strip_prefix(bind.backing).ok()?;
        let twin = bind.shown.join(rest);
        (twin != *target).then_some(twin)
    };
    let once = targets.iter().filter(|t| !twin(t).is_some_and(|twin| targets.contains(&twin)));
    once.map(|t| t.display().to_string()).collect()
}

fn capacity_view(c: CapacityView) -> Capacity {
    Capacity {
        total_bytes: c.total.0,
        reserve_bytes: c.reserve.0,
        other_bytes: c.other.0,
        committed_bytes: c.committed.0,
        available_bytes: c.available.0,
    }
}

fn volume_view(v: VolumeSummary, bind: &Bind<'_>) -> VolumeView {
    let limit = |n: u64| (n > 0).then_some(n);
    let (claim, pv) = owner(&v.owner);
    VolumeView {
        id: v.id,
        claim,
        pv,
        kind: match v.kind {
            volumes::VolumeKind::Filesystem => "directory".to_owned(),
            volumes::VolumeKind::Block => "block".to_owned(),
        },
        limit_bytes: limit(v.limit_bytes),
        used_bytes: v.used_bytes,
        inodes_limit: limit(v.inode_limit),
        inodes_used: v.inodes_used,
        state: format!("{:?}", v.state).to_lowercase(),
        conditions: v
            .conditions
            .into_iter()
            .map(|c| VolumeCondition { kind: format!("{:?}", c.kind), message: c.message })
            .collect(),
        published: folded(&v.targets, bind),
        created: None,
        history: Vec::new(),
    }
}

/// Claim (`namespace/name`) and PV in the owner's note, as the provisioner writes it. The note is the
/// provisioner's own: whatever does not look so is simply not shown.
fn owner(note: &str) -> (Option<String>, Option<String>) {
    let note: serde_json::Value = serde_json::from_str(note).unwrap_or_default();
    let text = |pointer: &str| note.pointer(pointer).and_then(|t| t.as_str()).map(str::to_owned);
    let claim = text("/namespace").zip(text("/name"));
    (claim.map(|(namespace, name)| format!("{namespace}/{name}")), text("/pv"))
}

fn node_view(
    shared: &Shared,
    sources: &Sources,
    machine: &mut machine::Machine,
    booted: Option<Timestamp>,
) -> NodeView {
    let m = &shared.machine;
    let cluster = sources.cluster.borrow().clone();
    let mut view = machine.look();
    view.node_name.clone_from(&m.parameters.node_name);
    view.version = crate::VERSION.to_owned();
    view.boot_id.clone_from(&m.boot_id);
    view.booted = booted;
    view.addresses = vec![m.parameters.network.address.to_string()];
    view.shutdown = shutdown(shared);
    view.orphans_reaped = m.spawner.reaper().orphans();
    view.kmsg_lost = shared.kmsg_lost.load(Ordering::Relaxed);
    view.child_exits = m.spawner.exits().into_iter().map(child_exits).collect();
    view.phases = m
        .phases
        .list()
        .into_iter()
        .map(|(name, at)| Phase { name: name.to_owned(), uptime_s: at.as_secs_f64() })
        .collect();
    view.outcomes = m
        .ledger
        .as_ref()
        .map(|l| l.lock().boots().iter().rev().map(boot_outcome).collect())
        .unwrap_or_default();
    for (name, version) in
        [("kubelet", &cluster.kubelet_version), ("container runtime", &cluster.runtime_version)]
    {
        if !version.is_empty() {
            view.components.insert(name.to_owned(), version.clone());
        }
    }
    view.conditions = cluster.conditions.into_iter().map(node_condition).collect();
    view
}

/// The stage of an orderly shutdown that is going on.
fn shutdown(shared: &Shared) -> Option<String> {
    let slot = shared.machine.supervisor.borrow();
    let snapshot = slot.as_ref()?.view().borrow().clone();
    let stage = snapshot.shutdown_stage.map_or_else(String::new, |s| format!(", stage {s}"));
    snapshot.shutting_down.then(|| format!("the node goes down{stage}"))
}

fn node_condition(c: kubernetes::NodeCondition) -> NodeCondition {
    NodeCondition {
        kind: c.kind,
        status: c.status,
        reason: c.reason,
        message: c.message,
        since: (c.since > 0).then(|| Timestamp::from_second(c.since).ok()).flatten(),
    }
}

fn child_exits(((dn, how), count): ((Dn, String), u64)) -> ChildExits {
    ChildExits { dn: dn.as_str().to_owned(), how, count }
}

fn boot_outcome(boot: &BootRecord) -> BootOutcome {
    let at = |ms: i64| Timestamp::from_millisecond(ms).ok();
    BootOutcome {
        boot_id: boot.boot_id.clone(),
        began: at(boot.began_ms),
        ended: boot.ended_ms.and_then(at),
        outcome: boot.outcome.clone(),
        reason: boot.reason.clone(),
        text: boot.text.clone(),
        clean: boot.clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w2_what_is_seen_at_both_ends_of_a_bind_is_published_once() {
        let bind = Bind {
            backing: Path::new("/data/kubernetes/kubelet"),
            shown: Path::new("/var/lib/kubelet"),
        };
        let shown =
            |paths: &[&str]| folded(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), &bind);
        let (backing, place) =
            ("/data/kubernetes/kubelet/pods/u/mount", "/var/lib/kubelet/pods/u/mount");
        assert_eq!(shown(&[backing, place]), [place]);
        assert_eq!(shown(&[place, backing, "/mnt/x"]), [place, "/mnt/x"]);
        // Seen at the backing place only: still published somewhere.
        assert_eq!(shown(&[backing]), [backing]);
        assert_eq!(shown(&["/data/kubernetes/kubelet2/x"]), ["/data/kubernetes/kubelet2/x"]);
        let same = Bind { backing: Path::new("/k"), shown: Path::new("/k") };
        assert_eq!(folded(&[PathBuf::from("/k/a")], &same), ["/k/a"]);
    }

    #[test]
    fn the_claim_of_a_volume_is_read_from_the_provisioners_note() {
        let note = r#"{"v":1,"namespace":"ns","name":"c","uid":"u","pv":"pvc-u"}"#;
        assert_eq!(owner(note), (Some("ns/c".to_owned()), Some("pvc-u".to_owned())));
        assert_eq!(owner(""), (None, None));
        assert_eq!(owner("[1]"), (None, None));
    }
}
