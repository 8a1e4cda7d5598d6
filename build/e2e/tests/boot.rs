//! Boots of the test image, judged by their last words, and what a boot does to
//! a data disk. No Kubernetes.

use std::time::Duration;

use anyhow::Result;
use e2e::{DataDisk, Ending, PATIENCE, RunDir, StorageNode, Vm};
use serde_json::json;

const DISK: u64 = 1 << 30;
const DOWN: Duration = Duration::from_secs(130);

/// Starts a guest with one more parameter.
fn start(disk: &DataDisk, parameter: &str) -> Result<Vm> {
    Vm::start(&StorageNode::config(disk)?.parameter(parameter), RunDir::new()?)
}

#[test]
fn f5_a_root_that_succeeds_is_a_finished_boot() -> Result<()> {
    let vm = start(&DataDisk::new(DISK)?, "hamlet.test_root=success")?;
    vm.serial().wait_for("HAMLET outcome=success", PATIENCE)?;
    Ok(())
}

#[test]
fn f5_a_root_that_returns_an_error_is_reported_and_the_node_restarts() -> Result<()> {
    let vm = start(&DataDisk::new(DISK)?, "hamlet.test_root=error")?;
    let serial = vm.serial().clone();
    assert_eq!(vm.wait_end(PATIENCE)?, Ending::Reboot);
    for words in
        ["Fatal error: ", "This node could not be started. Rebooting...", "HAMLET outcome=reboot"]
    {
        serial.wait_for(words, Duration::ZERO)?;
    }
    Ok(())
}

#[test]
fn f5_a_root_that_panics_with_a_number_is_reported_and_the_node_restarts() -> Result<()> {
    let vm = start(&DataDisk::new(DISK)?, "hamlet.test_root=panic")?;
    let serial = vm.serial().clone();
    assert_eq!(vm.wait_end(PATIENCE)?, Ending::Reboot);
    serial.wait_for("This node could not be started. Rebooting...", Duration::ZERO)?;
    serial.wait_for("HAMLET outcome=reboot", Duration::ZERO)?;
    Ok(())
}

#[test]
fn b6_an_unknown_parameter_is_answered_with_the_nearest_known_one() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let vm = start(&disk, "hamlet.node_nam=hamlet-7")?;
    vm.serial().wait_for("node_nam", PATIENCE)?;
    vm.serial().wait_for("node_name", PATIENCE)?;
    vm.serial().wait_for("HAMLET phase=storage ", PATIENCE)?;
    Ok(())
}

#[test]
fn q1_the_power_button_ends_in_order_and_the_next_boot_says_so() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    node.vm.press_power_button()?;
    let serial = node.vm.serial().clone();
    assert_eq!(node.vm.wait_end(DOWN)?, Ending::PowerOff);
    let (_, line) = serial.wait_for("HAMLET outcome=poweroff", Duration::ZERO)?;
    assert!(line.contains("clean=true"), "{line}");
    let node = StorageNode::boot(&disk)?;
    let (_, line) = node.vm.serial().wait_for("HAMLET previous=poweroff", PATIENCE)?;
    assert!(line.contains("clean=true"), "{line}");
    node.power_off()
}

#[test]
fn q5_after_an_orderly_reboot_the_file_system_needs_no_recovery_and_after_a_cut_it_does()
-> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    node.channel.call("reboot", json!({}))?;
    assert_eq!(node.vm.wait_end(DOWN)?, Ending::Reboot);

    let mut node = StorageNode::boot(&disk)?;
    node.vm.serial().wait_for("HAMLET previous=reboot", PATIENCE)?;
    let recovery = |node: &mut StorageNode| -> Result<bool> {
        let logs = node.channel.call("logs", json!({ "dn": "kernel", "n": 2000 }))?;
        Ok(logs.to_string().contains("Starting recovery"))
    };
    assert!(!recovery(&mut node)?, "the file system was not left clean");
    node.create("left-dirty", 1 << 20)?;
    node.power_cut();

    let mut node = StorageNode::boot(&disk)?;
    node.vm.serial().wait_for("HAMLET previous=unclean", PATIENCE)?;
    assert!(recovery(&mut node)?, "the test does not see recoveries");
    node.power_off()
}

#[test]
fn a_disk_that_carries_anything_else_stops_the_boot_and_keeps_every_byte() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let foreign = vec![0x5a; 4096];
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(disk.path())?,
        &foreign,
        64 << 10,
    )?;
    let vm = start(&disk, "hamlet.fatal=poweroff")?;
    let serial = vm.serial().clone();
    assert_eq!(vm.wait_end(PATIENCE)?, Ending::PowerOff);
    serial.wait_for("Fatal error: ", Duration::ZERO)?;
    serial.wait_for("hamlet-data", Duration::ZERO)?;
    let bytes = std::fs::read(disk.path())?;
    let written: Vec<_> = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
    assert_eq!(written.len(), foreign.len(), "the disk was written to");
    assert_eq!(written[0].0, 64 << 10);
    Ok(())
}

#[test]
fn a_power_cut_during_the_first_boot_is_healed_by_the_second() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let vm = start(&disk, "hamlet.log=root=debug")?;
    vm.serial().wait_for("HAMLET phase=", PATIENCE)?;
    // Formatting is under way, or just over: either must do.
    vm.power_cut();
    StorageNode::boot(&disk)?.power_off()
}
