//! Directories and files at declared places, and the one atomic write.
//!
//! Invariants: a file is replaced by an exclusively created temporary in the same
//! directory, synced, renamed, and the directory synced, so a reader or a power cut sees
//! the old or the new content, never a mixture. Reads have a limit.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::bytes::Bytes;
use crate::layout::{DeclarationError, Node, check_name};

/// Marks our temporaries: `.NAME.tmp-<16 hex>`.
const TEMPORARY: &str = ".tmp-";

/// The tree cannot be placed or made.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A name of the declaration is bad.
    #[error("bad declaration")]
    Declaration(#[source] DeclarationError),
    /// The root is not absolute.
    #[error("{0} is not an absolute path")]
    NotAbsolute(PathBuf),
    /// A directory cannot be made.
    #[error("cannot make directory {path}")]
    Make {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Leftover temporaries cannot be removed.
    #[error("cannot remove leftovers in {path}")]
    Clean {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It does not exist.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// It is longer than the reader allows.
    #[error("{path} is longer than {max} bytes")]
    TooLong {
        /// Which.
        path: PathBuf,
        /// The reader's limit.
        max: Bytes,
    },
    /// Anything else.
    #[error("cannot read {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A file was not replaced. The old content, or none, is still there.
#[derive(Debug, thiserror::Error)]
#[error("{step} of {path} failed")]
pub struct WriteError {
    /// Which step.
    pub step: &'static str,
    /// Of which file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// A declared directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    path: PathBuf,
}

impl Dir {
    pub(crate) fn at(path: PathBuf) -> Dir {
        Dir { path }
    }

    pub(crate) fn join(&self, name: &str) -> Dir {
        Dir { path: self.path.join(name) }
    }

    /// The absolute path, for configuration of other programs.
    pub fn full_path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory. A symlink in its place is refused.
    pub fn open(&self) -> io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.path, flags, Mode::empty())?)
    }

    /// The file `name` in this directory.
    pub fn file(&self, name: &str) -> Result<File, DeclarationError> {
        check_name(name)?;
        Ok(File { dir: self.clone(), name: name.to_owned() })
    }

    /// The sub-directory `name`, which the owner of this directory declares for itself.
    pub fn subdir(&self, name: &str) -> Result<Dir, DeclarationError> {
        check_name(name)?;
        Ok(self.join(name))
    }

    /// Makes this directory (its parent must exist) with `mode`; one that exists keeps its
    /// content, mode and owner.
    pub fn create(&self, mode: u32) -> Result<(), LayoutError> {
        let fail = |source| LayoutError::Make { path: self.path.clone(), source };
        match fs::DirBuilder::new().mode(mode).create(&self.path) {
            Ok(()) => {
                // The process's umask may have taken bits away.
                fs::set_permissions(&self.path, fs::Permissions::from_mode(mode)).map_err(fail)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let meta = fs::symlink_metadata(&self.path).map_err(fail)?;
                if meta.is_dir() {
                    Ok(())
                } else {
                    Err(fail(io::Error::from(io::ErrorKind::NotADirectory)))
                }
            }
            Err(e) => Err(fail(e)),
        }
    }

    /// Makes the declared `nodes` below this directory and removes what an interrupted
    /// [`File::write`] left in them.
    pub(crate) fn create_all(&self, nodes: &[Node]) -> Result<(), LayoutError> {
        for n in nodes {
            let child = self.join(n.name);
            child.create(n.mode)?;
            child.remove_temporaries()?;
            child.create_all(n.children)?;
        }
        Ok(())
    }

    fn remove_temporaries(&self) -> Result<(), LayoutError> {
        let fail = |source| LayoutError::Clean { path: self.path.clone(), source };
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if entry.file_name().to_str().is_some_and(is_temporary)
                && entry.file_type().map_err(fail)?.is_file()
            {
                fs::remove_file(entry.path()).map_err(fail)?;
            }
        }
        Ok(())
    }
}

fn is_temporary(name: &str) -> bool {
    name.starts_with('.')
        && name
            .rsplit_once(TEMPORARY)
            .is_some_and(|(_, hex)| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A file at a declared place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    dir: Dir,
    name: String,
}

impl File {
    /// The absolute path, for configuration of other programs.
    pub fn full_path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// Reads the whole file, if it has at most `max` bytes.
    pub fn read(&self, max: Bytes) -> Result<Vec<u8>, ReadError> {
        let path = self.full_path();
        let fail = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ReadError::Missing(self.full_path()),
            _ => ReadError::Io { path: self.full_path(), source },
        };
        let file = fs::File::open(&path).map_err(fail)?;
        let mut out = Vec::new();
        // One byte more tells "exactly max" from "longer".
        file.take(max.0.saturating_add(1)).read_to_end(&mut out).map_err(fail)?;
        if out.len() as u64 > max.0 {
            return Err(ReadError::TooLong { path, max });
        }
        Ok(out)
    }

    /// Replaces the file. On return it is durable; on error the old content is intact.
    pub fn write(&self, content: &[u8], mode: u32) -> Result<(), WriteError> {
        let fail =
            |step| move |source: io::Error| WriteError { step, path: self.full_path(), source };
        let temporary = self.dir.path.join(format!(".{}{TEMPORARY}{:016x}", self.name, random()));
        let written = (|| {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&temporary)
                .map_err(fail("create"))?;
            file.set_permissions(fs::Permissions::from_mode(mode)).map_err(fail("chmod"))?;
            file.write_all(content).map_err(fail("write"))?;
            file.sync_all().map_err(fail("fsync"))?;
            fs::rename(&temporary, self.full_path()).map_err(fail("rename"))
        })();
        if written.is_err() {
            // The first error is the one to report; a leftover goes at the next start.
            let _ = fs::remove_file(&temporary);
        }
        written?;
        self.sync_dir().map_err(fail("fsync of the directory"))
    }

    /// Removes the file durably; one that is not there is fine.
    pub fn remove(&self) -> Result<(), WriteError> {
        let fail =
            |step| move |source: io::Error| WriteError { step, path: self.full_path(), source };
        match fs::remove_file(self.full_path()) {
            Ok(()) => self.sync_dir().map_err(fail("fsync of the directory")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(fail("unlink")(e)),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        fs::File::open(&self.dir.path)?.sync_all()
    }
}

/// A number that no other writer of this directory has. Exclusive creation catches the rest.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // RandomState is keyed per call from the system's entropy; enough for a name.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Dir) {
        let t = tempfile::tempdir().expect("tempdir");
        let d = Dir::at(t.path().to_owned());
        (t, d)
    }

    fn names(d: &Dir) -> Vec<String> {
        let mut v: Vec<_> = fs::read_dir(d.full_path())
            .expect("list")
            .map(|e| e.expect("entry").file_name().into_string().expect("utf-8"))
            .collect();
        v.sort();
        v
    }

    #[test]
    fn l1_5_a_write_replaces_content_and_mode_and_leaves_no_temporary() {
        let (_t, d) = place();
        let f = d.file("x").expect("name");
        f.write(b"a long first content", 0o600).expect("write");
        f.write(b"short", 0o640).expect("write");
        assert_eq!(f.read(Bytes(5)).expect("read"), b"short");
        let mode = fs::metadata(f.full_path()).expect("stat").permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert_eq!(names(&d), ["x"]);
    }

    #[test]
    fn l1_5_a_longer_stale_temporary_never_leaks_its_tail_and_goes_at_start() {
        const NODES: &[Node] = &[Node {
            name: "s",
            mode: 0o700,
            fixed_by: crate::layout::FixedBy::Hamlet,
            children: &[],
        }];
        let (_t, d) = place();
        d.create_all(NODES).expect("create");
        let s = d.join("s");
        let f = s.file("x").expect("name");
        fs::write(s.full_path().join(".x.tmp-0123456789abcdef"), "stale and long").expect("stale");
        fs::write(s.full_path().join(".x.tmp-mine"), "not ours").expect("other");
        f.write(b"new", 0o600).expect("write");
        assert_eq!(f.read(Bytes(100)).expect("read"), b"new");
        d.create_all(NODES).expect("create again");
        assert_eq!(names(&s), [".x.tmp-mine", "x"]);
        assert_eq!(f.read(Bytes(100)).expect("read"), b"new");
    }

    #[test]
    fn l1_5_a_failed_write_keeps_the_old_content() {
        let (_t, d) = place();
        let f = d.file("x").expect("name");
        // A directory in the file's place makes the rename fail after everything else worked.
        fs::create_dir(f.full_path()).expect("mkdir");
        let e = f.write(b"new", 0o600).expect_err("rename over a directory");
        assert_eq!(e.step, "rename");
        assert_eq!(names(&d), ["x"]);
    }

    #[test]
    fn l1_5_a_read_has_a_limit_and_a_missing_file_is_its_own_error() {
        let (_t, d) = place();
        let f = d.file("x").expect("name");
        assert!(matches!(f.read(Bytes(1)), Err(ReadError::Missing(_))));
        f.write(b"123", 0o600).expect("write");
        assert!(matches!(f.read(Bytes(2)), Err(ReadError::TooLong { .. })));
        assert_eq!(f.read(Bytes(3)).expect("read"), b"123");
        f.remove().expect("remove");
        f.remove().expect("remove again");
        assert!(matches!(f.read(Bytes(1)), Err(ReadError::Missing(_))));
    }

    #[test]
    fn l1_3_an_existing_directory_keeps_its_content_and_mode() {
        let (_t, d) = place();
        let s = d.subdir("s").expect("name");
        s.create(0o711).expect("create");
        fs::write(s.full_path().join("keep"), "x").expect("write");
        s.create(0o700).expect("create again");
        let mode = fs::metadata(s.full_path()).expect("stat").permissions().mode();
        assert_eq!((mode & 0o7777, names(&s)), (0o711, vec!["keep".to_owned()]));
    }

    #[test]
    fn l1_1_a_name_with_a_slash_is_not_expressible() {
        let (_t, d) = place();
        assert!(d.file("../x").is_err() && d.subdir("a/b").is_err() && d.file("").is_err());
    }
}
