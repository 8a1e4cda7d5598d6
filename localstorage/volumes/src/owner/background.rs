//! What nobody asked for: purging, measuring, auditing, following the mount table.
//!
//! Invariants: at most two purges at a time, beside the pool; a failed one keeps its item
//! and its condition and is tried again at the next tick; an audit repairs limits and ids
//! of roots and never deletes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use slog::{Logger, warn};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::commits::After;
use super::{AUDIT_TICKS, Completion, Failure, Owner, text};
use crate::disk::Disk;
use crate::id::VolumeId;
use crate::ledger::Room;
use crate::plan::{Act, PURGE};
use crate::record::{Phase, Record};
use crate::recover;
use crate::registry::Change;
use crate::types::{ConditionKind, Published};

/// Purges at the same time (rule 8.1).
const PURGES: usize = 2;

/// Background work of one incarnation.
pub(super) struct State {
    queue: VecDeque<Item>,
    running: BTreeSet<String>,
    failed: Vec<Item>,
    failures: BTreeMap<String, String>,
    ticks: u32,
    audit_due: bool,
    measuring: bool,
    measure_again: bool,
    reading_table: bool,
    table_again: bool,
}

/// What to purge.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// An item with a row: its id is freed, too.
    Row(String),
    /// A leftover without one.
    Leftover(String),
}

impl State {
    pub(super) fn new(leftovers: Vec<String>) -> State {
        State {
            queue: leftovers.into_iter().map(Item::Leftover).collect(),
            running: BTreeSet::new(),
            failed: Vec::new(),
            failures: BTreeMap::new(),
            ticks: 0,
            audit_due: false,
            measuring: false,
            measure_again: false,
            reading_table: false,
            table_again: false,
        }
    }

    /// Items without a row.
    pub(super) fn leftovers(&self) -> usize {
        let leftover = |i: &&Item| matches!(i, Item::Leftover(_));
        self.queue.iter().filter(leftover).count() + self.failed.iter().filter(leftover).count()
    }
}

/// What was wrong with the root of a volume; none = it is missing.
type Audit = Result<Option<Vec<String>>, String>;

/// What a tick found.
pub(crate) struct Measured {
    room: Option<Room>,
    /// What was wrong with a published volume; empty = nothing.
    audited: Vec<(VolumeId, Audit)>,
}

impl Owner {
    /// Queues what recovery left in the trash, then starts.
    pub(super) fn start_purges(&mut self) {
        let rows: Vec<Item> = self.ledger.trash.keys().cloned().map(Item::Row).collect();
        self.background.queue.extend(rows);
        self.next_purges();
    }

    pub(super) fn purge_later(&mut self, key: String) {
        self.background.queue.push_back(Item::Row(key));
        self.next_purges();
    }

    fn next_purges(&mut self) {
        while self.background.running.len() < PURGES {
            let Some(item) = self.background.queue.pop_front() else { return };
            let disk = self.disk.clone();
            let fail = |step, e| Failure::Step(step, Arc::new(e));
            match item {
                Item::Row(key) => {
                    let Some(row) = self.ledger.trash.get(&key).cloned() else { continue };
                    self.background.running.insert(key.clone());
                    let job = move || {
                        let result = PURGE.iter().try_for_each(|step| {
                            match step {
                                Act::FreeProject => disk.free_project(row.project),
                                _ => disk.purge(&row.key),
                            }
                            .map(|()| disk.seams.faults.point(step.point()))
                            .map_err(|e| fail(step.point(), e))
                        });
                        Completion::Purged(row.key, result)
                    };
                    self.spawn_aside("purge", Box::new(job));
                }
                Item::Leftover(name) => {
                    self.background.running.insert(name.clone());
                    let job = move || {
                        let result = disk.purge(&name).map_err(|e| fail("delete.d5", e));
                        Completion::Swept(name, result)
                    };
                    self.spawn_aside("sweep", Box::new(job));
                }
            }
        }
    }

    pub(super) fn purged(&mut self, key: String, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                self.commit(vec![Change::RemoveTrash(key.clone())], After::Purged(key));
            }
            Err(f) => {
                self.purge_failed(&key, &f);
                self.background.failed.push(Item::Row(key.clone()));
                self.purge_ended(&key, false);
            }
        }
    }

    pub(super) fn swept(&mut self, name: String, result: Result<(), Failure>) {
        let ok = result.is_ok();
        if let Err(f) = result {
            self.purge_failed(&name, &f);
            self.background.failed.push(Item::Leftover(name.clone()));
        }
        self.purge_ended(&name, ok);
    }

    fn purge_failed(&mut self, item: &str, f: &Failure) {
        if let Failure::Step(step, e) = f {
            self.background.failures.insert(item.to_owned(), text(e.as_ref()));
            warn!(self.log, "purge failed, it is tried again";
                "item" => item, "step" => *step, "error" => text(e.as_ref()));
        }
    }

    pub(super) fn purge_ended(&mut self, key: &str, ok: bool) {
        self.background.running.remove(key);
        if ok {
            self.background.failures.remove(key);
        }
        self.next_purges();
        self.publish_views();
    }

    /// What happens every 10 s.
    pub(super) fn tick(&mut self) {
        self.background.ticks = self.background.ticks.wrapping_add(1);
        self.background.audit_due |= self.background.ticks.is_multiple_of(AUDIT_TICKS);
        let retry = std::mem::take(&mut self.background.failed);
        self.background.queue.extend(retry);
        self.next_purges();
        self.measure();
    }

    /// Purges that failed, with the reason.
    pub(super) fn purge_failures(&self) -> &BTreeMap<String, String> {
        &self.background.failures
    }

    /// Measures space; audits what is published if it is time.
    pub(super) fn measure(&mut self) {
        if self.background.measuring {
            self.background.measure_again = true;
            return;
        }
        self.background.measuring = true;
        let audit = if std::mem::take(&mut self.background.audit_due) {
            self.audited_records()
        } else {
            Vec::new()
        };
        let (disk, room, others) = (self.disk.clone(), self.room, recover::others(&self.ledger));
        let log = self.log.clone();
        let job = move || {
            let room = disk.room(&others, room);
            if let Err(e) = &room {
                warn!(log, "cannot measure space"; "error" => text(e));
            }
            if let Err(e) = disk.make_ballast() {
                warn!(log, "cannot restore the ballast"; "error" => text(&e));
            }
            let audited = audit
                .iter()
                .map(|r| (r.id.clone(), disk.reassert(r).map_err(|e| text(&e))))
                .collect();
            Completion::Measured(Box::new(Measured { room: room.ok(), audited }))
        };
        self.spawn_aside("measure", Box::new(job));
    }

    /// Published volumes that nothing else works on.
    fn audited_records(&self) -> Vec<Record> {
        let published = self.shared.published.borrow();
        let settled = |r: &&Record| {
            r.phase == Phase::Ready
                && r.expand.is_none()
                && !self.operations.contains_key(&r.id)
                && !self.ledger.is_shared(r.project)
        };
        published
            .targets
            .keys()
            .filter_map(|id| self.ledger.volumes.get(id))
            .filter(settled)
            .cloned()
            .collect()
    }

    pub(super) fn measured(&mut self, m: Measured) {
        self.background.measuring = false;
        if let Some(room) = m.room {
            self.room = room;
        }
        for (id, result) in m.audited {
            let now = match result {
                Ok(Some(wrong)) if wrong.is_empty() => {
                    // QuotaEscaped stays: entries inside may still be elsewhere.
                    if let Some(c) = self.conditions.get_mut(&id) {
                        c.remove(&ConditionKind::QuotaNotEnforced);
                        c.remove(&ConditionKind::DataMissing);
                    }
                    None
                }
                Ok(Some(wrong)) => Some((ConditionKind::QuotaEscaped, wrong.join(", "))),
                Ok(None) => Some((ConditionKind::DataMissing, "its directory is missing".into())),
                Err(e) => Some((ConditionKind::QuotaNotEnforced, e)),
            };
            if let Some((kind, message)) = now
                && self.ledger.volumes.contains_key(&id)
            {
                warn!(self.log, "audit found a volume altered, and repaired its root";
                    "volume" => id.as_str(), "found" => &message);
                *self.report.actions.entry("audit_repaired").or_default() += 1;
                self.shared.metrics.repaired(kind);
                self.conditions.entry(id).or_default().insert(kind, message);
            }
        }
        self.count_conditions();
        self.publish_views();
        if std::mem::take(&mut self.background.measure_again) {
            self.measure();
        }
    }

    /// Reads the mount table, once more if asked meanwhile.
    pub(super) fn read_table(&mut self) {
        if self.background.reading_table {
            self.background.table_again = true;
            return;
        }
        self.background.reading_table = true;
        let (disk, log) = (self.disk.clone(), self.log.clone());
        let job = move || {
            let published = disk.published();
            if let Err(e) = &published {
                warn!(log, "cannot read the mount table"; "error" => text(e));
            }
            Completion::Table(published.ok())
        };
        self.spawn_aside("mounts", Box::new(job));
    }

    pub(super) fn table_read(&mut self, published: Option<Published>) {
        self.background.reading_table = false;
        if let Some(new) = published {
            self.shared.published.send_if_modified(|now| {
                let changed = *now != new;
                *now = new;
                changed
            });
        }
        if std::mem::take(&mut self.background.table_again) {
            self.read_table();
        }
    }
}

/// Wakes when the mount table changes.
pub(super) struct MountChanges(Option<AsyncFd<OwnedFd>>);

impl MountChanges {
    pub(super) fn new(disk: &Disk, log: &Logger) -> MountChanges {
        let fd = match disk.seams.mounter.changes() {
            Ok(fd) => fd,
            Err(e) => {
                warn!(log, "cannot follow the mount table"; "error" => text(&e));
                None
            }
        };
        #[expect(deprecated, reason = "the new constructor is unsafe; an OwnedFd is owned")]
        let watched = fd.and_then(|fd| {
            AsyncFd::with_interest(fd, Interest::PRIORITY)
                .inspect_err(|e| {
                    warn!(log, "cannot follow the mount table"; "error" => e.to_string());
                })
                .ok()
        });
        MountChanges(watched)
    }

    /// Waits for a change; for ever where there is nothing to wait on. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let Some(fd) = &self.0 else { return std::future::pending().await };
        match fd.ready(Interest::PRIORITY).await {
            Ok(mut guard) => guard.clear_ready(),
            // Only at shutdown of the runtime.
            Err(_) => self.0 = None,
        }
    }
}
