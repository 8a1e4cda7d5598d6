//! The first page: how the node does, in one sentence and in full.
//!
//! Purpose: the answer to "is it well, and if not, who and why" stands at the top; below it the
//! tree, the log of a chosen Runnable, volumes, node conditions, past boots. Must not know:
//! requests.

use std::sync::Arc;

use jiff::Timestamp;
use logtree::{Dn, Entry};
use maud::{Markup, html};
use supervisor::{NodeSnapshot, State, Verdict};

use super::parts::{ago, dn_link, fact, icon, until};
use super::{Frame, Known, Tab, chart, log, loops, node, node_name, tree, volumes};
use crate::text::{bytes, clipped, time, visible};

/// Volumes shown on the first page; the rest is one link away.
const MAX_VOLUMES: usize = 8;

/// The log part of the page.
pub(crate) struct LogTail<'a> {
    /// Whose log is shown.
    pub(crate) dn: &'a Dn,
    /// All that can be chosen.
    pub(crate) choices: &'a [Dn],
    /// The entries, oldest first.
    pub(crate) entries: &'a [Arc<Entry>],
    /// Where the live stream goes on.
    pub(crate) cursor: u64,
}

/// The page `/`.
pub(crate) fn overview_page(known: &Known<'_>, tail: &LogTail<'_>) -> Markup {
    let filter = crate::query::form_urlencode("dn", tail.dn.as_str());
    let frame = Frame {
        title: known.tree.verdict.as_str(),
        tab: Some(Tab::Overview),
        stream: Some(format!("tree=on&logs=on&{filter}&after={}", tail.cursor)),
        refresh: None,
    };
    let main = html! {
        (verdict(known))
        div #loops data-live { (loops::loops(known)) }
        (tiles(known))
        section aria-labelledby="h-tree" {
            h2 #h-tree { "Services" }
            div #tree.card.flush data-live { (tree::table(known.tree, known.now)) }
        }
        section aria-labelledby="h-vol" {
            h2 #h-vol { "Volumes" a.more href="/volumes" { "all volumes" } }
            div #vol.card.flush data-live {
                (volumes::capacity(known.volumes))
                (volumes::table(known.volumes, MAX_VOLUMES))
            }
        }
        (log_section(tail))
        div.two {
            section aria-labelledby="h-cond" {
                h2 #h-cond { "Node conditions" }
                div #cond.card.flush data-live { (node::conditions(known)) }
            }
            section aria-labelledby="h-boots" {
                h2 #h-boots { "Last boots" a.more href="/node" { "about the node" } }
                div #boots.card.flush data-live { (node::outcomes(known)) }
            }
        }
    };
    frame.page(known, &main)
}

/// The verdict as a sentence with the DN, the reason and the next try.
fn verdict(known: &Known<'_>) -> Markup {
    let tree = known.tree;
    let culprit = tree.verdict_dn.as_ref().and_then(|dn| tree.nodes.iter().find(|n| n.dn == *dn));
    let word = if tree.shutting_down { "shutting down" } else { tree.verdict.as_str() };
    html! {
        section #verdict.verdict.(tree.verdict.as_str()) data-live aria-labelledby="h-verdict" {
            (icon(tree.verdict))
            div {
                h1 #h-verdict { (node_name(known.node)) " is " b { (word) } }
                p { (sentence(known, culprit)) }
            }
        }
    }
}

fn sentence(known: &Known<'_>, culprit: Option<&Arc<NodeSnapshot>>) -> Markup {
    let tree = known.tree;
    html! {
        @if tree.shutting_down {
            @if let Some(stage) = &known.node.shutdown { (visible(stage)) ". " }
            @else if let Some(stage) = tree.shutdown_stage { "Stage " (stage) " is being stopped. " }
            @else { "Everything is being stopped in order. " }
        }
        @if let Some(dn) = &tree.verdict_dn {
            (dn_link(dn)) ": " (clipped(&tree.verdict_reason, 400)) "."
            @if let Some(next) = culprit.and_then(|n| n.next_start) {
                " Next try " (until(time(next), known.now)) "."
            }
        } @else if tree.nodes.is_empty() {
            "The first services are about to be started."
        } @else if !tree.boot_finished {
            "Every service started so far is well; the boot goes on."
        } @else {
            "Every service that matters is well."
        }
    }
}

/// Figures that fit in one glance.
fn tiles(known: &Known<'_>) -> Markup {
    let nodes = &known.tree.nodes;
    let well = nodes.iter().filter(|n| n.health == Verdict::Ok).count();
    let done = nodes.iter().filter(|n| n.state == State::Done).count();
    let recent: u32 = nodes.iter().map(|n| n.deaths_10min).sum();
    let deaths: u64 = nodes.iter().map(|n| n.deaths).sum();
    let ready = known.node.conditions.iter().find(|c| c.kind == "Ready");
    let (memory, capacity) = (known.node.memory, known.volumes.capacity);
    html! {
        dl #tiles.tiles data-live {
            (fact("Services well", &html! {
                b { (well) } " of " (nodes.len())
                @if done > 0 { small { (done) " of them done" } }
            }))
            (fact("Deaths in 10 min", &html! {
                b { (recent) } small { (deaths) " since boot" }
                (chart::marks(&all_deaths(nodes), known.now, "death", "deaths"))
            }))
            (fact("Kubernetes node", &html! {
                @match ready {
                    None => { b { "unknown" } small { "the API has not been asked yet" } }
                    Some(c) => {
                        b { @if c.is_good() { "Ready" } @else { "not Ready" } }
                        @if let Some(since) = c.since {
                            small { "for " (ago(since, known.now)) }
                        }
                    }
                }
            }))
            (fact("Volumes", &html! {
                b { (known.volumes.volumes.len()) }
                small { (bytes(capacity.committed_bytes)) " promised, "
                    (bytes(capacity.available_bytes)) " free" }
            }))
            (fact("Memory", &html! {
                b { (bytes(memory.total_bytes.saturating_sub(memory.available_bytes))) }
                small { "of " (bytes(memory.total_bytes)) "; hamlet itself "
                    (bytes(memory.rss_self_bytes)) }
            }))
            (fact("Up", &html! {
                @match known.node.booted {
                    None => b { "–" },
                    Some(booted) => b { (ago(booted, known.now)) },
                }
                @if let Some(last) = known.node.phases.last() {
                    small { (visible(&last.name)) " after " (format!("{:.1} s", last.uptime_s)) }
                }
            }))
        }
    }
}

/// Of all services, as far as their histories are kept.
fn all_deaths(nodes: &[Arc<NodeSnapshot>]) -> Vec<Timestamp> {
    nodes.iter().filter(|n| n.deaths > 0).flat_map(|n| loops::deaths(n)).collect()
}

fn log_section(tail: &LogTail<'_>) -> Markup {
    let whole = format!("/logs?follow=on&{}", crate::query::form_urlencode("dn", tail.dn.as_str()));
    html! {
        section aria-labelledby="h-log" {
            h2 #h-log { "Log" a.more href=(whole) { "search the log" } }
            div.card.flush {
                form.bar-form action="/#h-log" method="get" {
                    label for="f-log" { "Log of" }
                    (log::dn_select("log", tail.dn, tail.choices))
                    button { "Show" }
                    (log::live_controls())
                }
                (log::entries(tail.entries))
            }
        }
    }
}
