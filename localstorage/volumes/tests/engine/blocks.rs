//! Block volumes: images, devices, targets.

use std::collections::BTreeMap;

use super::*;

const MIB: u64 = 1 << 20;

fn block(name: &str, bytes: u64) -> CreateVolume {
    CreateVolume { kind: VolumeKind::Block, ..request(name, bytes) }
}

fn publish(w: &World, id: &str, target: &Path) -> Publish {
    Publish { kind: VolumeKind::Block, ..w.publish(id, target) }
}

#[tokio::test]
async fn s6_1_an_image_has_whole_sectors_and_a_project_without_limits() {
    let w = World::new();
    let mut r = block("pvc-1", MIB + 1);
    r.params.block_size = 4096;
    let v = w.engine().create(r.clone()).await.expect("create");
    assert_eq!((v.capacity, v.limit), (Bytes(MIB + 4096), Bytes(MIB + 4096)));
    let meta = std::fs::metadata(w.entry("pvc-1")).expect("image");
    assert!(meta.is_file() && meta.len() == MIB + 4096);
    assert_eq!(w.kernel.limits_of(v.project_id), Some(Limits::default()));
    let project = Project { id: v.project_id, inherit: false };
    assert_eq!(w.kernel.project_of(&w.entry("pvc-1")), Some(project));
    assert_eq!(w.engine().capacity().borrow().committed, Bytes(MIB + 4096));
    assert_eq!(w.engine().create(r).await.expect("again"), v);
    let e = w.create("pvc-1", MIB).await.expect_err("another kind");
    assert!(matches!(e, CreateError::AlreadyExists { .. }), "{e}");
    let exact = CapacityRange { required: Some(Bytes(1000)), limit: Some(Bytes(1000)) };
    let r = CreateVolume { capacity: exact, ..block("pvc-2", 0) };
    let e = w.engine().create(r).await.expect_err("rounds past the limit");
    assert!(matches!(e, CreateError::OutOfRange(_)), "{e}");
}

#[tokio::test]
async fn s6_1_a_full_disk_keeps_the_size_and_leaves_nothing_of_a_new_image() {
    let w = World::new();
    let v = w.engine().create(block("pvc-1", MIB)).await.expect("create");
    w.kernel.set_hook(Some(Arc::new(|c| (c == "preallocate").then_some(Errno::NOSPC))));
    let to = CapacityRange { required: Some(Bytes(2 * MIB)), limit: None };
    w.engine().expand(&v.id, to).await.expect_err("full");
    assert_eq!(std::fs::metadata(w.entry("pvc-1")).expect("image").len(), MIB);
    assert_eq!(w.engine().capacity().borrow().committed, Bytes(MIB));
    let e = w.engine().create(block("pvc-2", MIB)).await.expect_err("full");
    assert!(matches!(e, CreateError::NoSpace { .. }), "{e}");
    assert!(w.list("volume-state/staging").is_empty() && !w.entry("pvc-2").exists());
    w.kernel.set_hook(None);
    let done = w.engine().expand(&v.id, to).await.expect("expand");
    assert_eq!((done.capacity, done.node_expansion_required), (Bytes(2 * MIB), true));
}

#[tokio::test]
async fn s6_3_all_targets_share_one_device_and_the_last_unpublish_detaches_it() {
    let w = World::new();
    w.engine().create(block("pvc-1", MIB)).await.expect("create");
    w.engine().create(block("pvc-2", MIB)).await.expect("create");
    let (a, b, ro, other) = (w.target("a"), w.target("b"), w.target("ro"), w.target("other"));
    for _ in 0..2 {
        w.engine().publish(publish(&w, "pvc-1", &a)).await.expect("publish");
        w.engine().publish(publish(&w, "pvc-1", &b)).await.expect("publish");
        let read_only = Publish { read_only: true, ..publish(&w, "pvc-1", &ro) };
        w.engine().publish(read_only).await.expect("publish");
        w.engine().publish(publish(&w, "pvc-2", &other)).await.expect("publish");
    }
    assert_eq!(w.kernel.loop_sizes(), BTreeMap::from([(0, MIB), (1, MIB), (2, MIB)]));
    assert_eq!(w.kernel.mount_count(), 4);
    assert!(a.is_file());
    let e = w.engine().publish(w.publish("pvc-1", &w.target("c"))).await.expect_err("as mount");
    assert!(matches!(e, PublishError::Precondition(_)), "{e}");
    let mut published = w.engine().published();
    let there = |p: &volumes::Published| p.targets.get(&vid("pvc-1")).is_some_and(|t| t.len() == 3);
    published.wait_for(there).await.expect("serves");
    let e = w.engine().delete(&vid("pvc-1")).await.expect_err("published");
    assert!(matches!(e, DeleteError::Published { .. }), "{e}");
    let stats = w.engine().stats(&vid("pvc-1"), &a).await.expect("stats");
    assert_eq!((stats.bytes.total, stats.inodes), (MIB, None));
    let un = |id: &str, t: &Path| Unpublish { id: vid(id), target: t.to_owned() };
    // Another volume's device is never taken down.
    let e = w.engine().unpublish(un("pvc-1", &other)).await.expect_err("foreign");
    assert!(matches!(e, PublishError::Foreign(_)), "{e}");
    w.engine().unpublish(un("pvc-1", &a)).await.expect("unpublish");
    assert_eq!(w.kernel.loop_sizes().len(), 3, "b still uses it");
    for target in [&b, &ro] {
        w.engine().unpublish(un("pvc-1", target)).await.expect("unpublish");
    }
    assert_eq!(w.kernel.loop_sizes(), BTreeMap::from([(2, MIB)]));
    assert!(!a.exists() && !b.exists() && !ro.exists());
    w.engine().delete(&vid("pvc-1")).await.expect("delete");
    w.purged().await;
}

#[tokio::test]
async fn s11_5_an_attached_device_grows_with_its_image_and_is_told_again() {
    let w = World::new();
    let v = w.engine().create(block("pvc-1", MIB)).await.expect("create");
    w.engine().publish(publish(&w, "pvc-1", &w.target("a"))).await.expect("publish");
    let to = CapacityRange { required: Some(Bytes(3 * MIB)), limit: None };
    w.engine().expand(&v.id, to).await.expect("expand");
    assert_eq!(w.kernel.loop_sizes(), BTreeMap::from([(0, 3 * MIB)]));
    // What NodeExpandVolume asks for: nothing to grow, the device is told again.
    let again = CapacityRange { required: Some(Bytes(1)), limit: None };
    assert_eq!(w.engine().expand(&v.id, again).await.expect("again").capacity, Bytes(3 * MIB));
    w.kernel.set_hook(Some(Arc::new(|c| (c == "loop_resize").then_some(Errno::IO))));
    w.engine().expand(&v.id, again).await.expect_err("the device is not told");
}

#[tokio::test]
async fn s6_4_any_errno_in_any_call_of_a_publish_leaves_neither_device_nor_target() {
    for call in ["table", "loop_list", "loop_attach", "loop_node", "bind"] {
        let w = World::new();
        w.engine().create(block("pvc-1", MIB)).await.expect("create");
        w.kernel.set_hook(Some(Arc::new(move |c| (c == call).then_some(Errno::IO))));
        let target = w.target("a");
        let e = w.engine().publish(publish(&w, "pvc-1", &target)).await.expect_err(call);
        assert!(matches!(e, PublishError::Trouble(Trouble::Step { .. })), "{call}: {e}");
        w.kernel.set_hook(None);
        assert!(!target.exists() && w.kernel.loop_sizes().is_empty(), "{call}");
    }
}

#[tokio::test]
async fn s17_symlinks_and_full_files_at_a_block_target_are_refused_and_left() {
    let w = World::new();
    w.engine().create(block("pvc-1", MIB)).await.expect("create");
    let (link, full, folder) = (w.dir.path().join("l"), w.dir.path().join("f"), w.dir.path());
    std::os::unix::fs::symlink("/dev/null", &link).expect("symlink");
    std::fs::write(&full, "x").expect("write");
    for target in [&link, &full, folder] {
        let e = w.engine().publish(publish(&w, "pvc-1", target)).await.expect_err("planted");
        assert!(matches!(e, PublishError::Precondition(_)), "{e}");
    }
    assert!(link.is_symlink() && std::fs::read(&full).expect("read") == b"x");
    assert_eq!((w.kernel.mount_count(), w.kernel.loop_sizes().len()), (0, 0));
}

#[tokio::test]
async fn s6_7_a_start_adopts_published_devices_and_detaches_the_rest_of_ours() {
    let mut w = World::new();
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        w.engine().create(block(name, MIB)).await.expect("create");
        w.engine().publish(publish(&w, name, &w.target(name))).await.expect("publish");
    }
    let stranger = w.dir.path().join("stranger");
    std::fs::write(&stranger, vec![0; 512]).expect("write");
    let foreign = w.kernel.attach_foreign(&stranger).expect("attach");
    w.stop().await;
    // Somebody unmounts one target, and replaces the image of another volume.
    nodesys::Mounter::unmount(&w.kernel, &w.target("pvc-2")).expect("unmount");
    std::fs::remove_file(w.entry("pvc-3")).expect("remove");
    std::fs::write(w.entry("pvc-3"), vec![0; 512]).expect("write");
    w.restart().await;
    assert_eq!(w.kernel.loop_sizes().into_keys().collect::<Vec<_>>(), [0, foreign.0]);
    let lost = w.engine().health(&vid("pvc-3")).await.expect("health");
    assert!(lost.iter().any(|c| c.kind == ConditionKind::DeviceDetached), "{lost:?}");
    let published = w.engine().published().borrow().clone();
    assert_eq!(published.targets.keys().cloned().collect::<Vec<_>>(), [vid("pvc-1")]);
    // A target that shows a device which is nobody's any more goes, and only it.
    let un = Unpublish { id: vid("pvc-3"), target: w.target("pvc-3") };
    w.engine().unpublish(un).await.expect("unpublish");
    assert!(!w.target("pvc-3").exists());
}

#[tokio::test]
async fn s6_4_after_a_reboot_no_target_names_another_volumes_device() {
    let mut w = World::new();
    w.engine().create(block("pvc-1", MIB)).await.expect("create");
    w.engine().create(block("pvc-2", MIB)).await.expect("create");
    let (one, two) = (w.target("one"), w.target("two"));
    w.engine().publish(publish(&w, "pvc-1", &one)).await.expect("publish");
    w.stop().await;
    w.kernel.reboot();
    w.restart().await;
    assert_eq!(std::fs::metadata(&one).expect("left").len(), 0, "an empty file, no device node");
    w.engine().publish(publish(&w, "pvc-2", &two)).await.expect("publish");
    let un = Unpublish { id: vid("pvc-1"), target: one.clone() };
    w.engine().unpublish(un).await.expect("unpublish");
    assert!(!one.exists());
    assert_eq!((w.kernel.mount_count(), w.kernel.loop_sizes().len()), (1, 1));
}

#[tokio::test]
async fn s7_8_images_of_an_earlier_release_and_of_a_lost_registry_are_adopted() {
    let mut w = World::new();
    let v = w.engine().create(block("pvc-1", MIB)).await.expect("create");
    write_start(&w.entry("pvc-1"), b"precious");
    w.stop().await;
    std::fs::remove_file(w.data().join("volume-state/registry.redb")).expect("remove");
    std::fs::write(w.entry("pvc-old"), vec![7; 1024]).expect("an image of another release");
    w.restart().await;
    assert_eq!(w.engine().create(block("pvc-1", MIB)).await.expect("known"), v);
    assert_eq!(read_start(&w.entry("pvc-1"), 8), b"precious");
    let old = w.engine().find(&vid("pvc-old")).await.expect("serves").expect("adopted");
    assert_eq!(
        (old.kind, old.capacity, old.state),
        (VolumeKind::Block, Bytes(1024), StoredState::Ready)
    );
    assert_ne!(old.project_id, v.project_id);
    let project = Project { id: old.project_id, inherit: false };
    assert_eq!(w.kernel.project_of(&w.entry("pvc-old")), Some(project));
    assert_eq!(std::fs::read(w.entry("pvc-old")).expect("read"), vec![7; 1024]);
    w.restart().await;
    let again = w.engine().find(&vid("pvc-old")).await.expect("serves").expect("known");
    assert_eq!(again.project_id, old.project_id);
}

#[tokio::test]
async fn s11_7_a_truncated_image_is_not_published() {
    let w = World::new();
    w.engine().create(block("pvc-1", MIB)).await.expect("create");
    std::fs::File::options()
        .write(true)
        .open(w.entry("pvc-1"))
        .expect("open")
        .set_len(512)
        .expect("cut");
    let e = w.engine().publish(publish(&w, "pvc-1", &w.target("a"))).await.expect_err("short");
    assert!(matches!(e, PublishError::DataMissing(_)), "{e}");
    let health = w.engine().health(&vid("pvc-1")).await.expect("health");
    assert_eq!(health.iter().map(|c| c.kind).collect::<Vec<_>>(), [ConditionKind::ImageTruncated]);
}
