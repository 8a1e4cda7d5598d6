//! What one log entry is.
//!
//! Purpose: the immutable record that rings keep and readers share, its limits, and how anything
//! is cut down to them (rule L4). Pure. Must not know: rings, readers, where a record came from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Dn;

/// Longest message of an entry in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// Most lines of an entry.
pub const MAX_LINES: usize = 64;
/// Most fields of an entry.
pub const MAX_FIELDS: usize = 32;
/// Longest value of a field in bytes.
pub const MAX_VALUE_BYTES: usize = 4 << 10;

/// How much a record matters. Ordered: `Trace` is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Level {
    /// Every step.
    Trace = 0,
    /// For whoever looks for a defect.
    Debug = 1,
    /// What happened.
    Info = 2,
    /// Something is odd, work goes on.
    Warning = 3,
    /// Something failed.
    Error = 4,
    /// The node cannot go on. Ends nothing by itself.
    Critical = 5,
}

impl Level {
    /// All levels, least first.
    pub const ALL: [Level; 6] =
        [Level::Trace, Level::Debug, Level::Info, Level::Warning, Level::Error, Level::Critical];

    /// The letter that stands for the level in text.
    pub fn letter(self) -> char {
        match self {
            Level::Trace => 'T',
            Level::Debug => 'D',
            Level::Info => 'I',
            Level::Warning => 'W',
            Level::Error => 'E',
            Level::Critical => 'C',
        }
    }

    /// Lower-case name of the level.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
        }
    }
}

impl From<slog::Level> for Level {
    fn from(level: slog::Level) -> Level {
        match level {
            slog::Level::Critical => Level::Critical,
            slog::Level::Error => Level::Error,
            slog::Level::Warning => Level::Warning,
            slog::Level::Info => Level::Info,
            slog::Level::Debug => Level::Debug,
            slog::Level::Trace => Level::Trace,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that names no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown level {0:?}: use trace, debug, info, warning, error or critical")]
pub struct LevelError(pub String);

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Level, LevelError> {
        Level::ALL
            .into_iter()
            .find(|l| l.as_str().eq_ignore_ascii_case(text))
            .or_else(|| text.eq_ignore_ascii_case("warn").then_some(Level::Warning))
            .ok_or_else(|| LevelError(text.to_owned()))
    }
}

/// One record of the log. Shared, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Number in the whole tree; strictly rising.
    pub seq: u64,
    /// Number in its DN, from 1, without gaps.
    pub dn_seq: u64,
    /// Who said it.
    pub dn: Dn,
    /// Wall clock when it was said, in nanoseconds since 1970.
    pub wall_ns: i64,
    /// Monotonic clock when it arrived, in nanoseconds since the tree was made.
    pub mono_ns: u64,
    /// `None` for a raw line.
    pub level: Option<Level>,
    /// `file:line`, if known.
    pub source: Option<String>,
    /// The message, split at newlines, without outer newlines; never empty.
    pub lines: Vec<String>,
    /// Pairs that came with the message, in order.
    pub fields: Vec<(String, String)>,
    /// Bytes of the message before it was cut.
    pub original_len: usize,
}

impl Entry {
    /// The message as one text.
    pub fn message(&self) -> String {
        self.lines.join("\n")
    }

    /// The level, with `Info` for a raw line (rule L7).
    pub fn level_or_info(&self) -> Level {
        self.level.unwrap_or(Level::Info)
    }
}

/// What is known of a record before it becomes an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// `None` for a raw line.
    pub level: Option<Level>,
    /// When it was said, if it says so itself (ns since 1970).
    pub wall_ns: Option<i64>,
    /// `file:line`, if known.
    pub source: Option<String>,
    /// The message.
    pub message: String,
    /// Pairs that came with it, in order.
    pub fields: Vec<(String, String)>,
}

impl Record {
    /// A message with a level.
    pub fn new(level: Level, message: impl Into<String>) -> Record {
        Record { level: Some(level), message: message.into(), ..Record::default() }
    }

    /// A raw line.
    pub fn raw(line: impl Into<String>) -> Record {
        Record { message: line.into(), ..Record::default() }
    }

    /// Cuts it to the limits of an entry; true if anything was cut.
    pub(crate) fn into_entry(self, dn: Dn, now_ns: i64, original_len: usize) -> (Entry, bool) {
        let (lines, whole, mut cut) = lines_of(self.message, original_len);
        let mut fields = self.fields;
        if fields.len() > MAX_FIELDS {
            fields.truncate(MAX_FIELDS);
            cut = true;
        }
        for (_, value) in &mut fields {
            if value.len() > MAX_VALUE_BYTES {
                let rest = value.len() - MAX_VALUE_BYTES;
                value.truncate(value.floor_char_boundary(MAX_VALUE_BYTES));
                value.push_str(&format!("… (+{rest} bytes)"));
                cut = true;
            }
        }
        // An entry is kept for long.
        fields.shrink_to_fit();
        let entry = Entry {
            seq: 0,
            dn_seq: 0,
            dn,
            wall_ns: self.wall_ns.unwrap_or(now_ns),
            mono_ns: 0,
            level: self.level,
            source: self.source,
            lines,
            fields,
            original_len: whole,
        };
        (entry, cut)
    }
}

/// A message as lines, its length before it was cut, and whether it was.
fn lines_of(message: String, original_len: usize) -> (Vec<String>, usize, bool) {
    let mut cut = original_len > message.len();
    let one_line = !message.bytes().any(|b| matches!(b, b'\n' | b'\r'));
    if one_line && !cut && message.len() <= MAX_MESSAGE_BYTES {
        let len = message.len();
        return (vec![message], len, false);
    }
    let message = message.trim_matches(['\n', '\r']);
    let kept = cut_at(message, MAX_MESSAGE_BYTES);
    let mut lines: Vec<String> = Vec::new();
    let mut shown = 0;
    for line in kept.split('\n').take(MAX_LINES) {
        shown += line.len() + 1;
        lines.push(line.trim_end_matches('\r').to_owned());
    }
    let shown = shown.saturating_sub(1);
    let whole = original_len.max(message.len());
    if shown < message.len() || cut {
        cut = true;
        if let Some(last) = lines.last_mut() {
            last.push_str(&format!("… (+{} bytes)", whole.saturating_sub(shown)));
        }
    }
    lines.shrink_to_fit();
    (lines, whole, cut)
}

fn cut_at(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Bytes an entry takes in memory, near enough for the limits: what the allocator of glibc hands out,
/// which is a multiple of 16, at least 32, 8 of them its own.
pub(crate) fn size_of_entry(entry: &Entry) -> usize {
    const STRING: usize = size_of::<String>();
    const PAIR: usize = 2 * STRING;
    let allocated = |bytes: usize| match bytes {
        0 => 0,
        bytes => (bytes + 8).next_multiple_of(16).max(32),
    };
    // With the two counters of the Arc, and its place in the ring.
    let own = allocated(size_of::<Entry>() + 2 * size_of::<usize>()) + size_of::<usize>();
    let lines: usize = entry.lines.iter().map(|l| allocated(l.capacity())).sum();
    let fields =
        entry.fields.iter().map(|(k, v)| allocated(k.capacity()) + allocated(v.capacity()));
    let lists =
        allocated(entry.lines.capacity() * STRING) + allocated(entry.fields.capacity() * PAIR);
    let source = entry.source.as_ref().map_or(0, |s| allocated(s.capacity()));
    own + lines + fields.sum::<usize>() + lists + source
}
