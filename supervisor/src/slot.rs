//! Signals from an incarnation to the driver: slots, not messages (rule X1).
//!
//! A Runnable never waits to say something: it writes into its slot and puts its number on a list
//! that holds each incarnation once. Later signals replace earlier ones. The driver reads all of a
//! slot before it applies the exit in it.

use std::sync::Arc;

use logtree::Name;

use crate::sync::{AtomicBool, Mutex, Notify, Ordering};
use crate::tree::Exit;
use crate::{ChildStats, Condition};

/// Conditions of one node (rule H1).
const MAX_CONDITIONS: usize = 32;

/// The incarnations whose slots have something new.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    raised: Mutex<Vec<u64>>,
    notify: Notify,
}

impl Mailbox {
    /// All raised incarnations; the list is empty afterwards.
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.raised.lock())
    }

    /// Waits until something was raised since the last wait. Cancel safe.
    pub(crate) async fn raised(&self) {
        self.notify.notified().await;
    }
}

/// Where the numbers of a child process come from.
pub(crate) type StatsSource = Arc<dyn Fn() -> ChildStats + Send + Sync>;

/// What an incarnation has said and the driver has not read yet, and what holds until replaced.
#[derive(Default)]
struct Content {
    healthy: bool,
    changed: bool,
    note: String,
    conditions: Vec<Condition>,
    /// Set by the supervisor itself, not by the Runnable.
    own: Vec<Condition>,
    child: Option<ChildStats>,
    stats: Option<StatsSource>,
    reserved: Vec<Name>,
    exit: Option<Exit>,
}

/// What the driver gets from a slot.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) reserved: Vec<Name>,
    pub(crate) healthy: bool,
    pub(crate) said: Option<(String, Vec<Condition>, Option<ChildStats>)>,
    pub(crate) exit: Option<Exit>,
}

/// The slot of one incarnation.
pub(crate) struct Slot {
    incarnation: u64,
    mailbox: Arc<Mailbox>,
    raised: AtomicBool,
    content: Mutex<Content>,
}

impl Slot {
    pub(crate) fn new(incarnation: u64, mailbox: Arc<Mailbox>) -> Slot {
        Slot { incarnation, mailbox, raised: AtomicBool::new(false), content: Mutex::default() }
    }

    fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.mailbox.raised.lock().push(self.incarnation);
            self.mailbox.notify.notify_one();
        }
    }

    fn write(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.content.lock());
        self.raise();
    }

    /// Everything new. The flag goes down first: what is written meanwhile raises it again.
    pub(crate) fn read(&self) -> News {
        self.raised.store(false, Ordering::Release);
        let mut content = self.content.lock();
        let said = std::mem::take(&mut content.changed).then(|| {
            let all = content.conditions.iter().chain(&content.own).cloned().collect();
            (content.note.clone(), all, content.child)
        });
        News {
            reserved: std::mem::take(&mut content.reserved),
            healthy: std::mem::take(&mut content.healthy),
            said,
            exit: content.exit.take(),
        }
    }

    pub(crate) fn healthy(&self) {
        self.write(|c| c.healthy = true);
    }

    pub(crate) fn reserve(&self, name: Name) {
        self.write(|c| c.reserved.push(name));
    }

    pub(crate) fn exited(&self, exit: Exit) {
        self.write(|c| {
            c.stats = None;
            c.exit = Some(exit);
        });
    }

    pub(crate) fn note(&self, text: &str) {
        self.write(|c| {
            if c.note != text {
                c.note = text.to_owned();
                c.changed = true;
            }
        });
    }

    /// Sets a condition of the Runnable; false if there are too many.
    pub(crate) fn set(&self, condition: Condition) -> bool {
        let mut fits = true;
        self.write(|c| {
            let full = c.conditions.len() >= MAX_CONDITIONS;
            match c.conditions.iter_mut().find(|other| other.kind == condition.kind) {
                Some(other) => {
                    c.changed |= *other != condition;
                    *other = condition;
                }
                None if full => fits = false,
                None => {
                    c.conditions.push(condition);
                    c.changed = true;
                }
            }
        });
        fits
    }

    pub(crate) fn clear(&self, kind: &str) {
        self.write(|c| {
            let before = c.conditions.len();
            c.conditions.retain(|other| other.kind != kind);
            c.changed |= before != c.conditions.len();
        });
    }

    /// Sets or takes back a condition of the supervisor itself.
    pub(crate) fn set_own(&self, kind: &str, condition: Option<Condition>) {
        self.write(|c| {
            let before = c.own.clone();
            c.own.retain(|other| other.kind != kind);
            c.own.extend(condition);
            c.changed |= before != c.own;
        });
    }

    pub(crate) fn set_stats(&self, source: Option<StatsSource>) {
        self.content.lock().stats = source;
        self.refresh_stats();
    }

    /// Reads the numbers of the child process anew, if there is one.
    pub(crate) fn refresh_stats(&self) {
        let source = self.content.lock().stats.clone();
        // Not under the lock: the source may read files.
        let stats = source.map(|source| source());
        let mut content = self.content.lock();
        if content.child != stats {
            content.child = stats;
            content.changed = true;
            drop(content);
            self.raise();
        }
    }
}
