//! Settings of the driver. Plain data; where the values come from is the node's business.

use std::path::{Path, PathBuf};

use crate::metrics::CsiMetrics;

/// The driver's default name: that of the first provisioner of this volume layout, so that
/// its PersistentVolumes keep working.
pub const DRIVER_NAME: &str = "com.nexantic.smalltown.vfs";

/// The default topology key, the one PersistentVolumes of this layout are bound by.
pub const TOPOLOGY_KEY: &str = "kubernetes.io/hostname";

/// How the health of volumes is told (rule 12.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HealthApi {
    /// VolumeCondition of CSI ≤ 1.12, which kubelets up to 1.36 read. The default, since
    /// csi-sanity 5.4 does not know the capabilities of the other.
    #[default]
    Condition,
    /// The VolumeHealth calls of CSI 1.13.
    Health,
    /// Both.
    Both,
}

impl HealthApi {
    /// Whether VolumeCondition is told.
    pub(crate) fn condition(self) -> bool {
        match self {
            HealthApi::Condition | HealthApi::Both => true,
            HealthApi::Health => false,
        }
    }

    /// Whether the VolumeHealth calls are served.
    pub(crate) fn health(self) -> bool {
        match self {
            HealthApi::Health | HealthApi::Both => true,
            HealthApi::Condition => false,
        }
    }
}

/// Settings of both Runnables of the driver.
#[derive(Debug, Clone)]
pub struct CsiConfig {
    /// Name of the driver, as in CSIDriver and PersistentVolumes.
    pub driver_name: String,
    /// Version told to callers: that of the build.
    pub version: String,
    /// Name of the Node object.
    pub node_id: String,
    /// Key of the one topology segment.
    pub topology_key: String,
    /// Its value: the `kubernetes.io/hostname` label of the Node.
    pub topology_value: String,
    /// Most volumes on this node; 0 leaves it to the scheduler.
    pub max_volumes_per_node: u32,
    /// How health is told.
    pub health_api: HealthApi,
    /// Where the driver listens, as the kubelet sees it too.
    pub socket: PathBuf,
    /// Where registration listens.
    pub registration_socket: PathBuf,
    /// The user that may connect, beside the one this process runs as. The kubelet is root.
    pub peer_uid: u32,
    /// Where calls are counted; register it once in the node's registry.
    pub metrics: CsiMetrics,
}

impl CsiConfig {
    /// Defaults for a node of this name whose kubelet has this root directory
    /// (`/var/lib/kubelet`); the paths are below those the kubelet looks at (rule 12.7).
    ///
    /// The last part of each path carries an `@`. A client built on grpc-go that dials by path, as
    /// the kubelet does, sends the percent-encoded path as `:authority`; the `http` crate takes
    /// percent signs only in front of an `@` (user information) and would end the stream with
    /// PROTOCOL_ERROR otherwise.
    pub fn new(node_name: &str, kubelet_root: &Path) -> CsiConfig {
        CsiConfig {
            driver_name: DRIVER_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_id: node_name.to_owned(),
            topology_key: TOPOLOGY_KEY.to_owned(),
            topology_value: node_name.to_owned(),
            max_volumes_per_node: 0,
            health_api: HealthApi::default(),
            socket: kubelet_root.join("plugins").join(DRIVER_NAME).join("csi@node.sock"),
            registration_socket: kubelet_root
                .join("plugins_registry")
                .join(format!("{DRIVER_NAME}@reg.sock")),
            peer_uid: 0,
            metrics: CsiMetrics::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c12_7_the_sockets_are_where_the_kubelet_looks() {
        let config = CsiConfig::new("hamlet-0", Path::new("/var/lib/kubelet"));
        assert_eq!(
            config.socket,
            Path::new("/var/lib/kubelet/plugins/com.nexantic.smalltown.vfs/csi@node.sock")
        );
        assert_eq!(
            config.registration_socket,
            Path::new("/var/lib/kubelet/plugins_registry/com.nexantic.smalltown.vfs@reg.sock")
        );
    }
    /// As grpc-go does for a target without scheme: everything but letters, digits and what RFC
    /// 3986 allows in an authority becomes a percent escape.
    fn authority_of_grpc_go(target: &str) -> String {
        let kept = |c: char| c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]@".contains(c);
        let escape = |c: char| match kept(c) {
            true => c.to_string(),
            false => format!("%{:02X}", u32::from(c)),
        };
        target.chars().map(escape).collect()
    }

    #[test]
    fn c12_7_the_authority_the_kubelet_makes_of_each_path_is_one_our_server_accepts() {
        use tonic::codegen::http::uri::Authority;
        let config = CsiConfig::new("hamlet-0", Path::new("/var/lib/kubelet"));
        for path in [&config.socket, &config.registration_socket] {
            let sent = authority_of_grpc_go(path.to_str().unwrap());
            assert!(sent.parse::<Authority>().is_ok(), "{sent}");
        }
        let usual = authority_of_grpc_go("/var/lib/kubelet/plugins/x/csi.sock");
        assert!(usual.parse::<Authority>().is_err(), "the @ is no longer needed");
    }
}
