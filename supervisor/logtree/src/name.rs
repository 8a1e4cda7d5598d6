//! Names of services and the paths made of them (DNs).
//!
//! Purpose: `Name` and `Dn` exist only in their valid form, so no other module checks them again.
//! Pure. Must not know: log entries, the tree, what a name stands for.
//!
//! Invariants: the whole text of a `Name` matches the rule; a `Dn` is a non-empty chain of at
//! most [`Dn::MAX_DEPTH`] names and [`Dn::MAX_BYTES`] bytes, or [`Dn::ALL`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a name or DN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A name must have at least one byte.
    #[error("a name must not be empty")]
    Empty,
    /// A name has at most [`Name::MAX_BYTES`] bytes.
    #[error("name of {0} bytes is longer than 64")]
    TooLong(usize),
    /// Names are made of `a-z 0-9 _ -` and begin with a letter or digit.
    #[error(
        "byte {at} of name {name:?} is not allowed: use a-z, 0-9, _ and -, begin with a letter or digit"
    )]
    Byte {
        /// The refused text.
        name: String,
        /// Offset of the first byte that breaks the rule.
        at: usize,
    },
    /// A DN has at most [`Dn::MAX_DEPTH`] names.
    #[error("DN of {0} names is deeper than 16")]
    TooDeep(usize),
    /// A DN has at most [`Dn::MAX_BYTES`] bytes.
    #[error("DN of {0} bytes is longer than 255")]
    DnTooLong(usize),
}

/// One step of a DN: 1 to 64 bytes of `a-z 0-9 _ -`, beginning with a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Longest name in bytes.
    pub const MAX_BYTES: usize = 64;

    /// Parses a name; the whole text must match.
    pub fn new(text: &str) -> Result<Name, NameError> {
        check_name(text)?;
        Ok(Name(text.into()))
    }

    /// A name from a constant of the program text.
    ///
    /// # Panics
    /// If the constant breaks the rule: a defect of the program, found by its first test.
    pub fn from_static(text: &'static str) -> Name {
        match Name::new(text) {
            Ok(name) => name,
            Err(e) => panic!("{e}"),
        }
    }

    /// Makes a name from any text (a device path, say).
    ///
    /// Letters become lower case and every other byte `-`. If anything was changed or cut, a
    /// hash of the original is appended, so that different texts do not meet in one name.
    pub fn from_text(text: &str) -> Name {
        if let Ok(name) = Name::new(text) {
            return name;
        }
        const SUFFIX: usize = 9; // '-' and 8 hex digits
        let mut out = String::with_capacity(Self::MAX_BYTES);
        for byte in text.bytes().take(Self::MAX_BYTES - SUFFIX) {
            let byte = byte.to_ascii_lowercase();
            out.push(if is_name_byte(byte) { char::from(byte) } else { '-' });
        }
        let begin = out.find(|c: char| c.is_ascii_alphanumeric()).unwrap_or(out.len());
        let stem = match &out[begin..] {
            "" => "x",
            rest => rest,
        };
        Name(format!("{stem}-{:08x}", fnv1a_32(text.as_bytes())).into())
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_name_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')
}

fn check_name(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > Name::MAX_BYTES {
        return Err(NameError::TooLong(text.len()));
    }
    let wrong = |(at, byte): &(usize, u8)| {
        !is_name_byte(*byte) || (*at == 0 && matches!(byte, b'_' | b'-'))
    };
    match text.bytes().enumerate().find(wrong) {
        Some((at, _)) => Err(NameError::Byte { name: text.to_owned(), at }),
        None => Ok(()),
    }
}

fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

/// A path of names joined by `.`, as `root.kubernetes.worker.kubelet`; [`Dn::ALL`] is `""`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dn(Option<Arc<str>>);

impl Dn {
    /// Means "everything" in a query; contains every DN.
    pub const ALL: Dn = Dn(None);
    /// Most names in a DN.
    pub const MAX_DEPTH: usize = 16;
    /// Most bytes in a DN.
    pub const MAX_BYTES: usize = 255;

    /// Parses a DN; `""` is [`Dn::ALL`].
    pub fn new(text: &str) -> Result<Dn, NameError> {
        if text.is_empty() {
            return Ok(Dn::ALL);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(NameError::DnTooLong(text.len()));
        }
        let depth = text.bytes().filter(|b| *b == b'.').count() + 1;
        if depth > Self::MAX_DEPTH {
            return Err(NameError::TooDeep(depth));
        }
        text.split('.').try_for_each(check_name)?;
        Ok(Dn(Some(text.into())))
    }

    /// A DN from a constant of the program text.
    ///
    /// # Panics
    /// If the constant breaks the rule: a defect of the program, found by its first test.
    pub fn from_static(text: &'static str) -> Dn {
        match Dn::new(text) {
            Ok(dn) => dn,
            Err(e) => panic!("{e}"),
        }
    }

    /// The DN of a child of this one.
    pub fn child(&self, name: &Name) -> Result<Dn, NameError> {
        match &self.0 {
            None => Ok(Dn(Some(name.0.clone()))),
            Some(text) => Dn::new(&format!("{text}.{}", name.0)),
        }
    }

    /// The DN without its last name; `None` for a single name and for [`Dn::ALL`].
    pub fn parent(&self) -> Option<Dn> {
        let (head, _) = self.as_str().rsplit_once('.')?;
        Some(Dn(Some(head.into())))
    }

    /// Whether `other` is this DN or below it: `a.b` contains `a.b` and `a.b.c`, never `a.bb`.
    pub fn contains(&self, other: &Dn) -> bool {
        let Some(me) = &self.0 else { return true };
        match other.as_str().strip_prefix(&**me) {
            Some(rest) => rest.is_empty() || rest.starts_with('.'),
            None => false,
        }
    }

    /// The last name as text; `""` for [`Dn::ALL`].
    pub fn last(&self) -> &str {
        self.as_str().rsplit('.').next().unwrap_or("")
    }

    /// Number of names; 0 for [`Dn::ALL`].
    pub fn depth(&self) -> usize {
        match &self.0 {
            None => 0,
            Some(text) => text.bytes().filter(|b| *b == b'.').count() + 1,
        }
    }

    /// The text of the DN.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }

    /// Whether this is [`Dn::ALL`].
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }
}

impl From<Name> for Dn {
    fn from(name: Name) -> Dn {
        Dn(Some(name.0))
    }
}

macro_rules! text_traits {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.as_str())
            }
        }
        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<$type, NameError> {
                $type::new(text)
            }
        }
        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let text = String::deserialize(d)?;
                $type::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
text_traits!(Name);
text_traits!(Dn);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn d1_the_whole_name_must_match() {
        for bad in ["a/b", "a.b", "A", "-a", "_a", "a\n", "é", "", &"a".repeat(65)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "0", "a_b-c", &"a".repeat(64)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn d2_a_dn_contains_itself_and_what_is_below_but_no_longer_sibling() {
        let dn = Dn::from_static("a.b");
        assert!(dn.contains(&Dn::from_static("a.b")));
        assert!(dn.contains(&Dn::from_static("a.b.c")));
        assert!(!dn.contains(&Dn::from_static("a.bb")));
        assert!(!dn.contains(&Dn::from_static("a")));
        assert!(Dn::ALL.contains(&dn));
        assert!(!dn.contains(&Dn::ALL));
    }

    #[test]
    fn d2_depth_and_length_are_limited() {
        let deep = vec!["a"; 16].join(".");
        assert!(Dn::new(&deep).is_ok());
        assert!(matches!(Dn::new(&format!("{deep}.a")), Err(NameError::TooDeep(17))));
        let long = vec!["a".repeat(63); 4].join(".");
        assert_eq!(Dn::new(&long).unwrap().as_str().len(), 255);
        assert!(matches!(Dn::new(&format!("{long}a")), Err(NameError::DnTooLong(256))));
        assert!(Dn::new("a..b").is_err());
        assert!(Dn::new(".").is_err());
    }

    #[test]
    fn d3_changed_texts_get_a_hash_so_that_they_stay_different() {
        assert_eq!(Name::from_text("ttys0").as_str(), "ttys0");
        let a = Name::from_text("/dev/tty0");
        let b = Name::from_text("_dev/tty0");
        assert_ne!(a, b);
        assert!(a.as_str().starts_with("dev-tty0-"), "{a}");
        assert_ne!(Name::from_text("TTY"), Name::from_text("tty"));
        assert_eq!(Name::from_text("").as_str().len(), 10);
    }

    proptest! {
        #[test]
        fn d2_printing_and_parsing_is_the_identity(names in prop::collection::vec("[a-z0-9][a-z0-9_-]{0,13}", 0..16)) {
            let text = names.join(".");
            let dn = Dn::new(&text).unwrap();
            prop_assert_eq!(dn.to_string(), text);
            prop_assert_eq!(dn.depth(), names.len());
        }

        #[test]
        fn d3_any_text_becomes_a_valid_name(text in ".{0,200}") {
            let name = Name::from_text(&text);
            prop_assert!(Name::new(name.as_str()).is_ok(), "{}", name);
        }
    }
}
