//! What certificates there are and what each one says (pure).
//!
//! One place for every identity of the cluster: subject, names, usages, issuer, file. RBAC
//! bindings elsewhere refer to the constants here.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Group of the admin certificate. Bound to `cluster-admin` by `bootstrap`; unlike
/// `system:masters` it can be unbound, since it has no power of its own.
pub const ADMIN_GROUP: &str = "hamlet:cluster-admins";
/// Group of the provisioners of all nodes.
pub const PROVISIONER_GROUP: &str = "hamlet:provisioners";
/// Group of those that only watch nodes.
pub const NODE_WATCH_GROUP: &str = "hamlet:node-watchers";
/// User that the API server is towards the servers of aggregated APIs.
pub const FRONT_PROXY_USER: &str = "hamlet:front-proxy";
/// User that the API server is towards kubelets.
pub const KUBELET_CLIENT_USER: &str = "hamlet:kube-apiserver";

/// What the certificates depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the Node object.
    pub node_name: String,
    /// The address other machines and pods reach this node by.
    pub node_ip: IpAddr,
    /// First address of the service network: the Service `kubernetes`.
    pub service_ip: IpAddr,
}

/// Who signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Authority {
    /// Vouches for users, nodes and servers of the cluster.
    Cluster,
    /// Vouches for etcd and its client.
    Etcd,
    /// Vouches for the API server towards the servers it passes requests on to.
    FrontProxy,
}

impl Authority {
    /// All of them.
    pub const ALL: [Authority; 3] = [Authority::Cluster, Authority::Etcd, Authority::FrontProxy];

    /// File name without its ending.
    pub fn file_stem(self) -> &'static str {
        match self {
            Authority::Cluster => "ca",
            Authority::Etcd => "etcd-ca",
            Authority::FrontProxy => "front-proxy-ca",
        }
    }

    /// Common name of its certificate.
    pub fn common_name(self) -> &'static str {
        match self {
            Authority::Cluster => "hamlet cluster authority",
            Authority::Etcd => "hamlet etcd authority",
            Authority::FrontProxy => "hamlet front-proxy authority",
        }
    }
}

/// Every leaf of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaf {
    /// The API server's serving certificate.
    Apiserver,
    /// The API server as a client of kubelets.
    ApiserverKubeletClient,
    /// The API server as a client of etcd.
    ApiserverEtcdClient,
    /// The API server as it passes a user's request on to an aggregated API.
    FrontProxyClient,
    /// etcd's serving certificate for clients.
    EtcdServer,
    /// etcd towards other members.
    EtcdPeer,
    /// The readiness probe of etcd.
    EtcdProbe,
    /// kube-controller-manager as a client.
    ControllerManager,
    /// kube-controller-manager's own health and metrics port.
    ControllerManagerServing,
    /// kube-scheduler as a client.
    Scheduler,
    /// kube-scheduler's own health and metrics port.
    SchedulerServing,
    /// kube-proxy as a client.
    KubeProxy,
    /// The kubelet as a client: the Node identity.
    Kubelet,
    /// The kubelet's serving certificate.
    KubeletServing,
    /// The person who owns the cluster.
    Admin,
    /// The `bootstrap` service: `system:masters`, since it creates the first role bindings.
    Bootstrap,
    /// The volume provisioner of this node.
    Provisioner,
    /// The watch on this node's own Node object.
    NodeWatch,
    /// Readiness probes of the control plane; a user without any role.
    Probe,
}

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// TLS client.
    Client,
    /// TLS server.
    Server,
}

/// The content of one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Subject CN: the user name.
    pub common_name: String,
    /// Subject O: the group. X.509 allows several; nothing here needs a second one.
    pub group: Option<String>,
    /// Names and addresses a server may be called by.
    pub names: BTreeSet<String>,
    /// Extended key usages.
    pub usages: BTreeSet<Usage>,
    /// Issuer.
    pub authority: Authority,
}

impl Leaf {
    /// All leaves, in the order in which they are issued.
    pub const ALL: [Leaf; 19] = [
        Leaf::Apiserver,
        Leaf::ApiserverKubeletClient,
        Leaf::ApiserverEtcdClient,
        Leaf::FrontProxyClient,
        Leaf::EtcdServer,
        Leaf::EtcdPeer,
        Leaf::EtcdProbe,
        Leaf::ControllerManager,
        Leaf::ControllerManagerServing,
        Leaf::Scheduler,
        Leaf::SchedulerServing,
        Leaf::KubeProxy,
        Leaf::Kubelet,
        Leaf::KubeletServing,
        Leaf::Admin,
        Leaf::Bootstrap,
        Leaf::Provisioner,
        Leaf::NodeWatch,
        Leaf::Probe,
    ];

    /// File name without its ending.
    pub fn file_stem(self) -> &'static str {
        match self {
            Leaf::Apiserver => "apiserver",
            Leaf::ApiserverKubeletClient => "apiserver-kubelet-client",
            Leaf::ApiserverEtcdClient => "apiserver-etcd-client",
            Leaf::FrontProxyClient => "front-proxy-client",
            Leaf::EtcdServer => "etcd-server",
            Leaf::EtcdPeer => "etcd-peer",
            Leaf::EtcdProbe => "etcd-probe",
            Leaf::ControllerManager => "controller-manager",
            Leaf::ControllerManagerServing => "controller-manager-serving",
            Leaf::Scheduler => "scheduler",
            Leaf::SchedulerServing => "scheduler-serving",
            Leaf::KubeProxy => "kube-proxy",
            Leaf::Kubelet => "kubelet",
            Leaf::KubeletServing => "kubelet-serving",
            Leaf::Admin => "admin",
            Leaf::Bootstrap => "bootstrap",
            Leaf::Provisioner => "provisioner",
            Leaf::NodeWatch => "node-watch",
            Leaf::Probe => "probe",
        }
    }

    /// Who signs it, and whom its bearer trusts.
    pub fn authority(self) -> Authority {
        match self {
            Leaf::ApiserverEtcdClient | Leaf::EtcdServer | Leaf::EtcdPeer | Leaf::EtcdProbe => {
                Authority::Etcd
            }
            Leaf::FrontProxyClient => Authority::FrontProxy,
            _ => Authority::Cluster,
        }
    }

    /// What the leaf says on this node.
    pub fn identity(self, rq: &Request) -> Identity {
        let node = rq.node_name.as_str();
        match self {
            Leaf::Apiserver => server("kube-apiserver", apiserver_names(rq)),
            Leaf::ApiserverKubeletClient => client(KUBELET_CLIENT_USER, None),
            Leaf::ApiserverEtcdClient => etcd("kube-apiserver", Usage::Client),
            Leaf::FrontProxyClient => {
                Identity { authority: Authority::FrontProxy, ..client(FRONT_PROXY_USER, None) }
            }
            // etcd's JSON gateway dials its own server with this certificate, hence both usages.
            Leaf::EtcdServer => etcd_server("etcd-server"),
            Leaf::EtcdPeer => etcd_server("etcd-peer"),
            Leaf::EtcdProbe => etcd("etcd-probe", Usage::Client),
            Leaf::ControllerManager => client("system:kube-controller-manager", None),
            Leaf::ControllerManagerServing => server("kube-controller-manager", loopback()),
            Leaf::Scheduler => client("system:kube-scheduler", None),
            Leaf::SchedulerServing => server("kube-scheduler", loopback()),
            Leaf::KubeProxy => client("system:kube-proxy", Some("system:node-proxier")),
            Leaf::Kubelet => client(&node_user(node), Some("system:nodes")),
            Leaf::KubeletServing => Identity {
                group: Some("system:nodes".to_owned()),
                ..server(&node_user(node), [node.to_owned(), rq.node_ip.to_string()].into())
            },
            Leaf::Admin => client("hamlet:admin", Some(ADMIN_GROUP)),
            Leaf::Bootstrap => client("hamlet:bootstrap", Some("system:masters")),
            Leaf::Provisioner => {
                client(&format!("hamlet:provisioner:{node}"), Some(PROVISIONER_GROUP))
            }
            Leaf::NodeWatch => client(&format!("hamlet:node-watch:{node}"), Some(NODE_WATCH_GROUP)),
            Leaf::Probe => client("hamlet:probe", None),
        }
    }
}

/// User name of a kubelet, as the Node authorizer expects it.
pub fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

fn client(common_name: &str, group: Option<&str>) -> Identity {
    Identity {
        common_name: common_name.to_owned(),
        group: group.map(str::to_owned),
        names: BTreeSet::new(),
        usages: [Usage::Client].into(),
        authority: Authority::Cluster,
    }
}

fn server(common_name: &str, names: BTreeSet<String>) -> Identity {
    Identity { names, usages: [Usage::Server].into(), ..client(common_name, None) }
}

fn etcd(common_name: &str, usage: Usage) -> Identity {
    Identity { usages: [usage].into(), authority: Authority::Etcd, ..client(common_name, None) }
}

fn etcd_server(common_name: &str) -> Identity {
    Identity {
        names: loopback(),
        usages: [Usage::Client, Usage::Server].into(),
        ..etcd(common_name, Usage::Server)
    }
}

fn loopback() -> BTreeSet<String> {
    ["127.0.0.1".to_owned(), "localhost".to_owned()].into()
}

fn apiserver_names(rq: &Request) -> BTreeSet<String> {
    let mut names = loopback();
    names.insert(rq.node_name.clone());
    names.insert(rq.node_ip.to_string());
    names.insert(rq.service_ip.to_string());
    for name in [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ] {
        names.insert(name.to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn request() -> Request {
        Request {
            node_name: "hamlet-0".to_owned(),
            node_ip: [10, 0, 2, 15].into(),
            service_ip: [10, 96, 0, 1].into(),
        }
    }

    #[test]
    fn every_leaf_has_its_own_file_and_none_is_an_authority() {
        let mut files = BTreeSet::new();
        for stem in Leaf::ALL.iter().map(|l| l.file_stem()) {
            assert!(files.insert(stem), "{stem} twice");
        }
        for ca in Authority::ALL {
            assert!(files.insert(ca.file_stem()));
        }
        assert!(!files.contains("service-account"));
    }

    #[test]
    fn only_the_bootstrap_client_is_a_master() {
        for leaf in Leaf::ALL {
            let master = leaf.identity(&request()).group.as_deref() == Some("system:masters");
            assert_eq!(master, leaf == Leaf::Bootstrap, "{leaf:?}");
        }
    }

    #[test]
    fn only_etcd_and_its_clients_come_from_the_etcd_authority() {
        for leaf in Leaf::ALL {
            let etcd = leaf.identity(&request()).authority == Authority::Etcd;
            assert_eq!(etcd, leaf.file_stem().contains("etcd"), "{leaf:?}");
            assert_eq!(leaf.authority(), leaf.identity(&request()).authority, "{leaf:?}");
        }
    }

    #[test]
    fn a_front_proxy_certificate_opens_nothing_but_what_trusts_the_front_proxy() {
        for leaf in Leaf::ALL {
            let front = leaf.identity(&request()).authority == Authority::FrontProxy;
            assert_eq!(front, leaf == Leaf::FrontProxyClient, "{leaf:?}");
        }
    }

    #[test]
    fn servers_have_names_and_clients_have_none() {
        for leaf in Leaf::ALL {
            let id = leaf.identity(&request());
            assert_eq!(id.usages.contains(&Usage::Server), !id.names.is_empty(), "{leaf:?}");
        }
    }

    #[test]
    fn identities_are_as_written_down() {
        let all: BTreeMap<_, _> = Leaf::ALL
            .iter()
            .map(|l| {
                let i = l.identity(&request());
                let line = format!(
                    "CN={} O={} {:?} by {:?} for {}",
                    i.common_name,
                    i.group.as_deref().unwrap_or("-"),
                    i.usages,
                    i.authority,
                    i.names.into_iter().collect::<Vec<_>>().join(",")
                );
                (l.file_stem(), line)
            })
            .collect();
        insta::assert_debug_snapshot!(all);
    }
}
