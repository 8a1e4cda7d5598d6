//! Why the certificate tree could not be brought up.

use std::path::PathBuf;

/// Each variant is the step that failed and its object.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file is there but cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file system said.
        #[source]
        source: localstorage::ReadError,
    },
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the file system said.
        #[source]
        source: localstorage::WriteError,
    },
    /// A file's name is not one that the data disk's layout takes.
    #[error("{path} is no file of the layout")]
    Name {
        /// The file.
        path: PathBuf,
        /// The rule it breaks.
        #[source]
        source: localstorage::layout::DeclarationError,
    },
    /// A file is no text.
    #[error("{path} is not text")]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// A private key that others trust is there but is no key.
    #[error(
        "{path} is not a private key; it is not replaced, since that would void every credential \
         of this cluster: restore it, or remove it together with its certificate to begin anew"
    )]
    TrustedKeyUnreadable {
        /// The key file.
        path: PathBuf,
    },
    /// The certificate of an authority is there and its private key is not.
    #[error(
        "{certificate} is there but its key {key} is missing; restore the key, or remove the \
         certificate to begin anew with new credentials"
    )]
    TrustedKeyMissing {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A key could not be made.
    #[error("cannot make a private key for {name}")]
    Key {
        /// File name without its ending.
        name: &'static str,
        /// What the cryptography library said.
        #[source]
        source: rcgen::Error,
    },
    /// A certificate could not be issued.
    #[error("cannot issue certificate {name}")]
    Issue {
        /// File name without its ending.
        name: &'static str,
        /// What the cryptography library said.
        #[source]
        source: rcgen::Error,
    },
}
