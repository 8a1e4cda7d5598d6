//! The log: its form, its entries, the way to older and newer ones.
//!
//! Purpose: rule W3. The script makes the same rows for entries that come later. Must not know:
//! how entries are read.

use std::sync::Arc;

use jiff::Timestamp;
use logtree::{Dn, Entry, Kind, Level};
use maud::{Markup, html};

use super::{Frame, Known, Tab};
use crate::query::{LogQuery, MAX_N, MAX_TEXT_BYTES, Page, form_urlencode, kind_word};
use crate::text::{clipped, count, rfc3339, time, visible};

/// Longest message shown in a row, in bytes; the JSON has all of it.
const MAX_SHOWN_BYTES: usize = 4096;
/// Seconds between loads without JavaScript.
const REFRESH_S: u32 = 5;

/// What the page shows.
pub(crate) struct LogPage<'a> {
    /// What was asked for.
    pub(crate) query: &'a LogQuery,
    /// All DNs that can be chosen.
    pub(crate) choices: &'a [Dn],
    /// The entries, oldest first.
    pub(crate) entries: &'a [Arc<Entry>],
    /// Evicted between the position asked for and the first entry.
    pub(crate) missed: u64,
    /// Where the live stream goes on.
    pub(crate) cursor: u64,
}

/// The page `/logs`.
pub(crate) fn log_page(known: &Known<'_>, page: &LogPage<'_>) -> Markup {
    let query = page.query;
    let live = query.page == Page::Newest && query.follow;
    let filter = query.filter_parameters();
    let frame = Frame {
        title: "Logs",
        tab: Some(Tab::Logs),
        stream: live.then(|| format!("logs=on&{filter}&after={}", page.cursor)),
        refresh: live.then_some(REFRESH_S),
    };
    let main = html! {
        h1 { "Log of " @if query.dn.is_all() { "everything" } @else { (query.dn) } }
        (form(page))
        div.card.flush {
            @if page.missed > 0 {
                p.missed { (page.missed) " entries missed: they were evicted before" }
            }
            (entries(page.entries))
            @if page.entries.is_empty() {
                p.empty { "No entry matches. Try a lower level, or the services below too." }
            }
        }
        (pager(page))
    };
    frame.page(known, &main)
}

fn form(page: &LogPage<'_>) -> Markup {
    let query = page.query;
    html! {
        form.filter.card action="/logs" method="get" {
            div.f { label for="f-dn" { "Service" } (dn_select("dn", &query.dn, page.choices)) }
            div.f {
                label for="f-children" { "Below it" }
                select #f-children name="children" {
                    option value="on" selected[query.children] { "included" }
                    option value="off" selected[!query.children] { "not included" }
                }
            }
            div.f {
                label for="f-level" { "Least level" }
                select #f-level name="level" {
                    option value="" selected[query.level.is_none()] { "any" }
                    @for level in Level::ALL {
                        option selected[query.level == Some(level)] { (level) }
                    }
                }
            }
            div.f {
                label for="f-kind" { "Kind" }
                select #f-kind name="kind" {
                    @for kind in [Kind::Any, Kind::Leveled, Kind::Raw] {
                        option selected[query.kind == kind] { (kind_word(kind)) }
                    }
                }
            }
            div.f.grow {
                label for="f-text" { "Text in the message" }
                input #f-text name="text" type="search" maxlength=(MAX_TEXT_BYTES)
                    value=(query.text.as_deref().unwrap_or(""));
            }
            (time_field("since", "From (UTC)", query.since))
            (time_field("until", "To (UTC)", query.until))
            div.f {
                label for="f-n" { "Entries" }
                input #f-n name="n" type="number" min="1" max=(MAX_N) value=(query.n);
            }
            div.f.check {
                label { input name="follow" type="checkbox" value="on" checked[query.follow];
                    " Follow" }
            }
            div.f { button { "Show" } }
            (live_controls())
        }
    }
}

/// A time as browsers ask for it; without such a field in the browser it is a text in the same form.
fn time_field(name: &str, word: &str, value: Option<Timestamp>) -> Markup {
    let value = value.map(|t| t.strftime("%Y-%m-%dT%H:%M:%S").to_string());
    html! {
        div.f {
            label for={ "f-" (name) } { (word) }
            input id={ "f-" (name) } name=(name) type="datetime-local" step="1" value=[value];
        }
    }
}

/// Controls that only work with JavaScript, which unhides them.
pub(crate) fn live_controls() -> Markup {
    html! {
        label #announce.js hidden {
            input type="checkbox"; " Read new entries aloud"
        }
    }
}

/// A choice of DNs; one that is not in the list is offered too.
pub(crate) fn dn_select(name: &str, chosen: &Dn, choices: &[Dn]) -> Markup {
    let unlisted = !chosen.is_all() && !choices.contains(chosen);
    html! {
        select id={ "f-" (name) } name=(name) {
            option value="" selected[chosen.is_all()] { "everything" }
            @if unlisted { option selected { (chosen) } }
            @for dn in choices { option selected[dn == chosen] { (dn) } }
        }
    }
}

/// The entries as a list in a region of role log, silent unless asked.
pub(crate) fn entries(entries: &[Arc<Entry>]) -> Markup {
    html! {
        div #log.log role="log" aria-live="off" aria-label="Log entries" tabindex="0" {
            ol {
                @for entry in entries { (row(entry)) }
            }
        }
        button #new.new type="button" hidden {}
    }
}

/// One entry.
fn row(entry: &Entry) -> Markup {
    let when = time(entry.wall_ns);
    let level = entry.level.map_or("raw", Level::as_str);
    let dn = entry.dn.as_str();
    html! {
        li.(level) {
            time datetime=(rfc3339(when)) { (format!("{}", when.strftime("%H:%M:%S%.3f"))) }
            b { (level) }
            a href={ "/dn/" (dn) } title=(dn) { (short(dn)) }
            bdi {
                (message(entry))
                @for (key, value) in &entry.fields {
                    " " i { (visible(key)) "=" }
                    (clipped(value, MAX_SHOWN_BYTES))
                }
            }
        }
    }
}

/// The message with its own line breaks and nothing else of its own.
fn message(entry: &Entry) -> String {
    let lines: Vec<_> = entry.lines.iter().map(|l| clipped(l, MAX_SHOWN_BYTES)).collect();
    lines.join("\n")
}

/// A DN without what is the same in every row.
pub(crate) fn short(dn: &str) -> &str {
    let rest = dn.strip_prefix("root.").unwrap_or(dn);
    rest.strip_prefix("kubernetes.").unwrap_or(rest)
}

fn pager(page: &LogPage<'_>) -> Markup {
    let filter = page.query.filter_parameters();
    let n = page.query.n;
    let older = page.entries.first().filter(|_| page.entries.len() == n).map(|e| e.seq);
    let newer = page.entries.last().map(|e| e.seq).filter(|_| page.query.page != Page::Newest);
    let json = match page.query.page {
        Page::Newest => String::new(),
        Page::Before(c) => format!("&before={c}"),
        Page::After(c) => format!("&after={c}"),
    };
    html! {
        nav.pager aria-label="Older and newer entries" {
            @if let Some(seq) = older {
                a href={ "/logs?" (filter) "&n=" (n) "&before=" (seq) } { "← Older" }
            }
            @if let Some(seq) = newer {
                a href={ "/logs?" (filter) "&n=" (n) "&after=" (seq) } { "Newer →" }
            }
            @if page.query.page != Page::Newest {
                a href={ "/logs?" (filter) "&n=" (n) "&follow=on" } { "Newest" }
            }
            span { (count(page.entries.len(), "entry", "entries")) }
            a href={ "/api/v1/logs?" (filter) "&n=" (n) (json) } { "as JSON" }
            a href={ "/logs.txt?" (filter) } download { "download all that match" }
        }
    }
}

/// The address of the log of one DN.
pub(crate) fn log_address(dn: &Dn) -> String {
    format!("/logs?follow=on&{}", form_urlencode("dn", dn.as_str()))
}
