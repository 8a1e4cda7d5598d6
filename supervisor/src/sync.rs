//! Locks and flags of [`crate::slot`].
//!
//! Named here alone so that `tests/interleavings.rs` can compile that module with locks that try
//! every order of events.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::Mutex;
pub(crate) use tokio::sync::Notify;
