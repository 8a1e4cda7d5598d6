//! Records of `/dev/kmsg`: `prio,seq,usec,flags[,…];text`, then lines ` KEY=value` (rule P6).

use crate::{Level, Record};

/// One record of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kmsg {
    /// The kernel's own number: gaps are lost records.
    pub seq: u64,
    /// Microseconds since boot.
    pub usec: u64,
    /// Level, message and fields; its time is not set, since only the caller knows when boot was.
    pub record: Record,
}

/// Reads one record as `read(2)` gives it; `None` if it is no record.
pub fn parse_kmsg(bytes: &[u8]) -> Option<Kmsg> {
    let text = String::from_utf8_lossy(bytes);
    let (header, body) = text.split_once(';')?;
    let mut parts = header.split(',');
    let priority: u32 = parts.next()?.parse().ok()?;
    let seq = parts.next()?.parse().ok()?;
    let usec = parts.next()?.parse().ok()?;
    let level = match priority & 7 {
        0..=2 => Level::Critical,
        3 => Level::Error,
        4 => Level::Warning,
        5 | 6 => Level::Info,
        _ => Level::Debug,
    };
    let mut fields = Vec::new();
    let facility = priority >> 3;
    if facility != 0 {
        fields.push(("facility".to_owned(), facility.to_string()));
    }
    let mut lines = body.lines();
    let message = unescape(lines.next().unwrap_or(""));
    for line in lines {
        if let Some((key, value)) = line.strip_prefix(' ').and_then(|l| l.split_once('=')) {
            fields.push((key.to_owned(), unescape(value)));
        }
    }
    let record = Record { level: Some(level), wall_ns: None, source: None, message, fields };
    Some(Kmsg { seq, usec, record })
}

/// `\xNN` decoded; bytes that are not UTF-8 become U+FFFD.
fn unescape(text: &str) -> String {
    if !text.contains("\\x") {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = match &bytes[at..] {
            [b'\\', b'x', high, low, ..] => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match hex {
            Some((high, low)) => {
                out.push(high * 16 + low);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn p6_a_record_gives_level_number_time_text_and_fields() {
        let k = parse_kmsg(
            b"6,339,5140900,-,caller=T1;NET: Registered \\xc3\\xa9\n SUBSYSTEM=net\n DEVICE=+x\n",
        )
        .unwrap();
        assert_eq!((k.seq, k.usec), (339, 5_140_900));
        assert_eq!(k.record.level, Some(Level::Info));
        assert_eq!(k.record.message, "NET: Registered é");
        assert_eq!(
            k.record.fields,
            vec![("SUBSYSTEM".into(), "net".into()), ("DEVICE".into(), "+x".into())]
        );
    }

    #[test]
    fn p6_priorities_follow_the_table_and_user_records_name_their_facility() {
        let of = |prio: u32| parse_kmsg(format!("{prio},1,2,-;x").as_bytes()).unwrap().record;
        for (prio, level) in [
            (0, Level::Critical),
            (2, Level::Critical),
            (3, Level::Error),
            (4, Level::Warning),
            (5, Level::Info),
            (7, Level::Debug),
        ] {
            assert_eq!(of(prio).level, Some(level));
            assert!(of(prio).fields.is_empty());
        }
        assert_eq!(of(12).fields, vec![("facility".into(), "1".into())]);
    }

    proptest! {
        #[test]
        fn p6_no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            parse_kmsg(&bytes);
            let mut with_header = b"6,1,2,-;".to_vec();
            with_header.extend(&bytes);
            prop_assert!(parse_kmsg(&with_header).is_some());
        }
    }
}
