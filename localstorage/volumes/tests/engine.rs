//! The engine as its callers see it, over real directories and a fake kernel.

#[path = "engine/blocks.rs"]
mod blocks;
#[path = "engine/snapshots.rs"]
mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nodesys::{Limits, Project};
use rustix::io::Errno;
use volumes::testing::{FakeKernel, Served, seams, start};
use volumes::{
    AccessMode, Bytes, CapacityRange, ConditionKind, ContentSource, CreateError, CreateVolume,
    DeleteError, EngineConfig, ExpandError, Faults, InodePolicy, KnownHandles, MountAttr, OwnerTag,
    Params, Publish, PublishError, StatsError, StoredState, Trouble, Unpublish, Volume,
    VolumeEngine, VolumeId, VolumeKind,
};

const GIB: u64 = 1 << 30;

struct World {
    dir: tempfile::TempDir,
    kernel: FakeKernel,
    served: Option<Served>,
    faults: Faults,
}

impl World {
    fn new() -> World {
        World::with(Faults::default())
    }

    fn with(faults: Faults) -> World {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(dir.path().join("data")).expect("mkdir");
        let kernel = FakeKernel::new(100 * GIB);
        let mut w = World { dir, kernel, served: None, faults };
        w.start().expect("start");
        w
    }

    fn start(&mut self) -> Result<(), String> {
        let seams = seams(&self.kernel, self.faults.clone());
        self.served = Some(start(&self.data(), EngineConfig::default(), seams)?);
        Ok(())
    }

    async fn stop(&mut self) {
        if let Some(s) = self.served.take() {
            s.stop().await;
        }
    }

    /// What a crash and a new start do. Mounts survive, as with a killed process.
    async fn restart(&mut self) {
        self.stop().await;
        // The lock is free once the last job of the old incarnation is over.
        for _ in 0..500 {
            match self.start() {
                Ok(()) => return,
                Err(e) if e.contains("lock") => {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                Err(e) => panic!("{e}"),
            }
        }
        panic!("the registry's lock is never freed");
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn entry(&self, id: &str) -> PathBuf {
        self.data().join("volumes").join(id)
    }

    fn engine(&self) -> VolumeEngine {
        self.served.as_ref().expect("serving").engine.clone()
    }

    fn target(&self, name: &str) -> PathBuf {
        self.dir.path().join("pods").join(name).join("mount")
    }

    fn list(&self, below: &str) -> Vec<String> {
        let mut v: Vec<_> = std::fs::read_dir(self.data().join(below))
            .expect("list")
            .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        v.sort();
        v
    }

    async fn create(&self, name: &str, bytes: u64) -> Result<Volume, CreateError> {
        self.engine().create(request(name, bytes)).await
    }

    fn publish(&self, id: &str, target: &Path) -> Publish {
        Publish {
            id: vid(id),
            target: target.to_owned(),
            kind: VolumeKind::Filesystem,
            attr: MountAttr { nosuid: true, nodev: true, ..MountAttr::default() },
            read_only: false,
            access: AccessMode::SingleNodeWriter,
        }
    }

    /// Waits until everything deleted is purged.
    async fn purged(&self) {
        let mut status = self.engine().status();
        status.wait_for(|s| s.trash == 0).await.expect("engine serves");
    }
}

fn vid(id: &str) -> VolumeId {
    VolumeId::parse(id).expect("id")
}

fn request(name: &str, bytes: u64) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        kind: VolumeKind::Filesystem,
        capacity: CapacityRange { required: Some(Bytes(bytes)), limit: None },
        params: Params::default(),
        source: None,
        owner: OwnerTag::new(format!("tag of {name}")).expect("tag"),
    }
}

#[tokio::test]
async fn s4_a_created_volume_has_limits_project_owner_and_copy_before_it_has_a_name() {
    let w = World::new();
    let mut r = request("pvc-1", 10_000_000);
    r.params = Params { mode: 0o2770, uid: 5, gid: 6, inodes: InodePolicy::Auto, ..r.params };
    let v = w.engine().create(r).await.expect("create");
    assert_eq!((v.capacity, v.limit), (Bytes(10_000_000), Bytes(10_002_432)));
    assert_eq!(v.id.as_str(), "pvc-1");
    assert_eq!(v.project_id, 1_000_000_000);
    let limits = Limits { bytes: 10_002_432, inodes: 100_000 };
    assert_eq!(w.kernel.limits_of(v.project_id), Some(limits));
    let entry = w.entry("pvc-1");
    assert_eq!(w.kernel.project_of(&entry), Some(Project { id: v.project_id, inherit: true }));
    assert_eq!(w.kernel.owner_of(&entry), Some((5, 6, 0o2770)));
    assert_eq!((w.list("volumes"), w.list("volume-state/staging")), (vec!["pvc-1".into()], vec![]));
}

#[tokio::test]
async fn s12_5_the_same_create_again_is_the_same_volume_and_another_is_refused() {
    let w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    assert_eq!(w.create("pvc-1", GIB).await.expect("again"), v);
    assert_eq!(w.create("pvc-1", GIB / 2).await.expect("smaller fits"), v);
    let e = w.create("pvc-1", 2 * GIB).await.expect_err("larger");
    assert!(matches!(e, CreateError::AlreadyExists { .. }), "{e}");
    let mut r = request("pvc-1", GIB);
    r.params.mode = 0o700;
    let e = w.engine().create(r).await.expect_err("other parameters");
    assert!(matches!(e, CreateError::AlreadyExists { .. }), "{e}");
}

#[tokio::test]
async fn s17_bad_or_unsupported_creates_touch_nothing() {
    let w = World::new();
    let mut wiped = request("pvc-1", GIB);
    wiped.params.wipe = volumes::Wipe::Verified;
    let e = w.engine().create(wiped).await.expect_err("unsupported");
    assert!(matches!(e, CreateError::Trouble(Trouble::Unsupported(_))), "{e}");
    for source in ["../x", "", "none", "@pvc-1"] {
        for source in [ContentSource::Snapshot(source.into()), ContentSource::Volume(source.into())]
        {
            let r = CreateVolume { source: Some(source), ..request("pvc-1", GIB) };
            let e = w.engine().create(r).await.expect_err("no source");
            assert!(matches!(e, CreateError::SourceNotFound(_)), "{e}");
        }
    }
    for name in ["", "a\nb", &"x".repeat(129)] {
        let e = w.create(name, GIB).await.expect_err("bad name");
        assert!(matches!(e, CreateError::InvalidName(_)), "{e}");
    }
    let e = w.create("pvc-1", 100 << 40).await.expect_err("100 TiB");
    assert!(matches!(e, CreateError::NoSpace { .. }), "{e}");
    let e = w.create("pvc-1", u64::MAX).await.expect_err("not a size");
    assert!(matches!(e, CreateError::OutOfRange(_)), "{e}");
    assert!(w.list("volumes").is_empty() && w.list("volume-state/staging").is_empty());
    assert!(w.engine().inventory().await.is_empty());
}

#[tokio::test]
async fn s4_3_a_hundred_parallel_creates_have_unique_ids_and_skip_foreign_ones() {
    let w = World::new();
    w.kernel.set_usage(1_000_000_005, 4096, 1);
    let all = (0..100).map(|n| {
        let engine = w.engine();
        async move { engine.create(request(&format!("pvc-{n}"), 1 << 20)).await }
    });
    let made = futures::future::join_all(all).await;
    let ids: BTreeSet<u32> = made.into_iter().map(|v| v.expect("create").project_id).collect();
    assert_eq!(ids.len(), 100);
    assert!(!ids.contains(&1_000_000_005));
    let capacity = *w.engine().capacity().borrow();
    assert_eq!(capacity.committed, Bytes(100 << 20));
}

#[tokio::test]
async fn s9_1_parallel_requests_cannot_overcommit() {
    let w = World::new();
    let free = w.engine().capacity().borrow().available.0;
    let each = free / 4;
    let all = (0..9).map(|n| {
        let engine = w.engine();
        async move { engine.create(request(&format!("pvc-{n}"), each)).await.is_ok() }
    });
    let made = futures::future::join_all(all).await;
    assert_eq!(made.into_iter().filter(|ok| *ok).count(), 4);
    assert!(w.engine().capacity().borrow().available.0 < each);
}

#[tokio::test]
async fn s7_2_an_identical_request_joins_and_a_different_one_is_refused() {
    let (gate, hook) = gate("create.c2");
    let w = World::with(Faults::new(hook));
    let first = w.engine();
    let one = first.create(request("pvc-1", GIB));
    let same = w.engine();
    let other = w.engine();
    let (a, b, ()) = tokio::join!(one, same.create(request("pvc-1", GIB)), async {
        gate.reached().await;
        let e = other.delete(&vid("pvc-1")).await.expect_err("busy");
        assert!(matches!(e, DeleteError::Trouble(Trouble::Busy("create"))), "{e}");
        let e = other.create(request("pvc-1", GIB / 2)).await.expect_err("busy");
        assert!(matches!(e, CreateError::Trouble(Trouble::Busy("create"))), "{e}");
        gate.open();
    });
    assert_eq!(a.expect("create"), b.expect("joined"));
    assert_eq!(gate.passed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn s7_2_a_dropped_call_does_not_cancel_what_has_begun() {
    let (gate, hook) = gate("create.c2");
    let w = World::with(Faults::new(hook));
    {
        let engine = w.engine();
        let call = engine.create(request("pvc-1", GIB));
        tokio::select! {
            _ = call => panic!("the gate is closed"),
            () = gate.reached() => {}
        }
    }
    gate.open();
    let mut status = w.engine().status();
    status.wait_for(|s| s.operations.is_empty() && s.volumes == 1).await.expect("serves");
    assert_eq!(w.list("volumes"), ["pvc-1"]);
}

#[tokio::test]
async fn s7_5_a_delete_moves_to_the_trash_purges_and_frees_space_and_id() {
    let w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    std::fs::create_dir_all(w.entry("pvc-1").join("a/b")).expect("content");
    std::fs::write(w.entry("pvc-1").join("a/b/c"), "x").expect("content");
    w.engine().delete(&v.id).await.expect("delete");
    assert!(!w.entry("pvc-1").exists());
    w.purged().await;
    assert!(w.list("volume-state/trash").is_empty());
    assert_eq!(w.kernel.limits_of(v.project_id), Some(Limits::default()));
    w.engine().delete(&v.id).await.expect("delete of nothing");
    assert_eq!(w.engine().capacity().borrow().committed, Bytes(0));
    let again = w.create("pvc-1", GIB).await.expect("the name is free at once");
    assert_ne!(again.project_id, v.project_id, "ids are used again as late as possible");
}

#[tokio::test]
async fn s4_4_an_id_whose_usage_is_not_zero_is_kept_until_it_is() {
    let mut w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    w.kernel.set_usage(v.project_id, 4096, 1);
    w.engine().delete(&v.id).await.expect("delete");
    let mut status = w.engine().status();
    status.wait_for(|s| s.trash == 1).await.expect("serves");
    w.restart().await;
    let stored = w.engine().inventory().await;
    assert_eq!(stored.iter().map(|s| s.state).collect::<Vec<_>>(), [StoredState::Trashed]);
    w.kernel.set_usage(v.project_id, 0, 0);
    w.restart().await;
    w.purged().await;
    assert!(w.engine().inventory().await.is_empty());
}

#[tokio::test]
async fn s11_2_ten_publishes_and_one_unpublish_leave_nothing() {
    let w = World::new();
    w.create("pvc-1", GIB).await.expect("create");
    let t = w.target("a");
    for _ in 0..10 {
        w.engine().publish(w.publish("pvc-1", &t)).await.expect("publish");
    }
    assert_eq!(w.kernel.mount_count(), 1);
    let mut published = w.engine().published();
    published.wait_for(|p| p.targets.contains_key(&vid("pvc-1"))).await.expect("serves");
    let e = w.engine().delete(&vid("pvc-1")).await.expect_err("published");
    assert!(matches!(e, DeleteError::Published { .. }), "{e}");
    let un = Unpublish { id: vid("pvc-1"), target: t.clone() };
    w.engine().unpublish(un.clone()).await.expect("unpublish");
    assert!((w.kernel.mount_count(), t.exists()) == (0, false));
    w.engine().unpublish(un).await.expect("unpublish of nothing");
    published.wait_for(|p| p.targets.is_empty()).await.expect("serves");
    w.engine().delete(&vid("pvc-1")).await.expect("delete");
}

#[tokio::test]
async fn s11_2_other_flags_foreign_mounts_and_planted_links_are_refused() {
    let w = World::new();
    w.create("pvc-1", GIB).await.expect("create");
    let t = w.target("a");
    w.engine().publish(w.publish("pvc-1", &t)).await.expect("publish");
    let ro = Publish { read_only: true, ..w.publish("pvc-1", &t) };
    let e = w.engine().publish(ro).await.expect_err("other flags");
    assert!(matches!(e, PublishError::OtherFlags { .. }), "{e}");
    let foreign = w.target("b");
    std::fs::create_dir_all(&foreign).expect("mkdir");
    w.kernel.mount_foreign(&foreign);
    let e = w.engine().publish(w.publish("pvc-1", &foreign)).await.expect_err("foreign");
    assert!(matches!(e, PublishError::Precondition(_)), "{e}");
    let un = Unpublish { id: vid("pvc-1"), target: foreign };
    let e = w.engine().unpublish(un).await.expect_err("foreign");
    assert!(matches!(e, PublishError::Foreign(_)), "{e}");
    let link = w.dir.path().join("link");
    std::os::unix::fs::symlink("/tmp", &link).expect("symlink");
    let e = w.engine().publish(w.publish("pvc-1", &link)).await.expect_err("symlink");
    assert!(matches!(e, PublishError::Precondition(_)), "{e}");
    let own = w.data().canonicalize().expect("path").join("volumes/pvc-1/x");
    let e = w.engine().publish(w.publish("pvc-1", &own)).await.expect_err("inside");
    assert!(matches!(e, PublishError::InvalidTarget(_)), "{e}");
    assert_eq!(w.kernel.mount_count(), 2);
}

#[tokio::test]
async fn s11_2_a_failed_bind_leaves_no_target_and_missing_data_is_its_own_error() {
    let w = World::new();
    w.create("pvc-1", GIB).await.expect("create");
    let t = w.target("a");
    w.kernel.set_hook(Some(Arc::new(|call| (call == "bind").then_some(Errno::PERM))));
    let e = w.engine().publish(w.publish("pvc-1", &t)).await.expect_err("bind");
    assert!(matches!(e, PublishError::Trouble(Trouble::Step { step: "publish.bind", .. })), "{e}");
    assert!(!t.exists());
    w.kernel.set_hook(None);
    std::fs::remove_dir(w.entry("pvc-1")).expect("someone removes the data");
    let e = w.engine().publish(w.publish("pvc-1", &t)).await.expect_err("no data");
    assert!(matches!(e, PublishError::DataMissing(_)), "{e}");
    let e = w.engine().publish(w.publish("pvc-2", &t)).await.expect_err("unknown");
    assert!(matches!(e, PublishError::NotFound(_)), "{e}");
}

#[tokio::test]
async fn s11_4_unpublish_of_an_unknown_volume_is_fine_and_a_full_directory_is_left() {
    let w = World::new();
    let un = |t: &Path| Unpublish { id: vid("pvc-9"), target: t.to_owned() };
    w.engine().unpublish(un(&w.target("never"))).await.expect("nothing there");
    let full = w.target("full");
    std::fs::create_dir_all(full.join("x")).expect("mkdir");
    let e = w.engine().unpublish(un(&full)).await.expect_err("not empty");
    assert!(matches!(e, PublishError::Foreign(_)), "{e}");
    assert!(full.join("x").exists());
    let file = w.target("file");
    std::fs::create_dir_all(file.parent().expect("parent")).expect("mkdir");
    std::fs::write(&file, "").expect("file");
    w.engine().unpublish(un(&file)).await.expect("empty file");
    assert!(!file.exists());
}

#[tokio::test]
async fn s11_6_stats_are_the_limits_and_never_underflow() {
    let w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    let t = w.target("a");
    let e = w.engine().stats(&v.id, &t).await.expect_err("not published");
    assert!(matches!(e, StatsError::NotFound(_)), "{e}");
    w.engine().publish(w.publish("pvc-1", &t)).await.expect("publish");
    w.kernel.set_usage(v.project_id, GIB / 4, 3);
    let s = w.engine().stats(&v.id, &t).await.expect("stats");
    assert_eq!((s.bytes.total, s.bytes.used, s.bytes.available), (GIB, GIB / 4, GIB / 4 * 3));
    assert_eq!(s.inodes.map(|i| (i.total, i.used, i.available)), Some((100_000, 3, 99_997)));
    w.kernel.set_usage(v.project_id, 2 * GIB, 200_000);
    let s = w.engine().stats(&v.id, &t).await.expect("stats");
    assert_eq!((s.bytes.available, s.inodes.map(|i| i.available)), (0, Some(0)));
}

#[tokio::test]
async fn s11_5_expand_is_exact_online_and_idempotent() {
    let w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    let to = |n: u64| CapacityRange { required: Some(Bytes(n)), limit: None };
    let e = w.engine().expand(&v.id, to(2 * GIB + 1)).await.expect("expand");
    assert_eq!((e.capacity, e.node_expansion_required), (Bytes(2 * GIB + 1), false));
    let limits = w.kernel.limits_of(v.project_id).expect("limits");
    assert_eq!(limits.bytes, 2 * GIB + 4096);
    let e = w.engine().expand(&v.id, to(GIB)).await.expect("reached already");
    assert_eq!(e.capacity, Bytes(2 * GIB + 1));
    let below = CapacityRange { required: None, limit: Some(Bytes(GIB)) };
    let e = w.engine().expand(&v.id, below).await.expect_err("cannot shrink");
    assert!(matches!(e, ExpandError::OutOfRange(_)), "{e}");
    let e = w.engine().expand(&v.id, to(200 * GIB)).await.expect_err("larger than the disk");
    assert!(matches!(e, ExpandError::OutOfRange(_)), "{e}");
    w.create("pvc-2", 60 * GIB).await.expect("create");
    let e = w.engine().expand(&v.id, to(60 * GIB)).await.expect_err("no room now");
    assert!(matches!(e, ExpandError::NoSpace { .. }), "{e}");
    let e = w.engine().expand(&vid("pvc-9"), to(1)).await.expect_err("unknown");
    assert!(matches!(e, ExpandError::NotFound(_)), "{e}");
}

#[tokio::test]
async fn s7_4_a_failed_expand_returns_to_the_old_size() {
    let w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    let before = w.engine().capacity().borrow().committed;
    let failed = Arc::new(AtomicUsize::new(0));
    let count = failed.clone();
    w.kernel.set_hook(Some(Arc::new(move |call| {
        let once = call == "set_limits" && count.fetch_add(1, Ordering::SeqCst) == 0;
        once.then_some(Errno::IO)
    })));
    let to = CapacityRange { required: Some(Bytes(2 * GIB)), limit: None };
    let e = w.engine().expand(&v.id, to).await.expect_err("EIO");
    assert!(matches!(e, ExpandError::Trouble(Trouble::Step { .. })), "{e}");
    assert_eq!(w.kernel.limits_of(v.project_id).map(|l| l.bytes), Some(GIB));
    assert_eq!(w.engine().capacity().borrow().committed, before);
    w.kernel.set_hook(None);
    assert_eq!(w.engine().expand(&v.id, to).await.expect("retry").capacity, Bytes(2 * GIB));
}

#[tokio::test]
async fn s14_any_errno_in_any_call_of_a_create_rolls_back_and_a_retry_succeeds() {
    for call in ["get", "project", "set_limits", "set_project", "own", "fsetxattr", "fgetxattr"] {
        for errno in [Errno::NOSPC, Errno::IO] {
            let w = World::new();
            w.kernel.set_hook(Some(Arc::new(move |c| (c == call).then_some(errno))));
            let e = w.create("pvc-1", GIB).await.expect_err(call);
            let no_space = matches!(e, CreateError::NoSpace { .. });
            let step = matches!(e, CreateError::Trouble(Trouble::Step { .. }));
            assert!(if errno == Errno::NOSPC { no_space } else { step }, "{call}: {e}");
            assert!(w.list("volumes").is_empty(), "{call}");
            w.kernel.set_hook(None);
            let v = w.create("pvc-1", GIB).await.unwrap_or_else(|e| panic!("{call}: {e}"));
            assert_eq!(w.engine().capacity().borrow().committed, v.limit);
            assert!(w.list("volume-state/staging").is_empty(), "{call}");
        }
    }
}

#[tokio::test]
async fn s3_6_a_lost_or_damaged_registry_is_rebuilt_from_the_entries() {
    let mut w = World::new();
    let a = w.create("pvc-1", GIB).await.expect("create");
    let b = w.create("Some Name", 2 * GIB).await.expect("create");
    w.stop().await;
    let registry = w.data().join("volume-state/registry.redb");
    for damage in [true, false] {
        if damage {
            std::fs::write(&registry, b"damaged").expect("damage");
        } else {
            std::fs::remove_file(&registry).expect("remove");
        }
        w.restart().await;
        let engine = w.engine();
        assert_eq!(engine.status().borrow().recovery.registry_rebuilt, damage);
        assert_eq!(w.create("pvc-1", GIB).await.expect("known"), a);
        assert_eq!(w.create("Some Name", 2 * GIB).await.expect("known"), b);
        let stored = engine.inventory().await;
        assert!(stored.iter().all(|s| s.owner.is_none() && s.state == StoredState::Ready));
        let tag = OwnerTag::new("new").expect("tag");
        engine.tag(&a.id, tag.clone()).await.expect("tag");
        let owner = engine.inventory().await.into_iter().find(|s| s.id == Some(a.id.clone()));
        assert_eq!(owner.map(|s| s.owner), Some(tag));
        drop(engine);
        w.stop().await;
    }
    let kept = w.list("volume-state").into_iter().filter(|n| n.contains(".corrupt-")).count();
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn s7_8_volumes_of_an_earlier_release_are_adopted_and_strangers_left_alone() {
    let mut w = World::new();
    w.stop().await;
    let old = w.entry("pvc-old");
    std::fs::create_dir(&old).expect("mkdir");
    std::fs::write(old.join("data"), "precious").expect("write");
    w.kernel.set_project_of(&old, Project { id: 7, inherit: true });
    w.kernel.set_foreign_limits(7, Limits { bytes: GIB, inodes: 100_000 });
    std::fs::create_dir(w.entry("pvc-bare")).expect("mkdir");
    std::fs::create_dir(w.entry("pvc-full")).expect("mkdir");
    std::fs::write(w.entry("pvc-full").join("x"), "x").expect("write");
    std::fs::write(w.entry("pvc-file"), "x").expect("write");
    std::fs::create_dir(w.entry("Not_An-Id")).expect("mkdir");
    std::os::unix::fs::symlink("/", w.entry("pvc-link")).expect("symlink");
    w.start().expect("start");
    let by_entry: BTreeMap<String, StoredState> =
        w.engine().inventory().await.into_iter().map(|s| (s.entry, s.state)).collect();
    let state = |n: &str| by_entry.get(n).copied();
    assert_eq!(state("pvc-old"), Some(StoredState::Ready));
    assert_eq!(state("pvc-bare"), Some(StoredState::Unlimited));
    assert_eq!(state("pvc-full"), Some(StoredState::Unlimited));
    for foreign in ["pvc-file", "Not_An-Id", "pvc-link"] {
        assert_eq!(state(foreign), Some(StoredState::Foreign), "{foreign}");
    }
    assert_eq!(w.kernel.limits_of(7), Some(Limits { bytes: GIB, inodes: 100_000 }));
    // An empty bare entry makes way for a volume of its name; one with data never.
    w.create("pvc-bare", GIB).await.expect("take over");
    for taken in ["pvc-full", "pvc-file", "pvc-link"] {
        let e = w.create(taken, GIB).await.expect_err(taken);
        assert!(matches!(e, CreateError::HoldsData(_)), "{taken}: {e}");
    }
    assert!(w.entry("pvc-full").join("x").exists() && w.entry("pvc-file").exists());
    // An adopted volume works like any other.
    let to = CapacityRange { required: Some(Bytes(2 * GIB)), limit: None };
    w.engine().expand(&vid("pvc-old"), to).await.expect("expand");
    assert_eq!(std::fs::read(old.join("data")).expect("read"), b"precious");
    w.engine().delete(&vid("pvc-old")).await.expect("delete");
    w.purged().await;
}

#[tokio::test]
async fn s4_5_a_start_repairs_limits_and_project_of_the_root_and_says_so() {
    let mut w = World::new();
    let v = w.create("pvc-1", GIB).await.expect("create");
    let gone = w.create("pvc-2", GIB).await.expect("create");
    w.stop().await;
    w.kernel.set_project_of(&w.entry("pvc-1"), Project { id: 0, inherit: false });
    w.kernel.set_foreign_limits(v.project_id, Limits::default());
    std::fs::remove_dir(w.entry("pvc-2")).expect("remove");
    w.start().expect("start");
    let limits = Limits { bytes: GIB, inodes: 100_000 };
    assert_eq!(w.kernel.limits_of(v.project_id), Some(limits));
    let project = Project { id: v.project_id, inherit: true };
    assert_eq!(w.kernel.project_of(&w.entry("pvc-1")), Some(project));
    let kinds = |c: Vec<volumes::Condition>| c.into_iter().map(|c| c.kind).collect::<Vec<_>>();
    let escaped = w.engine().health(&v.id).await.expect("health");
    assert_eq!(kinds(escaped), [ConditionKind::QuotaEscaped]);
    let missing = w.engine().health(&gone.id).await.expect("health");
    assert_eq!(kinds(missing), [ConditionKind::DataMissing]);
    assert!(!w.entry("pvc-2").exists(), "never recreated empty");
    w.engine().delete(&gone.id).await.expect("a missing volume can be deleted");
}

#[tokio::test]
async fn s8_3_orphans_are_reported_both_ways_and_first_seen_survives_a_restart() {
    let mut w = World::new();
    w.create("pvc-1", GIB).await.expect("create");
    w.create("pvc-2", GIB).await.expect("create");
    let known = KnownHandles { complete: true, handles: [vid("pvc-1"), vid("pvc-3")].into() };
    let report = w.engine().reconcile_known(known.clone()).await;
    let unknown: Vec<_> = report.unknown_entries.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!((unknown, report.missing), (vec![vid("pvc-2")], vec![vid("pvc-3")]));
    let partial = KnownHandles { complete: false, handles: [vid("pvc-1")].into() };
    assert!(w.engine().reconcile_known(partial).await.unknown_entries.is_empty());
    w.restart().await;
    assert_eq!(w.engine().reconcile_known(known).await.unknown_entries.len(), 1);
    assert_eq!(w.list("volumes"), ["pvc-1", "pvc-2"]);
}

#[tokio::test]
async fn s17_the_engine_refuses_to_start_without_quota_or_on_a_held_lock() {
    let mut w = World::new();
    let second = start(&w.data(), EngineConfig::default(), seams(&w.kernel, Faults::default()));
    assert!(second.is_err_and(|e| e.contains("lock")));
    w.stop().await;
    w.kernel.set_quota_off(true);
    let e = start(&w.data(), EngineConfig::default(), seams(&w.kernel, Faults::default()));
    assert!(e.is_err_and(|e| e.contains("project quota is not enforced")));
    let project = Project { id: 9, inherit: true };
    w.kernel.set_quota_off(false);
    w.kernel.set_project_of(&w.data().join("volume-state/trash"), project);
    let e = start(&w.data(), EngineConfig::default(), seams(&w.kernel, Faults::default()));
    assert!(e.is_err_and(|e| e.contains("belongs to project 9")));
}

#[tokio::test]
async fn between_two_incarnations_every_operation_is_unavailable() {
    let mut w = World::new();
    let engine = w.engine();
    w.create("pvc-1", GIB).await.expect("create");
    w.stop().await;
    let e = engine.create(request("pvc-1", GIB)).await.expect_err("down");
    assert!(matches!(e, CreateError::Trouble(Trouble::Unavailable(_))), "{e}");
    assert!(engine.try_inventory().await.is_err());
}

/// A crash after every point of create, delete and expand, each followed by a start.
#[tokio::test]
async fn s14_a_crash_after_any_step_leaves_all_or_nothing() {
    let points = [
        "create.c1",
        "create.c2",
        "create.c3",
        "create.c4",
        "create.c5",
        "create.c6w",
        "create.c6",
        "create.c7",
        "create.c8",
        "create.c9",
        "create.c10",
        "expand.e1",
        "expand.e2",
        "expand.e3",
        "expand.e4",
        "expand.e4c",
        "expand.e5",
        "delete.d2",
        "delete.d3",
        "delete.d3s",
        "delete.d4",
        "delete.d5",
        "delete.d6",
        "delete.d7",
    ];
    for kind in [VolumeKind::Filesystem, VolumeKind::Block] {
        for (n, point) in points.into_iter().enumerate() {
            crash_at(kind, n, point).await;
        }
    }
}

/// An engine that is ended by the first pass of `point` once the counter is 1; then it is 2.
fn crashing(point: &'static str) -> (World, Arc<AtomicUsize>) {
    let armed = Arc::new(AtomicUsize::new(0));
    let flag = armed.clone();
    let hook = move |at: &str| {
        if at == point && flag.load(Ordering::SeqCst) == 1 {
            flag.store(2, Ordering::SeqCst);
            // Ends the job, and with it the incarnation, as a crash after this step does.
            std::panic::resume_unwind(Box::new("crash"));
        }
    };
    (World::with(Faults::new(Arc::new(hook))), armed)
}

async fn crash_at(kind: VolumeKind, n: usize, point: &'static str) {
    let (mut w, armed) = crashing(point);
    let creating = n < 11;
    let request = |name: &str, bytes| CreateVolume { kind, ..request(name, bytes) };
    let file = match kind {
        VolumeKind::Filesystem => w.entry("pvc-1").join("data"),
        VolumeKind::Block => w.entry("pvc-1"),
    };
    if !creating {
        w.engine().create(request("pvc-1", GIB)).await.expect("create");
        write_start(&file, b"precious");
    }
    armed.store(1, Ordering::SeqCst);
    let to = CapacityRange { required: Some(Bytes(2 * GIB)), limit: None };
    let (engine, deleting) = (w.engine(), point.starts_with("delete"));
    if creating {
        engine.create(request("pvc-1", GIB)).await.expect_err(point);
    } else if deleting {
        // The answer comes after d4; what follows is in the background.
        let result = engine.delete(&vid("pvc-1")).await;
        let background = ["delete.d5", "delete.d6", "delete.d7"].contains(&point);
        assert_eq!(result.is_ok(), background, "{point}");
    } else {
        engine.expand(&vid("pvc-1"), to).await.expect_err(point);
    }
    drop(engine);
    let served = w.served.take().expect("served");
    assert!(served.task.await.expect("no panic of the owner").contains("panicked"), "{point}");
    assert_eq!(armed.load(Ordering::SeqCst), 2, "{point} was never passed");
    w.restart().await;
    w.purged().await;
    let there = w.entry("pvc-1").exists();
    let stored = w.engine().inventory().await;
    assert_eq!(stored.len(), usize::from(there), "{point}: {stored:?}");
    assert!(w.list("volume-state/staging").is_empty(), "{point}");
    assert!(w.list("volume-state/trash").is_empty(), "{point}");
    let committed = w.engine().capacity().borrow().committed.0;
    if creating {
        assert_eq!(there, n >= 8, "{point}");
        let again = w.engine().create(request("pvc-1", GIB)).await;
        again.unwrap_or_else(|e| panic!("retry after {point}: {e}"));
        assert_eq!(w.engine().capacity().borrow().committed, Bytes(GIB), "{point}");
    } else if deleting {
        // Once the deletion is committed it is carried out, and never before.
        assert!(!there && committed == 0, "{point}");
    } else {
        assert_eq!(committed, 2 * GIB, "{point}");
        assert_eq!(read_start(&file, 8), b"precious");
    }
    if kind == VolumeKind::Block {
        let size = std::fs::metadata(&file).map_or(0, |m| m.len());
        assert_eq!(size, w.engine().capacity().borrow().committed.0, "{point}");
        return;
    }
    for s in w.engine().inventory().await {
        let limits = w.kernel.limits_of(s.project_id).expect("limited");
        let committed = w.engine().capacity().borrow().committed.0;
        assert_eq!(limits.bytes, committed, "{point}");
    }
}

/// A closed door at one point of the protocol.
struct Gate {
    passed: Arc<AtomicUsize>,
    arrived: tokio::sync::watch::Receiver<u64>,
    door: std::sync::mpsc::Sender<()>,
}

impl Gate {
    async fn reached(&self) {
        self.reached_times(1).await;
    }

    async fn reached_times(&self, n: u64) {
        self.arrived.clone().wait_for(|a| *a >= n).await.expect("hook lives");
    }

    fn open(&self) {
        self.door.send(()).expect("hook waits");
    }
}

type GateHook = Arc<dyn Fn(&str) + Send + Sync>;

fn gate(point: &'static str) -> (Gate, GateHook) {
    let passed = Arc::new(AtomicUsize::new(0));
    let (tell, arrived) = tokio::sync::watch::channel(0_u64);
    let (door, wait) = std::sync::mpsc::channel();
    let wait = parking_lot::Mutex::new(wait);
    let count = passed.clone();
    let hook: GateHook = Arc::new(move |at: &str| {
        if at == point {
            tell.send_modify(|n| *n += 1);
            let opened = wait.lock().recv_timeout(std::time::Duration::from_secs(20));
            assert!(opened.is_ok(), "nobody opened the gate");
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (Gate { passed, arrived, door }, hook)
}

/// Writes at the start of a file, which is made if it is not there, and keeps the rest.
fn write_start(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(false).open(path).expect("open");
    file.write_all(bytes).expect("write");
}

fn read_start(path: &Path, n: usize) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = vec![0; n];
    std::fs::File::open(path).expect("open").read_exact(&mut bytes).expect("read");
    bytes
}
