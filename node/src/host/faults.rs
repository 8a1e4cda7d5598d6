//! Operations for tests: they set the clock, kill, panic, and touch files and volumes directly.
//!
//! Compiled only with feature `faults`, which no published image has.
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nodesys::{KernelQuota, Quota};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use supervisor::Dn;
use volumes::{
    AccessMode, Bytes, CapacityRange, Consistency, ContentSource, CreateSnapshot, CreateVolume,
    OwnerTag, Publish, SnapshotId, Unpublish, VolumeEngine, VolumeId, VolumeKind,
};

use super::answer::Refusal;
use super::ops::{Arguments, Node, unknown};

/// Bytes of one write of `test.fill`.
const CHUNK: u64 = 1 << 20;

type Answered = Result<Value, Refusal>;

/// Serves one test operation.
pub(crate) async fn operate(node: &Node, op: &str, a: &Arguments) -> Answered {
    match op {
        "test.set_clock" => set_clock(number(a, "unix_ms")?),
        "test.kill" => kill(node, text(a, "dn")?),
        "test.panic" => panic(node, text(a, "dn")?),
        "test.engine" => engine(&node.shared.engine, a).await,
        "test.fill" => fill(text(a, "path")?, a.get("chunk").and_then(Value::as_u64)),
        "test.quota" => quota(text(a, "path")?),
        "test.ls" => list(text(a, "path")?),
        "test.write" => io(fs::write(text(a, "path")?, text(a, "text")?)).map(|()| json!({})),
        "test.arm" => {
            super::faults_points::arm(text(a, "point")?);
            Ok(json!({}))
        }
        "test.run" => super::faults_run::run(node, a).await,
        "test.read" => io(read(text(a, "path")?, a.get("max").and_then(Value::as_u64))),
        _ => Err(unknown(op)),
    }
}

fn bad(text: impl Into<String>) -> Refusal {
    Refusal::new("bad_request", text)
}

fn text<'a>(a: &'a Arguments, key: &str) -> Result<&'a str, Refusal> {
    a.get(key).and_then(Value::as_str).ok_or_else(|| bad(format!("{key} must be a text")))
}

fn number(a: &Arguments, key: &str) -> Result<u64, Refusal> {
    a.get(key).and_then(Value::as_u64).ok_or_else(|| bad(format!("{key} must be a number")))
}

fn io<T>(result: io::Result<T>) -> Result<T, Refusal> {
    result.map_err(|e| Refusal::new("io", e.to_string()))
}

fn set_clock(unix_ms: u64) -> Answered {
    use rustix::time::{ClockId, Timespec, clock_settime};
    let seconds = i64::try_from(unix_ms / 1000).map_err(|e| bad(e.to_string()))?;
    let nanos = i64::try_from(unix_ms % 1000 * 1_000_000).map_err(|e| bad(e.to_string()))?;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
    io(clock_settime(ClockId::Realtime, time).map_err(io::Error::from)).map(|()| json!({}))
}

fn kill(node: &Node, dn: &str) -> Answered {
    let dn = Dn::new(dn).map_err(|e| bad(e.to_string()))?;
    let snapshot = node.supervisor.view().borrow().clone();
    let child = snapshot.nodes.iter().find(|n| n.dn == dn).and_then(|n| n.child);
    let pid = child.and_then(|c| Pid::from_raw(c.pid));
    let pid = pid.ok_or_else(|| Refusal::new("not_found", format!("{dn} has no child process")))?;
    io(kill_process(pid, Signal::KILL).map_err(io::Error::from))?;
    Ok(json!({ "pid": pid.as_raw_nonzero().get() }))
}

fn panic(node: &Node, dn: &str) -> Answered {
    if !dn.ends_with("provisioner") {
        return Err(Refusal::new("unsupported", "only the provisioner can be made to panic"));
    }
    node.shared.provisioner_panic.send_modify(|n| *n += 1);
    Ok(json!({}))
}

async fn engine(engine: &VolumeEngine, a: &Arguments) -> Answered {
    match text(a, "action")? {
        "create" => create(engine, a).await,
        "delete" => done(engine.delete(&id(a)?).await),
        "publish" => {
            let publish = Publish {
                id: id(a)?,
                target: PathBuf::from(text(a, "target")?),
                kind: kind(a),
                attr: volumes::parse_mount_flags(&[]).map_err(|e| bad(e.to_string()))?,
                read_only: a.get("read_only").and_then(Value::as_bool).unwrap_or(false),
                access: AccessMode::default(),
            };
            done(engine.publish(publish).await)
        }
        "unpublish" => {
            let target = PathBuf::from(text(a, "target")?);
            done(engine.unpublish(Unpublish { id: id(a)?, target }).await)
        }
        "expand" => {
            let to = CapacityRange { required: Some(Bytes(number(a, "bytes")?)), limit: None };
            let done = engine.expand(&id(a)?, to).await.map_err(|e| failed(&e))?;
            Ok(json!({ "capacity_bytes": done.capacity.0 }))
        }
        "snapshot" => {
            let request = CreateSnapshot {
                name: text(a, "name")?.to_owned(),
                source: id(a)?,
                consistency: Consistency::PerFile,
            };
            let s = engine.snapshot(request).await.map_err(|e| failed(&e))?;
            Ok(json!({ "id": s.id.to_string(), "size": s.size.0, "pinned": s.pinned.0 }))
        }
        "delete_snapshot" => {
            let id = SnapshotId::parse(text(a, "snapshot")?).map_err(|e| bad(e.to_string()))?;
            done(engine.delete_snapshot(&id).await)
        }
        "snapshots" => {
            let all = engine.snapshots(None, None, usize::MAX).await.map_err(|e| failed(&e))?;
            let ids: Vec<String> = all.iter().map(|s| s.id.to_string()).collect();
            Ok(json!({ "ids": ids }))
        }
        "stats" => {
            let stats = engine.stats(&id(a)?, Path::new(text(a, "path")?)).await;
            stats.map_err(|e| failed(&e)).and_then(|s| value(&s))
        }
        "status" => value(&*engine.status().borrow()),
        "inventory" => Ok(inventory(engine).await),
        other => Err(bad(format!("no engine action {other:?}")).hint(
            "create, delete, publish, unpublish, expand, snapshot, delete_snapshot, snapshots, \
                 stats, status, inventory",
        )),
    }
}

async fn create(engine: &VolumeEngine, a: &Arguments) -> Answered {
    let parameters: BTreeMap<String, String> = a
        .get("params")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
        .collect();
    let request = CreateVolume {
        name: text(a, "name")?.to_owned(),
        kind: kind(a),
        capacity: CapacityRange {
            required: a.get("bytes").and_then(Value::as_u64).map(Bytes),
            limit: a.get("limit").and_then(Value::as_u64).map(Bytes),
        },
        params: volumes::parse_params(&parameters).map_err(|e| bad(e.to_string()))?,
        source: source(a),
        owner: OwnerTag::new(a.get("owner").and_then(Value::as_str).unwrap_or_default())
            .map_err(|e| bad(e.to_string()))?,
    };
    let v = engine.create(request).await.map_err(|e| failed(&e))?;
    Ok(json!({
        "id": v.id.to_string(),
        "capacity_bytes": v.capacity.0,
        "limit_bytes": v.limit.0,
        "inodes": v.inodes.0,
        "project_id": v.project_id,
    }))
}

fn kind(a: &Arguments) -> VolumeKind {
    match a.get("kind").and_then(Value::as_str) {
        Some("block") => VolumeKind::Block,
        _ => VolumeKind::Filesystem,
    }
}

fn source(a: &Arguments) -> Option<ContentSource> {
    let of = |key: &str| a.get(key).and_then(Value::as_str).map(str::to_owned);
    let snapshot = of("from_snapshot").map(ContentSource::Snapshot);
    snapshot.or_else(|| of("from_volume").map(ContentSource::Volume))
}

async fn inventory(engine: &VolumeEngine) -> Value {
    let stored = engine.inventory().await;
    let one = |s: &volumes::Stored| {
        json!({
            "id": s.id.as_ref().map(ToString::to_string),
            "entry": s.entry,
            "name": s.name,
            "state": s.state,
            "capacity_bytes": s.capacity.0,
            "project_id": s.project_id,
            "owner": s.owner.as_str(),
            "conditions": s.conditions,
        })
    };
    json!({ "objects": stored.iter().map(one).collect::<Vec<Value>>() })
}

fn id(a: &Arguments) -> Result<VolumeId, Refusal> {
    VolumeId::parse(text(a, "volume")?).map_err(|e| bad(e.to_string()))
}

fn done<E: std::error::Error + 'static>(result: Result<(), E>) -> Answered {
    result.map(|()| json!({})).map_err(|e| failed(&e))
}

fn failed<E: std::error::Error + 'static>(error: &E) -> Refusal {
    Refusal::new("engine", crate::bringup::chain(error))
}

fn value(v: &impl serde::Serialize) -> Answered {
    serde_json::to_value(v).map_err(|e| Refusal::new("internal", e.to_string()))
}

/// Appends until the file system refuses; tells how much went in and with which errno it ended.
fn fill(path: &str, chunk: Option<u64>) -> Answered {
    let chunk = usize::try_from(chunk.unwrap_or(CHUNK)).unwrap_or(1).clamp(1, 16 << 20);
    let mut file = io(OpenOptions::new().create(true).append(true).open(path))?;
    let bytes = vec![0xa5; chunk];
    let mut written = 0_u64;
    loop {
        match file.write(&bytes) {
            Ok(n) => written += n as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Ok(json!({ "written": written, "errno": e.raw_os_error() })),
        }
    }
}

/// The file's text, or its first `max` bytes: devices have no end worth waiting for.
fn read(path: &str, max: Option<u64>) -> io::Result<Value> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(max.unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    Ok(json!({ "text": text }))
}

fn quota(path: &str) -> Answered {
    let file = io(fs::File::open(path))?;
    let quota = KernelQuota;
    let sys = |e: nodesys::SysError| Refusal::new("io", crate::bringup::chain(&e));
    let project = quota.project(file.as_fd()).map_err(sys)?;
    // Project 0 is everything without one; it has no limits to show.
    let usage = match nodesys::ProjectId::new(project.id) {
        Ok(id) => quota.get(file.as_fd(), id).map_err(sys)?,
        Err(_) => None,
    };
    Ok(json!({
        "project_id": project.id,
        "limit_bytes": usage.as_ref().map(|u| u.limits.bytes),
        "used_bytes": usage.as_ref().map(|u| u.used_bytes),
        "inode_limit": usage.as_ref().map(|u| u.limits.inodes),
        "inodes_used": usage.as_ref().map(|u| u.used_inodes),
    }))
}

fn list(path: &str) -> Answered {
    let mut names = Vec::new();
    for entry in io(fs::read_dir(path))? {
        names.push(io(entry)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(json!({ "names": names }))
}
