//! logfmt: `time="…" level=info msg="…" key=value` (rule P4).

use super::{level_word, rfc3339_ns};
use crate::Record;

pub(super) fn parse(text: &str) -> Option<Record> {
    // Cheap test first: most raw lines end here.
    if !text.starts_with("level=") && !text.contains(" level=") {
        return None;
    }
    let pairs = pairs(text)?;
    let mut record = Record::default();
    let mut message = None;
    for (key, value) in pairs {
        match key.as_str() {
            "level" => record.level = Some(level_word(&value)),
            "msg" => message = Some(value),
            "time" | "ts" => match rfc3339_ns(&value) {
                Some(ns) => record.wall_ns = Some(ns),
                None => record.fields.push((key, value)),
            },
            _ => record.fields.push((key, value)),
        }
    }
    record.level?;
    record.message = message.unwrap_or_default();
    Some(record)
}

/// All of the text as pairs; `None` if something in it is no pair.
pub(super) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let mut out = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, tail) = rest.split_once('=')?;
        let good = !key.is_empty() && key.chars().all(|c| !c.is_whitespace() && c != '"');
        if !good {
            return None;
        }
        let (value, tail) = match tail.starts_with('"') {
            true => quoted(tail)?,
            false => {
                let end = tail.find(char::is_whitespace).unwrap_or(tail.len());
                (tail[..end].to_owned(), &tail[end..])
            }
        };
        if !tail.is_empty() && !tail.starts_with(char::is_whitespace) {
            return None;
        }
        out.push((key.to_owned(), value));
        rest = tail.trim_start();
    }
    Some(out)
}

/// A Go-quoted string at the beginning: its value and what follows it.
pub(super) fn quoted(text: &str) -> Option<(String, &str)> {
    let mut chars = text.char_indices();
    if chars.next()?.1 != '"' {
        return None;
    }
    let mut out = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'x' => out.push(code(&mut chars, 2)?),
                'u' => out.push(code(&mut chars, 4)?),
                'U' => out.push(code(&mut chars, 8)?),
                // \" and \\, and what Go never writes, stand for themselves.
                other => out.push(other),
            },
            c => out.push(c),
        }
    }
    None
}

fn code(chars: &mut std::str::CharIndices<'_>, digits: usize) -> Option<char> {
    let mut value = 0u32;
    for _ in 0..digits {
        value = value.checked_mul(16)?.checked_add(chars.next()?.1.to_digit(16)?)?;
    }
    Some(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use proptest::prelude::*;

    #[test]
    fn p4_a_containerd_line_is_read() {
        let r = parse(
            r#"time="2026-11-02T17:20:06.921395123Z" level=warning msg="no \"cni\"\nconf" error="a=b" n=1"#,
        )
        .unwrap();
        assert_eq!(r.level, Some(Level::Warning));
        assert_eq!(r.message, "no \"cni\"\nconf");
        assert_eq!(r.fields, vec![("error".into(), "a=b".into()), ("n".into(), "1".into())]);
        assert_eq!(r.wall_ns, rfc3339_ns("2026-11-02T17:20:06.921395123Z"));
    }

    #[test]
    fn p4_a_sentence_with_a_level_in_it_stays_raw() {
        for line in ["set level=info for all", "the level=3 is", r#"level=info msg="open"#, "x"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn p4_no_line_makes_the_parser_panic(line in r#"level=[a-z"\\x= é]{0,40}"#) {
            parse(&line);
        }
    }
}
