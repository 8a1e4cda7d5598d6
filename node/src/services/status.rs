//! Runnable `status`: how the node does, in a few lines on every console, whenever that changes.
//!
//! For whoever stands before the machine: what it is called, where its dashboard is, how it does, who is
//! to blame, what is being waited for, and why the last boot failed if it did. It is an entry of the log
//! like any other, so it reaches every console that takes lines, a serial one too, and whoever looks at
//! the log later; a picture drawn in place would only suit a screen. Invariants: says nothing that was
//! said already, and at most one page in [`REST`]. Must not know: consoles, what services do.
use std::time::{Duration, Instant};

use slog::{info, warn};
use supervisor::prelude::*;
use supervisor::{NodeSnapshot, Phase, Snapshot, Verdict};
use tokio::sync::watch;

use crate::phases::Phases;

/// Changes that come in a burst are said together.
const SETTLE: Duration = Duration::from_secs(1);

/// Least time between two pages: a service that dies and comes back shall not fill the console.
const REST: Duration = Duration::from_secs(10);

/// Services named on one page; the dashboard has the rest.
const NAMED: usize = 5;

/// What does not change while the node runs.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Name of the node.
    pub node_name: String,
    /// Address of the dashboard, without its token: a console may be seen by many.
    pub dashboard: String,
    /// How the boot before this one ended, if that was by a failure.
    pub last_failure: Option<String>,
}

/// The service.
pub fn service(
    facts: Facts,
    phases: Phases,
    tree: watch::Receiver<std::sync::Arc<Snapshot>>,
) -> Service {
    let mut service = Service::new(Name::from_static("status"), move |ctx| {
        run(ctx, facts.clone(), phases.clone(), tree.clone())
    });
    service.policy.critical = false;
    service
}

async fn run(
    ctx: Context,
    facts: Facts,
    phases: Phases,
    mut tree: watch::Receiver<std::sync::Arc<Snapshot>>,
) -> Outcome {
    let running = ctx.healthy();
    let stop = running.stop();
    let began = Instant::now();
    let mut board = Board::default();
    stop.race(tokio::time::sleep(SETTLE)).await?;
    loop {
        let snapshot = tree.borrow_and_update().clone();
        match board.step(began.elapsed(), page(&facts, phases.current(), &snapshot)) {
            Step::Say(text) => match snapshot.verdict {
                Verdict::Ok | Verdict::Starting => info!(running.log(), "{}", text),
                Verdict::Degraded | Verdict::Restarting | Verdict::Failing => {
                    warn!(running.log(), "{}", text);
                }
            },
            Step::Later(wait) => stop.race(tokio::time::sleep(wait)).await?,
            Step::Nothing => {
                // The tree lives as long as this does.
                if stop.race(tree.changed()).await?.is_err() {
                    return Err(stop.stopped().await.into());
                }
                stop.race(tokio::time::sleep(SETTLE)).await?;
            }
        }
    }
}

/// What was said last, and from when on something may be said again. Pure.
#[derive(Debug, Default)]
struct Board {
    said: Vec<String>,
    free: Duration,
}

/// What to do about a page.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Say it.
    Say(String),
    /// It is new, but too soon: look again then.
    Later(Duration),
    /// It was said.
    Nothing,
}

impl Board {
    /// `now` is the time since the Runnable began.
    fn step(&mut self, now: Duration, page: Vec<String>) -> Step {
        if page == self.said {
            return Step::Nothing;
        }
        if let Some(wait) = self.free.checked_sub(now).filter(|w| !w.is_zero()) {
            return Step::Later(wait);
        }
        self.free = now + REST;
        self.said = page;
        Step::Say(self.said.join("\n"))
    }
}

/// The page. Pure.
fn page(facts: &Facts, phase: &str, tree: &Snapshot) -> Vec<String> {
    let word = if tree.shutting_down { "shutting down" } else { tree.verdict.as_str() };
    let booting = if tree.boot_finished { "" } else { ", the boot goes on" };
    let mut lines = vec![format!("{} is {word}{booting}, phase {phase}", facts.node_name)];
    if let Some(dn) = &tree.verdict_dn
        && !tree.verdict_reason.is_empty()
    {
        lines.push(format!("{dn}: {}", first_line(&tree.verdict_reason)));
    }
    let unnamed = |n: &&std::sync::Arc<NodeSnapshot>| Some(&n.dn) != tree.verdict_dn.as_ref();
    let waiting: Vec<String> =
        tree.nodes.iter().filter(unnamed).filter_map(|n| awaited(n)).collect();
    lines.extend(waiting.iter().take(NAMED).cloned());
    if waiting.len() > NAMED {
        lines.push(format!("and {} more", waiting.len() - NAMED));
    }
    lines.push(format!("dashboard {}", facts.dashboard));
    if let Some(failure) = &facts.last_failure {
        lines.push(format!("the boot before this one failed: {}", first_line(failure)));
    }
    lines
}

/// What a service that is not well is waited for. Times are left out: they would make every page new.
fn awaited(node: &NodeSnapshot) -> Option<String> {
    let note = node.note.as_deref().filter(|n| !n.is_empty());
    let what = match (&node.phase, node.health) {
        (_, Verdict::Ok) => return None,
        (Phase::Waiting { dns }, _) if !dns.is_empty() => {
            let names: Vec<&str> = dns.iter().take(3).map(|d| d.as_str()).collect();
            format!("waits for {} to end", names.join(", "))
        }
        (_, Verdict::Starting) => {
            format!("is being started{}", note.map_or_else(String::new, |n| format!(": {n}")))
        }
        (_, health) => format!("is {}: {}", health.as_str(), first_line(&node.reason)),
    };
    Some(format!("{} {what}", node.dn))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use logtree::{Dn, Level};
    use supervisor::{State, Transition};

    use super::*;

    fn facts() -> Facts {
        Facts {
            node_name: "hamlet-0".to_owned(),
            dashboard: "http://10.0.2.15:7840/".to_owned(),
            last_failure: None,
        }
    }

    fn node(dn: &str, health: Verdict, note: Option<&str>) -> NodeSnapshot {
        NodeSnapshot {
            dn: Dn::new(dn).unwrap(),
            state: State::New,
            phase: Phase::Running,
            health,
            reason: "lost its lease\nsecond line".to_owned(),
            since: 0,
            incarnation: 1,
            starts: 1,
            starts_by_cause: Vec::new(),
            deaths: 0,
            deaths_10min: 0,
            last_death: None,
            next_start: None,
            note: note.map(str::to_owned),
            conditions: Vec::new(),
            transitions: Vec::<Transition>::new(),
            child: None,
            unit: 1,
            critical: true,
            stop_stage: 4,
            console: Level::Info,
        }
    }

    fn tree(verdict: Verdict, nodes: Vec<NodeSnapshot>) -> Snapshot {
        Snapshot {
            boot_finished: verdict == Verdict::Ok,
            verdict,
            verdict_dn: None,
            verdict_reason: String::new(),
            shutting_down: false,
            shutdown_stage: None,
            stale_events: 0,
            nodes: nodes.into_iter().map(Arc::new).collect(),
        }
    }

    #[test]
    fn b8_the_page_says_how_the_node_does_and_what_is_waited_for() {
        let well = tree(Verdict::Ok, vec![node("root.a", Verdict::Ok, Some("busy"))]);
        assert_eq!(
            page(&facts(), "node-ready", &well),
            ["hamlet-0 is ok, phase node-ready", "dashboard http://10.0.2.15:7840/"]
        );
        let mut waiting = node("root.c", Verdict::Restarting, None);
        waiting.phase = Phase::Waiting { dns: vec![Dn::from_static("root.c.d")] };
        let mut ill = tree(
            Verdict::Failing,
            vec![
                node("root.a", Verdict::Starting, Some("waits for its socket")),
                node("root.b", Verdict::Failing, None),
                waiting,
                node("root.e", Verdict::Degraded, Some("a note")),
            ],
        );
        ill.verdict_dn = Some(Dn::from_static("root.b"));
        ill.verdict_reason = "lost its lease\nsecond line".to_owned();
        let failed = Facts { last_failure: Some("root: no disk\nmore".to_owned()), ..facts() };
        assert_eq!(
            page(&failed, "tree", &ill),
            [
                "hamlet-0 is failing, the boot goes on, phase tree",
                "root.b: lost its lease",
                "root.a is being started: waits for its socket",
                "root.c waits for root.c.d to end",
                "root.e is degraded: lost its lease",
                "dashboard http://10.0.2.15:7840/",
                "the boot before this one failed: root: no disk",
            ]
        );
    }

    #[test]
    fn b8_a_page_stays_short_however_many_services_there_are() {
        let many = (0..500).map(|n| node(&format!("root.s{n}"), Verdict::Starting, None)).collect();
        let page = page(&facts(), "tree", &tree(Verdict::Starting, many));
        assert_eq!(page.len(), 1 + NAMED + 1 + 1);
        assert!(page.contains(&"and 495 more".to_owned()));
    }

    #[test]
    fn b8_a_page_is_said_when_it_is_new_and_never_twice_in_ten_seconds() {
        let second = Duration::from_secs;
        let page = |n: u32| vec![format!("try {n}")];
        let mut board = Board::default();
        assert_eq!(board.step(second(1), page(0)), Step::Say("try 0".to_owned()));
        assert_eq!(board.step(second(2), page(0)), Step::Nothing);
        assert_eq!(board.step(second(4), page(1)), Step::Later(second(7)));
        // What was new for a moment only is never said.
        assert_eq!(board.step(second(5), page(0)), Step::Nothing);
        assert_eq!(board.step(second(11), page(2)), Step::Say("try 2".to_owned()));
        // One change a second for an hour.
        let mut board = Board::default();
        let said = (0..3600)
            .filter(|n| matches!(board.step(second(u64::from(*n)), page(*n)), Step::Say(_)));
        assert_eq!(said.count(), 360);
    }
}
