//! What people at the machine and its host see and may do: the status page, why a boot failed, the
//! dashboard's own answers over the host channel. No Kubernetes.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{DataDisk, Ending, PATIENCE, RunDir, StorageNode, Vm};
use serde_json::{Value, json};

const DISK: u64 = 1 << 30;

/// An answer of the dashboard over the host channel.
fn api(node: &mut StorageNode, method: &str, path: &str) -> Result<(u64, Value)> {
    let answer = node.channel.call("api", json!({ "method": method, "path": path }))?;
    let status = answer["status"].as_u64().context("no status")?;
    let body = answer["body"].as_str().context("no body")?;
    Ok((status, serde_json::from_str(body)?))
}

fn starts(node: &mut StorageNode, dn: &str) -> Result<u64> {
    let (status, service) = api(node, "GET", &format!("/api/v1/tree/{dn}"))?;
    assert_eq!(status, 200, "{service}");
    service["starts"].as_u64().context("no starts")
}

#[test]
fn b11_the_console_shows_a_status_page_and_the_host_may_change_things() -> Result<()> {
    let mut node = StorageNode::boot(&DataDisk::new(DISK)?)?;
    node.vm.serial().wait_for("dashboard http://10.0.2.15:7840/", PATIENCE)?;
    node.vm.serial().wait_for("is ok, phase storage", PATIENCE)?;
    let run = node.channel.call("test.ls", json!({ "path": "/run/hamlet" }))?;
    assert!(run.to_string().contains("control.sock"), "{run}");
    assert_eq!(starts(&mut node, "root.power")?, 1);
    let (status, said) = api(&mut node, "POST", "/api/v1/restart/root.power")?;
    assert_eq!((status, said["restarted"].as_str()), (200, Some("root.power")));
    // An answer says that it has begun; the new start follows at once.
    let path = "/api/v1/logs?dn=root.dashboard&children=off&after=0&wait=1";
    while starts(&mut node, "root.power")? < 2 {
        api(&mut node, "GET", path)?;
    }
    let (status, refused) = api(&mut node, "POST", "/api/v1/restart/root")?;
    assert_eq!((status, refused["error"]["code"].as_str()), (400, Some("bad_request")));
    node.power_off()
}

#[test]
fn f4_the_console_says_on_the_next_boot_why_the_one_before_failed() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let config = StorageNode::config(&disk)?.parameter("hamlet.test_root=error");
    let failing = Vm::start(&config, RunDir::new()?)?;
    let serial = failing.serial().clone();
    assert_eq!(failing.wait_end(PATIENCE)?, Ending::Reboot);
    serial.wait_for("the root of this test image fails", Duration::ZERO)?;
    let mut node = StorageNode::boot(&disk)?;
    node.vm.serial().wait_for("the boot before failed: ", PATIENCE)?;
    node.vm.serial().wait_for("the boot before this one failed: ", PATIENCE)?;
    let (_, view) = api(&mut node, "GET", "/api/v1/node")?;
    let before = &view["outcomes"][1];
    assert_eq!(
        (before["outcome"].as_str(), before["reason"].as_str()),
        (Some("reboot"), Some("error"))
    );
    let text = before["text"].as_str().unwrap_or_default();
    assert!(text.contains("the root of this test image fails"), "{before}");
    node.power_off()
}
