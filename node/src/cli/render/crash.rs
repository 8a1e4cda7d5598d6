//! The last words of a service.
use dashboard::text::visible;
use jiff::Timestamp;
use logtree::Entry;

use super::table::{Colour, cell, table};
use super::{Style, log_line};
use crate::cli::model::Service;

/// Changes of state that are shown.
const HISTORY: usize = 12;

/// Why it died last, what it had said until then, and how it went since.
pub fn crash(style: &Style, service: &Service, said: &[Entry]) -> String {
    let mut out = format!(
        "{} is {}",
        service.dn,
        style.paint(Colour::of_health(&service.health), &service.health)
    );
    out.push_str(&format!(" ({}, {})", service.state, service.phase));
    if let Some(next) = service.next_start {
        out.push_str(&format!(", next start {}", style.until(next)));
    }
    out.push_str(&format!(
        "\n{} starts, {} deaths since boot, {} in the last 10 min\n",
        service.starts, service.deaths, service.deaths_10min
    ));
    let Some(death) = &service.last_death else {
        return out + "\nIt has not died since boot.\n";
    };
    out.push_str(&format!("\nLast death: {}{}\n", death.class, when(style, death.time)));
    for line in death.text.lines() {
        out.push_str(&style.paint(Colour::Red, &format!("  {}", visible(line))));
        out.push('\n');
    }
    out.push_str("\nWhat it had said:\n");
    for entry in said {
        for line in log_line(style, entry.level, &logtree::to_text(entry)).lines() {
            out.push_str(&format!("  {line}\n"));
        }
    }
    if said.is_empty() {
        out.push_str("  nothing that is still kept\n");
    }
    out.push_str("\nHistory, newest first:\n");
    out + &history(style, service)
}

fn when(style: &Style, time: Option<Timestamp>) -> String {
    let Some(time) = time else { return String::new() };
    format!(", {} UTC, {} ago", time.strftime("%F %T"), style.age(Some(time)))
}

fn history(style: &Style, service: &Service) -> String {
    let mut rows = vec![["AGO", "CHANGE"].map(cell).to_vec()];
    rows[0][0].right = true;
    rows.extend(service.transitions.iter().rev().take(HISTORY).map(|t| {
        let phase = if t.phase == "running" { String::new() } else { format!(" ({})", t.phase) };
        let change = format!("{} → {}{phase}", t.from.as_deref().unwrap_or("-"), t.to);
        vec![cell(style.age(t.time)).right(), cell(change)]
    }));
    table(style, &rows)
}
