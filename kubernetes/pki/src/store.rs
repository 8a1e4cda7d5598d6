//! The files of the tree: names, sizes, modes.

use std::path::{Path, PathBuf};

use localstorage::{Bytes, Dir, File, ReadError};

use crate::error::PkiError;

/// Nobody but root.
const MODE: u32 = 0o600;
/// A P-256 certificate is about 1 KiB; restored RSA keys of 4096 bits are about 4 KiB.
const MAX_FILE: Bytes = Bytes(64 * 1024);

/// The directory of certificates. File names are constants of this crate.
pub(crate) struct Store {
    dir: Dir,
}

impl Store {
    pub(crate) fn new(dir: &Dir) -> Store {
        Store { dir: dir.clone() }
    }

    pub(crate) fn certificate_name(stem: &str) -> String {
        format!("{stem}.crt")
    }

    pub(crate) fn key_name(stem: &str) -> String {
        format!("{stem}.key")
    }

    pub(crate) fn certificate_path(&self, stem: &str) -> PathBuf {
        self.path(&Store::certificate_name(stem))
    }

    pub(crate) fn key_path(&self, stem: &str) -> PathBuf {
        self.path(&Store::key_name(stem))
    }

    /// `None` if there is no such file.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, PkiError> {
        match self.file(name)?.read(MAX_FILE) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ReadError::Missing(_)) => Ok(None),
            Err(source) => Err(PkiError::Read { path: self.path(name), source }),
        }
    }

    /// The text of a file that [`crate::Pki`] has made.
    pub(crate) fn required(&self, name: &str) -> Result<String, PkiError> {
        let bytes = self
            .file(name)?
            .read(MAX_FILE)
            .map_err(|source| PkiError::Read { path: self.path(name), source })?;
        String::from_utf8(bytes).map_err(|_| PkiError::NotText { path: self.path(name) })
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), PkiError> {
        self.file(name)?
            .write(content, MODE)
            .map_err(|source| PkiError::Write { path: self.path(name), source })
    }

    fn file(&self, name: &str) -> Result<File, PkiError> {
        self.dir.file(name).map_err(|source| PkiError::Name { path: self.path(name), source })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::join(self.dir.full_path(), name)
    }
}
