//! Reads entries for one answer.
//!
//! Purpose: turns a [`LogQuery`] into entries, with what was missed. Must not know: how they are
//! shown. Cost: a page of older entries scans the kept entries of its DNs once; everything else
//! touches only what it returns.

use std::collections::VecDeque;
use std::sync::Arc;

use logtree::{Backlog, Cursor, Entry, LogTree, Query, Reader};
use tokio::time::{Instant, timeout_at};

use crate::problem::Problem;
use crate::query::{LogQuery, Page};

/// Entries asked of a reader at a time.
pub(crate) const CHUNK: usize = 256;

/// The entries of one answer.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    /// Oldest first.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// Evicted before they could be read.
    pub(crate) missed: u64,
    /// Where reading goes on.
    pub(crate) cursor: u64,
}

/// Opens a reader for a query.
pub(crate) fn open(
    logs: &LogTree,
    query: &LogQuery,
    backlog: Backlog,
    follow: bool,
) -> Result<Reader, Problem> {
    let query = Query {
        dn: query.dn.clone(),
        children: query.children,
        backlog,
        follow,
        min_level: query.level,
        kind: query.kind,
        contains: query.text.clone(),
    };
    let kind = if follow { "stream" } else { "page" };
    logs.read(query)
        .map(|reader| reader.named(kind))
        .map_err(|e| Problem::bad(e.to_string(), "Change the query."))
}

/// The entries that one page or JSON answer shows.
pub(crate) fn read(logs: &LogTree, query: &LogQuery) -> Result<Slice, Problem> {
    let from_start = from_start(query);
    match query.page {
        Page::Newest => {
            let timed = query.since.is_some() || query.until.is_some();
            let backlog = if timed { from_start } else { Backlog::Last(query.n) };
            let mut reader = open(logs, query, backlog, false)?;
            let mut slice = drain(&mut reader, |e| query.covers(e.wall_ns), query.n);
            // What was evicted before a time that somebody chose is not missing from what was chosen.
            slice.missed = if timed { 0 } else { slice.missed };
            Ok(slice)
        }
        Page::Before(before) => {
            let mut reader = open(logs, query, from_start, false)?;
            let wanted = |e: &Entry| e.seq < before && query.covers(e.wall_ns);
            let mut slice = drain(&mut reader, wanted, query.n);
            slice.missed = 0;
            Ok(slice)
        }
        Page::After(after) => {
            let mut reader = open(logs, query, Backlog::After(Cursor(after)), false)?;
            let mut slice = Slice { cursor: after, ..Slice::default() };
            while slice.entries.len() < query.n {
                let batch = reader.next(CHUNK.min(query.n - slice.entries.len()));
                slice.missed += batch.missed;
                slice.cursor = batch.cursor.0;
                if batch.entries.is_empty() {
                    break;
                }
                slice.entries.extend(batch.entries.into_iter().filter(|e| query.covers(e.wall_ns)));
            }
            Ok(slice)
        }
    }
}

/// [`read`], but waits for the first entry as long as the query says.
pub(crate) async fn wait_and_read(logs: &LogTree, query: &LogQuery) -> Result<Slice, Problem> {
    let end = Instant::now() + query.wait;
    let mut slice = read(logs, query)?;
    while slice.entries.is_empty() && slice.missed == 0 && Instant::now() < end {
        let mut reader = open(logs, query, Backlog::After(Cursor(slice.cursor)), true)?;
        // Looks at nothing: what comes is read by the same code as what was there.
        if timeout_at(end, reader.changed()).await.is_err() {
            break;
        }
        let query = LogQuery { page: Page::After(slice.cursor), ..query.clone() };
        slice = read(logs, &query)?;
    }
    Ok(slice)
}

/// Everything kept that a query may match, for [`next_text`].
pub(crate) fn all(logs: &LogTree, query: &LogQuery) -> Result<Reader, Problem> {
    open(logs, query, from_start(query), false)
}

/// The next lines of a file; none at the end.
pub(crate) fn next_text(reader: &mut Reader, query: &LogQuery) -> Option<String> {
    let batch = reader.next(CHUNK);
    if batch.entries.is_empty() && batch.missed == 0 {
        return None;
    }
    let mut text = match batch.missed {
        0 => String::new(),
        missed => format!("-- {missed} entries missed --\n"),
    };
    for entry in batch.entries.iter().filter(|e| query.covers(e.wall_ns)) {
        text.push_str(&logtree::to_text(entry));
    }
    Some(text)
}

/// The first entry that a query may want.
fn from_start(query: &LogQuery) -> Backlog {
    match query.since.and_then(|t| i64::try_from(t.as_nanosecond()).ok()) {
        Some(since) => Backlog::Since(since),
        None => Backlog::All,
    }
}

/// Reads to the end and keeps the last `n` that are wanted.
fn drain(reader: &mut Reader, wanted: impl Fn(&Entry) -> bool, n: usize) -> Slice {
    let mut kept = VecDeque::new();
    let (mut missed, mut cursor) = (0, 0);
    loop {
        let batch = reader.next(CHUNK);
        missed += batch.missed;
        cursor = batch.cursor.0.max(cursor);
        if batch.entries.is_empty() {
            break;
        }
        for entry in batch.entries.into_iter().filter(|e| wanted(e)) {
            if kept.len() == n {
                kept.pop_front();
            }
            kept.push_back(entry);
        }
    }
    Slice { entries: kept.into(), missed, cursor }
}
