//! Starting one child process for PID 1: a clean environment, default signals, its own session and cgroup.
//!
//! Owner: the reaper of `node`, which calls [`spawn`] while it holds its lock.
//! Invariants: everything the new process needs is prepared before the fork; between fork and exec only
//! async-signal-safe calls are made; no descriptor but stdin, stdout and stderr survives the exec.
//! Must not know: who the child is, or how it is supervised.
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Size asked for each output pipe. 256 KiB: a burst of log lines does not stop the child (rule R5).
const PIPE_BYTES: usize = 256 * 1024;

/// Highest signal number of Linux.
const LAST_SIGNAL: libc::c_int = 64;

/// The kernel's `struct sigaction` on 64-bit machines (handler, flags, restorer, mask), all zero: the
/// default disposition.
const DEFAULT_ACTION: [u64; 4] = [0; 4];

/// One resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimit {
    /// RLIMIT_* number.
    pub resource: i32,
    /// Soft limit in the unit of the resource.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// What to start. The environment is exactly `env`: nothing of the caller's is inherited.
#[derive(Debug)]
pub struct SpawnSpec<'a> {
    /// Path of the executable.
    pub program: &'a Path,
    /// Arguments after argv[0], which is the program's path.
    pub args: &'a [OsString],
    /// The whole environment.
    pub env: &'a [(OsString, OsString)],
    /// Working directory.
    pub cwd: &'a Path,
    /// User and group id; those of the caller if none.
    pub user: Option<(u32, u32)>,
    /// Resource limits set just before the exec.
    pub limits: Vec<ResourceLimit>,
    /// OOM score adjustment, -1000 to 1000.
    pub oom_score_adj: i32,
    /// The opened `cgroup.procs` of the cgroup the child shall live in.
    pub cgroup_procs: Option<BorrowedFd<'a>>,
}

/// A started child. Dropping it neither kills nor reaps: that is the reaper's business.
#[derive(Debug)]
pub struct Spawned {
    /// Process id, valid until reaped.
    pub pid: u32,
    /// Descriptor of the process: signals through it never reach a reused pid.
    pub pidfd: OwnedFd,
    /// Read end of the child's standard output.
    pub stdout: OwnedFd,
    /// Read end of the child's standard error.
    pub stderr: OwnedFd,
}

/// Starts a child. Returns after its exec has succeeded or failed.
///
/// The caller must keep every other waiter away from the new pid until this returns: when the exec fails
/// the standard library itself waits for the child and panics if somebody else took it.
///
/// # Errors
/// The errno of pipe, fork, of a step before the exec, or of the exec.
pub fn spawn(spec: &SpawnSpec<'_>) -> io::Result<Spawned> {
    let (stdout, child_out) = output_pipe()?;
    let (stderr, child_err) = output_pipe()?;
    let mut command = Command::new(spec.program);
    command
        .args(spec.args)
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .current_dir(spec.cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::from(child_out))
        .stderr(Stdio::from(child_err));
    if let Some((uid, gid)) = spec.user {
        command.uid(uid).gid(gid);
    }
    let setup = Setup {
        cgroup: spec.cgroup_procs.map(|fd| fd.as_raw_fd()),
        limits: spec.limits.clone(),
        oom_score: spec.oom_score_adj.to_string().into_bytes(),
    };
    // JUSTIFICATION: the session, cgroup, signal dispositions and limits of a child can only be set by the
    // child itself, between fork and exec.
    // SAFETY: `Setup::apply` makes only async-signal-safe calls (write, open, close, setsid, signal,
    // setrlimit, close_range) on values prepared here; it does not allocate, lock or panic.
    unsafe {
        command.pre_exec(move || setup.apply());
    }
    let child = command.spawn()?;
    let pid = child.id();
    let pidfd = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the kernel gave a process id out of range"))
        .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?))?;
    Ok(Spawned { pid, pidfd, stdout, stderr })
}

fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    // Only a wish: where the per-user pipe limit forbids it the default size does.
    let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
    Ok((read, write))
}

/// What the child does to itself before the exec.
struct Setup {
    cgroup: Option<RawFd>,
    limits: Vec<ResourceLimit>,
    oom_score: Vec<u8>,
}

impl Setup {
    /// Runs in the forked child: async-signal-safe calls only.
    fn apply(&self) -> io::Result<()> {
        if let Some(fd) = self.cgroup {
            write_all(fd, b"0")?;
        }
        write_oom_score(&self.oom_score)?;
        // JUSTIFICATION: plain libc calls that have no safe wrapper usable after fork.
        // SAFETY: the pointers are to `limit` on this stack and to a constant as large as the kernel's
        // struct; all are async-signal-safe.
        unsafe {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            // A child inherits the mask of PID 1, which blocks nearly everything (B2), and hands it on to
            // its own children: a container that SIGPIPE and SIGTERM do not reach.
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            for signal in 1..=LAST_SIGNAL {
                // EINVAL for SIGKILL and SIGSTOP: nothing to reset there. The system call itself,
                // since the C library refuses the two signals it keeps for its threads.
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    signal,
                    DEFAULT_ACTION.as_ptr(),
                    std::ptr::null_mut::<u64>(),
                    size_of::<u64>(),
                );
            }
            for l in &self.limits {
                let limit = libc::rlimit { rlim_cur: l.soft, rlim_max: l.hard };
                if libc::setrlimit(l.resource.cast_unsigned(), &raw const limit) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            if libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

fn write_oom_score(text: &[u8]) -> io::Result<()> {
    // JUSTIFICATION: std::fs would allocate, which is not allowed between fork and exec.
    // SAFETY: the path is a NUL-terminated constant; the descriptor is closed on every way out.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            let error = io::Error::last_os_error();
            // Without /proc (tests in odd sandboxes) the default score is what there is.
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(error) };
        }
        let written = write_all(fd, text);
        libc::close(fd);
        match written {
            // Lowering needs a capability that only PID 1 of the image surely has.
            Err(e) if e.raw_os_error() == Some(libc::EACCES) => Ok(()),
            other => other,
        }
    }
}

fn write_all(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    // JUSTIFICATION: std's writers are not promised to be async-signal-safe.
    // SAFETY: pointer and length describe one live slice; `fd` is open in this process.
    let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
