//! From the engine's values to messages. Pure.
//!
//! Invariant: numbers saturate at what the message can hold; nothing here fails.

use std::time::SystemTime;

use csi_proto::csi;
use volumes::{Condition, ContentSource, Snapshot, Stored};

use crate::error::severity;

/// A byte count as the protocol has it.
pub(crate) fn saturating(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// All conditions of a volume in the words of CSI ≤ 1.12.
pub(crate) fn condition(conditions: &[Condition]) -> csi::VolumeCondition {
    let texts: Vec<String> =
        conditions.iter().map(|c| format!("{:?}: {}", c.kind, c.message)).collect();
    let message = if texts.is_empty() { "healthy".to_owned() } else { texts.join("; ") };
    csi::VolumeCondition { abnormal: !conditions.is_empty(), message }
}

/// One condition in the words of CSI 1.13.
pub(crate) fn health_entry(c: Condition) -> csi::volume_health::VolumeHealthEntry {
    csi::volume_health::VolumeHealthEntry {
        status: severity(c.kind).into(),
        reason: format!("{:?}", c.kind),
        message: c.message,
    }
}

/// Where the content of a volume came from.
pub(crate) fn content_source(s: &ContentSource) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let t = match s {
        ContentSource::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.clone() }),
        ContentSource::Volume(id) => Type::Volume(VolumeSource { volume_id: id.clone() }),
    };
    csi::VolumeContentSource { r#type: Some(t) }
}

/// A volume that exists.
pub(crate) fn volume_message(s: &Stored, topology: csi::Topology) -> csi::Volume {
    csi::Volume {
        capacity_bytes: saturating(s.capacity.0),
        volume_id: s.id.as_ref().map(ToString::to_string).unwrap_or_default(),
        volume_context: Default::default(),
        content_source: s.source.as_ref().map(content_source),
        accessible_topology: vec![topology],
    }
}

/// A snapshot that exists.
pub(crate) fn snapshot_message(s: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: saturating(s.size.0),
        snapshot_id: s.id.to_string(),
        source_volume_id: s.source.to_string(),
        creation_time: Some(timestamp(s.created)),
        ready_to_use: true,
        group_snapshot_id: String::new(),
        accessible_topology: Vec::new(),
    }
}

fn timestamp(t: SystemTime) -> csi_proto::Timestamp {
    let since = t.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    csi_proto::Timestamp {
        seconds: saturating(since.as_secs()),
        // Below a thousand million.
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}
