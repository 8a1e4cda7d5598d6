//! The in-process backend: the node's own volume engine (rules V1–V9, I6).
//!
//! Purpose: translate between the controller's plans and the engine's requests, and errors back into sentences.
//! Owner: made inside the provisioner's run from the engine's handle and the proof that its disk is mounted.
//! Invariants: the owner's note travels with the create, so row, reservation and claim are one commit (V4); a
//! handle is parsed as an id and never becomes a path (V9); a volume is deleted only for the PV it was made for;
//! nothing is decided while the engine is not ready, since an empty inventory would look like success.
//! It must not know: how the engine does anything.

use std::{collections::BTreeSet, error::Error};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use localstorage::DataVolumesDirectory;
use tokio_stream::wrappers::WatchStream;
use volumes::{
    Bytes, CapacityRange, ContentSource, CreateError, CreateVolume, DeleteError, ExpandError,
    KnownHandles, OwnerTag, StoredState, TagError, Trouble, VolumeEngine, VolumeId, VolumeKind,
    chain, parse_mount_flags, parse_params,
};

use crate::{
    backend::{
        Backend, Capacity, Change, DeleteRequest, ExpandRequest, Orphans, Owner, Provisioned,
        Stored,
    },
    names::DEFAULT_DRIVER,
    plan::{CreatePlan, Facts, Failure, Source},
    tag,
};

/// What the backend has to be told.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Name of this node's Node object.
    pub node: String,
    /// Default [`DEFAULT_DRIVER`].
    pub driver: String,
}

impl LocalConfig {
    /// The default driver on that node.
    pub fn new(node: impl Into<String>) -> LocalConfig {
        LocalConfig { node: node.into(), driver: DEFAULT_DRIVER.to_owned() }
    }
}

/// The node's engine as a backend.
pub struct LocalEngine {
    mounted: DataVolumesDirectory,
    engine: VolumeEngine,
    facts: Facts,
}

impl LocalEngine {
    /// `mounted` proves that the disk behind `engine` is mounted.
    pub fn new(
        mounted: DataVolumesDirectory,
        engine: VolumeEngine,
        config: LocalConfig,
    ) -> LocalEngine {
        let facts = Facts {
            driver: config.driver,
            node: config.node,
            name_prefix: "pvc".into(),
            block: true,
            access_modes: &["ReadWriteOnce", "ReadWriteOncePod"],
            fs_types: &["xfs"],
            snapshots: false,
            clones: true,
            modify: false,
            expand: true,
            verbatim_capacity: true,
        };
        LocalEngine { mounted, engine, facts }
    }

    /// The directory its volumes are in.
    pub fn directory(&self) -> &DataVolumesDirectory {
        &self.mounted
    }

    /// All rows; an engine that does not serve now is an error, since none would look like success.
    async fn rows(&self) -> Result<Vec<volumes::Stored>, Failure> {
        self.engine.try_inventory().await.map_err(|e| Failure::no_change(chain(&e)))
    }

    async fn row(&self, id: &VolumeId) -> Result<Option<volumes::Stored>, Failure> {
        Ok(self.rows().await?.into_iter().find(|r| r.id.as_ref() == Some(id)))
    }
}

impl Backend for LocalEngine {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn provision(&self, plan: &CreatePlan) -> Result<Provisioned, Failure> {
        let rq = request(plan)?;
        let made = self.engine.create(rq).await.map_err(|e| create_failure(&e, plan))?;
        let owner = self.row(&made.id).await?.and_then(|row| tag::read(row.owner.as_str()));
        if owner.is_some_and(|(owner, _)| owner.uid != plan.claim_uid) {
            return Err(holds_data(&plan.name));
        }
        Ok(Provisioned {
            handle: made.id.as_str().to_owned(),
            capacity_bytes: made.capacity.0,
            topology: vec![plan.segment.clone()],
            attributes: std::collections::BTreeMap::new(),
        })
    }

    async fn confirm(&self, handle: &str, owner: &Owner) -> Result<(), Failure> {
        let id = parse(handle)?;
        let note = owner_tag(owner, true)?;
        match self.engine.tag(&id, note).await {
            // No row to keep a note in: the engine reports the missing data by itself.
            Ok(()) | Err(TagError::NotFound(_)) => Ok(()),
            Err(e @ TagError::Trouble(_)) => Err(Failure::no_change(chain(&e))),
        }
    }

    async fn delete(&self, rq: &DeleteRequest) -> Result<(), Failure> {
        let id = parse(&rq.handle)?;
        let Some(row) = self.row(&id).await? else { return Ok(()) };
        belongs(
            &id,
            &tag::read(row.owner.as_str()).map_or_else(|| id.as_str().to_owned(), |(o, _)| o.pv),
            &rq.pv,
        )?;
        match self.engine.delete(&id).await {
            Ok(()) => Ok(()),
            Err(e @ DeleteError::Published { .. }) => Err(Failure::waiting(format!(
                "{}; it is deleted as soon as no pod uses it any more",
                chain(&e)
            ))),
            Err(e @ DeleteError::Trouble(_)) => Err(Failure::no_change(chain(&e))),
        }
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        Ok(Capacity { available_bytes: self.engine.capacity().borrow().max_volume.0 })
    }

    async fn expand(&self, rq: &ExpandRequest) -> Result<u64, Failure> {
        let id = parse(&rq.handle)?;
        let to = CapacityRange { required: Some(Bytes(rq.bytes)), limit: None };
        match self.engine.expand(&id, to).await {
            Ok(done) => Ok(done.capacity.0),
            Err(e @ (ExpandError::NoSpace { .. } | ExpandError::OutOfRange(_))) => {
                Err(Failure::infeasible(chain(&e)))
            }
            Err(e @ ExpandError::NotFound(_)) => Err(Failure::finished(chain(&e))),
            Err(e @ ExpandError::Trouble(_)) => Err(Failure::no_change(chain(&e))),
        }
    }

    async fn inventory(&self) -> Result<Vec<Stored>, Failure> {
        Ok(self.rows().await?.into_iter().filter_map(stored).collect())
    }

    async fn reconcile(&self, known: &BTreeSet<String>) -> Result<Orphans, Failure> {
        // A handle outside the grammar names none of the engine's volumes.
        let handles = known.iter().filter_map(|h| VolumeId::parse(h).ok()).collect();
        let report = self.engine.reconcile_known(KnownHandles { complete: true, handles }).await;
        Ok(Orphans {
            volumes: report
                .unknown_entries
                .into_iter()
                .map(|(id, _)| id.as_str().to_owned())
                .collect(),
            handles: report.missing.into_iter().map(|id| id.as_str().to_owned()).collect(),
        })
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        let room = WatchStream::new(self.engine.capacity())
            .map(|c| Change::Capacity(Capacity { available_bytes: c.max_volume.0 }));
        let published =
            WatchStream::from_changes(self.engine.published()).map(|_| Change::Published);
        let status = WatchStream::from_changes(self.engine.status()).map(|_| Change::Status);
        stream::select(stream::select(room, published), status).boxed()
    }
}

/// The engine's request for a plan, checked before any side effect (V2, V6).
fn request(plan: &CreatePlan) -> Result<CreateVolume, Failure> {
    let class = &plan.class;
    let params = parse_params(&plan.parameters).map_err(|e| {
        Failure::infeasible(format!(
            "{}; create class {class:?} anew with parameters that are known",
            chain(&e)
        ))
    })?;
    parse_mount_flags(&plan.mount_options).map_err(|e| {
        Failure::infeasible(format!("{}; create class {class:?} anew without it", chain(&e)))
    })?;
    Ok(CreateVolume {
        name: plan.name.clone(),
        kind: if plan.block() { VolumeKind::Block } else { VolumeKind::Filesystem },
        capacity: CapacityRange { required: Some(Bytes(plan.bytes)), limit: None },
        params,
        source: plan
            .source
            .as_ref()
            .map(|Source::Volume(handle)| ContentSource::Volume(handle.clone())),
        owner: owner_tag(&Owner::of(plan), false)?,
    })
}

fn owner_tag(owner: &Owner, stored: bool) -> Result<OwnerTag, Failure> {
    OwnerTag::new(tag::write(owner, stored)).map_err(|e| Failure::finished(chain(&e)))
}

fn parse(handle: &str) -> Result<VolumeId, Failure> {
    VolumeId::parse(handle)
        .map_err(|e| Failure::finished(format!("volume handle names no volume: {}", chain(&e))))
}

/// V9: `owner_pv` is the PV the volume was made for, `pv` the one that asks.
fn belongs(id: &VolumeId, owner_pv: &str, pv: &str) -> Result<(), Failure> {
    if owner_pv == pv {
        return Ok(());
    }
    Err(Failure::finished(format!(
        "volume {} belongs to PV {owner_pv}; nothing was deleted",
        id.as_str()
    )))
}

fn holds_data(name: &str) -> Failure {
    Failure::finished(format!(
        "volume {name} already holds data; it is kept, create the claim anew to get another volume"
    ))
}

fn create_failure(e: &CreateError, plan: &CreatePlan) -> Failure {
    let text = chain(e as &dyn Error);
    match e {
        CreateError::InvalidName(_)
        | CreateError::InvalidParameters(_)
        | CreateError::OutOfRange(_) => Failure::infeasible(text),
        CreateError::AlreadyExists { .. } => Failure::finished(format!(
            "{text}; it is kept, create the claim anew to get another volume"
        )),
        CreateError::HoldsData(_) => holds_data(&plan.name),
        CreateError::SourceNotFound(_) => Failure::no_change(text),
        // V5: another node may have room.
        CreateError::NoSpace { .. } => Failure::reschedule(format!(
            "{text} on node {}; ask for less, delete volumes there, or let another node take it",
            plan.node
        )),
        CreateError::Trouble(Trouble::Unsupported(_)) => Failure::stop(text),
        CreateError::Trouble(Trouble::Busy(_) | Trouble::Unavailable(_) | Trouble::Step { .. }) => {
            Failure::in_background(text)
        }
    }
}

/// A row as the controller sees it; what is on its way out, or not ours, is not part of the inventory.
fn stored(row: volumes::Stored) -> Option<Stored> {
    let handle = row.id?.as_str().to_owned();
    match row.state {
        StoredState::Creating | StoredState::Ready | StoredState::Unlimited => {}
        StoredState::Deleting | StoredState::Trashed | StoredState::Foreign => return None,
    }
    let note = tag::read(row.owner.as_str());
    let stored = note.as_ref().is_none_or(|(_, stored)| *stored);
    Some(Stored { handle, owner: note.map(|(owner, _)| owner), stored })
}

#[cfg(test)]
mod tests {
    use k8s_testkit::{mk_class, mk_pvc};

    use super::*;
    use crate::{
        plan::{ClaimView, CreateInput, Kind, State, create},
        testing::facts,
    };

    fn plan(parameters: &[(&str, &str)], options: &[&str]) -> CreatePlan {
        let claim = mk_pvc("ns", "c")
            .uid("u")
            .class("fast")
            .request("1.5Gi")
            .access("ReadWriteOnce")
            .build();
        let mut class = mk_class("fast", DEFAULT_DRIVER).build();
        class.parameters =
            Some(parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        class.mount_options = Some(options.iter().map(|o| (*o).to_owned()).collect());
        create(&CreateInput {
            claim: ClaimView(&claim),
            class: &class,
            facts: &facts(),
            hostname: Some("h"),
        })
        .unwrap()
    }

    #[test]
    fn v4_the_request_carries_name_size_and_owner() {
        let rq = request(&plan(&[("inodes", "auto")], &["noatime"])).unwrap();
        assert_eq!((rq.name.as_str(), rq.capacity.required), ("pvc-u", Some(Bytes(1_610_612_736))));
        let (owner, stored) = tag::read(rq.owner.as_str()).unwrap();
        assert_eq!(
            (owner.uid.as_str(), owner.pv.as_str(), owner.policy.as_str(), stored),
            ("u", "pvc-u", "Delete", false)
        );
    }

    #[test]
    fn v2_v6_unknown_parameters_and_mount_options_are_infeasible() {
        for p in [
            plan(&[("speed", "fast")], &[]),
            plan(&[("inodes", "many")], &[]),
            plan(&[], &["bind"]),
            plan(&[], &["ro"]),
        ] {
            let f = request(&p).unwrap_err();
            assert!(f.infeasible && f.text.contains("create class \"fast\" anew"), "{f:?}");
        }
    }

    #[test]
    fn v5_no_space_reschedules_and_a_failed_step_stays_in_progress() {
        let p = plan(&[], &[]);
        let full = CreateError::NoSpace { wanted: Bytes(2), available: Bytes(1) };
        assert_eq!(create_failure(&full, &p).state, State::Reschedule);
        let busy = CreateError::Trouble(Trouble::Busy("create"));
        assert_eq!(create_failure(&busy, &p).state, State::InBackground);
        let unsupported = CreateError::Trouble(Trouble::Unsupported("block volumes"));
        assert_eq!(create_failure(&unsupported, &p).kind, Kind::Stop);
        assert!(create_failure(&CreateError::OutOfRange("x".into()), &p).infeasible);
    }

    #[test]
    fn v9_handles_outside_the_grammar_name_no_volume() {
        for handle in ["../x", "a/b", "", "..", "pvc-1\n", ".engine"] {
            assert!(
                parse(handle).unwrap_err().text.starts_with("volume handle names no volume"),
                "{handle:?}"
            );
        }
        assert!(parse("pvc-u").is_ok());
    }

    #[test]
    fn v9_a_forged_pv_on_another_volume_deletes_nothing() {
        let id = VolumeId::parse("pvc-u").unwrap();
        let f = belongs(&id, "pvc-u", "forged").unwrap_err();
        assert!(f.text.starts_with("volume pvc-u belongs to PV pvc-u"), "{f}");
        assert!(belongs(&id, "pvc-u", "pvc-u").is_ok());
    }

    #[test]
    fn i6_rows_without_a_note_count_as_stored_and_rows_on_their_way_out_do_not_count() {
        let row = |state, owner: &str| volumes::Stored {
            id: VolumeId::parse("pvc-u").ok(),
            entry: "pvc-u".into(),
            name: "pvc-u".into(),
            kind: VolumeKind::Filesystem,
            state,
            capacity: Bytes(1),
            project_id: 1,
            owner: OwnerTag::new(owner).unwrap(),
            source: None,
            conditions: vec![],
        };
        let owner = Owner::of(&plan(&[], &[]));
        assert_eq!(stored(row(StoredState::Ready, "")).map(|s| s.stored), Some(true));
        assert_eq!(stored(row(StoredState::Ready, "csi")).map(|s| s.stored), Some(true));
        assert_eq!(
            stored(row(StoredState::Creating, &tag::write(&owner, false)))
                .map(|s| (s.stored, s.owner)),
            Some((false, Some(owner.clone())))
        );
        assert_eq!(
            stored(row(StoredState::Ready, &tag::write(&owner, true))).map(|s| s.stored),
            Some(true)
        );
        for state in [StoredState::Deleting, StoredState::Trashed, StoredState::Foreign] {
            assert_eq!(stored(row(state, &tag::write(&owner, false))), None);
        }
    }
}
