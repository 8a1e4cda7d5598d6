//! Small pieces that several pages use.
//!
//! Purpose: one look for a health, a time, a bar, a list of facts. Must not know: whole pages.

use jiff::Timestamp;
use logtree::Dn;
use maud::{Markup, html};
use supervisor::{NodeSnapshot, Phase, Verdict};

use crate::text::{bytes, percent, rfc3339, seconds_between, span};

/// A health: shape and word, so that colour is never alone (rule W4).
pub(crate) fn badge(verdict: Verdict) -> Markup {
    let word = verdict.as_str();
    html! { span class={ "b " (word) } { (icon(verdict)) (word) } }
}

/// The shape of a health.
pub(crate) fn icon(verdict: Verdict) -> Markup {
    html! {
        svg.i aria-hidden="true" { use href={ "#i-" (verdict.as_str()) } {} }
    }
}

/// How long ago; the script counts it on.
pub(crate) fn ago(then: Timestamp, now: Timestamp) -> Markup {
    html! {
        time.ago datetime=(rfc3339(then)) { (span(seconds_between(then, now))) }
    }
}

/// How long until; the script counts it down.
pub(crate) fn until(then: Timestamp, now: Timestamp) -> Markup {
    let seconds = seconds_between(now, then);
    html! {
        time.in datetime=(rfc3339(then)) {
            @if seconds < 1 { "now" } @else { "in " (span(seconds)) }
        }
    }
}

/// An absolute time.
pub(crate) fn at(time: Timestamp) -> Markup {
    html! {
        time datetime=(rfc3339(time)) { (format!("{}", time.strftime("%Y-%m-%d %H:%M:%S"))) }
    }
}

/// A link to the page of a DN.
pub(crate) fn dn_link(dn: &Dn) -> Markup {
    html! { a.dn href={ "/dn/" (dn) } { (breakable(dn.as_str())) } }
}

/// A DN that may break after its dots.
pub(crate) fn breakable(dn: &str) -> Markup {
    html! {
        @for (i, part) in dn.split('.').enumerate() {
            @if i > 0 { "." wbr; }
            (part)
        }
    }
}

/// What a node has done, and what is being done with it if that is not plain running.
pub(crate) fn state(node: &NodeSnapshot) -> Markup {
    let phase = match &node.phase {
        Phase::Running | Phase::Ended => None,
        Phase::Waiting { dns } if dns.is_empty() => Some("waiting".to_owned()),
        Phase::Waiting { dns } => Some(format!("waiting for {}", dns.len())),
        other => Some(other.as_str().to_owned()),
    };
    html! {
        (node.state.as_str())
        @if let Some(phase) = phase { span.ph { (phase) } }
    }
}

/// How full something is, as a bar. Its numbers stand beside it, so it says nothing aloud.
pub(crate) fn bar(used: u64, limit: u64) -> Markup {
    let percent = percent(used, limit).unwrap_or(0);
    html! {
        svg class={ "bar " (fullness(percent)) } viewBox="0 0 100 8" preserveAspectRatio="none"
            aria-hidden="true" {
            rect.bg width="100" height="8" {}
            rect.fg width=(percent) height="8" {}
        }
    }
}

/// Class of a bar.
fn fullness(percent: u8) -> &'static str {
    match percent {
        0..80 => "f0",
        80..100 => "f1",
        _ => "f2",
    }
}

/// `12 MiB of 64 MiB · 18 %`, with a word where it is nearly or quite full.
pub(crate) fn usage(used: u64, limit: Option<u64>) -> Markup {
    let share = limit.and_then(|l| percent(used, l));
    html! {
        b { (bytes(used)) }
        @if let Some(limit) = limit { " of " (bytes(limit)) }
        @if let Some(share) = share {
            " · " (share) " %"
            @if share >= 100 { " " strong.w2 { "full" } }
            @else if share >= 80 { " " strong.w1 { "nearly full" } }
        }
    }
}

/// One line of a list of facts.
pub(crate) fn fact(name: &str, value: &Markup) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}
