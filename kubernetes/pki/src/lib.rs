//! The certificate tree of a node, kept on its data disk.
//!
//! Purpose: every part of the cluster proves who it is with a certificate of its own. This crate
//! decides which certificates there are ([`spec`], pure), whether an existing one may stay
//! ([`judge`], pure), issues what is missing, and reports when each one ends.
//!
//! Three authorities: `ca` vouches for everything that speaks to or for the API server, `etcd-ca`
//! only for etcd and its one client, `front-proxy-ca` only for the API server where it passes a
//! user's request on. With a single authority the kubelet's certificate would open the database,
//! and any client could name itself another user to an aggregated API.
//!
//! Invariants:
//! - Every file is 0600 and is written atomically (localstorage 1.5); a key is written before its
//!   certificate, so that a certificate without a key never comes from a power cut.
//! - The private keys that others trust (the authorities, the service accounts) are made once.
//!   An unreadable one is an error that names the file; it is never replaced silently, since that
//!   would void every credential of the cluster.
//! - Leaves are ours alone: an unreadable, foreign, ending or changed one is issued anew.
//!
//! Must not know: services, flags, the supervisor. No clock of its own: `now` is an argument.

pub mod clock;
mod error;
mod issue;
pub mod judge;
pub mod kubeconfig;
mod parse;
pub mod spec;
mod store;
mod tree;

pub use error::PkiError;
pub use kubeconfig::Kubeconfig;
pub use spec::{Authority, Identity, Leaf, Request};
pub use tree::{Expiry, Issued, Pki, Report};
