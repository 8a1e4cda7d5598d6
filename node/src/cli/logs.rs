//! `hamlet logs`: old entries in pages, then new ones, over lost connections and reboots (rule C2).
//!
//! Owner: one command. Invariants: no entry is printed twice or left out unseen while one boot lasts;
//! what was evicted before it could be read is told with its number, another boot by its id.
//! Must not know: how entries become lines.
use std::time::Duration;

use jiff::Timestamp;
use logtree::Level;
use serde_json::Value;

use super::args::{Lines, LogArgs, Output, Since};
use super::client::{Client, Connection};
use super::commands::{Asked, resolve};
use super::failure::Failure;
use super::model::{LogEntry, Logs, Node};
use super::render::log_line;
use super::screen::Screen;

/// Most entries of one answer of the node.
const PAGE: usize = 2000;

/// Entries shown where nothing is said.
const DEFAULT_LINES: usize = 200;

/// Pause before a lost connection is tried again. Nothing tells when a node that went away is back.
const RETRY: Duration = Duration::from_secs(1);

/// How long one question over the host channel waits for news; it serves one client at a time.
const POLL_S: u32 = 20;

/// What is read.
struct Filter {
    /// Parameters of the address, with a leading `&` each.
    query: String,
}

/// The command.
pub(super) async fn run(
    asked: &Asked,
    arguments: &LogArgs,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let dn = match arguments.dn.as_deref() {
        None | Some("" | "all") => String::new(),
        Some(dn) => resolve(&mut connection, dn).await?,
    };
    let filter = Filter::of(arguments, &dn, Timestamp::now())?;
    let mut printer = Printer { screen, output: asked.output, concise: arguments.concise };
    let boot = boot_id(&mut connection).await?;
    let lines = match (arguments.lines, arguments.since) {
        (Some(Lines::Last(n)), _) => n,
        (Some(Lines::All), _) | (None, Some(_)) => usize::MAX,
        (None, None) => DEFAULT_LINES,
    };
    let cursor = backlog(&mut connection, &filter, lines, &mut printer).await?;
    if !arguments.follow {
        return Ok(());
    }
    let mut follower = Follower { client: asked.client.clone(), filter, printer, boot, cursor };
    let mut open = Some(connection);
    loop {
        // The first error of a new connection says that nobody is there: then it is tried again.
        let connection = match open.take() {
            Some(connection) => connection,
            None => match follower.reconnect().await {
                Ok(connection) => connection,
                Err(Failure::Unreachable { .. }) => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(other) => return Err(other),
            },
        };
        match follower.follow(connection).await {
            Ok(()) | Err(Failure::Unreachable { .. }) => tokio::time::sleep(RETRY).await,
            Err(other) => return Err(other),
        }
    }
}

impl Filter {
    fn of(arguments: &LogArgs, dn: &str, now: Timestamp) -> Result<Filter, Failure> {
        let mut query = String::new();
        let mut add = |name: &str, value: &str| {
            query.push('&');
            query.push_str(&dashboard::text::form_urlencode(name, value));
        };
        add("dn", dn);
        if arguments.exact {
            add("children", "off");
        }
        if let Some(level) = arguments.level {
            add("level", level.as_str());
        }
        match (arguments.raw, arguments.leveled) {
            (true, _) => add("kind", "raw"),
            (_, true) => add("kind", "leveled"),
            _ => {}
        }
        if let Some(text) = &arguments.grep {
            add("text", text);
        }
        if let Some(since) = arguments.since {
            let at = match since {
                Since::At(at) => at,
                Since::Ago(span) => now.checked_sub(span).map_err(|_| {
                    Failure::Usage("--since is before the beginning of time".to_owned())
                })?,
            };
            add("since", &at.to_string());
        }
        Ok(Filter { query })
    }
}

async fn boot_id(connection: &mut Connection) -> Result<String, Failure> {
    let node: Node = connection.get("/api/v1/node").await?.json()?;
    Ok(node.boot_id)
}

/// Prints the newest `lines` entries and returns where the log ends.
async fn backlog(
    connection: &mut Connection,
    filter: &Filter,
    lines: usize,
    printer: &mut Printer<'_>,
) -> Result<u64, Failure> {
    let query = &filter.query;
    // The newest come first, so the pages are printed in the order opposite to that in which they came.
    let first = lines.clamp(1, PAGE);
    let newest: Logs = connection.get(&format!("/api/v1/logs?n={first}{query}")).await?.json()?;
    let cursor = newest.cursor;
    if lines == 0 {
        return Ok(cursor);
    }
    let mut left = lines - newest.entries.len().min(lines);
    let mut pages = vec![newest];
    while let Some(before) = full(pages.last(), left) {
        let n = left.min(PAGE);
        let page = connection.get(&format!("/api/v1/logs?n={n}&before={before}{query}")).await?;
        let page: Logs = page.json()?;
        left -= page.entries.len().min(left);
        pages.push(page);
    }
    let missed = pages.first().map_or(0, |newest| newest.missed);
    // Asking for the last few misses nothing by intent; asking for all of it does.
    if lines == usize::MAX {
        printer.missed(missed)?;
    }
    for entry in pages.into_iter().rev().flat_map(|p| p.entries) {
        printer.entry(entry)?;
    }
    Ok(cursor)
}

/// The position before which there may be more, if more is wanted.
fn full(page: Option<&Logs>, left: usize) -> Option<u64> {
    let page = page.filter(|p| left > 0 && p.entries.len() == PAGE)?;
    page.entries.first()?.get("seq")?.as_u64()
}

struct Follower<'a> {
    client: Client,
    filter: Filter,
    printer: Printer<'a>,
    boot: String,
    cursor: u64,
}

impl Follower<'_> {
    /// A new connection, with the position right for the boot that it reaches.
    async fn reconnect(&mut self) -> Result<Connection, Failure> {
        let mut connection = self.client.connect().await?;
        let boot = boot_id(&mut connection).await?;
        if boot != self.boot {
            self.printer.boot(&boot)?;
            self.boot = boot;
            self.cursor = 0;
        }
        Ok(connection)
    }

    /// Prints what comes until the connection ends.
    async fn follow(&mut self, mut connection: Connection) -> Result<(), Failure> {
        let query = self.filter.query.clone();
        if self.client.streams() {
            let path = format!("/api/v1/logs?follow=on&after={}{query}", self.cursor);
            let mut lines = connection.follow(&path).await?;
            while let Some(line) = lines.next().await? {
                // An empty line says that the node is still there.
                if !line.is_empty() {
                    let entry = serde_json::from_str(&line);
                    self.take(entry.map_err(|e| Failure::Answer(e.to_string()))?)?;
                }
            }
            return Ok(());
        }
        loop {
            let path = format!("/api/v1/logs?after={}&wait={POLL_S}&n={PAGE}{query}", self.cursor);
            let logs: Logs = connection.get(&path).await?.json()?;
            self.printer.missed(logs.missed)?;
            for entry in logs.entries {
                self.take(entry)?;
            }
            self.cursor = self.cursor.max(logs.cursor);
        }
    }

    fn take(&mut self, entry: Value) -> Result<(), Failure> {
        if let Some(missed) = entry.get("missed").and_then(Value::as_u64) {
            return self.printer.missed(missed);
        }
        if let Some(seq) = entry.get("seq").and_then(Value::as_u64) {
            self.cursor = self.cursor.max(seq);
        }
        self.printer.entry(entry)
    }
}

struct Printer<'a> {
    screen: &'a mut Screen,
    output: Output,
    concise: bool,
}

impl Printer<'_> {
    fn entry(&mut self, value: Value) -> Result<(), Failure> {
        if self.output == Output::Json {
            return Ok(self.screen.write(&format!("{value}\n"))?);
        }
        let entry: LogEntry =
            serde_json::from_value(value).map_err(|e| Failure::Answer(e.to_string()))?;
        let entry = entry.entry();
        let style = self.screen.style();
        let text = match self.concise {
            true => logtree::to_concise(&entry, style.width.unwrap_or(120)),
            false => logtree::to_text(&entry),
        };
        let level: Option<Level> = entry.level;
        Ok(self.screen.write(&log_line(&style, level, &text))?)
    }

    fn missed(&mut self, missed: u64) -> Result<(), Failure> {
        match (missed, self.output) {
            (0, _) => Ok(()),
            (n, Output::Text) => Ok(self.screen.write(&format!("-- {n} entries missed --\n"))?),
            (n, Output::Json) => Ok(self.screen.write(&format!("{{\"missed\":{n}}}\n"))?),
        }
    }

    fn boot(&mut self, id: &str) -> Result<(), Failure> {
        let id = dashboard::text::visible(id);
        match self.output {
            Output::Text => Ok(self.screen.write(&format!("-- boot {id} --\n"))?),
            Output::Json => {
                Ok(self.screen.write(&format!("{}\n", serde_json::json!({ "boot": id })))?)
            }
        }
    }
}
