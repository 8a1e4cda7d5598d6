//! Metrics of the driver: durations of calls by method and status (rule 13).
//!
//! Invariant: labels come from closed sets, so a hostile caller cannot make new series.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

/// Upper bounds in seconds: from a cached answer to the slowest unmount worth telling apart.
const BUCKETS: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    method_name: String,
    grpc_status_code: &'static str,
}

/// Counts calls. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct CsiMetrics {
    operations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for CsiMetrics {
    fn default() -> CsiMetrics {
        CsiMetrics { operations: Family::new_with_constructor(|| Histogram::new(BUCKETS)) }
    }
}

impl CsiMetrics {
    /// Adds `hamlet_csi_operations_seconds` to the node's registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "hamlet_csi_operations_seconds",
            "Duration of CSI calls served by this node",
            self.operations.clone(),
        );
    }

    /// Counts one call.
    pub(crate) fn observe(&self, method: &str, code: Code, took: Duration) {
        let labels = Labels { method_name: method.to_owned(), grpc_status_code: code_name(code) };
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

/// The name by which the CSI sidecars' own metrics know a code.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
