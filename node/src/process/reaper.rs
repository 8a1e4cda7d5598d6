//! The one owner of `wait` (rule R1): peek at who has exited, look who owns it, take exactly that one.
//!
//! Owner: the thread `reaper`. Invariants: spawning and reaping take the same lock; a peeked pid that is
//! gone by then is no error (the standard library waits itself for a child whose exec failed).
//! Must not know: what a child is.
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodesys::reap::{Exit, peek_exited, reap};
use nodesys::spawn::{SpawnSpec, Spawned, spawn};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// The reaper cannot go on; fatal for PID 1.
#[derive(Debug, thiserror::Error)]
pub enum ReaperError {
    /// waitid failed in a way that cannot happen.
    #[error("waiting for children failed")]
    Wait(#[source] io::Error),
}

/// Handle to the reaper. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Reaper {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A child was born, or the last one is gone.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    owners: HashMap<u32, watch::Sender<Option<Exit>>>,
    /// Rises with each spawn, so that the reaper sees births between its look and its sleep.
    births: u64,
    orphans: u64,
    /// The kernel said that this process has no children at all.
    childless: bool,
}

impl Reaper {
    /// A reaper that does not run yet: see [`Reaper::run`].
    pub fn new() -> Reaper {
        Reaper::default()
    }

    /// Reaps for ever. Call it on a thread of its own; there must be only one.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn run(&self) -> Result<std::convert::Infallible, ReaperError> {
        loop {
            let births = self.shared.state.lock().births;
            match peek_exited().map_err(ReaperError::Wait)? {
                Some(pid) => self.take(pid).map_err(ReaperError::Wait)?,
                None => self.sleep_until_birth(births),
            }
        }
    }

    fn take(&self, pid: u32) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        // Under the lock no spawn is half done: whoever owns the pid has registered.
        let Some(exit) = reap(pid)? else { return Ok(()) };
        match state.owners.remove(&pid) {
            // Nobody listening any more is fine: the owner has dropped its child.
            Some(owner) => drop(owner.send_replace(Some(exit))),
            None => state.orphans += 1,
        }
        Ok(())
    }

    fn sleep_until_birth(&self, births: u64) {
        let mut state = self.shared.state.lock();
        if state.births != births {
            return;
        }
        state.childless = true;
        self.shared.changed.notify_all();
        while state.births == births {
            self.shared.changed.wait(&mut state);
        }
        state.childless = false;
    }

    /// Starts a child and registers its exit.
    ///
    /// # Errors
    /// As [`spawn`].
    pub fn spawn(&self, spec: &SpawnSpec<'_>) -> io::Result<(Spawned, ExitWatch)> {
        let mut state = self.shared.state.lock();
        let result = spawn(spec);
        // Even a failed exec was a child for a moment.
        state.births += 1;
        self.shared.changed.notify_all();
        let spawned = result?;
        let (owner, watch) = watch::channel(None);
        state.owners.insert(spawned.pid, owner);
        Ok((spawned, watch))
    }

    /// Processes that ended here and that nobody had started through [`Reaper::spawn`].
    pub fn orphans(&self) -> u64 {
        self.shared.state.lock().orphans
    }

    /// Waits until this process has no children left, at most for `limit`. Says whether it has none.
    pub fn wait_childless(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while !state.childless {
            if self.shared.changed.wait_until(&mut state, end).timed_out() {
                return state.childless;
            }
        }
        true
    }
}

/// Tells how a child ended, once it has.
pub(crate) type ExitWatch = watch::Receiver<Option<Exit>>;
