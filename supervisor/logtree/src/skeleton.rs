//! Public shapes whose bodies follow.
#![expect(clippy::todo, reason = "bodies follow within the hour")]
#![expect(unused_variables, reason = "bodies follow within the hour")]
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{Layer, Registry};

use crate::{Dn, Entry, Level};

/// How much of one DN is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Most entries.
    pub entries: usize,
    /// Most bytes.
    pub bytes: usize,
}
impl Default for Quota {
    fn default() -> Quota {
        Quota { entries: 8192, bytes: 1 << 20 }
    }
}
/// Limits of the whole log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Per DN.
    pub quota: Quota,
    /// All DNs together.
    pub total_bytes: usize,
    /// Most DNs.
    pub dns: usize,
}
impl Default for Limits {
    fn default() -> Limits {
        Limits { quota: Quota::default(), total_bytes: 32 << 20, dns: 4096 }
    }
}
/// How lines of a child are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// As they are.
    Raw,
    /// Go's klog.
    Klog,
    /// zap, logrus, Kubernetes JSON.
    Json,
    /// `key=value` pairs.
    Logfmt,
    /// Judged line by line.
    #[default]
    Auto,
}
/// Where a reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Cursor(pub u64);
/// Which old entries a reader gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backlog {
    /// None.
    None,
    /// All that is kept.
    All,
    /// The last n that match.
    Last(usize),
    /// What came after the cursor.
    After(Cursor),
    /// What was said at or after this time (ns since 1970).
    Since(i64),
}
/// Which kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Both.
    #[default]
    Any,
    /// With a level.
    Leveled,
    /// Raw lines.
    Raw,
}
/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Whose log.
    pub dn: Dn,
    /// And of what is below.
    pub children: bool,
    /// Old entries.
    pub backlog: Backlog,
    /// And new ones.
    pub follow: bool,
    /// Least level; raw lines count as Info.
    pub min_level: Option<Level>,
    /// Which kind.
    pub kind: Kind,
    /// Literal text in the message.
    pub contains: Option<String>,
}
impl Query {
    /// All kept entries of a DN and what is below it, no follow.
    pub fn all(dn: Dn) -> Query {
        Query {
            dn,
            children: true,
            backlog: Backlog::All,
            follow: false,
            min_level: None,
            kind: Kind::Any,
            contains: None,
        }
    }
}
/// A query that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Raw lines have no level above Info.
    #[error("kind raw with a level above info matches nothing: raw lines count as info")]
    RawAboveInfo,
    /// Too many.
    #[error("{0} entries are more than the 100000 one query may ask for")]
    TooMany(usize),
}
/// One helping of entries.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// In seq order.
    pub entries: Vec<Arc<Entry>>,
    /// Evicted before they could be read, exact, before filters.
    pub missed: u64,
    /// To resume from.
    pub cursor: Cursor,
    /// Nothing more will come.
    pub end: bool,
}
/// A cursor into the log.
#[derive(Debug)]
pub struct Reader(());
impl Reader {
    /// The next entries, at most `max`; empty if there are none now.
    pub fn next(&mut self, max: usize) -> Batch {
        todo!()
    }
    /// Waits until `next` may have something. Cancel safe.
    pub async fn changed(&mut self) {
        todo!()
    }
    /// As `changed`, for threads; false after `d` without news.
    pub fn wait(&mut self, d: Duration) -> bool {
        todo!()
    }
}
/// Numbers of one DN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DnStats {
    /// Whose.
    pub dn: Dn,
    /// Bytes kept now.
    pub retained_bytes: u64,
    /// Entries kept now.
    pub retained_entries: u64,
    /// Entries ever, indexed by `Level as usize`; raw lines apart.
    pub entries: [u64; 6],
    /// Raw entries ever.
    pub raw: u64,
    /// Evicted ever.
    pub evicted: u64,
    /// Entries or lines cut ever.
    pub truncated: u64,
    /// Lines that did not fit their named format.
    pub unparsed: u64,
}
/// Numbers of the whole log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Per DN, in DN order.
    pub dns: Vec<DnStats>,
    /// Bytes kept now.
    pub retained_bytes: u64,
    /// Open readers.
    pub readers: u64,
    /// Entries readers missed ever.
    pub missed: u64,
}
/// The log. Clones share it.
#[derive(Debug, Clone)]
pub struct LogTree(());
impl LogTree {
    /// An empty log.
    pub fn new(limits: Limits) -> LogTree {
        todo!()
    }
    /// A logger that writes under `dn`.
    pub fn logger(&self, dn: &Dn) -> slog::Logger {
        todo!()
    }
    /// A sink for lines of text.
    pub fn sink(&self, dn: &Dn, format: Format) -> LineSink {
        todo!()
    }
    /// Sets the least level of a subtree, for a while or for good.
    pub fn set_level(&self, subtree: &Dn, level: Level, ttl: Option<Duration>) {
        todo!()
    }
    /// Opens a reader.
    pub fn read(&self, query: Query) -> Result<Reader, QueryError> {
        todo!()
    }
    /// Numbers for metrics.
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// All DNs that have entries.
    pub fn dns(&self) -> Vec<Dn> {
        todo!()
    }
}
/// Takes bytes, makes entries of lines.
#[derive(Debug)]
pub struct LineSink(());
impl io::Write for LineSink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        todo!()
    }
    fn flush(&mut self) -> io::Result<()> {
        todo!()
    }
}
/// Brings `tracing` events into the log.
pub fn tracing_layer(tree: LogTree) -> impl Layer<Registry> + Send + Sync {
    let _ = tree;
    tracing_subscriber::layer::Identity::new()
}
/// Runs a future whose library records belong to `dn`.
pub async fn with_dn<F: Future>(dn: Dn, future: F) -> F::Output {
    future.await
}
/// Runs a function whose library records belong to `dn`.
pub fn sync_with_dn<T>(dn: Dn, f: impl FnOnce() -> T) -> T {
    f()
}
/// The full text of an entry, one line per line of the message, each ending in a newline.
pub fn to_text(entry: &Entry) -> String {
    todo!()
}
/// The console text of an entry for a width in columns.
pub fn to_concise(entry: &Entry, width: usize) -> String {
    todo!()
}

/// A span that brings library records of other tasks to `dn`.
pub fn dn_span(dn: &Dn) -> tracing::Span {
    tracing::info_span!(target: "logtree", "dn", dn = %dn)
}
impl LogTree {
    /// How much of a DN is kept.
    pub fn set_quota(&self, dn: &Dn, quota: Quota) {
        todo!()
    }
}
