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

mod claims;
mod engine;
mod persistent_volumes;
mod resize;
mod restarts;

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
