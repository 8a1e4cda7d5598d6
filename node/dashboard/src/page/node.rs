//! The node itself: versions, boot, memory, disks, mounts, conditions, past boots.
//!
//! Purpose: rule W2's `/node`. Must not know: how any of it is measured.

use maud::{Markup, html};

use super::parts::{ago, at, bar, fact, usage};
use super::{Frame, Known, Tab, chart, forms, node_name};
use crate::text::{bytes, clipped, percent, seconds_between, span, visible};
use crate::views::{BootOutcome, Mount, NodeCondition, NodeView};

/// The page `/node`.
pub(crate) fn node_page(known: &Known<'_>) -> Markup {
    let frame = Frame {
        title: "Node",
        tab: Some(Tab::Node),
        stream: Some("tree=on".to_owned()),
        refresh: None,
    };
    let main = html! {
        h1 { "Node " (node_name(known.node)) }
        div.two {
            section aria-labelledby="h-what" {
                h2 #h-what { "What it is" }
                div #what.card data-live { (facts(known)) }
            }
            section aria-labelledby="h-phases" {
                h2 #h-phases { "This boot" }
                div #phases.card.flush data-live { (phases(known.node)) }
            }
        }
        section aria-labelledby="h-cond" {
            h2 #h-cond { "Kubernetes node conditions" }
            div #cond.card.flush data-live { (conditions(known)) }
        }
        section aria-labelledby="h-boots" {
            h2 #h-boots { "Last boots" }
            div #boots.card.flush data-live { (outcomes(known)) }
        }
        div.two {
            section aria-labelledby="h-disks" {
                h2 #h-disks { "Disks and pressure" }
                div #disks.card.flush data-live { (disks(known.node)) (pressure(known.node)) }
            }
            section aria-labelledby="h-mem" {
                h2 #h-mem { "Memory" }
                div #mem.card data-live { (memory(known.node)) }
            }
        }
        (forms::power(known))
        section aria-labelledby="h-mounts" {
            h2 #h-mounts { "Mounts" }
            div #mounts.card.flush data-live { (mounts(known.node)) }
        }
    };
    frame.page(known, &main)
}

fn facts(known: &Known<'_>) -> Markup {
    let node = known.node;
    html! {
        dl.facts {
            (fact("Hamlet", &html! { (visible(&node.version)) }))
            (fact("Kernel", &html! { (visible(&node.kernel)) }))
            @for (name, version) in &node.components {
                (fact(name, &html! { (visible(version)) }))
            }
            (fact("Boot id", &html! { code { (visible(&node.boot_id)) } }))
            @if let Some(booted) = node.booted {
                (fact("Up", &html! { (ago(booted, known.now)) " since " (at(booted)) }))
            }
            (fact("Addresses", &html! {
                @for address in &node.addresses { code { (visible(address)) } " " }
                @if node.addresses.is_empty() { "none yet" }
            }))
            (fact("Orphans reaped", &html! { (node.orphans_reaped) }))
        }
    }
}

fn phases(node: &NodeView) -> Markup {
    let last = node.phases.iter().map(|p| p.uptime_s).fold(0.0, f64::max);
    if node.phases.is_empty() {
        return html! { p.empty { "No phase of the boot is known." } };
    }
    html! {
        table.phases {
            caption.vh { "Phases of this boot and when they were reached" }
            thead { tr { th scope="col" { "Phase" } th.num scope="col" { "After" } th { } } }
            tbody {
                @for phase in &node.phases {
                    tr {
                        th scope="row" { (visible(&phase.name)) }
                        td.num { (format!("{:.1} s", phase.uptime_s)) }
                        td.wide { (bar_to(phase.uptime_s, last)) }
                    }
                }
            }
        }
    }
}

/// A bar on a scale of time.
fn bar_to(value: f64, whole: f64) -> Markup {
    let width = if whole > 0.0 { value / whole * 100.0 } else { 0.0 };
    html! {
        svg.bar.f0 viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect.bg width="100" height="8" {}
            rect.fg width=(format!("{width:.1}")) height="8" {}
        }
    }
}

/// The conditions of the Kubernetes node.
pub(crate) fn conditions(known: &Known<'_>) -> Markup {
    if known.node.conditions.is_empty() {
        return html! { p.empty { "Not known yet: the Kubernetes API could not be asked." } };
    }
    html! {
        table.conds role="table" {
            caption.vh { "Conditions of the Kubernetes node" }
            thead role="rowgroup" {
                tr role="row" {
                    @for word in ["Condition", "Status", "Since", "Why"] {
                        th scope="col" role="columnheader" { (word) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for condition in &known.node.conditions { (condition_row(known, condition)) }
            }
        }
    }
}

fn condition_row(known: &Known<'_>, condition: &NodeCondition) -> Markup {
    let verdict = match (condition.is_good(), condition.status.as_str()) {
        (true, _) => supervisor::Verdict::Ok,
        (false, "Unknown") => supervisor::Verdict::Degraded,
        (false, _) => supervisor::Verdict::Failing,
    };
    html! {
        tr role="row" class=[(!condition.is_good()).then_some("bad")] {
            th scope="row" role="rowheader" { (visible(&condition.kind)) }
            td role="cell" {
                span class={ "b " (verdict.as_str()) } {
                    (super::parts::icon(verdict)) (visible(&condition.status))
                }
            }
            td role="cell" { @if let Some(since) = condition.since { (ago(since, known.now)) } }
            td.now role="cell" {
                (visible(&condition.reason))
                span.mu { (clipped(&condition.message, 240)) }
            }
        }
    }
}

/// How the last boots ended.
pub(crate) fn outcomes(known: &Known<'_>) -> Markup {
    if known.node.outcomes.is_empty() {
        return html! { p.empty { "This is the first boot on this data disk." } };
    }
    html! {
        table.boots role="table" {
            caption.vh { "How the last boots ended, newest first" }
            thead role="rowgroup" {
                tr role="row" {
                    @for word in ["Began", "Lasted", "Ended by", "Data"] {
                        th scope="col" role="columnheader" { (word) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for outcome in &known.node.outcomes { (outcome_row(outcome)) }
            }
        }
    }
}

fn outcome_row(outcome: &BootOutcome) -> Markup {
    let lasted = outcome.began.zip(outcome.ended).map(|(b, e)| span(seconds_between(b, e)));
    html! {
        tr role="row" class=[(!outcome.clean).then_some("bad")] {
            th scope="row" role="rowheader" { @if let Some(t) = outcome.began { (at(t)) } }
            td role="cell" { (lasted.unwrap_or_else(|| "–".to_owned())) }
            td.now role="cell" {
                (visible(&outcome.outcome))
                @if !outcome.reason.is_empty() {
                    span.mu { (clipped(&outcome.reason, 240)) }
                }
                @if !outcome.text.is_empty() && outcome.text != outcome.reason {
                    span { (clipped(&outcome.text, 400)) }
                }
            }
            td role="cell" { @if outcome.clean { "clean" } @else { strong.w1 { "not clean" } } }
        }
    }
}

fn memory(node: &NodeView) -> Markup {
    let m = node.memory;
    let used = m.total_bytes.saturating_sub(m.available_bytes);
    let points: Vec<_> = node.memory_history.iter().map(|p| (p.at, p.used_bytes)).collect();
    html! {
        dl.facts {
            (fact("In use", &html! {
                (bar(used, m.total_bytes)) span { (usage(used, Some(m.total_bytes))) }
            }))
            @if node.memory_history.len() > 1 {
                (fact("How it went", &chart::line(&points, m.total_bytes, "Memory in use")))
            }
            (fact("Available", &html! { (bytes(m.available_bytes)) }))
            (fact("Hamlet itself", &html! { (bytes(m.rss_self_bytes)) }))
        }
    }
}

fn disks(node: &NodeView) -> Markup {
    html! {
        @if node.disks.is_empty() { p.empty { "No disk is known." } }
        @else {
            table {
                caption.vh { "Disks" }
                thead { tr {
                    @for word in ["Disk", "Serial", "Size", "Used as"] { th scope="col" { (word) } }
                } }
                tbody {
                    @for disk in &node.disks {
                        tr {
                            th scope="row" { (visible(&disk.name)) }
                            td { (visible(&disk.serial)) }
                            td { (bytes(disk.size_bytes)) }
                            td { (visible(&disk.role)) }
                        }
                    }
                }
            }
        }
    }
}

fn pressure(node: &NodeView) -> Markup {
    html! {
        @if !node.pressure.is_empty() {
            table {
                caption { "Share of the last 10 s in which work waited" }
                thead { tr {
                    @for word in ["For", "Some task", "All tasks"] { th scope="col" { (word) } }
                } }
                tbody {
                    @for p in &node.pressure {
                        tr {
                            th scope="row" { (visible(&p.resource)) }
                            td { (format!("{:.1} %", p.some_avg10)) }
                            td { (format!("{:.1} %", p.full_avg10)) }
                        }
                    }
                }
            }
        }
    }
}

fn mounts(node: &NodeView) -> Markup {
    html! {
        @if node.mounts.is_empty() { p.empty { "No mount is known." } }
        @else {
            table.mounts role="table" {
                caption.vh { "Mounted file systems" }
                thead role="rowgroup" { tr role="row" {
                    @for word in ["Where", "Type", "From", "Used", "Options"] {
                        th scope="col" role="columnheader" { (word) }
                    }
                } }
                tbody role="rowgroup" { @for mount in &node.mounts { (mount_row(mount)) } }
            }
        }
    }
}

fn mount_row(mount: &Mount) -> Markup {
    let share = mount.used_bytes.zip(mount.total_bytes).and_then(|(u, t)| percent(u, t));
    html! {
        tr role="row" {
            th scope="row" role="rowheader" { code { (clipped(&mount.target, 200)) } }
            td role="cell" { (visible(&mount.fs_type)) }
            td role="cell" { (clipped(&mount.source, 120)) }
            td role="cell" {
                @if let (Some(share), Some(total)) = (share, mount.total_bytes) {
                    (share) " % of " (bytes(total))
                }
            }
            td.mu.opts role="cell" { (clipped(&mount.options, 200)) }
        }
    }
}
