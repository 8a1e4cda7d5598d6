//! `cargo xtask boot`: an image in QEMU with its console in front of you, for
//! work on the node itself.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use e2e::{Cache, ImageDir, RunDir, Vm, VmConfig, create_raw_disk, probe};

use crate::ui::Ui;

/// A guest that is looked at ends by itself, by Ctrl-C, or after this long.
const LONGEST_LOOK: Duration = Duration::from_secs(24 * 3600);

/// Size of a data disk that is made here.
const DISK_BYTES: u64 = 8 << 30;

/// What to boot.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the image (as `cargo xtask image` prints it).
    #[arg(long)]
    image: PathBuf,
    /// Words for the kernel's command line, as in `hamlet.run=storage`.
    #[arg(long)]
    append: Vec<String>,
    /// Data disk to use and keep; without it a new one for this boot.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Memory in MiB.
    #[arg(long, default_value_t = 3072)]
    memory: u64,
    /// End after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
}

/// Boots and shows the console until the guest ends.
///
/// # Errors
/// No image, or QEMU does not start.
pub(crate) fn run(ui: &Ui, arguments: Arguments) -> Result<()> {
    let image = ImageDir::open(arguments.image)?;
    let accelerator = probe(&image.kernel())?;
    let run = RunDir::new()?;
    let disk = arguments.data.unwrap_or_else(|| run.join("data.img"));
    create_raw_disk(&disk, DISK_BYTES)?;
    let mut config = VmConfig::new(image, accelerator).memory(arguments.memory);
    config = config.data_disk(disk, Cache::Writeback).forward(0, 6443).forward(0, 7840);
    config.parameters = arguments.append;
    config.show_console = true;
    let vm = Vm::start(&config, run)?;
    ui.say(&format!(
        "{accelerator:?}; API server at 127.0.0.1:{}, dashboard at 127.0.0.1:{}, host channel {}",
        vm.port(6443)?,
        vm.port(7840)?,
        vm.run_dir().join("host.sock").display()
    ));
    let longest = arguments.seconds.map_or(LONGEST_LOOK, Duration::from_secs);
    if vm.serial().wait_end(longest) {
        ui.say(&format!("ended: {:?}", vm.wait_end(Duration::from_secs(5))?));
    }
    Ok(())
}
