//! What the cluster tells the node: progress, conditions of the Node object, credentials.
//!
//! Owner: the node makes the channel, so that what was published outlives every restart of the
//! services below (supervisor rule X5). Senders are in [`Publisher`], receivers in [`View`].

use std::sync::Arc;

use pki::{Leaf, Pki, PkiError};
use tokio::sync::watch;

/// What has been reached. A value is never taken back: it marks a phase of the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The API server answered its readiness probe and the cluster's own objects are applied.
    pub controlplane_ready: bool,
    /// The Node object had the condition Ready.
    pub node_ready: bool,
}

/// The Node object of this node, as far as the dashboard shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Whether the API server has a Node object of our name.
    pub registered: bool,
    /// Its conditions, in the API's order.
    pub conditions: Vec<NodeCondition>,
    /// Version of the kubelet, empty while unknown.
    pub kubelet_version: String,
    /// The kubelet's word for its container runtime and version, empty while unknown.
    pub runtime_version: String,
}

impl NodeStatus {
    /// True if the condition Ready is True.
    pub fn is_ready(&self) -> bool {
        self.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True")
    }
}

/// One condition of the Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCondition {
    /// `Ready`, `MemoryPressure`, ...
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Last change, Unix seconds; 0 if unknown.
    pub since: i64,
}

/// The sending half.
#[derive(Clone)]
pub struct Publisher {
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) node: watch::Sender<NodeStatus>,
    pub(crate) pki: watch::Sender<Option<Arc<Pki>>>,
}

/// The receiving half.
#[derive(Clone)]
pub struct View {
    /// Phases of the boot.
    pub progress: watch::Receiver<Progress>,
    /// The Node object.
    pub node: watch::Receiver<NodeStatus>,
    pki: watch::Receiver<Option<Arc<Pki>>>,
}

/// Why there is no admin kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The certificate tree is not there yet; ask again.
    #[error("the certificates of this cluster do not exist yet")]
    NotReady,
    /// It is there and cannot be read.
    #[error("cannot read the admin's certificate")]
    Unreadable {
        /// Which file and why.
        #[source]
        source: PkiError,
    },
}

/// Makes the channel between the cluster and its node.
pub fn channel() -> (Publisher, View) {
    let (progress_tx, progress) = watch::channel(Progress::default());
    let (node_tx, node) = watch::channel(NodeStatus::default());
    let (pki_tx, pki) = watch::channel(None);
    let publisher = Publisher { progress: progress_tx, node: node_tx, pki: pki_tx };
    (publisher, View { progress, node, pki })
}

impl View {
    /// The admin's kubeconfig for the API server at `server` (`https://127.0.0.1:6443`). A
    /// secret: it leaves the node only by the host's own channel. Reads three small files.
    ///
    /// # Errors
    /// [`KubeconfigError::NotReady`] until the certificate tree exists.
    pub fn admin_kubeconfig(&self, server: &str) -> Result<String, KubeconfigError> {
        let pki = self.pki.borrow().clone().ok_or(KubeconfigError::NotReady)?;
        pki.personal_kubeconfig(Leaf::Admin, server)
            .map_err(|source| KubeconfigError::Unreadable { source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_kubeconfig_before_the_certificates() {
        let (_publisher, view) = channel();
        let error = view.admin_kubeconfig("https://127.0.0.1:6443").unwrap_err();
        assert!(matches!(error, KubeconfigError::NotReady));
    }

    #[test]
    fn only_the_condition_ready_true_makes_a_node_ready() {
        let with = |kind: &str, status: &str| NodeStatus {
            conditions: vec![NodeCondition {
                kind: kind.to_owned(),
                status: status.to_owned(),
                ..NodeCondition::default()
            }],
            ..NodeStatus::default()
        };
        assert!(with("Ready", "True").is_ready());
        assert!(!with("Ready", "Unknown").is_ready());
        assert!(!with("MemoryPressure", "True").is_ready());
        assert!(!NodeStatus::default().is_ready());
    }
}
