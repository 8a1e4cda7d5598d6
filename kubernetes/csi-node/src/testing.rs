//! Test kit: a programmable engine, a log that can be read, and a driver served on a real
//! unix socket in a temporary directory.

use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_proto::csi::identity_client::IdentityClient;
use csi_proto::csi::node_client::NodeClient;
use parking_lot::Mutex;
use slog::Drain;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};
use volumes::{
    Bytes, CapacityRange, Condition, EnginePhase, ExpandError, Expanded, Publish, PublishError,
    Stats, StatsError, StatsUsage, Unpublish, VolumeId,
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
}

/// What the engine answers next; what is not programmed succeeds.
#[derive(Debug)]
pub(crate) enum Answer {
    Publish(PublishError),
    Stats(Result<Stats, StatsError>),
    Health(Vec<Condition>),
    Expand(Result<Expanded, ExpandError>),
    /// Publish waits for [`FakeEngine::release`].
    Hold,
    Panic,
}

#[derive(Debug, Default)]
pub(crate) struct FakeEngine {
    pub(crate) phase: Mutex<EnginePhase>,
    pub(crate) answers: Mutex<VecDeque<Answer>>,
    pub(crate) calls: Mutex<Vec<Call>>,
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

#[tonic::async_trait]
impl Engine for FakeEngine {
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
    pub(crate) node: NodeClient<Channel>,
    pub(crate) channel: Channel,
}

pub(crate) async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).expect("path");
    endpoint.connect().await.expect("the socket is served")
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Client {
        let channel = connect(socket).await;
        let identity = IdentityClient::new(channel.clone());
        let node = NodeClient::new(channel.clone());
        Client { identity, node, channel }
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
