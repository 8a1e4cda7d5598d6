//! What the dashboard counts about itself.
//!
//! Purpose: `dashboard_*` series. Must not know: how they are exposed.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// Counters of one incarnation.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counters {
    /// Requests by route template and status.
    pub(crate) requests: Family<Request, Counter>,
    /// Panics of handlers and connections.
    pub(crate) panics: Counter,
}

/// One kind of request. The route is a template, so that addresses cannot make series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Request {
    pub(crate) route: String,
    pub(crate) code: u16,
}
