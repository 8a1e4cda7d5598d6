//! Whether and how a claim's volume is made (rules L10, L11, P2–P11, P16, P18, P20, V2).
//!
//! Purpose: turn a claim and its class into the one complete description of the volume, or into the sentence
//! that tells why there will be none and what to do.
//! Invariants: pure; nothing is created for a request that is refused here; the size is exact.
//! It must not know: parameters of a driver (the backend's parser decides about those).

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolumeClaimSpec},
    storage::v1::StorageClass,
};

use super::{ClaimView, Facts, Failure, Source, go_list};
use crate::{
    names::{HOSTNAME_LABEL, RESERVED_PREFIX, volume_name},
    quantity::{Quantity, QuantityError},
};

/// Access modes the API knows; others get P11.
const KNOWN_ACCESS_MODES: [&str; 4] =
    ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
/// Parameters under [`RESERVED_PREFIX`] that are taken off before the driver sees them (G1).
const SECRET_KINDS: [&str; 7] = [
    "provisioner",
    "controller-publish",
    "node-stage",
    "node-publish",
    "controller-expand",
    "node-expand",
    "controller-modify",
];

/// What a decision about a claim's volume needs.
#[derive(Clone, Copy, Debug)]
pub struct CreateInput<'a> {
    /// The claim, as read live.
    pub claim: ClaimView<'a>,
    /// Its class.
    pub class: &'a StorageClass,
    /// The backend.
    pub facts: &'a Facts,
    /// The hostname label of this node, if its Node object is known.
    pub hostname: Option<&'a str>,
}

/// Everything about a volume to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct CreatePlan {
    /// Name of the PV and of the volume (P18).
    pub name: String,
    /// The claim it is for (L10).
    pub claim_ref: ObjectReference,
    /// UID of that claim.
    pub claim_uid: String,
    /// Bytes asked for, rounded up to a whole one.
    pub bytes: u64,
    /// The request as it was written.
    pub request: String,
    /// Parameters of the class for the driver: reserved keys and fstype are taken off.
    pub parameters: BTreeMap<String, String>,
    /// File system asked for.
    pub fs_type: Option<String>,
    /// Mount options of the class.
    pub mount_options: Vec<String>,
    /// Access modes of the claim, in order.
    pub access_modes: Vec<String>,
    /// Volume mode, if the claim names one.
    pub volume_mode: Option<String>,
    /// Reclaim policy of the class; none means Delete.
    pub policy: String,
    /// Name of the class.
    pub class: String,
    /// Labels a node must have to use the volume.
    pub segment: BTreeMap<String, String>,
    /// The driver.
    pub driver: String,
    /// The node that makes it.
    pub node: String,
    /// What it begins with; nothing unless it is set after the decision, when the source was read.
    pub source: Option<Source>,
    /// Whether the PV shows [`CreatePlan::request`] as its capacity (V3).
    pub verbatim_capacity: bool,
}

impl CreatePlan {
    /// Whether a block device is asked for.
    pub fn block(&self) -> bool {
        self.volume_mode.as_deref() == Some("Block")
    }
}

/// Describes the volume of a claim, or says why there is none.
pub fn create(i: &CreateInput<'_>) -> Result<CreatePlan, Failure> {
    let facts = i.facts;
    let claim_ref = claim_ref(i.claim).ok_or_else(|| {
        Failure::no_change("corrupted PVC object, it is missing UID, name or namespace")
    })?;
    let claim_uid = claim_ref.uid.clone().unwrap_or_default();
    let spec = i
        .claim
        .0
        .spec
        .as_ref()
        .ok_or_else(|| Failure::no_change("corrupted PVC object, it has no spec"))?;
    let hostname = i.hostname.ok_or_else(|| {
        Failure::no_change(format!(
            "node check failed: node \"{}\" is not registered or has no label {HOSTNAME_LABEL}; the claim is served as soon as it has",
            facts.node
        ))
    })?;
    check_mode(i.claim, facts)?;
    check_source(i.claim, spec, facts)?;
    check_extras(spec, facts)?;
    if facts.name_prefix.is_empty() {
        return Err(Failure::finished("volume name prefix cannot be of length 0"));
    }
    let (parameters, fs_type) = parameters(i.class, facts)?;
    check_access(i.claim.access_modes(), facts)?;
    let (bytes, request) = size(i.claim)?;
    Ok(CreatePlan {
        name: volume_name(&facts.name_prefix, &claim_uid),
        claim_ref,
        claim_uid,
        bytes,
        request,
        parameters,
        fs_type,
        mount_options: i.class.mount_options.clone().unwrap_or_default(),
        access_modes: i.claim.access_modes().to_vec(),
        volume_mode: i.claim.mode().map(str::to_owned),
        policy: i
            .class
            .reclaim_policy
            .clone()
            .filter(|p| !p.is_empty())
            .unwrap_or_else(|| "Delete".to_owned()),
        class: i.claim.class().unwrap_or_default().to_owned(),
        segment: [(HOSTNAME_LABEL.to_owned(), hostname.to_owned())].into(),
        driver: facts.driver.clone(),
        node: facts.node.clone(),
        source: None,
        verbatim_capacity: facts.verbatim_capacity,
    })
}

/// L10: reference to the claim, if it has all it takes.
pub(crate) fn claim_ref(c: ClaimView<'_>) -> Option<ObjectReference> {
    if c.name().is_empty() || c.namespace().is_empty() {
        return None;
    }
    Some(ObjectReference {
        kind: Some("PersistentVolumeClaim".into()),
        api_version: Some("v1".into()),
        namespace: Some(c.namespace().into()),
        name: Some(c.name().into()),
        uid: Some(c.uid()?.into()),
        resource_version: c.0.metadata.resource_version.clone(),
        ..ObjectReference::default()
    })
}

/// L11, V2: volume mode.
fn check_mode(claim: ClaimView<'_>, facts: &Facts) -> Result<(), Failure> {
    match claim.mode() {
        None | Some("" | "Filesystem") => Ok(()),
        Some("Block") if facts.block => Ok(()),
        Some("Block") => Err(Failure::stop(format!(
            "{} does not support block volume provisioning",
            facts.driver
        ))),
        Some(other) => Err(Failure::infeasible(format!(
            "volume mode {other:?} is not supported; create the claim anew with volumeMode Filesystem"
        ))),
    }
}

/// P4, P6, P7: where the first content comes from.
fn check_source(
    claim: ClaimView<'_>,
    spec: &PersistentVolumeClaimSpec,
    facts: &Facts,
) -> Result<(), Failure> {
    let (group, kind, name) = match (&spec.data_source, &spec.data_source_ref) {
        (Some(s), _) => (s.api_group.as_deref(), s.kind.as_str(), s.name.as_str()),
        (None, Some(s)) if s.namespace.as_deref().is_some_and(|n| !n.is_empty()) => {
            return Err(Failure::finished(
                "dataSourceRef namespace specified but the CrossNamespaceVolumeDataSource feature is disabled",
            ));
        }
        (None, Some(s)) => (s.api_group.as_deref(), s.kind.as_str(), s.name.as_str()),
        (None, None) => return Ok(()),
    };
    if name.is_empty() {
        return Err(Failure::finished(format!(
            "the PVC source not found for PVC {}",
            claim.name()
        )));
    }
    match kind {
        "VolumeSnapshot" => match group.unwrap_or_default() {
            "snapshot.storage.k8s.io" if facts.snapshots => Ok(()),
            "snapshot.storage.k8s.io" => Err(Failure::finished(
                "CSI driver does not support snapshot restore: controller CREATE_DELETE_SNAPSHOT capability is not reported",
            )),
            other => Err(Failure::finished(format!(
                "the PVC source does not belong to the right APIGroup. Expected snapshot.storage.k8s.io, Got {other}"
            ))),
        },
        "PersistentVolumeClaim" if facts.clones => Ok(()),
        "PersistentVolumeClaim" => Err(Failure::finished(
            "CSI driver does not support clone operations: controller CLONE_VOLUME capability is not reported",
        )),
        _ => Err(Failure::ignored("Assuming an external populator will provision the volume")),
    }
}

/// P8, P17, V2: what only other drivers can.
fn check_extras(spec: &PersistentVolumeClaimSpec, facts: &Facts) -> Result<(), Failure> {
    if spec.selector.is_some() {
        return Err(Failure::infeasible(
            "claim Selector is not supported; create the claim anew without spec.selector, or bind it to an existing volume by spec.volumeName",
        ));
    }
    if spec.volume_attributes_class_name.as_deref().is_some_and(|n| !n.is_empty()) && !facts.modify
    {
        return Err(Failure::infeasible(format!(
            "{} does not support VolumeAttributesClass; create the claim anew without spec.volumeAttributesClassName",
            facts.driver
        )));
    }
    Ok(())
}

/// P10, P16, V2: what the driver gets of the class's parameters, and the file system.
fn parameters(
    class: &StorageClass,
    facts: &Facts,
) -> Result<(BTreeMap<String, String>, Option<String>), Failure> {
    let mut fs_type: Option<(&str, &String)> = None;
    let mut rest = BTreeMap::new();
    for (key, value) in class.parameters.iter().flatten() {
        let reserved = key.strip_prefix(RESERVED_PREFIX);
        if reserved == Some("fstype") || (reserved.is_none() && key.eq_ignore_ascii_case("fstype"))
        {
            if fs_type.replace((key, value)).is_some() {
                return Err(Failure::finished(
                    "fstype specified in parameters with both \"fstype\" and \"csi.storage.k8s.io/fstype\" keys",
                ));
            }
        } else if let Some(name) = reserved {
            if !known_reserved(name) {
                return Err(Failure::finished(format!(
                    "failed to strip CSI Parameters of prefixed keys: found unknown parameter key \"{key}\" with reserved namespace {RESERVED_PREFIX}"
                )));
            }
        } else {
            rest.insert(key.clone(), value.clone());
        }
    }
    let fs_type = fs_type.map(|(_, v)| v.clone()).filter(|v| !v.is_empty());
    if let Some(asked) = &fs_type
        && !facts.fs_types.is_empty()
        && !facts.fs_types.contains(&asked.as_str())
    {
        return Err(Failure::infeasible(format!(
            "file system {asked:?} is not supported; use one of {} in the class, or leave it out",
            go_list(facts.fs_types)
        )));
    }
    Ok((rest, fs_type))
}

/// G1: reserved parameters that are known.
fn known_reserved(name: &str) -> bool {
    let Some(kind) =
        name.strip_suffix("secret-name").or_else(|| name.strip_suffix("secret-namespace"))
    else {
        return false;
    };
    kind.is_empty() || SECRET_KINDS.iter().any(|k| kind.strip_suffix('-') == Some(*k))
}

/// P11, V2: access modes.
fn check_access(modes: &[String], facts: &Facts) -> Result<(), Failure> {
    let known = |m: &String| KNOWN_ACCESS_MODES.contains(&m.as_str());
    if modes.is_empty() || !modes.iter().all(known) {
        return Err(Failure::infeasible(format!(
            "unsupported AccessMode combination: {}; create the claim anew with one of {}",
            go_list(modes),
            go_list(facts.access_modes)
        )));
    }
    if let Some(mode) = modes.iter().find(|m| !facts.access_modes.contains(&m.as_str())) {
        return Err(Failure::infeasible(format!(
            "access mode {mode} is not supported, a volume of {} is used on one node; create the claim anew with one of {}",
            facts.driver,
            go_list(facts.access_modes)
        )));
    }
    Ok(())
}

/// P20, V2: the size in bytes, and as written.
fn size(claim: ClaimView<'_>) -> Result<(u64, String), Failure> {
    let nothing = || {
        Failure::infeasible(
            "PVC is not requesting any storage, this is not supported; create the claim anew with spec.resources.requests.storage above 0",
        )
    };
    let too_much = || {
        Failure::infeasible(
            "PVC requesting more than 2^63 bytes of storage, this is not supported; create the claim anew with a smaller request",
        )
    };
    let text = claim.request().ok_or_else(nothing)?;
    let bytes = match text.parse::<Quantity>() {
        Ok(q) => q.value(),
        Err(QuantityError::OutOfRange { negative: true }) => return Err(nothing()),
        Err(QuantityError::OutOfRange { negative: false }) => return Err(too_much()),
        Err(e @ QuantityError::Malformed(_)) => return Err(Failure::infeasible(e.to_string())),
    };
    if bytes <= 0 {
        return Err(nothing());
    }
    // Binary suffixes are capped at 2⁶³−1 by the API server already: 16Ei arrives as exactly that.
    if bytes >= i128::from(i64::MAX) {
        return Err(too_much());
    }
    u64::try_from(bytes).map(|b| (b, text.to_owned())).map_err(|_| too_much())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{PersistentVolumeClaim, TypedLocalObjectReference, TypedObjectReference},
        apimachinery::pkg::apis::meta::v1::LabelSelector,
    };
    use k8s_testkit::{mk_class, mk_pvc};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        names::DEFAULT_DRIVER,
        plan::{Kind, State},
        testing::facts,
    };

    fn pvc() -> PersistentVolumeClaim {
        mk_pvc("ns", "c")
            .uid("u")
            .class("fast")
            .request("64Mi")
            .access("ReadWriteOnce")
            .selected_node("n1")
            .build()
    }

    fn class() -> StorageClass {
        mk_class("fast", DEFAULT_DRIVER).build()
    }

    fn plan(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<CreatePlan, Failure> {
        create(&CreateInput {
            claim: ClaimView(claim),
            class,
            facts: &facts(),
            hostname: Some("host-1"),
        })
    }

    fn spec(change: impl FnOnce(&mut PersistentVolumeClaimSpec)) -> PersistentVolumeClaim {
        let mut c = pvc();
        change(c.spec.get_or_insert_default());
        c
    }

    fn params(pairs: &[(&str, &str)]) -> StorageClass {
        let mut c = class();
        c.parameters =
            Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        c
    }

    #[test]
    fn a_plain_claim_is_planned_completely() {
        let mut class = params(&[("inodes", "auto"), ("csi.storage.k8s.io/fstype", "xfs")]);
        class.mount_options = Some(vec!["noatime".into()]);
        class.reclaim_policy = Some("Retain".into());
        let p = plan(&pvc(), &class).unwrap();
        assert_eq!(p.name, "pvc-u");
        assert_eq!((p.bytes, p.request.as_str()), (64 << 20, "64Mi"));
        assert_eq!(p.parameters, [("inodes".to_owned(), "auto".to_owned())].into());
        assert_eq!(p.fs_type.as_deref(), Some("xfs"));
        assert_eq!(p.mount_options, ["noatime"]);
        assert_eq!(p.policy, "Retain");
        assert_eq!(p.segment, [(HOSTNAME_LABEL.to_owned(), "host-1".to_owned())].into());
        assert_eq!(p.claim_ref.uid.as_deref(), Some("u"));
        assert_eq!(p.claim_ref.kind.as_deref(), Some("PersistentVolumeClaim"));
    }

    #[test]
    fn v2_a_missing_reclaim_policy_means_delete() {
        let mut c = class();
        c.reclaim_policy = None;
        assert_eq!(plan(&pvc(), &c).unwrap().policy, "Delete");
    }

    #[test]
    fn v2_absurd_sizes_are_refused_with_the_words_of_the_field() {
        let none = "PVC is not requesting any storage, this is not supported";
        let much = "PVC requesting more than 2^63 bytes of storage, this is not supported";
        for (size, text) in [
            ("0", none),
            ("-1", none),
            ("-1e40", none),
            ("16Ei", much),
            ("8Ei", much),
            ("9223372036854775807", much),
            ("9223372036854775808", much),
            ("1e40", much),
            ("garbage", "is not a quantity"),
        ] {
            let f = plan(
                &mk_pvc("ns", "c")
                    .uid("u")
                    .class("fast")
                    .request(size)
                    .access("ReadWriteOnce")
                    .build(),
                &class(),
            )
            .unwrap_err();
            assert!(f.text.contains(text), "{size}: {f}");
            assert!(
                f.infeasible && f.kind == Kind::Error && f.state == State::Finished,
                "{size}: {f:?}"
            );
        }
        let f = plan(&spec(|s| s.resources = None), &class()).unwrap_err();
        assert!(f.text.starts_with(none), "{f}");
    }

    #[test]
    fn p20_sizes_are_rounded_up_to_bytes_and_kept_as_written() {
        for (size, bytes) in [("100m", 1), ("1.5Gi", 1_610_612_736), ("1e3", 1000), ("1", 1)] {
            let c = mk_pvc("ns", "c")
                .uid("u")
                .class("fast")
                .request(size)
                .access("ReadWriteOnce")
                .build();
            let p = plan(&c, &class()).unwrap();
            assert_eq!((p.bytes, p.request.as_str()), (bytes, size));
        }
    }

    #[test]
    fn p11_v2_access_modes_a_node_local_volume_cannot_have_are_refused() {
        for (modes, text) in [
            (vec!["ReadWriteMany"], "access mode ReadWriteMany is not supported"),
            (vec!["ReadWriteOnce", "ReadOnlyMany"], "access mode ReadOnlyMany is not supported"),
            (vec!["Sideways"], "unsupported AccessMode combination: [Sideways]"),
            (vec![], "unsupported AccessMode combination: []"),
        ] {
            let c =
                spec(|s| s.access_modes = Some(modes.iter().map(|m| (*m).to_owned()).collect()));
            let f = plan(&c, &class()).unwrap_err();
            assert!(f.text.starts_with(text) && f.infeasible, "{f:?}");
        }
        assert!(
            plan(&spec(|s| s.access_modes = Some(vec!["ReadWriteOncePod".into()])), &class())
                .is_ok()
        );
    }

    #[test]
    fn l11_block_volumes_are_refused_once_and_not_retried() {
        let f = plan(&spec(|s| s.volume_mode = Some("Block".into())), &class()).unwrap_err();
        assert_eq!(f.text, format!("{DEFAULT_DRIVER} does not support block volume provisioning"));
        assert_eq!((f.kind, f.state), (Kind::Stop, State::Finished));
    }

    #[test]
    fn v2_odd_volume_modes_selectors_and_attribute_classes_are_refused() {
        for c in [
            spec(|s| s.volume_mode = Some("Tape".into())),
            spec(|s| s.selector = Some(LabelSelector::default())),
            spec(|s| s.volume_attributes_class_name = Some("gold".into())),
        ] {
            assert!(plan(&c, &class()).unwrap_err().infeasible);
        }
        let f = plan(&spec(|s| s.selector = Some(LabelSelector::default())), &class()).unwrap_err();
        assert!(f.text.starts_with("claim Selector is not supported"));
    }

    #[test]
    fn p10_p16_v2_file_systems_and_reserved_parameters() {
        let both = params(&[("fstype", "xfs"), ("csi.storage.k8s.io/fstype", "xfs")]);
        assert!(
            plan(&pvc(), &both)
                .unwrap_err()
                .text
                .starts_with("fstype specified in parameters with both")
        );
        let f = plan(&pvc(), &params(&[("csi.storage.k8s.io/fstype", "ext4")])).unwrap_err();
        assert!(f.infeasible && f.text.contains("\"ext4\""), "{f:?}");
        let f = plan(&pvc(), &params(&[("csi.storage.k8s.io/odd", "1")])).unwrap_err();
        assert!(f.text.contains("found unknown parameter key \"csi.storage.k8s.io/odd\""), "{f}");
        let p = plan(
            &pvc(),
            &params(&[("csi.storage.k8s.io/node-stage-secret-name", "s"), ("FSType", "xfs")]),
        )
        .unwrap();
        assert!(p.parameters.is_empty());
        assert!(plan(&pvc(), &params(&[("csi.storage.k8s.io/evil-secret-name", "s")])).is_err());
    }

    #[test]
    fn p4_p6_p7_sources_are_answered_in_the_words_of_the_field() {
        let source = |group: &str, kind: &str, name: &str| {
            spec(|s| {
                s.data_source = Some(TypedLocalObjectReference {
                    api_group: Some(group.into()),
                    kind: kind.into(),
                    name: name.into(),
                });
            })
        };
        let text = |c: PersistentVolumeClaim| plan(&c, &class()).unwrap_err();
        assert!(
            text(source("snapshot.storage.k8s.io", "VolumeSnapshot", "s"))
                .text
                .contains("CREATE_DELETE_SNAPSHOT")
        );
        assert!(text(source("x", "VolumeSnapshot", "s")).text.ends_with("Got x"));
        assert!(text(source("", "PersistentVolumeClaim", "s")).text.contains("CLONE_VOLUME"));
        assert_eq!(
            text(source("", "PersistentVolumeClaim", "")).text,
            "the PVC source not found for PVC c"
        );
        assert_eq!(text(source("g", "Populator", "s")).kind, Kind::Ignored);
        let across = spec(|s| {
            s.data_source_ref = Some(TypedObjectReference {
                namespace: Some("other".into()),
                kind: "PersistentVolumeClaim".into(),
                name: "s".into(),
                ..TypedObjectReference::default()
            });
        });
        assert!(text(across).text.starts_with("dataSourceRef namespace specified"));
    }

    #[test]
    fn l10_p2_p9_incomplete_objects_are_refused_without_learning_anything() {
        let mut c = pvc();
        c.metadata.uid = None;
        assert_eq!(plan(&c, &class()).unwrap_err().state, State::NoChange);
        let f = create(&CreateInput {
            claim: ClaimView(&pvc()),
            class: &class(),
            facts: &facts(),
            hostname: None,
        })
        .unwrap_err();
        assert!(f.text.starts_with("node check failed") && f.state == State::NoChange, "{f:?}");
        assert!(plan(&PersistentVolumeClaim::default(), &StorageClass::default()).is_err());
    }

    proptest! {
        #[test]
        fn v2_every_planned_size_is_positive_and_below_two_to_the_63(text in "[-+]?[0-9]{0,22}(\\.[0-9]{0,4})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]{1,2})?") {
            let c = mk_pvc("ns", "c").uid("u").class("fast").request(&text).access("ReadWriteOnce").build();
            if let Ok(p) = plan(&c, &class()) {
                prop_assert!(p.bytes > 0 && p.bytes < i64::MAX as u64);
                prop_assert_eq!(p.request, text);
            }
        }
    }
}
