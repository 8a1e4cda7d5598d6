//! Volumes: the space they share, the table of all, the page of one.
//!
//! Purpose: rule W2's volume pages. Must not know: the engine.

use maud::{Markup, html};

use super::parts::{ago, at, bar, fact, usage};
use super::{Frame, Known, Tab, chart};
use crate::text::{bytes, clipped, count, percent, visible};
use crate::views::{Capacity, VolumeView, VolumesView};

/// The page `/volumes`.
pub(crate) fn volumes_page(known: &Known<'_>) -> Markup {
    let frame = Frame {
        title: "Volumes",
        tab: Some(Tab::Volumes),
        stream: Some("tree=on".to_owned()),
        refresh: None,
    };
    let main = html! {
        h1 { "Volumes" }
        div #vol.card.flush data-live {
            (capacity(known.volumes))
            (table(known.volumes, usize::MAX))
        }
    };
    frame.page(known, &main)
}

/// The page `/volumes/<id>`.
pub(crate) fn volume_page(known: &Known<'_>, volume: &VolumeView) -> Markup {
    let name = volume.claim.as_deref().unwrap_or(&volume.id);
    let frame = Frame {
        title: name,
        tab: Some(Tab::Volumes),
        stream: Some("tree=on".to_owned()),
        refresh: None,
    };
    let main = html! {
        p.crumb { a href="/volumes" { "Volumes" } }
        h1 { "Volume " (visible(name)) }
        div #vol.card data-live {
            dl.facts {
                (fact("Space", &space(volume)))
                @if volume.history.len() > 1 { (fact("How it went", &history(volume))) }
                (fact("Files", &files(volume)))
                (fact("State", &html! { (visible(&volume.state)) }))
                (fact("Kind", &html! { (visible(&volume.kind)) }))
                (fact("Claim", &html! { (or_dash(volume.claim.as_deref())) }))
                (fact("PersistentVolume", &html! { (or_dash(volume.pv.as_deref())) }))
                (fact("Id", &html! { (visible(&volume.id)) }))
                @if let Some(created) = volume.created {
                    (fact("Made", &html! { (at(created)) " (" (ago(created, known.now)) " ago)" }))
                }
                (fact("Published at", &published(volume)))
            }
            @for condition in &volume.conditions {
                p.cond { b { (visible(&condition.kind)) } " "
                    (clipped(&condition.message, 1024)) }
            }
        }
    };
    frame.page(known, &main)
}

/// How the data disk is divided.
pub(crate) fn capacity(view: &VolumesView) -> Markup {
    let c = view.capacity;
    let parts = [
        ("c1", "promised to volumes", c.committed_bytes),
        ("c2", "used by the rest of the node", c.other_bytes),
        ("c3", "kept in reserve", c.reserve_bytes),
        ("c4", "free for new volumes", c.available_bytes),
    ];
    html! {
        @if c.total_bytes > 0 {
            div.cap {
                p { "Data disk " b { (bytes(c.total_bytes)) } }
                (stacked(c, &parts))
                ul {
                    @for (class, word, n) in parts {
                        li { i.(class) {} b { (bytes(n)) } " " (word) }
                    }
                }
            }
        }
    }
}

fn stacked(c: Capacity, parts: &[(&str, &str, u64)]) -> Markup {
    // Where each part begins: the sum of those before it.
    let begins: Vec<u64> = parts
        .iter()
        .scan(0u64, |sum, (_, _, n)| Some(std::mem::replace(sum, sum.saturating_add(*n))))
        .collect();
    html! {
        svg.bar.cap-bar viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true" {
            rect.bg width="1000" height="8" {}
            @for ((class, _, n), begin) in parts.iter().zip(begins) {
                rect.(class) x=(share(begin, c.total_bytes)) width=(share(*n, c.total_bytes))
                    height="8" {}
            }
        }
    }
}

/// Thousandths of the whole, rounded down, at most 1000.
fn share(n: u64, total: u64) -> u128 {
    (u128::from(n) * 1000 / u128::from(total.max(1))).min(1000)
}

/// The first `max` volumes as a table.
pub(crate) fn table(view: &VolumesView, max: usize) -> Markup {
    if view.volumes.is_empty() {
        return html! { p.empty { "No volume yet. A PersistentVolumeClaim makes one." } };
    }
    let rest = view.volumes.len().saturating_sub(max);
    html! {
        table.vols role="table" {
            caption.vh { "Volumes of the node with their use and limit" }
            thead role="rowgroup" {
                tr role="row" {
                    @for word in ["Claim", "State", "Used of limit", "Files", "Published at"] {
                        th scope="col" role="columnheader" { (word) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for volume in view.volumes.iter().take(max) { (row(volume)) }
            }
        }
        @if rest > 0 {
            p.empty { a href="/volumes" { (count(rest, "more volume", "more volumes")) } }
        }
    }
}

fn row(volume: &VolumeView) -> Markup {
    let name = volume.claim.as_deref().unwrap_or(&volume.id);
    html! {
        tr role="row" class=[(!volume.conditions.is_empty()).then_some("bad")] {
            th scope="row" role="rowheader" {
                a href={ "/volumes/" (encode(&volume.id)) } { (clipped(name, 128)) }
                small { (visible(&volume.kind)) }
            }
            td role="cell" {
                (visible(&volume.state))
                @for condition in &volume.conditions {
                    span.why.degraded { (visible(&condition.kind)) ": "
                        (clipped(&condition.message, 160)) }
                }
            }
            td.use role="cell" { (space(volume)) }
            td role="cell" { (files(volume)) }
            td.places role="cell" { (published(volume)) }
        }
    }
}

fn space(volume: &VolumeView) -> Markup {
    html! {
        @if let Some(limit) = volume.limit_bytes { (bar(volume.used_bytes, limit)) }
        span { (usage(volume.used_bytes, volume.limit_bytes)) }
    }
}

fn history(volume: &VolumeView) -> Markup {
    let points: Vec<_> = volume.history.iter().map(|p| (p.at, p.used_bytes)).collect();
    chart::line(&points, volume.limit_bytes.unwrap_or(0), "Space in use")
}

fn files(volume: &VolumeView) -> Markup {
    let share = volume.inodes_limit.and_then(|l| percent(volume.inodes_used, l));
    html! {
        (volume.inodes_used)
        @if let Some(limit) = volume.inodes_limit { " of " (limit) }
        @if let Some(share @ 80..) = share {
            " " strong.w1 { @if share >= 100 { "full" } @else { "nearly full" } }
        }
    }
}

fn published(volume: &VolumeView) -> Markup {
    html! {
        @if volume.published.is_empty() { span.mu { "not in use" } }
        @for place in volume.published.iter().take(8) {
            span.place { (breakable(place)) }
        }
    }
}

/// A path that may break after its slashes, so that it never widens a column.
fn breakable(place: &str) -> Markup {
    let shown = clipped(place, 200);
    html! {
        @for part in shown.split_inclusive('/') { (part) wbr; }
    }
}

fn or_dash(value: Option<&str>) -> String {
    value.map_or_else(|| "–".to_owned(), |v| visible(v).into_owned())
}

/// An id as one segment of a path.
fn encode(id: &str) -> String {
    let pair = crate::query::form_urlencode("", id);
    pair.trim_start_matches('=').to_owned()
}
