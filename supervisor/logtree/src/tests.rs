//! The rules L3 to L9 of the log as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use slog::{debug, error, info, o, warn};

use crate::*;

fn dn(text: &'static str) -> Dn {
    Dn::from_static(text)
}

fn new() -> LogTree {
    LogTree::new(Limits::default())
}

fn follow(dn: Dn, backlog: Backlog) -> Query {
    Query { follow: true, backlog, ..Query::all(dn) }
}

fn all(tree: &LogTree, query: Query) -> Vec<String> {
    let mut reader = tree.read(query).unwrap();
    let batch = reader.next(usize::MAX);
    assert!(batch.end);
    batch.entries.iter().map(|e| e.message()).collect()
}

fn say(tree: &LogTree, dn: &Dn, text: &str) {
    tree.append(dn, Record::new(Level::Info, text));
}

#[test]
fn l1_a_record_keeps_message_place_and_fields_apart_and_its_dn_cannot_be_forged() {
    let tree = new();
    let log = tree.logger(&dn("root.a")).new(o!("outer" => 1));
    info!(log, "hello {}", "you"; "first" => "x", "dn" => "root.b");
    let mut reader = tree.read(Query::all(Dn::ALL)).unwrap();
    let batch = reader.next(10);
    let entry = &batch.entries[0];
    assert_eq!(entry.dn, dn("root.a"));
    assert_eq!(entry.message(), "hello you");
    assert!(entry.source.as_ref().unwrap().starts_with("tests.rs:"));
    let fields: Vec<_> = entry.fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(fields, [("first", "x"), ("dn", "root.b"), ("outer", "1")]);
}

#[test]
fn l3_the_nearest_ancestors_level_wins_and_reaches_live_loggers() {
    let tree = new();
    let a = tree.logger(&dn("root.a.x"));
    let b = tree.logger(&dn("root.b"));
    tree.set_level(&dn("root"), Level::Error, None);
    tree.set_level(&dn("root.a"), Level::Debug, None);
    for log in [&a, &b] {
        debug!(log, "detail");
        error!(log, "bad");
    }
    assert_eq!(all(&tree, Query::all(dn("root.a"))), ["detail", "bad"]);
    assert_eq!(all(&tree, Query::all(dn("root.b"))), ["bad"]);
}

#[test]
fn l3_a_disabled_record_formats_nothing() {
    struct Loud;
    impl std::fmt::Display for Loud {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("formatted")
        }
    }
    let tree = new();
    tree.set_level(&Dn::ALL, Level::Warning, None);
    let log = tree.logger(&dn("a"));
    info!(log, "{}", Loud);
}

#[test]
fn l3_a_passing_level_ends_by_itself_and_uncovers_the_lasting_one() {
    let tree = new();
    let log = tree.logger(&dn("a"));
    tree.set_level(&dn("a"), Level::Warning, None);
    tree.set_level(&dn("a"), Level::Debug, Some(Duration::ZERO));
    assert_eq!(tree.level(&dn("a")), Level::Warning);
    info!(log, "not kept");
    warn!(log, "kept");
    assert_eq!(all(&tree, Query::all(dn("a"))), ["kept"]);
}

#[test]
fn l3_a_passing_level_that_silences_all_ends_without_an_append() {
    let tree = new();
    let log = tree.logger(&dn("a"));
    tree.set_level(&Dn::ALL, Level::Critical, Some(Duration::ZERO));
    warn!(log, "silenced");
    assert!(all(&tree, Query::all(dn("b"))).is_empty());
    tree.set_level(&Dn::ALL, Level::Critical, Some(Duration::ZERO));
    tree.expire_levels();
    warn!(log, "heard");
    assert_eq!(all(&tree, Query::all(dn("a"))), ["heard"]);
}

#[test]
fn l4_long_messages_lines_and_values_are_cut_and_say_so() {
    let tree = new();
    tree.append(&dn("a"), Record::new(Level::Info, "é".repeat(20_000)));
    let mut many = Record::new(Level::Info, "x\n".repeat(100));
    many.fields = (0..40).map(|i| (format!("k{i}"), "v".repeat(5000))).collect();
    tree.append(&dn("a"), many);
    let mut reader = tree.read(Query::all(dn("a"))).unwrap();
    let batch = reader.next(10);
    let long = batch.entries[0].message();
    assert!(long.ends_with(&format!("… (+{} bytes)", 40_000 - MAX_MESSAGE_BYTES)), "{long}");
    assert_eq!(batch.entries[0].original_len, 40_000);
    let many = &batch.entries[1];
    assert_eq!((many.lines.len(), many.fields.len()), (MAX_LINES, MAX_FIELDS));
    assert!(many.fields.iter().all(|(_, v)| v.len() < MAX_VALUE_BYTES + 30));
    assert_eq!(tree.stats().dns[0].truncated, 2);
}

#[test]
fn l5_of_9000_entries_the_newest_8192_stay_and_a_chatty_dn_evicts_no_quiet_one() {
    let tree = new();
    for i in 0..900 {
        say(&tree, &dn("quiet"), &format!("q{i}"));
    }
    tree.set_quota(&dn("chatty"), Quota { entries: 8192, bytes: 8 << 20 });
    for i in 0..9000 {
        say(&tree, &dn("chatty"), &format!("c{i}"));
    }
    let chatty = all(&tree, Query::all(dn("chatty")));
    assert_eq!(chatty.len(), 8192);
    assert_eq!((chatty[0].as_str(), chatty[8191].as_str()), ("c808", "c8999"));
    assert_eq!(all(&tree, Query::all(dn("quiet"))).len(), 900);
    let stats = tree.stats();
    let of_chatty = stats.dns.iter().find(|s| s.dn == dn("chatty")).unwrap();
    assert_eq!((of_chatty.evicted, of_chatty.entries[Level::Info as usize]), (808, 9000));
}

#[test]
fn l5_bytes_are_limited_per_dn_and_in_all() {
    let limits = Limits { total_bytes: 1 << 20, ..Limits::default() };
    let tree = LogTree::new(limits);
    say(&tree, &dn("small"), "still here");
    for i in 0..20 {
        let name = Dn::new(&format!("d{i}")).unwrap();
        let mut sink = tree.sink(&name, Format::Auto);
        for length in std::iter::repeat_n(1 << 20, 5).chain(std::iter::repeat_n(5000, 100)) {
            sink.push(&vec![b'x'; length]);
            sink.push(b"\n");
        }
    }
    let stats = tree.stats();
    assert!(stats.retained_bytes <= (1 << 20) * 11 / 10, "{}", stats.retained_bytes);
    assert_eq!(all(&tree, Query::all(dn("small"))), ["still here"]);
    for one in &stats.dns {
        assert!(one.retained_entries >= 1, "{one:?}");
    }
}

#[test]
fn l5_beyond_the_most_dns_entries_go_to_the_nearest_ancestor() {
    let tree = LogTree::new(Limits { dns: 2, ..Limits::default() });
    say(&tree, &dn("root"), "r");
    say(&tree, &dn("root.a"), "a");
    say(&tree, &dn("root.a.b.c"), "deep");
    let mut reader = tree.read(Query::all(dn("root.a"))).unwrap();
    let batch = reader.next(10);
    assert_eq!(batch.entries[1].message(), "deep");
    assert_eq!(batch.entries[1].fields, vec![("dn_overflow".into(), "root.a.b.c".into())]);
}

#[test]
fn l6_a_slow_reader_misses_exactly_what_was_evicted_of_its_dns() {
    let tree =
        LogTree::new(Limits { quota: Quota { entries: 10, bytes: 1 << 20 }, ..Limits::default() });
    let mut reader = tree.read(follow(dn("a"), Backlog::None)).unwrap();
    for i in 0..25 {
        say(&tree, &dn("a"), &format!("a{i}"));
        say(&tree, &dn("b"), "other");
    }
    let batch = reader.next(100);
    assert_eq!(batch.missed, 15);
    assert_eq!(batch.entries.first().unwrap().message(), "a15");
    assert_eq!(batch.entries.len(), 10);
    assert_eq!(reader.next(100).missed, 0);
    assert_eq!(tree.stats().missed, 15);
}

#[test]
fn l6_a_reader_resumed_by_cursor_sees_each_entry_once() {
    let tree = new();
    let mut seen = Vec::new();
    let mut cursor = Cursor::default();
    for i in 0..50 {
        say(&tree, spread(i), &format!("{i}"));
        if i % 7 == 0 {
            let mut reader = tree.read(follow(Dn::ALL, Backlog::After(cursor))).unwrap();
            let batch = reader.next(3);
            seen.extend(batch.entries.iter().map(|e| e.message()));
            assert_eq!(batch.missed, 0);
            cursor = batch.cursor;
        }
    }
    let mut reader = tree.read(follow(Dn::ALL, Backlog::After(cursor))).unwrap();
    seen.extend(reader.next(100).entries.iter().map(|e| e.message()));
    assert_eq!(seen, (0..50).map(|i| i.to_string()).collect::<Vec<_>>());
}

/// Spreads test entries over three DNs.
fn spread(i: usize) -> &'static Dn {
    static DNS: std::sync::OnceLock<[Dn; 3]> = std::sync::OnceLock::new();
    &DNS.get_or_init(|| [dn("a"), dn("a.b"), dn("c")])[i % 3]
}

#[test]
fn l6_a_reader_resumed_after_a_flood_misses_exactly_what_was_evicted() {
    let quota = Quota { entries: 10, bytes: 1 << 20 };
    let tree = LogTree::new(Limits { quota, ..Limits::default() });
    for i in 0..20_000 {
        say(&tree, spread(i), &i.to_string());
    }
    let resume = |dn: Dn, cursor| {
        let query = Query { backlog: Backlog::After(Cursor(cursor)), ..Query::all(dn) };
        let batch = tree.read(query).unwrap().next(usize::MAX);
        (batch.missed, batch.entries.len())
    };
    // Further back than the rings remember: the numbers of the whole log have no gaps.
    assert_eq!(resume(Dn::ALL, 0), (19_970, 30));
    assert_eq!(resume(Dn::ALL, 5), (19_965, 30));
    // As far back as they remember.
    assert_eq!(resume(dn("c"), 19_000), (1000 / 3 - 10, 10));
    assert_eq!(resume(dn("a"), 19_000), (667 - 20, 20), "a and a.b");
    assert_eq!(resume(Dn::ALL, 20_000), (0, 0));
}

#[test]
fn l5_a_dn_that_vanished_an_hour_ago_is_emptied_first_and_stays_readable_until_then() {
    let limits = Limits { total_bytes: 256 << 10, ..Limits::default() };
    let mut store = crate::store::Store::new(limits);
    let begin = std::time::Instant::now();
    let hour = Duration::from_secs(3600);
    let entry = |of: &'static str| {
        Arc::new(Record::new(Level::Info, "x".repeat(1000)).into_entry(dn(of), 0, 1000).0)
    };
    let flags = crate::store::Flags::default;
    let kept = |store: &crate::store::Store, of: &'static str| {
        let stats = store.stats();
        stats.iter().find(|s| s.dn == dn(of)).map(|s| s.retained_entries)
    };
    for _ in 0..30 {
        drop(store.append_at(begin, entry("gone"), flags()));
        drop(store.append_at(begin, entry("here"), flags()));
    }
    store.vanished_at(&dn("gone"), begin);
    assert_eq!(kept(&store, "gone"), Some(30), "readable");
    let mut late = begin + hour - Duration::from_secs(1);
    for _ in 0..200 {
        drop(store.append_at(late, entry("chatty"), flags()));
    }
    assert_eq!((kept(&store, "gone"), kept(&store, "here")), (Some(30), Some(30)), "not yet");
    late = begin + hour;
    for _ in 0..60 {
        drop(store.append_at(late, entry("chatty"), flags()));
    }
    assert_eq!((kept(&store, "gone"), kept(&store, "here")), (None, Some(30)));
}

#[test]
fn l5_the_place_of_a_vanished_dn_is_given_away_and_its_readers_are_told_what_they_missed() {
    let mut store = crate::store::Store::new(Limits { dns: 2, ..Limits::default() });
    let begin = std::time::Instant::now();
    let entry =
        |of: &'static str| Arc::new(Record::new(Level::Info, of).into_entry(dn(of), 0, 1).0);
    let flags = crate::store::Flags::default;
    drop(store.append_at(begin, entry("a.gone"), flags()));
    drop(store.append_at(begin, entry("b"), flags()));
    let store = std::sync::Arc::new(parking_lot::Mutex::new(store));
    let open = |of: Dn| Reader::open(store.clone(), follow(of, Backlog::All)).unwrap();
    let (mut of_a, mut of_all) = (open(dn("a")), open(Dn::ALL));
    assert_eq!(of_a.next(10).entries.len(), 1);
    for _ in 0..5 {
        drop(store.lock().append_at(begin, entry("a.gone"), flags()));
    }
    store.lock().vanished_at(&dn("a.gone"), begin);
    let late = begin + Duration::from_secs(3600);
    for _ in 0..3 {
        drop(store.lock().append_at(late, entry("a.new"), flags()));
    }
    let batch = of_a.next(10);
    let seen: Vec<_> = batch.entries.iter().map(|e| (e.dn.clone(), e.dn_seq)).collect();
    assert_eq!(seen, [1, 2, 3].map(|n| (dn("a.new"), n)));
    assert_eq!(batch.missed, 5);
    let batch = of_all.next(10);
    assert_eq!((batch.entries.len(), batch.missed), (4, 6), "b, and a.new three times");
    assert_eq!((of_a.next(10).missed, of_all.next(10).missed), (0, 0));
}

#[test]
fn metrics_12_readers_misses_and_parse_failures_are_counted_by_kind() {
    let quota = Quota { entries: 4, bytes: 1 << 20 };
    let tree = LogTree::new(Limits { quota, ..Limits::default() });
    let mut console = tree.read(follow(Dn::ALL, Backlog::None)).unwrap().named("console");
    let _other = tree.read(follow(Dn::ALL, Backlog::None)).unwrap();
    let _once = tree.read(Query::all(Dn::ALL)).unwrap();
    let mut sink = tree.sink(&dn("a"), Format::Klog);
    (0..10).for_each(|_| sink.push(b"no klog\n"));
    assert_eq!(console.next(10).missed, 6);
    let stats = tree.stats();
    assert_eq!(stats.readers_by_kind, [("console", 1), ("follow", 1), ("once", 1)]);
    assert_eq!((stats.readers, stats.missed), (3, 6));
    assert_eq!(stats.missed_by_kind, [("console", 6)]);
    assert_eq!(stats.dns[0].unparsed_by_format, [("klog", 10)]);
}

#[test]
fn l6_dropping_a_reader_frees_it_at_once() {
    let tree = new();
    let reader = tree.read(follow(Dn::ALL, Backlog::None)).unwrap();
    assert_eq!(tree.stats().readers, 1);
    drop(reader);
    assert_eq!(tree.stats().readers, 0);
}

#[test]
fn l7_filters_hold_for_backlog_and_follow() {
    let tree = new();
    let a = dn("a");
    let write = |tag: &str| {
        tree.append(&a, Record::new(Level::Debug, format!("debug {tag}")));
        tree.append(&a, Record::new(Level::Error, format!("error {tag}")));
        tree.append(&a, Record::raw(format!("raw {tag}")));
        tree.append(&dn("b"), Record::new(Level::Error, format!("error b {tag}")));
    };
    let cases = [
        (Some(Level::Info), Kind::Any, None, vec!["error", "raw"]),
        (Some(Level::Error), Kind::Any, None, vec!["error"]),
        (None, Kind::Raw, None, vec!["raw"]),
        (None, Kind::Leveled, None, vec!["debug", "error"]),
        (None, Kind::Any, Some("rr"), vec!["error"]),
    ];
    write("old");
    for (n, (min_level, kind, contains, words)) in cases.into_iter().enumerate() {
        let tag = format!("new{n}");
        let contains = contains.map(str::to_owned);
        let query =
            Query { min_level, kind, contains, ..follow(a.clone(), Backlog::Last(words.len())) };
        let mut reader = tree.read(query).unwrap();
        let old: Vec<String> = reader.next(100).entries.iter().map(|e| e.message()).collect();
        write(&tag);
        let new: Vec<String> = reader.next(100).entries.iter().map(|e| e.message()).collect();
        let expected: Vec<String> = words.iter().map(|w| format!("{w} {tag}")).collect();
        assert_eq!(new, expected);
        let of_old: Vec<&str> = old.iter().map(|m| m.split(' ').next().unwrap()).collect();
        assert_eq!(of_old, words);
    }
}

#[test]
fn l7_last_n_is_the_last_n_that_match_in_order() {
    let tree = new();
    for i in 0..100 {
        let level = if i % 10 == 0 { Level::Error } else { Level::Info };
        tree.append(spread(i), Record::new(level, format!("{i}")));
    }
    let query =
        Query { backlog: Backlog::Last(3), min_level: Some(Level::Error), ..Query::all(Dn::ALL) };
    assert_eq!(all(&tree, query), ["70", "80", "90"]);
}

#[test]
fn l10_the_panic_hook_gives_up_on_a_busy_log_instead_of_waiting_for_ever() {
    let tree = new();
    let record = || Record::new(Level::Error, "panicked");
    let busy = tree.lock_for_test();
    assert!(!tree.append_or_give_up(&dn("panic"), record()));
    drop(busy);
    assert!(tree.append_or_give_up(&dn("panic"), record()));
    assert_eq!(all(&tree, Query::all(dn("panic"))), ["panicked"]);
}

#[test]
fn l7_impossible_queries_are_refused_in_words() {
    let tree = new();
    let raw = Query { kind: Kind::Raw, min_level: Some(Level::Error), ..Query::all(Dn::ALL) };
    assert_eq!(tree.read(raw).unwrap_err(), QueryError::RawAboveInfo);
    let many = Query { backlog: Backlog::Last(100_001), ..Query::all(Dn::ALL) };
    assert!(tree.read(many).unwrap_err().to_string().contains("100001"));
}

#[tokio::test]
async fn l7_following_an_unknown_dn_waits_for_it_to_appear() {
    let tree = new();
    let mut reader = tree.read(follow(dn("later"), Backlog::All)).unwrap();
    assert!(reader.next(10).entries.is_empty());
    say(&tree, &dn("other"), "no");
    let writer = tree.clone();
    let (batch, ()) = tokio::join!(
        async {
            reader.changed().await;
            reader.next(10)
        },
        async move {
            tokio::task::yield_now().await;
            say(&writer, &dn("later.x"), "yes");
        }
    );
    assert_eq!(batch.entries[0].message(), "yes");
}

#[test]
fn l7_an_unfinished_raw_line_shows_only_at_its_end() {
    let tree = new();
    let mut sink = tree.sink(&dn("a"), Format::Raw);
    sink.push(b"one\ntw");
    assert_eq!(all(&tree, Query::all(dn("a"))), ["one"]);
    drop(sink);
    assert_eq!(all(&tree, Query::all(dn("a"))), ["one", "tw"]);
}

#[test]
fn l9_the_rest_of_a_long_line_is_dropped_and_counted() {
    let tree = new();
    let mut sink = tree.sink(&dn("a"), Format::Raw);
    for _ in 0..100 {
        sink.push(&[b'x'; 1000]);
    }
    sink.push(b"\nnext\n");
    let lines = all(&tree, Query::all(dn("a")));
    assert_eq!(lines[0], format!("{}… (+{} bytes)", "x".repeat(4096), 100_000 - 4096));
    assert_eq!(lines[1], "next");
    assert_eq!(sink.last_line(), "next");
}

#[test]
fn p1_auto_judges_line_by_line_and_a_named_format_counts_what_does_not_fit() {
    let tree = new();
    let text = "{\"level\":\"error\",\"msg\":\"json\"}\nlevel=debug msg=logfmt\nplain\n";
    tree.sink(&dn("auto"), Format::Auto).push(text.as_bytes());
    tree.sink(&dn("named"), Format::Json).push(text.as_bytes());
    let mut reader = tree.read(Query::all(dn("auto"))).unwrap();
    let levels: Vec<_> = reader.next(10).entries.iter().map(|e| e.level).collect();
    assert_eq!(levels, [Some(Level::Error), Some(Level::Debug), None]);
    let stats = tree.stats();
    assert_eq!((stats.dns[0].unparsed, stats.dns[1].unparsed), (0, 1));
}

#[test]
fn l6_of_8_writers_and_4_readers_read_and_missed_is_what_was_written() {
    const EACH: u64 = 2000;
    let tree =
        LogTree::new(Limits { quota: Quota { entries: 300, bytes: 1 << 20 }, ..Limits::default() });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = |mut reader: Reader| {
            let (mut read, mut missed, mut last) = (0u64, 0u64, 0u64);
            loop {
                let over = done.load(Ordering::Acquire);
                let batch = reader.next(64);
                missed += batch.missed;
                for entry in &batch.entries {
                    assert!(entry.seq > last, "{} after {last}", entry.seq);
                    last = entry.seq;
                    read += 1;
                }
                if batch.entries.is_empty() && batch.missed == 0 {
                    if over {
                        return read + missed;
                    }
                    reader.wait(Duration::from_millis(20));
                }
            }
        };
        let open = || tree.read(follow(dn("w"), Backlog::All)).unwrap();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let reader = open();
                scope.spawn(move || read(reader))
            })
            .collect();
        let writers: Vec<_> = (0..8)
            .map(|i| {
                let tree = &tree;
                scope.spawn(move || {
                    let dn = Dn::new(&format!("w.{i}")).unwrap();
                    (0..EACH).for_each(|n| say(tree, &dn, &n.to_string()));
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Release);
        // Readers that sleep see the flag after their wait at the latest.
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 8 * EACH);
        }
    });
}

proptest! {
    #[test]
    fn l4_l9_any_bytes_give_entries_within_the_limits(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        cut in 0usize..2000,
    ) {
        let tree = new();
        let mut sink = tree.sink(&dn("a"), Format::Auto);
        let cut = cut.min(bytes.len());
        sink.push(&bytes[..cut]);
        sink.push(&bytes[cut..]);
        drop(sink);
        let mut reader = tree.read(Query::all(dn("a"))).unwrap();
        let entries = reader.next(usize::MAX).entries;
        let lines = bytes.split(|b| *b == b'\n').filter(|l| !l.iter().all(|b| *b == b'\r'));
        prop_assert_eq!(entries.len(), lines.count());
        for entry in entries {
            let text = to_text(&entry);
            prop_assert!(text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
            to_concise(&entry, 80);
        }
    }
}
