//! A data directory for the tests of other crates: no mount, no XFS, no root.

use std::path::Path;

use crate::data::{Data, MountDataError};
use crate::dir::Dir;

/// The declared directories of `/data` under `at`, as if a data disk were mounted there.
pub fn data_at(at: &Path) -> Result<Data, MountDataError> {
    Data::create(Dir::at(at.to_owned()))
}
