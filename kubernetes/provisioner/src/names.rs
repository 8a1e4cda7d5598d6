//! Names other components depend on (section 5 of the specification): annotations, labels, finalizers, reasons.
//!
//! Purpose: one place for every text that is a contract with Kubernetes, with tools or with older releases.
//! Owner: this crate; changing a value here is a breaking change.
//! Invariants: pure constants and pure functions; label names and values made here are always legal.
//! It must not know: anything else.

use sha2::{Digest, Sha256};

/// The driver of our own volumes, in classes, PVs and the kubelet's registration.
pub const DEFAULT_DRIVER: &str = "com.nexantic.smalltown.vfs";
/// Domain of the labels that are our own.
pub const DOMAIN: &str = "hamlet.dev";
/// The label of a Node that a volume's affinity names (V1).
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// PVC: the class, older spelling; wins over the field.
pub const ANN_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// PVC: who provisions; the plain form wins.
pub const ANN_PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// PVC: the node the scheduler selected; the plain form wins.
pub const ANN_SELECTED_NODE: [&str; 2] =
    ["volume.kubernetes.io/selected-node", "volume.alpha.kubernetes.io/selected-node"];
/// PVC and PV: the driver an in-tree name was moved to.
pub const ANN_MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// PV: the provisioner that made it.
pub const ANN_PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// PV: secret for the deletion, name and namespace; always written, empty for none.
pub const ANN_DELETION_SECRET: [&str; 2] = [
    "volume.kubernetes.io/provisioner-deletion-secret-name",
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
];
/// PV: keeps the object until its volume is gone.
pub const PV_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Parameters with this prefix are for the provisioner, not for the driver (G1).
pub const RESERVED_PREFIX: &str = "csi.storage.k8s.io/";

/// Longest label name and value Kubernetes takes.
const LABEL_MAX: usize = 63;

/// Key of the label that tells which node a PV lives on (W1).
pub fn node_label_key(driver: &str) -> String {
    format!("node.{DOMAIN}/{}", label_part(driver))
}

/// Value of that label for a node.
pub fn node_label_value(node: &str) -> String {
    label_part(node)
}

/// P18: name of PV and volume of a claim.
pub fn volume_name(prefix: &str, claim_uid: &str) -> String {
    format!("{prefix}-{claim_uid}")
}

/// A text of at most 63 bytes: a longer one becomes 32 hex digits of its SHA-256.
fn label_part(text: &str) -> String {
    if text.len() <= LABEL_MAX {
        return text.to_owned();
    }
    Sha256::digest(text.as_bytes()).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w1_the_node_label_of_the_default_driver_is_readable() {
        assert_eq!(node_label_key(DEFAULT_DRIVER), "node.hamlet.dev/com.nexantic.smalltown.vfs");
        assert_eq!(node_label_value("hamlet-0"), "hamlet-0");
    }

    #[test]
    fn w1_names_over_63_bytes_become_32_hex_digits_that_differ() {
        let (a, b) = (node_label_value(&"a".repeat(64)), node_label_value(&"a".repeat(65)));
        assert_eq!(a.len(), 32);
        assert!(a.bytes().all(|c| c.is_ascii_hexdigit()));
        assert_ne!(a, b);
        assert_eq!(node_label_value(&"a".repeat(63)), "a".repeat(63));
    }
}
