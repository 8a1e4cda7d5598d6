//! The life before the root disk (rule B0): as `/init`, find the disk, mount it, become its PID 1.
//!
//! Owner: PID 1 of the initramfs. Invariants: only mounts, modules and the disk of parameter `root_disk`
//! are touched; a failure names disk and step and restarts the machine. Must not know: the node.
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, mount, mount_move};
use rustix::system::RebootCommand;

use crate::disk::{self, DiskRef};
use crate::modules;
use crate::mounts;
use crate::params;

const ROOT_WAIT: Duration = Duration::from_secs(30);
const NEW_ROOT: &str = "/newroot";
const NODE: &str = "/sbin/hamlet";

/// Magic numbers of memory file systems, from linux/magic.h.
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why the root disk was not reached.
#[derive(Debug, thiserror::Error)]
enum InitramfsError {
    #[error("the kernel's file systems are not there: {0}")]
    Mounts(String),
    #[error("the kernel command line cannot be used: {0}")]
    Parameters(String),
    #[error("kernel modules cannot be loaded: {0}")]
    Modules(String),
    #[error("root disk {0} did not appear within 30 s")]
    NoDisk(DiskRef),
    #[error("{step} of root disk {disk} failed: {source}")]
    Step { step: &'static str, disk: DiskRef, source: io::Error },
}

/// Whether `/` is an initramfs.
pub fn root_in_memory() -> bool {
    rustix::fs::statfs("/").is_ok_and(|s| {
        let magic = u64::try_from(s.f_type).unwrap_or_default();
        magic == RAMFS_MAGIC || magic == TMPFS_MAGIC
    })
}

/// Goes to the root disk. Comes back only by a restart of the machine.
pub fn run() -> ! {
    let error = match go() {
        Ok(never) => match never {},
        Err(error) => error,
    };
    eprintln!("Fatal error: {error}\nThis node could not be started. Rebooting...");
    loop {
        // Nothing is mounted writable. Should the restart fail there is nothing left to do but wait.
        let _ = rustix::system::reboot(RebootCommand::Restart);
        std::thread::park();
    }
}

fn go() -> Result<Infallible, InitramfsError> {
    let (failed, _) = mounts::apply(mounts::FIRST);
    if let Some(first) = failed.first() {
        return Err(InitramfsError::Mounts(format!("{first}: {}", first.source)));
    }
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let (parameters, _) = params::resolve(&[params::from_command_line(&line)])
        .map_err(|e| InitramfsError::Parameters(e.to_string()))?;
    load_modules()?;
    let disk = parameters.root_disk;
    let at = |step| {
        let disk = disk.clone();
        move |source: io::Error| InitramfsError::Step { step, disk, source }
    };
    let device = disk::wait(&disk, ROOT_WAIT)
        .map_err(at("search"))?
        .ok_or_else(|| InitramfsError::NoDisk(disk.clone()))?;
    mount_root(&device).map_err(at("mount"))?;
    free_memory();
    move_in().map_err(at("change"))?;
    Err(at("start of /sbin/hamlet")(Command::new(NODE).env_clear().exec()))
}

fn load_modules() -> Result<(), InitramfsError> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let root = Path::new("/lib/modules").join(release);
    let loaded = modules::load(&root, modules::INITRAMFS)
        .map_err(|e| InitramfsError::Modules(format!("{}: {e}", root.display())))?;
    // The root disk may do without some of them; whether it does is seen in a moment.
    for e in &loaded.missing {
        eprintln!("{e}");
    }
    Ok(())
}

fn mount_root(device: &Path) -> io::Result<()> {
    fs::create_dir_all(NEW_ROOT)?;
    Ok(mount(device, NEW_ROOT, "erofs", MountFlags::RDONLY, None)?)
}

/// The files of the initramfs are memory that nobody would give back later.
fn free_memory() {
    // What cannot be removed only stays in memory.
    let _ = fs::remove_dir_all("/lib");
    let _ = fs::remove_file("/init");
}

/// Takes the kernel's mounts along, makes the disk `/`, forgets the initramfs.
fn move_in() -> io::Result<()> {
    for p in mounts::FIRST {
        let target: PathBuf = [NEW_ROOT, p.target.trim_start_matches('/')].iter().collect();
        mount_move(p.target, &target)?;
    }
    std::env::set_current_dir(NEW_ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")
}
