//! The second step: the kernel's file systems, cgroups, modules, parameters, `/run` (rules B3 to B6).
//!
//! Must not know: the data disk, logs.
use std::fs;
use std::io;
use std::path::Path;

use localstorage::{Root, Unmounted};
use nodesys::net::Interfaces;
use nodesys::signals::Blocked;

use super::{BringupFailed, Kernel, chain};
use crate::announce::{Announcer, console_names};
use crate::modules;
use crate::mounts;
use crate::params::{self, Parameters, Source};
use crate::phases::Phases;
use crate::process::Cgroups;
use crate::shutdown::Standing;

const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/hamlet/parameters.json/raw";
const ESP: &str = "/esp/hamlet/parameters.json";

/// Kernel settings of a node (rule B5). Where the kernel lacks one it is a note.
const SYSCTLS: &[(&str, &str)] = &[
    ("net/ipv4/conf/all/rp_filter", "1"),
    ("net/ipv4/conf/default/rp_filter", "1"),
    ("net/ipv4/conf/all/accept_source_route", "0"),
    ("net/ipv4/conf/default/accept_source_route", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv4/ip_forward", "1"),
    ("vm/max_map_count", "2147483647"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    // kubelet checks these two and fails over other values.
    ("vm/overcommit_memory", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
];

/// The machine with its file systems, modules and parameters.
#[derive(Debug)]
pub struct Mounted {
    pub(super) signals: Blocked,
    pub(super) notes: Vec<String>,
    pub(super) parameters: Parameters,
    pub(super) consoles: Vec<String>,
    pub(super) cgroups: Cgroups,
    pub(super) data: Unmounted<localstorage::Data>,
    pub(super) run: localstorage::Run,
    pub(super) phases: Phases,
    pub(super) boot_id: String,
}

impl Kernel {
    /// Mounts, loads, reads.
    ///
    /// # Errors
    /// A needed mount, module, parameter or directory is missing; all of them are named.
    pub fn mount(self, standing: &mut Standing) -> Result<Mounted, BringupFailed> {
        let mut notes = self.notes;
        mount_kernel(&mut notes)?;
        let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        // The consoles of the defaults at first: parameters are not known, failures must be seen.
        standing.announcer = Announcer::open(&console_names(&[], &command_line));
        let cgroups = set_up_cgroups(&mut notes)?;
        load_modules(&mut notes)?;
        start_processors(Path::new("/sys/devices/system/cpu"), &mut notes);
        let parameters = read_parameters(&command_line, &mut notes)?;
        let consoles = console_names(&parameters.consoles, &command_line);
        standing.announcer = Announcer::open(&consoles);
        standing.budget = Some(parameters.shutdown_budget);
        let root = place_memory()?;
        write_identity(&root.run, &parameters, &mut notes)?;
        apply_sysctls(&mut notes);
        let phases = Phases::new(standing.announcer.clone());
        phases.reach("mounted");
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Mounted {
            signals: self.signals,
            notes,
            parameters,
            consoles,
            cgroups,
            data: root.data,
            run: root.run,
            phases,
            boot_id: boot_id.trim().to_owned(),
        })
    }
}

impl Mounted {
    /// What was read.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

fn mount_kernel(notes: &mut Vec<String>) -> Result<(), BringupFailed> {
    let mut reasons = Vec::new();
    for plan in [mounts::FIRST, mounts::KERNEL, mounts::MEMORY_TREES] {
        let (failed, without) = mounts::apply(plan);
        reasons.extend(failed.iter().map(|e| chain(e)));
        notes.extend(without.iter().map(|e| chain(e)));
    }
    if let Err(e) = mounts::share_root() {
        reasons.push(format!("cannot make / shared: {e}"));
    }
    if reasons.is_empty() { Ok(()) } else { Err(BringupFailed { step: "mounts", reasons }) }
}

fn set_up_cgroups(notes: &mut Vec<String>) -> Result<Cgroups, BringupFailed> {
    let failed = |e: io::Error| BringupFailed::one("cgroups", &e);
    let cgroups = Cgroups::set_up(Path::new("/sys/fs/cgroup")).map_err(failed)?;
    cgroups.enter_init().map_err(failed)?;
    if let Err(e) = fs::write("/proc/self/oom_score_adj", "-1000") {
        notes.push(format!("PID 1 is not safe from the OOM killer: {e}"));
    }
    Ok(cgroups)
}

fn load_modules(notes: &mut Vec<String>) -> Result<(), BringupFailed> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let root = Path::new("/lib/modules").join(release);
    let loaded =
        modules::load(&root, modules::NODE).map_err(|e| BringupFailed::one("modules", &e))?;
    notes.extend(loaded.without.iter().map(|e| chain(e)));
    if loaded.missing.is_empty() {
        return Ok(());
    }
    let reasons = loaded.missing.iter().map(|e| chain(e)).collect();
    Err(BringupFailed { step: "modules", reasons })
}

/// Starts the processors that the kernel left out: a machine told `maxcpus=` boots with fewer, and uses all.
fn start_processors(folder: &Path, notes: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let switch = entry.path().join("online");
        if fs::read_to_string(&switch).is_ok_and(|state| state.trim() == "0")
            && let Err(e) = fs::write(&switch, "1")
        {
            notes.push(format!("{} stays off: {e}", entry.file_name().to_string_lossy()));
        }
    }
}

fn read_parameters(
    command_line: &str,
    notes: &mut Vec<String>,
) -> Result<Parameters, BringupFailed> {
    let failed = |e: params::ParameterError| BringupFailed::one("parameters", &e);
    let mut given = Vec::new();
    for (source, path) in [(Source::Esp, ESP), (Source::FwCfg, FW_CFG)] {
        match fs::read(path) {
            Ok(bytes) => given.push(params::from_json(source, &bytes).map_err(failed)?),
            // A machine without ESP or fw_cfg is fine.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => notes.push(format!("cannot read {source}: {e}")),
        }
    }
    given.push(params::from_command_line(command_line));
    let (parameters, unknown) = params::resolve(&given).map_err(failed)?;
    notes.extend(unknown.iter().map(ToString::to_string));
    Ok(parameters)
}

fn place_memory() -> Result<Root, BringupFailed> {
    let failed = |e: localstorage::LayoutError| BringupFailed::one("directories", &e);
    let root = Root::place(Path::new("/")).map_err(failed)?;
    root.create_memory().map_err(failed)?;
    Ok(root)
}

/// Hostname and the files that `/etc` links to, except the machine id, which the data disk keeps.
fn write_identity(
    run: &localstorage::Run,
    parameters: &Parameters,
    notes: &mut Vec<String>,
) -> Result<(), BringupFailed> {
    let name = &parameters.node_name;
    if let Err(e) = rustix::system::sethostname(name.as_bytes()) {
        notes.push(format!("hostname: {e}"));
    }
    if let Err(e) = Interfaces::open().and_then(|i| i.up("lo")) {
        notes.push(format!("interface lo: {e}"));
    }
    for (file, text) in identity_files(parameters) {
        write_etc(run, file, &text).map_err(|e| BringupFailed::one("/run/etc", &e))?;
    }
    Ok(())
}

fn identity_files(parameters: &Parameters) -> [(&'static str, String); 3] {
    let name = &parameters.node_name;
    [
        (
            "hosts",
            format!("127.0.0.1 localhost\n::1 localhost\n{} {name}\n", parameters.network.address),
        ),
        ("hostname", format!("{name}\n")),
        // Must exist: the kubelet opens it for every sandbox.
        ("resolv.conf", String::new()),
    ]
}

/// Writes one of the files `/etc` links to.
pub(super) fn write_etc(run: &localstorage::Run, file: &str, text: &str) -> io::Result<()> {
    let file = run.etc.dir.file(file).map_err(io::Error::other)?;
    file.write(text.as_bytes(), 0o644).map_err(io::Error::other)
}

fn apply_sysctls(notes: &mut Vec<String>) {
    for (key, value) in SYSCTLS {
        if let Err(e) = fs::write(Path::new("/proc/sys").join(key), value) {
            notes.push(format!("sysctl {key}: {e}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_are_off_are_started_and_others_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = |name: &str| folder.path().join(name);
        for (name, state) in [("cpu1", "0\n"), ("cpu2", "1\n")] {
            fs::create_dir(cpu(name)).unwrap();
            fs::write(cpu(name).join("online"), state).unwrap();
        }
        // The first processor has no switch.
        fs::create_dir(cpu("cpu0")).unwrap();
        let mut notes = Vec::new();
        start_processors(folder.path(), &mut notes);
        assert_eq!(fs::read_to_string(cpu("cpu1/online")).unwrap(), "1");
        assert_eq!(fs::read_to_string(cpu("cpu2/online")).unwrap(), "1\n");
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn b5_the_node_knows_itself_and_localhost_without_a_resolver() {
        let files = identity_files(&Parameters::default());
        assert_eq!(files[0].0, "hosts");
        assert_eq!(files[0].1, "127.0.0.1 localhost\n::1 localhost\n10.0.2.15 hamlet-0\n");
        assert_eq!(files[2], ("resolv.conf", String::new()));
    }
}
