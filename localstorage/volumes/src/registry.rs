//! The registry: one redb file with the records of all volumes.
//!
//! Invariants: one owner process (redb locks the file); every commit is durable when it
//! returns; the file is checked as a whole when it is opened; a file of a newer release or
//! of another filesystem is refused and left alone; an unreadable one is renamed, never
//! deleted. Published state is not stored.
//!
//! Tables of version 1: `meta` {format, fs_uuid, cursor, seq}, `volumes` (id → record with
//! the caller's tag, so claim and intent are one commit), `snapshots` (likewise), `trash`, `orphans` (id → first
//! seen, unix seconds). The id of a name is a function of the name (`id`), so there is no
//! table of names; which projects are foreign is read from the kernel at each start.

use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableTable, StorageError, TableDefinition};

use crate::id::VolumeId;
use crate::record::{Record, RecordError, TrashRecord};

const FORMAT: u64 = 1;
/// The default of redb is 1 GiB; 10k records are about 6 MiB.
const CACHE_BYTES: usize = 4 << 20;

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
const VOLUMES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("volumes");
const SNAPSHOTS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("snapshots");
const TRASH: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("trash");
const ORPHANS: TableDefinition<'static, &str, u64> = TableDefinition::new("orphans");

/// What a registry holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) volumes: Vec<Record>,
    pub(crate) trash: Vec<TrashRecord>,
    pub(crate) orphans: Vec<(VolumeId, u64)>,
    pub(crate) cursor: u32,
    pub(crate) seq: u64,
}

/// One change. Several are committed together.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Put(Box<Record>),
    Remove(VolumeId),
    PutTrash(TrashRecord),
    RemoveTrash(String),
    Cursor(u32),
    Seq(u64),
    Orphan(VolumeId, u64),
    NoOrphan(VolumeId),
}

/// The registry cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("the registry has format {0}; this release knows up to {FORMAT}")]
    Newer(u64),
    #[error("the registry belongs to another filesystem")]
    OtherFilesystem,
    #[error("another engine holds the registry's lock")]
    Locked,
    /// Torn, truncated or altered: to be rebuilt.
    #[error("the registry is damaged")]
    Damaged(#[source] Damage),
    /// Of the disk, not of the file: to be tried again.
    #[error("the registry cannot be read")]
    Io(#[source] Damage),
}

/// What is wrong with the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damage {
    #[error("redb refuses it")]
    Redb(#[source] Box<redb::Error>),
    #[error("record {0}")]
    Record(String, #[source] RecordError),
    #[error("meta entry {0}")]
    Meta(&'static str),
    #[error("id {0:?}")]
    Id(String),
    #[error("file system call")]
    Io(#[source] std::io::Error),
}

/// A commit did not happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error("no space for the registry")]
    NoSpace(#[source] Box<redb::Error>),
    #[error("the registry cannot be written")]
    Redb(#[source] Box<redb::Error>),
    #[error("a record cannot be encoded")]
    Encode(#[source] serde_json::Error),
}

fn redb_error(e: impl Into<redb::Error>) -> Box<redb::Error> {
    Box::new(e.into())
}

fn damaged(e: impl Into<redb::Error>) -> OpenError {
    match e.into() {
        e @ (redb::Error::Io(_) | redb::Error::PreviousIo) => {
            OpenError::Io(Damage::Redb(Box::new(e)))
        }
        e => OpenError::Damaged(Damage::Redb(Box::new(e))),
    }
}

fn commit_failed(e: impl Into<redb::Error>) -> CommitError {
    match e.into() {
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::StorageFull => {
            CommitError::NoSpace(Box::new(redb::Error::Io(e)))
        }
        e => CommitError::Redb(Box::new(e)),
    }
}

/// An open registry.
#[derive(Debug)]
pub(crate) struct Registry {
    db: Database,
}

impl Registry {
    /// Opens or makes the registry at `path`, which belongs to filesystem `uuid`.
    pub(crate) fn open(path: &Path, uuid: [u8; 16]) -> Result<(Registry, Contents), OpenError> {
        // redb takes an empty file for a new database; an existing one that lost its content
        // must not pass for "no volumes".
        if std::fs::metadata(path).is_ok_and(|m| m.len() == 0) {
            return Err(OpenError::Damaged(Damage::Meta("empty file")));
        }
        let mut builder = redb::Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let db = builder.create(path).map_err(|e| match e {
            DatabaseError::DatabaseAlreadyOpen => OpenError::Locked,
            DatabaseError::Storage(StorageError::Io(ref io))
                if io.kind() == std::io::ErrorKind::InvalidData =>
            {
                OpenError::Damaged(Damage::Redb(redb_error(e)))
            }
            // A file cut in the middle ends early wherever redb looks.
            DatabaseError::Storage(StorageError::Io(ref io))
                if io.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                OpenError::Damaged(Damage::Redb(redb_error(e)))
            }
            e => damaged(e),
        })?;
        let registry = Registry { db };
        registry.prepare(uuid)?;
        // redb syncs the file; a new one also needs its name.
        sync_parent(path).map_err(|e| OpenError::Io(Damage::Io(e)))?;
        let contents = registry.read()?;
        Ok((registry, contents))
    }

    /// Makes the tables of a new file; checks format and filesystem of an old one.
    fn prepare(&self, uuid: [u8; 16]) -> Result<(), OpenError> {
        let tx = self.db.begin_write().map_err(damaged)?;
        {
            let mut meta = tx.open_table(META).map_err(damaged)?;
            let format = meta.get("format").map_err(damaged)?.map(|v| v.value().to_vec());
            match format {
                None => {
                    for (key, value) in
                        [("format", FORMAT.to_le_bytes().to_vec()), ("fs_uuid", uuid.to_vec())]
                    {
                        meta.insert(key, value.as_slice()).map_err(damaged)?;
                    }
                }
                Some(bytes) => {
                    let found = number(&bytes).ok_or_else(|| bad_meta("format"))?;
                    if found > FORMAT {
                        return Err(OpenError::Newer(found));
                    }
                    let same = meta
                        .get("fs_uuid")
                        .map_err(damaged)?
                        .is_some_and(|v| v.value() == uuid.as_slice());
                    if !same {
                        return Err(OpenError::OtherFilesystem);
                    }
                }
            }
            tx.open_table(VOLUMES).map_err(damaged)?;
            tx.open_table(SNAPSHOTS).map_err(damaged)?;
            tx.open_table(TRASH).map_err(damaged)?;
            tx.open_table(ORPHANS).map_err(damaged)?;
        }
        tx.commit().map_err(damaged)
    }

    fn read(&self) -> Result<Contents, OpenError> {
        use redb::ReadableDatabase;
        let tx = self.db.begin_read().map_err(damaged)?;
        let mut out = Contents::default();
        let meta = tx.open_table(META).map_err(damaged)?;
        let get = |key| -> Result<u64, OpenError> {
            match meta.get(key).map_err(damaged)? {
                None => Ok(0),
                Some(v) => number(v.value()).ok_or_else(|| bad_meta(key)),
            }
        };
        out.cursor = u32::try_from(get("cursor")?).map_err(|_| bad_meta("cursor"))?;
        out.seq = get("seq")?;
        for table in [VOLUMES, SNAPSHOTS] {
            for row in tx.open_table(table).map_err(damaged)?.iter().map_err(damaged)? {
                let (key, value) = row.map_err(damaged)?;
                let record = Record::decode(value.value());
                out.volumes.push(record.map_err(|e| row_error(key.value(), e))?);
            }
        }
        for row in tx.open_table(TRASH).map_err(damaged)?.iter().map_err(damaged)? {
            let (key, value) = row.map_err(damaged)?;
            let item = TrashRecord::decode(value.value());
            out.trash.push(item.map_err(|e| row_error(key.value(), e))?);
        }
        for row in tx.open_table(ORPHANS).map_err(damaged)?.iter().map_err(damaged)? {
            let (key, value) = row.map_err(damaged)?;
            let id =
                VolumeId::parse(key.value()).map_err(|e| OpenError::Damaged(Damage::Id(e.0)))?;
            out.orphans.push((id, value.value()));
        }
        Ok(out)
    }

    /// Makes all `changes` durable, or none.
    pub(crate) fn commit(&self, changes: &[Change]) -> Result<(), CommitError> {
        // Durability is immediate by default: one checksummed flush.
        let tx = self.db.begin_write().map_err(commit_failed)?;
        {
            let mut meta = tx.open_table(META).map_err(commit_failed)?;
            let mut volumes = tx.open_table(VOLUMES).map_err(commit_failed)?;
            let mut snapshots = tx.open_table(SNAPSHOTS).map_err(commit_failed)?;
            let mut trash = tx.open_table(TRASH).map_err(commit_failed)?;
            let mut orphans = tx.open_table(ORPHANS).map_err(commit_failed)?;
            for change in changes {
                match change {
                    Change::Put(r) => {
                        let row = r.encode().map_err(CommitError::Encode)?;
                        let table = if r.id.is_snapshot() { &mut snapshots } else { &mut volumes };
                        table.insert(r.id.as_str(), row.as_slice()).map_err(commit_failed)?;
                    }
                    Change::Remove(id) => {
                        let table = if id.is_snapshot() { &mut snapshots } else { &mut volumes };
                        table.remove(id.as_str()).map_err(commit_failed)?;
                    }
                    Change::PutTrash(t) => {
                        let row = t.encode().map_err(CommitError::Encode)?;
                        trash.insert(t.key.as_str(), row.as_slice()).map_err(commit_failed)?;
                    }
                    Change::RemoveTrash(key) => {
                        trash.remove(key.as_str()).map_err(commit_failed)?;
                    }
                    Change::Cursor(c) => {
                        let bytes = u64::from(*c).to_le_bytes();
                        meta.insert("cursor", bytes.as_slice()).map_err(commit_failed)?;
                    }
                    Change::Seq(n) => {
                        meta.insert("seq", n.to_le_bytes().as_slice()).map_err(commit_failed)?;
                    }
                    Change::Orphan(id, since) => {
                        orphans.insert(id.as_str(), *since).map_err(commit_failed)?;
                    }
                    Change::NoOrphan(id) => {
                        orphans.remove(id.as_str()).map_err(commit_failed)?;
                    }
                }
            }
        }
        tx.commit().map_err(commit_failed)
    }
}

fn row_error(key: &str, e: RecordError) -> OpenError {
    match e {
        RecordError::Newer(v) => OpenError::Newer(v.into()),
        e @ RecordError::Json(_) => OpenError::Damaged(Damage::Record(key.to_owned(), e)),
    }
}

fn bad_meta(key: &'static str) -> OpenError {
    OpenError::Damaged(Damage::Meta(key))
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(dir) => std::fs::File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// Opens the registry; a damaged one is put aside as `registry.redb.corrupt-<unix>` and a new
/// one made. The second answer names the damaged file, if there was one.
pub(crate) fn open_or_rebuild(
    path: &Path,
    uuid: [u8; 16],
    unix_now: u64,
) -> Result<(Registry, Contents, Option<PathBuf>), OpenError> {
    match Registry::open(path, uuid) {
        Ok((r, c)) => Ok((r, c, None)),
        Err(OpenError::Damaged(why)) => {
            let mut aside = path.as_os_str().to_owned();
            aside.push(format!(".corrupt-{unix_now}"));
            let aside = PathBuf::from(aside);
            let io = |e| OpenError::Io(Damage::Io(e));
            drop(why);
            std::fs::rename(path, &aside).map_err(io)?;
            sync_parent(path).map_err(io)?;
            let (r, c) = Registry::open(path, uuid)?;
            Ok((r, c, Some(aside)))
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    const UUID: [u8; 16] = [7; 16];

    fn place() -> (tempfile::TempDir, PathBuf) {
        let t = tempfile::tempdir().expect("tempdir");
        let p = t.path().join("registry.redb");
        (t, p)
    }

    fn filled(path: &Path) {
        let (r, _) = Registry::open(path, UUID).expect("open");
        let record = sample("pvc-1");
        r.commit(&[
            Change::Put(Box::new(record.clone())),
            Change::PutTrash(TrashRecord::of(&sample("pvc-2"))),
            Change::Cursor(77),
            Change::Seq(5),
            Change::Orphan(record.id, 1234),
        ])
        .expect("commit");
    }

    #[test]
    fn s7_1_what_was_committed_is_there_when_opened_again() {
        let (_t, path) = place();
        filled(&path);
        let (r, c) = Registry::open(&path, UUID).expect("open");
        assert_eq!(c.volumes, [sample("pvc-1")]);
        assert_eq!(c.trash, [TrashRecord::of(&sample("pvc-2"))]);
        assert_eq!((c.cursor, c.seq), (77, 5));
        assert_eq!(c.orphans, [(sample("pvc-1").id, 1234)]);
        let id = sample("pvc-1").id;
        r.commit(&[
            Change::Remove(id.clone()),
            Change::RemoveTrash("pvc-2.42".into()),
            Change::NoOrphan(id),
        ])
        .expect("commit");
        drop(r);
        let (_, c) = Registry::open(&path, UUID).expect("open");
        assert!(c.volumes.is_empty() && c.trash.is_empty() && c.orphans.is_empty());
    }

    #[test]
    fn s7_1_a_second_engine_on_the_disk_finds_the_lock_held() {
        let (_t, path) = place();
        let first = Registry::open(&path, UUID).expect("open");
        assert!(matches!(Registry::open(&path, UUID), Err(OpenError::Locked)));
        drop(first);
        assert!(Registry::open(&path, UUID).is_ok());
    }

    #[test]
    fn s7_1_another_filesystem_or_a_newer_format_is_refused_and_kept() {
        let (t, path) = place();
        filled(&path);
        let other = open_or_rebuild(&path, [8; 16], 1);
        assert!(matches!(other, Err(OpenError::OtherFilesystem)));
        let db = Database::open(&path).expect("open");
        let tx = db.begin_write().expect("begin");
        let format = 2_u64.to_le_bytes();
        tx.open_table(META).expect("meta").insert("format", format.as_slice()).expect("insert");
        tx.commit().expect("commit");
        drop(db);
        assert!(matches!(open_or_rebuild(&path, UUID, 1), Err(OpenError::Newer(2))));
        assert_eq!(std::fs::read_dir(t.path()).expect("list").count(), 1);
    }

    #[test]
    fn s7_7_a_torn_truncated_or_emptied_registry_is_put_aside_and_made_anew() {
        let (_t, path) = place();
        filled(&path);
        let good = std::fs::read(&path).expect("read");
        let mut torn = good.clone();
        for b in &mut torn[..good.len() / 2] {
            *b ^= 0x5a;
        }
        let cases = [torn, good[..good.len() / 2].to_vec(), vec![], b"no database".to_vec()];
        for (i, bad) in cases.into_iter().enumerate() {
            std::fs::write(&path, &bad).expect("write");
            let (registry, c, aside) = open_or_rebuild(&path, UUID, i as u64)
                .unwrap_or_else(|e| panic!("case {i}: {}", crate::error::chain(&e)));
            let aside = aside.unwrap_or_else(|| panic!("case {i} passed for good"));
            assert!(aside.to_string_lossy().ends_with(&format!(".corrupt-{i}")));
            assert_eq!(std::fs::read(&aside).expect("kept").len(), bad.len());
            assert!(c.volumes.is_empty());
            drop(registry);
            std::fs::remove_file(&path).expect("remove");
            assert!(Registry::open(&path, UUID).is_ok());
        }
    }

    #[test]
    fn s7_1_a_flipped_byte_never_panics() {
        let (_t, path) = place();
        filled(&path);
        let good = std::fs::read(&path).expect("read");
        for at in (0..good.len().min(64 << 10)).step_by(509) {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            std::fs::write(&path, &bad).expect("write");
            match open_or_rebuild(&path, UUID, at as u64) {
                // The byte was not in use, or the damage was seen.
                Ok(_)
                | Err(OpenError::OtherFilesystem | OpenError::Newer(_) | OpenError::Io(_)) => {}
                Err(e) => panic!("byte {at}: {}", crate::error::chain(&e)),
            }
        }
    }
}
