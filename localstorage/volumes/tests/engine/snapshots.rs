//! Snapshots, restored volumes and clones.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use volumes::{Consistency, CreateSnapshot, Snapshot, SnapshotError, SnapshotId};

use super::*;

const MIB: u64 = 1 << 20;

fn sid(id: &str) -> SnapshotId {
    SnapshotId::parse(id).expect("id")
}

fn cut(name: &str, source: &str) -> CreateSnapshot {
    CreateSnapshot { name: name.to_owned(), source: vid(source), consistency: Consistency::PerFile }
}

fn from(source: ContentSource, name: &str, bytes: u64) -> CreateVolume {
    CreateVolume { source: Some(source), ..request(name, bytes) }
}

fn of_snapshot(id: &str) -> ContentSource {
    ContentSource::Snapshot(id.to_owned())
}

fn of_volume(id: &str) -> ContentSource {
    ContentSource::Volume(id.to_owned())
}

async fn all(w: &World) -> Vec<Snapshot> {
    w.engine().snapshots(None, None, usize::MAX).await.expect("serves")
}

/// Everything a tree can have in it that a copy has to keep.
fn plant(root: &Path) {
    let sub = root.join("sub");
    std::fs::create_dir(&sub).expect("mkdir");
    std::fs::write(sub.join("file"), "content").expect("write");
    std::fs::hard_link(sub.join("file"), root.join("second-name")).expect("link");
    std::os::unix::fs::symlink("/etc/passwd", root.join("link")).expect("symlink");
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, mode, 0).expect("mkfifo");
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe\n");
    std::fs::write(root.join(odd), "odd").expect("write");
    std::fs::write(root.join("n".repeat(255)), "").expect("write");
    std::fs::set_permissions(sub.join("file"), PermissionsExt::from_mode(0o4711)).expect("chmod");
    std::fs::set_permissions(&sub, PermissionsExt::from_mode(0o2750)).expect("chmod");
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 123_456_789);
    std::fs::File::open(&sub).expect("open").set_modified(old).expect("utimens");
}

fn check(root: &Path) {
    let sub = root.join("sub");
    assert_eq!(std::fs::read(sub.join("file")).expect("read"), b"content");
    let (one, two) = (sub.join("file"), root.join("second-name"));
    let inode = |p: &Path| std::fs::metadata(p).expect("stat").ino();
    assert_eq!(inode(&one), inode(&two), "a hard link stays one file");
    assert_eq!(std::fs::read_link(root.join("link")).expect("link"), Path::new("/etc/passwd"));
    let fifo = std::fs::symlink_metadata(root.join("fifo")).expect("stat");
    assert!(fifo.file_type().is_fifo() && fifo.mode() & 0o7777 == 0o640);
    assert_eq!(std::fs::metadata(&one).expect("stat").mode() & 0o7777, 0o4711);
    let dir = std::fs::metadata(&sub).expect("stat");
    assert_eq!(
        (dir.mode() & 0o7777, dir.mtime(), dir.mtime_nsec()),
        (0o2750, 1_000_000, 123_456_789)
    );
    assert!(root.join(std::ffi::OsStr::from_bytes(b"\xff\xfe\n")).exists());
    assert_eq!(std::fs::read_dir(root).expect("list").count(), 6);
}

use std::os::unix::ffi::OsStrExt;

#[tokio::test]
async fn s10_4_a_snapshot_and_what_is_restored_from_it_keep_everything_and_outlive_the_source() {
    let w = World::new();
    let v = w.create("pvc-1", 10 * MIB).await.expect("create");
    plant(&w.entry("pvc-1"));
    w.kernel.set_usage(v.project_id, 2 * MIB, 7);
    let s = w.engine().snapshot(cut("Snap 1", "pvc-1")).await.expect("snapshot");
    assert!(s.id.as_str().starts_with("s-") && s.atomic && s.size == Bytes(10 * MIB));
    check(&w.data().join("volume-state/snapshots").join(s.id.as_str()).join("tree"));
    assert_eq!(w.engine().snapshot(cut("Snap 1", "pvc-1")).await.expect("again"), s);
    w.kernel.set_usage(v.project_id, 0, 0);
    w.engine().delete(&v.id).await.expect("the source may go first");
    let source = of_snapshot(s.id.as_str());
    let restored = w.engine().create(from(source.clone(), "pvc-2", 10 * MIB)).await;
    let restored = restored.expect("restore");
    check(&w.entry("pvc-2"));
    assert_eq!(w.kernel.limits_of(restored.project_id).expect("limited").bytes, 10 * MIB);
    let stored = w.engine().find(&vid("pvc-2")).await.expect("serves").expect("there");
    assert_eq!(stored.source, Some(source.clone()));
    assert_eq!(w.engine().create(from(source, "pvc-2", 10 * MIB)).await.expect("same"), restored);
    let e = w.create("pvc-2", 10 * MIB).await.expect_err("another source");
    assert!(matches!(e, CreateError::AlreadyExists { .. }), "{e}");
    w.engine().delete_snapshot(&s.id).await.expect("delete");
    w.engine().delete_snapshot(&s.id).await.expect("delete of nothing");
    w.purged().await;
    assert!(all(&w).await.is_empty() && w.list("volume-state/snapshots").is_empty());
    check(&w.entry("pvc-2"));
}

#[tokio::test]
async fn s10_4_a_clone_is_independent_of_its_source() {
    let w = World::new();
    w.create("pvc-1", 10 * MIB).await.expect("create");
    plant(&w.entry("pvc-1"));
    w.engine().create(from(of_volume("pvc-1"), "pvc-2", 20 * MIB)).await.expect("clone");
    std::fs::write(w.entry("pvc-1").join("sub/file"), "changed").expect("write");
    check(&w.entry("pvc-2"));
    w.engine().delete(&vid("pvc-1")).await.expect("delete");
    w.purged().await;
    check(&w.entry("pvc-2"));
}

#[tokio::test]
async fn s10_2_a_block_snapshot_has_the_image_and_restores_to_a_larger_one() {
    let w = World::new();
    let block = |r: CreateVolume| CreateVolume { kind: VolumeKind::Block, ..r };
    w.engine().create(block(request("pvc-1", MIB))).await.expect("create");
    write_start(&w.entry("pvc-1"), b"precious");
    let s = w.engine().snapshot(cut("s1", "pvc-1")).await.expect("snapshot");
    assert!(s.kind == VolumeKind::Block && s.atomic);
    write_start(&w.entry("pvc-1"), b"changed!");
    let r = block(from(of_snapshot("s1"), "pvc-2", 2 * MIB));
    w.engine().create(r).await.expect("restore");
    assert_eq!(read_start(&w.entry("pvc-2"), 8), b"precious");
    assert_eq!(std::fs::metadata(w.entry("pvc-2")).expect("image").len(), 2 * MIB);
    let r = block(from(of_volume("pvc-1"), "pvc-3", MIB));
    w.engine().create(r).await.expect("clone");
    assert_eq!(read_start(&w.entry("pvc-3"), 8), b"changed!");
}

#[tokio::test]
async fn s10_5_a_source_that_does_not_fit_is_refused_by_what_is_wrong() {
    let w = World::new();
    w.create("pvc-1", 10 * MIB).await.expect("create");
    w.engine().snapshot(cut("s1", "pvc-1")).await.expect("snapshot");
    for source in [of_snapshot("s1"), of_volume("pvc-1")] {
        let small = from(source.clone(), "pvc-2", 9 * MIB);
        let e = w.engine().create(small).await.expect_err("smaller");
        assert!(matches!(e, CreateError::OutOfRange(_)), "{e}");
        let block =
            CreateVolume { kind: VolumeKind::Block, ..from(source.clone(), "pvc-2", 10 * MIB) };
        let e = w.engine().create(block).await.expect_err("another kind");
        assert!(matches!(e, CreateError::InvalidParameters(_)), "{e}");
        // Without a size it is that of the source.
        let mut any = from(source, "pvc-2", 0);
        any.capacity.required = None;
        assert_eq!(w.engine().create(any).await.expect("made").capacity, Bytes(10 * MIB));
        w.engine().delete(&vid("pvc-2")).await.expect("delete");
    }
    let e = w.engine().snapshot(cut("s1", "pvc-9")).await.expect_err("taken");
    assert!(matches!(e, SnapshotError::AlreadyExists { .. }), "{e}");
    let e = w.engine().snapshot(cut("s2", "pvc-9")).await.expect_err("unknown");
    assert!(matches!(e, SnapshotError::SourceNotFound(_)), "{e}");
    // A snapshot is no volume, and a volume no snapshot, whatever their names are.
    let e = w.engine().create(from(of_volume("s1"), "pvc-2", 10 * MIB)).await.expect_err("kind");
    assert!(matches!(e, CreateError::SourceNotFound(_)), "{e}");
    assert!(w.engine().find_snapshot(&sid("pvc-1")).await.expect("serves").is_none());
}

#[tokio::test]
async fn s9_3_a_snapshot_reserves_what_it_pins_and_is_refused_where_that_does_not_fit() {
    let w = World::new();
    let v = w.create("pvc-1", 10 * MIB).await.expect("create");
    let free = w.engine().capacity().borrow().available.0;
    w.kernel.set_usage(v.project_id, free + 1, 1);
    let e = w.engine().snapshot(cut("s1", "pvc-1")).await.expect_err("too much");
    assert!(matches!(e, SnapshotError::NoSpace { .. }), "{e}");
    w.kernel.set_usage(v.project_id, 4 * MIB, 1);
    // The kernel charges the copy in full: the next project is the snapshot's.
    w.kernel.set_hook(None);
    let s = w.engine().snapshot(cut("s1", "pvc-1")).await.expect("snapshot");
    let committed = w.engine().capacity().borrow().committed;
    assert_eq!(committed, Bytes(10 * MIB + s.pinned.0));
    assert_eq!(w.engine().inventory().await.len(), 1, "a snapshot is no volume");
    let status = w.engine().status().borrow().clone();
    assert_eq!((status.volumes, status.snapshot_count, status.snapshots), (1, 1, true));
}

#[tokio::test]
async fn s10_3_without_a_freezer_a_published_directory_is_cut_per_file_or_not_at_all() {
    let w = World::new();
    w.create("pvc-1", MIB).await.expect("create");
    w.engine().publish(w.publish("pvc-1", &w.target("a"))).await.expect("publish");
    let s = w.engine().snapshot(cut("s1", "pvc-1")).await.expect("per file");
    assert!(!s.atomic);
    let require = CreateSnapshot { consistency: Consistency::Require, ..cut("s2", "pvc-1") };
    let e = w.engine().snapshot(require.clone()).await.expect_err("nobody can stop them");
    assert!(matches!(e, SnapshotError::Inconsistent(_)), "{e}");
    assert!(w.list("volume-state/staging").is_empty());
    let un = Unpublish { id: vid("pvc-1"), target: w.target("a") };
    w.engine().unpublish(un).await.expect("unpublish");
    assert!(w.engine().snapshot(require).await.expect("nobody writes").atomic);
}

#[tokio::test]
async fn s10_1_a_source_is_neither_deleted_nor_resized_while_it_is_copied() {
    let (gate, hook) = gate("create.c5");
    let w = World::with(Faults::new(hook));
    let create = w.engine();
    let (made, ()) = tokio::join!(create.create(request("pvc-1", MIB)), async {
        gate.reached().await;
        gate.open();
    });
    made.expect("create");
    let (engine, other) = (w.engine(), w.engine());
    let (made, ()) = tokio::join!(engine.snapshot(cut("s1", "pvc-1")), async {
        gate.reached_times(2).await;
        let e = other.delete(&vid("pvc-1")).await.expect_err("being copied");
        assert!(matches!(e, DeleteError::Trouble(Trouble::Busy("copy"))), "{e}");
        let to = CapacityRange { required: Some(Bytes(2 * MIB)), limit: None };
        let e = other.expand(&vid("pvc-1"), to).await.expect_err("being copied");
        assert!(matches!(e, ExpandError::Trouble(Trouble::Busy("copy"))), "{e}");
        gate.open();
    });
    made.expect("snapshot");
    w.engine().delete(&vid("pvc-1")).await.expect("free again");
}

#[tokio::test]
async fn s17_a_tree_deeper_than_any_path_is_copied() {
    let w = World::new();
    w.create("pvc-1", MIB).await.expect("create");
    let root = rustix::fs::open(
        w.entry("pvc-1"),
        rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    );
    let mut at = root.expect("open");
    let depth = 3000;
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).expect("mkdir");
        let flags = rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&at, "d", flags, rustix::fs::Mode::empty()).expect("open");
    }
    w.engine().snapshot(cut("s1", "pvc-1")).await.expect("snapshot");
    w.engine().create(from(of_snapshot("s1"), "pvc-2", MIB)).await.expect("restore");
    let flags = rustix::fs::OFlags::DIRECTORY;
    let mut at =
        rustix::fs::open(w.entry("pvc-2"), flags, rustix::fs::Mode::empty()).expect("open");
    for _ in 0..depth {
        at = rustix::fs::openat(&at, "d", flags, rustix::fs::Mode::empty()).expect("as deep");
    }
}

#[tokio::test]
async fn s7_6_snapshots_are_rebuilt_from_their_copies_when_the_registry_is_lost() {
    let mut w = World::new();
    w.create("pvc-1", MIB).await.expect("create");
    let s = w.engine().snapshot(cut("s1", "pvc-1")).await.expect("snapshot");
    w.restart().await;
    assert_eq!(all(&w).await, std::slice::from_ref(&s));
    w.stop().await;
    std::fs::remove_file(w.data().join("volume-state/registry.redb")).expect("remove");
    std::fs::create_dir(w.data().join("volume-state/snapshots/stranger")).expect("mkdir");
    w.restart().await;
    assert_eq!(all(&w).await, [s]);
    let left = w.data().join("volume-state/snapshots/stranger");
    assert!(left.exists(), "what is not ours stays");
}

/// A crash after every point of a snapshot and of a restore, each followed by a start.
#[tokio::test]
async fn s14_a_snapshot_and_a_restore_are_absent_or_complete_after_any_crash() {
    let steps = ["c1", "c2", "c3", "c4", "c5", "c6w", "c6", "c7", "c8", "c9", "c10"];
    for restoring in [false, true] {
        for (n, step) in steps.into_iter().enumerate() {
            crash_at(restoring, n, Box::leak(format!("create.{step}").into_boxed_str())).await;
        }
    }
}

async fn crash_at(restoring: bool, n: usize, point: &'static str) {
    let (mut w, armed) = crashing(point);
    w.create("pvc-1", MIB).await.expect("create");
    plant(&w.entry("pvc-1"));
    let source = of_snapshot("s0");
    w.engine().snapshot(cut("s0", "pvc-1")).await.expect("snapshot");
    armed.store(1, Ordering::SeqCst);
    let engine = w.engine();
    if restoring {
        engine.create(from(source.clone(), "pvc-2", MIB)).await.expect_err(point);
    } else {
        engine.snapshot(cut("s1", "pvc-1")).await.expect_err(point);
    }
    drop(engine);
    let served = w.served.take().expect("served");
    assert!(served.task.await.expect("no panic of the owner").contains("panicked"), "{point}");
    w.restart().await;
    w.purged().await;
    assert!(w.list("volume-state/staging").is_empty(), "{point}");
    let placed = n >= 8;
    let there = |w: &World| (w.entry("pvc-2").exists(), w.list("volume-state/snapshots").len());
    assert_eq!(there(&w), (restoring && placed, 1 + usize::from(!restoring && placed)), "{point}");
    if restoring {
        let again = w.engine().create(from(source, "pvc-2", MIB)).await;
        again.unwrap_or_else(|e| panic!("retry after {point}: {e}"));
        check(&w.entry("pvc-2"));
    } else {
        let again = w.engine().snapshot(cut("s1", "pvc-1")).await;
        let s = again.unwrap_or_else(|e| panic!("retry after {point}: {e}"));
        check(&w.data().join("volume-state/snapshots").join(s.id.as_str()).join("tree"));
    }
}
