//! What all tasks of one incarnation share.
//!
//! Purpose: the copies of the watched objects, the queues, and what is remembered about each item between attempts.
//! Owner: `Provisioner::run` makes it; watches write the mirrors, workers everything else.
//! Invariants: nothing here outlives the incarnation but what the backend keeps durably; no lock is held across an await.
//! It must not know: how an item is handled.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Config,
    api::ApiCalls,
    backend::{Backend, Owner},
    backoff::{Attempts, SlowSet},
    events::{EventSink, Record},
    metrics::Metrics,
    mirror::Mirror,
    names::HOSTNAME_LABEL,
    plan::{self, PvView, Selected, is_of_claim},
    queue::WorkQueue,
};

/// A claim as the watch shows it: metadata only (W2).
pub(crate) type ClaimMeta = PartialObjectMeta<PersistentVolumeClaim>;

/// What follows from handling an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing to do until something changes; failures are forgotten.
    Forget,
    /// It failed: back-off (B1).
    Retry,
    /// Look again after this time; failures are neither counted nor forgotten.
    After(Duration),
}

/// What is remembered about claims between attempts.
#[derive(Default)]
pub(crate) struct ClaimMemory {
    pub(crate) attempts: Attempts,
    pub(crate) slow: SlowSet,
    /// L21: claims whose volume may be half made, with what is needed to find it.
    pub(crate) intents: HashMap<String, Owner>,
    /// N4: how often this node failed to take an unassigned claim, and when it tries next.
    pub(crate) races: HashMap<String, (u32, Duration)>,
    /// When the first attempt began.
    pub(crate) first: HashMap<String, Duration>,
}

impl ClaimMemory {
    /// L1: the claim is done with; what is in progress stays.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.attempts.forget(uid);
        self.slow.forget(uid);
        self.races.remove(uid);
        self.first.remove(uid);
    }
}

/// What is remembered about volumes between attempts.
#[derive(Default)]
pub(crate) struct VolumeMemory {
    pub(crate) attempts: Attempts,
    /// V8: volumes that wait until they are unmounted, and since when.
    pub(crate) waiting: HashMap<String, Duration>,
}

/// Everything of one incarnation.
pub(crate) struct Core<B> {
    pub(crate) backend: B,
    pub(crate) config: Config,
    pub(crate) log: slog::Logger,
    pub(crate) metrics: Metrics,
    pub(crate) api: ApiCalls,
    pub(crate) events: EventSink,
    pub(crate) claims: Mirror<ClaimMeta>,
    pub(crate) volumes: Mirror<PersistentVolume>,
    pub(crate) classes: Mirror<StorageClass>,
    pub(crate) nodes: Mirror<PartialObjectMeta<Node>>,
    pub(crate) claim_queue: WorkQueue,
    pub(crate) volume_queue: WorkQueue,
    pub(crate) claim_memory: Mutex<ClaimMemory>,
    pub(crate) volume_memory: Mutex<VolumeMemory>,
    began: Instant,
}

impl<B: Backend> Core<B> {
    pub(crate) fn new(
        client: kube::Client,
        backend: B,
        config: Config,
        log: slog::Logger,
        metrics: Metrics,
    ) -> Core<B> {
        let facts = backend.facts().clone();
        let began = Instant::now();
        Core {
            api: ApiCalls::new(client, config.timeout, metrics.clone()),
            events: EventSink::new(&facts.driver, &facts.node, metrics.clone()),
            claims: Mirror::new(
                |c: &ClaimMeta| c.metadata.uid.as_deref(),
                move |c| {
                    plan::ours(&c.metadata, &facts)
                        && plan::selected(&c.metadata, &facts) != Selected::Elsewhere
                },
            ),
            volumes: Mirror::new(|v: &PersistentVolume| v.metadata.name.as_deref(), |_| true),
            classes: Mirror::new(|c: &StorageClass| c.metadata.name.as_deref(), |_| true),
            nodes: Mirror::new(|n: &PartialObjectMeta<Node>| n.metadata.name.as_deref(), |_| true),
            claim_queue: WorkQueue::new(began),
            volume_queue: WorkQueue::new(began),
            claim_memory: Mutex::default(),
            volume_memory: Mutex::default(),
            backend,
            config,
            log,
            metrics,
            began,
        }
    }

    /// Time since the incarnation began.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// V1: the hostname label of this node.
    pub(crate) fn hostname(&self) -> Option<String> {
        let node = self.nodes.get(&self.backend.facts().node)?;
        node.metadata.labels.as_ref()?.get(HOSTNAME_LABEL).cloned()
    }

    /// The PV of a claim, as the watch last showed it, if it is the one we would make.
    pub(crate) fn known_volume(&self, claim_uid: &str) -> Option<std::sync::Arc<PersistentVolume>> {
        let facts = self.backend.facts();
        let name = crate::names::volume_name(&facts.name_prefix, claim_uid);
        self.volumes.get(&name).filter(|pv| is_of_claim(PvView(pv), claim_uid, &facts.driver))
    }

    pub(crate) fn set_intent(&self, uid: &str, owner: Owner) {
        let mut memory = self.claim_memory.lock();
        memory.intents.insert(uid.to_owned(), owner);
        self.metrics.intents(memory.intents.len());
    }

    pub(crate) fn drop_intent(&self, uid: &str) {
        let mut memory = self.claim_memory.lock();
        memory.intents.remove(uid);
        self.metrics.intents(memory.intents.len());
    }

    pub(crate) fn intent(&self, uid: &str) -> Option<Owner> {
        self.claim_memory.lock().intents.get(uid).cloned()
    }

    pub(crate) fn event(
        &self,
        object: ObjectReference,
        warning: bool,
        reason: &'static str,
        message: String,
    ) {
        self.events.emit(Record { object, warning, reason, message });
    }
}
