//! From Controller requests to typed values, and page tokens. Pure: no I/O, no engine.
//!
//! Invariants: whatever a message contains, what comes out is safe to hand to the engine;
//! what does not is an error that names the field. A token names the last id that was told,
//! so a page begins at the right place even when that object is gone.

use std::collections::BTreeMap;

use csi_proto::csi;
use csi_proto::csi::volume_capability::AccessType;
use csi_proto::csi::volume_content_source::Type as Source;
use volumes::{
    AccessMode, CapacityRange, Consistency, ContentSource, CreateSnapshot, CreateVolume, OwnerTag,
    ParamError, Params, VolumeId, VolumeKind, parse_params,
};

use crate::publish::{RangeError, RequestError, capability, capacity_range};

/// What a page token begins with: an id alone could be taken for one by accident.
const TOKEN: &str = "after:";
/// The one filesystem of directory volumes.
const FS_TYPE: &str = "xfs";

/// Why a volume or a snapshot cannot be made as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MakeError {
    /// A field is missing or no good.
    #[error(transparent)]
    Request(RequestError),
    /// A parameter is.
    #[error("invalid parameters")]
    Params(#[source] ParamError),
    /// The sizes make no sense.
    #[error(transparent)]
    Range(RangeError),
    /// What is asked for cannot be had on one node, or not together.
    #[error("unsupported volume capability: {0}")]
    Capability(String),
    /// Changing parameters later is not offered, so none can be given.
    #[error("mutable_parameters are not supported (MODIFY_VOLUME is not advertised)")]
    Mutable,
    /// No place that is asked for is this node.
    #[error("accessibility_requirements exclude this node ({0})")]
    Topology(String),
}

/// A page that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Only what comes after this id.
    pub after: Option<String>,
    /// At most so many; absent = all.
    pub max: Option<usize>,
}

/// Why there is no such page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Not a token this driver gave out.
    #[error("invalid starting_token")]
    Token,
    /// Fewer than none.
    #[error("max_entries is negative")]
    Negative,
}

/// What the driver knows of its place: the one topology segment.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Topology key.
    pub key: &'a str,
    /// Topology value.
    pub value: &'a str,
}

impl Place<'_> {
    /// The segment as an answer.
    pub fn topology(&self) -> csi::Topology {
        csi::Topology { segments: [(self.key.to_owned(), self.value.to_owned())].into() }
    }

    /// Whether this node is in `t`: every segment of it is one of ours.
    pub fn is_in(&self, t: &csi::Topology) -> bool {
        t.segments.iter().all(|(k, v)| k == self.key && v == self.value)
    }
}

/// Checks CreateVolume.
pub fn create_volume(
    r: &csi::CreateVolumeRequest,
    place: Place<'_>,
) -> Result<CreateVolume, MakeError> {
    if r.name.is_empty() {
        return Err(MakeError::Request(RequestError::Missing("name")));
    }
    let kind = kind(&r.volume_capabilities)?;
    let params = params(&r.parameters)?;
    if !r.mutable_parameters.is_empty() {
        return Err(MakeError::Mutable);
    }
    let capacity = capacity_range(r.capacity_range.as_ref()).map_err(MakeError::Range)?;
    let source = source(r.volume_content_source.as_ref())?;
    let requisite = r.accessibility_requirements.as_ref().map_or(&[][..], |t| &t.requisite);
    if !requisite.is_empty() && !requisite.iter().any(|t| place.is_in(t)) {
        return Err(MakeError::Topology(place.value.to_owned()));
    }
    // Who asks is not known to this service: sidecars keep their own books.
    let owner = OwnerTag::none();
    Ok(CreateVolume { name: r.name.clone(), kind, capacity, params, source, owner })
}

/// Checks StorageClass parameters.
pub fn params(given: &std::collections::HashMap<String, String>) -> Result<Params, MakeError> {
    let sorted: BTreeMap<String, String> =
        given.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    parse_params(&sorted).map_err(MakeError::Params)
}

/// The kind that satisfies all `capabilities`, of which there must be at least one.
pub fn kind(capabilities: &[csi::VolumeCapability]) -> Result<VolumeKind, MakeError> {
    let mut kind = None;
    for c in capabilities {
        let found = supported(c)?;
        if kind.is_some_and(|k| k != found) {
            let why = "one volume cannot be both mount and block".to_owned();
            return Err(MakeError::Capability(why));
        }
        kind = Some(found);
    }
    kind.ok_or(MakeError::Request(RequestError::Missing("volume_capabilities")))
}

fn supported(c: &csi::VolumeCapability) -> Result<VolumeKind, MakeError> {
    let parsed = capability(Some(c)).map_err(MakeError::Request)?;
    if parsed.access == AccessMode::MultiNode {
        let why = "a node-local volume cannot be used from several nodes".to_owned();
        return Err(MakeError::Capability(why));
    }
    match &c.access_type {
        Some(AccessType::Mount(m)) if !m.fs_type.is_empty() && m.fs_type != FS_TYPE => {
            let shown: String = m.fs_type.chars().take(32).collect();
            Err(MakeError::Capability(format!("fs_type {shown:?}; it is {FS_TYPE}")))
        }
        _ => Ok(parsed.kind),
    }
}

fn source(s: Option<&csi::VolumeContentSource>) -> Result<Option<ContentSource>, MakeError> {
    let missing = |field| Err(MakeError::Request(RequestError::Missing(field)));
    match s.map(|s| &s.r#type) {
        None => Ok(None),
        Some(None) => missing("volume_content_source.type"),
        Some(Some(Source::Snapshot(s))) if s.snapshot_id.is_empty() => missing("snapshot_id"),
        Some(Some(Source::Volume(v))) if v.volume_id.is_empty() => missing("source volume_id"),
        Some(Some(Source::Snapshot(s))) => Ok(Some(ContentSource::Snapshot(s.snapshot_id.clone()))),
        Some(Some(Source::Volume(v))) => Ok(Some(ContentSource::Volume(v.volume_id.clone()))),
    }
}

/// Checks CreateSnapshot. `None`: the source cannot exist, its id is none of ours.
pub fn create_snapshot(
    r: &csi::CreateSnapshotRequest,
) -> Result<Option<CreateSnapshot>, MakeError> {
    let missing = |field| Err(MakeError::Request(RequestError::Missing(field)));
    if r.source_volume_id.is_empty() {
        return missing("source_volume_id");
    }
    if r.name.is_empty() {
        return missing("name");
    }
    let consistency = consistency(&r.parameters)?;
    let Ok(source) = VolumeId::parse(&r.source_volume_id) else { return Ok(None) };
    Ok(Some(CreateSnapshot { name: r.name.clone(), source, consistency }))
}

/// The only key of a VolumeSnapshotClass is `consistency` (rule 5.4).
fn consistency(
    given: &std::collections::HashMap<String, String>,
) -> Result<Consistency, MakeError> {
    let parsed = params(given)?;
    let foreign = |k: &&String| k.as_str() != "consistency" && !k.contains('/');
    match given.keys().find(foreign) {
        Some(key) => Err(MakeError::Params(ParamError::Unknown(key.clone()))),
        None => Ok(parsed.consistency),
    }
}

/// Checks the range of an expansion, which must be given.
pub fn expand_range(r: Option<&csi::CapacityRange>) -> Result<CapacityRange, MakeError> {
    match r {
        None => Err(MakeError::Request(RequestError::Missing("capacity_range"))),
        given => capacity_range(given).map_err(MakeError::Range),
    }
}

/// Checks the two fields of a list.
pub fn page(max_entries: i32, starting_token: &str) -> Result<Page, PageError> {
    let max = match usize::try_from(max_entries) {
        Err(_) => return Err(PageError::Negative),
        Ok(0) => None,
        Ok(n) => Some(n),
    };
    let after = match starting_token {
        "" => None,
        token => {
            let id = token.strip_prefix(TOKEN).ok_or(PageError::Token)?;
            VolumeId::parse(id).map_err(|_| PageError::Token)?;
            Some(id.to_owned())
        }
    };
    Ok(Page { after, max })
}

/// The token of the page after `last`.
pub fn token(last: &str) -> String {
    format!("{TOKEN}{last}")
}

#[cfg(test)]
mod tests {
    use csi_proto::csi::volume_capability::access_mode::Mode;
    use csi_proto::csi::volume_capability::{AccessMode as Access, BlockVolume, MountVolume};

    use super::*;

    const PLACE: Place<'static> = Place { key: "host", value: "n0" };

    fn cap(access_type: AccessType, mode: Mode) -> csi::VolumeCapability {
        csi::VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(Access { mode: mode.into() }),
        }
    }

    fn mount(fs_type: &str) -> AccessType {
        AccessType::Mount(MountVolume { fs_type: fs_type.into(), ..Default::default() })
    }

    fn request() -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            name: "pvc-1".into(),
            volume_capabilities: vec![cap(mount("xfs"), Mode::SingleNodeWriter)],
            ..Default::default()
        }
    }

    fn segment(key: &str, value: &str) -> csi::Topology {
        csi::Topology { segments: [(key.to_owned(), value.to_owned())].into() }
    }

    #[test]
    fn c12_5_a_create_is_typed_and_what_cannot_be_had_is_named() {
        let made = create_volume(&request(), PLACE).expect("valid");
        assert_eq!((made.name.as_str(), made.kind), ("pvc-1", VolumeKind::Filesystem));
        let with = |caps: Vec<csi::VolumeCapability>| {
            create_volume(
                &csi::CreateVolumeRequest { volume_capabilities: caps, ..request() },
                PLACE,
            )
        };
        let block = cap(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter);
        assert_eq!(with(vec![block.clone()]).expect("block").kind, VolumeKind::Block);
        for (caps, word) in [
            (vec![], "volume_capabilities is missing"),
            (vec![block, cap(mount(""), Mode::SingleNodeWriter)], "both"),
            (vec![cap(mount("ext4"), Mode::SingleNodeWriter)], "ext4"),
            (vec![cap(mount(""), Mode::MultiNodeMultiWriter)], "several nodes"),
            (vec![cap(mount(""), Mode::Unknown)], "access mode"),
            (vec![csi::VolumeCapability::default()], "access_mode is missing"),
        ] {
            let e = with(caps).expect_err(word).to_string();
            assert!(e.contains(word), "{e}");
        }
        let unnamed = csi::CreateVolumeRequest { name: String::new(), ..request() };
        assert!(create_volume(&unnamed, PLACE).is_err());
        let mutable_parameters = [("inodes".to_owned(), "1".to_owned())].into();
        let mutable = csi::CreateVolumeRequest { mutable_parameters, ..request() };
        assert_eq!(create_volume(&mutable, PLACE), Err(MakeError::Mutable));
        let parameters = [("speed".to_owned(), "fast".to_owned())].into();
        let unknown = csi::CreateVolumeRequest { parameters, ..request() };
        assert!(matches!(create_volume(&unknown, PLACE), Err(MakeError::Params(_))));
    }

    #[test]
    fn c12_3_a_requisite_topology_must_have_this_node_in_it() {
        let with = |requisite: Vec<csi::Topology>| {
            let needs = csi::TopologyRequirement { requisite, preferred: vec![] };
            let r =
                csi::CreateVolumeRequest { accessibility_requirements: Some(needs), ..request() };
            create_volume(&r, PLACE).map(drop)
        };
        assert_eq!(with(vec![]), Ok(()));
        assert_eq!(with(vec![segment("host", "n1"), segment("host", "n0")]), Ok(()));
        let elsewhere = Err(MakeError::Topology("n0".into()));
        assert_eq!(with(vec![segment("host", "n1")]), elsewhere);
        assert_eq!(with(vec![segment("zone", "n0")]), elsewhere);
    }

    #[test]
    fn c10_5_a_content_source_names_what_it_is() {
        let with = |t: Option<Source>| {
            let s = Some(csi::VolumeContentSource { r#type: t });
            let r = csi::CreateVolumeRequest { volume_content_source: s, ..request() };
            create_volume(&r, PLACE).map(|c| c.source)
        };
        let snapshot = |id: &str| {
            Some(Source::Snapshot(csi::volume_content_source::SnapshotSource {
                snapshot_id: id.into(),
            }))
        };
        assert_eq!(with(snapshot("s1")), Ok(Some(ContentSource::Snapshot("s1".into()))));
        assert!(with(snapshot("")).is_err() && with(None).is_err());
    }

    #[test]
    fn c5_4_a_snapshot_class_knows_consistency_only() {
        let with = |key: &str, value: &str, source: &str| {
            create_snapshot(&csi::CreateSnapshotRequest {
                source_volume_id: source.into(),
                name: "s".into(),
                parameters: [(key.to_owned(), value.to_owned())].into(),
                ..Default::default()
            })
        };
        let made = with("consistency", "require", "pvc-1").expect("valid").expect("an id");
        assert_eq!(made.consistency, Consistency::Require);
        assert!(with("csi.storage.k8s.io/volumesnapshot/name", "x", "pvc-1").is_ok());
        assert!(with("inodes", "auto", "pvc-1").is_err());
        assert_eq!(with("consistency", "require", "../x"), Ok(None));
        assert!(with("consistency", "require", "").is_err());
    }

    #[test]
    fn c12_5_a_token_is_only_one_that_was_given_out() {
        let after = |t: &str| page(0, t).map(|p| p.after);
        assert_eq!(after(""), Ok(None));
        assert_eq!(after(&token("pvc-1")), Ok(Some("pvc-1".into())));
        for bad in ["invalid-token", "pvc-1", "after:", "after:../x", "after:@pvc"] {
            assert_eq!(after(bad), Err(PageError::Token), "{bad}");
        }
        assert_eq!(page(-1, ""), Err(PageError::Negative));
        assert_eq!(page(3, "").map(|p| p.max), Ok(Some(3)));
    }
}
