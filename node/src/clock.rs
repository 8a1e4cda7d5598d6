//! The two clocks of the node. Must not know: what is timed.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine was switched on, suspensions included.
pub fn uptime() -> Duration {
    let t = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Wall-clock milliseconds since 1970; 0 for a clock before that.
pub fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
