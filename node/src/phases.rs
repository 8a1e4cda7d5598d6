//! How far the boot has come: names with their times, announced as marker lines (rule B9).
//!
//! Owner: PID 1; bring-up and services reach phases. Invariant: a phase is announced once.
//! Must not know: what a phase means.
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::announce::Announcer;
use crate::clock;
use crate::outcome::phase_marker;

/// Reached phases. Clones share them.
#[derive(Debug, Clone)]
pub struct Phases {
    announcer: Announcer,
    announced: Arc<Mutex<Vec<&'static str>>>,
    reached: Arc<Mutex<Vec<(&'static str, Duration)>>>,
}

impl Phases {
    /// None reached yet.
    pub fn new(announcer: Announcer) -> Phases {
        Phases { announcer, announced: Arc::default(), reached: Arc::default() }
    }

    /// Notes and announces a phase, the first time only.
    pub fn reach(&self, name: &'static str) {
        let now = clock::uptime();
        {
            let mut reached = self.reached.lock();
            if reached.iter().any(|(n, _)| *n == name) {
                return;
            }
            reached.push((name, now));
        }
        self.announcer.line(&phase_marker(name, now));
    }

    /// Announces a line that is no phase, the first time only.
    pub fn announce_once(&self, key: &'static str, line: impl FnOnce() -> String) {
        {
            let mut announced = self.announced.lock();
            if announced.contains(&key) {
                return;
            }
            announced.push(key);
        }
        self.announcer.line(&line());
    }

    /// All phases in the order they were reached.
    pub fn list(&self) -> Vec<(&'static str, Duration)> {
        self.reached.lock().clone()
    }

    /// The last one, or "start".
    pub fn current(&self) -> &'static str {
        self.reached.lock().last().map_or("start", |(n, _)| n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b9_a_phase_is_reached_once_and_in_order() {
        let p = Phases::new(Announcer::default());
        assert_eq!(p.current(), "start");
        p.reach("mounted");
        p.reach("tree");
        p.reach("mounted");
        let names: Vec<&str> = p.list().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["mounted", "tree"]);
        assert_eq!(p.current(), "tree");
    }
}
