//! One Runnable: everything the supervisor knows about it, and its log.
//!
//! Purpose: rule W2's `/dn/<dn>` with all of H4. Must not know: how the snapshot came to be.

use logtree::Dn;
use maud::{Markup, html};
use supervisor::{Death, NodeSnapshot, Phase};

use super::log::{self, log_address};
use super::overview::LogTail;
use super::parts::{ago, at, badge, breakable, dn_link, fact, icon, state, until};
use super::{Frame, Known, Tab, chart, forms, loops};
use crate::text::{bytes, clipped, span, time, visible};

/// The page of a node of the tree.
pub(crate) fn dn_page(known: &Known<'_>, node: &NodeSnapshot, tail: &LogTail<'_>) -> Markup {
    let main = html! {
        (crumbs(&node.dn))
        section #verdict.verdict.(node.health.as_str()) data-live aria-labelledby="h-verdict" {
            (icon(node.health))
            div {
                h1 #h-verdict { (breakable(node.dn.as_str())) " is " b { (node.health.as_str()) } }
                p { (sentence(known, node)) }
            }
        }
        div.two {
            section aria-labelledby="h-facts" {
                h2 #h-facts { "Facts" }
                div #facts.card data-live { (facts(known, node)) }
            }
            section aria-labelledby="h-hist" {
                h2 #h-hist { "History" }
                div #hist.card.flush data-live { (history(known, node)) }
            }
        }
        (forms::service(known, &node.dn))
        (log_section(tail))
    };
    frame(&node.dn, tail).page(known, &main)
}

/// The page of a DN that has a log but is no node of the tree (any more).
pub(crate) fn vanished_page(known: &Known<'_>, tail: &LogTail<'_>) -> Markup {
    let main = html! {
        (crumbs(tail.dn))
        h1 { (breakable(tail.dn.as_str())) }
        p.card { "This is no service of the tree now: its log is all there is." }
        (log_section(tail))
    };
    frame(tail.dn, tail).page(known, &main)
}

fn frame<'a>(dn: &'a Dn, tail: &LogTail<'_>) -> Frame<'a> {
    Frame {
        title: dn.as_str(),
        tab: Some(Tab::Overview),
        stream: Some(format!(
            "tree=on&logs=on&{}&after={}",
            crate::query::form_urlencode("dn", dn.as_str()),
            tail.cursor
        )),
        refresh: None,
    }
}

fn crumbs(dn: &Dn) -> Markup {
    let mut above = Vec::new();
    let mut parent = dn.parent();
    while let Some(p) = parent {
        parent = p.parent();
        above.push(p);
    }
    html! {
        nav.crumb aria-label="Above this service" {
            a href="/" { "Overview" }
            @for p in above.iter().rev() { " / " a href={ "/dn/" (p) } { (p.last()) } }
        }
    }
}

fn sentence(known: &Known<'_>, node: &NodeSnapshot) -> Markup {
    html! {
        @if node.reason.is_empty() { (state(node)) " for " (ago(time(node.since), known.now)) "." }
        @else { (clipped(&node.reason, 400)) "." }
        @if let Some(next) = node.next_start { " Next start " (until(time(next), known.now)) "." }
        @if let Some(note) = &node.note { " " span.mu { "Now: " (clipped(note, 256)) } }
    }
}

fn facts(known: &Known<'_>, node: &NodeSnapshot) -> Markup {
    html! {
        dl.facts {
            (fact("State", &html! { (state(node)) " for " (ago(time(node.since), known.now)) }))
            (fact("Starts", &html! {
                (node.starts)
                @for (cause, n) in node.starts_by_cause.iter().filter(|(_, n)| *n > 0) {
                    small { (n) " " (cause.as_str()) }
                }
            }))
            (fact("Deaths", &html! {
                (node.deaths) small { (node.deaths_10min) " in the last 10 min" }
            }))
            (fact("Incarnation", &html! { (node.incarnation) }))
            @if let Phase::Waiting { dns } = &node.phase {
                (fact("Waits for", &html! { @for dn in dns { (dn_link(dn)) " " } }))
            }
            (fact("Unit", &unit(known, node)))
            @let children: Vec<_> = known.tree.nodes.iter()
                .filter(|n| n.dn.parent().as_ref() == Some(&node.dn)).collect();
            @if !children.is_empty() {
                (fact("Children", &html! {
                    @for child in children {
                        span.kid { a.dn href={ "/dn/" (child.dn) } { (child.dn.last()) } " "
                            (badge(child.health)) }
                    }
                }))
            }
            (fact("Weight", &html! {
                @if node.critical { "critical: the verdict of the node depends on it" }
                @else { "not critical: it degrades the node at most" }
            }))
            (fact("Stopped in", &html! { "stage " (node.stop_stage) }))
            (fact("On consoles", &html! { (node.console) " and above" }))
            @if let Some(child) = node.child {
                (fact("Process", &html! {
                    "pid " (child.pid)
                    small { (bytes(child.memory_bytes)) " of memory" }
                    small { (span(i64::try_from(child.cpu_ns / 1_000_000_000).unwrap_or(0)))
                        " of CPU" }
                    @if child.oom_kills > 0 {
                        small { strong.w2 { (child.oom_kills) " killed for want of memory" } }
                    }
                }))
            }
        }
        @for condition in &node.conditions {
            p.cond { b { (visible(&condition.kind)) } " (" (condition.severity.as_str()) ") "
                (clipped(&condition.message, 1024)) }
        }
        @if let Some(death) = &node.last_death { (last_death(known, node, death)) }
    }
}

fn unit(known: &Known<'_>, node: &NodeSnapshot) -> Markup {
    let others: Vec<_> = known
        .tree
        .nodes
        .iter()
        .filter(|n| n.dn != node.dn && n.unit == node.unit && n.dn.parent() == node.dn.parent())
        .collect();
    html! {
        @if others.is_empty() { "restarts alone" }
        @else { "restarts with " @for n in others { (dn_link(&n.dn)) " " } }
    }
}

fn last_death(known: &Known<'_>, node: &NodeSnapshot, death: &Death) -> Markup {
    html! {
        h3 { "Last death" }
        p { (death.class.as_str()) " " (ago(time(death.at), known.now)) " ago, at "
            (at(time(death.at))) " · " a href=(loops::before(node, death.at)) { "what it had said" } }
        pre {
            @for line in death.text.lines() { (clipped(line, 4096)) "\n" }
        }
    }
}

fn history(known: &Known<'_>, node: &NodeSnapshot) -> Markup {
    let deaths = loops::deaths(node);
    html! {
        @if !deaths.is_empty() {
            div.cap { small { "Deaths of the last hour" }
                (chart::marks(&deaths, known.now, "death", "deaths")) }
        }
        table.hist {
            caption.vh { "Last changes of state, newest first" }
            thead { tr {
                th scope="col" { "When" } th.num scope="col" { "Ago" } th scope="col" { "Change" }
            } }
            tbody {
                @for t in node.transitions.iter().rev().take(64) {
                    tr {
                        td { (at(time(t.at))) }
                        td.num { (ago(time(t.at), known.now)) }
                        td { (t.from.map_or("–", |s| s.as_str())) " → " (t.to.as_str())
                            @if t.phase != "running" { span.ph { (t.phase) } } }
                    }
                }
            }
        }
    }
}

fn log_section(tail: &LogTail<'_>) -> Markup {
    html! {
        section aria-labelledby="h-log" {
            h2 #h-log { "Log" a.more href=(log_address(tail.dn)) { "search this log" } }
            div.card.flush {
                div.bar-form { (log::live_controls()) }
                (log::entries(tail.entries))
            }
        }
    }
}
