//! Processes of the node: one reaper owns every wait, one spawner starts every child (rules R1 to R7).
//!
//! Owner: PID 1. Invariants: a child is registered under the lock that reaping takes, so that no exit can
//! come before its registration; each status is delivered once; everything else that ends is an orphan
//! and only counted. Must not know: services, restarts, logs.
mod cgroup;
mod child;
mod reaper;

pub use cgroup::{Cgroups, enable_controllers};
pub use child::{CHILD_PATH, ProcessSpawner, SpawnLayout};
pub use reaper::{Reaper, ReaperError};
