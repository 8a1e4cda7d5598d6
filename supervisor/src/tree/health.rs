//! How well a node and the whole tree are (rule H2).
//!
//! Pure functions over facts; the tree calls them when it makes a snapshot.

use logtree::Dn;

use crate::{Condition, NodeSnapshot, Severity, State, Verdict};

/// Deaths in 10 minutes from which a node that is down counts as failing.
pub(crate) const DEATHS_UNTIL_FAILING: u32 = 3;

/// What the health of one node depends on.
#[derive(Debug, Clone)]
pub(crate) struct Facts<'a> {
    pub(crate) state: State,
    /// Not running, but to be started again.
    pub(crate) restarting: bool,
    /// Asked to stop and not ended yet.
    pub(crate) stopping: bool,
    pub(crate) stuck: bool,
    /// Start deadline passed without healthy().
    pub(crate) overdue: bool,
    pub(crate) never_restart: bool,
    pub(crate) deaths_10min: u32,
    pub(crate) death: Option<&'a str>,
    pub(crate) note: &'a str,
    pub(crate) conditions: &'a [Condition],
}

/// Health of one node and, unless it is ok, the reason.
pub(crate) fn own(f: &Facts<'_>) -> (Verdict, String) {
    let death = || f.death.map(|t| t.lines().next().unwrap_or("")).unwrap_or("died").to_owned();
    if f.stuck {
        return (Verdict::Failing, "stuck: asked to stop, aborted, still running".to_owned());
    }
    if f.state == State::Dead && f.never_restart && !f.restarting {
        return (Verdict::Failing, death());
    }
    if f.restarting || f.state == State::Dead {
        let verdict = match f.deaths_10min >= DEATHS_UNTIL_FAILING {
            true => Verdict::Failing,
            false => Verdict::Restarting,
        };
        let reason = match f.state {
            State::Dead => death(),
            State::New | State::Healthy | State::Done | State::Cancelled => {
                "waits for its unit to restart".to_owned()
            }
        };
        return (verdict, reason);
    }
    if f.stopping {
        return (Verdict::Restarting, "stopping".to_owned());
    }
    let base = match f.state {
        State::New if f.overdue => {
            (Verdict::Degraded, with_note("has not become healthy in time", f.note))
        }
        State::New => (Verdict::Starting, with_note("starting", f.note)),
        State::Cancelled => (Verdict::Degraded, "stopped".to_owned()),
        State::Healthy | State::Done | State::Dead => (Verdict::Ok, String::new()),
    };
    worse(base, from_conditions(f.conditions))
}

fn with_note(text: &str, note: &str) -> String {
    match note {
        "" => text.to_owned(),
        note => format!("{text}: {note}"),
    }
}

fn worse(a: (Verdict, String), b: (Verdict, String)) -> (Verdict, String) {
    if b.0 > a.0 { b } else { a }
}

fn from_conditions(conditions: &[Condition]) -> (Verdict, String) {
    let worst = conditions.iter().max_by_key(|c| c.severity);
    let Some(condition) = worst else { return (Verdict::Ok, String::new()) };
    let verdict = match condition.severity {
        Severity::Degraded => Verdict::Degraded,
        Severity::Unhealthy => Verdict::Failing,
    };
    (verdict, format!("{}: {}", condition.kind, condition.message))
}

/// The worst health over all nodes that count, with the DN and reason that decided.
///
/// Nodes that are not critical count as degraded at most. Of equally bad nodes the deepest one
/// decides, since its ancestors usually only wait for it.
pub(crate) fn rollup<'a>(
    nodes: impl Iterator<Item = &'a NodeSnapshot>,
) -> (Verdict, Option<Dn>, String) {
    let mut worst: Option<(Verdict, &NodeSnapshot)> = None;
    for node in nodes {
        let verdict = match node.critical {
            true => node.health,
            false => node.health.min(Verdict::Degraded),
        };
        let rank = (verdict, node.dn.depth());
        if worst.is_none_or(|(v, n)| rank > (v, n.dn.depth())) {
            worst = Some((verdict, node));
        }
    }
    match worst {
        Some((verdict, node)) if verdict > Verdict::Ok => {
            (verdict, Some(node.dn.clone()), node.reason.clone())
        }
        _ => (Verdict::Ok, None, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(state: State) -> Facts<'static> {
        Facts {
            state,
            restarting: false,
            stopping: false,
            stuck: false,
            overdue: false,
            never_restart: false,
            deaths_10min: 0,
            death: None,
            note: "",
            conditions: &[],
        }
    }

    #[test]
    fn h2_own_health_follows_the_table() {
        let degraded = [Condition::degraded("Slow", "disk")];
        let unhealthy = [degraded[0].clone(), Condition::unhealthy("Lost", "peer")];
        let base = facts(State::New);
        let rows = [
            (Facts { ..base.clone() }, Verdict::Starting),
            (Facts { overdue: true, ..base.clone() }, Verdict::Degraded),
            (facts(State::Healthy), Verdict::Ok),
            (facts(State::Done), Verdict::Ok),
            (Facts { conditions: &degraded, ..facts(State::Healthy) }, Verdict::Degraded),
            (Facts { conditions: &unhealthy, ..facts(State::Done) }, Verdict::Failing),
            (Facts { conditions: &unhealthy, ..base.clone() }, Verdict::Failing),
            (Facts { restarting: true, ..facts(State::Dead) }, Verdict::Restarting),
            (Facts { restarting: true, ..facts(State::Cancelled) }, Verdict::Restarting),
            (Facts { restarting: true, deaths_10min: 3, ..facts(State::Dead) }, Verdict::Failing),
            (Facts { never_restart: true, ..facts(State::Dead) }, Verdict::Failing),
            (Facts { stuck: true, ..facts(State::Healthy) }, Verdict::Failing),
            (Facts { stopping: true, ..facts(State::Healthy) }, Verdict::Restarting),
        ];
        for (facts, verdict) in rows {
            assert_eq!(own(&facts).0, verdict, "{facts:?}");
            assert_eq!(own(&facts).1.is_empty(), verdict == Verdict::Ok, "{facts:?}");
        }
    }
}
