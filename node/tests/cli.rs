//! `hamlet` as a command against the real routes: over a unix socket, the network and the host channel.
#![expect(clippy::unwrap_used, reason = "helpers of a test count as ordinary functions")]

#[path = "../dashboard/tests/fixture/mod.rs"]
mod fixture;

use std::io::{self, Write};
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use dashboard::{Ask, Local, Peer};
use fixture::{TOKEN, World};
use jiff::Timestamp;
use logtree::{Dn, Level};
use node::cli::{self, Screen, args::Cli, render::Style};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;

const KUBELET: &str = "root.kubernetes.worker.kubelet";

/// What a command has written so far.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    fn screen(&self) -> Screen {
        Screen::to(self.clone(), Style { width: None, colour: false, now: Timestamp::now() })
    }

    /// Waits until it has this text.
    async fn has(&self, part: &str) {
        let look = async {
            while !self.text().contains(part) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), look).await;
        assert!(found.is_ok(), "no {part:?} in {}", self.text());
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A node's routes on sockets of their own; dropping it cuts every connection, as a crash does.
struct Served {
    world: World,
    runtime: Option<Runtime>,
    folder: Arc<tempfile::TempDir>,
    tcp: String,
}

impl Served {
    fn start() -> Served {
        let now = Timestamp::now();
        let world = fixture::world(fixture::troubled(now), now);
        fixture::write_log(&world.logs);
        Served::at(world, Arc::new(tempfile::tempdir().unwrap()))
    }

    fn at(world: World, folder: Arc<tempfile::TempDir>) -> Served {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let routes = dashboard::router(world.sources.clone(), world.access.clone());
        let control = folder.path().join("control.sock");
        let _ = std::fs::remove_file(&control);
        let local = Local::new(
            world.sources.clone(),
            world.access.clone(),
            slog::Logger::root(slog::Discard, slog::o!()),
        );
        // Bound before anybody connects; the listeners of the standard library need no runtime for that.
        let host_path = folder.path().join(format!("host-{}", uuid()));
        let unix = StdUnixListener::bind(&control).unwrap();
        let host = StdUnixListener::bind(&host_path).unwrap();
        let tcp = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap().to_string();
        unix.set_nonblocking(true).unwrap();
        host.set_nonblocking(true).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let _ = std::fs::remove_file(folder.path().join("host.sock"));
        std::os::unix::fs::symlink(host_path, folder.path().join("host.sock")).unwrap();
        let trusted = routes.clone().layer(Extension(Peer::Socket { pid: 7 }));
        runtime.spawn(
            async move { axum::serve(UnixListener::from_std(unix).unwrap(), trusted).await },
        );
        runtime
            .spawn(async move { axum::serve(TcpListener::from_std(tcp).unwrap(), routes).await });
        runtime
            .spawn(async move { host_channel(UnixListener::from_std(host).unwrap(), local).await });
        Served { world, runtime: Some(runtime), folder, tcp: address }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    fn host(&self) -> String {
        format!("host:{}", self.folder.path().join("host.sock").display())
    }

    fn say(&self, text: &str) {
        slog::info!(self.world.logs.logger(&Dn::from_static(KUBELET)), "{text}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}

/// As the node serves its virtio-serial port: one line, one answer.
async fn host_channel(listener: UnixListener, local: Local) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        // Left over from somebody who did not wait for it.
        let _ = stream.get_mut().write_all(b"{\"id\":0,\"ok\":{}}\n").await;
        let mut line = String::new();
        while stream.read_line(&mut line).await.unwrap_or(0) > 0 {
            let ask: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(ask["op"], "api");
            let text = |key: &str| ask[key].as_str().unwrap().to_owned();
            let ask_local = Ask { method: text("method"), path: text("path"), body: text("body") };
            let answer = match local.ask(Peer::Host, ask_local).await {
                Ok(r) => json!({ "id": ask["id"], "ok": { "status": r.status, "body": r.body } }),
                Err(e) => {
                    json!({ "id": ask["id"], "error": { "code": "bad_request", "message": e.to_string(), "hint": "" } })
                }
            };
            if stream.get_mut().write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                break;
            }
            line.clear();
        }
    }
}

/// Exit status and output of a command.
async fn run(endpoint: &str, words: &[&str]) -> (u8, String) {
    let output = Output::default();
    let line = [&["hamlet", "--endpoint", endpoint], words].concat();
    let status = cli::run(line, &mut output.screen()).await;
    (status, output.text())
}

/// What a command says when it fails, with its exit status.
async fn failure(endpoint: &str, words: &[&str]) -> (u8, String) {
    use clap::Parser;
    let line = [&["hamlet", "--endpoint", endpoint], words].concat();
    let cli = Cli::try_parse_from(line).unwrap();
    let failure = cli::execute(&cli, &mut Output::default().screen()).await.unwrap_err();
    (failure.status(), failure.text().unwrap())
}

fn unix(served: &Served) -> String {
    format!("unix:{}", served.socket().display())
}

#[tokio::test]
async fn c1_every_command_works_over_the_socket_and_the_host_channel_alike() {
    let served = Served::start();
    for (words, part) in [
        (&["tree"][..], "├─ provisioner"),
        (&["tree", "worker"], "node restarting: root.kubernetes.worker.provisioner: panicked"),
        (&["logs", "-n", "3"], "start in 4 s of=root.kubernetes.worker.provisioner"),
        (&["logs", "provisioner", "--grep", "claim seen"], "claim=default/demo-data"),
        (&["crash", "provisioner"], "at kubernetes/provisioner/src/plan.rs:214:18"),
        (&["volumes"], "default/demo-data"),
        (&["node"], "hamlet-0"),
        (&["top", "--once"], "root.kubernetes.worker.kubelet"),
        (&["restart", "kubelet"], "root.kubernetes.worker.kubelet is being restarted"),
        (&["level", "kubelet=trace", "--for", "2m"], "logs at trace for 2 min"),
        (&["poweroff", "--force"], "poweroff begins"),
    ] {
        for endpoint in [unix(&served), served.host()] {
            let (status, text) = run(&endpoint, words).await;
            assert_eq!(status, 0, "{words:?} at {endpoint}: {text}");
            assert!(text.contains(part), "{words:?} at {endpoint}: {text}");
        }
    }
    assert_eq!(served.world.logs.level(&Dn::from_static(KUBELET)), Level::Trace);
    let asked = served.world.asked.lock().clone();
    let by = |who: &str| format!("poweroff force=true by {who}");
    assert_eq!(
        asked,
        [
            format!("restart {KUBELET}"),
            format!("restart {KUBELET}"),
            by("pid 7 at the control socket"),
            by("the host channel"),
        ]
    );
}

#[tokio::test]
async fn c1_programs_get_the_nodes_own_json() {
    let served = Served::start();
    let at = unix(&served);
    let json = async |words: &[&str]| -> Value {
        let (status, text) = run(&at, words).await;
        assert!(status <= 1, "{words:?}: {text}");
        assert_eq!(text.matches('\n').count(), 1, "{words:?}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(json(&["tree", "-o", "json"]).await["nodes"].as_array().unwrap().len(), 25);
    let below = json(&["-o", "json", "tree", "controlplane"]).await;
    assert_eq!(below["nodes"].as_array().unwrap().len(), 6);
    assert_eq!(json(&["health", "-o", "json"]).await["verdict"], "restarting");
    assert_eq!(
        json(&["crash", "provisioner", "-o", "json"]).await["last_death"]["class"],
        "panicked"
    );
    assert_eq!(json(&["node", "-o", "json"]).await["node_name"], "hamlet-0");
    assert_eq!(json(&["logs", "-n", "1", "-o", "json"]).await["dn"], "supervisor");
    assert_eq!(json(&["restart", "kubelet", "-o", "json"]).await["restarted"], KUBELET);
}

#[tokio::test]
async fn c3_health_is_an_exit_status() {
    let served = Served::start();
    let at = unix(&served);
    let (status, text) = run(&at, &["health"]).await;
    assert_eq!(status, 1);
    assert!(text.starts_with("node restarting: root.kubernetes.worker.provisioner: "), "{text}");
    let waited = run(&at, &["health", "--wait", "ready", "--timeout", "1s"]).await;
    assert_eq!(waited.0, 1);
    let later = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        served.world.tree.send_replace(Arc::new(fixture::well(Timestamp::now())));
    };
    let ((status, text), ()) = tokio::join!(run(&at, &["health", "--wait", "ready"]), later);
    assert_eq!((status, text.as_str()), (0, "node ok\n"));
}

#[tokio::test]
async fn w9_a_token_reads_and_changes_nothing() {
    let served = Served::start();
    let at = format!("http://{}", served.tcp);
    assert_eq!(run(&at, &["--token", TOKEN, "volumes"]).await.0, 0);
    let (status, text) = failure(&at, &["volumes"]).await;
    assert_eq!(status, 1);
    assert!(text.contains("Give --token or HAMLET_TOKEN"), "{text}");
    for words in [&["restart", "kubelet"][..], &["level", "kubelet=trace"], &["reboot"]] {
        let (status, text) = failure(&at, &[words, &["--token", TOKEN]].concat()).await;
        assert_eq!(status, 1, "{words:?}");
        assert!(text.contains("for admins") && text.contains("control socket"), "{text}");
    }
    assert!(served.world.asked.lock().is_empty());
}

#[tokio::test]
async fn c3_what_fails_says_what_to_do_next() {
    let served = Served::start();
    let at = unix(&served);
    for (endpoint, words, status, says) in [
        (at.as_str(), &["logs", "kublet"][..], 4, "Did you mean root.kubernetes.worker.kubelet?"),
        (&at, &["crash", "nobody-like-this"], 4, "there is no service"),
        (&at, &["restart", "root"], 1, "root cannot be restarted"),
        ("unix:/nowhere.sock", &["tree"], 3, "From elsewhere give --endpoint"),
        ("http://127.0.0.1:1", &["tree"], 3, "cannot reach the node at http://127.0.0.1:1"),
        ("host:/nowhere.sock", &["tree"], 3, "one client"),
        ("gopher:x", &["tree"], 2, "endpoints look like"),
    ] {
        let (got, text) = failure(endpoint, words).await;
        assert_eq!(got, status, "{words:?} at {endpoint}: {text}");
        assert!(text.contains(says), "{words:?} at {endpoint}: {text}");
    }
    for wrong in [
        &[][..],
        &["fly"],
        &["logs", "--level", "loud"],
        &["level", "kubelet"],
        &["logs", "--raw", "--leveled"],
    ] {
        assert_eq!(run(&at, wrong).await.0, 2, "{wrong:?}");
    }
    let twice = Timestamp::now();
    let mut snapshot = fixture::well(twice);
    snapshot.nodes.push(Arc::new(fixture::healthy("root.kubelet", twice, 1)));
    served.world.tree.send_replace(Arc::new(snapshot));
    let (status, text) = failure(&at, &["logs", "kubelet"]).await;
    assert_eq!(status, 4);
    assert!(text.contains("root.kubelet\nroot.kubernetes.worker.kubelet"), "{text}");
}

#[tokio::test]
async fn c3_a_closed_pipe_ends_a_command_quietly() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let served = Served::start();
    let style = Style { width: None, colour: false, now: Timestamp::now() };
    let mut screen = Screen::to(Closed, style);
    let at = unix(&served);
    assert_eq!(cli::run(["hamlet", "--endpoint", &at, "logs", "-f"], &mut screen).await, 0);
}

#[tokio::test]
async fn c2_all_of_a_long_log_comes_in_order_and_once() {
    let served = Served::start();
    for n in 0..3500 {
        served.say(&format!("line {n}"));
    }
    for (endpoint, words, expected) in [
        (unix(&served), &["-n", "all"][..], 3500),
        (unix(&served), &["-n", "3210"], 3210),
        (served.host(), &["--since", "1h"], 3500),
        (served.host(), &[], 200),
        (unix(&served), &["-n", "0"], 0),
        (unix(&served), &["--since", "2100-01-01T00:00:00Z"], 0),
    ] {
        let words = [&["logs", KUBELET, "--grep", "line "], words].concat();
        let (status, text) = run(&endpoint, &words).await;
        assert_eq!(status, 0);
        let numbers: Vec<usize> =
            text.lines().map(|l| l.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        let wanted: Vec<usize> = (3500 - expected..3500).collect();
        assert_eq!(numbers, wanted, "{words:?}");
    }
}

#[tokio::test]
async fn c2_follow_goes_on_over_lost_connections_and_says_when_the_node_was_rebooted() {
    for by_host in [false, true] {
        let served = Served::start();
        served.say("first");
        let endpoint = if by_host { served.host() } else { unix(&served) };
        let output = Output::default();
        let mut screen = output.screen();
        let line = ["hamlet", "--endpoint", &endpoint, "logs", "kubelet", "-f", "-n", "1"];
        let command = cli::run(line, &mut screen);
        let story = async move {
            output.has("] first").await;
            served.say("second");
            output.has("] second").await;
            // The dashboard dies and comes back; the log goes on meanwhile.
            let (folder, world) = cut(served);
            slog::info!(world.logs.logger(&Dn::from_static(KUBELET)), "meanwhile");
            let served = Served::at(world, folder);
            output.has("] meanwhile").await;
            // The node is rebooted.
            let (folder, _) = cut(served);
            let now = Timestamp::now();
            let world = fixture::world(fixture::well(now), now);
            world.node.send_modify(|n| Arc::make_mut(n).boot_id = "other-boot".to_owned());
            let served = Served::at(world, folder);
            served.say("hello again");
            output.has("] hello again").await;
            let text = output.text();
            for once in
                ["] first", "] second", "] meanwhile", "-- boot other-boot --", "] hello again"]
            {
                assert_eq!(text.matches(once).count(), 1, "{once} in {text}");
            }
        };
        tokio::select! {
            status = command => panic!("the command ended with {status}"),
            () = story => {}
        }
    }
}

/// Cuts every connection; what the node knows stays.
fn cut(mut served: Served) -> (Arc<tempfile::TempDir>, World) {
    let folder = served.folder.clone();
    let now = Timestamp::now();
    let world = std::mem::replace(&mut served.world, fixture::world(fixture::well(now), now));
    drop(served);
    (folder, world)
}

#[tokio::test]
async fn c1_watching_the_tree_draws_it_on_every_change() {
    let served = Served::start();
    let output = Output::default();
    let mut screen = output.screen();
    let at = unix(&served);
    let command = cli::run(["hamlet", "--endpoint", &at, "tree", "--watch"], &mut screen);
    let story = async {
        output.has("node restarting").await;
        served.world.tree.send_replace(Arc::new(fixture::well(Timestamp::now())));
        output.has("node ok").await;
    };
    tokio::select! {
        status = command => panic!("the command ended with {status}"),
        () = story => {}
    }
}

#[tokio::test]
async fn c1_completions_are_written_for_every_shell_without_a_node() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (status, text) = run("unix:/nowhere", &["completions", shell]).await;
        assert_eq!(status, 0);
        assert!(text.contains("poweroff"), "{shell}");
    }
}

#[test]
fn b1_the_binary_is_a_command_unless_it_is_pid_1() {
    let hamlet = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hamlet"));
        command
            .args(words)
            .env_remove("HAMLET_ENDPOINT")
            .env_remove("HAMLET_TOKEN")
            .output()
            .unwrap()
    };
    let version = hamlet(&["--version"]);
    assert!(version.status.success());
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("hamlet {}\n", node::VERSION));
    assert_eq!(hamlet(&["init"]).status.code(), Some(2));
    assert_eq!(hamlet(&[]).status.code(), Some(2));
    assert_eq!(hamlet(&["tree", "--endpoint", "/nowhere.sock"]).status.code(), Some(3));
}
