//! What the engine counts (rule 13). Register it once in the node's registry.
//!
//! Invariants: labels come from closed sets; numbers outlive incarnations, and a gauge whose
//! label is gone reads 0; keeping them up costs the same however many volumes there are.
//!
//! Not counted: freezing (there is no freezer), wiping (not supported).

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::ledger::Ledger;
use crate::types::{CapacityView, ConditionKind, RecoveryReport};

/// Upper bounds in seconds: from a commit without a flush to a copy of a large tree.
const BUCKETS: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Object {
    kind: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    op: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    part: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Side {
    side: &'static str,
}

/// The engine's numbers. Clones share them.
#[derive(Debug, Clone)]
pub struct VolumeMetrics {
    objects: Family<Object, Gauge>,
    capacity: Family<Part, Gauge>,
    operations: Family<Operation, Histogram, fn() -> Histogram>,
    recovered: Family<Action, Counter>,
    repairs: Family<Reason, Counter>,
    orphans: Family<Side, Gauge>,
    conditions: Family<Reason, Gauge>,
    trash: Gauge,
    commits: Histogram,
}

impl Default for VolumeMetrics {
    fn default() -> VolumeMetrics {
        VolumeMetrics {
            objects: Family::default(),
            capacity: Family::default(),
            operations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            recovered: Family::default(),
            repairs: Family::default(),
            orphans: Family::default(),
            conditions: Family::default(),
            trash: Gauge::default(),
            commits: Histogram::new(BUCKETS),
        }
    }
}

fn gauge(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl VolumeMetrics {
    /// Adds all of `hamlet_volumes_*` to the node's registry.
    pub fn register(&self, r: &mut Registry) {
        r.register("hamlet_volumes", "Objects of the volume engine", self.objects.clone());
        r.register(
            "hamlet_volumes_capacity_bytes",
            "Space for volumes by what it is for",
            self.capacity.clone(),
        );
        r.register(
            "hamlet_volumes_operation_seconds",
            "Duration of operations on volumes",
            self.operations.clone(),
        );
        r.register(
            "hamlet_volumes_recovered",
            "What starts of the volume engine have done",
            self.recovered.clone(),
        );
        r.register(
            "hamlet_volumes_audit_repairs",
            "Volumes whose quota was found altered and was repaired",
            self.repairs.clone(),
        );
        r.register(
            "hamlet_volumes_orphans",
            "Volumes nobody knows and handles nobody has, at the last comparison",
            self.orphans.clone(),
        );
        r.register(
            "hamlet_volumes_conditions",
            "Volumes something is wrong with, by what",
            self.conditions.clone(),
        );
        r.register(
            "hamlet_volumes_trash_items",
            "Deleted volumes whose content is still being removed",
            self.trash.clone(),
        );
        r.register(
            "hamlet_volumes_registry_commit_seconds",
            "Duration of commits of the volume registry",
            self.commits.clone(),
        );
    }

    pub(crate) fn operation(&self, op: &'static str, ok: bool, took: Duration) {
        let result = if ok { "ok" } else { "failed" };
        self.operations.get_or_create(&Operation { op, result }).observe(took.as_secs_f64());
    }

    pub(crate) fn commit(&self, took: Duration) {
        self.commits.observe(took.as_secs_f64());
    }

    pub(crate) fn recovered(&self, report: &RecoveryReport) {
        for (action, n) in &report.actions {
            self.recovered.get_or_create(&Action { action }).inc_by(*n);
        }
    }

    pub(crate) fn repaired(&self, reason: ConditionKind) {
        self.repairs.get_or_create(&Reason { reason: format!("{reason:?}") }).inc();
    }

    pub(crate) fn orphans(&self, volumes: usize, handles: usize) {
        for (side, n) in [("volume", volumes), ("handle", handles)] {
            self.orphans.get_or_create(&Side { side }).set(gauge(n as u64));
        }
    }

    pub(crate) fn conditions(&self, counts: &BTreeMap<ConditionKind, u64>) {
        self.conditions.clear();
        for (kind, n) in counts {
            let reason = Reason { reason: format!("{kind:?}") };
            self.conditions.get_or_create(&reason).set(gauge(*n));
        }
    }

    pub(crate) fn space(&self, ledger: &Ledger, view: &CapacityView) {
        for ((kind, state), n) in ledger.counts() {
            self.objects.get_or_create(&Object { kind, state }).set(gauge(n));
        }
        self.trash.set(gauge(ledger.trash.len() as u64));
        for (part, bytes) in [
            ("total", view.total),
            ("reserve", view.reserve),
            ("other", view.other),
            ("committed", view.committed),
            ("available", view.available),
        ] {
            self.capacity.get_or_create(&Part { part }).set(gauge(bytes.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{others, sample};

    #[test]
    fn s13_numbers_follow_the_ledger_and_a_kind_that_is_gone_reads_zero() {
        let (metrics, mut registry) = (VolumeMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        let mut ledger = Ledger::new(0, 0);
        ledger.put(sample("pvc-2"));
        for r in others() {
            ledger.put(r);
        }
        let page = |ledger: &Ledger| {
            metrics.space(ledger, &CapacityView::default());
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &registry).expect("text");
            page
        };
        let text = page(&ledger);
        for line in [
            r#"hamlet_volumes{kind="filesystem",state="creating"} 1"#,
            r#"hamlet_volumes{kind="block",state="creating"} 1"#,
            r#"hamlet_volumes{kind="snapshot",state="creating"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        ledger.remove(&sample("pvc-2").id);
        let text = page(&ledger);
        assert!(text.contains(r#"hamlet_volumes{kind="filesystem",state="creating"} 0"#), "{text}");
    }
}
