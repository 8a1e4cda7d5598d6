//! PURE: what a VM is, and the arguments of QEMU that make it so.

use std::path::{Path, PathBuf};

use crate::image_dir::ImageDir;
use crate::kvm::Accelerator;

/// Format of a disk file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Bytes as they are.
    Raw,
    /// QEMU's own, which can hold snapshots of the machine.
    Qcow2,
}

/// What QEMU does with the guest's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// In the host's page cache until the guest flushes: what a killed guest did
    /// not flush itself may be lost only when the host goes down too.
    Writeback,
    /// As writeback, but flushes are ignored: fast, for disks nobody reads again.
    Unsafe,
}

/// A disk besides the root disk.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Serial number by which the guest finds it.
    pub serial: String,
    /// File behind it.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// Cache mode.
    pub cache: Cache,
}

/// A TCP port of the host's loopback that leads to one of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// Port on 127.0.0.1; 0 lets the harness choose.
    pub host: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// A VM to start.
#[derive(Debug, Clone)]
pub struct VmConfig {
    /// The image it boots.
    pub image: ImageDir,
    /// Disks besides the root disk.
    pub disks: Vec<Disk>,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Virtual processors.
    pub cpus: u32,
    /// `hamlet.<key>=<value>` and other words of the kernel's command line.
    pub parameters: Vec<String>,
    /// Ports of the guest to reach.
    pub forwards: Vec<Forward>,
    /// How the guest's processor is run.
    pub accelerator: Accelerator,
    /// Name of a snapshot in the first qcow2 disk to start from.
    pub snapshot: Option<String>,
    /// Whether a reboot of the guest ends QEMU instead.
    pub exit_on_reboot: bool,
    /// Whether each line of the console goes to our standard output too.
    pub show_console: bool,
}

/// Memory of a VM that runs the whole cluster, in MiB.
const CLUSTER_MEMORY_MIB: u64 = 3072;

impl VmConfig {
    /// A VM with the defaults of a whole cluster, and no data disk yet.
    pub fn new(image: ImageDir, accelerator: Accelerator) -> Self {
        Self {
            image,
            disks: Vec::new(),
            memory_mib: CLUSTER_MEMORY_MIB,
            cpus: 2,
            parameters: Vec::new(),
            forwards: Vec::new(),
            accelerator,
            snapshot: None,
            exit_on_reboot: true,
            show_console: false,
        }
    }

    /// Adds a parameter, as in `hamlet.run=storage`.
    #[must_use]
    pub fn parameter(mut self, word: impl Into<String>) -> Self {
        self.parameters.push(word.into());
        self
    }

    /// Adds a way to a port of the guest.
    #[must_use]
    pub fn forward(mut self, host: u16, guest: u16) -> Self {
        self.forwards.push(Forward { host, guest });
        self
    }

    /// Adds a data disk in a raw file.
    #[must_use]
    pub fn data_disk(mut self, path: impl Into<PathBuf>, cache: Cache) -> Self {
        let (serial, format) = ("hamlet-data".to_owned(), Format::Raw);
        self.disks.push(Disk { serial, path: path.into(), format, cache });
        self
    }

    /// Sets the memory.
    #[must_use]
    pub fn memory(mut self, mib: u64) -> Self {
        self.memory_mib = mib;
        self
    }
}

/// What a translated processor is spared. It does not speculate, so that working around that costs
/// and gains nothing. Each programming of a one-shot timer is a write to an emulated device: with
/// them the kernel spends more time on timers than on the cluster, so it gets a periodic tick.
/// A kernel rewrites its own code while it boots; an emulated second processor may still run the old one
/// and panics ("Oops: int3"), so it joins only when PID 1 has loaded the modules.
const EMULATED: [&str; 4] = ["mitigations=off", "highres=off", "nohz=off", "maxcpus=1"];

/// The kernel's command line.
fn command_line(config: &VmConfig) -> String {
    let mut words = vec!["console=ttyS0", "panic=10", "quiet"];
    if config.accelerator == Accelerator::Tcg {
        words.extend(EMULATED);
    }
    words.extend(config.parameters.iter().map(String::as_str));
    words.join(" ")
}

/// QEMU reads a comma in a value as the next option unless it is doubled.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

fn drive(id: &str, disk: &Disk, read_only: bool) -> [String; 4] {
    let format = match disk.format {
        Format::Raw => "raw",
        Format::Qcow2 => "qcow2",
    };
    let cache = match disk.cache {
        Cache::Writeback => "writeback",
        Cache::Unsafe => "unsafe",
    };
    let read_only = if read_only { ",readonly=on" } else { "" };
    [
        "-drive".into(),
        format!(
            "if=none,id={id},file={},format={format},cache={cache},discard=unmap{read_only}",
            value(&disk.path)
        ),
        "-device".into(),
        format!("virtio-blk-pci,drive={id},serial={}", disk.serial),
    ]
}

/// The arguments of `qemu-system-x86_64`. Sockets are `host.sock` and `qmp.sock`
/// in `run`; the serial console is QEMU's standard output.
pub(crate) fn arguments(config: &VmConfig, forwards: &[Forward], run: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35"]);
    match config.accelerator {
        Accelerator::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
        Accelerator::Tcg => add(&["-accel", "tcg,thread=multi", "-cpu", "max"]),
    }
    add(&["-smp", &config.cpus.to_string(), "-m", &format!("{}M", config.memory_mib)]);
    add(&["-kernel", &config.image.kernel().to_string_lossy()]);
    add(&["-initrd", &config.image.initramfs().to_string_lossy()]);
    add(&["-append", &command_line(config)]);
    if config.exit_on_reboot {
        add(&["-no-reboot"]);
    }
    add(&["-chardev", "stdio,id=serial0,signal=off", "-serial", "chardev:serial0"]);
    let root = Disk {
        serial: "hamlet-root".into(),
        path: config.image.root_disk(),
        format: Format::Raw,
        cache: Cache::Writeback,
    };
    arguments.extend(drive("root", &root, true));
    for (number, disk) in config.disks.iter().enumerate() {
        arguments.extend(drive(&format!("disk{number}"), disk, false));
    }
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    // restrict=on: nothing in the guest reaches beyond this machine.
    let mut network = "user,id=net0,restrict=on".to_owned();
    for Forward { host, guest } in forwards {
        network.push_str(&format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}"));
    }
    add(&["-netdev", &network, "-device", "virtio-net-pci,netdev=net0,romfile="]);
    add(&["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
    let host = value(&run.join("host.sock"));
    add(&["-chardev", &format!("socket,id=host,path={host},server=on,wait=off")]);
    add(&["-device", "virtserialport,chardev=host,name=hamlet.host"]);
    // QEMU connects to us: the connection is the event that says it has started.
    add(&["-qmp", &format!("unix:{}", value(&run.join("qmp.sock")))]);
    if let Some(snapshot) = &config.snapshot {
        add(&["-loadvm", snapshot]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> VmConfig {
        let folder = tempfile::tempdir().unwrap();
        for name in ["vmlinuz", "initramfs.zst", "root.erofs"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::write(folder.path().join("image.json"), r#"{"key":"k"}"#).unwrap();
        VmConfig::new(ImageDir::open(folder.path()).unwrap(), Accelerator::Tcg)
    }

    #[test]
    fn every_vm_is_fenced_and_forwards_only_from_loopback() {
        let forwards = [Forward { host: 4000, guest: 6443 }];
        for config in [config(), config().data_disk("/d", Cache::Unsafe)] {
            let arguments = arguments(&config, &forwards, Path::new("/run"));
            let networks: Vec<_> = arguments.iter().filter(|a| a.starts_with("user,")).collect();
            assert_eq!(networks.len(), 1);
            assert!(networks[0].contains("restrict=on"));
            assert!(networks[0].contains("hostfwd=tcp:127.0.0.1:4000-:6443"));
        }
    }

    #[test]
    fn the_root_disk_is_read_only_and_the_data_disk_is_not() {
        let config = config().data_disk("/a,b", Cache::Writeback);
        let arguments = arguments(&config, &[], Path::new("/run"));
        let drives: Vec<_> = arguments.iter().filter(|a| a.starts_with("if=none")).collect();
        assert!(drives[0].contains("id=root") && drives[0].contains("readonly=on"));
        assert!(drives[1].contains("file=/a,,b,") && !drives[1].contains("readonly"));
    }

    #[test]
    fn parameters_follow_the_console_on_the_command_line() {
        let config = config().parameter("hamlet.run=storage");
        assert_eq!(
            command_line(&config),
            "console=ttyS0 panic=10 quiet mitigations=off highres=off nohz=off maxcpus=1 hamlet.run=storage"
        );
    }
}
