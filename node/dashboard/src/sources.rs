//! What the dashboard reads from, and the state its handlers share.
//!
//! Purpose: everything comes in as a value that is always the newest (`watch`) or as a reader
//! into the log, so a slow or dead dashboard holds nobody up. It is given views, not the
//! supervisor itself: what it can change are the two calls of [`Controls`] and log levels. Owner of [`App`]: one incarnation of the
//! dashboard; nothing of it outlives that but [`Access`] and [`Sources`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use logtree::{Dn, LogTree};
use prometheus_client::registry::Registry;
use supervisor::{NodeSnapshot, Snapshot, Supervisor};
use tokio::sync::{Semaphore, watch};

use crate::access::Access;
use crate::control::Controls;
use crate::counters::Counters;
use crate::page::Known;
use crate::peer::Role;
use crate::problem::Problem;
use crate::views::{NodeView, VolumesView};

/// Most live streams (SSE or followed logs) at a time.
pub(crate) const MAX_STREAMS: usize = 32;

/// Age of the driver's last turn from which on it counts as dead (rule W7).
const DRIVER_TIME: Duration = Duration::from_secs(15);

/// The tree as the dashboard sees it: always the newest snapshot, and no way to change it.
#[derive(Clone)]
pub struct TreeView {
    pub(crate) snapshot: watch::Receiver<Arc<Snapshot>>,
    /// How long ago the driver turned; `None` where there is no driver.
    driver: Option<Arc<dyn Fn() -> Duration + Send + Sync>>,
    /// What the driver has counted; `None` where there is no driver.
    counters: Option<Arc<dyn Fn() -> supervisor::Counters + Send + Sync>>,
}

impl TreeView {
    /// Whether restarts and shutdown still work: the driver turned within [`DRIVER_TIME`].
    pub(crate) fn is_alive(&self) -> bool {
        let turned = self.driver.as_ref().is_none_or(|age| age() < DRIVER_TIME);
        turned && self.snapshot.has_changed().is_ok()
    }

    /// What the driver has counted.
    pub(crate) fn counters(&self) -> Option<supervisor::Counters> {
        self.counters.as_ref().map(|read| read())
    }
}

impl From<&Supervisor> for TreeView {
    fn from(supervisor: &Supervisor) -> TreeView {
        let (driver, meter) = (supervisor.clone(), supervisor.clone());
        TreeView {
            snapshot: supervisor.view(),
            driver: Some(Arc::new(move || driver.driver_age())),
            counters: Some(Arc::new(move || meter.counters())),
        }
    }
}

impl From<watch::Receiver<Arc<Snapshot>>> for TreeView {
    fn from(snapshot: watch::Receiver<Arc<Snapshot>>) -> TreeView {
        TreeView { snapshot, driver: None, counters: None }
    }
}

impl fmt::Debug for TreeView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeView").finish_non_exhaustive()
    }
}

/// What the dashboard shows.
#[derive(Clone)]
pub struct Sources {
    /// The tree: `(&supervisor).into()`.
    pub tree: TreeView,
    /// The log.
    pub logs: LogTree,
    /// The volumes.
    pub volumes: watch::Receiver<Arc<VolumesView>>,
    /// The node.
    pub node: watch::Receiver<Arc<NodeView>>,
    /// Metrics of all other parts; theirs must already carry the prefix `hamlet_`.
    pub metrics: Arc<Registry>,
    /// What admins can change.
    pub controls: Controls,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// One moment of everything but the log. Holds no lock.
pub(crate) struct Moment {
    pub(crate) tree: Arc<Snapshot>,
    pub(crate) volumes: Arc<VolumesView>,
    pub(crate) node: Arc<NodeView>,
    pub(crate) now: Timestamp,
}

impl Moment {
    /// The same, as the pages want it.
    pub(crate) fn known(&self, role: Role) -> Known<'_> {
        Known { tree: &self.tree, volumes: &self.volumes, node: &self.node, now: self.now, role }
    }

    /// The node of the tree with this DN.
    pub(crate) fn find(&self, dn: &Dn) -> Option<&Arc<NodeSnapshot>> {
        self.tree.nodes.iter().find(|n| n.dn == *dn)
    }
}

impl Sources {
    /// What is known now.
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            tree: self.tree.snapshot.borrow().clone(),
            volumes: self.volumes.borrow().clone(),
            node: self.node.borrow().clone(),
            now: Timestamp::now(),
        }
    }

    /// All DNs that can be chosen: those of the tree and those with a log, sorted.
    pub(crate) fn dns(&self) -> Vec<Dn> {
        let mut dns = self.logs.dns();
        dns.extend(self.tree.snapshot.borrow().nodes.iter().map(|n| n.dn.clone()));
        dns.sort();
        dns.dedup();
        dns
    }

    /// The answer to a DN that nobody knows, with the nearest known ones.
    pub(crate) fn unknown_dn(&self, dn: &Dn) -> Problem {
        let last = dn.last();
        let mut near = self.dns();
        near.retain(|d| d.last() == last || d.as_str().contains(last) || last.contains(d.last()));
        near.truncate(5);
        let hint = match near.as_slice() {
            [] => "The first page lists all services.".to_owned(),
            some => {
                let some: Vec<_> = some.iter().map(Dn::as_str).collect();
                format!("Similar: {}.", some.join(", "))
            }
        };
        Problem::not_found(format!("there is no service {dn}"), hint)
    }
}

/// What the handlers of one incarnation share.
pub(crate) struct App {
    pub(crate) sources: Sources,
    pub(crate) access: Access,
    pub(crate) counters: Counters,
    pub(crate) log: slog::Logger,
    /// One permit a live stream.
    pub(crate) streams: Arc<Semaphore>,
    /// Becomes true when streams must end.
    pub(crate) closing: watch::Sender<bool>,
}

impl App {
    pub(crate) fn new(sources: Sources, access: Access, log: slog::Logger) -> Arc<App> {
        Arc::new(App {
            sources,
            access,
            counters: Counters::default(),
            log,
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            closing: watch::Sender::new(false),
        })
    }
}
