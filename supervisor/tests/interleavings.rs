//! The slots between Runnables and the driver under many orders of events (rule X1): the module
//! itself, compiled with locks and a Notify that a scheduler controls.

#![allow(dead_code, reason = "the module under test is more than what is tested of it")]

use std::sync::Arc;

use supervisor::{ChildStats, Condition};

use crate::slot::{Mailbox, Slot};
use crate::tree::Exit;

#[path = "../logtree/tests/scheduled/mod.rs"]
mod sync;

mod tree {
    #[derive(Debug, PartialEq)]
    pub(crate) enum Exit {
        Done,
    }
}

#[path = "../src/slot.rs"]
mod slot;

/// Orders tried per test.
const ORDERS: usize = 5_000;

/// What the driver has learnt.
#[derive(Default)]
struct Learnt {
    healthy: bool,
    note: String,
    conditions: Vec<Condition>,
    exit: Option<Exit>,
}

impl Learnt {
    fn read(&mut self, slot: &Slot) {
        let news = slot.read();
        self.healthy |= news.healthy;
        if let Some((note, conditions, _)) = news.said {
            (self.note, self.conditions) = (note, conditions);
        }
        if news.exit.is_some() {
            // What was said before the end is known when the end is.
            assert!(self.healthy && self.note == "last", "{} {:?}", self.healthy, self.note);
            self.exit = news.exit;
        }
    }
}

#[test]
fn x1_signals_coalesce_are_never_lost_and_are_read_before_the_exit() {
    let test = || {
        let mailbox = Arc::new(Mailbox::default());
        let slot = Arc::new(Slot::new(7, mailbox.clone()));
        let (runnable, watcher) = (slot.clone(), slot.clone());
        let runnable = shuttle::thread::spawn(move || {
            runnable.note("first");
            runnable.healthy();
            runnable.note("last");
            runnable.exited(Exit::Done);
        });
        let watcher = shuttle::thread::spawn(move || {
            watcher.set_own("Stalled", Some(Condition::unhealthy("Stalled", "x")));
        });
        let mut learnt = Learnt::default();
        // A lost wake-up is a deadlock here, and the scheduler reports it.
        shuttle::future::block_on(async {
            while learnt.exit.is_none() || learnt.conditions.is_empty() {
                mailbox.raised().await;
                let raised = mailbox.take();
                assert!(raised.len() <= 2 && raised.iter().all(|i| *i == 7));
                raised.iter().for_each(|_| learnt.read(&slot));
            }
        });
        runnable.join().expect("it ends");
        watcher.join().expect("it ends");
        assert_eq!(learnt.exit, Some(Exit::Done));
    };
    shuttle::check_random(test, ORDERS);
}

#[test]
fn x1_two_incarnations_do_not_hide_each_others_news() {
    let test = || {
        let mailbox = Arc::new(Mailbox::default());
        let slots = [1, 2].map(|i| Arc::new(Slot::new(i, mailbox.clone())));
        let runnables = slots.clone().map(|slot| {
            shuttle::thread::spawn(move || {
                slot.healthy();
                slot.note("last");
                slot.exited(Exit::Done);
            })
        });
        let mut learnt = [Learnt::default(), Learnt::default()];
        shuttle::future::block_on(async {
            while learnt.iter().any(|l| l.exit.is_none()) {
                for incarnation in mailbox.take() {
                    let index = incarnation as usize - 1;
                    learnt[index].read(&slots[index]);
                }
                if learnt.iter().any(|l| l.exit.is_none()) {
                    mailbox.raised().await;
                }
            }
        });
        runnables.into_iter().for_each(|r| r.join().expect("it ends"));
    };
    shuttle::check_random(test, ORDERS);
}
