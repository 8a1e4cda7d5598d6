//! Values as text for people: sizes, spans of time, and texts that nobody here wrote.
//!
//! Purpose: one way to print each kind of value on every page, and one place where foreign text
//! (log lines, notes, condition messages) loses its power over terminals and reading direction
//! (rule L4). Public for the command line, which shows the same values. Pure. Must not know: HTML;
//! escaping is maud's.

use std::borrow::Cow;
use std::fmt::Write;

use jiff::Timestamp;

/// Whether a character can change how its neighbours look or read.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Foreign text with control characters shown as `\xNN` and direction marks as `\u{…}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            '\t' => out.write_char(' '),
            c if is_hidden(c) && u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
            c if is_hidden(c) => write!(out, "\\u{{{:x}}}", u32::from(c)),
            c => out.write_char(c),
        };
    }
    Cow::Owned(out)
}

/// [`visible`], cut to at most `max` bytes at a character boundary with the rest counted.
pub(crate) fn clipped(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return visible(text);
    }
    let end = (0..=max).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    let (head, rest) = text.split_at(end);
    Cow::Owned(format!("{}… (+{} bytes)", visible(head), rest.len()))
}

/// A size in binary units: `0 B`, `64 MiB`, `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let unit = (n.ilog2() / 10) as usize;
    let scale = 1u64 << (10 * unit);
    let name = UNITS[unit - 1];
    if n.is_multiple_of(scale) {
        return format!("{} {name}", n / scale);
    }
    // Tenths, rounded down, so that "64.0 MiB" is never shown for less than 64 MiB.
    let tenths = u128::from(n) * 10 / u128::from(scale);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// Whole per cent of `used` in `limit`, rounded down, at most 100; `None` without a limit.
pub fn percent(used: u64, limit: u64) -> Option<u8> {
    let parts = (u128::from(used) * 100).checked_div(u128::from(limit))?;
    Some(u8::try_from(parts.min(100)).unwrap_or(100))
}

/// A span of time in its two largest units: `4 s`, `12 min`, `3 h 5 min`, `2 d 1 h`.
pub fn span(seconds: i64) -> String {
    let s = seconds.max(0);
    let (days, hours, minutes) = (s / 86_400, s / 3600 % 24, s / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, m) => format!("{m} min"),
        (0, h, 0) => format!("{h} h"),
        (0, h, m) => format!("{h} h {m} min"),
        (d, 0, _) => format!("{d} d"),
        (d, h, _) => format!("{d} d {h} h"),
    }
}

/// Whole seconds from `from` to `to`; negative if `to` is earlier.
pub fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second().saturating_sub(from.as_second())
}

/// A time from nanoseconds since 1970; times out of range become the nearest one.
pub(crate) fn time(ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// RFC 3339 with nanoseconds, in UTC.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// `n` of something, with the right form of the word.
pub(crate) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// One pair, with everything but letters, digits and `-._` percent-encoded.
pub fn form_urlencode(name: &str, value: &str) -> String {
    let mut out = format!("{name}=");
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_control_and_direction_characters_are_shown_and_not_obeyed() {
        assert_eq!(visible("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
        assert_eq!(visible("a\nb\u{85}"), "a\\x0ab\\x85");
        assert_eq!(visible("abc\u{202e}cba"), "abc\\u{202e}cba");
        assert!(matches!(visible("plain ünïcode שלום"), Cow::Borrowed(_)));
    }

    #[test]
    fn w4_long_texts_are_cut_at_a_character_and_the_rest_is_counted() {
        assert_eq!(clipped("äöü", 3), "ä… (+4 bytes)");
        assert_eq!(clipped("abc", 3), "abc");
    }

    #[test]
    fn w2_sizes_are_exact_or_rounded_down() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (64 << 20, "64 MiB"),
            ((64 << 20) - 1, "63.9 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn w2_a_volume_is_full_only_at_its_limit() {
        assert_eq!(percent(99, 100), Some(99));
        assert_eq!(percent((64 << 20) - 1, 64 << 20), Some(99));
        assert_eq!(percent(u64::MAX, 1), Some(100));
        assert_eq!(percent(1, 0), None);
    }

    #[test]
    fn w2_spans_show_their_two_largest_units() {
        for (s, text) in [
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3600, "1 h"),
            (3660, "1 h 1 min"),
            (86_400 + 60, "1 d"),
            (2 * 86_400 + 7200, "2 d 2 h"),
        ] {
            assert_eq!(span(s), text);
        }
    }

    #[test]
    fn w8_times_are_rfc_3339_with_nanoseconds() {
        assert_eq!(rfc3339(time(1_500_000_000_000_000_001)), "2017-07-14T02:40:00.000000001Z");
        assert_eq!(rfc3339(time(0)), "1970-01-01T00:00:00.000000000Z");
    }
}
