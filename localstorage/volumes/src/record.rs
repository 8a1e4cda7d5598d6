//! The record of a volume: what the registry keeps, and the copy in the entry's xattr. Pure.
//!
//! Invariants: every stored form carries its version; the copy carries a checksum and has
//! at most 240 bytes, so that it stays inside a 512-byte inode (rule 3.6). Golden tests pin
//! both forms.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::id::{SnapshotId, VolumeId};
use crate::params::{InodePolicy, Params, Wipe};
use crate::types::{Bytes, ContentSource, Inodes, OwnerTag, Snapshot, Volume, VolumeKind};

/// Newest version of the registry's records. 1: directories made empty. 2: images, snapshots
/// and copies, which a release that knows only 1 must not touch.
const VERSION: u16 = 2;
/// Versions of the copy, likewise.
const COPY_DIRECTORY: u8 = 1;
const COPY_OTHER: u8 = 2;
/// Bits of the copy of version 2.
const PREALLOCATE: u8 = 1;
const SNAPSHOT: u8 = 2;
const ATOMIC: u8 = 4;
/// Longest copy.
#[cfg(test)]
const COPY_MAX: usize = 240;
/// Bytes of SHA-256 at the end of a copy. It detects damage, not malice: only
/// CAP_SYS_ADMIN can write `trusted.*`.
const CHECKSUM: usize = 8;

/// Where a volume is in its life. Once in the trash it is a [`TrashRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Intent committed.
    Creating,
    /// Usable.
    Ready,
    /// Deletion committed.
    Deleting,
}

/// A size: what is reported and what is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Reported: the request, exactly.
    pub(crate) capacity: Bytes,
    /// Enforced byte limit.
    pub(crate) limit: Bytes,
    /// Enforced inode limit.
    pub(crate) inodes: Inodes,
}

/// Smallest byte limit: with less not even `creat` succeeds on XFS (rule 4.1).
///
/// The kernel reserves the worst case of a `creat` against the quota: an inode chunk with its index
/// blocks and a directory split at full depth, 47 blocks of 4 KiB on a small file system and 61 on one
/// with large extent counts (`XFS_CREATE_SPACE_RES`, fs/xfs/libxfs/xfs_trans_space.h). 64 KiB fails.
const MIN_LIMIT: u64 = 512 << 10;

impl Size {
    /// The limits for a request of `capacity`; `None` if rounding overflows.
    pub(crate) fn of(capacity: u64, block: u64, inodes: InodePolicy) -> Option<Size> {
        let limit = capacity.checked_next_multiple_of(block.max(512))?.max(MIN_LIMIT);
        if i64::try_from(limit).is_err() {
            return None;
        }
        Some(Size {
            capacity: Bytes(capacity),
            limit: Bytes(limit),
            inodes: Inodes(inodes.limit(capacity)),
        })
    }

    /// The size of an image: whole sectors, and what is reported is what there is.
    pub(crate) fn of_image(capacity: u64, sector: u32) -> Option<Size> {
        let bytes = capacity.checked_next_multiple_of(u64::from(sector.max(512)))?;
        i64::try_from(bytes).ok()?;
        Some(Size { capacity: Bytes(bytes), limit: Bytes(bytes), inodes: Inodes(0) })
    }

    /// The size of a snapshot of a source of `capacity` that keeps `pinned` bytes.
    pub(crate) fn of_snapshot(capacity: Bytes, pinned: u64) -> Size {
        Size { capacity, limit: Bytes(pinned), inodes: Inodes(0) }
    }
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) v: u16,
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    pub(crate) phase: Phase,
    pub(crate) kind: VolumeKind,
    pub(crate) size: Size,
    /// Target of an expansion under way.
    pub(crate) expand: Option<Size>,
    pub(crate) project: u32,
    /// Number of this creation: two volumes of one id, one after the other, differ in it.
    pub(crate) seq: u64,
    pub(crate) params: Params,
    pub(crate) owner: OwnerTag,
    /// Where the first content came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<ContentSource>,
    /// Of a snapshot: its cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cut: Option<Cut>,
}

/// When and how a snapshot was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    /// Milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// All of it is of one instant.
    pub(crate) atomic: bool,
}

/// What an object is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A directory: a directory volume, and every snapshot.
    Directory,
    /// A regular file: a block volume.
    Image,
}

/// What a new record is made of.
pub(crate) struct NewRecord {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    pub(crate) kind: VolumeKind,
    pub(crate) size: Size,
    pub(crate) project: u32,
    pub(crate) seq: u64,
    pub(crate) params: Params,
    pub(crate) owner: OwnerTag,
    pub(crate) source: Option<ContentSource>,
}

impl Record {
    /// A volume about to be made.
    pub(crate) fn intent(n: NewRecord) -> Record {
        let NewRecord { id, name, kind, size, project, seq, params, owner, source } = n;
        let phase = Phase::Creating;
        let plain = kind == VolumeKind::Filesystem && source.is_none() && !id.is_snapshot();
        Record {
            v: if plain { 1 } else { VERSION },
            id,
            name,
            phase,
            kind,
            size,
            expand: None,
            project,
            seq,
            params,
            owner,
            source,
            cut: None,
        }
    }

    /// What it is on disk.
    pub(crate) fn shape(&self) -> Shape {
        match self.kind {
            VolumeKind::Block if !self.id.is_snapshot() => Shape::Image,
            VolumeKind::Block | VolumeKind::Filesystem => Shape::Directory,
        }
    }

    /// Whether the kernel limits what it uses. Images and snapshots are only accounted:
    /// copy-on-write would be charged to them (rule 4.6).
    pub(crate) fn is_limited(&self) -> bool {
        self.kind == VolumeKind::Filesystem && !self.id.is_snapshot()
    }

    /// The volume that a snapshot is of, or the object that a volume is copied from.
    pub(crate) fn source_object(&self) -> Option<VolumeId> {
        match self.source.as_ref()? {
            ContentSource::Volume(id) => VolumeId::parse(id).ok(),
            ContentSource::Snapshot(id) => {
                SnapshotId::parse(id).ok().map(|id| VolumeId::of_snapshot(&id))
            }
        }
    }

    /// As callers see a snapshot; `None` for a volume or before its cut.
    pub(crate) fn as_snapshot(&self) -> Option<Snapshot> {
        let (id, cut) = (self.id.snapshot()?, self.cut?);
        let Some(ContentSource::Volume(source)) = &self.source else { return None };
        Some(Snapshot {
            id,
            name: self.name.clone(),
            source: VolumeId::parse(source).ok()?,
            kind: self.kind,
            size: self.size.capacity,
            pinned: self.size.limit,
            created: SystemTime::UNIX_EPOCH + Duration::from_millis(cut.unix_ms),
            atomic: cut.atomic,
        })
    }

    /// What it promises of the disk: the larger of size and expansion target.
    pub(crate) fn reservation(&self) -> u64 {
        self.size.limit.0.max(self.expand.map_or(0, |e| e.limit.0))
    }

    /// Name of its item in the trash.
    pub(crate) fn trash_key(&self) -> String {
        format!("{}.{}", self.id, self.seq)
    }

    pub(crate) fn volume(&self) -> Volume {
        Volume {
            id: self.id.clone(),
            kind: self.kind,
            capacity: self.size.capacity,
            limit: self.size.limit,
            inodes: self.size.inodes,
            project_id: self.project,
        }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        decode(bytes)
    }
}

/// An item in the trash. It keeps its project id until nothing uses it any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrashRecord {
    v: u16,
    /// Name of the item in `trash/`, and key of this record.
    pub(crate) key: String,
    pub(crate) id: VolumeId,
    /// 0 = none.
    pub(crate) project: u32,
}

impl TrashRecord {
    pub(crate) fn of(r: &Record) -> TrashRecord {
        TrashRecord { v: r.v, key: r.trash_key(), id: r.id.clone(), project: r.project }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TrashRecord, RecordError> {
        decode(bytes)
    }
}

/// A stored record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("the record is damaged")]
    Json(#[source] serde_json::Error),
    #[error("the record has version {0}; this release knows up to {VERSION}")]
    Newer(u16),
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    #[derive(Deserialize)]
    struct Version {
        v: u16,
    }
    let Version { v } = serde_json::from_slice(bytes).map_err(RecordError::Json)?;
    if v > VERSION {
        return Err(RecordError::Newer(v));
    }
    serde_json::from_slice(bytes).map_err(RecordError::Json)
}

/// Writes the copy of `r`, without its OwnerTag.
pub(crate) fn encode_copy(r: &Record) -> Vec<u8> {
    let version = if r.v == 1 { COPY_DIRECTORY } else { COPY_OTHER };
    let mut b = vec![version, matches!(r.kind, VolumeKind::Block).into()];
    b.extend_from_slice(&r.size.capacity.0.to_le_bytes());
    b.extend_from_slice(&r.size.limit.0.to_le_bytes());
    b.extend_from_slice(&r.size.inodes.0.to_le_bytes());
    b.extend_from_slice(&r.project.to_le_bytes());
    b.extend_from_slice(&r.seq.to_le_bytes());
    let (tag, n) = match r.params.inodes {
        InodePolicy::Origin => (0_u8, 0),
        InodePolicy::Auto => (1, 0),
        InodePolicy::Ratio(n) => (2, n),
        InodePolicy::Count(n) => (3, n),
    };
    b.push(tag);
    b.extend_from_slice(&n.to_le_bytes());
    b.extend_from_slice(&r.params.mode.to_le_bytes());
    b.extend_from_slice(&r.params.uid.to_le_bytes());
    b.extend_from_slice(&r.params.gid.to_le_bytes());
    b.push(matches!(r.params.wipe, Wipe::Verified).into());
    // Names have at most 128 bytes (id.rs).
    b.push(u8::try_from(r.name.len()).unwrap_or(u8::MAX));
    b.extend_from_slice(r.name.as_bytes());
    if version == COPY_OTHER {
        encode_other(&mut b, r);
    }
    let sum = Sha256::digest(&b);
    b.extend_from_slice(&sum[..CHECKSUM]);
    b
}

/// What version 2 has beside version 1. Only a snapshot's copy has its source: it is not
/// charged to a limit, so it may be longer.
fn encode_other(b: &mut Vec<u8>, r: &Record) {
    let mut bits = if r.params.preallocate { PREALLOCATE } else { 0 };
    if r.id.is_snapshot() {
        bits |= SNAPSHOT;
    }
    if r.cut.is_some_and(|c| c.atomic) {
        bits |= ATOMIC;
    }
    b.push(bits);
    b.extend_from_slice(&r.params.block_size.to_le_bytes());
    b.extend_from_slice(&r.cut.map_or(0, |c| c.unix_ms).to_le_bytes());
    let source = match &r.source {
        Some(ContentSource::Volume(id)) if r.id.is_snapshot() => id.as_str(),
        _ => "",
    };
    b.push(u8::try_from(source.len()).unwrap_or(0));
    b.extend_from_slice(source.as_bytes());
}

/// Reads what [`encode_other`] wrote.
fn decode_other(mut at: &[u8], r: &mut Record) -> Option<()> {
    let [bits] = take(&mut at)?;
    r.params.preallocate = bits & PREALLOCATE != 0;
    r.params.block_size = u32::from_le_bytes(take(&mut at)?);
    let unix_ms = u64::from_le_bytes(take(&mut at)?);
    let [len] = take(&mut at)?;
    let source = std::str::from_utf8(at.get(..usize::from(len))?).ok()?;
    if (bits & SNAPSHOT != 0) != r.id.is_snapshot() {
        return None;
    }
    if r.id.is_snapshot() {
        r.source = Some(ContentSource::Volume(source.to_owned()));
        r.cut = Some(Cut { unix_ms, atomic: bits & ATOMIC != 0 });
    }
    r.v = VERSION;
    Some(())
}

/// Reads the copy found on entry `id`; `None` if it is damaged, of another entry or newer.
pub(crate) fn decode_copy(id: &VolumeId, bytes: &[u8]) -> Option<Record> {
    let body = bytes.len().checked_sub(CHECKSUM)?;
    let (body, sum) = bytes.split_at(body);
    if Sha256::digest(body)[..CHECKSUM] != *sum {
        return None;
    }
    let mut at = body;
    let [version, kind] = take(&mut at)?;
    if version != COPY_DIRECTORY && version != COPY_OTHER {
        return None;
    }
    let size = Size {
        capacity: Bytes(u64::from_le_bytes(take(&mut at)?)),
        limit: Bytes(u64::from_le_bytes(take(&mut at)?)),
        inodes: Inodes(u64::from_le_bytes(take(&mut at)?)),
    };
    let project = u32::from_le_bytes(take(&mut at)?);
    let seq = u64::from_le_bytes(take(&mut at)?);
    let [tag] = take(&mut at)?;
    let n = u64::from_le_bytes(take(&mut at)?);
    let inodes = match tag {
        0 => InodePolicy::Origin,
        1 => InodePolicy::Auto,
        2 => InodePolicy::Ratio(n),
        3 => InodePolicy::Count(n),
        _ => return None,
    };
    let params = Params {
        inodes,
        mode: u32::from_le_bytes(take(&mut at)?),
        uid: u32::from_le_bytes(take(&mut at)?),
        gid: u32::from_le_bytes(take(&mut at)?),
        wipe: if take(&mut at)? == [1] { Wipe::Verified } else { Wipe::None },
        ..Params::default()
    };
    let [name_len] = take(&mut at)?;
    let name = std::str::from_utf8(at.get(..usize::from(name_len))?).ok()?.to_owned();
    // A copy moved to another entry by hand is not that entry's record.
    let named = if id.is_snapshot() {
        SnapshotId::from_name(&name).map(|id| VolumeId::of_snapshot(&id))
    } else {
        VolumeId::from_name(&name)
    };
    if named.ok().as_ref() != Some(id) {
        return None;
    }
    let kind = if kind == 0 { VolumeKind::Filesystem } else { VolumeKind::Block };
    let (id, owner, source) = (id.clone(), OwnerTag::none(), None);
    let rest = at.get(name.len()..)?;
    let new = NewRecord { id, name, kind, size, project, seq, params, owner, source };
    let mut r = Record::intent(new);
    r.phase = Phase::Ready;
    if version == COPY_OTHER {
        decode_other(rest, &mut r)?;
    }
    Some(r)
}

fn take<const N: usize>(at: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = at.split_first_chunk::<N>()?;
    *at = tail;
    Some(*head)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(name: &str) -> Record {
        Record::intent(NewRecord {
            id: VolumeId::from_name(name).expect("name"),
            name: name.to_owned(),
            kind: VolumeKind::Filesystem,
            size: Size::of(1_000_000, 4096, InodePolicy::Auto).expect("size"),
            project: 1_000_000_007,
            seq: 42,
            params: Params { inodes: InodePolicy::Auto, gid: 1000, ..Params::default() },
            owner: OwnerTag::new("{\"claim\":\"a/b\"}").expect("tag"),
            source: None,
        })
    }

    /// A block volume, and a snapshot of it.
    pub(crate) fn others() -> [Record; 2] {
        let plain = sample("pvc-1");
        let of = |id: VolumeId, name: &str, source: Option<ContentSource>| {
            Record::intent(NewRecord {
                id,
                name: name.to_owned(),
                kind: VolumeKind::Block,
                size: plain.size,
                project: 1_000_000_008,
                seq: 43,
                params: Params { block_size: 4096, preallocate: false, ..Params::default() },
                owner: OwnerTag::none(),
                source,
            })
        };
        let block = of(plain.id.clone(), "pvc-1", None);
        let id = SnapshotId::from_name("snap-1").expect("name");
        let source = Some(ContentSource::Volume("pvc-1".to_owned()));
        let mut snapshot = of(VolumeId::of_snapshot(&id), "snap-1", source);
        snapshot.cut = Some(Cut { unix_ms: 1_700_000_000_123, atomic: true });
        [block, snapshot]
    }

    #[test]
    fn s7_1_golden_registry_records_version_2() {
        let [block, snapshot] = others();
        let golden = r#"{"v":2,"id":"@snap-1","name":"snap-1","phase":"Creating","kind":"block","size":{"capacity":1000000,"limit":1003520,"inodes":100000},"expand":null,"project":1000000008,"seq":43,"params":{"inodes":"Origin","mode":493,"uid":0,"gid":0,"wipe":"None","preallocate":false,"block_size":4096,"consistency":"PerFile"},"owner":"","source":{"Volume":"pvc-1"},"cut":{"unix_ms":1700000000123,"atomic":true}}"#;
        assert_eq!(String::from_utf8(snapshot.encode().expect("encode")).expect("utf-8"), golden);
        assert_eq!(Record::decode(golden.as_bytes()).expect("decode"), snapshot);
        let text = String::from_utf8(block.encode().expect("encode")).expect("utf-8");
        assert!(text.starts_with(r#"{"v":2,"id":"pvc-1""#) && !text.contains("cut"), "{text}");
    }

    #[test]
    fn s3_6_the_copy_of_an_image_or_a_snapshot_has_what_rebuilds_it() {
        for r in others() {
            let back = decode_copy(&r.id, &encode_copy(&r)).expect("decode");
            let want = Record { phase: Phase::Ready, ..r.clone() };
            assert_eq!(back, want);
        }
        let [mut block, _] = others();
        block.name = "N".repeat(128);
        assert!(encode_copy(&block).len() <= COPY_MAX);
        // A snapshot's copy on an entry of volumes, or the reverse, is no record of it.
        let [block, snapshot] = others();
        assert_eq!(decode_copy(&block.id, &encode_copy(&snapshot)), None);
        assert_eq!(decode_copy(&snapshot.id, &encode_copy(&block)), None);
    }

    #[test]
    fn s4_1_limits_are_rounded_up_and_never_useless() {
        let of = |n| Size::of(n, 4096, InodePolicy::Origin);
        assert_eq!(of(1000).map(|s| (s.capacity.0, s.limit.0)), Some((1000, 524_288)));
        assert_eq!(of(524_289).map(|s| s.limit.0), Some(528_384));
        assert_eq!(of(1 << 30).map(|s| s.limit.0), Some(1 << 30));
        assert_eq!(of(i64::MAX as u64), None);
        assert_eq!(of(u64::MAX), None);
    }

    #[test]
    fn s7_1_golden_registry_record_version_1() {
        let golden = r#"{"v":1,"id":"pvc-1","name":"pvc-1","phase":"Creating","kind":"filesystem","size":{"capacity":1000000,"limit":1003520,"inodes":100000},"expand":null,"project":1000000007,"seq":42,"params":{"inodes":"Auto","mode":493,"uid":0,"gid":1000,"wipe":"None","preallocate":true,"block_size":512,"consistency":"PerFile"},"owner":"{\"claim\":\"a/b\"}"}"#;
        let r = sample("pvc-1");
        assert_eq!(String::from_utf8(r.encode().expect("encode")).expect("utf-8"), golden);
        assert_eq!(Record::decode(golden.as_bytes()).expect("decode"), r);
    }

    #[test]
    fn s7_1_golden_trash_record_version_1() {
        let golden = r#"{"v":1,"key":"pvc-1.42","id":"pvc-1","project":1000000007}"#;
        let t = TrashRecord::of(&sample("pvc-1"));
        assert_eq!(String::from_utf8(t.encode().expect("encode")).expect("utf-8"), golden);
        assert_eq!(TrashRecord::decode(golden.as_bytes()).expect("decode"), t);
    }

    #[test]
    fn s7_1_a_record_of_a_newer_release_or_with_a_bad_id_is_an_error() {
        assert!(matches!(Record::decode(b"{\"v\":3}"), Err(RecordError::Newer(3))));
        let bad = String::from_utf8(sample("pvc-1").encode().expect("encode")).expect("utf-8");
        let bad = bad.replace("\"id\":\"pvc-1\"", "\"id\":\"../etc\"");
        assert!(matches!(Record::decode(bad.as_bytes()), Err(RecordError::Json(_))));
    }

    #[test]
    fn s3_6_golden_copy_version_1_fits_an_inode_and_lacks_only_the_owner() {
        let r = sample("pvc-1");
        let copy = encode_copy(&r);
        let hex: String = copy.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "010040420f00000000000050",
                "0f0000000000a086010000000000",
                "07ca9a3b2a00000000000000",
                "010000000000000000ed01000000000000e80300000005",
                "7076632d31"
            )
            .to_owned()
                + &hex[hex.len() - 16..]
        );
        let back = decode_copy(&r.id, &copy).expect("decode");
        assert_eq!(back, Record { phase: Phase::Ready, owner: OwnerTag::none(), ..r });
        let long = sample(&"N".repeat(128));
        assert!(encode_copy(&long).len() <= COPY_MAX);
        assert!(decode_copy(&long.id, &encode_copy(&long)).is_some());
    }

    #[test]
    fn s3_6_a_damaged_foreign_or_newer_copy_is_refused() {
        let r = sample("pvc-1");
        let copy = encode_copy(&r);
        for i in 0..copy.len() {
            let mut bad = copy.clone();
            bad[i] ^= 1;
            assert_eq!(decode_copy(&r.id, &bad), None, "byte {i}");
            assert_eq!(decode_copy(&r.id, &copy[..i]), None, "length {i}");
        }
        let other = VolumeId::parse("pvc-2").expect("id");
        assert_eq!(decode_copy(&other, &copy), None);
    }
}
