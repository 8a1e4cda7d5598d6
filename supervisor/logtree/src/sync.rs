//! Locks and flags of [`crate::store`] and [`crate::reader`].
//!
//! Named here alone so that `tests/interleavings.rs` can compile these modules with locks that try
//! every order of events.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex};
pub(crate) use tokio::sync::Notify;
