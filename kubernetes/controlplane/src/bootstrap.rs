//! The objects a cluster of ours begins with, and their application.
//!
//! Everything is applied on the server's side with one field manager and by force: a second run
//! changes nothing, a newer release updates what the older one wrote, and fields that a person
//! added stay.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec};
use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::core::discovery::ApiResource;
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::Value;

/// Owner of the fields we set.
pub const FIELD_MANAGER: &str = "hamlet-bootstrap";

/// One object to be applied.
#[derive(Clone, Debug)]
pub struct Object {
    resource: ApiResource,
    value: Value,
}

/// Why the cluster's first objects could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// An object of ours cannot be written down.
    #[error("{kind} cannot be serialized")]
    Serialize {
        /// Its kind.
        kind: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The API server refused it or could not be reached.
    #[error("cannot apply {kind} {name}")]
    Apply {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What the API server said.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Object {
    /// Any typed object.
    ///
    /// # Errors
    /// Its serialization fails.
    pub fn of<K>(object: &K) -> Result<Object, BootstrapError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let resource = ApiResource::erase::<K>(&());
        let mut value = serde_json::to_value(object)
            .map_err(|source| BootstrapError::Serialize { kind: resource.kind.clone(), source })?;
        // Server-side apply wants both; k8s-openapi writes them, other types may not.
        value["apiVersion"] = Value::String(resource.api_version.clone());
        value["kind"] = Value::String(resource.kind.clone());
        Ok(Object { resource, value })
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        &self.resource.kind
    }

    /// Its name; empty if it has none, which the API server will refuse.
    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Applies it.
    ///
    /// # Errors
    /// The API server's, with kind and name.
    pub async fn apply(&self, client: &Client) -> Result<(), BootstrapError> {
        let api: Api<DynamicObject> = match self.value["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch(self.name(), &params, &Patch::Apply(&self.value)).await.map(drop).map_err(
            |source| BootstrapError::Apply {
                kind: self.kind().to_owned(),
                name: self.name().to_owned(),
                source: Box::new(source),
            },
        )
    }
}

/// What every cluster of ours begins with: our CSI driver and the bindings of the certificates.
///
/// # Errors
/// Serialization; cannot happen for these types.
pub fn objects(driver: &str) -> Result<Vec<Object>, BootstrapError> {
    Ok(vec![
        Object::of(&csi_driver(driver))?,
        Object::of(&binding(
            "hamlet:kubelet-api-admin",
            "system:kubelet-api-admin",
            user(pki::spec::KUBELET_CLIENT_USER),
        ))?,
        Object::of(&binding(
            "hamlet:cluster-admins",
            "cluster-admin",
            group(pki::spec::ADMIN_GROUP),
        ))?,
        Object::of(&role("hamlet:node-watch", vec![read(&[""], &["nodes"])]))?,
        Object::of(&binding(
            "hamlet:node-watch",
            "hamlet:node-watch",
            group(pki::spec::NODE_WATCH_GROUP),
        ))?,
    ])
}

/// Binds a cluster role to a group of certificates; both have the role's name.
///
/// # Errors
/// As for [`objects`].
pub fn role_of_group(role: &ClusterRole, group_name: &str) -> Result<[Object; 2], BootstrapError> {
    let name = role.metadata.name.as_deref().unwrap_or_default();
    Ok([Object::of(role)?, Object::of(&binding(name, name, group(group_name)))?])
}

/// Storage rule 12.9. Without `attachRequired: false` the kubelet waits for an attacher that
/// nobody runs.
fn csi_driver(name: &str) -> CSIDriver {
    CSIDriver {
        metadata: named(name),
        spec: CSIDriverSpec {
            attach_required: Some(false),
            pod_info_on_mount: Some(false),
            requires_republish: Some(false),
            volume_lifecycle_modes: Some(vec!["Persistent".to_owned()]),
            fs_group_policy: Some("File".to_owned()),
            // With true the scheduler would look for CSIStorageCapacity objects, which are not
            // published, and no node would fit.
            storage_capacity: Some(false),
            ..CSIDriverSpec::default()
        },
    }
}

fn role(name: &str, rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole { metadata: named(name), rules: Some(rules), ..ClusterRole::default() }
}

fn binding(name: &str, role: &str, subject: Subject) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: named(name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: role.to_owned(),
        },
        subjects: Some(vec![subject]),
    }
}

fn user(name: &str) -> Subject {
    subject("User", name)
}

fn group(name: &str) -> Subject {
    subject("Group", name)
}

fn subject(kind: &str, name: &str) -> Subject {
    Subject {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespace: None,
    }
}

fn read(groups: &[&str], resources: &[&str]) -> PolicyRule {
    let strings = |list: &[&str]| Some(list.iter().map(|s| (*s).to_owned()).collect());
    PolicyRule {
        api_groups: strings(groups),
        resources: strings(resources),
        verbs: vec!["get".to_owned(), "list".to_owned(), "watch".to_owned()],
        ..PolicyRule::default()
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_12_9_the_driver_object_asks_for_no_attacher() {
        let objects = objects("com.nexantic.smalltown.vfs").unwrap();
        insta::assert_json_snapshot!(objects[0].value);
    }

    #[test]
    fn every_object_is_complete_and_named_once() {
        let mut all = objects("d.example").unwrap();
        all.extend(role_of_group(&role("hamlet:x", vec![]), "hamlet:xs").unwrap());
        let mut seen = std::collections::BTreeSet::new();
        for o in &all {
            assert!(!o.name().is_empty());
            assert_eq!(o.value["kind"], o.kind());
            assert!(o.value["apiVersion"].as_str().unwrap().contains('/'));
            assert!(seen.insert((o.kind().to_owned(), o.name().to_owned())), "{o:?}");
        }
    }

    #[test]
    fn nobody_is_bound_to_system_masters_or_to_everyone() {
        for o in objects("d.example").unwrap() {
            let subjects = o.value["subjects"].to_string();
            for wide in ["system:masters", "system:authenticated", "system:unauthenticated"] {
                assert!(!subjects.contains(wide), "{o:?}");
            }
        }
    }
}
