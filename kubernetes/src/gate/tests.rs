//! Gates in a tree on a paused clock, with children that are no processes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use parking_lot::Mutex;
use supervisor::testing::Harness;
use supervisor::{Child, ChildStats, Dn};

use super::*;

struct Fixed(watch::Receiver<bool>);

impl Probe for Fixed {
    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        let ready = *self.0.borrow();
        async move { if ready { Ok(()) } else { Err("not yet".to_owned()) } }.boxed()
    }
}

/// Keeps the order in which children were started.
#[derive(Clone, Default)]
struct Starts(Arc<Mutex<Vec<String>>>);

struct Fake(watch::Sender<bool>);

impl Spawner for Starts {
    fn spawn(&self, dn: &Dn, _: &ChildSpec) -> io::Result<Box<dyn Child>> {
        self.0.lock().push(dn.to_string());
        Ok(Box::new(Fake(watch::Sender::new(false))))
    }
}

impl Child for Fake {
    fn pid(&self) -> i32 {
        42
    }
    fn take_stdout(&mut self) -> Option<OwnedFd> {
        None
    }
    fn take_stderr(&mut self) -> Option<OwnedFd> {
        None
    }
    fn wait(&self) -> BoxFuture<'static, ExitStatus> {
        let mut ended = self.0.subscribe();
        async move {
            let _ = ended.wait_for(|ended| *ended).await;
            ExitStatus::from_raw(0)
        }
        .boxed()
    }
    fn scope_empty(&self) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
    fn signal(&self, _: i32) -> io::Result<()> {
        self.0.send_replace(true);
        Ok(())
    }
    fn kill_scope(&self) -> io::Result<()> {
        self.0.send_replace(true);
        Ok(())
    }
    fn stats(&self) -> ChildStats {
        ChildStats::default()
    }
}

fn child(
    starts: &Starts,
    after: &[&Gate],
    opens: &Gate,
    ready: &watch::Sender<bool>,
) -> GatedChild {
    let ready = ready.subscribe();
    GatedChild {
        after: after.iter().map(|g| (*g).clone()).collect(),
        opens: Some(opens.clone()),
        spec: Arc::new(move |_| Ok(ChildSpec::new("/bin/x").probe(Fixed(ready.clone())))),
        spawner: Arc::new(starts.clone()),
        run: "/run/hamlet".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn h3_a_child_starts_when_its_gate_opens_and_survives_its_neighbours_restarts() {
    let (starts, ready) = (Starts::default(), watch::Sender::new(false));
    let (first, second) = (Gate::new("the first"), Gate::new("the second"));
    let a = child(&starts, &[], &first, &ready);
    let b = child(&starts, &[&first], &second, &watch::Sender::new(true));
    let tree = Harness::start(vec![
        a.service(Name::from_static("a"), Policy::default()),
        b.service(Name::from_static("b"), Policy::default()),
    ]);
    tree.settled().await;
    assert_eq!(*starts.0.lock(), ["root.a"]);
    assert_eq!(tree.node("root.b").note.as_deref(), Some("waiting for the first"));

    ready.send_replace(true);
    tree.reached("root.b", supervisor::State::Healthy).await;
    assert_eq!(*starts.0.lock(), ["root.a", "root.b"]);

    for _ in 0..3 {
        let starts_before = tree.node("root.a").starts;
        tree.supervisor.restart(&tree.node("root.a").dn).await.unwrap();
        while tree.node("root.a").starts == starts_before {
            tree.settled().await;
        }
        tree.reached("root.a", supervisor::State::Healthy).await;
    }
    assert_eq!(tree.node("root.b").starts, 1);
    assert_eq!(starts.0.lock().iter().filter(|dn| *dn == "root.a").count(), 4);
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn x5_a_restarted_child_closes_its_gate_until_it_is_ready_again() {
    let (starts, ready) = (Starts::default(), watch::Sender::new(true));
    let gate = Gate::new("it");
    let a = child(&starts, &[], &gate, &ready);
    let tree = Harness::start(vec![a.service(Name::from_static("a"), Policy::default())]);
    tree.reached("root.a", supervisor::State::Healthy).await;
    assert!(*gate.open.borrow());
    ready.send_replace(false);
    let starts_before = tree.node("root.a").starts;
    tree.supervisor.restart(&tree.node("root.a").dn).await.unwrap();
    while tree.node("root.a").starts == starts_before {
        tree.settled().await;
    }
    tree.settled().await;
    assert!(!*gate.open.borrow());
    tree.end().await;
}

#[tokio::test(start_paused = true)]
async fn t12_a_waiting_child_ends_at_once_when_asked() {
    let starts = Starts::default();
    let never = Gate::new("what never comes");
    let a = child(&starts, &[&never], &Gate::new("it"), &watch::Sender::new(true));
    let tree = Harness::start(vec![a.service(Name::from_static("a"), Policy::default())]);
    tree.settled().await;
    tree.end().await;
    assert!(starts.0.lock().is_empty());
}
