//! Metrics of the cluster's parts, registered once for the life of the process.

use parking_lot::Mutex;
use pki::Report;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Handles; clones share their numbers.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) csi: csi_node::CsiMetrics,
    pub(crate) provisioner: provisioner::Metrics,
    not_after: Family<Certificate, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Certificate {
    name: String,
}

impl Metrics {
    /// Makes and registers all of them.
    pub(crate) fn register(registry: &Mutex<Registry>) -> Metrics {
        let metrics = Metrics::default();
        let mut registry = registry.lock();
        metrics.csi.register(&mut registry);
        metrics.provisioner.register(&mut registry);
        registry.register(
            "hamlet_certificate_not_after_seconds",
            "Unix time of the last second of a certificate of this node",
            metrics.not_after.clone(),
        );
        drop(registry);
        metrics
    }

    /// Takes over the ends of all certificates.
    pub(crate) fn certificates(&self, report: &Report) {
        for end in &report.expiries {
            let label = Certificate { name: end.name.to_owned() };
            self.not_after.get_or_create(&label).set(end.not_after);
        }
    }
}
