//! Scenarios: the whole controller against a scripted API server and a scripted backend, on a paused clock.
//!
//! Purpose: prove the way of a claim and of a PV, what is said on the way, and that nothing leaks when it is cut
//! anywhere.
//! Invariants: no network, no wall clock, no sleeps: each wait is for a state of the server or the backend.
//! It must not know: the engine.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_testkit::{Answer, ApiServer, mk_class, mk_node, mk_pv, mk_pvc};
use parking_lot::Mutex;
use supervisor::{Done, Name, Outcome, Service, Supervisor};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

mod resize;

use crate::{
    Config, LocalConfig, LocalEngine, Metrics, Provisioner,
    backend::{
        Backend, Capacity, Change, DeleteRequest, ExpandRequest, Orphans, Owner, Provisioned,
        Stored,
    },
    names::{
        ANN_PROVISIONED_BY, ANN_SELECTED_NODE, DEFAULT_DRIVER, HOSTNAME_LABEL, PV_FINALIZER,
        node_label_key,
    },
    plan::{CreatePlan, Facts, Failure},
    testing::facts,
};

const PVS: &str = "persistentvolumes";
const CLAIMS: &str = "persistentvolumeclaims";

/// What the next call of the backend does instead of its work.
enum Trick {
    Fail(Failure),
    /// It works, but says this.
    Lose(Failure),
    Panic,
}

#[derive(Default)]
struct Disk {
    volumes: BTreeMap<String, (Option<Owner>, bool)>,
    calls: Vec<String>,
    provision: VecDeque<Trick>,
    delete: VecDeque<Trick>,
    expand: VecDeque<Failure>,
}

/// A backend in memory that survives restarts of the controller.
#[derive(Clone)]
struct Fake {
    facts: Facts,
    disk: Arc<Mutex<Disk>>,
    server: ApiServer,
    changes: watch::Sender<Change>,
}

impl Fake {
    fn new(server: &ApiServer) -> Fake {
        let room = Change::Capacity(Capacity { available_bytes: 1 << 40 });
        Fake {
            facts: facts(),
            disk: Arc::default(),
            server: server.clone(),
            changes: watch::Sender::new(room),
        }
    }

    /// Notes a call together with the writes the server had seen by then.
    fn note(&self, call: String) {
        let writes = self.server.writes().len();
        self.disk.lock().calls.push(format!("{call} after {writes} writes"));
    }

    fn calls(&self, what: &str) -> usize {
        self.disk.lock().calls.iter().filter(|c| c.starts_with(what)).count()
    }

    fn volumes(&self) -> Vec<(String, bool)> {
        self.disk.lock().volumes.iter().map(|(h, (_, stored))| (h.clone(), *stored)).collect()
    }
}

impl Backend for Fake {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn provision(&self, plan: &CreatePlan) -> Result<Provisioned, Failure> {
        self.note(format!("provision {}", plan.name));
        let trick = self.disk.lock().provision.pop_front();
        let lost = match trick {
            Some(Trick::Fail(f)) => return Err(f),
            Some(Trick::Panic) => panic!("scripted"),
            Some(Trick::Lose(f)) => Some(f),
            None => None,
        };
        let owner = Owner::of(plan);
        self.disk.lock().volumes.entry(plan.name.clone()).or_insert((Some(owner), false));
        match lost {
            Some(f) => Err(f),
            None => Ok(Provisioned {
                handle: plan.name.clone(),
                capacity_bytes: plan.bytes,
                topology: vec![plan.segment.clone()],
                attributes: BTreeMap::new(),
            }),
        }
    }

    async fn confirm(&self, handle: &str, _owner: &Owner) -> Result<(), Failure> {
        self.note(format!("confirm {handle}"));
        if let Some((_, stored)) = self.disk.lock().volumes.get_mut(handle) {
            *stored = true;
        }
        Ok(())
    }

    async fn delete(&self, rq: &DeleteRequest) -> Result<(), Failure> {
        self.note(format!("delete {}", rq.handle));
        let trick = self.disk.lock().delete.pop_front();
        match trick {
            Some(Trick::Fail(f) | Trick::Lose(f)) => return Err(f),
            Some(Trick::Panic) => panic!("scripted"),
            None => {}
        }
        self.disk.lock().volumes.remove(&rq.handle);
        Ok(())
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        Ok(Capacity { available_bytes: 1 << 40 })
    }

    async fn expand(&self, rq: &ExpandRequest) -> Result<u64, Failure> {
        self.note(format!("expand {} to {}", rq.handle, rq.bytes));
        match self.disk.lock().expand.pop_front() {
            Some(f) => Err(f),
            None => Ok(rq.bytes),
        }
    }

    async fn inventory(&self) -> Result<Vec<Stored>, Failure> {
        let disk = self.disk.lock();
        let row = |(h, (owner, stored)): (&String, &(Option<Owner>, bool))| Stored {
            handle: h.clone(),
            owner: owner.clone(),
            stored: *stored,
        };
        Ok(disk.volumes.iter().map(row).collect())
    }

    async fn reconcile(&self, known: &BTreeSet<String>) -> Result<Orphans, Failure> {
        self.note(format!("reconcile {}", known.len()));
        Ok(Orphans::default())
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        WatchStream::new(self.changes.subscribe()).boxed()
    }
}

/// A node with its controller.
struct World {
    server: ApiServer,
    client: kube::Client,
    fake: Fake,
    fault: watch::Sender<u64>,
}

impl World {
    /// A cluster with node `n1` and class `fast`, and nothing running yet.
    fn new() -> World {
        let (server, client) = ApiServer::start();
        server.put(&mk_node("n1").label(HOSTNAME_LABEL, "host-1").build());
        server.put(&mk_class("fast", DEFAULT_DRIVER).build());
        let fake = Fake::new(&server);
        World { server, client, fake, fault: watch::Sender::new(0) }
    }

    /// Starts the controller on the fake backend.
    fn start(&self) -> Supervisor {
        let fake = self.fake.clone();
        self.start_on(move || fake.clone())
    }

    /// Starts the controller, with a new backend for each incarnation, below a root that is done at once.
    fn start_on<B: Backend>(
        &self,
        backend: impl Fn() -> B + Clone + Send + Sync + 'static,
    ) -> Supervisor {
        let (client, fault) = (self.client.clone(), self.fault.subscribe());
        let root = Service::new(Name::from_static("root"), move |ctx| {
            let (client, backend, fault) = (client.clone(), backend.clone(), fault.clone());
            async move {
                let child = Service::new(Name::from_static("provisioner"), move |ctx| {
                    let config = Config { fault: Some(fault.clone()), ..Config::default() };
                    let log = slog::Logger::root(slog::Discard, slog::o!());
                    let metrics = Metrics::default();
                    Provisioner::new(client.clone(), backend(), config, log, metrics).run(ctx)
                });
                ctx.run(child).await?;
                let done: Done = ctx.healthy().done();
                let outcome: Outcome = Ok(done);
                outcome
            }
        });
        let logs = logtree::LogTree::new(logtree::Limits::default());
        let mut config = supervisor::Config::new(logs, 1);
        config.on_current_runtime = true;
        Supervisor::start(root, config)
    }

    fn served(&self, pv: &str) -> bool {
        self.server.get(PVS, "", pv).is_object()
            && self.fake.volumes().contains(&(pv.to_owned(), true))
    }

    async fn until_served(&self, pv: &str) {
        // The last step of serving is the backend's; the event after it reaches the server.
        self.server
            .until(&format!("{pv} served"), |s| {
                s.events().contains(&format!(
                    "ProvisioningSucceeded: Successfully provisioned volume {pv}"
                ))
            })
            .await;
        assert!(self.served(pv), "{:?}", self.fake.volumes());
    }
}

fn claim(uid: &str, size: &str) -> PersistentVolumeClaim {
    mk_pvc("ns", &format!("c-{uid}"))
        .uid(uid)
        .class("fast")
        .request(size)
        .access("ReadWriteOnce")
        .provisioner(DEFAULT_DRIVER)
        .selected_node("n1")
        .build()
}

fn released(name: &str, policy: &str) -> PersistentVolume {
    mk_pv(name)
        .uid("pv-uid")
        .csi(DEFAULT_DRIVER, name)
        .annotation(ANN_PROVISIONED_BY, DEFAULT_DRIVER)
        .label(&node_label_key(DEFAULT_DRIVER), "n1")
        .affinity(HOSTNAME_LABEL, "host-1")
        .claim("ns", "gone", "gone-uid")
        .policy(policy)
        .phase("Released")
        .finalizer(PV_FINALIZER)
        .build()
}

#[tokio::test(start_paused = true)]
async fn w4_a_claim_of_this_node_gets_its_volume_with_one_write_and_one_event() {
    let w = World::new();
    w.server.put(&claim("u", "64Mi"));
    let tree = w.start();
    w.until_served("pvc-u").await;
    assert_eq!(w.server.writes(), ["POST /api/v1/persistentvolumes"]);
    assert_eq!(w.server.events(), ["ProvisioningSucceeded: Successfully provisioned volume pvc-u"]);
    assert_eq!(w.fake.calls("provision"), 1);
    let pv = w.server.get(PVS, "", "pvc-u");
    assert_eq!(pv.pointer("/spec/claimRef/uid").and_then(|v| v.as_str()), Some("u"));
    assert_eq!(pv.pointer("/spec/capacity/storage").and_then(|v| v.as_str()), Some("64Mi"));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn n2_l8_claims_of_other_nodes_and_provisioners_are_left_alone() {
    let w = World::new();
    let mut elsewhere = claim("a", "1Gi");
    elsewhere
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(ANN_SELECTED_NODE[0].into(), "n2".into());
    let theirs = mk_pvc("ns", "b")
        .uid("b")
        .class("fast")
        .request("1Gi")
        .provisioner("other")
        .selected_node("n1")
        .build();
    let waiting =
        mk_pvc("ns", "w").uid("w").class("fast").request("1Gi").provisioner(DEFAULT_DRIVER).build();
    w.server.put(&elsewhere);
    w.server.put(&theirs);
    w.server.put(&waiting);
    let tree = w.start();
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    // Two resyncs later still nothing else was done.
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert_eq!(w.fake.calls("provision"), 1);
    assert_eq!(w.server.writes().len(), 1);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v2_absurd_requests_get_an_event_and_nothing_is_created() {
    let w = World::new();
    let odd = |uid: &str, size: &str, mode: &str| {
        mk_pvc("ns", uid)
            .uid(uid)
            .class("fast")
            .request(size)
            .access(mode)
            .provisioner(DEFAULT_DRIVER)
            .selected_node("n1")
    };
    let once = "ReadWriteOnce";
    let mut block = odd("block", "1Gi", once).build();
    block.spec.get_or_insert_default().volume_mode = Some("Block".into());
    for c in [
        odd("zero", "0", once).build(),
        odd("negative", "-5Gi", once).build(),
        odd("huge", "16Ei", once).build(),
        odd("many", "1Gi", "ReadWriteMany").build(),
        odd("sideways", "1Gi", "Sideways").build(),
        block,
    ] {
        w.server.put(&c);
    }
    let tree = w.start();
    let failures = |s: &ApiServer| {
        s.events().into_iter().filter(|e| e.starts_with("ProvisioningFailed")).collect::<Vec<_>>()
    };
    w.server.until("six failures", |s| failures(s).len() == 6).await;
    let all = failures(&w.server).join("\n");
    for text in [
        "Retries will be delayed. PVC is not requesting any storage, this is not supported",
        "PVC requesting more than 2^63 bytes of storage, this is not supported",
        "access mode ReadWriteMany is not supported",
        "unsupported AccessMode combination: [Sideways]",
        "com.nexantic.smalltown.vfs does not support block volume provisioning",
    ] {
        assert!(all.contains(text), "{text} is not in\n{all}");
    }
    assert_eq!(w.fake.calls("provision"), 0);
    assert_eq!(w.server.writes(), Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l9_a_pv_of_that_name_for_another_claim_is_reported_and_the_backend_not_called() {
    let w = World::new();
    w.server.put(&mk_pv("pvc-u").csi(DEFAULT_DRIVER, "pvc-u").claim("other", "d", "x").build());
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    let text = "ProvisioningFailed: volume name pvc-u is already used by claim other/d".to_owned();
    w.server.until("the failure", |s| s.events().contains(&text)).await;
    assert_eq!(w.fake.calls("provision"), 0);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l24_a_lost_answer_to_the_pv_is_no_second_volume() {
    for answer in [
        Answer::Lose(409, "AlreadyExists"),
        Answer::Lose(500, "InternalError"),
        Answer::Lose(504, "Timeout"),
    ] {
        let w = World::new();
        w.server.script("POST", "/persistentvolumes", answer, 1);
        w.server.put(&claim("u", "1Gi"));
        let tree = w.start();
        w.server.until("a PV", |s| s.get(PVS, "", "pvc-u").is_object()).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(w.served("pvc-u"), "{:?}", w.fake.volumes());
        assert_eq!(w.server.all(PVS).len(), 1);
        assert_eq!(w.server.requests("POST", "/persistentvolumes").len(), 1);
        assert!(tree.shutdown().await.stuck.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn l24_a_pv_that_cannot_be_stored_is_reported_and_tried_again() {
    let w = World::new();
    w.server.script("POST", "/persistentvolumes", Answer::Refuse(422, "Invalid"), 2);
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    w.until_served("pvc-u").await;
    let events = w.server.events();
    assert!(
        events.iter().any(|e| e.starts_with("ProvisioningFailed: error saving volume pvc-u")),
        "{events:?}"
    );
    assert!(
        events.iter().any(|e| e.starts_with(
            "Provisioning: External provisioner is provisioning volume for claim \"ns/c-u\""
        )),
        "B5: {events:?}"
    );
    assert_eq!(w.fake.volumes(), [("pvc-u".to_owned(), true)]);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d5_d6_the_volume_goes_first_then_the_pv_then_the_finalizer() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-d".into(), (None, true));
    w.server.put(&released("pvc-d", "Delete"));
    let tree = w.start();
    w.server.until("the PV gone", |s| s.all(PVS).is_empty()).await;
    assert_eq!(w.fake.volumes(), []);
    let path = "/api/v1/persistentvolumes/pvc-d";
    assert_eq!(w.server.writes(), [format!("DELETE {path}"), format!("PATCH {path}")]);
    assert!(w.fake.disk.lock().calls.contains(&"delete pvc-d after 0 writes".to_owned()));
    let delete = w.server.requests("DELETE", path);
    assert_eq!(
        delete[0].body.pointer("/preconditions/uid").and_then(|u| u.as_str()),
        Some("pv-uid")
    );
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d3_retain_never_deletes_a_volume() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-r".into(), (None, true));
    w.server.put(&released("pvc-r", "Retain"));
    let tree = w.start();
    w.server
        .until("the finalizer off", |s| s.writes() == ["PATCH /api/v1/persistentvolumes/pvc-r"])
        .await;
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert_eq!(w.fake.calls("delete"), 0);
    assert_eq!(w.fake.volumes().len(), 1);
    assert_eq!(w.server.writes().len(), 1);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d3_w6_a_volume_just_set_to_retain_survives_a_stale_copy() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-s".into(), (None, true));
    let tree = w.start();
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    // The first try fails; before the second the policy changes unseen.
    w.fake.disk.lock().delete.push_back(Trick::Fail(Failure::no_change("busy")));
    w.server.put(&released("pvc-s", "Delete"));
    w.server
        .until("a failure", |s| s.events().contains(&"VolumeFailedDelete: busy".to_owned()))
        .await;
    w.server.put_unseen(&released("pvc-s", "Retain"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(w.fake.calls("delete pvc-s"), 1);
    assert!(w.fake.volumes().contains(&("pvc-s".to_owned(), true)));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d8_a_pv_of_another_node_is_not_touched_even_with_our_label() {
    let w = World::new();
    let mut pv = released("pvc-x", "Delete");
    pv.spec.get_or_insert_default().node_affinity =
        mk_pv("y").affinity(HOSTNAME_LABEL, "host-2").build().spec.unwrap().node_affinity;
    w.server.put(&pv);
    let tree = w.start();
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    assert_eq!(w.fake.calls("delete"), 0);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v8_a_mounted_volume_is_deleted_as_soon_as_it_is_unmounted_and_nobody_is_alarmed() {
    let w = World::new();
    w.fake.disk.lock().volumes.insert("pvc-m".into(), (None, true));
    w.fake.disk.lock().delete.push_back(Trick::Fail(Failure::waiting("mounted")));
    w.server.put(&released("pvc-m", "Delete"));
    let tree = w.start();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(w.fake.calls("delete"), 1);
    w.fake.changes.send_replace(Change::Published);
    w.server.until("the PV gone", |s| s.all(PVS).is_empty()).await;
    assert_eq!(w.server.events(), Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v5_l18_no_room_takes_the_node_off_the_claim_and_says_so() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Fail(Failure::reschedule("no space")));
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    w.server
        .until("the update", |s| {
            s.writes() == ["PUT /api/v1/namespaces/ns/persistentvolumeclaims/c-u"]
        })
        .await;
    w.server
        .until("the event", |s| s.events().contains(&"ProvisioningFailed: no space".to_owned()))
        .await;
    let annotations =
        w.server.get(CLAIMS, "ns", "c-u").pointer("/metadata/annotations").cloned().unwrap();
    assert!(annotations.get(ANN_SELECTED_NODE[0]).is_none(), "{annotations}");
    // The scheduler comes back with the same node.
    w.server.put(&claim("u", "1Gi"));
    w.until_served("pvc-u").await;
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l17_an_infeasible_claim_is_tried_again_only_after_the_longest_delay() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Fail(Failure::infeasible("never")));
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert_eq!(w.fake.calls("provision"), 1);
    w.until_served("pvc-u").await;
    assert_eq!(w.fake.calls("provision"), 2);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn n4_an_immediate_claim_is_taken_and_served() {
    let w = World::new();
    w.server.put(&mk_class("now", DEFAULT_DRIVER).binding("Immediate").build());
    let c = mk_pvc("ns", "c-u")
        .uid("u")
        .class("now")
        .request("1Gi")
        .access("ReadWriteOnce")
        .provisioner(DEFAULT_DRIVER);
    w.server.put(&c.build());
    let tree = w.start();
    w.until_served("pvc-u").await;
    let taken = w.server.get(CLAIMS, "ns", "c-u");
    let annotations = taken.pointer("/metadata/annotations").unwrap();
    assert_eq!(annotations.get(ANN_SELECTED_NODE[0]).and_then(|n| n.as_str()), Some("n1"));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn l7_b2_a_missing_class_fails_silently_and_its_arrival_wakes_the_claim() {
    let w = World::new();
    w.server.remove("storageclasses", "", "fast");
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(w.server.events(), Vec::<String>::new());
    let before = tokio::time::Instant::now();
    w.server.put(&mk_class("fast", DEFAULT_DRIVER).build());
    w.until_served("pvc-u").await;
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn s11_a_panic_fails_its_item_only() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Panic);
    w.server.put(&claim("a", "1Gi"));
    w.server.put(&claim("b", "1Gi"));
    let tree = w.start();
    w.until_served("pvc-a").await;
    w.until_served("pvc-b").await;
    assert_eq!(w.fake.calls("provision"), 3);
    let view = tree.view().borrow().clone();
    assert!(view.nodes.iter().all(|n| n.deaths == 0), "{view:?}");
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn s11_an_injected_panic_kills_the_runnable_which_is_restarted_and_serves() {
    let w = World::new();
    let tree = w.start();
    w.server.put(&claim("a", "1Gi"));
    w.until_served("pvc-a").await;
    w.fault.send_modify(|n| *n += 1);
    w.server.put(&claim("b", "1Gi"));
    w.until_served("pvc-b").await;
    let view = tree.view().borrow().clone();
    let deaths: u64 = view.nodes.iter().map(|n| n.deaths).sum();
    assert_eq!(deaths, 1, "{view:?}");
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn i4_i5_a_volume_left_by_a_crash_is_finished_confirmed_or_deleted() {
    let owner = |uid: &str| Owner {
        namespace: "ns".into(),
        name: format!("c-{uid}"),
        uid: uid.into(),
        pv: format!("pvc-{uid}"),
        policy: "Delete".into(),
    };
    let w = World::new();
    for uid in ["wanted", "gone", "done", "retained"] {
        w.fake.disk.lock().volumes.insert(format!("pvc-{uid}"), (Some(owner(uid)), false));
    }
    w.fake.disk.lock().volumes.insert("adopted".into(), (None, true));
    w.server.put(&claim("wanted", "1Gi"));
    let stored = |uid: &str, policy: &str, phase: &str| {
        let name = format!("pvc-{uid}");
        mk_pv(&name)
            .csi(DEFAULT_DRIVER, &name)
            .claim("ns", &format!("c-{uid}"), uid)
            .policy(policy)
            .phase(phase)
            .affinity(HOSTNAME_LABEL, "host-1")
            .label(&node_label_key(DEFAULT_DRIVER), "n1")
            .build()
    };
    w.server.put(&stored("done", "Delete", "Bound"));
    w.server.put(&stored("retained", "Retain", "Released"));
    let tree = w.start();
    w.until_served("pvc-wanted").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let volumes: Vec<String> =
        w.fake.volumes().into_iter().map(|(h, stored)| format!("{h}={stored}")).collect();
    assert_eq!(volumes, ["adopted=true", "pvc-done=true", "pvc-retained=true", "pvc-wanted=true"]);
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn i5_a_claim_that_goes_away_while_its_volume_is_made_leaves_nothing() {
    let w = World::new();
    w.fake.disk.lock().provision.push_back(Trick::Lose(Failure::in_background("still at it")));
    w.server.put(&claim("u", "1Gi"));
    let tree = w.start();
    w.server
        .until("a failure", |s| s.events().contains(&"ProvisioningFailed: still at it".to_owned()))
        .await;
    assert_eq!(w.fake.volumes(), [("pvc-u".to_owned(), false)]);
    w.server.remove(CLAIMS, "ns", "c-u");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(w.fake.volumes(), []);
    assert_eq!(w.server.all(PVS).len(), 0);
    assert!(tree.shutdown().await.stuck.is_empty());
}

/// The API server fails from its n-th answer on, with and without doing what it was asked; the controller is
/// stopped there; the claim stays or goes; the controller starts again. Nothing leaks, nothing is made twice.
#[tokio::test(start_paused = true)]
async fn i1_cut_anywhere_nothing_leaks_and_nothing_is_made_twice() {
    let mut cuts = 0;
    for n in 0.. {
        let mut reached = false;
        for (answer, claim_goes) in [
            (Answer::Refuse(500, "InternalError"), false),
            (Answer::Refuse(500, "InternalError"), true),
            (Answer::Lose(500, "InternalError"), false),
            (Answer::Lose(500, "InternalError"), true),
        ] {
            let w = World::new();
            w.server.put(&claim("u", "1Gi"));
            w.server.outage_after(n, answer);
            let first = w.start();
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert!(first.shutdown().await.stuck.is_empty());
            reached |= w.server.heal();
            if claim_goes {
                w.server.remove(CLAIMS, "ns", "c-u");
            }
            let second = w.start();
            tokio::time::sleep(Duration::from_secs(600)).await;
            let pvs = w.server.all(PVS).len();
            match (claim_goes, pvs) {
                (false, _) => {
                    assert!(pvs == 1 && w.served("pvc-u"), "cut {n}: {pvs} {:?}", w.fake.volumes())
                }
                // A stored PV is the volume controller's to release.
                (true, 1) => assert!(w.served("pvc-u"), "cut {n}: {:?}", w.fake.volumes()),
                (true, _) => assert!(
                    pvs == 0 && w.fake.volumes().is_empty(),
                    "cut {n}: {pvs} {:?}",
                    w.fake.volumes()
                ),
            }
            assert!(second.shutdown().await.stuck.is_empty());
            cuts += 1;
        }
        if !reached {
            break;
        }
    }
    assert!(cuts > 40, "only {cuts} cuts: the outage never came late enough");
}

/// The real engine on a fake kernel of 1 GiB, and a factory of backends on it.
fn engine(
    data: &std::path::Path,
    kernel: &volumes::testing::FakeKernel,
) -> (volumes::testing::Served, impl Fn() -> LocalEngine + Clone + Send + Sync + 'static) {
    let seams = volumes::testing::seams(kernel, volumes::Faults::default());
    let served = volumes::testing::start(data, volumes::EngineConfig::default(), seams).unwrap();
    let (engine, dirs) = (served.engine.clone(), volumes::testing::dirs(data));
    let backend =
        move || LocalEngine::new(dirs.volumes.clone(), engine.clone(), LocalConfig::new("n1"));
    (served, backend)
}

/// Volumes that are there, without those on their way out.
async fn present(engine: &volumes::VolumeEngine) -> Vec<String> {
    let on_its_way_out = [
        volumes::StoredState::Deleting,
        volumes::StoredState::Trashed,
        volumes::StoredState::Foreign,
    ];
    let rows = engine.try_inventory().await.unwrap();
    rows.into_iter().filter(|r| !on_its_way_out.contains(&r.state)).map(|r| r.entry).collect()
}

#[tokio::test(start_paused = true)]
async fn v4_v8_the_engine_makes_and_deletes_what_the_cluster_asks_for() {
    let (w, data) = (World::new(), tempfile::tempdir().unwrap());
    let kernel = volumes::testing::FakeKernel::new(1 << 30);
    let (served, backend) = engine(data.path(), &kernel);
    w.server.put(&claim("u", "64Mi"));
    let tree = w.start_on(backend);
    let done = "ProvisioningSucceeded: Successfully provisioned volume pvc-u".to_owned();
    w.server.until("the volume", |s| s.events().contains(&done)).await;
    assert_eq!(present(&served.engine).await, ["pvc-u"]);
    let rows = served.engine.try_inventory().await.unwrap();
    assert!(crate::tag::read(rows[0].owner.as_str()).is_some_and(|(_, stored)| stored));
    w.server.edit(PVS, "", "pvc-u", |pv| pv["status"]["phase"] = "Released".into());
    w.server.until("the PV gone", |s| s.all(PVS).is_empty()).await;
    assert_eq!(present(&served.engine).await, Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn v5_a_request_above_the_room_is_said_on_the_claim_and_leaves_nothing() {
    let (w, data) = (World::new(), tempfile::tempdir().unwrap());
    let kernel = volumes::testing::FakeKernel::new(1 << 30);
    let (served, backend) = engine(data.path(), &kernel);
    w.server.put(&claim("u", "100Ti"));
    let tree = w.start_on(backend);
    let failed =
        |s: &ApiServer| s.events().into_iter().find(|e| e.starts_with("ProvisioningFailed"));
    w.server.until("a failure", |s| failed(s).is_some()).await;
    let text = failed(&w.server).unwrap();
    assert!(text.contains("no space") && text.contains("on node n1; ask for less"), "{text}");
    assert_eq!(present(&served.engine).await, Vec::<String>::new());
    assert!(tree.shutdown().await.stuck.is_empty());
}

#[tokio::test(start_paused = true)]
async fn i4_i6_controller_and_engine_restart_between_volume_and_pv() {
    for claim_goes in [false, true] {
        let (w, data) = (World::new(), tempfile::tempdir().unwrap());
        let kernel = volumes::testing::FakeKernel::new(1 << 30);
        let (served, backend) = engine(data.path(), &kernel);
        w.server.put(&claim("u", "64Mi"));
        w.server.script("POST", "/persistentvolumes", Answer::Refuse(500, "InternalError"), 1000);
        let tree = w.start_on(backend);
        w.server.until("a try", |s| !s.requests("POST", "/persistentvolumes").is_empty()).await;
        assert_eq!(present(&served.engine).await, ["pvc-u"]);
        assert!(tree.shutdown().await.stuck.is_empty());
        served.stop().await;
        w.server.forget_scripts();
        if claim_goes {
            w.server.remove(CLAIMS, "ns", "c-u");
        }
        let (served, backend) = engine(data.path(), &kernel);
        let tree = w.start_on(backend);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let volumes = if claim_goes { vec![] } else { vec!["pvc-u".to_owned()] };
        assert_eq!(present(&served.engine).await, volumes, "claim goes: {claim_goes}");
        assert_eq!(w.server.all(PVS).len(), volumes.len());
        assert!(tree.shutdown().await.stuck.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn v10_w1_volumes_of_an_earlier_release_are_adopted_and_others_left_alone() {
    let w = World::new();
    let older = |name: &str, host: &str| {
        mk_pv(name)
            .uid(&format!("{name}-uid"))
            .csi(DEFAULT_DRIVER, name)
            .affinity(HOSTNAME_LABEL, host)
            .claim("ns", "c", "elsewhere")
            .policy("Delete")
            .phase("Bound")
            .build()
    };
    w.server.put(&older("pvc-here", "host-1"));
    w.server.put(&older("pvc-there", "host-2"));
    let tree = w.start();
    let finalizers =
        |s: &ApiServer, name: &str| s.get(PVS, "", name)["metadata"]["finalizers"].clone();
    w.server.until("adopted", |s| finalizers(s, "pvc-here")[0] == PV_FINALIZER).await;
    let labels = w.server.get(PVS, "", "pvc-here")["metadata"]["labels"].clone();
    assert_eq!(labels[node_label_key(DEFAULT_DRIVER)], "n1");
    let path = "PATCH /api/v1/persistentvolumes/pvc-here".to_owned();
    assert_eq!(w.server.writes(), [path.clone(), path]);
    assert!(tree.shutdown().await.stuck.is_empty());
}
