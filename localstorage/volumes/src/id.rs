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

/// Id of a volume and name of its entry: `[a-z][a-z0-9.-]{0,126}[a-z0-9]`, anchored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

/// The text is no volume id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a volume id: {0:?}")]
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

impl VolumeId {
    /// Checks the grammar.
    pub fn parse(text: &str) -> Result<VolumeId, VolumeIdError> {
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
            Ok(VolumeId(text.to_owned()))
        } else {
            // Bounded: the text may be megabytes of a hostile request.
            Err(VolumeIdError(text.chars().take(MAX + 1).collect()))
        }
    }

    /// The id of the volume with this name: the name itself where it is an id, else `v-` and
    /// 40 hex digits of its SHA-256.
    pub fn from_name(name: &str) -> Result<VolumeId, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > MAX {
            return Err(NameError::TooLong(name.len()));
        }
        if name.chars().any(char::is_control) {
            return Err(NameError::Control);
        }
        if let Ok(id) = VolumeId::parse(name) {
            return Ok(id);
        }
        let digest = Sha256::digest(name.as_bytes());
        let mut id = String::from("v-");
        for byte in digest.iter().take(HASH_DIGITS / 2) {
            id.push_str(&format!("{byte:02x}"));
        }
        Ok(VolumeId(id))
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

impl TryFrom<String> for VolumeId {
    type Error = VolumeIdError;
    fn try_from(text: String) -> Result<VolumeId, VolumeIdError> {
        VolumeId::parse(&text)
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
        ] {
            assert!(VolumeId::parse(bad).is_err(), "{bad:?}");
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
