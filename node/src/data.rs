//! The data disk on its way up: found, formatted once, mounted, bound where programs look for it.
//!
//! Owner: bring-up, before the tree. Invariants: what is formatted is decided by `localstorage` alone;
//! mkfs runs as a child of the reaper like everything else. Must not know: volumes, Kubernetes.
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::executor::block_on;
use localstorage::{
    BlockDevice, Bytes, Data, DataDisk, DataDiskError, MkfsPlan, MountDataError, Preparation,
    Unmounted,
};
use logtree::Dn;
use supervisor::{ChildSpec, Spawner};

use crate::clock;
use crate::disk::{self, DiskRef};
use crate::outcome::{BootRecord, Ending, MAX_BYTES, Outcomes};
use crate::process::{CHILD_PATH, ProcessSpawner};

const DISK_WAIT: Duration = Duration::from_secs(30);

/// Directories that programs expect in `/var`, which is memory.
const VAR: &[&str] = &["/var/lib", "/var/lib/kubelet", "/var/lib/cni", "/var/log", "/var/tmp"];

/// The data disk cannot be used; fatal.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The kernel does not tell about disks.
    #[error("cannot look for data disk {disk}")]
    Search {
        /// Which disk.
        disk: DiskRef,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It is not there.
    #[error("data disk {0} did not appear within 30 s")]
    Missing(DiskRef),
    /// It holds something else, or cannot be read.
    #[error("cannot use data disk {disk}")]
    Disk {
        /// Which disk.
        disk: DiskRef,
        /// What is wrong with it.
        #[source]
        source: DataDiskError,
    },
    /// mkfs could not be started.
    #[error("cannot format the data disk")]
    Start(#[source] io::Error),
    /// mkfs failed.
    #[error("formatting the data disk failed, {status}: {said}")]
    Format {
        /// How mkfs ended.
        status: std::process::ExitStatus,
        /// Its last words.
        said: String,
    },
    /// It does not mount.
    #[error("cannot mount the data disk")]
    Mount(#[source] MountDataError),
    /// A directory of `/var` cannot be made.
    #[error("cannot make {path}")]
    Var {
        /// Which.
        path: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// The mounted data disk.
#[derive(Debug)]
pub struct DataDiskUp {
    /// Its typed directories.
    pub data: Data,
    /// Its device.
    pub device: PathBuf,
    /// Whether this boot has formatted it.
    pub formatted: bool,
}

/// Finds, formats if blank, mounts and binds the data disk.
///
/// # Errors
/// [`DataError`]; nothing is ever written to a disk that holds something else.
pub fn bring_up(
    place: Unmounted<Data>,
    disk: &DiskRef,
    spawner: &ProcessSpawner,
) -> Result<DataDiskUp, DataError> {
    let device = disk::wait(disk, DISK_WAIT)
        .map_err(|source| DataError::Search { disk: disk.clone(), source })?
        .ok_or_else(|| DataError::Missing(disk.clone()))?;
    let block = BlockDevice::new(&device);
    let unusable = |source| DataError::Disk { disk: disk.clone(), source };
    let formatted = match DataDisk::prepare(&block).map_err(unusable)? {
        Preparation::Ready => false,
        Preparation::Format(plan) => {
            format(&plan, spawner)?;
            true
        }
    };
    let mut data = place.mount(&block).map_err(DataError::Mount)?;
    for path in VAR {
        fs::create_dir_all(path).map_err(|source| DataError::Var { path, source })?;
    }
    data.bind_kubelet(Path::new("/")).map_err(DataError::Mount)?;
    Ok(DataDiskUp { data, device, formatted })
}

fn format(plan: &MkfsPlan, spawner: &ProcessSpawner) -> Result<(), DataError> {
    let Some((program, args)) = plan.argv.split_first() else { return Ok(()) };
    let spec = ChildSpec::new(find_program(program)).args(args);
    let dn = Dn::from_static("init.mkfs");
    let mut child = spawner.spawn(&dn, &spec).map_err(DataError::Start)?;
    let stderr = child.take_stderr();
    // Its few lines fit into the pipe: they can be read when it has ended.
    let status = block_on(child.wait());
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(pipe) = stderr {
        // Without its last words the status has to do.
        let _ = fs::File::from(pipe).take(4096).read_to_string(&mut said);
    }
    Err(DataError::Format { status, said: said.trim().replace('\n', "; ") })
}

/// A program by its name, where the children's PATH has it.
fn find_program(name: &str) -> PathBuf {
    let candidates = CHILD_PATH.split(':').map(|folder| Path::new(folder).join(name));
    // If it is nowhere, its name says so in the error of the start.
    candidates.into_iter().find(|p| p.exists()).unwrap_or_else(|| PathBuf::from(name))
}

/// The list of boots on the data disk. Its trouble never stops a node.
#[derive(Debug)]
pub struct BootLedger {
    file: localstorage::File,
    boot_id: String,
    outcomes: Outcomes,
}

impl BootLedger {
    /// Adds this boot. The text is a warning for the log.
    pub fn begin(data: &Data, boot_id: &str) -> (Option<BootLedger>, Option<String>) {
        let file = match data.node.dir.file("outcomes.json") {
            Ok(file) => file,
            Err(e) => return (None, Some(e.to_string())),
        };
        let mut warning = None;
        let outcomes = match file.read(Bytes(MAX_BYTES as u64)) {
            Ok(bytes) => Outcomes::parse(&bytes).unwrap_or_else(|| {
                warning = Some("outcomes.json cannot be read and begins anew".to_owned());
                Outcomes::default()
            }),
            Err(localstorage::ReadError::Missing(_)) => Outcomes::default(),
            Err(e) => {
                warning = Some(e.to_string());
                Outcomes::default()
            }
        };
        let mut ledger = BootLedger { file, boot_id: boot_id.to_owned(), outcomes };
        ledger.outcomes.begin(boot_id, clock::wall_ms());
        let written = ledger.write();
        (Some(ledger), warning.or(written.err().map(|e| e.to_string())))
    }

    /// Notes why this boot is about to end, before anything else is tried.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn doom(&mut self, reason: &str, text: &str) -> Result<(), localstorage::WriteError> {
        self.outcomes.doom(&self.boot_id, reason, text);
        self.write()
    }

    /// Completes this boot's record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn complete(&mut self, end: &Ending) -> Result<(), localstorage::WriteError> {
        self.outcomes.complete(&self.boot_id, end, clock::wall_ms());
        self.write()
    }

    fn write(&self) -> Result<(), localstorage::WriteError> {
        self.file.write(&self.outcomes.to_json(), 0o600)
    }

    /// All boots, oldest first.
    pub fn boots(&self) -> &[BootRecord] {
        &self.outcomes.boots
    }

    /// The boot before this one.
    pub fn previous(&self) -> Option<&BootRecord> {
        self.outcomes.previous(&self.boot_id)
    }
}

/// The machine id: made once, kept on the data disk.
///
/// # Errors
/// It can be neither read nor made.
pub fn machine_id(data: &Data) -> io::Result<String> {
    let file = data.node.dir.file("machine-id").map_err(io::Error::other)?;
    if let Ok(bytes) = file.read(Bytes(64)) {
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(text);
        }
    }
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().replace('-', "");
    file.write(format!("{id}\n").as_bytes(), 0o644).map_err(io::Error::other)?;
    Ok(id)
}
