//! Decisions of the controller, pure: what to do with a claim, with a volume, after an attempt.
//!
//! Purpose: everything that can be decided from objects and facts is decided here, so that it can be tested
//! as tables and properties; the shell (`claims`, `pvs`) only carries it out.
//! Owner: this crate.
//! Invariants: no tokio, no I/O, no clock, no randomness; no indexing and no unwrapping of API objects:
//! a missing field is a decision too, never a panic.
//! It must not know: clients, stores, the engine.

mod claim;
mod create;
mod pv;
mod resize;
mod settle;
mod source;
mod volume;

pub use self::{
    claim::{ClaimAction, ClaimView, Selected, claim, ours, selected},
    create::{CreateInput, CreatePlan, create},
    pv::{Provisioned, pv},
    resize::{
        ResizePlan, begun as resize_begun, done as resize_done, failed as resize_failed, resize,
    },
    settle::{Settle, Track, settle},
    source::{Source, clone_of, cloned_claim, cloned_volume},
    volume::{PvView, VolumeAction, is_of_claim, unlabelled, volume},
};

/// What a backend is and can, as far as decisions depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The driver: provisioner name of classes, `csi.driver` of PVs.
    pub driver: String,
    /// The node whose claims are ours; volumes live there.
    pub node: String,
    /// First part of the names of volumes. Default `pvc` (P18).
    pub name_prefix: String,
    /// Block volumes can be made (L11).
    pub block: bool,
    /// Access modes a volume can have, as the API spells them.
    pub access_modes: &'static [&'static str],
    /// File systems that may be asked for; empty: any.
    pub fs_types: &'static [&'static str],
    /// Volumes can be made from snapshots (P7).
    pub snapshots: bool,
    /// Volumes can be cloned (P7).
    pub clones: bool,
    /// VolumeAttributesClasses are understood (P7).
    pub modify: bool,
    /// Volumes can grow.
    pub expand: bool,
    /// The PV shows the request as it was written, not what was made (V3).
    pub verbatim_capacity: bool,
}

/// State of an attempt: what is known about the volume (section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// F: final, nothing more happens by itself.
    Finished,
    /// NC: nothing was learnt.
    NoChange,
    /// BG: it may still be made.
    InBackground,
    /// RS: final, and another node should be tried.
    Reschedule,
}

/// What a failed attempt means for the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Somebody else's job: no event, no retry.
    Ignored,
    /// No retry until the claim changes; the event was or is written.
    Stop,
    /// Event and retry.
    Error,
    /// Nothing is wrong, but the volume is in use: tried again when the backend tells of a change (V8).
    Waiting,
}

/// Why an attempt did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// What is known about the volume.
    pub state: State,
    /// What follows.
    pub kind: Kind,
    /// The request can never be met as it stands: retried at the slowest pace (L17).
    pub infeasible: bool,
    /// Sentence for the event: what failed and what to do.
    pub text: String,
}

impl Failure {
    /// Final error: event and retry.
    pub fn finished(text: impl Into<String>) -> Failure {
        Failure { state: State::Finished, kind: Kind::Error, infeasible: false, text: text.into() }
    }

    /// Nothing was learnt: event and retry.
    pub fn no_change(text: impl Into<String>) -> Failure {
        Failure { state: State::NoChange, ..Failure::finished(text) }
    }

    /// The backend may still be at work: event and retry.
    pub fn in_background(text: impl Into<String>) -> Failure {
        Failure { state: State::InBackground, ..Failure::finished(text) }
    }

    /// Another node should be tried.
    pub fn reschedule(text: impl Into<String>) -> Failure {
        Failure { state: State::Reschedule, ..Failure::finished(text) }
    }

    /// The request cannot be met as it stands.
    pub fn infeasible(text: impl Into<String>) -> Failure {
        Failure { infeasible: true, ..Failure::finished(text) }
    }

    /// Final, with an event and without a retry.
    pub fn stop(text: impl Into<String>) -> Failure {
        Failure { kind: Kind::Stop, ..Failure::finished(text) }
    }

    /// Somebody else's job.
    pub fn ignored(text: impl Into<String>) -> Failure {
        Failure { kind: Kind::Ignored, ..Failure::finished(text) }
    }

    /// In use; a change of the backend's state wakes it.
    pub fn waiting(text: impl Into<String>) -> Failure {
        Failure { kind: Kind::Waiting, ..Failure::no_change(text) }
    }
}

pub(crate) use self::create::claim_ref;

/// Go's `%v` of a list: `[a b]`.
pub(crate) fn go_list<S: AsRef<str>>(items: &[S]) -> String {
    let words: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    format!("[{}]", words.join(" "))
}
