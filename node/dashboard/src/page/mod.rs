//! The pages, as pure functions from what is known to HTML.
//!
//! Purpose: everything a browser gets is made here, complete without JavaScript (rule W3); the
//! script only asks for the same page again and takes over what changed. Must not know: requests,
//! access, where data comes from.
//!
//! Invariants: no inline style or script (the CSP forbids both, so widths are SVG attributes and
//! depth is drawn with elements); regions that change carry `data-live` and an id; foreign text
//! goes through [`crate::text::visible`] and maud's escaping.

mod chart;
mod dn;
mod forms;
mod log;
mod loops;
mod node;
mod overview;
mod parts;
mod refusal;
mod tree;
mod volumes;

pub(crate) use dn::{dn_page, vanished_page};
pub(crate) use log::{LogPage, log_page};
pub(crate) use node::node_page;
pub(crate) use overview::{LogTail, overview_page};
pub(crate) use refusal::{login_page, refusal_page};
pub(crate) use volumes::{volume_page, volumes_page};

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use supervisor::{Snapshot, Verdict};

use crate::peer::Role;
use crate::text::{rfc3339, visible};
use crate::views::{NodeView, VolumesView};

/// Everything that is known at one moment; one page shows one moment.
pub(crate) struct Known<'a> {
    /// The tree.
    pub(crate) tree: &'a Snapshot,
    /// The volumes.
    pub(crate) volumes: &'a VolumesView,
    /// The node.
    pub(crate) node: &'a NodeView,
    /// The wall clock.
    pub(crate) now: Timestamp,
    /// What the reader may do.
    pub(crate) role: Role,
}

/// The entries of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Logs,
    Volumes,
    Node,
}

const TABS: [(Tab, &str, &str); 4] = [
    (Tab::Overview, "/", "Overview"),
    (Tab::Logs, "/logs?follow=on", "Logs"),
    (Tab::Volumes, "/volumes", "Volumes"),
    (Tab::Node, "/node", "Node"),
];

/// What surrounds the content of a page.
pub(crate) struct Frame<'a> {
    /// In the title of the window, before the node's name.
    pub(crate) title: &'a str,
    /// Which entry of the navigation is current.
    pub(crate) tab: Option<Tab>,
    /// Parameters of the live stream; none without one.
    pub(crate) stream: Option<String>,
    /// Seconds after which a browser without JavaScript loads the page again.
    pub(crate) refresh: Option<u32>,
}

impl Frame<'_> {
    /// The whole page.
    pub(crate) fn page(&self, known: &Known<'_>, main: &Markup) -> Markup {
        let name = node_name(known.node);
        let title = format!("{} · {name}", visible(self.title));
        let head = head(&title, Some(known.tree.verdict), self.refresh);
        html! {
            (DOCTYPE)
            html lang="en" {
                (head)
                body data-stream=[self.stream.as_deref()] data-now=(rfc3339(known.now)) {
                    (icons())
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        (brand())
                        span.at { (name) }
                        nav aria-label="Pages" {
                            @for (tab, href, word) in TABS {
                                @let current = (self.tab == Some(tab)).then_some("page");
                                a href=(href) aria-current=[current] { (word) }
                            }
                        }
                        @if self.stream.is_some() {
                            span #live.live hidden { i {} span { "live" } }
                        }
                    }
                    p #lost.lost role="status" hidden {}
                    main #main tabindex="-1" { (main) }
                    footer { (self.footer(known)) }
                    p #say.vh aria-live="polite" {}
                }
            }
        }
    }

    fn footer(&self, known: &Known<'_>) -> Markup {
        html! {
            p {
                "As of " time datetime=(rfc3339(known.now)) {
                    (format!("{}", known.now.strftime("%Y-%m-%d %H:%M:%S UTC")))
                }
                " · Hamlet " (visible(&known.node.version))
                @match known.role {
                    Role::Viewer => " · read only",
                    Role::Admin => " · you may change things",
                }
                " · JSON under "
                a href="/api/v1/tree" { "/api/v1" }
                ", metrics under " a href="/metrics" { "/metrics" }
            }
            @if self.stream.is_some() && self.refresh.is_none() {
                noscript {
                    p { "Live updates need JavaScript; reload the page for the newest state." }
                }
            }
        }
    }
}

/// The name a page calls the node by.
fn node_name(node: &NodeView) -> String {
    match node.node_name.as_str() {
        "" => "this node".to_owned(),
        name => visible(name).into_owned(),
    }
}

/// The head of a page; the icon of the window follows the verdict.
fn head(title: &str, verdict: Option<Verdict>, refresh: Option<u32>) -> Markup {
    let colour = match verdict {
        None => "5a6475",
        Some(Verdict::Ok) => "1a7f45",
        Some(Verdict::Starting) => "2463b4",
        Some(Verdict::Degraded) => "a86600",
        Some(Verdict::Restarting) => "bd4a00",
        Some(Verdict::Failing) => "c02530",
    };
    let icon = format!(
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
         %3Crect width='16' height='16' rx='4' fill='%23{colour}'/%3E\
         %3Cpath d='M3 13V8l5-4 5 4v5H9.500V9.500h-3V13z' fill='%23fff'/%3E%3C/svg%3E"
    );
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            link rel="icon" href=(icon);
            link rel="stylesheet" href="/style.css";
            @if let Some(s) = refresh { noscript { meta http-equiv="refresh" content=(s); } }
            script src="/app.js" defer {}
        }
    }
}

fn brand() -> Markup {
    html! {
        a.brand href="/" {
            svg viewBox="0 0 24 20" aria-hidden="true" {
                path d="M2 18V9.500L8.500 3 15 9.500V18h-4.500v-5h-4v5z" {}
                path.b d="M13 6.500 15.500 4 22 10.500V18h-4.800V8.700z" {}
            }
            "Hamlet"
        }
    }
}

/// The shapes that stand for health, referred to by `#i-<word>`.
fn icons() -> Markup {
    PreEscaped(include_str!("../../assets/icons.svg").to_owned())
}
