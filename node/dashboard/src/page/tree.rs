//! The tree as a table.
//!
//! Purpose: one row a Runnable, drawn as a tree with lines made of empty elements. Must not know:
//! the page it stands on.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use logtree::Dn;
use maud::{Markup, html};
use supervisor::{NodeSnapshot, Phase, Snapshot, Verdict};

use super::parts::{ago, badge, state, until};
use crate::text::{bytes, clipped, time};

/// Longest note shown in a row, in bytes.
const MAX_NOTE_BYTES: usize = 240;

/// A node with what its row needs to be drawn.
struct Row<'a> {
    node: &'a NodeSnapshot,
    /// For each ancestor and the node itself: whether a sibling follows below.
    lines: Vec<bool>,
}

/// The tree as a table with a caption.
pub(crate) fn table(tree: &Snapshot, now: Timestamp) -> Markup {
    html! {
        table.tree role="table" {
            caption.vh { "All services of the node, as a tree" }
            thead role="rowgroup" {
                tr role="row" {
                    @for (class, word) in [
                        ("", "Service"), ("", "Health"), ("", "State"), ("num", "Since"),
                        ("num", "Starts"), ("num", "Deaths"), ("num", "Next start"), ("", "Now"),
                    ] {
                        th class=[(!class.is_empty()).then_some(class)] scope="col"
                            role="columnheader" { (word) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for row in rows(tree) { (table_row(&row, now)) }
            }
        }
    }
}

fn table_row(row: &Row<'_>, now: Timestamp) -> Markup {
    let node = row.node;
    let bad = matches!(node.health, Verdict::Degraded | Verdict::Restarting | Verdict::Failing);
    html! {
        tr role="row" class=[bad.then_some("bad")] {
            th scope="row" role="rowheader" {
                div.n {
                    @for (i, more) in row.lines.iter().enumerate().skip(1) {
                        i class=(line(i + 1 == row.lines.len(), *more)) {}
                    }
                    a href={ "/dn/" (node.dn) } { (node.dn.last()) }
                }
            }
            td role="cell" { (badge(node.health)) }
            td role="cell" { (state(node)) }
            td.num role="cell" { (ago(time(node.since), now)) }
            td.num role="cell" { (node.starts) }
            td.num role="cell" {
                (node.deaths)
                @if node.deaths_10min > 0 { small { (node.deaths_10min) " in 10 min" } }
            }
            td.num role="cell" {
                @if let Some(next) = node.next_start { (until(time(next), now)) }
            }
            td.now role="cell" { (doing(node)) }
        }
    }
}

/// Class of one piece of the tree's lines.
fn line(own: bool, more: bool) -> &'static str {
    match (own, more) {
        (true, true) => "t",
        (true, false) => "l",
        (false, true) => "v",
        (false, false) => "e",
    }
}

/// Why it is not well, else what it does now, else what its process costs.
fn doing(node: &NodeSnapshot) -> Markup {
    let note = node.note.as_deref().filter(|n| !n.is_empty());
    html! {
        @if !node.reason.is_empty() {
            span class={ "why " (node.health.as_str()) } { (clipped(&node.reason, MAX_NOTE_BYTES)) }
        }
        @if let Phase::Waiting { dns } = &node.phase {
            span { "waits for " @for dn in dns.iter().take(4) { (dn) " " } }
        }
        @if let Some(note) = note {
            @if note != node.reason { span { (clipped(note, MAX_NOTE_BYTES)) } }
        } @else if let (Some(child), true) = (node.child, node.reason.is_empty()) {
            span.mu { "pid " (child.pid) " · " (bytes(child.memory_bytes)) }
        }
    }
}

/// The nodes depth first, siblings in the order they were added.
fn rows(tree: &Snapshot) -> Vec<Row<'_>> {
    let known: HashSet<&Dn> = tree.nodes.iter().map(|n| &n.dn).collect();
    let mut children: HashMap<Option<Dn>, Vec<&NodeSnapshot>> = HashMap::new();
    for node in &tree.nodes {
        // A node whose parent is not shown stands at the top instead of vanishing.
        let parent = node.dn.parent().filter(|p| known.contains(p));
        children.entry(parent).or_default().push(node);
    }
    let mut out = Vec::with_capacity(tree.nodes.len());
    let mut todo: Vec<(&NodeSnapshot, Vec<bool>)> = Vec::new();
    push_children(&mut todo, &children, None, &[]);
    while let Some((node, lines)) = todo.pop() {
        push_children(&mut todo, &children, Some(node.dn.clone()), &lines);
        out.push(Row { node, lines });
    }
    out
}

/// Puts the children of `parent` on the stack, last first.
fn push_children<'a>(
    todo: &mut Vec<(&'a NodeSnapshot, Vec<bool>)>,
    children: &HashMap<Option<Dn>, Vec<&'a NodeSnapshot>>,
    parent: Option<Dn>,
    lines: &[bool],
) {
    let Some(siblings) = children.get(&parent) else { return };
    for (i, node) in siblings.iter().enumerate().rev() {
        let mut own = lines.to_vec();
        own.push(i + 1 < siblings.len());
        todo.push((node, own));
    }
}
