//! klog: `[IWEF]MMDD hh:mm:ss[.f{1,6}] <pid> file:line] text` (rule P2).
//!
//! The header has no year: the one that brings it nearest to now is taken.

use crate::time::Civil;
use crate::{Level, Record};

/// Further off than this, the time in the header is not believed.
const PLAUSIBLE_NS: i64 = 48 * 3600 * 1_000_000_000;

/// A cursor over the bytes of a header.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn digits(&mut self, n: usize) -> Option<u32> {
        let (head, tail) = self.0.split_at_checked(n)?;
        let mut value = 0u32;
        for b in head {
            if !b.is_ascii_digit() {
                return None;
            }
            value = value * 10 + u32::from(b - b'0');
        }
        self.0 = tail;
        Some(value)
    }

    fn exact(&mut self, byte: u8) -> Option<()> {
        let (first, tail) = self.0.split_first()?;
        (*first == byte).then(|| self.0 = tail)
    }

    fn skip_spaces(&mut self) {
        while let Some((b' ', tail)) = self.0.split_first() {
            self.0 = tail;
        }
    }

    /// 1 to 6 digits of a fraction, as nanoseconds.
    fn fraction(&mut self) -> Option<u32> {
        let n = self.0.iter().take(6).take_while(|b| b.is_ascii_digit()).count();
        let value = self.digits(n).filter(|_| n > 0)?;
        Some(value * 10u32.pow(9 - n as u32))
    }

    fn number(&mut self) -> Option<()> {
        let n = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        (n > 0).then(|| self.0 = &self.0[n..])
    }
}

pub(super) fn parse(text: &str, now_ns: i64) -> Option<Record> {
    let level = match text.bytes().next()? {
        b'I' => Level::Info,
        b'W' => Level::Warning,
        b'E' => Level::Error,
        b'F' => Level::Critical,
        _ => return None,
    };
    let mut b = Bytes(text.as_bytes().get(1..)?);
    let (month, day) = (b.digits(2)?, b.digits(2)?);
    b.exact(b' ')?;
    let hour = b.digits(2)?;
    b.exact(b':')?;
    let minute = b.digits(2)?;
    b.exact(b':')?;
    let second = b.digits(2)?;
    let nanos = match b.exact(b'.') {
        Some(()) => b.fraction()?,
        None => 0,
    };
    b.exact(b' ')?;
    b.skip_spaces();
    b.number()?;
    b.exact(b' ')?;
    let rest = text.get(text.len() - b.0.len()..)?;
    let (source, message) = rest.split_once(']')?;
    if source.contains(' ') || !source.contains(':') {
        return None;
    }
    let civil = Civil { year: 0, month, day, hour, minute, second, nanos };
    let (message, mut fields) = structured(message.strip_prefix(' ').unwrap_or(message));
    let wall_ns = nearest(civil, now_ns)?;
    let believed = wall_ns.abs_diff(now_ns) <= PLAUSIBLE_NS.unsigned_abs();
    if !believed {
        let stamp = text.get(1..rest.as_ptr() as usize - text.as_ptr() as usize).unwrap_or("");
        let stamp = stamp.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        fields.push(("stamp".to_owned(), stamp));
    }
    Some(Record {
        level: Some(level),
        wall_ns: believed.then_some(wall_ns),
        source: Some(source.to_owned()),
        message,
        fields,
    })
}

/// The moment with that month, day and time which is nearest to now.
fn nearest(civil: Civil, now_ns: i64) -> Option<i64> {
    let year = Civil::from_ns(now_ns).year;
    let years = [year - 1, year, year + 1];
    let moments = years.into_iter().filter_map(|year| Civil { year, ..civil }.to_ns());
    // 29 February may exist in none of the three years; the next leap year is as good as any.
    moments
        .min_by_key(|ns| ns.abs_diff(now_ns))
        .or_else(|| (civil.month == 2).then(|| Civil { year: 2000, ..civil }.to_ns()).flatten())
}

/// `"msg" k="v" k2=v2` as message and fields; anything else is all message.
fn structured(text: &str) -> (String, Vec<(String, String)>) {
    let whole = || (text.to_owned(), Vec::new());
    if !text.starts_with('"') {
        return whole();
    }
    let Some((message, rest)) = super::logfmt::quoted(text) else { return whole() };
    match super::logfmt::pairs(rest) {
        Some(fields) => (message, fields),
        None => whole(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> i64 {
        crate::parse::rfc3339_ns(text).unwrap()
    }

    #[test]
    fn p2_a_header_gives_level_time_source_and_text() {
        let now = at("2026-11-02T18:00:00Z");
        let r = parse("I1102 17:20:06.921395    1234 foo.go:42] hello ] there", now).unwrap();
        assert_eq!(r.level, Some(Level::Info));
        assert_eq!(r.wall_ns, Some(at("2026-11-02T17:20:06.921395Z")));
        assert_eq!(r.source.as_deref(), Some("foo.go:42"));
        assert_eq!(r.message, "hello ] there");
        for (letter, level) in [("W", Level::Warning), ("E", Level::Error), ("F", Level::Critical)]
        {
            let line = format!("{letter}1102 17:20:06 7 a.go:1] x");
            assert_eq!(parse(&line, now).unwrap().level, Some(level));
        }
    }

    #[test]
    fn p2_the_year_is_the_one_nearest_to_now_on_both_sides_of_its_end() {
        let after = parse("I1231 23:59:59.5 1 a.go:1] x", at("2027-01-01T00:00:01Z")).unwrap();
        assert_eq!(after.wall_ns, Some(at("2026-12-31T23:59:59.5Z")));
        let before = parse("I0101 00:00:01.5 1 a.go:1] x", at("2026-12-31T23:59:59Z")).unwrap();
        assert_eq!(before.wall_ns, Some(at("2027-01-01T00:00:01.5Z")));
    }

    #[test]
    fn p2_an_implausible_time_becomes_a_field() {
        let r = parse("I0601 10:00:00.5 1 a.go:1] x", at("2026-11-02T18:00:00Z")).unwrap();
        assert_eq!(r.wall_ns, None);
        assert_eq!(r.fields, vec![("stamp".to_owned(), "0601 10:00:00.5".to_owned())]);
    }

    #[test]
    fn p2_structured_text_becomes_message_and_fields() {
        let now = at("2026-11-02T18:00:00Z");
        let r = parse(r#"I1102 17:20:06.9 1 a.go:1] "Started \"it\"" pod="ns/a b" count=3"#, now)
            .unwrap();
        assert_eq!(r.message, r#"Started "it""#);
        assert_eq!(r.fields, vec![("pod".into(), "ns/a b".into()), ("count".into(), "3".into())]);
    }

    #[test]
    fn p2_what_is_nearly_a_header_is_none() {
        let now = at("2026-11-02T18:00:00Z");
        for line in [
            "I",
            "I1102",
            "Info: hello",
            "I1302 17:20:06.9 1 a.go:1] x",
            "I1102 17:20:06. 1 a.go:1] x",
            "I1102 17:20:06.9 x a.go:1] x",
            "I1102 17:20:06.9 1 a.go:1 x",
            "D1102 17:20:06.9 1 a.go:1] x",
        ] {
            assert_eq!(parse(line, now), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn p2_no_line_makes_the_parser_panic(line in "[IWEF]?[0-9:. \"=a-z\\]é]{0,60}", now in any::<i64>()) {
            parse(&line, now);
        }
    }
}
