//! Volume ids: the grammar, and how a caller's name becomes an id. Pure.
//!
//! Invariant: a [`VolumeId`] is a safe single path component: it cannot be `.`, `..`,
//! hidden, or contain `/` or NUL. A path is only ever built from one.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest id and longest name in bytes (CSI allows 128 for names).
const MAX: usize = 128;
/// Hex digits of SHA-256 kept for names that are no ids: 160 bits, no collisions to fear.
const HASH_DIGITS: usize = 40;

/// What an object's id begins with inside the engine when it is a snapshot. No id that a
/// caller can name begins so.
const SNAPSHOT: char = '@';

/// Id of a volume and name of its entry: `[a-z][a-z0-9.-]{0,126}[a-z0-9]`, anchored.
///
/// Inside the engine a snapshot is an object like a volume; its id then is `@` and the
/// [`SnapshotId`], so the two never meet. [`VolumeId::parse`] knows no such id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "StoredId", into = "String")]
pub struct VolumeId(String);

/// Id of a snapshot: the same grammar.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(String);

/// An id as the registry has it.
#[derive(Deserialize)]
struct StoredId(String);

/// The text is no volume id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id: {0:?}")]
pub struct VolumeIdError(pub String);

/// The text cannot be a caller's name for a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty.
    #[error("the name is empty")]
    Empty,
    /// Longer than 128 bytes.
    #[error("the name has {0} bytes, more than {MAX}")]
    TooLong(usize),
    /// A control character.
    #[error("the name contains a control character")]
    Control,
}

fn grammatical(text: &str) -> Result<String, VolumeIdError> {
    let bytes = text.as_bytes();
    let ok = match bytes {
        [first, middle @ .., last] => {
            bytes.len() <= MAX
                && first.is_ascii_lowercase()
                && middle.iter().all(|b| is_inner(*b) || is_edge(*b))
                && is_edge(*last)
        }
        [] | [_] => false,
    };
    if ok {
        Ok(text.to_owned())
    } else {
        // Bounded: the text may be megabytes of a hostile request.
        Err(VolumeIdError(text.chars().take(MAX + 1).collect()))
    }
}

/// The name itself where it is an id, else `prefix` and 40 hex digits of its SHA-256.
fn derived(name: &str, prefix: &str) -> Result<String, NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX {
        return Err(NameError::TooLong(name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::Control);
    }
    if let Ok(id) = grammatical(name) {
        return Ok(id);
    }
    let digest = Sha256::digest(name.as_bytes());
    let mut id = String::from(prefix);
    for byte in digest.iter().take(HASH_DIGITS / 2) {
        id.push_str(&format!("{byte:02x}"));
    }
    Ok(id)
}

impl VolumeId {
    /// Checks the grammar.
    pub fn parse(text: &str) -> Result<VolumeId, VolumeIdError> {
        grammatical(text).map(VolumeId)
    }

    /// The id of the volume with this name: the name itself where it is an id, else `v-` and
    /// 40 hex digits of its SHA-256.
    pub fn from_name(name: &str) -> Result<VolumeId, NameError> {
        derived(name, "v-").map(VolumeId)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The object that a snapshot is.
    pub(crate) fn of_snapshot(id: &SnapshotId) -> VolumeId {
        VolumeId(format!("{SNAPSHOT}{}", id.0))
    }

    /// The snapshot that this object is, if it is one.
    pub(crate) fn snapshot(&self) -> Option<SnapshotId> {
        self.0.strip_prefix(SNAPSHOT).map(|id| SnapshotId(id.to_owned()))
    }

    /// Whether this object is a snapshot.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.0.starts_with(SNAPSHOT)
    }

    /// The name of the entry: without what marks a snapshot.
    pub(crate) fn entry(&self) -> &str {
        self.0.strip_prefix(SNAPSHOT).unwrap_or(&self.0)
    }

    /// An id as it was stored.
    pub(crate) fn stored(text: &str) -> Result<VolumeId, VolumeIdError> {
        grammatical(text.strip_prefix(SNAPSHOT).unwrap_or(text))?;
        Ok(VolumeId(text.to_owned()))
    }
}

impl SnapshotId {
    /// Checks the grammar.
    pub fn parse(text: &str) -> Result<SnapshotId, VolumeIdError> {
        grammatical(text).map(SnapshotId)
    }

    /// The id of the snapshot with this name: the name itself where it is an id, else `s-` and
    /// 40 hex digits of its SHA-256.
    pub fn from_name(name: &str) -> Result<SnapshotId, NameError> {
        derived(name, "s-").map(SnapshotId)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_edge(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_inner(b: u8) -> bool {
    b == b'.' || b == b'-'
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<StoredId> for VolumeId {
    type Error = VolumeIdError;
    fn try_from(text: StoredId) -> Result<VolumeId, VolumeIdError> {
        VolumeId::stored(&text.0)
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> String {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn s3_5_hostile_handles_are_no_ids() {
        let long = "a".repeat(129);
        for bad in [
            "../x",
            "a/b",
            "pvc-1\n",
            long.as_str(),
            "",
            "..",
            ".",
            ".engine",
            "a",
            "A1",
            "a-",
            "a.",
            "1a",
            "-a",
            "a\0b",
            "a b",
            "ä1",
            "a_b",
            "@a1",
        ] {
            assert!(VolumeId::parse(bad).is_err(), "{bad:?}");
            assert!(SnapshotId::parse(bad).is_err(), "{bad:?}");
        }
        let longest = "a".repeat(128);
        for good in ["pvc-0e1d", "a1", "a..b", longest.as_str()] {
            assert_eq!(VolumeId::parse(good).map(|i| i.0), Ok(good.to_owned()));
        }
    }

    #[test]
    fn s3_4_a_name_that_is_no_id_is_hashed_and_one_that_is_stays() {
        let id = VolumeId::from_name("pvc-123e4567-e89b").expect("id");
        assert_eq!(id.as_str(), "pvc-123e4567-e89b");
        let id = VolumeId::from_name("Sanity Volume/1").expect("name");
        // printf 'Sanity Volume/1' | sha256sum | cut -c-40
        assert_eq!(id.as_str(), format!("v-{}", &sha("Sanity Volume/1")[..40]));
        assert_eq!(VolumeId::from_name(""), Err(NameError::Empty));
        assert_eq!(VolumeId::from_name(&"x".repeat(129)), Err(NameError::TooLong(129)));
        assert_eq!(VolumeId::from_name("a\nb"), Err(NameError::Control));
    }

    #[test]
    fn s3_4_a_snapshot_is_an_object_that_no_volume_can_be() {
        let id = SnapshotId::from_name("pvc-1").expect("id");
        let object = VolumeId::of_snapshot(&id);
        assert_eq!((object.as_str(), object.entry()), ("@pvc-1", "pvc-1"));
        assert_eq!((object.snapshot(), object.is_snapshot()), (Some(id), true));
        assert_eq!(VolumeId::stored("@pvc-1"), Ok(object));
        assert_eq!(VolumeId::parse("pvc-1").map(|v| v.snapshot()), Ok(None));
        for bad in ["@", "@@a1", "@../x", "@a"] {
            assert!(VolumeId::stored(bad).is_err(), "{bad}");
        }
        let hashed = SnapshotId::from_name("A Name").expect("name");
        assert!(hashed.as_str().starts_with("s-"));
    }

    fn sha(text: &str) -> String {
        Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
    }

    proptest! {
        #[test]
        fn s3_4_every_accepted_name_gives_a_safe_component(name in ".{1,60}") {
            if let Ok(id) = VolumeId::from_name(&name) {
                prop_assert_eq!(VolumeId::parse(id.as_str()), Ok(id.clone()));
                prop_assert!(!id.as_str().contains('/') && !id.as_str().starts_with('.'));
                prop_assert!(id.as_str().len() <= 128);
            }
        }
    }
}
