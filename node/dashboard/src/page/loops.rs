//! Services that die again and again, at a glance: how often, since when, of what, and what next.
//!
//! Purpose: the part of the first page that an operator needs at three in the morning. Must not know:
//! requests.

use jiff::Timestamp;
use maud::{Markup, html};
use supervisor::{NodeSnapshot, State};

use super::Known;
use super::chart;
use super::parts::{ago, dn_link, until};
use crate::query::form_urlencode;
use crate::text::{clipped, rfc3339, time};

/// Deaths in 10 minutes that make a loop; the supervisor calls that failing too (rule H2).
const LOOP_DEATHS: u32 = 3;
/// Loops shown in full.
const SHOWN: usize = 6;

/// When a service died, as far as its history is kept.
pub(crate) fn deaths(node: &NodeSnapshot) -> Vec<Timestamp> {
    let died = |t: &&supervisor::Transition| t.to == State::Dead && t.from != Some(State::Dead);
    node.transitions.iter().filter(died).map(|t| time(t.at)).collect()
}

/// The loops, worst first; empty where there is none.
pub(crate) fn loops(known: &Known<'_>) -> Markup {
    let mut ill: Vec<_> =
        known.tree.nodes.iter().filter(|n| n.deaths_10min >= LOOP_DEATHS).collect();
    ill.sort_by_key(|n| std::cmp::Reverse(n.deaths_10min));
    html! {
        @if !ill.is_empty() {
            h2 { "Restart loops" }
            @for node in ill.iter().take(SHOWN) { (one(known, node)) }
            @if ill.len() > SHOWN { p.mu { "and " (ill.len() - SHOWN) " more" } }
        }
    }
}

fn one(known: &Known<'_>, node: &NodeSnapshot) -> Markup {
    html! {
        div.cond {
            p {
                (dn_link(&node.dn)) " died " b { (node.deaths_10min) " times" } " in 10 min, "
                (node.deaths) " since boot."
                @if let Some(next) = node.next_start { " Next start " (until(time(next), known.now)) "." }
            }
            (chart::marks(&deaths(node), known.now, "death", "deaths"))
            @if let Some(death) = &node.last_death {
                p.why.failing { (clipped(death.text.lines().next().unwrap_or_default(), 300)) }
                p { (death.class.as_str()) " " (ago(time(death.at), known.now)) " ago · "
                    a href=(before(node, death.at)) { "what it had said" } }
            }
        }
    }
}

/// The log of a service until its death and the report of it.
pub(crate) fn before(node: &NodeSnapshot, died: i64) -> String {
    const REPORT_NS: i64 = 200_000_000;
    let until = rfc3339(time(died.saturating_add(REPORT_NS)));
    format!("/logs?{}&{}", form_urlencode("dn", node.dn.as_str()), form_urlencode("until", &until))
}
