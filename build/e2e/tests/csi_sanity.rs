//! The real csi-sanity against the node's driver, on a real kernel (storage rule 12.6).
//!
//! It runs inside the guest, as a child of the node, because it mounts and looks at what
//! the driver mounted. Nothing that the driver advertises may be skipped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{DataDisk, StorageNode, eventually};
use serde_json::json;

const DISK: u64 = 4 << 30;
const MIB: u64 = 1 << 20;
/// Under emulation the whole suite takes a minute or two.
const DEADLINE: Duration = Duration::from_secs(280);
/// Deleted content goes in the background.
const PURGE: Duration = Duration::from_secs(30);
const SOCKET: &str = "/var/lib/kubelet/plugins/com.nexantic.smalltown.vfs/csi@node.sock";

/// What the driver does not advertise (rule 12.2): the only reasons to skip anything.
const NOT_ADVERTISED: &[&str] = &[
    "Controller Publish, UnpublishVolume not supported",
    "ControllerModifyVolume not supported",
    "ControllerPublishVolume not supported",
    "ControllerPublishVolume.readonly field not supported",
    "ControllerUnpublishVolume not supported",
    "GroupControllerService not supported",
    "Modify Volume not supported",
    "Modify volume not supported",
    "NodeStageVolume not supported",
    "NodeUnstageVolume not supported",
    "VolumeGroupSnapshots not supported",
    // The driver sets no limit of volumes on a node.
    "No MaxVolumesPerNode",
    "testnodevolumeattachlimit not enabled",
];

struct Outcome {
    passed: u32,
    failed: u32,
    skipped: u32,
    reasons: Vec<String>,
    text: String,
}

fn sanity(node: &mut StorageNode, access: &str) -> Result<Outcome> {
    let report = format!("/ephemeral/sanity-{access}.xml");
    let args = [
        "-csi.endpoint".to_owned(),
        SOCKET.to_owned(),
        format!("-csi.mountdir=/ephemeral/sanity-{access}"),
        format!("-csi.stagingdir=/ephemeral/sanity-{access}-staging"),
        format!("-csi.testvolumeaccesstype={access}"),
        format!("-csi.testvolumesize={}", 64 * MIB),
        format!("-csi.testvolumeexpandsize={}", 128 * MIB),
        format!("-ginkgo.junit-report={report}"),
        "-ginkgo.no-color".to_owned(),
    ];
    let request = json!({ "program": "/usr/bin/csi-sanity", "args": args });
    let ended = node.channel.call_within("test.run", request, DEADLINE)?;
    let part = |key: &str| ended[key].as_str().unwrap_or_default().to_owned();
    let text = format!("{}\n{}", part("stdout"), part("stderr"));
    let line =
        text.lines().rev().find(|l| l.contains(" Passed |")).with_context(|| text.clone())?;
    // FAIL! -- 50 Passed | 1 Failed | 0 Pending | 40 Skipped
    let number = |word: &str| -> Result<u32> {
        let before = line.split(word).next().unwrap_or_default();
        let digits = before.trim_end().rsplit(' ').next().unwrap_or_default();
        digits.parse().with_context(|| format!("{word} in {line:?}"))
    };
    let (passed, failed, skipped) = (number("Passed")?, number("Failed")?, number("Skipped")?);
    let report = node.channel.call("test.read", json!({ "path": report }))?;
    let report = report["text"].as_str().context("no report")?.to_owned();
    let reason = |s: &str| s.split('"').next().unwrap_or_default().to_owned();
    let reasons = report.split("<skipped message=\"").skip(1).map(reason);
    // One test is switched off in csi-sanity itself.
    let reasons = reasons.filter(|r| r != "pending").collect();
    Ok(Outcome { passed, failed, skipped, reasons, text })
}

fn judge(node: &mut StorageNode, access: &str) -> Result<()> {
    let o = sanity(node, access)?;
    println!(
        "csi-sanity {access}: {} passed, {} failed, {} skipped",
        o.passed, o.failed, o.skipped
    );
    ensure!(o.failed == 0 && o.passed > 0, "{}", o.text);
    let allowed = |r: &String| NOT_ADVERTISED.iter().any(|n| r.contains(n));
    let forbidden: Vec<&String> = o.reasons.iter().filter(|r| !allowed(r)).collect();
    ensure!(forbidden.is_empty(), "skipped although advertised: {forbidden:#?}");
    ensure!(o.reasons.len() as u32 == o.skipped, "{} reasons for {}", o.reasons.len(), o.skipped);
    Ok(())
}

#[test]
fn csi_12_6_csi_sanity_passes_with_mount_and_block_volumes() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    for access in ["mount", "block"] {
        judge(&mut node, access)?;
        // Whatever it made it has deleted, and nothing of it is left on the disk.
        eventually("purge", PURGE, || {
            ensure!(node.inventory()?.is_empty(), "still in the inventory");
            for folder in ["volumes", "volume-state/snapshots", "volume-state/trash"] {
                let left = node.list(&format!("/data/{folder}"))?;
                ensure!(left.is_empty(), "{folder} has {left:?}");
            }
            Ok(())
        })?;
    }
    node.power_off()
}
