//! How boots end: the list in `/data/node/outcomes.json` (rule B10) and the marker lines (rule B9). Pure.
//!
//! Invariants: each boot appends one record when the data disk is up and completes it on its way down; a
//! record that was never completed reads `unclean`. Marker lines are stable: tests and people parse them.
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many boots are remembered.
pub const KEPT: usize = 16;

/// Longest text of one record in bytes; the first lines of a failure say what it is.
const MAX_TEXT_BYTES: usize = 2048;

/// Largest file that is read: 16 records of at most [`MAX_TEXT_BYTES`], escaped, and a little more.
pub const MAX_BYTES: usize = 256 << 10;

/// One boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRecord {
    /// Which boot.
    pub boot_id: String,
    /// When it began, in milliseconds since 1970.
    pub began_ms: i64,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// `reboot`, `poweroff`, `halt`; `unclean` until then.
    pub outcome: String,
    /// Why, as a word: `error` and `panic` for fatal ends, else who asked.
    pub reason: String,
    /// The same in words, as the node said it when it went down; empty if it could not.
    #[serde(default)]
    pub text: String,
    /// Whether everything was stopped and all data unmounted.
    pub clean: bool,
}

impl BootRecord {
    /// Whether this boot ended by a failure of its own.
    pub fn failed(&self) -> bool {
        matches!(self.reason.as_str(), "error" | "panic")
    }
}

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Format of the file.
    pub version: u32,
    /// Oldest first.
    pub boots: Vec<BootRecord>,
}

impl Outcomes {
    /// Reads the file; what cannot be read is an empty list and said by `None`.
    pub fn parse(bytes: &[u8]) -> Option<Outcomes> {
        serde_json::from_slice(bytes).ok().filter(|o: &Outcomes| o.version == 1)
    }

    /// The file's text.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Adds this boot, incomplete, and forgets the oldest.
    pub fn begin(&mut self, boot_id: &str, now_ms: i64) {
        self.version = 1;
        self.boots.push(BootRecord {
            boot_id: boot_id.to_owned(),
            began_ms: now_ms,
            ended_ms: None,
            outcome: "unclean".to_owned(),
            reason: "unknown".to_owned(),
            text: String::new(),
            clean: false,
        });
        let surplus = self.boots.len().saturating_sub(KEPT);
        self.boots.drain(..surplus);
    }

    /// Notes why this boot is about to end. Should the way down hang or the power go, the record still
    /// reads `unclean`, but says why.
    pub fn doom(&mut self, boot_id: &str, reason: &str, text: &str) {
        if let Some(boot) = self.boots.iter_mut().rev().find(|b| b.boot_id == boot_id) {
            boot.reason = reason.to_owned();
            let cut =
                (0..=MAX_TEXT_BYTES.min(text.len())).rev().find(|i| text.is_char_boundary(*i));
            boot.text = text.get(..cut.unwrap_or(0)).unwrap_or_default().to_owned();
        }
    }

    /// Completes this boot's record.
    pub fn complete(&mut self, boot_id: &str, end: &Ending, now_ms: i64) {
        if let Some(boot) = self.boots.iter_mut().rev().find(|b| b.boot_id == boot_id) {
            boot.ended_ms = Some(now_ms);
            boot.outcome = end.outcome.clone();
            boot.reason = end.reason.clone();
            boot.clean = end.clean;
        }
    }

    /// The boot before this one.
    pub fn previous(&self, boot_id: &str) -> Option<&BootRecord> {
        self.boots.iter().rev().find(|b| b.boot_id != boot_id)
    }
}

/// How a boot ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Its word.
    pub outcome: String,
    /// Why, as a word.
    pub reason: String,
    /// Whether nothing was left running or mounted.
    pub clean: bool,
}

/// `HAMLET phase=<name> uptime=<s>`: bring-up has reached a phase.
pub fn phase_marker(name: &str, uptime: Duration) -> String {
    format!("HAMLET phase={} uptime={:.3}", word(name), uptime.as_secs_f64())
}

/// `HAMLET ready dashboard=<url>`: people can look now.
pub fn ready_marker(url: &str) -> String {
    format!("HAMLET ready dashboard={}", word(url))
}

/// `HAMLET outcome=<…> reason=<…> clean=<bool>`: `outcome=success` when the boot has finished, any other
/// word as the last line before the machine ends.
pub fn outcome_marker(end: &Ending) -> String {
    format!(
        "HAMLET outcome={} reason={} clean={}",
        word(&end.outcome),
        word(&end.reason),
        end.clean
    )
}

/// `HAMLET previous=<…> reason=<…> clean=<bool>`: how the boot before this one ended.
pub fn previous_marker(boot: &BootRecord) -> String {
    format!(
        "HAMLET previous={} reason={} clean={}",
        word(&boot.outcome),
        word(&boot.reason),
        boot.clean
    )
}

/// A value without white space or control characters, so that a marker stays one line of words.
fn word(text: &str) -> String {
    let plain = |c: char| if c.is_whitespace() || c.is_control() { '-' } else { c };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending() -> Ending {
        Ending { outcome: "poweroff".into(), reason: "power-button".into(), clean: true }
    }

    #[test]
    fn b10_a_boot_that_nobody_completed_reads_unclean() {
        let mut o = Outcomes::default();
        o.begin("a", 1);
        o.begin("b", 2);
        o.complete("b", &ending(), 3);
        let again = Outcomes::parse(&o.to_json()).unwrap();
        assert_eq!(again, o);
        assert_eq!((o.boots[0].outcome.as_str(), o.boots[0].clean), ("unclean", false));
        assert_eq!((o.boots[1].outcome.as_str(), o.boots[1].clean), ("poweroff", true));
        assert_eq!(o.previous("b").unwrap().boot_id, "a");
        assert_eq!(o.previous("c").unwrap().boot_id, "b");
    }

    #[test]
    fn b10_the_reason_is_kept_even_where_the_way_down_hangs() {
        let mut o = Outcomes::default();
        o.begin("a", 1);
        o.doom("a", "error", "root.storage: the disk is gone");
        let again = Outcomes::parse(&o.to_json()).unwrap();
        let boot = again.previous("b").unwrap();
        assert_eq!((boot.outcome.as_str(), boot.reason.as_str()), ("unclean", "error"));
        assert_eq!((boot.text.as_str(), boot.failed()), ("root.storage: the disk is gone", true));
        o.complete("a", &ending(), 3);
        assert!(!o.boots[0].failed());
        // A text that nobody bounded does not make the file too long to be read.
        for n in 0..20 {
            o.begin(&n.to_string(), n);
            o.doom(&n.to_string(), "panic", &"\u{1}ü".repeat(10_000));
        }
        assert!(o.to_json().len() < MAX_BYTES);
        // As it was written before there was a text.
        let old = br#"{"version":1,"boots":[{"boot_id":"a","began_ms":1,"ended_ms":null,
            "outcome":"unclean","reason":"unknown","clean":false}]}"#;
        assert_eq!(Outcomes::parse(old).unwrap().boots[0].text, "");
    }

    #[test]
    fn b10_only_the_last_sixteen_boots_are_kept() {
        let mut o = Outcomes::default();
        for n in 0..20 {
            o.begin(&n.to_string(), n);
        }
        assert_eq!(o.boots.len(), KEPT);
        assert_eq!(o.boots[0].boot_id, "4");
        assert!(o.to_json().len() < MAX_BYTES);
    }

    #[test]
    fn b10_a_file_that_cannot_be_read_is_said_so_and_is_no_list() {
        assert_eq!(Outcomes::parse(b""), None);
        assert_eq!(Outcomes::parse(b"{\"version\": 2, \"boots\": []}"), None);
    }

    #[test]
    fn b9_markers_are_one_line_of_words() {
        let uptime = Duration::from_millis(3042);
        assert_eq!(phase_marker("node-ready", uptime), "HAMLET phase=node-ready uptime=3.042");
        assert_eq!(ready_marker("http://x:1/"), "HAMLET ready dashboard=http://x:1/");
        let odd = Ending { reason: "a b\nc".into(), ..ending() };
        assert_eq!(outcome_marker(&odd), "HAMLET outcome=poweroff reason=a-b-c clean=true");
    }
}
