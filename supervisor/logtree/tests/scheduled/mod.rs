//! Locks and a Notify whose every step a scheduler decides: stand-ins for those of `parking_lot` and
//! tokio, with as much of their interface as the modules under test use.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

pub(crate) use shuttle::sync::MutexGuard;
pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};

/// As parking_lot's: no poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("a panic ends the test before")
    }
}

/// As tokio's, for one waiter: one permit, kept until it is taken.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<(bool, Option<Waker>)>);

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify::default()
    }

    pub(crate) fn notify_one(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified(self)
    }
}

pub(crate) struct Notified<'a>(&'a Notify);

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.0.lock();
        if std::mem::take(&mut state.0) {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}
