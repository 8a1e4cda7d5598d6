//! What things are compared with: the least that could possibly do, and what others use.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::fmt::MakeWriter;

/// Entries the floor keeps: as many as a ring of the log.
const KEPT: usize = 8192;

/// Starts tasks that wait for one signal, gives it, joins them.
pub(crate) fn join_set(runtime: &Runtime, tasks: usize) -> Duration {
    let began = Instant::now();
    runtime.block_on(async {
        let stop = watch::Sender::new(false);
        let mut set = JoinSet::new();
        for _ in 0..tasks {
            let mut stop = stop.subscribe();
            set.spawn(async move { stop.wait_for(|s| *s).await.is_ok() });
        }
        stop.send_replace(true);
        while set.join_next().await.is_some() {}
    });
    began.elapsed()
}

/// From the end of a task to the first poll of the next one, each joined before.
pub(crate) fn respawn(runtime: &Runtime, rounds: usize) -> Vec<Duration> {
    runtime.block_on(async {
        let mut samples = Vec::with_capacity(rounds);
        let mut set = JoinSet::new();
        set.spawn(async { Instant::now() });
        for _ in 0..rounds {
            let Some(Ok(ended)) = set.join_next().await else { break };
            set.spawn(async { Instant::now() });
            let Some(Ok(began)) = set.join_next().await else { break };
            samples.push(began.saturating_duration_since(ended));
            set.spawn(async { Instant::now() });
        }
        samples
    })
}

/// The least a bounded log could do: format, lock, push, pop.
#[derive(Default)]
pub(crate) struct Queue(Mutex<VecDeque<String>>);

impl Queue {
    pub(crate) fn append(&self, text: String) {
        let mut queue = self.0.lock();
        if queue.len() == KEPT {
            queue.pop_front();
        }
        queue.push_back(text);
    }
}

/// Memory that `tracing-subscriber` writes to; its last MiB is kept.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Vec<u8>>>, Arc<AtomicU64>);

impl Memory {
    /// Lines written.
    pub(crate) fn lines(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

impl io::Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut memory = self.0.lock();
        if memory.len() > 1 << 20 {
            memory.clear();
        }
        memory.extend_from_slice(bytes);
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Memory {
    type Writer = Memory;

    fn make_writer(&'a self) -> Memory {
        self.clone()
    }
}
