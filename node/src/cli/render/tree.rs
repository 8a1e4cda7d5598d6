//! The tree of services, drawn.
use super::Style;
use super::table::{Cell, Colour, cell, cut, table};
use crate::cli::model::{Service, Tree};

/// Below this width there is no room for age and starts beside the reason.
const NARROW: usize = 100;

/// The verdict, then one line a service, those of `below` only if that is given.
pub fn tree(style: &Style, tree: &Tree, below: Option<&str>) -> String {
    let services: Vec<&Service> = tree.nodes.iter().filter(|s| shown(&s.dn, below)).collect();
    let head = ["SERVICE", "HEALTH", "STATE", "SINCE", "STARTS", "NOW"];
    let mut rows = vec![head.map(cell).to_vec()];
    rows[0][3].right = true;
    rows[0][4].right = true;
    for (drawn, service) in drawn(&services) {
        rows.push(row(style, &drawn, service));
    }
    if style.width.is_some_and(|w| w < NARROW) {
        // What is wrong matters more than since when.
        for row in &mut rows {
            row.drain(3..5);
        }
    }
    format!("{}\n{}", verdict(style, tree), table(style, &rows))
}

/// One sentence: how the node does, who decided that, and why.
pub(super) fn verdict(style: &Style, tree: &Tree) -> String {
    let word = if tree.shutting_down { "shutting down" } else { tree.verdict.as_str() };
    let word = style.paint(Colour::of_health(&tree.verdict), word);
    let booted = if tree.boot_finished { "" } else { ", the boot goes on" };
    let why = match &tree.verdict_dn {
        Some(dn) => format!(": {dn}: {}", dashboard::text::visible(&tree.verdict_reason)),
        None => String::new(),
    };
    cut(&format!("node {word}{booted}{why}"), style.width.filter(|_| !style.colour)) + "\n"
}

fn shown(dn: &str, below: Option<&str>) -> bool {
    below.is_none_or(|top| dn.strip_prefix(top).is_some_and(|r| r.is_empty() || r.starts_with('.')))
}

fn row(style: &Style, drawn: &str, service: &Service) -> Vec<Cell> {
    let phase = match service.phase.as_str() {
        "running" | "ended" | "" => String::new(),
        other => format!(", {other}"),
    };
    vec![
        cell(drawn),
        cell(&service.health).colour(Colour::of_health(&service.health)),
        cell(format!("{}{phase}", service.state)),
        cell(style.age(service.since)).right(),
        cell(service.starts.to_string()).right(),
        cell(now(style, service)).colour(if service.is_well() {
            Colour::Faint
        } else {
            Colour::Plain
        }),
    ]
}

/// Why it is not well and when it is tried again, else what it does.
fn now(style: &Style, service: &Service) -> String {
    let mut parts = Vec::new();
    if !service.is_well() && !service.reason.is_empty() {
        parts.push(service.reason.lines().next().unwrap_or_default().to_owned());
    }
    if let Some(next) = service.next_start {
        parts.push(format!("next start {}", style.until(next)));
    }
    if service.deaths_10min > 0 {
        parts.push(format!("{} deaths in 10 min", service.deaths_10min));
    }
    match (&service.note, &service.child) {
        (Some(note), _) if !note.is_empty() && *note != service.reason => parts.push(note.clone()),
        (_, Some(child)) if parts.is_empty() => {
            let memory = dashboard::text::bytes(child.memory_bytes);
            parts.push(format!("pid {}, {memory}", child.pid));
        }
        _ => {}
    }
    parts.join("; ")
}

/// Services depth first with the lines of the tree; one whose parent is not shown stands at the left.
fn drawn<'a>(services: &[&'a Service]) -> Vec<(String, &'a Service)> {
    let parent = |dn: &str| dn.rsplit_once('.').map(|(parent, _)| parent.to_owned());
    let known =
        |dn: &Option<String>| dn.as_ref().filter(|p| services.iter().any(|s| s.dn == **p)).cloned();
    let children = |of: Option<&str>| -> Vec<&'a Service> {
        services.iter().filter(|s| known(&parent(&s.dn)).as_deref() == of).copied().collect()
    };
    let mut out = Vec::new();
    let mut todo: Vec<(String, String, &Service)> =
        children(None).into_iter().rev().map(|s| (String::new(), s.dn.clone(), s)).collect();
    while let Some((lines, name, service)) = todo.pop() {
        out.push((name, service));
        let below = children(Some(&service.dn));
        let count = below.len();
        for (i, child) in below.into_iter().enumerate().rev() {
            let (branch, rest) =
                if i + 1 < count { ("├─ ", "│  ") } else { ("└─ ", "   ") };
            let last = child.dn.rsplit('.').next().unwrap_or_default();
            todo.push((format!("{lines}{rest}"), format!("{lines}{branch}{last}"), child));
        }
    }
    out
}
