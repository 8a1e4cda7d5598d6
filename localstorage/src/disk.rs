//! Whether a data disk may be formatted, mounted, or must be left alone.
//!
//! Purpose: the decision is pure ([`judge`]); [`DataDisk::inspect`] only reads. Nothing
//! here writes: a blank disk gives a [`MkfsPlan`], which the caller runs as its child.
//!
//! Invariant: only a blank disk, or one whose formatting by us was cut, is ever formatted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Label of our filesystem.
pub const LABEL: &str = "hamlet-data";
/// How much is looked at from each end: partition tables (GPT has a copy at the end), boot
/// sectors, superblocks of all common filesystems, RAID and LVM labels.
const EDGE: usize = 1 << 20;
/// Offsets in an XFS superblock (big-endian): magic, label, "mkfs is running".
const XFS_MAGIC: &[u8] = b"XFSB";
const XFS_LABEL: std::ops::Range<usize> = 108..120;
const XFS_INPROGRESS: usize = 126;

/// A block device by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice(PathBuf);

impl BlockDevice {
    /// Names a device; it is opened later.
    pub fn new(path: impl Into<PathBuf>) -> BlockDevice {
        BlockDevice(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// What is on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// First and last MiB are zero.
    Blank,
    /// Our mkfs was cut: our label, `sb_inprogress` set.
    Interrupted,
    /// A complete XFS, whatever its label.
    Xfs {
        /// Its label.
        label: String,
    },
    /// Something else, in words.
    Other(String),
}

/// Decides by the first and last MiB of a disk (which overlap on a small one). Pure.
pub fn judge(first: &[u8], last: &[u8]) -> Finding {
    if first.starts_with(XFS_MAGIC) {
        let label = first.get(XFS_LABEL).unwrap_or_default();
        let label = String::from_utf8_lossy(label).trim_end_matches('\0').to_owned();
        return match first.get(XFS_INPROGRESS) {
            Some(0) => Finding::Xfs { label },
            Some(_) if label == LABEL => Finding::Interrupted,
            Some(_) => Finding::Other(format!("an unfinished XFS labelled {label:?}")),
            None => Finding::Other("a truncated XFS superblock".to_owned()),
        };
    }
    let zero = |b: &[u8]| b.iter().all(|x| *x == 0);
    if zero(first) && zero(last) {
        return Finding::Blank;
    }
    Finding::Other(describe(first, last))
}

/// Names what an operator would want to know before wiping it.
fn describe(first: &[u8], last: &[u8]) -> String {
    let at = |offset: usize, magic: &[u8]| {
        first.get(offset..).is_some_and(|rest| rest.starts_with(magic))
    };
    let end = |back: usize, magic: &[u8]| {
        last.len().checked_sub(back).is_some_and(|o| last[o..].starts_with(magic))
    };
    let known = if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        Some("a GPT partition table")
    } else if end(512, b"EFI PART") || end(4096, b"EFI PART") {
        Some("a backup GPT partition table at its end")
    } else if at(1080, &[0x53, 0xef]) {
        Some("an ext2, ext3 or ext4 filesystem")
    } else if at(65_600, b"_BHRfS_M") {
        Some("a btrfs filesystem")
    } else if at(0, b"LUKS\xba\xbe") {
        Some("a LUKS container")
    } else if at(512, b"LABELONE") || at(0, b"LABELONE") {
        Some("an LVM physical volume")
    } else if at(4096, &[0xfc, 0x4e, 0x2b, 0xa9]) || at(0, &[0xfc, 0x4e, 0x2b, 0xa9]) {
        Some("a member of a Linux RAID")
    } else if at(4086, b"SWAPSPACE2") {
        Some("swap space")
    } else if at(1024, &[0xe2, 0xe1, 0xf5, 0xe0]) {
        Some("an EROFS filesystem")
    } else if at(510, &[0x55, 0xaa]) {
        Some("a boot sector or MBR partition table")
    } else {
        None
    };
    known.map_or_else(
        || match first.iter().position(|b| *b != 0) {
            Some(o) => format!("unknown data at offset {o}"),
            None => "unknown data in its last MiB".to_owned(),
        },
        str::to_owned,
    )
}

/// The disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDiskError {
    /// It holds something else; nothing was written.
    #[error("data disk {disk} holds {finding}: refusing to touch it")]
    Occupied {
        /// Which.
        disk: PathBuf,
        /// What was found.
        finding: String,
    },
    /// It cannot be read.
    #[error("cannot read data disk {disk}")]
    Io {
        /// Which.
        disk: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A command that makes the filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsPlan {
    /// Program and arguments.
    pub argv: Vec<String>,
}

/// What to do with the data disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preparation {
    /// Mount it.
    Ready,
    /// Run this command, then inspect again.
    Format(MkfsPlan),
}

/// The disk of parameter `data_disk`.
#[derive(Debug)]
pub struct DataDisk;

impl DataDisk {
    /// Reads both ends of the disk and says what is on it. Writes nothing.
    pub fn inspect(dev: &BlockDevice) -> Result<Finding, DataDiskError> {
        let fail = |source| DataDiskError::Io { disk: dev.path().to_owned(), source };
        let mut file = File::open(dev.path()).map_err(fail)?;
        let size = file.seek(SeekFrom::End(0)).map_err(fail)?;
        let edge = (EDGE as u64).min(size);
        let first = read_at(&mut file, 0, edge).map_err(fail)?;
        let last = read_at(&mut file, size - edge, edge).map_err(fail)?;
        Ok(judge(&first, &last))
    }

    /// Inspects the disk and says what to do.
    pub fn prepare(dev: &BlockDevice) -> Result<Preparation, DataDiskError> {
        match DataDisk::inspect(dev)? {
            Finding::Xfs { .. } => Ok(Preparation::Ready),
            Finding::Blank => Ok(Preparation::Format(mkfs(dev, false))),
            Finding::Interrupted => Ok(Preparation::Format(mkfs(dev, true))),
            Finding::Other(finding) => {
                Err(DataDiskError::Occupied { disk: dev.path().to_owned(), finding })
            }
        }
    }
}

fn read_at(file: &mut File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut out = Vec::new();
    file.take(len).read_to_end(&mut out)?;
    Ok(out)
}

/// `force` overwrites our own cut attempt; mkfs itself refuses anything else it recognizes.
fn mkfs(dev: &BlockDevice, force: bool) -> MkfsPlan {
    let mut argv = vec!["mkfs.xfs".to_owned(), "-q".to_owned()];
    if force {
        argv.push("-f".to_owned());
    }
    for a in ["-L", LABEL, "-m", "reflink=1,finobt=1,bigtime=1"] {
        argv.push(a.to_owned());
    }
    argv.push(dev.path().to_string_lossy().into_owned());
    MkfsPlan { argv }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(label: &str, in_progress: u8) -> Vec<u8> {
        let mut b = vec![0; EDGE];
        b[..4].copy_from_slice(XFS_MAGIC);
        b[108..108 + label.len()].copy_from_slice(label.as_bytes());
        b[XFS_INPROGRESS] = in_progress;
        b
    }

    #[test]
    fn l1_6_only_a_blank_disk_or_our_own_cut_attempt_is_formatted() {
        let zero = vec![0; EDGE];
        assert_eq!(judge(&zero, &zero), Finding::Blank);
        assert_eq!(judge(&superblock(LABEL, 1), &zero), Finding::Interrupted);
        assert_eq!(
            judge(&superblock("other", 1), &zero),
            Finding::Other("an unfinished XFS labelled \"other\"".into())
        );
        assert_eq!(judge(&superblock("mine", 0), &zero), Finding::Xfs { label: "mine".into() });
        // A label of full length has no NUL.
        let twelve = Finding::Xfs { label: "abcdefghijkl".into() };
        assert_eq!(judge(&superblock("abcdefghijkl", 0), &zero), twelve);
    }

    #[test]
    fn l1_6_a_single_byte_anywhere_in_either_edge_is_a_finding() {
        let zero = vec![0; EDGE];
        let mut one = zero.clone();
        one[EDGE - 1] = 1;
        assert_eq!(
            judge(&one, &zero),
            Finding::Other(format!("unknown data at offset {}", EDGE - 1))
        );
        assert_eq!(judge(&zero, &one), Finding::Other("unknown data in its last MiB".into()));
        let mut gpt = zero.clone();
        gpt[EDGE - 512..EDGE - 504].copy_from_slice(b"EFI PART");
        assert_eq!(
            judge(&zero, &gpt),
            Finding::Other("a backup GPT partition table at its end".into())
        );
    }

    #[test]
    fn l1_6_inspecting_and_refusing_names_disk_and_finding_and_writes_nothing() {
        let t = tempfile::tempdir().expect("tempdir");
        let path = t.path().join("disk");
        let mut content = vec![0; 3 * EDGE];
        content[1080] = 0x53;
        content[1081] = 0xef;
        std::fs::write(&path, &content).expect("write");
        let dev = BlockDevice::new(&path);
        let e = DataDisk::prepare(&dev).expect_err("ext4");
        let text = e.to_string();
        assert!(text.contains("disk") && text.contains("ext4"), "{text}");
        assert!(std::fs::read(&path).expect("read") == content);
    }

    #[test]
    fn l1_6_a_blank_or_tiny_disk_gives_a_plan_and_force_only_after_a_cut() {
        let t = tempfile::tempdir().expect("tempdir");
        let path = t.path().join("disk");
        std::fs::write(&path, vec![0; 4096]).expect("write");
        let dev = BlockDevice::new(&path);
        let Ok(Preparation::Format(plan)) = DataDisk::prepare(&dev) else { panic!("no plan") };
        assert!(!plan.argv.contains(&"-f".to_owned()));
        std::fs::write(&path, superblock(LABEL, 1)).expect("write");
        let Ok(Preparation::Format(plan)) = DataDisk::prepare(&dev) else { panic!("no plan") };
        assert!(plan.argv.contains(&"-f".to_owned()));
        std::fs::write(&path, superblock(LABEL, 0)).expect("write");
        assert_eq!(DataDisk::prepare(&dev).ok(), Some(Preparation::Ready));
    }
}
