//! `supervisor::Spawner` for PID 1: files, cgroup, exec, and the handle of the running child.
//!
//! Owner: the supervisor's child services. Invariants: the environment is what the spec says plus PATH;
//! secrets lie only in `/run/hamlet/<dn>/` (0700, files 0600) and go when the child does; dropping a
//! child kills its scope. Must not know: what is restarted when.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use logtree::Dn;
use nodesys::reap::Exit;
use nodesys::spawn::{ResourceLimit, SpawnSpec};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};
use supervisor::{Child, ChildSpec, ChildStats, KillScope, Spawner};
use tokio::io::Interest;

use super::cgroup::{Cgroup, Cgroups};
use super::reaper::{ExitWatch, Reaper};
use crate::readiness;

/// PATH of every child that is not given another one.
pub const CHILD_PATH: &str = "/usr/bin:/usr/sbin:/bin:/sbin";

/// Most bytes of files one child may get.
const MAX_FILES_BYTES: usize = 4 << 20;

/// A look at the cgroup at least this often while waiting for it to empty, should an event get lost.
const EMPTY_CHECK: Duration = Duration::from_secs(1);

/// Where children live.
#[derive(Debug, Clone)]
pub struct SpawnLayout {
    /// The cgroup folder; without one (tests outside the image) the process group is the scope.
    pub cgroups: Option<Cgroups>,
    /// `/run/hamlet`: one folder of files per DN.
    pub files: PathBuf,
}

/// Starts the children of the node.
#[derive(Debug, Clone)]
pub struct ProcessSpawner {
    reaper: Reaper,
    layout: SpawnLayout,
    exits: Exits,
}

/// Ends of children so far, by whose child it was and how it ended: `exit-<code>`, `signal-<number>`.
type Exits = Arc<Mutex<BTreeMap<(Dn, String), u64>>>;

impl ProcessSpawner {
    /// A spawner whose children `reaper` waits for.
    pub fn new(reaper: Reaper, layout: SpawnLayout) -> ProcessSpawner {
        ProcessSpawner { reaper, layout, exits: Exits::default() }
    }

    /// The reaper behind it.
    pub fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// How children have ended so far. The number of DNs and codes bounds it.
    pub fn exits(&self) -> BTreeMap<(Dn, String), u64> {
        self.exits.lock().clone()
    }

    fn start(&self, dn: &Dn, spec: &ChildSpec) -> io::Result<Running> {
        let files = Files::write(&self.layout.files.join(dn.as_str()), spec)?;
        let cgroup = match &self.layout.cgroups {
            Some(all) => Some(all.of(dn, &spec.cgroup).map_err(|e| named("cgroup", dn, &e))?),
            None => None,
        };
        if let (Some(c), KillScope::Cgroup) = (&cgroup, spec.kill_scope) {
            c.clear().map_err(|e| named("cgroup", dn, &e))?;
        }
        let entrance = cgroup.as_ref().map(Cgroup::entrance).transpose()?;
        let limits = spec.rlimits.iter().map(|l| ResourceLimit {
            resource: l.resource,
            soft: l.soft,
            hard: l.hard,
        });
        let spawn = SpawnSpec {
            program: &spec.program,
            args: &spec.args,
            env: &environment(&spec.env),
            cwd: &spec.cwd,
            user: spec.user.map(|u| (u.uid, u.gid)),
            limits: limits.collect(),
            oom_score_adj: spec.oom_score_adj,
            cgroup_procs: entrance.as_ref().map(AsFd::as_fd),
        };
        let (spawned, exit) =
            self.reaper.spawn(&spawn).map_err(|e| explain(&spec.program, &spec.cwd, e))?;
        Ok(Running {
            pid: i32::try_from(spawned.pid).map_err(io::Error::other)?,
            pidfd: spawned.pidfd,
            stdout: Some(spawned.stdout),
            stderr: Some(spawned.stderr),
            exit,
            cgroup,
            scope: spec.kill_scope,
            count: (dn.clone(), self.exits.clone()),
            _files: files,
        })
    }
}

impl Spawner for ProcessSpawner {
    fn spawn(&self, dn: &Dn, spec: &ChildSpec) -> io::Result<Box<dyn Child>> {
        Ok(Box::new(self.start(dn, spec)?))
    }
}

fn named(what: &str, dn: &Dn, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} of {dn}: {error}"))
}

/// The spec's variables, with PATH if it names none.
fn environment(given: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let mut env = given.to_vec();
    if !env.iter().any(|(k, _)| k == "PATH") {
        env.push(("PATH".into(), CHILD_PATH.into()));
    }
    env
}

/// Says which path failed and tells a missing interpreter from a missing program (rule R3).
fn explain(program: &Path, cwd: &Path, error: io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::NotFound if !cwd.is_dir() => {
            format!("cannot start {}: no directory {}", program.display(), cwd.display())
        }
        io::ErrorKind::NotFound if program.exists() => {
            format!("cannot start {}: its interpreter or loader is missing", program.display())
        }
        _ => format!("cannot start {}: {error}", program.display()),
    };
    io::Error::new(error.kind(), text)
}

/// The files of a child; removed when dropped.
#[derive(Debug)]
struct Files {
    folder: Option<PathBuf>,
}

impl Files {
    fn write(folder: &Path, spec: &ChildSpec) -> io::Result<Files> {
        if spec.files.is_empty() {
            return Ok(Files { folder: None });
        }
        let total: usize = spec.files.iter().map(|f| f.content.len()).sum();
        if total > MAX_FILES_BYTES {
            return Err(io::Error::other(format!(
                "files of {total} bytes are more than the {MAX_FILES_BYTES} a child may get"
            )));
        }
        let at = |path: &Path, e: io::Error| {
            io::Error::new(e.kind(), format!("cannot write {}: {e}", path.display()))
        };
        match fs::remove_dir_all(folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(at(folder, e)),
            _ => {}
        }
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).recursive(true).create(folder).map_err(|e| at(folder, e))?;
        let files = Files { folder: Some(folder.to_path_buf()) };
        for f in &spec.files {
            if f.name.is_empty() || f.name.starts_with('.') || f.name.contains('/') {
                return Err(io::Error::other(format!("{:?} is no name of a child's file", f.name)));
            }
            let path = folder.join(&f.name);
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(|e| at(&path, e))?;
            file.write_all(&f.content).map_err(|e| at(&path, e))?;
        }
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // The folder is in memory and is emptied again before the next start.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A child that was started.
#[derive(Debug)]
struct Running {
    pid: i32,
    pidfd: OwnedFd,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    exit: ExitWatch,
    cgroup: Option<Cgroup>,
    scope: KillScope,
    /// Where its end is counted.
    count: (Dn, Exits),
    /// Kept for its drop.
    _files: Files,
}

impl Running {
    fn ended(&self) -> bool {
        self.exit.borrow().is_some()
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        if self.ended() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }
}

impl Child for Running {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.stdout.take()
    }

    fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.stderr.take()
    }

    fn wait(&self) -> BoxFuture<'static, ExitStatus> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            loop {
                if let Some(exit) = *exit.borrow_and_update() {
                    return status(exit);
                }
                if exit.changed().await.is_err() {
                    // The reaper keeps the sender until it has sent: only a dead reaper gets here,
                    // and that is fatal for the whole node.
                    return std::future::pending().await;
                }
            }
        })
    }

    fn scope_empty(&self) -> BoxFuture<'static, ()> {
        match (&self.cgroup, self.scope) {
            (Some(cgroup), KillScope::Cgroup) => Box::pin(empty(cgroup.clone())),
            (None, KillScope::Cgroup) | (_, KillScope::Process) => Box::pin(std::future::ready(())),
        }
    }

    fn signal(&self, signal: i32) -> io::Result<()> {
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such signal"))?;
        self.send(signal)
    }

    fn kill_scope(&self) -> io::Result<()> {
        match (&self.cgroup, self.scope) {
            (Some(cgroup), KillScope::Cgroup) => cgroup.kill(),
            (None, KillScope::Cgroup) if !self.ended() => {
                // The child leads its own session, so its group has its pid.
                match Pid::from_raw(self.pid) {
                    Some(group) => Ok(kill_process_group(group, Signal::KILL)?),
                    None => Ok(()),
                }
            }
            (None, KillScope::Cgroup) => Ok(()),
            (_, KillScope::Process) if self.ended() => Ok(()),
            (_, KillScope::Process) => self.send(Signal::KILL),
        }
    }

    fn stats(&self) -> ChildStats {
        let (cpu_ns, memory_bytes, oom_kills) =
            self.cgroup.as_ref().map(Cgroup::usage).unwrap_or_default();
        ChildStats { pid: self.pid, cpu_ns, memory_bytes, oom_kills }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing more can be done about a failure here; leftovers are killed before the next start.
        let _ = self.kill_scope();
        // Whoever drops a child that still runs kills it by that.
        let how = match *self.exit.borrow() {
            Some(Exit::Code(code)) => format!("exit-{code}"),
            Some(Exit::Signal { signal, .. }) => format!("signal-{signal}"),
            None => "killed".to_owned(),
        };
        let (dn, exits) = &self.count;
        *exits.lock().entry((dn.clone(), how)).or_default() += 1;
    }
}

fn status(exit: Exit) -> ExitStatus {
    // The encoding of wait(2).
    ExitStatus::from_raw(match exit {
        Exit::Code(code) => (code & 0xff) << 8,
        Exit::Signal { signal, core } => signal | if core { 0x80 } else { 0 },
    })
}

/// Waits until nothing lives in the cgroup.
async fn empty(cgroup: Cgroup) {
    let events = cgroup.events().and_then(|f| readiness::watch(f, Interest::PRIORITY));
    while cgroup.populated() {
        let Ok(events) = &events else {
            tokio::time::sleep(EMPTY_CHECK).await;
            continue;
        };
        if let Ok(Ok(mut ready)) =
            tokio::time::timeout(EMPTY_CHECK, events.ready(Interest::PRIORITY)).await
        {
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r2_the_environment_is_the_given_one_and_a_path() {
        let env = environment(&[("A".into(), "1".into())]);
        assert_eq!(env, [("A".into(), "1".into()), ("PATH".into(), CHILD_PATH.into())]);
        let own = environment(&[("PATH".into(), "/x".into())]);
        assert_eq!(own, [("PATH".into(), "/x".into())]);
    }

    #[test]
    fn r3_exit_codes_and_signals_keep_their_meaning() {
        assert_eq!(status(Exit::Code(3)).code(), Some(3));
        let killed = status(Exit::Signal { signal: 9, core: false });
        assert_eq!((killed.code(), killed.signal()), (None, Some(9)));
        assert!(status(Exit::Signal { signal: 11, core: true }).core_dumped());
    }

    #[test]
    fn r3_a_failed_start_names_the_path_and_what_is_missing() {
        let gone = || io::Error::from_raw_os_error(2);
        let text = explain(Path::new("/no/such"), Path::new("/"), gone()).to_string();
        assert!(text.starts_with("cannot start /no/such: No such file"), "{text}");
        let text = explain(Path::new("/proc/self/exe"), Path::new("/"), gone()).to_string();
        assert!(text.ends_with("its interpreter or loader is missing"), "{text}");
        let text = explain(Path::new("/no/such"), Path::new("/no/cwd"), gone()).to_string();
        assert!(text.ends_with("no directory /no/cwd"), "{text}");
    }
}
