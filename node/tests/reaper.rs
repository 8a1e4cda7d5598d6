//! The reaper and spawner in a process of their own, which takes over orphans as PID 1 does.
//!
//! One test function: the process has one reaper, and a test beside it that waits for a child of its own
//! would steal from it or lose to it.
#![expect(clippy::unwrap_used, reason = "helpers of a test count as ordinary functions")]

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logtree::Dn;
use node::process::{ProcessSpawner, Reaper, SpawnLayout};
use supervisor::{Child, ChildFile, ChildSpec, KillScope, Spawner};

/// Enough to meet the races between birth and death on two cores, quick enough for every run.
const CHILDREN: usize = 500;

fn shell(script: &str) -> ChildSpec {
    ChildSpec::new("/bin/sh").args(["-c", script])
}

#[test]
fn r1_to_r7_hold_for_a_process_that_owns_every_wait() {
    nodesys::reap::become_subreaper().unwrap();
    let reaper = Reaper::new();
    let thread = reaper.clone();
    #[expect(clippy::disallowed_methods, reason = "the reaper of this process")]
    std::thread::spawn(move || thread.run());
    let files = tempfile::tempdir().unwrap();
    let layout = SpawnLayout { cgroups: None, files: files.path().join("hamlet") };
    let spawner = Arc::new(ProcessSpawner::new(reaper.clone(), layout));

    r1_each_status_is_delivered_once_and_orphans_are_counted(&spawner, &reaper);
    r1_a_failed_exec_is_an_error_and_leaves_no_child(&spawner, &reaper);
    r2_a_child_gets_exactly_its_environment_session_and_signals(&spawner);
    r6_files_are_private_and_go_with_the_child(&spawner, files.path());
    r4_and_r7_signals_reach_the_living_and_dropping_kills(&spawner, &reaper);
    assert!(reaper.wait_childless(Duration::from_secs(10)), "something was left behind");
}

fn start(spawner: &ProcessSpawner, spec: &ChildSpec) -> Box<dyn Child> {
    spawner.spawn(&Dn::from_static("root.test"), spec).unwrap()
}

fn end(child: &dyn Child) -> std::process::ExitStatus {
    futures::executor::block_on(child.wait())
}

fn said(child: &mut Box<dyn Child>) -> String {
    let mut text = String::new();
    std::fs::File::from(child.take_stdout().unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn r1_each_status_is_delivered_once_and_orphans_are_counted(spawner: &ProcessSpawner, r: &Reaper) {
    let before = r.orphans();
    let children: Vec<(i32, Box<dyn Child>)> = (0..CHILDREN)
        .map(|n| {
            let code = i32::try_from(n % 200).unwrap();
            // Every fifth leaves an orphan behind, which ends after it.
            let orphan = if n % 5 == 0 { "(sleep 0.05 &) ; " } else { "" };
            (code, start(spawner, &shell(&format!("{orphan}exit {code}"))))
        })
        .collect();
    for (code, child) in &children {
        assert_eq!(end(child.as_ref()).code(), Some(*code));
        // A second look sees the same status: it was delivered once and kept.
        assert_eq!(end(child.as_ref()).code(), Some(*code));
    }
    assert!(r.wait_childless(Duration::from_secs(30)), "zombies or orphans are left");
    assert_eq!(r.orphans() - before, (CHILDREN / 5) as u64);
}

fn r1_a_failed_exec_is_an_error_and_leaves_no_child(spawner: &ProcessSpawner, r: &Reaper) {
    for n in 0..50 {
        let spec = ChildSpec::new(format!("/no/such/program-{n}"));
        let error = match spawner.spawn(&Dn::from_static("root.test"), &spec) {
            Ok(child) => panic!("started as {}", child.pid()),
            Err(error) => error,
        };
        assert!(error.to_string().contains(&format!("/no/such/program-{n}")), "{error}");
    }
    assert!(r.wait_childless(Duration::from_secs(10)));
}

fn r2_a_child_gets_exactly_its_environment_session_and_signals(spawner: &ProcessSpawner) {
    let script = "env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= | sort; \
                  grep -e ^SigBlk -e ^SigIgn /proc/self/status; \
                  cut -d' ' -f6 /proc/$$/stat; echo $$; ls /proc/$$/fd; readlink /proc/$$/fd/0";
    // As PID 1 does before any thread (B2); a child inherits the mask of the thread that starts it.
    nodesys::signals::block().unwrap();
    let mut child = start(spawner, &shell(script).env("A", "1"));
    let pid = child.pid();
    let text = said(&mut child);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "A=1",
            "PATH=/usr/bin:/usr/sbin:/bin:/sbin",
            "SigBlk:\t0000000000000000",
            "SigIgn:\t0000000000000000",
            &pid.to_string(),
            &pid.to_string(),
            "0",
            "1",
            "2",
            "/dev/null",
        ]
    );
    assert!(end(child.as_ref()).success());
}

fn r6_files_are_private_and_go_with_the_child(spawner: &ProcessSpawner, root: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    let mut spec = shell("cat \"$0\"/secret");
    let folder = root.join("hamlet/root.test");
    spec.args.push(folder.clone().into());
    spec.files.push(ChildFile { name: "secret".into(), content: b"s3cret".to_vec() });
    let mut child = start(spawner, &spec);
    let mode = |p: &std::path::Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("secret")), 0o600);
    assert_eq!(said(&mut child), "s3cret");
    assert!(end(child.as_ref()).success());
    drop(child);
    assert!(!folder.exists());
    spec.files[0].name = "../escape".into();
    assert!(spawner.spawn(&Dn::from_static("root.test"), &spec).is_err());
}

fn r4_and_r7_signals_reach_the_living_and_dropping_kills(spawner: &ProcessSpawner, r: &Reaper) {
    use std::os::unix::process::ExitStatusExt;
    let child = start(spawner, &shell("trap 'exit 7' HUP; while :; do sleep 0.01; done"));
    // The trap may not be set yet: HUP without it ends the shell by the signal.
    child.signal(1).unwrap();
    let status = end(child.as_ref());
    assert!(status.code() == Some(7) || status.signal() == Some(1), "{status:?}");
    assert!(child.signal(1).is_err(), "a dead child takes no signals");
    let spec = ChildSpec { kill_scope: KillScope::Process, ..shell("exec sleep 1000") };
    let begin = Instant::now();
    let (group, alone) = (start(spawner, &shell("sleep 1000; :")), start(spawner, &spec));
    let (mut g, mut a) = (group.wait(), alone.wait());
    drop(group);
    drop(alone);
    let both = futures::executor::block_on(futures::future::join(&mut g, &mut a));
    assert_eq!((both.0.signal(), both.1.signal()), (Some(9), Some(9)));
    assert!(r.wait_childless(Duration::from_secs(10)));
    assert!(begin.elapsed() < Duration::from_secs(60));
}
