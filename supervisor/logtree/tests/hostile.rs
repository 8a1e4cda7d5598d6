//! Any bytes in, in any format, in any pieces: no panic, no line lost, bounded memory (rules P1 to
//! P6, L4, L9, §16). Names, DNs and levels from anywhere: an error or the very same text.

use std::sync::Arc;

use logtree::{
    Backlog, Cursor, Dn, Entry, Format, Level, LogTree, MAX_FIELDS, MAX_LINES, MAX_MESSAGE_BYTES,
    MAX_VALUE_BYTES, Name, Query, to_concise, to_text,
};
use proptest::prelude::*;

/// Room for the mark that says how much was cut.
const MARK: usize = 40;

/// One good line per format, and what looks like one.
const SEEDS: [&str; 9] = [
    r#"I1102 17:20:06.921395 12345 foo.go:42] "Started pod" pod="kube-system/x" took="1.2s""#,
    "W0229 23:59:59 1 a.go:1] plain text",
    r#"{"level":"warn","ts":"2026-11-02T17:20:06.9Z","caller":"a.go:1","msg":"slow","n":[1,{"a":null}]}"#,
    r#"{"ts":1762104006921.395,"caller":"a.go:1","msg":"m","v":4,"err":"x"}"#,
    r#"time="2026-11-02T17:20:06Z" level=warning msg="no \"cni\"\n" error="a=b" n=1"#,
    "level=info msg=open",
    "panic: runtime error: index out of range",
    "{{{{[[[[",
    "plain",
];

fn format() -> impl Strategy<Value = Format> {
    let all = [Format::Raw, Format::Klog, Format::Json, Format::Logfmt, Format::Auto];
    prop::sample::select(all.to_vec())
}

/// A good line with some bytes changed, left out, doubled.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0u8..4);
    (prop::sample::select(SEEDS.to_vec()), prop::collection::vec(edit, 0..6)).prop_map(
        |(seed, edits)| {
            let mut line = seed.as_bytes().to_vec();
            for (at, byte, kind) in edits {
                if line.is_empty() {
                    break;
                }
                let at = at.index(line.len());
                match kind {
                    0 => line[at] = byte,
                    1 => drop(line.remove(at)),
                    2 => line.insert(at, byte),
                    _ => {
                        let tail = line[at..].to_vec();
                        line.extend(tail);
                    }
                }
            }
            line
        },
    )
}

fn through(format: Format, pieces: &[&[u8]]) -> (LogTree, Vec<Arc<Entry>>) {
    let tree = LogTree::new(Default::default());
    let mut sink = tree.sink(&Dn::from_static("a"), format);
    pieces.iter().for_each(|piece| sink.push(piece));
    drop(sink);
    let entries = match tree.read(Query::all(Dn::ALL)) {
        Ok(mut reader) => reader.next(usize::MAX).entries,
        Err(e) => panic!("{e}"),
    };
    (tree, entries)
}

fn lines(bytes: &[u8]) -> usize {
    bytes.split(|b| *b == b'\n').filter(|l| !l.iter().all(|b| *b == b'\r')).count()
}

fn check(entry: &Entry) {
    let message: usize = entry.lines.iter().map(|l| l.len() + 1).sum();
    assert!(message <= MAX_MESSAGE_BYTES + MARK, "{message}");
    assert!(entry.lines.len() <= MAX_LINES && entry.fields.len() <= MAX_FIELDS);
    assert!(entry.fields.iter().all(|(_, v)| v.len() <= MAX_VALUE_BYTES + MARK));
    let shown = [to_text(entry), to_concise(entry, 80), to_concise(entry, 0)].concat();
    let plain = |c: char| c == '\n' || c == '\t' || !c.is_control();
    assert!(shown.chars().all(plain), "{shown:?}");
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn p1_damaged_lines_in_any_format_and_any_pieces_are_one_entry_each(
        damaged in prop::collection::vec(damaged(), 1..6),
        format in format(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = damaged.join(&b'\n');
        let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
        let (tree, entries) = through(format, &[head, tail]);
        prop_assert_eq!(entries.len(), lines(&bytes));
        entries.iter().for_each(|e| check(e));
        let whole = through(format, &[&bytes]).1;
        for (a, b) in entries.iter().zip(&whole) {
            prop_assert_eq!((&a.lines, &a.fields, a.level), (&b.lines, &b.fields, b.level));
        }
        let stats = tree.stats();
        if let Some(of_dn) = stats.dns.first() {
            let unnamed = matches!(format, Format::Raw | Format::Auto);
            prop_assert!(!unnamed || of_dn.unparsed == 0);
            prop_assert!(of_dn.unparsed <= of_dn.raw);
        }
    }

    #[test]
    fn l9_a_raw_line_within_the_limit_is_kept_as_it_is(line in "[^\\p{C}\r\n]{1,200}") {
        let (_, entries) = through(Format::Raw, &[line.as_bytes()]);
        prop_assert_eq!(entries[0].message(), line);
    }

    #[test]
    fn d1_d2_any_text_is_an_error_or_the_very_same_name(text in "(.{0,80}|[a-z0-9._-]{0,300})") {
        if let Ok(name) = Name::new(&text) {
            prop_assert_eq!(name.as_str(), &text);
        }
        if let Ok(dn) = Dn::new(&text) {
            prop_assert_eq!(dn.as_str(), &text);
            prop_assert!(dn.depth() <= Dn::MAX_DEPTH && text.len() <= Dn::MAX_BYTES);
        }
        if let Ok(level) = text.parse::<Level>() {
            prop_assert!(level.as_str().starts_with(&text.to_ascii_lowercase()));
        }
    }

    #[test]
    fn l7_any_query_is_answered_or_refused(
        dn in "[a-c](\\.[a-c]){0,2}|",
        cursor in any::<u64>(),
        n in any::<usize>(),
        since in any::<i64>(),
        which in 0u8..5,
        text in ".{0,5}",
    ) {
        let tree = LogTree::new(Default::default());
        for dn in ["a", "a.b", "c"] {
            tree.sink(&Dn::from_static(dn), Format::Raw).push(b"x\ny\n");
        }
        let backlog = match which {
            0 => Backlog::None,
            1 => Backlog::All,
            2 => Backlog::Last(n),
            // Of another boot, perhaps: beyond all there is.
            3 => Backlog::After(Cursor(cursor)),
            _ => Backlog::Since(since),
        };
        let dn = Dn::new(&dn).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let query = Query { backlog, contains: Some(text), ..Query::all(dn) };
        match tree.read(query) {
            Ok(mut reader) => {
                let batch = reader.next(usize::MAX);
                prop_assert!(batch.end && batch.missed == 0 && batch.entries.len() <= 6);
            }
            Err(e) => prop_assert!(!e.to_string().is_empty()),
        }
    }
}

#[test]
fn p3_json_as_deep_as_a_line_is_long_is_a_raw_line() {
    let brackets = format!("{{\"msg\":{}", "[".repeat(9_000));
    for deep in ["[".repeat(16_000), r#"{"a":"#.repeat(3_000), brackets] {
        let (_, entries) = through(Format::Json, &[deep.as_bytes(), b"\n"]);
        assert_eq!((entries.len(), entries[0].level), (1, None));
    }
}

#[test]
fn p3_a_line_full_of_pairs_keeps_the_first_32() {
    let pairs: String = (0..1500).map(|n| format!(",\"k{n}\":1")).collect();
    let line = format!("{{\"msg\":\"m\"{pairs}}}\n");
    let (tree, entries) = through(Format::Json, &[line.as_bytes()]);
    assert_eq!(entries[0].fields.len(), MAX_FIELDS);
    assert_eq!(tree.stats().dns[0].truncated, 1);
}

#[test]
fn l9_a_line_without_end_takes_no_memory() {
    let tree = LogTree::new(Default::default());
    let mut sink = tree.sink(&Dn::from_static("a"), Format::Auto);
    let piece = vec![0u8; 1 << 20];
    (0..64).for_each(|_| sink.push(&piece));
    assert_eq!(tree.stats().retained_bytes, 0, "nothing is shown before its newline");
    drop(sink);
    let stats = tree.stats();
    assert!(stats.retained_bytes < 64 << 10, "{}", stats.retained_bytes);
    assert_eq!((stats.dns[0].raw, stats.dns[0].truncated), (1, 1));
}
