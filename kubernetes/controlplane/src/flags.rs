//! Command lines of the control plane (pure).
//!
//! No secret is ever in one of them: they name files (supervisor rule R6).

use std::path::{Path, PathBuf};

use crate::Settings;

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Certificate file.
    pub certificate: PathBuf,
    /// Key file.
    pub key: PathBuf,
}

/// Files of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdFiles {
    /// Where it keeps its data.
    pub data: PathBuf,
    /// The etcd authority.
    pub authority: PathBuf,
    /// Towards clients.
    pub server: Pair,
    /// Towards members.
    pub peer: Pair,
}

/// Files of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiserverFiles {
    /// The cluster authority.
    pub authority: PathBuf,
    /// The etcd authority.
    pub etcd_authority: PathBuf,
    /// Serving.
    pub server: Pair,
    /// As etcd's client.
    pub etcd_client: Pair,
    /// As the kubelets' client.
    pub kubelet_client: Pair,
    /// The front-proxy authority.
    pub front_proxy_authority: PathBuf,
    /// Towards aggregated APIs.
    pub front_proxy_client: Pair,
    /// Signs service-account tokens.
    pub service_account_key: PathBuf,
    /// Checks them.
    pub service_account_public: PathBuf,
}

/// Files of kube-controller-manager and kube-scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerFiles {
    /// The cluster authority.
    pub authority: PathBuf,
    /// Own health port.
    pub server: Pair,
    /// Names the client certificate.
    pub kubeconfig: PathBuf,
}

/// etcd on loopback, alone, with mutual TLS.
pub fn etcd(s: &Settings, f: &EtcdFiles) -> Vec<String> {
    let client = format!("https://127.0.0.1:{}", s.ports.etcd_client);
    let peer = format!("https://127.0.0.1:{}", s.ports.etcd_peer);
    vec![
        // The member's name is in its data for ever, so it does not follow the node's.
        flag("name", "local"),
        path("data-dir", &f.data),
        flag("listen-client-urls", &client),
        flag("advertise-client-urls", &client),
        flag("listen-peer-urls", &peer),
        flag("initial-advertise-peer-urls", &peer),
        flag("initial-cluster", &format!("local={peer}")),
        path("trusted-ca-file", &f.authority),
        path("cert-file", &f.server.certificate),
        path("key-file", &f.server.key),
        flag("client-cert-auth", "true"),
        path("peer-trusted-ca-file", &f.authority),
        path("peer-cert-file", &f.peer.certificate),
        path("peer-key-file", &f.peer.key),
        flag("peer-client-cert-auth", "true"),
        flag("tls-min-version", "TLS1.2"),
        // Raft entries kept in memory for slow followers; there are none here.
        flag("snapshot-count", "10000"),
        flag("logger", "zap"),
        flag("log-outputs", "stderr"),
    ]
}

/// kube-apiserver.
pub fn apiserver(s: &Settings, f: &ApiserverFiles) -> Vec<String> {
    vec![
        flag("advertise-address", &s.advertise_address.to_string()),
        flag("bind-address", "0.0.0.0"),
        flag("secure-port", &s.ports.apiserver.to_string()),
        flag("etcd-servers", &format!("https://127.0.0.1:{}", s.ports.etcd_client)),
        path("etcd-cafile", &f.etcd_authority),
        path("etcd-certfile", &f.etcd_client.certificate),
        path("etcd-keyfile", &f.etcd_client.key),
        path("client-ca-file", &f.authority),
        path("tls-cert-file", &f.server.certificate),
        path("tls-private-key-file", &f.server.key),
        flag("tls-min-version", "VersionTLS12"),
        flag("anonymous-auth", "false"),
        flag("authorization-mode", "Node,RBAC"),
        flag("enable-admission-plugins", "NodeRestriction"),
        path("kubelet-certificate-authority", &f.authority),
        path("kubelet-client-certificate", &f.kubelet_client.certificate),
        path("kubelet-client-key", &f.kubelet_client.key),
        flag("kubelet-preferred-address-types", "InternalIP,Hostname"),
        // Aggregated APIs, and the configuration that every delegating server looks up: without it
        // the controllers retry that lookup for ever.
        path("requestheader-client-ca-file", &f.front_proxy_authority),
        flag("requestheader-allowed-names", pki::spec::FRONT_PROXY_USER),
        flag("requestheader-username-headers", "X-Remote-User"),
        flag("requestheader-group-headers", "X-Remote-Group"),
        flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        path("proxy-client-cert-file", &f.front_proxy_client.certificate),
        path("proxy-client-key-file", &f.front_proxy_client.key),
        flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
        path("service-account-signing-key-file", &f.service_account_key),
        path("service-account-key-file", &f.service_account_public),
        flag("service-cluster-ip-range", &s.service_cidr),
        flag("endpoint-reconciler-type", "lease"),
        flag("allow-privileged", "true"),
        flag("profiling", "false"),
    ]
}

/// kube-controller-manager. One node, one instance: no leader election.
pub fn controller_manager(
    s: &Settings,
    f: &ControllerFiles,
    service_account_key: &Path,
) -> Vec<String> {
    let mut flags = controller(f, s.ports.controller_manager);
    flags.extend([
        path("root-ca-file", &f.authority),
        path("service-account-private-key-file", service_account_key),
        // Each controller acts as its own service account, with the rights of that one only.
        flag("use-service-account-credentials", "true"),
        flag("cluster-cidr", &s.cluster_cidr),
        flag("allocate-node-cidrs", "false"),
        // The default is below /usr, which is read-only here.
        flag("flex-volume-plugin-dir", "/var/lib/kubelet/volumeplugins"),
    ]);
    flags
}

/// kube-scheduler. One node, one instance: no leader election.
pub fn scheduler(s: &Settings, f: &ControllerFiles) -> Vec<String> {
    controller(f, s.ports.scheduler)
}

fn controller(f: &ControllerFiles, port: u16) -> Vec<String> {
    vec![
        path("kubeconfig", &f.kubeconfig),
        path("authentication-kubeconfig", &f.kubeconfig),
        path("authorization-kubeconfig", &f.kubeconfig),
        path("client-ca-file", &f.authority),
        flag("bind-address", "127.0.0.1"),
        flag("secure-port", &port.to_string()),
        path("tls-cert-file", &f.server.certificate),
        path("tls-private-key-file", &f.server.key),
        flag("leader-elect", "false"),
        flag("profiling", "false"),
    ]
}

fn flag(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

fn path(name: &str, value: &Path) -> String {
    flag(name, &value.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ports;

    fn settings() -> Settings {
        Settings {
            advertise_address: [10, 0, 2, 15].into(),
            ports: Ports::default(),
            service_cidr: "10.96.0.0/16".to_owned(),
            cluster_cidr: "10.244.0.0/16".to_owned(),
        }
    }

    fn pair(name: &str) -> Pair {
        Pair {
            certificate: format!("/data/kubernetes/pki/{name}.crt").into(),
            key: format!("/data/kubernetes/pki/{name}.key").into(),
        }
    }

    fn controller_files(name: &str) -> ControllerFiles {
        ControllerFiles {
            authority: "/data/kubernetes/pki/ca.crt".into(),
            server: pair(&format!("{name}-serving")),
            kubeconfig: "/run/hamlet/x/kubeconfig".into(),
        }
    }

    fn apiserver_files() -> ApiserverFiles {
        ApiserverFiles {
            authority: "/data/kubernetes/pki/ca.crt".into(),
            etcd_authority: "/data/kubernetes/pki/etcd-ca.crt".into(),
            server: pair("apiserver"),
            etcd_client: pair("apiserver-etcd-client"),
            kubelet_client: pair("apiserver-kubelet-client"),
            front_proxy_authority: "/data/kubernetes/pki/front-proxy-ca.crt".into(),
            front_proxy_client: pair("front-proxy-client"),
            service_account_key: "/data/kubernetes/pki/service-account.key".into(),
            service_account_public: "/data/kubernetes/pki/service-account.pub".into(),
        }
    }

    #[test]
    fn etcd_listens_on_loopback_only_and_asks_everyone_for_a_certificate() {
        let files = EtcdFiles {
            data: "/data/etcd".into(),
            authority: "/data/kubernetes/pki/etcd-ca.crt".into(),
            server: pair("etcd-server"),
            peer: pair("etcd-peer"),
        };
        insta::assert_snapshot!(etcd(&settings(), &files).join("\n"));
    }

    #[test]
    fn the_api_server_knows_no_anonymous_user() {
        insta::assert_snapshot!(apiserver(&settings(), &apiserver_files()).join("\n"));
    }

    #[test]
    fn the_controller_manager_serves_on_loopback_only() {
        let key = Path::new("/data/kubernetes/pki/service-account.key");
        let flags = controller_manager(&settings(), &controller_files("controller-manager"), key);
        insta::assert_snapshot!(flags.join("\n"));
    }

    #[test]
    fn the_scheduler_serves_on_loopback_only() {
        insta::assert_snapshot!(scheduler(&settings(), &controller_files("scheduler")).join("\n"));
    }
}
