//! Log lines of children: what they mean (rules P1 to P4, P6).
//!
//! Pure. A line no rule fits gives `None` and becomes a raw entry; nothing is rejected.

mod json;
mod klog;
mod kmsg;
mod logfmt;

use crate::{Level, Record};

pub use kmsg::{Kmsg, parse_kmsg};

/// How the lines of a stream are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
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

impl Format {
    /// Lower-case name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Klog => "klog",
            Format::Json => "json",
            Format::Logfmt => "logfmt",
            Format::Auto => "auto",
        }
    }
}

/// Reads one line; `now_ns` decides about years and implausible times.
pub(crate) fn line(format: Format, text: &str, now_ns: i64) -> Option<Record> {
    // A named format only decides what counts as a parse failure: children mix formats, as when
    // klog prints before its JSON encoder is set up.
    match format {
        Format::Raw => None,
        Format::Klog | Format::Json | Format::Logfmt | Format::Auto => auto(text, now_ns),
    }
}

fn auto(text: &str, now_ns: i64) -> Option<Record> {
    match text.bytes().next()? {
        b'{' => json::parse(text),
        b'I' | b'W' | b'E' | b'F' => klog::parse(text, now_ns).or_else(|| logfmt::parse(text)),
        _ => logfmt::parse(text),
    }
}

/// Words for levels in JSON and logfmt; an unknown one is Info.
fn level_word(word: &str) -> Level {
    match word.to_ascii_lowercase().as_str() {
        "dpanic" | "panic" | "fatal" | "critical" => Level::Critical,
        "error" | "err" => Level::Error,
        "warn" | "warning" => Level::Warning,
        "debug" => Level::Debug,
        "trace" => Level::Trace,
        _ => Level::Info,
    }
}

/// A time as RFC 3339 text.
fn rfc3339_ns(text: &str) -> Option<i64> {
    let stamp: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(stamp.as_nanosecond()).ok()
}
