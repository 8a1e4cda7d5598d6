//! Health dashboard of a node: pages for people, JSON, live stream and metrics for programs.

mod views;

pub use views::{
    BootOutcome, Capacity, Disk, Memory, Mount, NodeCondition, NodeView, Phase, Pressure,
    VolumeCondition, VolumeView, VolumesView,
};
