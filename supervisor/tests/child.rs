//! Children: a fake spawner with real pipes, so that no process is needed.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use supervisor::testing::Harness;
use supervisor::{
    Child, ChildSpec, ChildStats, Dn, KillScope, Name, Probe, Spawner, State, StopSpec, child,
};
use tokio::sync::watch;

/// What the test sees and does of a fake process.
#[derive(Debug, Default)]
struct World {
    spawned: usize,
    signals: Vec<i32>,
    kills: usize,
    dropped: usize,
    out: Option<io::PipeWriter>,
    err: Option<io::PipeWriter>,
    exit: Option<watch::Sender<Option<i32>>>,
    refuse: bool,
    /// Exits by itself on a signal.
    obeys: bool,
    /// Does not die of a kill before it is told to.
    lingers: bool,
}

impl World {
    /// The first end counts.
    fn end(&self, raw: i32) {
        let Some(exit) = &self.exit else { return };
        exit.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(raw);
            first
        });
    }
}

#[derive(Debug, Clone, Default)]
struct Fake(Arc<Mutex<World>>);

impl Fake {
    fn exit(&self, raw: i32) {
        let mut world = self.0.lock();
        world.out = None;
        world.err = None;
        world.end(raw);
    }
}

struct FakeChild {
    world: Arc<Mutex<World>>,
    out: Option<OwnedFd>,
    err: Option<OwnedFd>,
    exit: watch::Receiver<Option<i32>>,
}

impl Spawner for Fake {
    fn spawn(&self, _: &Dn, spec: &ChildSpec) -> io::Result<Box<dyn Child>> {
        let mut world = self.0.lock();
        if world.refuse {
            let text = format!("cannot execute {}: no such file", spec.program.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let (out, out_w) = io::pipe()?;
        let (err, err_w) = io::pipe()?;
        let (tx, exit) = watch::channel(None);
        world.spawned += 1;
        world.out = Some(out_w);
        world.err = Some(err_w);
        world.exit = Some(tx);
        let child =
            FakeChild { world: self.0.clone(), out: Some(out.into()), err: Some(err.into()), exit };
        Ok(Box::new(child))
    }
}

impl Child for FakeChild {
    fn pid(&self) -> i32 {
        42
    }

    fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.out.take()
    }

    fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.err.take()
    }

    fn wait(&self) -> BoxFuture<'static, ExitStatus> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let raw = exit.wait_for(Option::is_some).await.map_or(Some(9), |raw| *raw);
            ExitStatus::from_raw(raw.unwrap_or(9))
        })
    }

    fn scope_empty(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn signal(&self, signal: i32) -> io::Result<()> {
        let mut world = self.world.lock();
        world.signals.push(signal);
        if world.obeys {
            world.out = None;
            world.err = None;
            world.end(signal);
        }
        Ok(())
    }

    fn kill_scope(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        world.kills += 1;
        if !world.lingers {
            world.out = None;
            world.err = None;
            world.end(9);
        }
        Ok(())
    }

    fn stats(&self) -> ChildStats {
        ChildStats { pid: 42, ..ChildStats::default() }
    }
}

impl Drop for FakeChild {
    fn drop(&mut self) {
        // As the contract of `Child` says.
        if self.exit.borrow().is_none() {
            let _ = self.kill_scope();
        }
        self.world.lock().dropped += 1;
    }
}

fn spec() -> ChildSpec {
    ChildSpec::new("/usr/bin/etcd")
}

fn start(spec: ChildSpec) -> (Harness, Fake) {
    let fake = Fake::default();
    fake.0.lock().obeys = true;
    let service = child(Name::from_static("etcd"), spec, Arc::new(fake.clone()));
    let tree = Harness::start(vec![service]);
    tree.may_die("root.etcd");
    (tree, fake)
}

/// Waits on the real reactor and blocking pool, which a paused clock does not wait for.
async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

#[derive(Clone, Default)]
struct Gate(Arc<AtomicBool>);

impl Probe for Gate {
    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        let open = self.0.load(Ordering::Relaxed);
        Box::pin(async move { if open { Ok(()) } else { Err("no leader yet".to_owned()) } })
    }
}

#[tokio::test(start_paused = true)]
async fn h3_r3_r7_healthy_is_said_only_when_the_probe_passes_and_the_child_is_shown() {
    let gate = Gate::default();
    let (tree, fake) = start(spec().probe(gate.clone()));
    until(|| fake.0.lock().spawned == 1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(tree.state("root.etcd"), "new running");
    assert_eq!(tree.node("root.etcd").note.as_deref(), Some("no leader yet"));
    gate.0.store(true, Ordering::Relaxed);
    tree.reached("root.etcd", State::Healthy).await;
    let node = tree.node("root.etcd");
    assert_eq!((node.note.clone(), node.child.unwrap().pid), (None, 42));
    tree.end().await;
    assert_eq!(fake.0.lock().signals, [15]);
    assert_eq!(fake.0.lock().dropped, 1);
}

#[tokio::test(start_paused = true)]
async fn r3_an_exit_is_a_failure_with_code_and_last_line_of_stderr() {
    let (tree, fake) = start(spec());
    tree.reached("root.etcd", State::Healthy).await;
    {
        let mut world = fake.0.lock();
        world.out.as_mut().unwrap().write_all(b"{\"level\":\"warn\",\"msg\":\"slow\"}\n").unwrap();
        world.err.as_mut().unwrap().write_all(b"first\nno space left\n").unwrap();
    }
    fake.exit(1 << 8);
    until(|| tree.node("root.etcd").deaths == 1).await;
    let death = tree.node("root.etcd").last_death.clone().unwrap();
    assert!(death.text.starts_with("exited 1 after "), "{death:?}");
    assert!(death.text.ends_with(": no space left"), "{death:?}");
    let log = tree.log_of("root.etcd");
    assert!(log.contains("slow") && log.contains("R first"), "{log}");
    tree.reached("root.etcd", State::Healthy).await;
    assert_eq!(fake.0.lock().spawned, 2);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn r3_an_exit_with_0_is_done_for_one_shots_and_a_death_for_daemons() {
    let (tree, fake) = start(ChildSpec { one_shot: true, ..spec() });
    until(|| fake.0.lock().spawned == 1).await;
    fake.exit(0);
    until(|| tree.state("root.etcd") == "done ended").await;
    tree.end().await;

    let (tree, fake) = start(spec());
    tree.reached("root.etcd", State::Healthy).await;
    fake.exit(0);
    until(|| tree.node("root.etcd").deaths == 1).await;
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn r3_a_program_that_cannot_be_executed_is_named() {
    let fake = Fake::default();
    fake.0.lock().refuse = true;
    let service = child(Name::from_static("etcd"), spec(), Arc::new(fake));
    let tree = Harness::start(vec![service]);
    tree.may_die("root.etcd");
    until(|| tree.find("root.etcd").is_some_and(|n| n.deaths == 1)).await;
    let death = tree.node("root.etcd").last_death.clone().unwrap();
    assert_eq!(death.text, "cannot execute /usr/bin/etcd: no such file");
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn r4_who_ignores_the_signal_is_killed_after_the_grace() {
    let stop = StopSpec { signal: 2, grace: Duration::from_secs(30) };
    let (tree, fake) = start(ChildSpec { stop, ..spec() });
    fake.0.lock().obeys = false;
    tree.reached("root.etcd", State::Healthy).await;
    let before = tokio::time::Instant::now();
    tree.end().await;
    assert!(before.elapsed() >= Duration::from_secs(30));
    assert!(before.elapsed() < Duration::from_secs(35), "before the stop deadline");
    let world = fake.0.lock();
    assert_eq!(world.signals, [2]);
    assert!(world.kills >= 1 && world.dropped == 1);
}

#[tokio::test(start_paused = true)]
async fn r4_scope_process_leaves_alone_what_the_child_has_started() {
    let (tree, fake) = start(ChildSpec { kill_scope: KillScope::Process, ..spec() });
    tree.reached("root.etcd", State::Healthy).await;
    tree.end().await;
    assert_eq!(fake.0.lock().kills, 0);
}

#[tokio::test(start_paused = true)]
async fn r5_grandchildren_that_keep_the_pipes_open_are_cut_after_a_second() {
    let (tree, fake) = start(spec());
    fake.0.lock().obeys = false;
    tree.reached("root.etcd", State::Healthy).await;
    // The writers stay open: somebody else holds them.
    let out = fake.0.lock().out.take();
    let err = fake.0.lock().err.take();
    fake.exit(0);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(tree.node("root.etcd").deaths, 0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(tree.node("root.etcd").deaths, 1);
    drop((out, err));
    fake.0.lock().obeys = true;
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn r4_an_aborted_node_has_exited_only_when_its_process_has() {
    let (tree, fake) = start(spec());
    fake.0.lock().obeys = false;
    fake.0.lock().lingers = true;
    tree.reached("root.etcd", State::Healthy).await;
    tree.supervisor.restart(&Dn::from_static("root.etcd")).await.unwrap();
    // TERM, grace, kill, stop deadline, abort: and the process still will not die.
    let mut view = tree.supervisor.view();
    view.wait_for(|s| s.nodes.iter().any(|n| n.phase.as_str() == "stuck")).await.unwrap();
    assert_eq!(fake.0.lock().dropped, 1, "the abort has dropped the child, which kills");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fake.0.lock().spawned, 1, "nothing starts beside the old process");
    let log = tree.log_of("root.etcd");
    assert!(log.contains("process"), "what it waits for is named: {log}");
    fake.0.lock().lingers = false;
    fake.exit(9);
    fake.0.lock().obeys = true;
    tree.reached("root.etcd", State::Healthy).await;
    assert_eq!(fake.0.lock().spawned, 2);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn r5_a_child_that_writes_without_newlines_fills_no_memory_and_is_read_to_its_end() {
    const BYTES: usize = 64 << 20;
    let (tree, fake) = start(spec());
    tree.reached("root.etcd", State::Healthy).await;
    let mut out = fake.0.lock().out.take().unwrap();
    #[expect(clippy::disallowed_methods, reason = "plays the child, which is no Runnable")]
    let writer = tokio::task::spawn_blocking(move || {
        let chunk = vec![b'x'; 1 << 16];
        for _ in 0..BYTES / chunk.len() {
            out.write_all(&chunk).unwrap();
        }
        out.write_all(b"\nlast\n").unwrap();
    });
    until(|| writer.is_finished()).await;
    until(|| tree.log_of("root.etcd").contains("R last")).await;
    let stats = tree.logs().stats();
    assert!(stats.retained_bytes < 1 << 20, "{}", stats.retained_bytes);
    let log = tree.log_of("root.etcd");
    assert!(log.contains(&format!("(+{} bytes)", BYTES - (4 << 10))), "the rest is counted");
    tree.end().await;
}
