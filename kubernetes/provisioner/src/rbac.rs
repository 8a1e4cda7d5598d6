//! The rights the in-process provisioner needs, each with its reason (R1).
//!
//! Purpose: give bootstrap and manifests the one list of rights; `api` makes exactly these calls.
//! Owner: this crate; whoever applies it owns the objects.
//! Invariants: pure; no secrets, no wildcard, nothing on objects of other drivers that a rule could exclude.
//! It must not know: how objects are applied.

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, PolicyRule},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Name of the role; whoever applies it binds it to the users of the nodes.
pub const ROLE: &str = "system:hamlet:provisioner";

/// One right and why it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// API group.
    pub group: &'static str,
    /// Resource.
    pub resource: &'static str,
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// What breaks without it.
    pub reason: &'static str,
}

/// All rights.
pub const RIGHTS: [Right; 6] = [
    Right {
        group: "",
        resource: "persistentvolumeclaims",
        verbs: &["get", "list", "watch", "update"],
        reason: "find claims that name this node, read one live before its volume is made, and take the selected node off when there is no room",
    },
    Right {
        group: "",
        resource: "persistentvolumeclaims/status",
        verbs: &["patch"],
        reason: "say on a claim that its volume grows, why it does not, and that it has",
    },
    Right {
        group: "",
        resource: "persistentvolumes",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        reason: "store the volume's PV, read it live before its data is deleted, delete it then, keep our finalizer, and give a grown volume its size",
    },
    Right {
        group: "",
        resource: "nodes",
        verbs: &["get", "list", "watch"],
        reason: "the affinity of a volume is this node's hostname label",
    },
    Right {
        group: "storage.k8s.io",
        resource: "storageclasses",
        verbs: &["get", "list", "watch"],
        reason: "parameters, reclaim policy, mount options and binding mode of a claim's class",
    },
    Right {
        group: "",
        resource: "events",
        verbs: &["create", "patch"],
        reason: "tell the user on the claim or the volume what happened, and count repetitions",
    },
];

/// The role.
pub fn cluster_role() -> ClusterRole {
    let rule = |r: &Right| PolicyRule {
        api_groups: Some(vec![r.group.to_owned()]),
        resources: Some(vec![r.resource.to_owned()]),
        verbs: r.verbs.iter().map(|v| (*v).to_owned()).collect(),
        ..PolicyRule::default()
    };
    ClusterRole {
        metadata: ObjectMeta { name: Some(ROLE.into()), ..ObjectMeta::default() },
        rules: Some(RIGHTS.iter().map(rule).collect()),
        aggregation_rule: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_no_right_is_a_wildcard_or_reaches_secrets() {
        for right in RIGHTS {
            assert!(
                right.resource != "secrets" && right.resource != "*" && !right.verbs.contains(&"*")
            );
            assert!(right.reason.len() > 20, "{}", right.resource);
        }
        assert_eq!(cluster_role().rules.unwrap().len(), RIGHTS.len());
        assert_eq!(cluster_role().metadata.name.as_deref(), Some(ROLE));
    }
}
