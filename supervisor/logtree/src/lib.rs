//! The leveled log of the node: one bounded ring per DN, any number of readers.
//!
//! Purpose: keep what every DN says in memory, within fixed limits, and serve it to consoles, the
//! dashboard and the host. Producers use slog ([`LogTree::logger`]), children write lines
//! ([`LogTree::sink`]), libraries come in through `tracing` and `log` ([`install_global`]).
//!
//! Owner: nobody runs it; it is a lock around rings. Must not know: the supervisor, processes,
//! Kubernetes. Invariants: no producer ever waits for a reader; no entry is seen twice, out of
//! order, or skipped without being counted as missed; logtree never logs.

mod drain;
mod entry;
mod evicted;
mod library;
mod name;
mod parse;
mod reader;
mod sink;
mod store;
mod sync;
mod text;
mod time;
mod tree;

#[cfg(test)]
mod tests;

pub use entry::{
    Entry, Level, LevelError, MAX_FIELDS, MAX_LINES, MAX_MESSAGE_BYTES, MAX_VALUE_BYTES, Record,
};
pub use library::{
    InstallError, current_dn, dn_span, install_global, sync_with_dn, tracing_layer, with_dn,
};
pub use name::{Dn, Name, NameError};
pub use parse::{Format, Kmsg, parse_kmsg};
pub use reader::{Backlog, Batch, Cursor, Kind, MAX_LAST, Query, QueryError, Reader};
pub use sink::{LineSink, MAX_PARSED_BYTES, MAX_RAW_BYTES};
pub use store::{DnStats, Limits, Quota};
pub use text::{escape_control, to_concise, to_text};
pub use time::rfc3339;
pub use tree::{LogTree, Stats};
