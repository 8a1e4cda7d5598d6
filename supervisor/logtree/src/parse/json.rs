//! JSON lines of etcd (zap), Kubernetes, containerd and runc (logrus) (rule P3).

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::{level_word, rfc3339_ns};
use crate::{Level, Record};

/// Numbers from here on are milliseconds, below seconds: 10^11 s is the year 5138.
const MILLIS_FROM: f64 = 1e11;

/// An object's pairs in order; of equal keys the last one's value counts.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Pairs, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs: Vec<(String, Value)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    match pairs.iter_mut().find(|(k, _)| *k == key) {
                        Some((_, old)) => *old = value,
                        None => pairs.push((key, value)),
                    }
                }
                Ok(Pairs(pairs))
            }
        }
        d.deserialize_map(InOrder)
    }
}

pub(super) fn parse(text: &str) -> Option<Record> {
    let Pairs(pairs) = serde_json::from_str(text).ok()?;
    let mut record = Record::default();
    let mut message = None;
    let mut level = None;
    let mut verbosity = None;
    for (key, value) in pairs {
        match (key.as_str(), value) {
            ("level", Value::String(word)) => level = Some(level_word(&word)),
            ("ts" | "time", value) if record.wall_ns.is_none() => match stamp(&value) {
                Some(ns) => record.wall_ns = Some(ns),
                None => record.fields.push((key, plain(value))),
            },
            ("caller", Value::String(place)) => record.source = Some(place),
            ("msg", Value::String(text)) => message = Some(text),
            ("v", Value::Number(v)) => verbosity = v.as_f64(),
            (_, value) => {
                // Kubernetes marks errors by `err` alone.
                if key == "err" && level.is_none() {
                    level = Some(Level::Error);
                }
                record.fields.push((key, plain(value)));
            }
        }
    }
    // Without a message it is some JSON, but no log line.
    record.message = message?;
    record.level = Some(match (level, verbosity) {
        (Some(level), _) => level,
        (None, Some(v)) if v >= 6.0 => Level::Trace,
        (None, Some(v)) if v >= 4.0 => Level::Debug,
        (None, _) => Level::Info,
    });
    Some(record)
}

fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

fn stamp(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => rfc3339_ns(&zone_with_colon(text)),
        Value::Number(number) => {
            let n = number.as_f64()?;
            let ns = if n >= MILLIS_FROM { n * 1e6 } else { n * 1e9 };
            // Out of range or not a number: not a time.
            (0.0..9.2e18).contains(&ns).then_some(ns as i64)
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// zap's ISO 8601 writes the zone as `+0000`, RFC 3339 wants `+00:00`.
fn zone_with_colon(text: &str) -> String {
    let split = text.len().checked_sub(5).and_then(|at| text.split_at_checked(at));
    match split {
        Some((head, zone))
            if zone.starts_with(['+', '-']) && zone[1..].bytes().all(|b| b.is_ascii_digit()) =>
        {
            format!("{head}{}:{}", &zone[..3], &zone[3..])
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn p3_an_etcd_line_is_read() {
        let r = parse(
            r#"{"level":"warn","ts":"2026-11-02T17:20:06.921395Z","caller":"etcdserver/server.go:1","msg":"slow","took":"1.2s","n":3}"#,
        )
        .unwrap();
        assert_eq!(r.level, Some(Level::Warning));
        assert_eq!(r.source.as_deref(), Some("etcdserver/server.go:1"));
        assert_eq!(r.message, "slow");
        assert_eq!(r.fields, vec![("took".into(), "1.2s".into()), ("n".into(), "3".into())]);
        assert_eq!(r.wall_ns, rfc3339_ns("2026-11-02T17:20:06.921395Z"));
        let zoned = parse(r#"{"level":"info","ts":"2026-11-02T18:20:06.921+0100","msg":"m"}"#);
        assert_eq!(zoned.unwrap().wall_ns, rfc3339_ns("2026-11-02T17:20:06.921Z"));
    }

    #[test]
    fn p3_a_kubernetes_line_is_read() {
        let r = parse(r#"{"ts":1762104006921.395,"caller":"a.go:1","msg":"m","v":4}"#).unwrap();
        assert_eq!(r.level, Some(Level::Debug));
        assert_eq!(r.wall_ns.unwrap() / 1_000_000, 1_762_104_006_921);
        let v = |v: u32| parse(&format!(r#"{{"ts":1,"msg":"m","v":{v}}}"#)).unwrap().level;
        assert_eq!((v(2), v(6)), (Some(Level::Info), Some(Level::Trace)));
        let r = parse(r#"{"ts":1762104006.5,"msg":"m","err":"bad"}"#).unwrap();
        assert_eq!(r.level, Some(Level::Error));
        assert_eq!(r.wall_ns, Some(1_762_104_006_500_000_000));
    }

    #[test]
    fn p3_words_for_levels_follow_the_table() {
        for (word, level) in [
            ("dpanic", Level::Critical),
            ("panic", Level::Critical),
            ("fatal", Level::Critical),
            ("error", Level::Error),
            ("warning", Level::Warning),
            ("debug", Level::Debug),
            ("trace", Level::Trace),
            ("loud", Level::Info),
        ] {
            let r = parse(&format!(r#"{{"time":"x","level":"{word}","msg":"m"}}"#)).unwrap();
            assert_eq!(r.level, Some(level), "{word}");
        }
    }

    #[test]
    fn p3_of_duplicate_keys_the_last_wins() {
        let r = parse(r#"{"msg":"a","k":1,"msg":"b","k":2}"#).unwrap();
        assert_eq!((r.message.as_str(), r.fields), ("b", vec![("k".into(), "2".into())]));
    }

    #[test]
    fn p3_other_json_is_no_log_line() {
        for line in ["{", "{}", r#"{"a":1}"#, "[1]", r#"{"msg":1}"#, r#"{"msg":"x"} tail"#] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn p3_no_line_makes_the_parser_panic(line in r#"\{("(msg|ts|level|v)":("[^"]{0,9}"|[0-9e.+-]{1,9}),?){0,4}\}?"#) {
            parse(&line);
        }
    }
}
