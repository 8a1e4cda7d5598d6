//! The leveled log of the node.

mod entry;
mod name;

pub use entry::{Entry, Level, LevelError, MAX_FIELDS, MAX_LINES, MAX_MESSAGE_BYTES, MAX_VALUE_BYTES};
pub use name::{Dn, Name, NameError};

mod skeleton;
pub use skeleton::*;
