//! Runnable `kernel`: the kernel's own messages in the log (rule P6).
//!
//! Invariants: every record once, also over a restart of this Runnable; lost ones are counted exactly.
//! Must not know: what a message means.
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use logtree::{LogTree, Record, parse_kmsg};
use rustix::fs::OFlags;
use rustix::io::Errno;
use slog::warn;
use supervisor::prelude::*;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::clock;
use crate::readiness;

/// Longest record of /dev/kmsg; a shorter buffer gives EINVAL.
const RECORD_BYTES: usize = 8192;

/// The service; `lost` counts messages that were overwritten before they were read.
pub fn service(logs: LogTree, lost: Arc<AtomicU64>) -> Service {
    // Sequence number of the next record, kept over restarts of the Runnable.
    let next = Arc::new(AtomicU64::new(0));
    let mut service = Service::new(Name::from_static("kernel"), move |ctx| {
        run(ctx, logs.clone(), next.clone(), lost.clone())
    });
    service.policy.critical = false;
    // The log has all of it; people at the console want what is wrong.
    service.policy.console = supervisor::Level::Warning;
    service
}

async fn run(ctx: Context, logs: LogTree, next: Arc<AtomicU64>, lost: Arc<AtomicU64>) -> Outcome {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg")?;
    let device = readiness::watch(file, Interest::READABLE)?;
    let running = ctx.healthy();
    let stop = running.stop();
    let mut buffer = vec![0; RECORD_BYTES];
    loop {
        let n = stop.race(read(&device, &mut buffer)).await??;
        let raw = buffer.get(..n).unwrap_or_default();
        let Some(kmsg) = parse_kmsg(raw) else {
            logs.append(running.dn(), Record::raw(String::from_utf8_lossy(raw)));
            continue;
        };
        let expected = next.load(Ordering::Relaxed);
        if kmsg.seq < expected {
            continue;
        }
        if expected > 0 && kmsg.seq > expected {
            warn!(running.log(), "lost {} kernel messages", kmsg.seq - expected);
            lost.fetch_add(kmsg.seq - expected, Ordering::Relaxed);
        }
        next.store(kmsg.seq + 1, Ordering::Relaxed);
        let wall_ns = Some(wall_ns(kmsg.usec, clock::uptime().as_micros(), clock::wall_ms()));
        logs.append(running.dn(), Record { wall_ns, ..kmsg.record });
    }
}

/// When a record was said: the kernel counts from power-on.
fn wall_ns(usec: u64, uptime_usec: u128, wall_ms: i64) -> i64 {
    let age = uptime_usec.saturating_sub(u128::from(usec));
    let age_ns = i64::try_from(age.saturating_mul(1000)).unwrap_or(i64::MAX);
    wall_ms.saturating_mul(1_000_000).saturating_sub(age_ns)
}

async fn read(device: &AsyncFd<File>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = device.readable().await?;
        match ready.try_io(|d| d.get_ref().read(buffer)) {
            // Overwritten before it was read; the gap in the numbers tells how many.
            Ok(Err(e)) if e.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {}
            Ok(result) => return result,
            Err(_would_block) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_boot_time_becomes_wall_time() {
        // Said 2 s after power-on, read at 5 s of uptime, when it was 100 s past the epoch.
        assert_eq!(wall_ns(2_000_000, 5_000_000, 100_000), 97_000_000_000);
        // A record that seems to come from the future is of now.
        assert_eq!(wall_ns(9_000_000, 5_000_000, 100_000), 100_000_000_000);
    }
}
