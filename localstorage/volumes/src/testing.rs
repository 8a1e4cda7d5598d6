//! An engine over a temporary directory and a kernel in memory, for the tests of any crate.
//!
//! The directories, renames and syncs are real; quota, mounts, attributes and space are
//! those of [`FakeKernel`]. It serves on tokio's blocking pool, without a supervisor.

use std::path::Path;
use std::sync::Arc;

use slog::{Discard, Logger, o};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use nodesys::testing::{FakeKernel, Hook};

use crate::engine::{EngineConfig, Seams, VolumeDirs, VolumeEngine};
use crate::faults::Faults;
use crate::owner::Owner;
use crate::pool::{Job, JobFuture, Pool};
use crate::recover;

/// The seams of a fake kernel.
pub fn seams(kernel: &FakeKernel, faults: Faults) -> Seams {
    let k = Arc::new(kernel.clone());
    Seams {
        quota: k.clone(),
        mounter: k.clone(),
        loops: k.clone(),
        extents: k.clone(),
        attributes: k.clone(),
        filesystem: k,
        faults,
    }
}

/// The engine's directories under `data`, which are made.
pub fn dirs(data: &Path) -> VolumeDirs {
    match localstorage::testing::data_at(data) {
        Ok(d) => VolumeDirs { volumes: d.volumes, state: d.volume_state },
        Err(e) => panic!("{}", crate::error::chain(&e)),
    }
}

struct Blocking;

impl Pool for Blocking {
    #[expect(clippy::disallowed_methods, reason = "there is no supervisor in these tests")]
    fn run(&self, _name: &'static str, job: Job) -> JobFuture {
        let handle = tokio::task::spawn_blocking(job);
        Box::pin(async move { handle.await.ok() })
    }
}

/// An engine that serves.
pub struct Served {
    /// The handle.
    pub engine: VolumeEngine,
    /// Ends with the reason when the incarnation does.
    pub task: JoinHandle<String>,
}

impl Served {
    /// Ends the incarnation as an orderly stop does, and waits for what runs.
    pub async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Starts an incarnation on `data`; fails as the service would.
pub fn start(data: &Path, config: EngineConfig, seams: Seams) -> Result<Served, String> {
    let dirs = dirs(data);
    let log = Logger::root(Discard, o!());
    let started =
        recover::start(&dirs, &config, seams.clone(), &log).map_err(|e| crate::error::chain(&e))?;
    let (engine, _) = VolumeEngine::new(dirs, config.clone(), seams);
    let (queue, mut commands) = mpsc::channel(256);
    let shared = engine.shared();
    let mut owner = Owner::new(started, &config, shared.clone(), Arc::new(Blocking), log);
    *shared.queue.write() = Some(queue);
    #[expect(clippy::disallowed_methods, reason = "there is no supervisor in these tests")]
    let task = tokio::spawn(async move {
        let _gone = Gone(shared);
        owner.serve(&mut commands).await
    });
    Ok(Served { engine, task })
}

struct Gone(Arc<crate::engine::Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        *self.0.queue.write() = None;
    }
}

impl VolumeEngine {
    /// An engine over `data` and a fake kernel, serving on the current runtime.
    pub fn for_tests(data: &Path, kernel: &FakeKernel) -> VolumeEngine {
        match start(data, EngineConfig::default(), seams(kernel, Faults::default())) {
            Ok(s) => s.engine,
            Err(e) => panic!("{e}"),
        }
    }
}
