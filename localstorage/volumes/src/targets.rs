//! Where volumes are mounted, and what a publish or unpublish has to do. Pure.
//!
//! Invariants: published state is read from the mount table, never from a record; a target
//! is never looked at to decide whether something is mounted there; a mount that is not
//! ours is never taken away.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use nodesys::{LoopNo, Mount, MountAttr, MountTable};

use crate::id::VolumeId;
use crate::image::Devices;
use crate::types::{AccessMode, Published};

/// How the kernel marks the root of a mount whose directory was removed. As bytes: to `Path`
/// the two slashes are one.
const DELETED: &[u8] = b"//deleted";
/// Longest path of a target (PATH_MAX less the NUL).
const TARGET_MAX: usize = 4095;

/// How volumes look in the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Device of the data filesystem.
    pub(crate) dev: (u32, u32),
    /// Path of `volumes` within that filesystem.
    pub(crate) root: PathBuf,
    /// Devices of block volumes.
    pub(crate) devices: Devices,
}

/// The loop device whose node is mounted, if it is one.
pub(crate) fn loop_of(m: &Mount) -> Option<LoopNo> {
    if m.fs_type != "devtmpfs" {
        return None;
    }
    let name = m.root.strip_prefix("/").ok()?.to_str()?;
    name.strip_prefix("loop")?.parse().ok().map(LoopNo)
}

impl Marks {
    /// Learns the marks from the mount that `volumes` lies on, and the attached `devices`.
    /// `None`: it is not mounted.
    pub(crate) fn of(table: &MountTable, volumes: &Path, devices: Devices) -> Option<Marks> {
        let base = table.covering(volumes)?;
        let below = volumes.strip_prefix(&base.target).ok()?;
        let mut root = base.root.clone();
        if !below.as_os_str().is_empty() {
            root.push(below);
        }
        Some(Marks { dev: base.dev, root, devices })
    }

    /// The volume that `m` shows the root or the device of, if any.
    pub(crate) fn volume(&self, m: &Mount) -> Option<VolumeId> {
        if let Some(no) = loop_of(m) {
            return self.devices.get(&no).cloned();
        }
        if m.dev != self.dev {
            return None;
        }
        let rest = m.root.strip_prefix(&self.root).ok()?;
        let mut parts = rest.components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) => VolumeId::parse(name.to_str()?).ok(),
            _ => None,
        }
    }

    /// Any mount of the volume or of something inside it.
    fn touches(&self, m: &Mount, id: &VolumeId) -> bool {
        if loop_of(m).is_some() {
            return self.volume(m).as_ref() == Some(id);
        }
        let gone = m.root.as_os_str().as_encoded_bytes().ends_with(DELETED);
        m.dev == self.dev && !gone && m.root.starts_with(self.root.join(id.as_str()))
    }

    /// All volumes with their targets.
    pub(crate) fn published(&self, table: &MountTable) -> Published {
        let mut out = Published::default();
        for m in &table.mounts {
            if let Some(id) = self.volume(m) {
                out.targets.entry(id).or_default().insert(m.target.clone());
            }
        }
        out
    }

    /// One place where the volume, or a part of it, is mounted.
    pub(crate) fn in_use(&self, table: &MountTable, id: &VolumeId) -> Option<PathBuf> {
        table.mounts.iter().find(|m| self.touches(m, id)).map(|m| m.target.clone())
    }
}

/// Checks the form of a target path (rule 11.1). `own` are directories no target may be in.
pub(crate) fn check_target(target: &Path, own: &[&Path]) -> Result<(), String> {
    let shown = || target.display().to_string().chars().take(256).collect::<String>();
    if !target.is_absolute() {
        return Err(format!("{} is not absolute", shown()));
    }
    if target.as_os_str().len() > TARGET_MAX {
        return Err(format!("{} is longer than {TARGET_MAX} bytes", shown()));
    }
    if target.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(format!("{} contains NUL", shown()));
    }
    if target.components().any(|c| c == Component::ParentDir) {
        return Err(format!("{} contains ..", shown()));
    }
    if target.parent().is_none() {
        return Err("the root directory cannot be a target".to_owned());
    }
    if own.iter().any(|o| target.starts_with(o)) {
        return Err(format!("{} is inside the engine's own directories", shown()));
    }
    Ok(())
}

/// What a publish has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishDecision {
    /// Mounted there already with the same flags.
    Done,
    /// Bind it.
    Bind,
    /// Mounted there with these other flags.
    OtherFlags(String),
    /// Impossible, in words.
    Refuse(String),
}

/// Decides a publish of `id` at `target`.
pub(crate) fn decide_publish(
    marks: &Marks,
    table: &MountTable,
    (id, target): (&VolumeId, &Path),
    attr: MountAttr,
    access: AccessMode,
) -> PublishDecision {
    if let Some(top) = table.at(target).next_back() {
        return match marks.volume(top) {
            Some(found) if found == *id => {
                if top.has(attr) {
                    PublishDecision::Done
                } else {
                    PublishDecision::OtherFlags(top.options.join(","))
                }
            }
            Some(found) => PublishDecision::Refuse(format!(
                "volume {found} is mounted at {}",
                target.display()
            )),
            None => PublishDecision::Refuse(format!(
                "something else ({} from {:?}) is mounted at {}",
                top.fs_type,
                top.source,
                target.display()
            )),
        };
    }
    match access {
        AccessMode::MultiNode => PublishDecision::Refuse(
            "a node-local volume cannot be used from several nodes".to_owned(),
        ),
        AccessMode::SingleWriter => match other_targets(marks, table, id).first() {
            Some(other) => PublishDecision::Refuse(format!(
                "the volume has a single writer and is published at {}",
                other.display()
            )),
            None => PublishDecision::Bind,
        },
        AccessMode::SingleNodeWriter | AccessMode::MultiWriter | AccessMode::ReaderOnly => {
            PublishDecision::Bind
        }
    }
}

fn other_targets(marks: &Marks, table: &MountTable, id: &VolumeId) -> BTreeSet<PathBuf> {
    table
        .mounts
        .iter()
        .filter(|m| marks.volume(m).as_ref() == Some(id))
        .map(|m| m.target.clone())
        .collect()
}

/// What an unpublish has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnpublishDecision {
    /// Take so many layers away, then remove the target.
    Unmount(usize),
    /// Leave it: in words.
    Leave(String),
}

/// Decides an unpublish of `id` at `target`: every layer of this volume goes. A layer of a
/// volume whose entry is gone counts, by its root's `//deleted`.
pub(crate) fn decide_unpublish(
    marks: &Marks,
    table: &MountTable,
    id: &VolumeId,
    target: &Path,
) -> UnpublishDecision {
    let gone = marks.root.join(format!("{id}//deleted"));
    let layers: Vec<&Mount> = table.at(target).collect();
    // A device that is no volume's any more names nothing: the mount may go, the device stays.
    let unbound = |m: &Mount| loop_of(m).is_some() && marks.volume(m).is_none();
    let ours = |m: &&Mount| {
        marks.volume(m).as_ref() == Some(id)
            || unbound(m)
            || (m.dev == marks.dev && m.root.as_os_str() == gone.as_os_str())
    };
    match layers.iter().find(|m| !ours(m)) {
        Some(m) => UnpublishDecision::Leave(format!(
            "{} is a mount of something else ({} from {:?})",
            target.display(),
            m.fs_type,
            m.source
        )),
        None => UnpublishDecision::Unmount(layers.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
        1 0 8:1 / / rw,relatime - erofs /dev/vda ro\n\
        2 1 8:2 / /data rw,noexec,relatime - xfs /dev/vdb rw,prjquota\n\
        3 1 8:2 /kubernetes/kubelet /var/lib/kubelet rw,relatime - xfs /dev/vdb rw,prjquota\n\
        4 3 8:2 /volumes/pvc-1 /var/lib/kubelet/pods/a/mount rw,nosuid,nodev,relatime - xfs /dev/vdb rw\n\
        5 3 8:2 /volumes/pvc-1/sub /var/lib/kubelet/pods/a/subpath rw,relatime - xfs /dev/vdb rw\n\
        6 3 8:9 /volumes/pvc-1 /other rw,relatime - xfs /dev/vdc rw\n\
        7 3 8:2 /volumes/pvc-2//deleted /gone rw,relatime - xfs /dev/vdb rw\n\
        8 3 0:9 / /tmpfs rw,relatime - tmpfs tmpfs rw\n\
        9 3 0:6 /loop3 /block rw,nosuid,noexec,relatime - devtmpfs devtmpfs rw\n\
        10 3 0:6 /loop4 /stale rw,nosuid,noexec,relatime - devtmpfs devtmpfs rw\n\
        11 3 0:6 /sda /disk rw,nosuid,noexec,relatime - devtmpfs devtmpfs rw\n";

    fn table() -> MountTable {
        nodesys::parse_mountinfo(TABLE.as_bytes())
    }

    fn marks() -> Marks {
        let devices = Devices::from([(LoopNo(3), id("pvc-3"))]);
        Marks::of(&table(), Path::new("/data/volumes"), devices).expect("marks")
    }

    fn id(text: &str) -> VolumeId {
        VolumeId::parse(text).expect("id")
    }

    const FLAGS: MountAttr = MountAttr {
        read_only: false,
        nosuid: true,
        nodev: true,
        noexec: false,
        atime: nodesys::Atime::Relative,
        nodiratime: false,
    };

    #[test]
    fn s11_8_published_follows_the_mount_table_and_sees_only_roots_of_volumes() {
        let p = marks().published(&table());
        assert_eq!(p.targets.len(), 2);
        let block: Vec<_> = p.targets[&id("pvc-3")].iter().cloned().collect();
        assert_eq!(block, [PathBuf::from("/block")]);
        let targets: Vec<_> = p.targets[&id("pvc-1")].iter().cloned().collect();
        assert_eq!(targets, [PathBuf::from("/var/lib/kubelet/pods/a/mount")]);
        assert!(marks().in_use(&table(), &id("pvc-2")).is_none());
        assert!(marks().in_use(&table(), &id("pvc-1")).is_some());
    }

    #[test]
    fn s11_8_marks_hold_when_only_a_part_of_the_disk_is_mounted() {
        let t = nodesys::parse_mountinfo(
            b"1 0 8:2 /deep/data /data rw - xfs d rw\n2 1 8:2 /deep/data/volumes/pvc-1 /t rw,relatime - xfs d rw\n",
        );
        let m = Marks::of(&t, Path::new("/data/volumes"), Devices::new()).expect("marks");
        assert_eq!(m.root, PathBuf::from("/deep/data/volumes"));
        assert_eq!(m.published(&t).targets.len(), 1);
    }

    fn publish(target: &str, attr: MountAttr, access: AccessMode) -> PublishDecision {
        let id = id("pvc-1");
        decide_publish(&marks(), &table(), (&id, Path::new(target)), attr, access)
    }

    #[test]
    fn s11_2_a_second_publish_is_done_or_refused_and_never_stacked() {
        let at = "/var/lib/kubelet/pods/a/mount";
        let any = AccessMode::SingleNodeWriter;
        assert_eq!(publish(at, FLAGS, any), PublishDecision::Done);
        let ro = MountAttr { read_only: true, ..FLAGS };
        assert!(matches!(publish(at, ro, any), PublishDecision::OtherFlags(_)));
        assert!(matches!(publish("/tmpfs", FLAGS, any), PublishDecision::Refuse(_)));
        assert!(matches!(publish("/other", FLAGS, any), PublishDecision::Refuse(_)));
    }

    #[test]
    fn s11_3_a_second_target_depends_on_the_access_mode() {
        let at = |a| publish("/new", FLAGS, a);
        assert_eq!(at(AccessMode::SingleNodeWriter), PublishDecision::Bind);
        assert_eq!(at(AccessMode::MultiWriter), PublishDecision::Bind);
        assert_eq!(at(AccessMode::ReaderOnly), PublishDecision::Bind);
        assert!(matches!(at(AccessMode::SingleWriter), PublishDecision::Refuse(_)));
        assert!(matches!(at(AccessMode::MultiNode), PublishDecision::Refuse(_)));
    }

    #[test]
    fn s11_4_unpublish_takes_every_layer_of_this_volume_and_nothing_else() {
        let un = |i, t| decide_unpublish(&marks(), &table(), &id(i), Path::new(t));
        assert_eq!(un("pvc-1", "/var/lib/kubelet/pods/a/mount"), UnpublishDecision::Unmount(1));
        assert_eq!(un("pvc-1", "/not/mounted"), UnpublishDecision::Unmount(0));
        assert_eq!(un("pvc-2", "/gone"), UnpublishDecision::Unmount(1));
        assert!(matches!(
            un("pvc-2", "/var/lib/kubelet/pods/a/mount"),
            UnpublishDecision::Leave(_)
        ));
        assert!(matches!(un("pvc-1", "/tmpfs"), UnpublishDecision::Leave(_)));
    }

    #[test]
    fn s6_4_a_device_is_known_by_what_is_behind_it_and_a_stale_one_is_only_unmounted() {
        let un = |i, t| decide_unpublish(&marks(), &table(), &id(i), Path::new(t));
        assert_eq!(un("pvc-3", "/block"), UnpublishDecision::Unmount(1));
        // Somebody else's device, a number that is nobody's, and no loop device at all.
        assert!(matches!(un("pvc-1", "/block"), UnpublishDecision::Leave(_)));
        assert_eq!(un("pvc-1", "/stale"), UnpublishDecision::Unmount(1));
        assert!(matches!(un("pvc-1", "/disk"), UnpublishDecision::Leave(_)));
        assert!(marks().in_use(&table(), &id("pvc-3")).is_some());
    }

    #[test]
    fn s11_1_the_form_of_targets() {
        let own = [Path::new("/data/volumes"), Path::new("/data/volume-state")];
        let ok = |t: &str| check_target(Path::new(t), &own).is_ok();
        assert!(ok("/var/lib/kubelet/pods/x/volumes/mount") && ok("/data/volumes2"));
        let long = format!("/{}", "x".repeat(4096));
        for bad in [
            "",
            "/",
            "rel/ative",
            "/a/../b",
            "/..",
            "/data/volumes",
            "/data/volumes/pvc-1",
            "/data/volume-state/x",
            long.as_str(),
        ] {
            assert!(!ok(bad), "{bad}");
        }
    }
}
