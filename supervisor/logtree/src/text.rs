//! Entries as text: full lines for files and terminals, concise lines for consoles (rule L8).
//!
//! Pure. Control characters are shown as `\xNN`, so that no child can drive a terminal or fake a
//! line.

use std::fmt::Write;

use crate::Entry;
use crate::time::Civil;

/// Short words for the names of long paths.
const DICTIONARY: [(&str, &str); 6] = [
    ("kubernetes", "k8s"),
    ("network", "net"),
    ("controlplane", "cp"),
    ("controller-manager", "kcm"),
    ("apiserver", "api"),
    ("provisioner", "prov"),
];

/// Text in which control characters are visible.
pub fn escape_control(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push('\t'),
            // Also the C1 controls and the marks that turn the direction of text.
            c if c.is_control() || is_bidi(c) => {
                let mut buf = [0; 4];
                for byte in c.encode_utf8(&mut buf).bytes() {
                    let _ = write!(out, "\\x{byte:02x}");
                }
            }
            c => out.push(c),
        }
    }
    out
}

fn is_bidi(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The fields as ` key=value` each; values with spaces or quotes are quoted.
fn fields_text(entry: &Entry) -> String {
    let mut out = String::new();
    for (key, value) in &entry.fields {
        let plain = !value.is_empty()
            && value.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=');
        let key = escape_control(key);
        let _ = match plain {
            true => write!(out, " {key}={}", escape_control(value)),
            false => write!(out, " {key}={value:?}"),
        };
    }
    out
}

/// `{dn:<32} I1102 17:20:06.921395 foo.rs:42] message key=value` or `{dn:<32} R line`; every line
/// of the entry is prefixed and ends in a newline.
pub fn to_text(entry: &Entry) -> String {
    let prefix = match entry.level {
        None => format!("{:<32} R ", entry.dn),
        Some(level) => {
            let t = Civil::from_ns(entry.wall_ns);
            let source = entry.source.as_deref().unwrap_or("-");
            format!(
                "{:<32} {}{:02}{:02} {:02}:{:02}:{:02}.{:06} {}] ",
                entry.dn,
                level.letter(),
                t.month,
                t.day,
                t.hour,
                t.minute,
                t.second,
                t.nanos / 1000,
                escape_control(source),
            )
        }
    };
    let fields = fields_text(entry);
    let mut out = String::new();
    for (i, line) in entry.lines.iter().enumerate() {
        let fields = if i + 1 == entry.lines.len() { fields.as_str() } else { "" };
        let _ = writeln!(out, "{prefix}{}{fields}", escape_control(line));
    }
    out
}

/// For a console of `width` columns: a short DN column (none below 60 columns), the level's letter,
/// the text wrapped at words with `| ` on continued lines.
pub fn to_concise(entry: &Entry, width: usize) -> String {
    let column = match width {
        80.. => 20,
        60..80 => 16,
        _ => 0,
    };
    let name = match column {
        0 => String::new(),
        column => format!("{:<column$} ", short_dn(entry.dn.as_str(), column)),
    };
    let letter = entry.level.map_or('R', |l| l.letter());
    let prefix = format!("{name}{letter} ");
    // Never so narrow that nothing fits.
    let room = width.saturating_sub(prefix.chars().count()).max(16);
    let fields = fields_text(entry);
    let mut out = String::new();
    let last = entry.lines.len().saturating_sub(1);
    for (i, line) in entry.lines.iter().enumerate() {
        let mut text = escape_control(line).replace('\t', " ");
        if i == last {
            text.push_str(&fields);
        }
        for (n, part) in wrap(&text, room).into_iter().enumerate() {
            let continued = if i + n > 0 { "| " } else { "" };
            let _ = writeln!(out, "{prefix}{continued}{part}");
        }
    }
    out
}

/// `root.` dropped, known words shortened, dots as spaces, the tail kept after `...`.
fn short_dn(dn: &str, column: usize) -> String {
    let dn = dn.strip_prefix("root.").unwrap_or(dn);
    let words = dn.split('.').map(|name| {
        let short = DICTIONARY.iter().find(|(long, _)| *long == name);
        short.map_or(name, |(_, short)| short)
    });
    let text = words.collect::<Vec<_>>().join(" ");
    let excess = text.len().saturating_sub(column);
    match excess {
        0 => text,
        // Names are ASCII: any byte is a boundary.
        excess => format!("...{}", &text[excess + 3..]),
    }
}

/// Parts of at most `room` characters (two fewer after the first), broken at spaces if possible.
fn wrap(text: &str, room: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let room = if parts.is_empty() { room } else { room - 2 };
        let Some((end, _)) = rest.char_indices().nth(room) else {
            parts.push(rest);
            return parts;
        };
        let at = rest[..end].rfind(' ').filter(|at| *at > 0).unwrap_or(end);
        parts.push(&rest[..at]);
        rest = rest[at..].strip_prefix(' ').unwrap_or(&rest[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dn, Level, Record};

    fn entry(dn: &'static str, record: Record) -> Entry {
        let len = record.message.len();
        record.into_entry(Dn::from_static(dn), 1_762_104_006_921_395_123, len).0
    }

    #[test]
    fn l8_the_full_text_has_dn_level_time_source_message_and_fields() {
        let mut record = Record::new(Level::Info, "volume ready");
        record.source = Some("engine.rs:42".to_owned());
        record.fields = vec![("id".into(), "v1".into()), ("why".into(), "a b".into())];
        assert_eq!(
            to_text(&entry("root.storage", record)),
            "root.storage                     I1102 17:20:06.921395 engine.rs:42] volume ready id=v1 why=\"a b\"\n"
        );
        assert_eq!(
            to_text(&entry("root.a", Record::raw("x"))),
            "root.a                           R x\n"
        );
    }

    #[test]
    fn l8_every_line_of_an_entry_is_prefixed() {
        let text = to_text(&entry("a", Record::new(Level::Error, "one\ntwo\n")));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|l| l.starts_with("a    ")), "{text}");
        assert!(lines[1].ends_with("] two"), "{text}");
    }

    #[test]
    fn l4_control_characters_cannot_drive_a_terminal() {
        let text = to_text(&entry("a", Record::raw("\x1b[2Jhi\rfake\u{9b}\u{202e}")));
        assert!(text.contains(r"\x1b[2Jhi\x0dfake\xc2\x9b\xe2\x80\xae"), "{text}");
    }

    #[test]
    fn l8_the_concise_text_wraps_at_words_and_keeps_the_tail_of_a_dn() {
        let words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi";
        let long = "root.kubernetes.controlplane.controller-manager";
        let text = to_concise(&entry(long, Record::new(Level::Warning, words)), 80);
        assert_eq!(
            text,
            "k8s cp kcm           W alpha beta gamma delta epsilon zeta eta theta iota kappa\n\
             k8s cp kcm           W | lambda mu nu xi\n"
        );
        let text = to_concise(&entry("root.aaaaaaaaaaaa.bbbbbbbbbbbbb", Record::raw("x")), 60);
        assert_eq!(text, "...bbbbbbbbbbbbb R x\n");
    }

    #[test]
    fn l8_a_narrow_console_has_no_dn_column() {
        assert_eq!(to_concise(&entry("root.a", Record::raw("x")), 40), "R x\n");
    }
}
