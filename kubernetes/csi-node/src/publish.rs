//! From requests to typed values. Pure: no I/O, no clock, no engine.
//!
//! Invariant: what comes out is safe to hand to the engine: ids follow the grammar, paths
//! are absolute, plain and not the root. What does not is a [`RequestError`] naming the
//! field; nothing is guessed and nothing panics, whatever a message contains.
//!
//! `fs_type`, secrets, volume_context and staging path are ignored on purpose: volumes of
//! earlier releases carry values there that no longer mean anything.

use std::path::{Component, Path, PathBuf};

use csi_proto::csi;
use csi_proto::csi::volume_capability::AccessType;
use csi_proto::csi::volume_capability::access_mode::Mode;
use volumes::{
    AccessMode, Bytes, CapacityRange, FlagError, MountAttr, Publish, Unpublish, VolumeId,
    VolumeIdError, VolumeKind,
};

/// Longest path the kernel takes, without the terminating NUL (PATH_MAX − 1).
const PATH_MAX: usize = 4095;

/// Why a request cannot be acted on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A required field is empty.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The id is none of ours.
    #[error("invalid volume_id")]
    VolumeId(#[source] VolumeIdError),
    /// The path cannot be a target.
    #[error("invalid {field}: {reason}")]
    Path {
        /// Which field.
        field: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// A number this release does not know, or UNKNOWN.
    #[error("unknown access mode {0}")]
    AccessMode(i32),
    /// A mount option outside the allowed ones.
    #[error("invalid mount_flags")]
    MountFlags(#[source] FlagError),
    /// Asked for without the capability.
    #[error("volume_mount_group is not supported (VOLUME_MOUNT_GROUP is not advertised)")]
    MountGroup,
}

/// Why a capacity range makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// A bound below zero.
    #[error("capacity_range has a negative bound")]
    Negative,
    /// Nothing lies between the bounds.
    #[error("capacity_range: required {required} exceeds limit {limit}")]
    Empty {
        /// Lower bound in bytes.
        required: i64,
        /// Upper bound in bytes.
        limit: i64,
    },
}

/// What a volume is asked to be used as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Directory or device.
    pub kind: VolumeKind,
    /// Flags of the mount; read-only is not among them.
    pub attr: MountAttr,
    /// Who else may use it.
    pub access: AccessMode,
}

/// Checks NodePublishVolume.
pub fn publish_request(r: &csi::NodePublishVolumeRequest) -> Result<Publish, RequestError> {
    let id = volume_id(&r.volume_id)?;
    let target = target_path("target_path", &r.target_path)?;
    let capability = capability(r.volume_capability.as_ref())?;
    let read_only = r.readonly || capability.access == AccessMode::ReaderOnly;
    let Capability { kind, attr, access } = capability;
    Ok(Publish { id, target, kind, attr, read_only, access })
}

/// Checks NodeUnpublishVolume.
pub fn unpublish_request(r: &csi::NodeUnpublishVolumeRequest) -> Result<Unpublish, RequestError> {
    let id = volume_id(&r.volume_id)?;
    let target = target_path("target_path", &r.target_path)?;
    Ok(Unpublish { id, target })
}

/// Checks the id and that a path is given, for calls about a volume at a path. The path is
/// `None` if nothing can ever be mounted there, which to these calls is "not found"
/// (csi-sanity sends a relative one).
pub fn volume_at(id: &str, path: &str) -> Result<(VolumeId, Option<PathBuf>), RequestError> {
    let id = volume_id(id)?;
    if path.is_empty() {
        return Err(RequestError::Missing("volume_path"));
    }
    Ok((id, target_path("volume_path", path).ok()))
}

/// Checks an id.
pub fn volume_id(text: &str) -> Result<VolumeId, RequestError> {
    if text.is_empty() {
        return Err(RequestError::Missing("volume_id"));
    }
    VolumeId::parse(text).map_err(RequestError::VolumeId)
}

/// Checks a target path and takes `.` and doubled slashes out of it, so that it can be
/// compared with the mount table. Where it must not lie is for the engine to know.
pub fn target_path(field: &'static str, text: &str) -> Result<PathBuf, RequestError> {
    let bad = |reason| Err(RequestError::Path { field, reason });
    if text.is_empty() {
        return Err(RequestError::Missing(field));
    }
    if text.len() > PATH_MAX {
        return bad("longer than 4095 bytes");
    }
    if text.contains('\0') {
        return bad("contains a NUL");
    }
    let path = Path::new(text);
    if !path.is_absolute() {
        return bad("not absolute");
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return bad("contains `..`");
    }
    let plain: PathBuf = path.components().collect();
    if plain.parent().is_none() {
        return bad("is the root");
    }
    Ok(plain)
}

/// Checks a capability.
pub fn capability(c: Option<&csi::VolumeCapability>) -> Result<Capability, RequestError> {
    let c = c.ok_or(RequestError::Missing("volume_capability"))?;
    let access = access_mode(c.access_mode.as_ref())?;
    let (kind, flags) = match &c.access_type {
        None => return Err(RequestError::Missing("volume_capability.access_type")),
        Some(AccessType::Block(csi::volume_capability::BlockVolume {})) => {
            (VolumeKind::Block, [].as_slice())
        }
        Some(AccessType::Mount(mount)) => {
            if !mount.volume_mount_group.is_empty() {
                return Err(RequestError::MountGroup);
            }
            (VolumeKind::Filesystem, mount.mount_flags.as_slice())
        }
    };
    let attr = volumes::parse_mount_flags(flags).map_err(RequestError::MountFlags)?;
    Ok(Capability { kind, attr, access })
}

fn access_mode(
    mode: Option<&csi::volume_capability::AccessMode>,
) -> Result<AccessMode, RequestError> {
    let number = mode.ok_or(RequestError::Missing("volume_capability.access_mode"))?.mode;
    match Mode::try_from(number) {
        Err(_) | Ok(Mode::Unknown) => Err(RequestError::AccessMode(number)),
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::ReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => Ok(AccessMode::SingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => Ok(AccessMode::MultiWriter),
        Ok(
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter,
        ) => Ok(AccessMode::MultiNode),
    }
}

/// Checks a capacity range; 0 and an absent range mean "no bound" (CSI).
pub fn capacity_range(r: Option<&csi::CapacityRange>) -> Result<CapacityRange, RangeError> {
    let Some(&csi::CapacityRange { required_bytes, limit_bytes }) = r else {
        return Ok(CapacityRange::default());
    };
    if limit_bytes > 0 && required_bytes > limit_bytes {
        return Err(RangeError::Empty { required: required_bytes, limit: limit_bytes });
    }
    let bound = |bytes: i64| match u64::try_from(bytes) {
        Err(_) => Err(RangeError::Negative),
        Ok(0) => Ok(None),
        Ok(n) => Ok(Some(Bytes(n))),
    };
    Ok(CapacityRange { required: bound(required_bytes)?, limit: bound(limit_bytes)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(flags: &[&str], mode: i32) -> csi::VolumeCapability {
        csi::VolumeCapability {
            access_type: Some(AccessType::Mount(csi::volume_capability::MountVolume {
                fs_type: "ext4".into(),
                mount_flags: flags.iter().map(|f| (*f).to_owned()).collect(),
                volume_mount_group: String::new(),
            })),
            access_mode: Some(csi::volume_capability::AccessMode { mode }),
        }
    }

    fn request() -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            volume_id: "pvc-1".into(),
            target_path: "/pods/1/mount".into(),
            staging_target_path: "../ignored".into(),
            volume_capability: Some(mount(&[], Mode::SingleNodeWriter.into())),
            volume_context: [("storage".to_owned(), "old".to_owned())].into(),
            secrets: [("key".to_owned(), "value".to_owned())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn c12_5_a_publish_takes_what_matters_and_ignores_what_old_volumes_carry() {
        let parsed = publish_request(&request()).expect("valid");
        assert_eq!(parsed.id.as_str(), "pvc-1");
        assert_eq!(parsed.target, Path::new("/pods/1/mount"));
        assert_eq!(parsed.kind, VolumeKind::Filesystem);
        assert_eq!(parsed.access, AccessMode::SingleNodeWriter);
        assert!(!parsed.read_only && parsed.attr.nosuid && parsed.attr.nodev);
    }

    #[test]
    fn c5_3_readonly_and_reader_only_both_mount_read_only() {
        let mut r = request();
        r.readonly = true;
        assert!(publish_request(&r).expect("valid").read_only);
        let mut r = request();
        r.volume_capability = Some(mount(&[], Mode::SingleNodeReaderOnly.into()));
        assert!(publish_request(&r).expect("valid").read_only);
    }

    #[test]
    fn c12_5_each_missing_field_is_named() {
        type Clear = fn(&mut csi::NodePublishVolumeRequest);
        let cases: [(&str, Clear); 5] = [
            ("volume_id", |r| r.volume_id.clear()),
            ("target_path", |r| r.target_path.clear()),
            ("volume_capability", |r| r.volume_capability = None),
            ("volume_capability.access_type", |r| {
                r.volume_capability.as_mut().expect("set").access_type = None;
            }),
            ("volume_capability.access_mode", |r| {
                r.volume_capability.as_mut().expect("set").access_mode = None;
            }),
        ];
        for (field, clear) in cases {
            let mut r = request();
            clear(&mut r);
            assert_eq!(publish_request(&r), Err(RequestError::Missing(field)));
        }
        assert!(publish_request(&csi::NodePublishVolumeRequest::default()).is_err());
    }

    #[test]
    fn c11_1_a_target_is_absolute_plain_and_not_the_root() {
        let long = format!("/{}", "a".repeat(4095));
        for bad in
            ["a/b", ".", "..", "/a/../b", "/..", "/", "//", "/.", "/a\0b", "\n", long.as_str()]
        {
            assert!(target_path("target_path", bad).is_err(), "{bad:?}");
        }
        let longest = format!("/{}", "a".repeat(4094));
        for (text, plain) in [
            ("/a", "/a"),
            ("//a//./b/", "/a/b"),
            ("/a\nb", "/a\nb"),
            ("/..a/b..", "/..a/b.."),
            (longest.as_str(), longest.as_str()),
        ] {
            let parsed = target_path("target_path", text).expect(text);
            // Compared as bytes: `Path` equality itself overlooks `.` and doubled slashes.
            assert_eq!(parsed.as_os_str(), plain, "{text:?}");
        }
    }

    #[test]
    fn c12_5_a_relative_volume_path_is_nowhere_and_not_a_bad_request() {
        let (_, at) = volume_at("pvc-1", "some/path").expect("valid");
        assert_eq!(at, None);
        assert_eq!(volume_at("pvc-1", ""), Err(RequestError::Missing("volume_path")));
        assert_eq!(volume_at("", "some/path"), Err(RequestError::Missing("volume_id")));
    }

    #[test]
    fn c11_3_every_access_mode_of_csi_has_a_meaning_and_others_are_refused() {
        let parse = |mode: i32| capability(Some(&mount(&[], mode))).map(|c| c.access);
        assert_eq!(parse(1), Ok(AccessMode::SingleNodeWriter));
        assert_eq!(parse(2), Ok(AccessMode::ReaderOnly));
        for multi_node in [3, 4, 5] {
            assert_eq!(parse(multi_node), Ok(AccessMode::MultiNode));
        }
        assert_eq!(parse(6), Ok(AccessMode::SingleWriter));
        assert_eq!(parse(7), Ok(AccessMode::MultiWriter));
        for unknown in [0, 8, -1, i32::MAX] {
            assert_eq!(parse(unknown), Err(RequestError::AccessMode(unknown)));
        }
    }

    #[test]
    fn c5_3_mount_flags_go_through_the_one_parser() {
        let writer = Mode::SingleNodeWriter.into();
        let parsed = capability(Some(&mount(&["noexec", "suid"], writer))).expect("valid");
        assert!(parsed.attr.noexec && !parsed.attr.nosuid);
        let refused = capability(Some(&mount(&["ro"], writer)));
        assert_eq!(refused, Err(RequestError::MountFlags(FlagError::ReadOnly)));
    }

    #[test]
    fn c5_2_a_mount_group_is_refused_rather_than_ignored() {
        let mut c = mount(&[], Mode::SingleNodeWriter.into());
        let Some(AccessType::Mount(m)) = &mut c.access_type else { panic!("not a mount") };
        m.volume_mount_group = "1000".into();
        assert_eq!(capability(Some(&c)), Err(RequestError::MountGroup));
    }

    #[test]
    fn c12_4_a_range_is_checked_and_zero_means_no_bound() {
        let range = |required_bytes, limit_bytes| {
            capacity_range(Some(&csi::CapacityRange { required_bytes, limit_bytes }))
        };
        let some = |n| Some(Bytes(n));
        assert_eq!(capacity_range(None), Ok(CapacityRange::default()));
        assert_eq!(range(0, 0), Ok(CapacityRange::default()));
        assert_eq!(range(5, 0), Ok(CapacityRange { required: some(5), limit: None }));
        assert_eq!(range(5, 5), Ok(CapacityRange { required: some(5), limit: some(5) }));
        assert_eq!(range(6, 5), Err(RangeError::Empty { required: 6, limit: 5 }));
        for (required, limit) in [(-1, 0), (0, -1), (i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
            assert_eq!(range(required, limit), Err(RangeError::Negative));
        }
    }
}
