//! Records of libraries (`tracing`, `log`): whose are they, and which are kept (rule L2).
//!
//! A record belongs to, in this order: the DN set for the running poll ([`with_dn`]); the nearest
//! span with a field `dn` ([`dn_span`]); `libs.<first segment of its target>`.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_log::NormalizeEvent;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::{Dn, Level, LogTree, Name, Record};

thread_local! {
    static CURRENT: RefCell<Option<Dn>> = const { RefCell::new(None) };
}

/// Libraries that say too much at Info.
const NOISY: [&str; 5] = ["h2", "hyper", "tower", "rustls", "tonic"];
/// Records that repeat an error which the caller gets too, and judges better: a readiness probe of a
/// server that is starting fails ten times without anything being wrong. Kept at Debug.
const REPEATED: [&str; 1] = ["kube_client::client::builder"];
/// Where records of libraries go that belong to nobody.
pub(crate) const ROOT: &str = "libs";
/// Target of the spans that carry a DN.
const SPAN_TARGET: &str = "logtree::dn";

/// The DN library records of this thread belong to now.
pub fn current_dn() -> Option<Dn> {
    CURRENT.with(|c| c.borrow().clone())
}

/// Runs a function whose library records belong to `dn`.
pub fn sync_with_dn<T>(dn: Dn, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Dn>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let outer = self.0.take();
            // The thread may be ending.
            let _ = CURRENT.try_with(|c| *c.borrow_mut() = outer);
        }
    }
    let _restore = Restore(CURRENT.with(|c| c.borrow_mut().replace(dn)));
    f()
}

/// Runs a future whose library records belong to `dn`, whichever thread polls it.
pub async fn with_dn<F: Future>(dn: Dn, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| sync_with_dn(dn.clone(), || future.as_mut().poll(cx))).await
}

/// A span that brings records of tasks that inherit it to `dn`: for workers of libraries, which get
/// the caller's span but not what is set for its poll.
pub fn dn_span(dn: &Dn) -> tracing::Span {
    tracing::info_span!(target: SPAN_TARGET, "dn", dn = dn.as_str())
}

/// Both fronts were already taken by somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {0} front of this process is already taken")]
pub struct InstallError(&'static str);

/// Brings all `tracing` and `log` records of this process into the log. Once per process.
pub fn install_global(tree: LogTree) -> Result<(), InstallError> {
    let subscriber = tracing_subscriber::registry().with(tracing_layer(tree));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| InstallError("tracing"))?;
    let most = tracing_log::log::LevelFilter::Debug;
    tracing_log::LogTracer::init_with_filter(most).map_err(|_| InstallError("log"))
}

/// Brings `tracing` events into the log.
pub fn tracing_layer(tree: LogTree) -> impl Layer<Registry> + Send + Sync {
    LibraryLayer { tree }
}

struct LibraryLayer {
    tree: LogTree,
}

fn level_of(metadata: &Metadata<'_>) -> Level {
    if REPEATED.contains(&metadata.target()) && *metadata.level() < tracing::Level::DEBUG {
        return Level::Debug;
    }
    match *metadata.level() {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warning,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

fn library(target: &str) -> &str {
    target.split("::").next().unwrap_or(target)
}

fn library_dn(target: &str) -> Dn {
    let libs = Dn::from_static(ROOT);
    libs.child(&Name::from_text(library(target))).unwrap_or(libs)
}

impl LibraryLayer {
    fn keeps(&self, level: Level, target: &str) -> bool {
        let default = match NOISY.contains(&library(target)) {
            true => Level::Warning,
            false => Level::Info,
        };
        if !self.tree.has_library_rules() {
            return level >= default;
        }
        // An operator has asked for more, or less, of some library.
        let least = self.tree.library_level(&library_dn(target)).unwrap_or(default);
        level >= least
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LibraryLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let of_log = metadata.target() == "log";
        if of_log || self.tree.has_library_rules() {
            return Interest::sometimes();
        }
        let level = level_of(metadata);
        let kept = metadata.target() == SPAN_TARGET || self.keeps(level, metadata.target());
        if kept { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let rules = self.tree.has_library_rules();
        Some(if rules { LevelFilter::TRACE } else { LevelFilter::INFO })
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == SPAN_TARGET
            // Events of `log` come under one target; the real one is known only in `on_event`.
            || metadata.target() == "log"
            || self.keeps(level_of(metadata), metadata.target())
    }

    fn on_new_span(&self, attrs: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let mut found = DnField(None);
        attrs.record(&mut found);
        if let (Some(dn), Some(span)) = (found.0, ctx.span(id)) {
            span.extensions_mut().insert(dn);
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let normal = event.normalized_metadata();
        let meta = normal.as_ref().unwrap_or_else(|| event.metadata());
        let level = level_of(meta);
        if normal.is_some() && !self.keeps(level, meta.target()) {
            return;
        }
        let of_span = || {
            let mut scope = ctx.event_scope(event)?;
            scope.find_map(|span| span.extensions().get::<Dn>().cloned())
        };
        let dn = current_dn().or_else(of_span).unwrap_or_else(|| library_dn(meta.target()));
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let mut pairs = fields.pairs;
        if !Dn::from_static(ROOT).contains(&dn) {
            pairs.push(("target".to_owned(), meta.target().to_owned()));
        }
        let source = meta.file().map(|file| {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{file}:{}", meta.line().unwrap_or(0))
        });
        let message = fields.message;
        let record = Record { level: Some(level), wall_ns: None, source, message, fields: pairs };
        self.tree.append(&dn, record);
    }
}

struct DnField(Option<Dn>);

impl Visit for DnField {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "dn" {
            self.0 = Dn::new(value).ok().filter(|dn| !dn.is_all());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "dn" {
            self.record_str(field, format!("{value:?}").trim_matches('"'));
        }
    }
}

#[derive(Default)]
struct EventFields {
    message: String,
    pairs: Vec<(String, String)>,
}

impl EventFields {
    fn add(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = text,
            // What LogTracer adds is already in the metadata.
            name if name.starts_with("log.") => {}
            name => self.pairs.push((name.to_owned(), text)),
        }
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Query};

    fn messages(tree: &LogTree, dn: &'static str) -> Vec<String> {
        let mut reader = tree.read(Query::all(Dn::from_static(dn))).unwrap();
        reader.next(100).entries.iter().map(|e| e.message()).collect()
    }

    #[test]
    fn l2_a_record_belongs_to_the_poll_then_the_span_then_its_library() {
        let tree = LogTree::new(Limits::default());
        let subscriber = tracing_subscriber::registry().with(tracing_layer(tree.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let a = Dn::from_static("root.a");
            let b = Dn::from_static("root.b");
            dn_span(&b).in_scope(|| {
                tracing::info!(target: "kube::client", "in span");
                sync_with_dn(a, || tracing::info!(target: "kube::client", "in poll"));
            });
            tracing::info!(target: "kube::client", "alone");
            tracing::info!(target: "hyper::proto", "too loud");
            tracing::warn!(target: "hyper::proto", "needed");
            tracing::debug!(target: "kube::client", "too detailed");
            tracing::error!(target: "kube_client::client::builder", "its caller got it too");
        });
        assert_eq!(messages(&tree, "root.a"), ["in poll"]);
        assert_eq!(messages(&tree, "root.b"), ["in span"]);
        assert_eq!(messages(&tree, "libs.kube"), ["alone"]);
        assert_eq!(messages(&tree, "libs.hyper"), ["needed"]);
        assert!(messages(&tree, "libs.kube_client").is_empty());
    }

    #[test]
    fn l3_an_operator_may_ask_for_more_of_a_library_at_run_time() {
        fn debug_record() {
            tracing::debug!(target: "quinn::x", "detail");
        }
        let tree = LogTree::new(Limits::default());
        let subscriber = tracing_subscriber::registry().with(tracing_layer(tree.clone()));
        tracing::subscriber::with_default(subscriber, || {
            debug_record();
            tree.set_level(&Dn::from_static("libs.quinn"), Level::Debug, None);
            debug_record();
        });
        assert_eq!(messages(&tree, "libs.quinn"), ["detail"]);
    }

    #[test]
    fn l2_the_outer_dn_is_back_after_an_inner_one() {
        let a = Dn::from_static("a");
        sync_with_dn(a.clone(), || {
            sync_with_dn(Dn::from_static("b"), || ());
            assert_eq!(current_dn(), Some(a.clone()));
        });
        assert_eq!(current_dn(), None);
    }
}
