//! Configuration files of the worker (pure).

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::{
    CNI_CONFIG_DIR, CONTAINERD_SOCKET, Certificates, KUBE_PROXY_HEALTH_PORT, KUBELET_HEALTH_PORT,
    KUBELET_PORT, PINNED_IMAGES, ROOT_DIR, Settings,
};

/// containerd's configuration, version 3 (containerd 2.x).
pub fn containerd(root: &Path) -> String {
    let mut out = format!(
        "version = 3\n\
         root = '{}'\n\
         state = '/run/containerd'\n\
         oom_score = -999\n\
         \n\
         [grpc]\n  address = '{CONTAINERD_SOCKET}'\n\
         \n\
         [plugins.'io.containerd.cri.v1.images']\n  snapshotter = 'overlayfs'\n\
         \n\
         [plugins.'io.containerd.cri.v1.images'.pinned_images]\n",
        root.display()
    );
    for (key, image) in PINNED_IMAGES {
        let _ = writeln!(out, "  {key} = '{image}'");
    }
    let _ = write!(
        out,
        "\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'runc'\n\
         \n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  \
           runtime_type = 'io.containerd.runc.v2'\n\
         \n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n  \
           BinaryName = '/usr/bin/runc'\n  \
           SystemdCgroup = false\n\
         \n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n  \
           bin_dirs = ['/usr/libexec/cni']\n  \
           conf_dir = '{CNI_CONFIG_DIR}'\n\
         \n\
         # Both would write below read-only directories.\n\
         [plugins.'io.containerd.internal.v1.opt']\n  path = '/run/containerd/opt'\n\
         \n\
         [plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
    );
    out
}

/// Pods' network: a pair of interfaces per pod, addresses of this node's range, masquerade
/// outwards, host ports. Everything by nftables, as kube-proxy does.
pub fn cni(s: &Settings) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "hamlet",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": true,
                "ipMasqBackend": "nftables",
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/var/lib/cni/networks",
                    "ranges": [[{ "subnet": s.pod_cidr }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            {
                "type": "portmap",
                "backend": "nftables",
                "capabilities": { "portMappings": true },
            },
        ],
    })
}

/// The kubelet's configuration.
pub fn kubelet(c: &Certificates) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": c.authority },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": c.server,
        "tlsPrivateKeyFile": c.server_key,
        "tlsMinVersion": "VersionTLS12",
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": KUBELET_HEALTH_PORT,
        "enableProfilingHandler": false,
        "enableSystemLogHandler": false,
        "rotateCertificates": false,
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "failSwapOn": false,
        "resolvConf": "/etc/resolv.conf",
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": format!("{ROOT_DIR}/volumeplugins"),
        "seccompDefault": true,
        // The images came with the node and cannot be pulled again: 100 turns collection off.
        "imageGCHighThresholdPercent": 100,
        // A volume that fills its own quota must not evict its neighbours, so the node calls
        // itself full only when the disk nearly is.
        "evictionHard": {
            "memory.available": "64Mi",
            "nodefs.available": "2%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "2%",
            "imagefs.inodesFree": "1%",
        },
        // The gate would let the kubelet hand out XFS project ids beside the volume engine, and
        // two owners of one id share a quota.
        "featureGates": { "LocalStorageCapacityIsolationFSQuotaMonitoring": false },
    })
}

/// kube-proxy's configuration.
pub fn kube_proxy(s: &Settings, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": kubeconfig },
        "clusterCIDR": s.cluster_cidr,
        "detectLocalMode": "ClusterCIDR",
        "hostnameOverride": s.node_name,
        "healthzBindAddress": format!("127.0.0.1:{KUBE_PROXY_HEALTH_PORT}"),
        "metricsBindAddress": "127.0.0.1:10249",
        "enableProfiling": false,
        // The kernel's own table size is kept.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            node_name: "hamlet-0".to_owned(),
            node_ip: [10, 0, 2, 15].into(),
            pod_cidr: "10.244.0.0/24".to_owned(),
            cluster_cidr: "10.244.0.0/16".to_owned(),
        }
    }

    fn pretty(v: &Value) -> String {
        serde_json::to_string_pretty(v).unwrap()
    }

    #[test]
    fn containerd_writes_only_where_the_node_is_writable() {
        insta::assert_snapshot!(containerd(Path::new("/data/containerd")));
    }

    #[test]
    fn pods_get_their_network_without_iptables() {
        insta::assert_snapshot!(pretty(&cni(&settings())));
    }

    #[test]
    fn the_kubelet_knows_no_anonymous_user_and_never_collects_images() {
        let c = Certificates {
            authority: "/data/kubernetes/pki/ca.crt".into(),
            server: "/data/kubernetes/pki/kubelet-serving.crt".into(),
            server_key: "/data/kubernetes/pki/kubelet-serving.key".into(),
        };
        insta::assert_snapshot!(pretty(&kubelet(&c)));
    }

    #[test]
    fn kube_proxy_uses_nftables() {
        insta::assert_snapshot!(pretty(&kube_proxy(&settings(), Path::new("/run/x/kubeconfig"))));
    }
}
