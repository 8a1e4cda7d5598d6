//! The live stream of a page, and logs followed as NDJSON.
//!
//! Purpose: rule W5. One stream carries changes of the tree, entries of one log query, or both.
//! Every event's id is `<boot-id>:<cursor>`; a browser that comes back with it gets exactly what
//! came since, and `reset` if the node was rebooted meanwhile.
//!
//! Owner: the connection whose body it is. A client that does not read costs a cursor into the
//! log and nothing else: the next part is made when the last one was taken. Ends when the
//! dashboard stops.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use logtree::{Backlog, Batch, Cursor, Reader};
use serde::Serialize;
use supervisor::Snapshot;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::json;
use crate::problem::Problem;
use crate::query::{DEFAULT_N, LogQuery, Page};
use crate::reading::{CHUNK, open};
use crate::sources::{App, MAX_STREAMS};
use crate::views::{NodeView, VolumesView};

/// News that arrive within this time travel together.
const COALESCE: Duration = Duration::from_millis(50);
/// A silent stream says that it lives.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// When a browser should come back, in milliseconds.
const RETRY_MS: u32 = 2000;

/// What one stream carries.
pub(crate) struct Wanted {
    /// Changes of the tree, the volumes and the node.
    pub(crate) tree: bool,
    /// Entries.
    pub(crate) logs: Option<LogQuery>,
    /// `Last-Event-ID`, where the browser comes back.
    pub(crate) resume: Option<String>,
}

/// How parts of the stream are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Sse,
    Ndjson,
}

impl Framing {
    /// What says "still there" and nothing else.
    fn comment(self) -> &'static str {
        match self {
            Framing::Sse => ": \n\n",
            Framing::Ndjson => "\n",
        }
    }
}

struct Live {
    framing: Framing,
    boot_id: String,
    cursor: Cursor,
    tree: Option<Views>,
    reader: Option<Reader>,
    closing: watch::Receiver<bool>,
    /// Written before anything else.
    first: Option<String>,
    next_comment: Instant,
    _place: OwnedSemaphorePermit,
}

/// The views whose changes are told.
struct Views {
    tree: watch::Receiver<Arc<Snapshot>>,
    volumes: watch::Receiver<Arc<VolumesView>>,
    node: watch::Receiver<Arc<NodeView>>,
}

impl Views {
    /// Waits for a change of any; cancel safe, since `changed` is. An ended sender is no news.
    async fn changed(&mut self) {
        async fn news<T>(view: &mut watch::Receiver<T>) {
            if view.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        tokio::select! {
            () = news(&mut self.tree) => {}
            () = news(&mut self.volumes) => {}
            () = news(&mut self.node) => {}
        }
    }

    fn take(&mut self) -> Arc<Snapshot> {
        self.volumes.mark_unchanged();
        self.node.mark_unchanged();
        self.tree.borrow_and_update().clone()
    }
}

/// Opens the stream of a page.
pub(crate) fn sse(
    app: &App,
    wanted: Wanted,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + use<>, Problem> {
    let mut live = Live::new(app, Framing::Sse)?;
    let mut first = format!("retry: {RETRY_MS}\n\n");
    let resumed = wanted.resume.as_deref().map(|id| position(id, &live.boot_id)).transpose()?;
    if let Some(Resume::OtherBoot) = resumed {
        first.push_str(&frame(
            "reset",
            &live.id(),
            &serde_json::json!({ "boot_id": live.boot_id }),
        ));
    }
    if let Some(query) = &wanted.logs {
        let backlog = match (&resumed, query.page) {
            (Some(Resume::At(cursor)), _) => Backlog::After(*cursor),
            (Some(Resume::OtherBoot), _) => Backlog::Last(DEFAULT_N),
            (None, Page::After(after)) => Backlog::After(Cursor(after)),
            (None, Page::Newest | Page::Before(_)) => Backlog::None,
        };
        if let Backlog::After(cursor) = backlog {
            live.cursor = cursor;
        }
        live.reader = Some(open(&app.sources.logs, query, backlog, true)?);
    }
    if wanted.tree {
        let sources = &app.sources;
        let mut views = Views {
            tree: sources.tree.snapshot.clone(),
            volumes: sources.volumes.clone(),
            node: sources.node.clone(),
        };
        first.push_str(&frame("state", &live.id(), &json::tree(&views.take())));
        live.tree = Some(views);
    }
    live.first = Some(first);
    Ok(parts(live))
}

/// Opens a followed log as one JSON object a line.
pub(crate) fn ndjson(
    app: &App,
    query: &LogQuery,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + use<>, Problem> {
    let mut live = Live::new(app, Framing::Ndjson)?;
    let backlog = match query.page {
        Page::After(after) => Backlog::After(Cursor(after)),
        Page::Newest | Page::Before(_) => Backlog::Last(query.n),
    };
    live.reader = Some(open(&app.sources.logs, query, backlog, true)?);
    Ok(parts(live))
}

/// A place among the streams, held as long as somebody waits.
pub(crate) fn place(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    app.streams.clone().try_acquire_owned().map_err(|_| Problem::busy(MAX_STREAMS))
}

fn parts(live: Live) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::unfold(live, |mut live| async move {
        let part = live.next_part().await?;
        Some((Ok(Bytes::from(part)), live))
    })
}

impl Live {
    fn new(app: &App, framing: Framing) -> Result<Live, Problem> {
        let place = place(app)?;
        Ok(Live {
            framing,
            boot_id: app.sources.node.borrow().boot_id.clone(),
            cursor: Cursor::default(),
            tree: None,
            reader: None,
            closing: app.closing.subscribe(),
            first: None,
            next_comment: Instant::now() + COMMENT_EVERY,
            _place: place,
        })
    }

    fn id(&self) -> String {
        format!("{}:{}", self.boot_id, self.cursor.0)
    }

    /// The next bytes; none when the dashboard stops.
    async fn next_part(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            if *self.closing.borrow() {
                return None;
            }
            // Backlog first: `changed` tells of what comes, not of what is there.
            let part = self.news(false);
            if !part.is_empty() {
                return Some(part);
            }
            let tree_changed = tokio::select! {
                // All arms are cancel safe: each only waits for a state that stays.
                _ = self.closing.wait_for(|closing| *closing) => return None,
                () = changed_views(self.tree.as_mut()) => Some(true),
                () = changed_log(self.reader.as_mut()) => Some(false),
                () = sleep_until(self.next_comment) => None,
            };
            let Some(tree_changed) = tree_changed else {
                self.rest();
                return Some(self.framing.comment().to_owned());
            };
            sleep(COALESCE).await;
            let part = self.news(tree_changed);
            if !part.is_empty() {
                return Some(part);
            }
        }
    }

    /// What there is to tell now.
    fn news(&mut self, tree: bool) -> String {
        let mut out = String::new();
        if let Some(views) = self.tree.as_mut().filter(|_| tree) {
            let snapshot = views.take();
            out.push_str(&frame("state", &self.id(), &json::tree(&snapshot)));
        }
        if let Some(reader) = &mut self.reader {
            let batch = reader.next(CHUNK);
            self.tell(&mut out, &batch);
        }
        if !out.is_empty() {
            self.rest();
        }
        out
    }

    fn tell(&mut self, out: &mut String, batch: &Batch) {
        if batch.missed > 0 {
            let missed = serde_json::json!({ "missed": batch.missed });
            // The position before the gap's end: coming back here tells of it again.
            match self.framing {
                Framing::Sse => out.push_str(&frame("missed", &self.id(), &missed)),
                Framing::Ndjson => line(out, &missed),
            }
        }
        for entry in &batch.entries {
            self.cursor = Cursor(entry.seq);
            match self.framing {
                Framing::Sse => {
                    out.push_str(&frame("entry", &self.id(), &json::LogEntry(entry)));
                }
                Framing::Ndjson => line(out, &json::LogEntry(entry)),
            }
        }
        self.cursor = batch.cursor.max(self.cursor);
    }

    fn rest(&mut self) {
        self.next_comment = Instant::now() + COMMENT_EVERY;
    }
}

async fn changed_views(views: Option<&mut Views>) {
    match views {
        Some(views) => views.changed().await,
        None => std::future::pending().await,
    }
}

async fn changed_log(reader: Option<&mut Reader>) {
    match reader {
        Some(reader) => reader.changed().await,
        None => std::future::pending().await,
    }
}

/// One event. JSON has no line breaks, so one `data` line is enough.
fn frame(event: &str, id: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
    format!("event: {event}\nid: {id}\ndata: {data}\n\n")
}

fn line(out: &mut String, data: &impl Serialize) {
    out.push_str(&serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned()));
    out.push('\n');
}

#[derive(Debug, PartialEq, Eq)]
enum Resume {
    At(Cursor),
    OtherBoot,
}

/// Where a browser that comes back stood.
fn position(id: &str, boot_id: &str) -> Result<Resume, Problem> {
    let parsed = id.rsplit_once(':').and_then(|(boot, cursor)| Some((boot, cursor.parse().ok()?)));
    match parsed {
        Some((boot, cursor)) if boot == boot_id => Ok(Resume::At(Cursor(cursor))),
        Some(_) => Ok(Resume::OtherBoot),
        None => Err(Problem::bad(
            "Last-Event-ID is not a position of this stream",
            "Send the id of the last event as it came: <boot-id>:<cursor>.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w5_an_id_of_another_boot_is_told_from_a_broken_one() {
        assert_eq!(position("b-1:17", "b-1").unwrap(), Resume::At(Cursor(17)));
        assert_eq!(position("b-0:17", "b-1").unwrap(), Resume::OtherBoot);
        assert_eq!(position("", "b-1").unwrap_err().status, 400);
        assert_eq!(position("b-1:x", "b-1").unwrap_err().status, 400);
    }

    #[test]
    fn w5_an_event_is_one_data_line_whatever_is_in_it() {
        let text = frame("entry", "b:1", &serde_json::json!({ "message": "a\n\ndata: b\r" }));
        assert_eq!(text, "event: entry\nid: b:1\ndata: {\"message\":\"a\\n\\ndata: b\\r\"}\n\n");
    }
}
