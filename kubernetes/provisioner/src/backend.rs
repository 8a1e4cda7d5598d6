//! What makes and deletes volumes: the seam between the controller and an engine or a driver.
//!
//! Purpose: one trait that the in-process engine implements today and a remote CSI driver can implement beside it.
//! Owner: the controller holds one backend for the length of an incarnation.
//! Invariants: every call may be repeated with the same arguments at any time and ends in the same state;
//! a dropped call leaves nothing that a repetition or a later inventory does not find.
//! It must not know: clients of Kubernetes, events, queues.

use std::{collections::BTreeSet, future::Future};

use futures::stream::BoxStream;

use crate::plan::{CreatePlan, Facts, Failure};

pub use crate::plan::Provisioned;

/// For whom a volume is made; kept durably by whoever makes it, before it makes anything (I1, V4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim.
    pub uid: String,
    /// Name of the PV.
    pub pv: String,
    /// Reclaim policy.
    pub policy: String,
}

impl Owner {
    /// The owner a plan is for.
    pub fn of(plan: &CreatePlan) -> Owner {
        Owner {
            namespace: plan.claim_ref.namespace.clone().unwrap_or_default(),
            name: plan.claim_ref.name.clone().unwrap_or_default(),
            uid: plan.claim_uid.clone(),
            pv: plan.name.clone(),
            policy: plan.policy.clone(),
        }
    }
}

/// A volume to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRequest {
    /// What the PV says the backend calls it. Untrusted.
    pub handle: String,
    /// The PV, which must be the one the volume was made for (V9).
    pub pv: String,
}

/// Room for volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes that can still be promised.
    pub available_bytes: u64,
}

/// A volume to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandRequest {
    /// What the backend calls it.
    pub handle: String,
    /// Its PV.
    pub pv: String,
    /// Bytes it should have.
    pub bytes: u64,
}

/// A volume of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What the backend calls it.
    pub handle: String,
    /// For whom it was made, if that is known.
    pub owner: Option<Owner>,
    /// Whether its PV is known to have been stored. Unknown counts as stored (I6).
    pub stored: bool,
}

/// Orphans of either side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Volumes without a PV.
    pub volumes: Vec<String>,
    /// Handles without a volume.
    pub handles: Vec<String>,
}

/// The newest state of something a claim or a PV may wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Room.
    Capacity(Capacity),
    /// Somewhere a volume was mounted or unmounted.
    Published,
    /// The backend itself became ready, or ceased to be.
    Status,
}

/// Makes and deletes volumes.
pub trait Backend: Send + Sync + 'static {
    /// What it is and can.
    fn facts(&self) -> &Facts;
    /// Makes a volume, or finds the one that this plan made before.
    fn provision(
        &self,
        plan: &CreatePlan,
    ) -> impl Future<Output = Result<Provisioned, Failure>> + Send;
    /// The PV is stored: what was kept to find an abandoned volume may be dropped.
    fn confirm(
        &self,
        handle: &str,
        owner: &Owner,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Deletes a volume. An unknown one is a success.
    fn delete(&self, rq: &DeleteRequest) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Room now.
    fn capacity(&self) -> impl Future<Output = Result<Capacity, Failure>> + Send;
    /// Grows a volume; answers its size.
    fn expand(&self, rq: &ExpandRequest) -> impl Future<Output = Result<u64, Failure>> + Send;
    /// All volumes. Fails until the backend is ready.
    fn inventory(&self) -> impl Future<Output = Result<Vec<Stored>, Failure>> + Send;
    /// Compares with the complete list of handles known to Kubernetes; deletes nothing.
    fn reconcile(
        &self,
        known: &BTreeSet<String>,
    ) -> impl Future<Output = Result<Orphans, Failure>> + Send;
    /// Changes, coalesced: only the newest state of each kind matters.
    fn changes(&self) -> BoxStream<'static, Change>;
}
