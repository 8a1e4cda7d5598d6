//! Test kit: a programmable engine, a log that can be read, and a driver served on a real
//! unix socket in a temporary directory.

use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_proto::csi::controller_client::ControllerClient;
use csi_proto::csi::identity_client::IdentityClient;
use csi_proto::csi::node_client::NodeClient;
use parking_lot::Mutex;
use slog::Drain;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};
use volumes::{
    Bytes, CapacityRange, CapacityView, Condition, CreateError, CreateSnapshot, CreateVolume,
    DeleteError, EnginePhase, ExpandError, Expanded, Inodes, OwnerTag, Publish, PublishError,
    Snapshot, SnapshotError, SnapshotId, Stats, StatsError, StatsUsage, Stored, StoredState,
    Trouble, Unpublish, Volume, VolumeId, VolumeKind,
};

use crate::config::CsiConfig;
use crate::engine::Engine;
use crate::runnable::csi_app;
use crate::server::serve;
use crate::socket::BoundSocket;

/// What the engine was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Publish(Publish),
    Unpublish(Unpublish),
    Stats(VolumeId, PathBuf),
    Health(VolumeId),
    Expand(VolumeId, CapacityRange),
    Create(Box<CreateVolume>),
    Delete(VolumeId),
    Snapshot(CreateSnapshot),
    DeleteSnapshot(SnapshotId),
}

/// What the engine answers next; what is not programmed succeeds.
#[derive(Debug)]
pub(crate) enum Answer {
    Publish(PublishError),
    Stats(Result<Stats, StatsError>),
    Health(Vec<Condition>),
    Expand(Result<Expanded, ExpandError>),
    Create(CreateError),
    Delete(DeleteError),
    Snapshot(SnapshotError),
    /// Of a look-up or a list.
    Down(Trouble),
    /// Publish waits for [`FakeEngine::release`].
    Hold,
    Panic,
}

#[derive(Debug, Default)]
pub(crate) struct FakeEngine {
    pub(crate) phase: Mutex<EnginePhase>,
    pub(crate) answers: Mutex<VecDeque<Answer>>,
    pub(crate) calls: Mutex<Vec<Call>>,
    /// What look-ups and lists find, in order of the ids.
    pub(crate) volumes: Mutex<Vec<Stored>>,
    pub(crate) snapshots: Mutex<Vec<Snapshot>>,
    /// Publish has begun to wait.
    pub(crate) held: Notify,
    pub(crate) release: Notify,
}

impl FakeEngine {
    pub(crate) fn ready() -> Arc<FakeEngine> {
        let engine = FakeEngine::default();
        *engine.phase.lock() = EnginePhase::Ready;
        Arc::new(engine)
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.answers.lock().push_back(answer);
    }

    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }

    fn up(&self) -> Result<(), Trouble> {
        match self.answers.lock().pop_front() {
            None => Ok(()),
            Some(Answer::Down(t)) => Err(t),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn published(&self) -> Result<(), PublishError> {
        let next = self.answers.lock().pop_front();
        match next {
            None => Ok(()),
            Some(Answer::Publish(e)) => Err(e),
            Some(Answer::Hold) => {
                self.held.notify_one();
                self.release.notified().await;
                Ok(())
            }
            Some(Answer::Panic) => panic!("the engine's caller panics"),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }
}

pub(crate) fn sample_stats() -> Stats {
    Stats {
        bytes: StatsUsage { total: 1 << 30, used: 4096, available: (1 << 30) - 4096 },
        inodes: Some(StatsUsage { total: 100_000, used: 1, available: 99_999 }),
        conditions: Vec::new(),
    }
}

pub(crate) fn stored(id: &str) -> Stored {
    Stored {
        id: Some(VolumeId::parse(id).expect("id")),
        entry: id.to_owned(),
        name: id.to_owned(),
        kind: VolumeKind::Filesystem,
        state: StoredState::Ready,
        capacity: Bytes(1 << 30),
        project_id: 7,
        owner: OwnerTag::none(),
        source: None,
        conditions: Vec::new(),
    }
}

pub(crate) fn sample_snapshot(id: &str, source: &str) -> Snapshot {
    Snapshot {
        id: SnapshotId::parse(id).expect("id"),
        name: id.to_owned(),
        source: VolumeId::parse(source).expect("id"),
        kind: VolumeKind::Filesystem,
        size: Bytes(1 << 30),
        pinned: Bytes(4096),
        created: std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_500),
        atomic: true,
    }
}

#[tonic::async_trait]
impl Engine for FakeEngine {
    async fn create(&self, request: CreateVolume) -> Result<Volume, CreateError> {
        let (id, kind) = (VolumeId::from_name(&request.name).expect("name"), request.kind);
        let capacity = request.capacity.required.unwrap_or(Bytes(1 << 30));
        self.calls.lock().push(Call::Create(Box::new(request)));
        match self.answers.lock().pop_front() {
            None => Ok(Volume {
                id,
                kind,
                capacity,
                limit: capacity,
                inodes: Inodes(16),
                project_id: 7,
            }),
            Some(Answer::Create(e)) => Err(e),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn delete(&self, id: &VolumeId) -> Result<(), DeleteError> {
        self.calls.lock().push(Call::Delete(id.clone()));
        match self.answers.lock().pop_front() {
            None => Ok(()),
            Some(Answer::Delete(e)) => Err(e),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn find(&self, id: &VolumeId) -> Result<Option<Stored>, Trouble> {
        self.up()?;
        Ok(self.volumes.lock().iter().find(|s| s.id.as_ref() == Some(id)).cloned())
    }

    async fn page(&self, after: Option<VolumeId>, max: usize) -> Result<Vec<Stored>, Trouble> {
        self.up()?;
        let all = self.volumes.lock();
        let ready = all.iter().filter(|s| s.state == StoredState::Ready && s.id > after);
        Ok(ready.take(max).cloned().collect())
    }

    async fn snapshot(&self, request: CreateSnapshot) -> Result<Snapshot, SnapshotError> {
        let made = sample_snapshot(&request.name, request.source.as_str());
        self.calls.lock().push(Call::Snapshot(request));
        match self.answers.lock().pop_front() {
            None => Ok(made),
            Some(Answer::Snapshot(e)) => Err(e),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), DeleteError> {
        self.calls.lock().push(Call::DeleteSnapshot(id.clone()));
        match self.answers.lock().pop_front() {
            None => Ok(()),
            Some(Answer::Delete(e)) => Err(e),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, Trouble> {
        self.up()?;
        Ok(self.snapshots.lock().iter().find(|s| s.id == *id).cloned())
    }

    async fn snapshots(
        &self,
        after: Option<SnapshotId>,
        source: Option<VolumeId>,
        max: usize,
    ) -> Result<Vec<Snapshot>, Trouble> {
        self.up()?;
        let all = self.snapshots.lock();
        let fits = |s: &&Snapshot| {
            after.as_ref().is_none_or(|a| s.id > *a)
                && source.as_ref().is_none_or(|v| s.source == *v)
        };
        Ok(all.iter().filter(fits).take(max).cloned().collect())
    }

    fn capacity(&self) -> CapacityView {
        CapacityView { max_volume: Bytes(5 << 30), ..CapacityView::default() }
    }

    fn can_snapshot(&self) -> bool {
        !self.snapshots.lock().is_empty()
    }

    async fn publish(&self, request: Publish) -> Result<(), PublishError> {
        self.calls.lock().push(Call::Publish(request));
        self.published().await
    }

    async fn unpublish(&self, request: Unpublish) -> Result<(), PublishError> {
        self.calls.lock().push(Call::Unpublish(request));
        self.published().await
    }

    async fn stats(&self, id: &VolumeId, at: &Path) -> Result<Stats, StatsError> {
        self.calls.lock().push(Call::Stats(id.clone(), at.to_owned()));
        match self.answers.lock().pop_front() {
            None => Ok(sample_stats()),
            Some(Answer::Stats(result)) => result,
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn health(&self, id: &VolumeId) -> Result<Vec<Condition>, StatsError> {
        self.calls.lock().push(Call::Health(id.clone()));
        match self.answers.lock().pop_front() {
            None => Ok(Vec::new()),
            Some(Answer::Health(conditions)) => Ok(conditions),
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    async fn expand(&self, id: &VolumeId, to: CapacityRange) -> Result<Expanded, ExpandError> {
        self.calls.lock().push(Call::Expand(id.clone(), to));
        match self.answers.lock().pop_front() {
            None => Ok(Expanded { capacity: Bytes(1 << 30), node_expansion_required: false }),
            Some(Answer::Expand(result)) => result,
            Some(other) => panic!("programmed for another call: {other:?}"),
        }
    }

    fn phase(&self) -> EnginePhase {
        self.phase.lock().clone()
    }
}

/// Keeps every record as `LEVEL message key=value …`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn logger(&self) -> slog::Logger {
        slog::Logger::root(self.clone().fuse(), slog::o!())
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

// slog wants a drain that a panic cannot leave half-written; a Vec push cannot be.
impl std::panic::UnwindSafe for Lines {}
impl std::panic::RefUnwindSafe for Lines {}

struct Pairs(String);

impl slog::Serializer for Pairs {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        use std::fmt::Write;
        write!(self.0, " {key}={value}").map_err(slog::Error::from)
    }
}

impl Drain for Lines {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
        let mut pairs = Pairs(format!("{} {}", record.level().as_str(), record.msg()));
        slog::KV::serialize(&record.kv(), record, &mut pairs).expect("text");
        self.0.lock().push(pairs.0);
        Ok(())
    }
}

/// A temporary kubelet root with the driver's configuration in it.
pub(crate) struct Home {
    pub(crate) config: CsiConfig,
    _dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = CsiConfig::new("hamlet-0", dir.path());
        Home { config, _dir: dir }
    }
}

/// A client's side of a served driver.
pub(crate) struct Client {
    pub(crate) identity: IdentityClient<Channel>,
    pub(crate) controller: ControllerClient<Channel>,
    pub(crate) node: NodeClient<Channel>,
}

pub(crate) async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).expect("path");
    endpoint.connect().await.expect("the socket is served")
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Client {
        let channel = connect(socket).await;
        let identity = IdentityClient::new(channel.clone());
        let controller = ControllerClient::new(channel.clone());
        let node = NodeClient::new(channel);
        Client { identity, controller, node }
    }
}

/// Serves `engine` on a socket while `body` runs, and ends with it.
pub(crate) async fn with_driver<F, Fut>(home: &Home, engine: &Arc<FakeEngine>, log: &Lines, body: F)
where
    F: FnOnce(Client) -> Fut,
    Fut: Future<Output = ()>,
{
    let config = Arc::new(home.config.clone());
    let app = csi_app(&config, engine.clone(), log.logger());
    let socket = BoundSocket::bind(&config.socket).await.expect("bind");
    let (done, finished) = tokio::sync::oneshot::channel();
    let served = serve(socket, app, 0, finished);
    let used = async {
        body(Client::connect(&config.socket).await).await;
        done.send(()).expect("the server still runs");
    };
    let (end, ()) = tokio::join!(served, used);
    end.expect("serves until told").expect("told");
}
