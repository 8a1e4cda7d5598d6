//! Parameters of the log page, its JSON and its stream.
//!
//! Purpose: one grammar for all three (rule W3); a wrong value is a [`Problem`] that names the
//! allowed ones. Pure. Must not know: how logs are read or shown.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use logtree::{Dn, Kind, Level};
use serde::Deserialize;

use crate::problem::Problem;
pub(crate) use crate::text::form_urlencode;

/// Entries shown where the request names no number.
pub(crate) const DEFAULT_N: usize = 200;
/// Most entries of one answer.
pub(crate) const MAX_N: usize = 2000;
/// Longest text to look for, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 256;

/// Longest wait for a first entry, in seconds; less than what proxies cut.
const MAX_WAIT_S: u64 = 25;

/// The parameters as they came.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct RawLogQuery {
    dn: Option<String>,
    children: Option<String>,
    level: Option<String>,
    kind: Option<String>,
    text: Option<String>,
    n: Option<String>,
    follow: Option<String>,
    before: Option<String>,
    after: Option<String>,
    since: Option<String>,
    until: Option<String>,
    wait: Option<String>,
}

/// Which entries are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogQuery {
    /// Whose; [`Dn::ALL`] for everybody's.
    pub(crate) dn: Dn,
    /// And those of the services below.
    pub(crate) children: bool,
    /// Least level.
    pub(crate) level: Option<Level>,
    /// Lines with a level, without, or both.
    pub(crate) kind: Kind,
    /// Literal text in the message.
    pub(crate) text: Option<String>,
    /// Most entries.
    pub(crate) n: usize,
    /// And new ones as they come.
    pub(crate) follow: bool,
    /// Which part of the log.
    pub(crate) page: Page,
    /// Said at or after this time.
    pub(crate) since: Option<Timestamp>,
    /// Said at or before this time.
    pub(crate) until: Option<Timestamp>,
    /// How long to wait for the first entry where there is none yet.
    pub(crate) wait: Duration,
}

/// Which part of the log is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    /// The newest entries.
    Newest,
    /// The newest of those before this position.
    Before(u64),
    /// The oldest of those after this position.
    After(u64),
}

impl LogQuery {
    /// The newest entries of a DN and what is below it.
    pub(crate) fn newest(dn: Dn, n: usize) -> LogQuery {
        LogQuery {
            dn,
            children: true,
            level: None,
            kind: Kind::Any,
            text: None,
            n,
            follow: false,
            page: Page::Newest,
            since: None,
            until: None,
            wait: Duration::ZERO,
        }
    }

    /// Whether this time is asked for.
    pub(crate) fn covers(&self, wall_ns: i64) -> bool {
        let at = i128::from(wall_ns);
        self.since.is_none_or(|t| t.as_nanosecond() <= at)
            && self.until.is_none_or(|t| at <= t.as_nanosecond())
    }

    /// Checks the parameters; an empty one counts as absent, as forms send it.
    pub(crate) fn parse(raw: &RawLogQuery) -> Result<LogQuery, Problem> {
        let page = match (given(&raw.before), given(&raw.after)) {
            (None, None) => Page::Newest,
            (Some(before), None) => Page::Before(cursor("before", before)?),
            (None, Some(after)) => Page::After(cursor("after", after)?),
            (Some(_), Some(_)) => {
                return Err(Problem::bad("both before and after are given", "Give one of them."));
            }
        };
        let query = LogQuery {
            dn: dn(given(&raw.dn).unwrap_or(""))?,
            children: switch("children", given(&raw.children), true)?,
            level: given(&raw.level).map(level).transpose()?,
            kind: given(&raw.kind).map_or(Ok(Kind::Any), kind)?,
            text: given(&raw.text).map(text).transpose()?,
            n: given(&raw.n).map_or(Ok(DEFAULT_N), number)?,
            follow: switch("follow", given(&raw.follow), false)?,
            page,
            since: given(&raw.since).map(|t| moment("since", t)).transpose()?,
            until: given(&raw.until).map(|t| moment("until", t)).transpose()?,
            wait: given(&raw.wait).map_or(Ok(Duration::ZERO), wait)?,
        };
        if query.follow && query.until.is_some() {
            return Err(Problem::bad(
                "follow and until exclude each other: nothing new is older than a time gone by",
                "Give one of them.",
            ));
        }
        if !query.wait.is_zero() && !matches!(page, Page::After(_)) {
            return Err(Problem::bad("wait needs a position to wait at", "Give after too."));
        }
        if query.kind == Kind::Raw && query.level > Some(Level::Info) {
            return Err(Problem::bad(
                "raw lines have no level above info, so nothing can match",
                "Choose a level up to info, or another kind.",
            ));
        }
        Ok(query)
    }

    /// The same query as parameters of an address, without its page and number.
    pub(crate) fn filter_parameters(&self) -> String {
        let mut out = form_urlencode("dn", self.dn.as_str());
        if !self.children {
            out.push_str("&children=off");
        }
        if let Some(level) = self.level {
            out.push_str(&format!("&level={level}"));
        }
        if self.kind != Kind::Any {
            out.push_str(&format!("&kind={}", kind_word(self.kind)));
        }
        if let Some(text) = &self.text {
            out.push('&');
            out.push_str(&form_urlencode("text", text));
        }
        for (name, time) in [("since", self.since), ("until", self.until)] {
            if let Some(time) = time {
                out.push('&');
                out.push_str(&form_urlencode(name, &time.to_string()));
            }
        }
        out
    }
}

/// The word that stands for a kind.
pub(crate) fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Any => "any",
        Kind::Leveled => "leveled",
        Kind::Raw => "raw",
    }
}

/// A DN from a request.
pub(crate) fn dn(text: &str) -> Result<Dn, Problem> {
    Dn::new(text)
        .map_err(|e| Problem::bad(e.to_string(), "A DN looks like root.kubernetes.worker.kubelet."))
}

/// `on` or `off`, also as `1` and `0`.
pub(crate) fn switch(name: &str, value: Option<&str>, default: bool) -> Result<bool, Problem> {
    match value {
        None => Ok(default),
        Some("on" | "1" | "true") => Ok(true),
        Some("off" | "0" | "false") => Ok(false),
        Some(other) => Err(Problem::bad(
            format!("{name}={} is not a switch", shown(other)),
            "Allowed are on and off.",
        )),
    }
}

fn given(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|v| !v.is_empty())
}

fn shown(value: &str) -> String {
    crate::text::clipped(value, 64).into_owned()
}

pub(crate) fn level(value: &str) -> Result<Level, Problem> {
    value.parse().map_err(|_| {
        Problem::bad(
            format!("there is no level {}", shown(value)),
            "Allowed are trace, debug, info, warning, error and critical.",
        )
    })
}

/// A time, in full or as a form sends it, which is UTC here.
fn moment(name: &str, value: &str) -> Result<Timestamp, Problem> {
    let civil = || value.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    let time = value.parse().ok().or_else(|| civil().map(|z| z.timestamp()));
    time.ok_or_else(|| {
        Problem::bad(
            format!("{name}={} is not a time", shown(value)),
            "Times look like 2026-11-21T17:20:00Z.",
        )
    })
}

fn wait(value: &str) -> Result<Duration, Problem> {
    let seconds = value.parse().ok().filter(|s| *s <= MAX_WAIT_S);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let hint = format!("Allowed are 0 to {MAX_WAIT_S} seconds.");
        Problem::bad(format!("wait={} is not possible", shown(value)), hint)
    })
}

fn kind(value: &str) -> Result<Kind, Problem> {
    [Kind::Any, Kind::Leveled, Kind::Raw].into_iter().find(|k| kind_word(*k) == value).ok_or_else(
        || {
            Problem::bad(
                format!("there is no kind {}", shown(value)),
                "Allowed are any, leveled and raw.",
            )
        },
    )
}

fn text(value: &str) -> Result<String, Problem> {
    if value.len() > MAX_TEXT_BYTES {
        return Err(Problem::bad(
            format!("the text to look for has {} bytes", value.len()),
            format!("At most {MAX_TEXT_BYTES} are allowed."),
        ));
    }
    Ok(value.to_owned())
}

fn number(value: &str) -> Result<usize, Problem> {
    value.parse().ok().filter(|n| (1..=MAX_N).contains(n)).ok_or_else(|| {
        Problem::bad(
            format!("n={} is not possible", shown(value)),
            format!("Allowed are 1 to {MAX_N}."),
        )
    })
}

fn cursor(name: &str, value: &str) -> Result<u64, Problem> {
    value.parse().map_err(|_| {
        Problem::bad(
            format!("{name}={} is not a position in the log", shown(value)),
            "Use the cursor of an earlier answer of this boot.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<LogQuery, Problem> {
        let mut map = serde_json::Map::new();
        for (k, v) in pairs {
            map.insert((*k).to_owned(), (*v).into());
        }
        LogQuery::parse(&serde_json::from_value(map.into()).unwrap())
    }

    #[test]
    fn w3_an_empty_form_asks_for_the_newest_200_of_all() {
        let empty = parse(&[("dn", ""), ("level", ""), ("text", "")]).unwrap();
        assert_eq!(empty, LogQuery::newest(Dn::ALL, 200));
    }

    #[test]
    fn w3_every_parameter_is_understood() {
        let query = parse(&[
            ("dn", "root.a"),
            ("children", "off"),
            ("level", "warning"),
            ("kind", "leveled"),
            ("text", "a&b=<c>"),
            ("n", "2000"),
            ("follow", "on"),
            ("before", "17"),
        ])
        .unwrap();
        assert_eq!(query.page, Page::Before(17));
        assert!(query.follow && !query.children);
        assert_eq!(
            query.filter_parameters(),
            "dn=root.a&children=off&level=warning&kind=leveled&text=a%26b%3D%3Cc%3E"
        );
    }

    #[test]
    fn w16_wrong_values_are_answered_with_the_allowed_ones() {
        for (pair, hint) in [
            (("n", "1000000000"), "1 to 2000"),
            (("n", "0"), "1 to 2000"),
            (("n", "-1"), "1 to 2000"),
            (("level", "loud"), "trace, debug"),
            (("kind", "cooked"), "leveled"),
            (("dn", "Root"), "root.kubernetes"),
            (("children", "maybe"), "on and off"),
            (("after", "x"), "cursor"),
            (("text", &"x".repeat(257)), "256"),
        ] {
            let problem = parse(&[pair]).unwrap_err();
            assert_eq!(problem.status, 400);
            assert!(problem.hint.contains(hint), "{pair:?}: {problem:?}");
        }
        assert!(parse(&[("before", "1"), ("after", "2")]).is_err());
        assert!(parse(&[("kind", "raw"), ("level", "error")]).is_err());
        assert!(parse(&[("kind", "raw"), ("level", "info")]).is_ok());
    }
}
