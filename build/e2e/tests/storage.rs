//! Volumes on a real kernel: limits to the block, neighbours, deletion, reboots
//! and power cuts. No Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{ChannelError, DataDisk, StorageNode, eventually};
use serde_json::{Value, json};

const DISK: u64 = 2 << 30;
const MIB: u64 = 1 << 20;
const ENOSPC: i32 = 28;
const EROFS_TEXT: &str = "Read-only file system";
const PURGE: Duration = Duration::from_secs(30);

fn path(id: &str) -> String {
    format!("/data/volumes/{id}")
}

fn id_of(volume: &Value) -> String {
    volume["id"].as_str().expect("a volume has an id").to_owned()
}

#[test]
fn quota_4_2_a_volume_takes_exactly_its_limit_and_then_says_no_space() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    for (name, bytes, chunk) in [("exact", 8 * MIB, 4096), ("odd-chunks", 3 * MIB, 1000)] {
        let id = id_of(&node.create(name, bytes)?);
        let filled = node.fill(&format!("{}/fill", path(&id)), chunk)?;
        assert_eq!((filled.written, filled.errno), (bytes, ENOSPC), "{name}");
        let quota = node.quota(&path(&id))?;
        assert_eq!((quota.used_bytes, quota.limit_bytes), (Some(bytes), Some(bytes)), "{name}");
    }
    node.power_off()
}

#[test]
fn quota_4_1_a_request_of_a_thousand_bytes_is_usable() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    let volume = node.create("small", 1000)?;
    let limit = volume["limit_bytes"].as_u64().context("no limit")?;
    assert_eq!(volume["capacity_bytes"], 1000, "what was asked for is what is reported");
    let filled = node.fill(&format!("{}/fill", path(&id_of(&volume))), 512)?;
    assert_eq!((filled.written, filled.errno), (limit, ENOSPC));
    node.power_off()
}

#[test]
fn two_volumes_do_not_see_each_others_use() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    let (one, two) = (id_of(&node.create("one", 4 * MIB)?), id_of(&node.create("two", 4 * MIB)?));
    node.fill(&format!("{}/fill", path(&one)), 4096)?;
    let (of_one, of_two) = (node.quota(&path(&one))?, node.quota(&path(&two))?);
    assert_ne!(of_one.project_id, of_two.project_id);
    assert_eq!((of_one.used_bytes, of_two.used_bytes), (Some(4 * MIB), Some(0)));
    let filled = node.fill(&format!("{}/fill", path(&two)), 4096)?;
    assert_eq!((filled.written, filled.errno), (4 * MIB, ENOSPC));
    node.power_off()
}

#[test]
fn d_a_deleted_volume_gives_back_its_space_and_its_project_id_is_not_reused_soon() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    let first = node.create("first", 64 * MIB)?;
    let id = id_of(&first);
    node.fill(&format!("{}/fill", path(&id)), MIB)?;
    node.delete(&id)?;
    assert!(!node.list("/data/volumes")?.contains(&id), "the entry is still there");
    eventually("purge", PURGE, || {
        ensure!(node.inventory()?.is_empty(), "still in the inventory");
        ensure!(node.list("/data/volume-state/trash")?.is_empty(), "still in the trash");
        Ok(())
    })?;
    let second = node.create("second", 64 * MIB)?;
    assert_ne!(first["project_id"], second["project_id"]);
    let filled = node.fill(&format!("{}/fill", path(&id_of(&second))), MIB)?;
    assert_eq!(filled.written, 64 * MIB);
    // Twice is as good as once.
    node.delete(&id)?;
    node.power_off()
}

#[test]
fn capacity_9_1_more_than_the_disk_is_refused_and_leaves_nothing() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    for bytes in [100 << 40, u64::MAX] {
        let refused = node.create("absurd", bytes);
        assert!(matches!(refused, Err(ChannelError::Refused { .. })), "{bytes}: {refused:?}");
        assert!(node.list("/data/volume-state/staging")?.is_empty());
        assert!(!node.list("/data/volumes")?.contains(&"absurd".to_owned()));
    }
    node.power_off()
}

#[test]
fn identity_3_5_handles_outside_of_the_grammar_touch_nothing() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    node.channel.call("test.write", json!({ "path": "/data/keep", "text": "kept" }))?;
    let before = node.list("/data")?;
    for handle in ["../keep", "..", ".", "", "/", "a/b", "pvc-1\n", ".engine", &"x".repeat(129)] {
        let deleted = node.delete(handle);
        assert!(matches!(deleted, Err(ChannelError::Refused { .. })), "{handle:?}: {deleted:?}");
        let target = json!({ "volume": handle, "target": "/ephemeral/t" });
        let published = node.engine("publish", target);
        assert!(matches!(published, Err(ChannelError::Refused { .. })), "{handle:?}");
    }
    assert_eq!(node.list("/data")?, before);
    assert!(!node.list("/ephemeral")?.contains(&"t".to_owned()));
    node.power_off()
}

#[test]
fn publish_is_idempotent_read_only_is_honoured_and_unpublish_removes_the_target() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    let id = id_of(&node.create("published", 4 * MIB)?);
    let (writable, locked) = ("/ephemeral/pods/a/mount", "/ephemeral/pods/b/mount");
    for _ in 0..2 {
        node.engine("publish", json!({ "volume": id, "target": writable }))?;
        node.engine("publish", json!({ "volume": id, "target": locked, "read_only": true }))?;
    }
    let write = |node: &mut StorageNode, target: &str| {
        node.channel.call("test.write", json!({ "path": format!("{target}/x"), "text": "data" }))
    };
    write(&mut node, writable)?;
    let refused = write(&mut node, locked).unwrap_err();
    assert!(refused.to_string().contains(EROFS_TEXT), "{refused}");
    let mounts = node.channel.call("test.read", json!({ "path": "/proc/self/mountinfo" }))?;
    let mounts = mounts["text"].as_str().context("no mounts")?.to_owned();
    for target in [writable, locked] {
        let stacked = mounts.lines().filter(|line| line.contains(target)).count();
        assert_eq!(stacked, 1, "{target}:\n{mounts}");
    }
    let filled = node.fill(&format!("{writable}/fill"), 4096)?;
    assert_eq!(filled.errno, ENOSPC, "the quota is not in force behind the mount");
    for _ in 0..2 {
        for target in [writable, locked] {
            node.engine("unpublish", json!({ "volume": id, "target": target }))?;
        }
    }
    assert!(node.list("/ephemeral/pods/a")?.is_empty());
    node.power_off()
}

#[test]
fn a_reboot_keeps_volumes_their_data_and_their_limits() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut node = StorageNode::boot(&disk)?;
    let volume = node.create("kept", 4 * MIB)?;
    let id = id_of(&volume);
    let file = format!("{}/text", path(&id));
    node.channel.call("test.write", json!({ "path": file, "text": "still here" }))?;
    let before = node.quota(&path(&id))?;
    node.power_off()?;

    let mut node = StorageNode::boot(&disk)?;
    let text = node.channel.call("test.read", json!({ "path": file }))?;
    assert_eq!(text["text"], "still here");
    assert_eq!(node.quota(&path(&id))?, before);
    let again = node.create("kept", 4 * MIB)?;
    assert_eq!(again["project_id"], volume["project_id"], "the same name is the same volume");
    node.power_off()
}

/// What the node has acknowledged, and what was on its way when the power went.
#[derive(Default)]
struct Ledger {
    created: BTreeMap<String, Value>,
    deleted: BTreeSet<String>,
    open: Option<String>,
}

#[test]
fn power_cuts_in_the_middle_of_fifty_creations_and_deletions_lose_nothing_acknowledged()
-> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut ledger = Ledger::default();
    let mut number = 0;
    // The cut comes that long after a request was sent and not answered.
    for cut_after in [0, 3, 10, 25, 60].map(Duration::from_millis) {
        let mut node = StorageNode::boot(&disk)?;
        verify(&mut node, &ledger)?;
        for _ in 0..10 {
            number += 1;
            mutate(&mut node, &mut ledger, number)?;
        }
        let last = format!("cut-{number}");
        let request = json!({ "action": "create", "name": last, "bytes": 2 * MIB });
        let answer = node.channel.call_within("test.engine", request, cut_after);
        match answer {
            Ok(volume) => {
                ledger.created.insert(id_of(&volume), volume);
            }
            Err(ChannelError::Silent(_)) => ledger.open = Some(last),
            Err(other) => bail!(other),
        }
        node.power_cut();
    }
    let mut node = StorageNode::boot(&disk)?;
    verify(&mut node, &ledger)?;
    node.power_off()
}

fn is_ready(object: &Value) -> bool {
    object["state"].as_str().is_some_and(|state| state.eq_ignore_ascii_case("ready"))
}

/// Creates a volume; every third time deletes the oldest one.
fn mutate(node: &mut StorageNode, ledger: &mut Ledger, number: u32) -> Result<()> {
    if number.is_multiple_of(3) {
        let oldest = ledger.created.keys().next().context("nothing to delete")?.clone();
        node.delete(&oldest)?;
        ledger.created.remove(&oldest);
        ledger.deleted.insert(oldest);
    }
    let volume = node.create(&format!("volume-{number:03}"), 2 * MIB)?;
    ledger.created.insert(id_of(&volume), volume);
    Ok(())
}

/// Registry, directories and quotas agree with each other and with the ledger.
fn verify(node: &mut StorageNode, ledger: &Ledger) -> Result<()> {
    let objects = node.inventory()?;
    let entries: BTreeSet<String> = node.list("/data/volumes")?.into_iter().collect();
    assert!(node.list("/data/volume-state/staging")?.is_empty(), "something is left in staging");
    let mut projects = BTreeSet::new();
    let mut ready = BTreeSet::new();
    for object in objects.iter().filter(|object| is_ready(object)) {
        let id = id_of(object);
        let quota = node.quota(&path(&id))?;
        assert_eq!(json!(quota.project_id), object["project_id"], "{id}");
        assert_eq!(quota.limit_bytes, Some(2 * MIB), "{id}");
        assert!(projects.insert(quota.project_id), "{id} shares its project");
        ready.insert(id);
    }
    assert_eq!(ready, entries, "registry and directories differ");
    for (id, volume) in &ledger.created {
        assert!(ready.contains(id), "{id} was acknowledged and is lost");
        let quota = node.quota(&path(id))?;
        assert_eq!(json!(quota.project_id), volume["project_id"], "{id}");
    }
    for id in &ledger.deleted {
        assert!(!ready.contains(id), "{id} was deleted and is back");
    }
    for id in ready.difference(&ledger.created.keys().cloned().collect()) {
        assert!(id.starts_with("cut-"), "{id} was never asked for (open: {:?})", ledger.open);
    }
    Ok(())
}
