//! The commands, one function each (rules C1 and C3).
//!
//! Must not know: the command line's grammar, how text is made.
use std::time::Duration;

use logtree::{Entry, Level};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::args::{EndArgs, Output};
use super::client::{Client, Connection, Reply};
use super::failure::Failure;
use super::model::{Dns, LogEntry, Logs, Node, Processes, Service, Tree, Volumes};
use super::render;
use super::screen::Screen;
use crate::names::{self, NotOne};

/// Time between two looks at processes.
const TOP_EVERY: Duration = Duration::from_secs(2);
/// Time between two questions whether the node is ready: it may not even be there yet.
const READY_EVERY: Duration = Duration::from_millis(500);
/// Pause before a lost connection is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Entries shown of what a service said before it died.
const LAST_WORDS: usize = 20;

/// What holds for every command.
pub(super) struct Asked {
    pub(super) client: Client,
    pub(super) output: Output,
}

/// Draws the tree, and again on each change.
pub(super) async fn tree(
    asked: &Asked,
    dn: Option<&str>,
    watch: bool,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let below = match dn {
        Some(dn) => Some(resolve(&mut connection, dn).await?),
        None => None,
    };
    let below = below.as_deref();
    if !watch {
        return show_tree(asked, &connection.get("/api/v1/tree").await?, below, screen);
    }
    loop {
        let ended = match asked.client.streams() {
            true => stream_tree(asked, connection, below, screen).await,
            false => poll_tree(asked, connection, below, screen).await,
        };
        match ended {
            Ok(()) | Err(Failure::Unreachable { .. }) => {}
            Err(other) => return Err(other),
        }
        connection = loop {
            tokio::time::sleep(RETRY).await;
            match asked.client.connect().await {
                Ok(connection) => break connection,
                Err(e) => screen.write(&format!("{}\n", e))?,
            }
        };
    }
}

fn show_tree(
    asked: &Asked,
    reply: &Reply,
    below: Option<&str>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    if asked.output == Output::Json {
        let mut tree: Value = reply.json()?;
        if let (Some(top), Some(Value::Array(nodes))) = (below, tree.get_mut("nodes")) {
            let inside = |n: &Value| {
                let dn = n.get("dn").and_then(Value::as_str).unwrap_or_default();
                dn.strip_prefix(top).is_some_and(|r| r.is_empty() || r.starts_with('.'))
            };
            nodes.retain(inside);
        }
        return Ok(screen.write(&format!("{tree}\n"))?);
    }
    let tree: Tree = reply.json()?;
    Ok(screen.redraw(&render::tree(&screen.style(), &tree, below))?)
}

/// The node says when something changes; ends with the connection.
async fn stream_tree(
    asked: &Asked,
    connection: Connection,
    below: Option<&str>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut lines = connection.follow("/api/v1/stream?tree=on").await?;
    while let Some(line) = lines.next().await? {
        if let Some(data) = line.strip_prefix("data: ") {
            let reply = Reply { status: 200, body: data.to_owned().into() };
            show_tree(asked, &reply, below, screen)?;
        }
    }
    Ok(())
}

/// The host channel tells nothing by itself.
async fn poll_tree(
    asked: &Asked,
    mut connection: Connection,
    below: Option<&str>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    loop {
        show_tree(asked, &connection.get("/api/v1/tree").await?, below, screen)?;
        tokio::time::sleep(TOP_EVERY).await;
    }
}

/// Shows what processes use, again and again on a terminal.
pub(super) async fn top(asked: &Asked, once: bool, screen: &mut Screen) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let address = "/api/v1/processes";
    if asked.output == Output::Json {
        return plain(&connection.get(address).await?, screen);
    }
    let mut before: Processes = connection.get(address).await?.json()?;
    let mut at = Instant::now();
    loop {
        tokio::time::sleep(TOP_EVERY).await;
        let after: Processes = connection.get(address).await?.json()?;
        let apart = at.elapsed();
        at = Instant::now();
        screen.redraw(&render::top(&screen.style(), &before, &after, apart))?;
        if once || !screen.is_terminal() {
            return Ok(());
        }
        before = after;
    }
}

/// Shows the last words of a service.
pub(super) async fn crash(asked: &Asked, dn: &str, screen: &mut Screen) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let dn = resolve(&mut connection, dn).await?;
    let reply = connection.get(&format!("/api/v1/tree/{dn}")).await?;
    let service: Service = reply.json()?;
    let mut entries = Vec::new();
    if let Some(died) = service.last_death.as_ref().and_then(|d| d.time) {
        // The report of the death follows the death itself closely and is one of the last words.
        let until = died.checked_add(Duration::from_millis(200)).unwrap_or(died);
        let until = dashboard::text::form_urlencode("until", &until.to_string());
        let logs: Logs = connection
            .get(&format!("/api/v1/logs?dn={dn}&n={LAST_WORDS}&{until}"))
            .await?
            .json()?;
        entries = logs.entries;
    }
    if asked.output == Output::Json {
        let mut crash: Value = reply.json()?;
        crash["entries"] = Value::Array(entries);
        return Ok(screen.write(&format!("{crash}\n"))?);
    }
    let parse = |e| serde_json::from_value(e).map(LogEntry::entry);
    let said: Result<Vec<Entry>, _> = entries.into_iter().map(parse).collect();
    let said = said.map_err(|e| Failure::Answer(e.to_string()))?;
    Ok(screen.write(&render::crash(&screen.style(), &service, &said))?)
}

/// Tells how the node does; the answer is whether it does well.
pub(super) async fn health(
    asked: &Asked,
    wait: Option<Duration>,
    screen: &mut Screen,
) -> Result<bool, Failure> {
    let end = Instant::now() + wait.unwrap_or_default();
    let (tree, ready) = loop {
        match look(asked).await {
            Ok((tree, ready)) if ready || Instant::now() >= end => break (tree, ready),
            Err(e) if !matches!(e, Failure::Unreachable { .. }) || Instant::now() >= end => {
                return Err(e);
            }
            _ => tokio::time::sleep(READY_EVERY).await,
        }
    };
    let well = matches!(tree.verdict.as_str(), "ok" | "degraded");
    match asked.output {
        Output::Text => screen.write(&render::health(&screen.style(), &tree))?,
        Output::Json => {
            let said = json!({
                "verdict": tree.verdict, "verdict_dn": tree.verdict_dn,
                "verdict_reason": tree.verdict_reason, "ready": ready,
            });
            screen.write(&format!("{said}\n"))?;
        }
    }
    Ok(if wait.is_some() { ready } else { well })
}

async fn look(asked: &Asked) -> Result<(Tree, bool), Failure> {
    let mut connection = asked.client.connect().await?;
    let ready = connection.get("/readyz").await?.status == 200;
    Ok((connection.get("/api/v1/tree").await?.json()?, ready))
}

/// Lists the volumes.
pub(super) async fn volumes(asked: &Asked, screen: &mut Screen) -> Result<(), Failure> {
    show::<Volumes>(asked, "/api/v1/volumes", render::volumes, screen).await
}

/// Shows the node.
pub(super) async fn node(asked: &Asked, screen: &mut Screen) -> Result<(), Failure> {
    show::<Node>(asked, "/api/v1/node", render::node, screen).await
}

async fn show<T: DeserializeOwned>(
    asked: &Asked,
    address: &str,
    render: fn(&render::Style, &T) -> String,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let reply = asked.client.connect().await?.get(address).await?;
    match asked.output {
        Output::Json => plain(&reply, screen),
        Output::Text => Ok(screen.write(&render(&screen.style(), &reply.json()?))?),
    }
}

/// The node's own JSON, on one line.
fn plain(reply: &Reply, screen: &mut Screen) -> Result<(), Failure> {
    let value: Value = reply.json()?;
    Ok(screen.write(&format!("{value}\n"))?)
}

/// Restarts a service.
pub(super) async fn restart(asked: &Asked, dn: &str, screen: &mut Screen) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let dn = resolve(&mut connection, dn).await?;
    let reply = connection.post(&format!("/api/v1/restart/{dn}"), &json!({})).await?;
    done(asked, &reply, &format!("{dn} is being restarted"), screen)
}

/// Sets a log level; zero time means until the next boot.
pub(super) async fn level(
    asked: &Asked,
    (dn, level): &(String, Level),
    time: Duration,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let dn = if dn.is_empty() { String::new() } else { resolve(&mut connection, dn).await? };
    let body = json!({ "dn": dn, "level": level.as_str(), "for_s": time.as_secs() });
    let reply = connection.post("/api/v1/level", &body).await?;
    let whose = if dn.is_empty() { "everything" } else { &dn };
    let until = match time.as_secs() {
        0 => "until the next boot".to_owned(),
        s => format!("for {}", dashboard::text::span(i64::try_from(s).unwrap_or(i64::MAX))),
    };
    done(asked, &reply, &format!("{whose} logs at {level} {until}"), screen)
}

/// Ends the node.
pub(super) async fn power(
    asked: &Asked,
    action: &str,
    end: &EndArgs,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut connection = asked.client.connect().await?;
    let body = json!({ "action": action, "force": end.force });
    let reply = connection.post("/api/v1/power", &body).await?;
    done(asked, &reply, &format!("{action} begins"), screen)
}

fn done(asked: &Asked, reply: &Reply, sentence: &str, screen: &mut Screen) -> Result<(), Failure> {
    let said: Value = reply.json()?;
    match asked.output {
        Output::Json => Ok(screen.write(&format!("{said}\n"))?),
        Output::Text => Ok(screen.write(&format!("{sentence}\n"))?),
    }
}

/// The DN that somebody means.
pub(super) async fn resolve(connection: &mut Connection, text: &str) -> Result<String, Failure> {
    let known: Dns = connection.get("/api/v1/dns").await?.json()?;
    let known: Vec<&str> = known.dns.iter().map(String::as_str).collect();
    match names::resolve(text, &known) {
        Ok(dn) => Ok(dn.to_owned()),
        Err(NotOne::None { nearest }) => Err(Failure::Name {
            message: format!("there is no service {text}"),
            hint: nearest.map_or_else(String::new, |n| format!("Did you mean {n}?")),
        }),
        Err(NotOne::Several(names)) => Err(Failure::Name {
            message: format!("{text} names several services"),
            hint: names.join("\n"),
        }),
    }
}
