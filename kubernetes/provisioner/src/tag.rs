//! The durable note about a volume's owner, kept by the engine in the same commit as the volume (V4, I1).
//!
//! Purpose: after a crash, tell for whom a volume was made and whether its PV was stored.
//! Owner: the in-process backend writes it; the engine keeps it as opaque text.
//! Invariants: pure; version 1 stays readable for ever; a text that cannot be read counts as "stored", so that
//! nothing is deleted for it; it fits the engine's 4 KiB for every legal name.
//! It must not know: how the engine keeps it.

use serde::{Deserialize, Serialize};

use crate::backend::Owner;

/// Wire form, version 1.
#[derive(Serialize, Deserialize)]
struct V1 {
    v: u32,
    namespace: String,
    name: String,
    uid: String,
    pv: String,
    policy: String,
    stored: bool,
}

/// Writes the note.
pub(crate) fn write(owner: &Owner, stored: bool) -> String {
    let tag = V1 {
        v: 1,
        namespace: owner.namespace.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        pv: owner.pv.clone(),
        policy: owner.policy.clone(),
        stored,
    };
    // Plain texts in a struct: this cannot fail, and if it did, no note means "keep the data".
    serde_json::to_string(&tag).unwrap_or_default()
}

/// Reads a note: for whom, and whether the PV was stored.
pub(crate) fn read(text: &str) -> Option<(Owner, bool)> {
    let tag: V1 = serde_json::from_str(text).ok()?;
    if tag.v != 1 {
        return None;
    }
    let owner = Owner {
        namespace: tag.namespace,
        name: tag.name,
        uid: tag.uid,
        pv: tag.pv,
        policy: tag.policy,
    };
    Some((owner, tag.stored))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner {
            namespace: "ns".into(),
            name: "c".into(),
            uid: "u".into(),
            pv: "pvc-u".into(),
            policy: "Delete".into(),
        }
    }

    #[test]
    fn the_wire_form_of_version_1_does_not_change() {
        let text = r#"{"v":1,"namespace":"ns","name":"c","uid":"u","pv":"pvc-u","policy":"Delete","stored":false}"#;
        assert_eq!(write(&owner(), false), text);
        assert_eq!(read(text), Some((owner(), false)));
        assert_eq!(read(&write(&owner(), true)), Some((owner(), true)));
    }

    #[test]
    fn i6_what_cannot_be_read_is_no_note() {
        for text in [
            "",
            "{}",
            "null",
            "csi",
            r#"{"v":2,"namespace":"","name":"","uid":"","pv":"","policy":"","stored":false}"#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_longest_legal_names_fit_four_kibibytes() {
        let longest = Owner {
            namespace: "n".repeat(63),
            name: "c".repeat(253),
            uid: "u".repeat(253),
            pv: "p".repeat(257),
            policy: "Delete".into(),
        };
        assert!(write(&longest, false).len() < 4096);
    }
}
