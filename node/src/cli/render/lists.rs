//! Health, volumes, the node and its processes.
use std::collections::HashMap;
use std::time::Duration;

use dashboard::text::{bytes, percent, visible};

use super::Style;
use super::table::{Cell, Colour, cell, table};
use super::tree::verdict;
use crate::cli::model::{Node, Processes, Tree, Volume, Volumes};

/// The verdict and one line for each service that is not well.
pub fn health(style: &Style, tree: &Tree) -> String {
    let mut out = verdict(style, tree);
    let ill: Vec<_> = tree.nodes.iter().filter(|s| !s.is_well()).collect();
    if !ill.is_empty() {
        let mut rows = vec![["SERVICE", "HEALTH", "WHY"].map(cell).to_vec()];
        rows.extend(ill.into_iter().map(|s| {
            let health = cell(&s.health).colour(Colour::of_health(&s.health));
            vec![cell(&s.dn), health, cell(s.reason.lines().next().unwrap_or_default())]
        }));
        out.push('\n');
        out.push_str(&table(style, &rows));
    }
    out
}

/// The volumes with their use.
pub fn volumes(style: &Style, view: &Volumes) -> String {
    let c = &view.capacity;
    let mut out = format!(
        "data disk {}: {} promised to volumes, {} free for new ones\n",
        bytes(c.total_bytes),
        bytes(c.committed_bytes),
        bytes(c.available_bytes)
    );
    if view.volumes.is_empty() {
        return out + "no volumes\n";
    }
    let head = ["CLAIM", "KIND", "STATE", "USED", "LIMIT", "FULL", "CONDITION", "PUBLISHED AT"];
    let mut rows = vec![head.map(cell).to_vec()];
    for number in rows[0].iter_mut().skip(3).take(3) {
        number.right = true;
    }
    rows.extend(view.volumes.iter().map(volume));
    out.push('\n');
    out + &table(style, &rows)
}

fn volume(v: &Volume) -> Vec<Cell> {
    let share = v.limit_bytes.and_then(|l| percent(v.used_bytes, l));
    let colour = match share {
        Some(100) => Colour::Red,
        Some(80..) => Colour::Yellow,
        _ => Colour::Plain,
    };
    let conditions: Vec<&str> = v.conditions.iter().map(|c| c.kind.as_str()).collect();
    let published = match v.published.as_slice() {
        [] => "-".to_owned(),
        [one] => one.clone(),
        [one, more @ ..] => format!("{one} and {} more", more.len()),
    };
    vec![
        cell(v.claim.as_deref().unwrap_or(&v.id)),
        cell(&v.kind),
        cell(&v.state),
        cell(bytes(v.used_bytes)).right(),
        cell(v.limit_bytes.map_or_else(|| "-".to_owned(), bytes)).right(),
        cell(share.map_or_else(|| "-".to_owned(), |s| format!("{s} %"))).colour(colour).right(),
        cell(if conditions.is_empty() { "-".to_owned() } else { conditions.join(", ") }),
        cell(published),
    ]
}

/// The node itself.
pub fn node(style: &Style, node: &Node) -> String {
    let used = node.memory.total_bytes.saturating_sub(node.memory.available_bytes);
    let line = |name: &str, value: String| vec![cell(name), cell(value)];
    let mut rows = vec![
        line("NODE", node.node_name.clone()),
        line("version", format!("Hamlet {}, Linux {}", node.version, node.kernel)),
        line("boot", node.boot_id.clone()),
        line("up", style.age(node.booted)),
        line("addresses", node.addresses.join(", ")),
    ];
    let memory = format!(
        "{} of {} used, PID 1 {}",
        bytes(used),
        bytes(node.memory.total_bytes),
        bytes(node.memory.rss_self_bytes)
    );
    rows.push(line("memory", memory));
    let pressure = node.pressure.iter().map(|p| format!("{} {:.1} %", p.resource, p.some_avg10));
    rows.push(line("pressure", pressure.collect::<Vec<_>>().join(", ")));
    let phases = node.phases.iter().map(|p| format!("{} {:.1} s", p.name, p.uptime_s));
    rows.push(line("phases", phases.collect::<Vec<_>>().join(", ")));
    rows.extend(node.components.iter().map(|(name, version)| line(name, version.clone())));
    rows.extend(
        node.conditions.iter().map(|c| line(&c.kind, format!("{}: {}", c.status, c.message))),
    );
    if let Some(shutdown) = &node.shutdown {
        rows.push(line("shutdown", shutdown.clone()));
    }
    for boot in node.outcomes.iter().filter(|o| o.outcome != "unclean" || o.began.is_some()).take(5)
    {
        let clean = if boot.clean { "clean" } else { "not clean" };
        let began =
            boot.began.map_or_else(String::new, |t| format!("{}: ", t.strftime("%F %T UTC")));
        let why = boot.text.lines().next().unwrap_or_default();
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        rows.push(line(
            "boot",
            format!("{began}{} by {}, {clean}{why}", boot.outcome, boot.reason),
        ));
    }
    table(style, &rows)
}

/// Two looks at the processes, `apart` from each other: the busiest first.
pub fn top(style: &Style, before: &Processes, after: &Processes, apart: Duration) -> String {
    let earlier: HashMap<_, _> =
        before.processes.iter().map(|p| ((&p.dn, p.pid), p.cpu_ns)).collect();
    let share = |dn: &String, pid: i64, cpu: u64| {
        let spent = cpu.saturating_sub(earlier.get(&(dn, pid)).copied().unwrap_or(cpu));
        spent as f64 / apart.as_nanos().max(1) as f64 * 100.0
    };
    let mut all: Vec<_> =
        after.processes.iter().map(|p| (share(&p.dn, p.pid, p.cpu_ns), p)).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.memory_bytes.cmp(&a.1.memory_bytes)));
    let mut rows =
        vec![["CPU", "MEMORY", "CPU TIME", "PID", "KILLED", "SERVICE"].map(cell).to_vec()];
    for cell in rows[0].iter_mut().take(5) {
        cell.right = true;
    }
    rows.extend(all.into_iter().map(|(share, p)| {
        vec![
            cell(format!("{share:.1} %")).right(),
            cell(bytes(p.memory_bytes)).right(),
            cell(format!("{:.1} s", p.cpu_ns as f64 / 1e9)).right(),
            cell(p.pid.to_string()).right(),
            cell(if p.oom_kills == 0 {
                "-".to_owned()
            } else {
                format!("{} (memory)", p.oom_kills)
            })
            .right(),
            cell(visible(&p.dn)),
        ]
    }));
    table(style, &rows)
}
