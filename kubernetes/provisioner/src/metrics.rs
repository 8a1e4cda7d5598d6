//! The numbers of the controller, by the names dashboards of the field know (section 5 of the specification).
//!
//! Purpose: count attempts and outcomes, time successes, show the queues.
//! Owner: made once by whoever owns the registry; clones share the counters across incarnations.
//! Invariants: an outcome is counted once; Ignored is counted apart (M2), Stop and a missing class as failed (M1).
//! It must not know: what is behind an outcome.

use std::{sync::atomic::AtomicI64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Buckets for the duration of one successful attempt, in seconds.
const ATTEMPT_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Buckets for the queues, in seconds.
const QUEUE_SECONDS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// Labels of a provision.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ProvisionLabels {
    /// The class.
    pub(crate) class: String,
    /// Kind of the data source, or "".
    pub(crate) source: String,
}

/// Labels of a deletion.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct DeleteLabels {
    /// The class.
    pub(crate) class: String,
}

/// Label of something that was somebody else's job.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct OpLabels {
    /// `provision` or `delete`.
    pub(crate) op: String,
}

/// Label of a queue.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct QueueLabels {
    /// `claims` or `volumes`.
    pub(crate) name: String,
}

/// Labels of a request to the API server.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    /// `get`, `create`, ...
    pub(crate) verb: String,
    /// `persistentvolumes`, ...
    pub(crate) resource: String,
    /// `ok` or the reason of the refusal.
    pub(crate) result: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All of them. Cheap to clone; clones share.
#[derive(Clone, Debug)]
pub struct Metrics {
    provisioned: Family<ProvisionLabels, Counter>,
    provision_failed: Family<ProvisionLabels, Counter>,
    provision_seconds: Histograms<ProvisionLabels>,
    deleted: Family<DeleteLabels, Counter>,
    delete_failed: Family<DeleteLabels, Counter>,
    delete_seconds: Histograms<DeleteLabels>,
    ignored: Family<OpLabels, Counter>,
    time_to_pv: Histogram,
    orphans: Gauge<i64, AtomicI64>,
    intents: Gauge<i64, AtomicI64>,
    pub(crate) events_dropped: Counter,
    requests: Family<RequestLabels, Counter>,
    queue_depth: Family<QueueLabels, Gauge>,
    queue_adds: Family<QueueLabels, Counter>,
    queue_retries: Family<QueueLabels, Counter>,
    queue_work: Histograms<QueueLabels>,
    panics: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        fn attempt() -> Histogram {
            Histogram::new(ATTEMPT_SECONDS)
        }
        fn queue() -> Histogram {
            Histogram::new(QUEUE_SECONDS)
        }
        Metrics {
            provisioned: Family::default(),
            provision_failed: Family::default(),
            provision_seconds: Family::new_with_constructor(attempt),
            deleted: Family::default(),
            delete_failed: Family::default(),
            delete_seconds: Family::new_with_constructor(attempt),
            ignored: Family::default(),
            time_to_pv: attempt(),
            orphans: Gauge::default(),
            intents: Gauge::default(),
            events_dropped: Counter::default(),
            requests: Family::default(),
            queue_depth: Family::default(),
            queue_adds: Family::default(),
            queue_retries: Family::default(),
            queue_work: Family::new_with_constructor(queue),
            panics: Counter::default(),
        }
    }
}

impl Metrics {
    /// Puts all of them into a registry. Counters get their `_total` from the encoder.
    pub fn register(&self, r: &mut Registry) {
        r.register(
            "controller_persistentvolumeclaim_provision",
            "Volumes provisioned",
            self.provisioned.clone(),
        );
        r.register(
            "controller_persistentvolumeclaim_provision_failed",
            "Failed attempts to provision a volume",
            self.provision_failed.clone(),
        );
        r.register(
            "controller_persistentvolumeclaim_provision_duration_seconds",
            "Duration of successful attempts to provision a volume",
            self.provision_seconds.clone(),
        );
        r.register("controller_persistentvolume_delete", "Volumes deleted", self.deleted.clone());
        r.register(
            "controller_persistentvolume_delete_failed",
            "Failed attempts to delete a volume",
            self.delete_failed.clone(),
        );
        r.register(
            "controller_persistentvolume_delete_duration_seconds",
            "Duration of successful attempts to delete a volume",
            self.delete_seconds.clone(),
        );
        r.register(
            "provisioner_ignored",
            "Attempts that were another provisioner's job",
            self.ignored.clone(),
        );
        r.register(
            "provisioner_time_to_pv_seconds",
            "Time from a claim's first attempt to its stored volume",
            self.time_to_pv.clone(),
        );
        r.register("provisioner_orphaned_volumes", "Volumes no PV names", self.orphans.clone());
        r.register(
            "provisioner_intents",
            "Claims whose volume may be half made",
            self.intents.clone(),
        );
        r.register("provisioner_events_dropped", "Events not written", self.events_dropped.clone());
        r.register("provisioner_api_requests", "Requests to the API server", self.requests.clone());
        r.register("provisioner_panics", "Items whose handling panicked", self.panics.clone());
        r.register("workqueue_depth", "Items that wait for a worker", self.queue_depth.clone());
        r.register("workqueue_adds", "Items handed to workers", self.queue_adds.clone());
        r.register(
            "workqueue_retries",
            "Items put back after a failure",
            self.queue_retries.clone(),
        );
        r.register(
            "workqueue_work_duration_seconds",
            "Time to handle an item",
            self.queue_work.clone(),
        );
    }

    pub(crate) fn provisioned(
        &self,
        class: &str,
        source: &str,
        took: Duration,
        since_first: Duration,
    ) {
        let labels = ProvisionLabels { class: class.into(), source: source.into() };
        self.provisioned.get_or_create(&labels).inc();
        self.provision_seconds.get_or_create(&labels).observe(took.as_secs_f64());
        self.time_to_pv.observe(since_first.as_secs_f64());
    }

    pub(crate) fn provision_failed(&self, class: &str, source: &str) {
        let labels = ProvisionLabels { class: class.into(), source: source.into() };
        self.provision_failed.get_or_create(&labels).inc();
    }

    pub(crate) fn deleted(&self, class: &str, took: Duration) {
        let labels = DeleteLabels { class: class.into() };
        self.deleted.get_or_create(&labels).inc();
        self.delete_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn delete_failed(&self, class: &str) {
        self.delete_failed.get_or_create(&DeleteLabels { class: class.into() }).inc();
    }

    pub(crate) fn ignored(&self, op: &str) {
        self.ignored.get_or_create(&OpLabels { op: op.into() }).inc();
    }

    pub(crate) fn orphans(&self, n: usize) {
        self.orphans.set(i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub(crate) fn intents(&self, n: usize) {
        self.intents.set(i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub(crate) fn request(&self, verb: &str, resource: &str, result: &str) {
        let labels =
            RequestLabels { verb: verb.into(), resource: resource.into(), result: result.into() };
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn worked(&self, queue: &str, depth: usize, took: Duration, retried: bool) {
        let labels = QueueLabels { name: queue.into() };
        self.queue_depth.get_or_create(&labels).set(i64::try_from(depth).unwrap_or(i64::MAX));
        self.queue_adds.get_or_create(&labels).inc();
        self.queue_work.get_or_create(&labels).observe(took.as_secs_f64());
        if retried {
            self.queue_retries.get_or_create(&labels).inc();
        }
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_field_are_on_the_page() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.provisioned("fast", "", Duration::from_millis(3), Duration::from_millis(3));
        metrics.provision_failed("fast", "");
        metrics.deleted("fast", Duration::from_millis(3));
        metrics.delete_failed("fast");
        metrics.ignored("provision");
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        for line in [
            "controller_persistentvolumeclaim_provision_total{class=\"fast\",source=\"\"} 1",
            "controller_persistentvolumeclaim_provision_failed_total{class=\"fast\",source=\"\"} 1",
            "controller_persistentvolumeclaim_provision_duration_seconds_bucket{le=\"0.005\",class=\"fast\",source=\"\"} 1",
            "controller_persistentvolume_delete_total{class=\"fast\"} 1",
            "controller_persistentvolume_delete_failed_total{class=\"fast\"} 1",
            "provisioner_ignored_total{op=\"provision\"} 1",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }
}
