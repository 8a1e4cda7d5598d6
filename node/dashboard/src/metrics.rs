//! The metrics page.
//!
//! Purpose: §12. Series of the tree, the log and the node are computed at the moment of the
//! scrape from the same values that pages show, so they vanish with their DN by themselves.
//! Must not know: who scrapes.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use logtree::{Level, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use supervisor::{Counters, NodeSnapshot, STEP_BUCKETS, Snapshot, State, Verdict};

use crate::sources::{App, MAX_STREAMS};
use crate::views::NodeView;

/// Content type of the page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything a scrape shows besides the shared registry, at one moment.
#[derive(Debug)]
struct AtScrape {
    tree: Arc<Snapshot>,
    logs: Stats,
    node: Arc<NodeView>,
    now: Timestamp,
    streams: u64,
    counted: Option<Counters>,
    /// Panics of Runnables, and of the dashboard's own handlers and connections.
    panics: [(&'static str, u64); 2],
}

/// The whole page.
pub(crate) fn page(app: &App) -> Result<String, fmt::Error> {
    let moment = app.sources.moment();
    let at_scrape = AtScrape {
        tree: moment.tree,
        logs: app.sources.logs.stats(),
        node: moment.node,
        now: moment.now,
        streams: (MAX_STREAMS - app.streams.available_permits()) as u64,
        counted: app.sources.tree.counters(),
        panics: [
            ("runnable", supervisor::caught_panics()),
            ("dashboard", app.counters.panics.get()),
        ],
    };
    let mut own = Registry::with_prefix("hamlet");
    own.register(
        "dashboard_requests",
        "Requests served by the dashboard, by route template and status",
        app.counters.requests.clone(),
    );
    own.register_collector(Box::new(at_scrape));
    let mut out = String::with_capacity(64 << 10);
    encode_registry(&mut out, &own)?;
    encode_registry(&mut out, &app.sources.metrics)?;
    encode_eof(&mut out)?;
    Ok(out)
}

/// Writes families one after the other, each with its help once.
struct Families<'a>(DescriptorEncoder<'a>);

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Families<'_> {
    fn open<'s>(
        &'s mut self,
        (name, help): (&'s str, &str),
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    /// A family of counters; writes nothing where there is no sample.
    fn counters<'l, N: EncodeCounterValue>(
        &mut self,
        about: (&str, &str),
        samples: impl IntoIterator<Item = (Labels<'l>, N)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.open(about, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels.as_slice())?)?;
        }
        Ok(())
    }

    /// A family of gauges; writes nothing where there is no sample.
    fn gauges<'l, V>(
        &mut self,
        about: (&str, &str),
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result
    where
        V: EncodeGaugeValue,
        ConstGauge<V>: EncodeMetric,
    {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.open(about, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels.as_slice())?)?;
        }
        Ok(())
    }

    /// One gauge without labels.
    fn gauge(&mut self, about: (&str, &str), value: u64) -> fmt::Result {
        self.open(about, MetricType::Gauge)?.encode_gauge(&gauge(value))
    }

    /// One counter without labels.
    fn counter(&mut self, about: (&str, &str), value: u64) -> fmt::Result {
        let mut family = self.open(about, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }
}

impl Collector for AtScrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families(encoder);
        self.dns(&mut out)?;
        self.starts(&mut out)?;
        self.counted(&mut out)?;
        self.children(&mut out)?;
        self.logs(&mut out)?;
        self.node(&mut out)
    }
}

impl AtScrape {
    fn nodes(&self) -> impl Iterator<Item = &NodeSnapshot> {
        self.tree.nodes.iter().map(Arc::as_ref)
    }

    fn dns(&self, out: &mut Families<'_>) -> fmt::Result {
        out.gauges(
            ("supervisor_dn_state", "1 for the state that a Runnable is in"),
            self.nodes().flat_map(|n| {
                State::ALL.map(|s| {
                    (vec![("dn", n.dn.as_str()), ("state", s.as_str())], i64::from(n.state == s))
                })
            }),
        )?;
        out.gauges(
            ("supervisor_dn_health", "1 for the health that a Runnable has"),
            self.nodes().flat_map(|n| {
                Verdict::ALL.map(|v| {
                    (vec![("dn", n.dn.as_str()), ("health", v.as_str())], i64::from(n.health == v))
                })
            }),
        )?;
        out.gauges(
            ("supervisor_dn_state_since_seconds", "Unix time of the last change of state"),
            self.nodes().map(|n| (dn(n), n.since as f64 / 1e9)),
        )?;
        out.gauges(
            ("supervisor_dn_backoff_seconds", "Time until the next start; 0 if none is planned"),
            self.nodes().map(|n| (dn(n), self.seconds_until(n.next_start))),
        )?;
        out.gauges(
            ("supervisor_dn_condition", "1 for each condition that a Runnable has"),
            self.nodes().flat_map(|n| {
                n.conditions.iter().map(|c| {
                    let severity = ("severity", c.severity.as_str());
                    (vec![("dn", n.dn.as_str()), ("kind", c.kind.as_str()), severity], 1)
                })
            }),
        )?;
        out.gauges(
            ("supervisor_dn_stuck", "1 while a Runnable does not end although aborted"),
            self.nodes().map(|n| (dn(n), i64::from(n.phase == supervisor::Phase::Stuck))),
        )
    }

    fn starts(&self, out: &mut Families<'_>) -> fmt::Result {
        out.counters(
            ("supervisor_dn_starts", "Starts of a Runnable by cause"),
            self.nodes().flat_map(|n| {
                n.starts_by_cause
                    .iter()
                    .map(|(c, v)| (vec![("dn", n.dn.as_str()), ("cause", c.as_str())], *v))
            }),
        )?;
        out.counters(
            ("supervisor_dn_deaths", "Deaths of a Runnable"),
            self.nodes().map(|n| (dn(n), n.deaths)),
        )?;
        let about = ("supervisor_stale_events", "Events for an incarnation that was gone");
        out.counter(about, self.tree.stale_events)
    }

    /// What only the driver knows.
    fn counted(&self, out: &mut Families<'_>) -> fmt::Result {
        let Some(counted) = &self.counted else { return Ok(()) };
        out.counters(
            (
                "supervisor_dn_transitions",
                "Changes of state of a Runnable; first sight is from none",
            ),
            counted.dns.iter().flat_map(|d| {
                d.transitions.iter().map(|(from, to, n)| {
                    let from = from.map_or("none", State::as_str);
                    (vec![("dn", d.dn.as_str()), ("from", from), ("to", to.as_str())], *n)
                })
            }),
        )?;
        out.counters(
            ("supervisor_stalled_polls", "Polls of a Runnable found running for more than 1 s"),
            counted.dns.iter().map(|d| (vec![("dn", d.dn.as_str())], d.stalled_polls)),
        )?;
        out.counters(
            ("supervisor_events", "Events that the tree has decided on, by kind"),
            counted.events.iter().map(|(kind, n)| (vec![("kind", *kind)], *n)),
        )?;
        let steps = &counted.step_seconds;
        let bounds = STEP_BUCKETS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(steps.buckets).collect();
        let about = ("supervisor_step_seconds", "Time that the tree took for a decision");
        let mut family = out.open(about, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(steps.sum_seconds, steps.count, &buckets, None)
    }

    fn children(&self, out: &mut Families<'_>) -> fmt::Result {
        let children = || self.nodes().filter_map(|n| n.child.map(|c| (n, c)));
        out.gauges(
            ("child_up", "1 while the child process of a Runnable runs"),
            children().map(|(n, c)| (dn(n), i64::from(c.pid > 0))),
        )?;
        out.counters(
            ("child_cpu_seconds", "CPU time of a child's cgroup"),
            children().map(|(n, c)| (dn(n), c.cpu_ns as f64 / 1e9)),
        )?;
        out.gauges(
            ("child_memory_bytes", "Memory of a child's cgroup"),
            children().map(|(n, c)| (dn(n), gauge(c.memory_bytes))),
        )?;
        out.counters(
            ("child_oom_kills", "Processes of a child's cgroup killed for want of memory"),
            children().map(|(n, c)| (dn(n), c.oom_kills)),
        )
    }

    fn logs(&self, out: &mut Families<'_>) -> fmt::Result {
        let dns = || self.logs.dns.iter();
        out.counters(
            ("logtree_entries", "Log entries by level"),
            dns().flat_map(|s| {
                let levels = Level::ALL.into_iter().zip(s.entries).map(|(l, n)| (l.as_str(), n));
                levels
                    .chain([("raw", s.raw)])
                    .filter(|(_, n)| *n > 0)
                    .map(|(level, n)| (vec![("dn", s.dn.as_str()), ("level", level)], n))
            }),
        )?;
        out.gauges(
            ("logtree_retained_bytes", "Bytes of log kept now"),
            dns().map(|s| (vec![("dn", s.dn.as_str())], gauge(s.retained_bytes))),
        )?;
        out.counters(
            ("logtree_evicted", "Log entries evicted"),
            dns().map(|s| (vec![("dn", s.dn.as_str())], s.evicted)),
        )?;
        out.counters(
            ("logtree_truncated", "Log entries or lines cut"),
            dns().map(|s| (vec![("dn", s.dn.as_str())], s.truncated)),
        )?;
        out.counters(
            ("logtree_unparsed", "Lines that did not fit their format"),
            dns().flat_map(|s| {
                s.unparsed_by_format
                    .iter()
                    .map(|(format, n)| (vec![("dn", s.dn.as_str()), ("format", *format)], *n))
            }),
        )?;
        out.gauges(
            ("logtree_readers", "Open readers of the log by kind"),
            self.logs.readers_by_kind.iter().map(|(kind, n)| (vec![("kind", *kind)], gauge(*n))),
        )?;
        out.counters(
            ("logtree_missed", "Entries that readers missed, by their kind"),
            self.logs.missed_by_kind.iter().map(|(kind, n)| (vec![("kind", *kind)], *n)),
        )
    }

    fn node(&self, out: &mut Families<'_>) -> fmt::Result {
        let node = &self.node;
        out.gauges(
            ("node_info", "1, with what the node is"),
            [(
                vec![
                    ("version", node.version.as_str()),
                    ("kernel", node.kernel.as_str()),
                    ("boot_id", node.boot_id.as_str()),
                ],
                1,
            )],
        )?;
        out.gauges(
            ("node_phase_seconds", "Time from power-on until a phase of the boot was reached"),
            node.phases.iter().map(|p| (vec![("phase", p.name.as_str())], p.uptime_s)),
        )?;
        out.gauges(
            ("node_last_outcome", "1, with how the boot before this one ended"),
            node.outcomes.first().map(|o| {
                let clean = if o.clean { "true" } else { "false" };
                (vec![("reason", o.outcome.as_str()), ("clean", clean)], 1)
            }),
        )?;
        out.gauge(("dashboard_streams", "Open live streams"), self.streams)?;
        out.counters(
            ("panics", "Panics that were caught, by where"),
            self.panics.into_iter().map(|(place, n)| (vec![("where", place)], n)),
        )?;
        let about = ("kmsg_lost", "Kernel messages overwritten before they were read");
        out.counter(about, node.kmsg_lost)?;
        out.counters(
            ("child_exits", "Ends of child processes by how they ended"),
            node.child_exits
                .iter()
                .map(|e| (vec![("dn", e.dn.as_str()), ("how", e.how.as_str())], e.count)),
        )?;
        let about = ("reaper_orphans", "Processes reaped that no Runnable had started");
        out.counter(about, node.orphans_reaped)
    }

    fn seconds_until(&self, next: Option<i64>) -> f64 {
        let now = self.now.as_nanosecond();
        next.map_or(0.0, |next| (i128::from(next) - now).max(0) as f64 / 1e9)
    }
}

fn dn(node: &NodeSnapshot) -> Labels<'_> {
    vec![("dn", node.dn.as_str())]
}

/// A size as a gauge; sizes fit until 8 EiB.
fn gauge(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
