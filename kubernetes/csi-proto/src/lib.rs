//! Wire types, clients and server traits of CSI and of the kubelet's plugin
//! registration, generated from the `.proto` files in `proto/`.
//!
//! Owner: kubernetes. Generated code and nothing else: no parsing, no defaults,
//! no conversions. Whoever reads a message validates it in their own crate.
//!
//! Messages carry secrets (fields named `secrets`) and their `Debug` prints them:
//! never log a whole request.

/// `csi.v1` of CSI 1.13: services Identity, Controller and Node.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// The kubelet's `pluginregistration` v1.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// A point in time, as messages carry it.
pub use prost_types::Timestamp;
