//! Values shared by the unit tests of this crate.
//!
//! Purpose: one description of a backend that makes plain volumes on node `n1`.
//! Invariants: pure. It must not know: any test.

use crate::{names::DEFAULT_DRIVER, plan::Facts};

/// A backend on node `n1` like the in-process one.
pub(crate) fn facts() -> Facts {
    Facts {
        driver: DEFAULT_DRIVER.into(),
        node: "n1".into(),
        name_prefix: "pvc".into(),
        block: false,
        access_modes: &["ReadWriteOnce", "ReadWriteOncePod"],
        fs_types: &["xfs"],
        snapshots: false,
        clones: false,
        modify: false,
        expand: false,
        verbatim_capacity: true,
    }
}
