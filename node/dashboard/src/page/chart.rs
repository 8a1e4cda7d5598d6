//! Charts as inline SVG: a line over time, and marks on a line of time.
//!
//! Purpose: how something went, not only how it is. A chart is one image with a sentence that says
//! what it shows; its numbers stand beside it as text, so nobody needs to see it (rule W4). Widths
//! are attributes, since the CSP forbids styles. Pure. Must not know: what is charted.

use std::fmt::Write;

use jiff::Timestamp;
use maud::{Markup, html};

use crate::text::{count, seconds_between, span};

/// Width of every chart in its own units.
const WIDTH: i64 = 600;
/// Height of a line chart in its own units.
const HEIGHT: u64 = 60;
/// Place of one mark in the same units: at most 120 of them.
const MARK: i64 = 5;
/// What a line of time covers.
pub(crate) const HOUR_S: i64 = 3600;

/// A value over time, against a scale from 0 to `whole`; nothing for fewer than two points.
pub(crate) fn line(points: &[(Timestamp, u64)], whole: u64, says: &str) -> Markup {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return html! {} };
    let length = seconds_between(first.0, last.0);
    if length <= 0 {
        return html! {};
    }
    let top = points.iter().map(|p| p.1).fold(whole, u64::max).max(1);
    let mut path = String::with_capacity(points.len() * 10);
    for (i, (at, value)) in points.iter().enumerate() {
        let x = seconds_between(first.0, *at).clamp(0, length) * WIDTH / length;
        // In 128 bits: a size times the height may not fit in 64.
        let y = u128::from(HEIGHT) - u128::from(*value) * u128::from(HEIGHT) / u128::from(top);
        // Writing to a String cannot fail.
        let _ = write!(path, "{}{x} {y}", if i == 0 { 'M' } else { 'L' });
    }
    let label = format!("{says} over the last {}", span(length));
    html! {
        svg.chart viewBox={ "0 -1 " (WIDTH) " " (HEIGHT + 2) } preserveAspectRatio="none"
            role="img" aria-label=(label) { path d=(path) {} }
        small { "the last " (span(length)) }
    }
}

/// Marks for what happened in the last hour, the newest at the right.
pub(crate) fn marks(times: &[Timestamp], now: Timestamp, one: &str, many: &str) -> Markup {
    let ago = times.iter().map(|t| seconds_between(*t, now).max(0)).filter(|s| *s < HOUR_S);
    // Two of one place are one mark: a page does not grow with a storm.
    let place = |s: i64| (WIDTH - MARK - s * (WIDTH - MARK) / HOUR_S) / MARK * MARK;
    let mut places: Vec<i64> = ago.clone().map(place).collect();
    places.sort_unstable();
    places.dedup();
    let label = format!("{} in the last hour", count(ago.count(), one, many));
    html! {
        svg.marks viewBox={ "0 0 " (WIDTH) " 12" } preserveAspectRatio="none" role="img"
            aria-label=(label) {
            rect.bg y="5" width=(WIDTH) height="2" {}
            @for x in places { rect.m x=(x) width=(MARK - 2) height="12" {} }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }

    #[test]
    fn a_line_runs_from_left_to_right_and_stays_inside() {
        let points = [(at(0), 0), (at(30), 50), (at(60), 100)];
        let html = line(&points, 100, "Use").into_string();
        assert!(html.contains("d=\"M0 60L300 30L600 0\""), "{html}");
        assert!(html.contains("aria-label=\"Use over the last 1 min\""), "{html}");
        // More than the whole sets the scale; the largest sizes do not overflow.
        let html = line(&[(at(0), u64::MAX), (at(1), 0)], 1, "Use").into_string();
        assert!(html.contains("d=\"M0 0L600 60\""), "{html}");
    }

    #[test]
    fn what_is_no_line_yet_is_nothing() {
        assert_eq!(line(&[], 1, "x").into_string(), "");
        assert_eq!(line(&[(at(5), 1)], 1, "x").into_string(), "");
        // A clock that was set back.
        assert_eq!(line(&[(at(5), 1), (at(4), 1)], 1, "x").into_string(), "");
    }

    #[test]
    fn marks_show_the_last_hour_and_a_storm_is_bounded() {
        let html = marks(&[at(-1), at(1), at(3600)], at(3600), "death", "deaths").into_string();
        assert!(html.contains("aria-label=\"2 deaths in the last hour\""), "{html}");
        assert_eq!(html.matches("rect class=\"m\"").count(), 2);
        assert!(html.contains("x=\"595\""), "{html}");
        let storm: Vec<Timestamp> = (0..100_000).map(|n| at(n % 3600)).collect();
        let html = marks(&storm, at(3600), "death", "deaths").into_string();
        assert!(html.len() < 8 << 10, "{}", html.len());
    }
}
