//! Block volumes, snapshots and clones on a real kernel: XFS reflink, loop devices, and the
//! power going away in the middle of each. No Kubernetes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{ChannelError, DataDisk, StorageNode, eventually};
use serde_json::{Value, json};

const DISK: u64 = 2 << 30;
const MIB: u64 = 1 << 20;
const PURGE: Duration = Duration::from_secs(30);
/// The guest is gone as soon as the point is passed; this only bounds a point that is not.
const CUT: Duration = Duration::from_secs(20);

fn entry(id: &str) -> String {
    format!("/data/volumes/{id}")
}

fn write(node: &mut StorageNode, path: &str, text: &str) -> Result<(), ChannelError> {
    node.channel.call("test.write", json!({ "path": path, "text": text })).map(drop)
}

/// What a file says.
fn read(node: &mut StorageNode, path: &str) -> Result<String> {
    let answer = node.channel.call("test.read", json!({ "path": path, "max": 256 << 10 }))?;
    Ok(answer["text"].as_str().context("no text")?.trim_end_matches('\0').to_owned())
}

/// What a device begins with.
fn begin(node: &mut StorageNode, path: &str) -> Result<String> {
    let answer = node.channel.call("test.read", json!({ "path": path, "max": 64 }))?;
    Ok(answer["text"].as_str().context("no text")?.trim_end_matches('\0').to_owned())
}

fn block(name: &str, bytes: u64) -> Value {
    json!({ "name": name, "bytes": bytes, "kind": "block" })
}

/// The name of the loop device that is bound at `target`.
fn device(node: &mut StorageNode, target: &str) -> Result<Option<String>> {
    let table = read(node, "/proc/self/mountinfo")?;
    let at = |line: &str| {
        let mut fields = line.split(' ');
        let root = fields.nth(3)?.trim_start_matches('/').to_owned();
        (fields.next()? == target).then_some(root)
    };
    Ok(table.lines().find_map(at))
}

/// Devices that have a file.
fn attached(node: &mut StorageNode) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in node.list("/sys/block")? {
        if name.starts_with("loop")
            && node.list(&format!("/sys/block/{name}"))?.contains(&"loop".into())
        {
            found.push(name);
        }
    }
    Ok(found)
}

#[test]
fn block_6_a_device_carries_data_grows_online_and_leaves_nothing_behind() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    node.engine("create", block("one", 16 * MIB))?;
    let (a, b) = ("/ephemeral/a", "/data/kubernetes/kubelet/stale");
    let publish = |target: &str| json!({ "volume": "one", "target": target, "kind": "block" });
    for target in [a, b, a] {
        node.engine("publish", publish(target))?;
    }
    let name = device(&mut node, a)?.context("nothing is bound")?;
    assert_eq!(device(&mut node, b)?.as_ref(), Some(&name), "one device for all targets");
    assert_eq!(
        read(&mut node, &format!("/sys/block/{name}/size"))?.trim(),
        (16 * MIB / 512).to_string()
    );
    assert_eq!(read(&mut node, &format!("/sys/block/{name}/loop/dio"))?.trim(), "1");
    write(&mut node, a, "through the device")?;
    assert!(begin(&mut node, b)?.starts_with("through the device"));

    node.engine("expand", json!({ "volume": "one", "bytes": 32 * MIB }))?;
    assert_eq!(
        read(&mut node, &format!("/sys/block/{name}/size"))?.trim(),
        (32 * MIB / 512).to_string()
    );
    let quota = node.quota(&entry("one"))?;
    assert!(quota.used_bytes >= Some(32 * MIB), "preallocated: {quota:?}");
    let refused = node.engine("expand", json!({ "volume": "one", "bytes": 100 * DISK }));
    assert!(matches!(refused, Err(ChannelError::Refused { .. })), "{refused:?}");

    node.engine("unpublish", json!({ "volume": "one", "target": a }))?;
    assert_eq!(attached(&mut node)?, [name], "the other target uses it");
    let refused = node.delete("one");
    assert!(matches!(refused, Err(ChannelError::Refused { .. })), "{refused:?}");
    node.power_cut();

    // Nothing of the other target is on disk but an empty file.
    let mut node = StorageNode::boot(&disk)?;
    assert_eq!(attached(&mut node)?, Vec::<String>::new());
    assert_eq!(read(&mut node, b)?, "");
    node.engine("unpublish", json!({ "volume": "one", "target": b }))?;
    node.engine("publish", publish(a))?;
    assert!(begin(&mut node, a)?.starts_with("through the device"), "what was synced is there");
    node.engine("unpublish", json!({ "volume": "one", "target": a }))?;
    assert_eq!(attached(&mut node)?, Vec::<String>::new());
    node.delete("one")?;
    eventually("purge", PURGE, || {
        ensure!(node.inventory()?.is_empty(), "still there");
        Ok(())
    })?;
    node.power_off()
}

#[test]
fn snapshots_10_are_cut_kept_restored_and_charged_on_a_real_xfs() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    node.create("dir", 64 * MIB)?;
    write(&mut node, &format!("{}/text", entry("dir")), "first")?;
    node.fill(&format!("{}/filling", entry("dir")), MIB)?;
    let s = node.engine("snapshot", json!({ "volume": "dir", "name": "snap" }))?;
    let pinned = s["pinned"].as_u64().context("pinned")?;
    assert!((60 * MIB..=66 * MIB).contains(&pinned), "charged in full: {s}");
    write(&mut node, &format!("{}/text", entry("dir")), "second")?;
    node.delete("dir")?;

    let restore =
        |name: &str, bytes: u64| json!({ "name": name, "bytes": bytes, "from_snapshot": "snap" });
    node.engine("create", restore("back", 80 * MIB))?;
    assert_eq!(read(&mut node, &format!("{}/text", entry("back")))?, "first");
    let quota = node.quota(&entry("back"))?;
    assert_eq!(quota.limit_bytes, Some(80 * MIB));
    assert!(quota.used_bytes >= Some(60 * MIB), "shared extents are charged to each: {quota:?}");
    let refused = node.engine("create", restore("small", 32 * MIB));
    assert!(matches!(refused, Err(ChannelError::Refused { .. })), "{refused:?}");

    node.engine("create", block("img", 16 * MIB))?;
    let publish = json!({ "volume": "img", "target": "/ephemeral/img", "kind": "block" });
    node.engine("publish", publish)?;
    write(&mut node, "/ephemeral/img", "on the device")?;
    node.engine("snapshot", json!({ "volume": "img", "name": "img-snap" }))?;
    write(&mut node, "/ephemeral/img", "and after it ")?;
    let mut clone = block("img-back", 32 * MIB);
    clone["from_snapshot"] = json!("img-snap");
    node.engine("create", clone)?;
    let publish = json!({ "volume": "img-back", "target": "/ephemeral/back", "kind": "block" });
    node.engine("publish", publish)?;
    assert!(begin(&mut node, "/ephemeral/back")?.starts_with("on the device"));
    let quota = node.quota(&entry("img-back"))?;
    assert!(quota.used_bytes >= Some(32 * MIB), "allocated again: {quota:?}");
    for (volume, target) in [("img", "/ephemeral/img"), ("img-back", "/ephemeral/back")] {
        node.engine("unpublish", json!({ "volume": volume, "target": target }))?;
        node.delete(volume)?;
    }
    node.delete("back")?;
    for snapshot in ["snap", "img-snap"] {
        node.engine("delete_snapshot", json!({ "snapshot": snapshot }))?;
    }
    eventually("purge", PURGE, || {
        ensure!(node.inventory()?.is_empty(), "still there");
        Ok(())
    })?;
    assert!(node.list("/data/volume-state/snapshots")?.is_empty());
    assert_eq!(attached(&mut node)?, Vec::<String>::new());
    node.power_off()
}

/// A point at which the power goes, and what is asked of the node then.
struct Cut {
    point: &'static str,
    action: &'static str,
    request: Value,
}

fn cuts() -> Vec<Cut> {
    let cut = |point, action, request| Cut { point, action, request };
    let restore = json!({ "name": "cut", "bytes": 8 * MIB, "from_snapshot": "kept" });
    let mut restored = block("cut", 8 * MIB);
    restored["from_snapshot"] = json!("kept-img");
    vec![
        cut("create.c5", "create", restore.clone()),
        cut("create.c7", "snapshot", json!({ "volume": "dir", "name": "cut" })),
        cut("create.c8", "create", restored),
        cut("create.c9", "snapshot", json!({ "volume": "img", "name": "cut" })),
        cut("expand.e2", "expand", json!({ "volume": "img", "bytes": 16 * MIB })),
        cut("delete.d3", "delete", json!({ "volume": "dir" })),
        cut("delete.d5", "delete", json!({ "volume": "img" })),
    ]
}

#[test]
fn faults_14_the_power_goes_after_chosen_steps_and_everything_is_there_or_absent() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    node.create("dir", 8 * MIB)?;
    write(&mut node, &format!("{}/text", entry("dir")), "kept")?;
    node.engine("create", block("img", 8 * MIB))?;
    node.engine("snapshot", json!({ "volume": "dir", "name": "kept" }))?;
    node.engine("snapshot", json!({ "volume": "img", "name": "kept-img" }))?;
    let mut survived = 0;
    for Cut { point, action, request } in cuts() {
        node.channel.call("test.arm", json!({ "point": point }))?;
        let mut arguments = request.clone();
        arguments["action"] = json!(action);
        let answer = node.channel.call_within("test.engine", arguments, CUT);
        // The purge comes after the answer of a deletion.
        let gone = matches!(answer, Err(ChannelError::Closed(_) | ChannelError::Silent(_)));
        if !gone && point != "delete.d5" {
            bail!("{point} was not passed: {answer:?}");
        }
        drop(node);
        node = StorageNode::boot(&disk)?;
        check(&mut node, point)?;
        survived += 1;
    }
    println!("power cuts at named steps survived: {survived}");
    node.power_off()
}

/// Disk, registry and kernel agree, and what was there before the cut is there.
fn check(node: &mut StorageNode, point: &str) -> Result<()> {
    assert!(node.list("/data/volume-state/staging")?.is_empty(), "{point}");
    let deleted = |id: &str| match point {
        "delete.d3" => id == "dir",
        "delete.d5" => id == "dir" || id == "img",
        _ => false,
    };
    let entries = node.list("/data/volumes")?;
    for id in ["dir", "img"] {
        assert_eq!(entries.contains(&id.to_owned()), !deleted(id), "{id} after {point}");
    }
    let snapshots = node.list("/data/volume-state/snapshots")?;
    let known = node.engine("snapshots", json!({}))?;
    assert_eq!(json!(snapshots), known["ids"], "{point}");
    for kept in ["kept", "kept-img"] {
        assert!(snapshots.contains(&kept.to_owned()), "{kept} after {point}");
    }
    let text = read(node, "/data/volume-state/snapshots/kept/tree/text")?;
    assert_eq!(text, "kept", "{point}");
    eventually("purge", PURGE, || {
        let left = node.list("/data/volume-state/trash")?;
        ensure!(left.is_empty(), "{point}: the trash has {left:?}");
        Ok(())
    })?;
    for object in node.inventory()? {
        let id = object["id"].as_str().context("id")?.to_owned();
        assert!(entries.contains(&id), "{id} after {point}");
        let quota = node.quota(&entry(&id))?;
        assert_eq!(json!(quota.project_id), object["project_id"], "{id} after {point}");
        assert!(object["conditions"].as_array().is_some_and(Vec::is_empty), "{object}");
    }
    if entries.contains(&"cut".to_owned()) {
        let whole = node.quota(&entry("cut"))?;
        assert!(whole.used_bytes > Some(0), "half a volume after {point}: {whole:?}");
        node.delete("cut")?;
    }
    if snapshots.contains(&"cut".to_owned()) {
        node.engine("delete_snapshot", json!({ "snapshot": "cut" }))?;
    }
    Ok(())
}
