//! The Controller service over a real unix socket, on a fake engine: each row of rule 12.5.

use std::sync::Arc;

use csi_proto::csi;
use csi_proto::csi::controller_service_capability::{Type, rpc};
use csi_proto::csi::volume_capability::access_mode::Mode;
use csi_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tonic::{Code, Status};
use volumes::{
    Bytes, CapacityRange, Condition, ConditionKind, ContentSource, CreateError, DeleteError,
    ExpandError, Expanded, SnapshotError, StoredState, Trouble, VolumeId, VolumeKind,
};

use crate::config::HealthApi;
use crate::testing::{
    Answer, Call, Client, FakeEngine, Home, Lines, sample_snapshot, stored, with_driver,
};

const GIB: i64 = 1 << 30;

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).expect("id")
}

fn cap(access_type: AccessType, mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

fn mount() -> csi::VolumeCapability {
    cap(AccessType::Mount(MountVolume::default()), Mode::SingleNodeWriter)
}

fn create() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![mount()],
        ..Default::default()
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn on_engine<F, Fut>(api: HealthApi, body: F)
where
    F: FnOnce(Client, Arc<FakeEngine>) -> Fut,
    Fut: Future<Output = ()>,
{
    let (mut home, engine, log) = (Home::new(), FakeEngine::ready(), Lines::default());
    home.config.health_api = api;
    let e = engine.clone();
    with_driver(&home, &engine, &log, |client| body(client, e)).await;
}

#[tokio::test]
async fn c12_2_controller_capabilities_follow_disk_and_health_api() {
    use rpc::Type as Can;
    let told = async |c: &mut Client| -> Vec<Can> {
        let r = c
            .controller
            .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
            .await;
        let all = r.expect("capabilities").into_inner().capabilities;
        all.into_iter()
            .map(|c| match c.r#type {
                Some(Type::Rpc(r)) => r.r#type(),
                None => panic!("a capability without a type"),
            })
            .collect()
    };
    on_engine(HealthApi::Condition, async |mut c, engine| {
        let first = [Can::CreateDeleteVolume, Can::ListVolumes, Can::GetCapacity];
        let clones = [Can::CreateDeleteSnapshot, Can::ListSnapshots, Can::CloneVolume];
        let last =
            [Can::ExpandVolume, Can::GetVolume, Can::SingleNodeMultiWriter, Can::VolumeCondition];
        assert_eq!(told(&mut c).await, [first.as_slice(), &last].concat());
        engine.snapshots.lock().push(sample_snapshot("s1", "pvc-1"));
        assert_eq!(told(&mut c).await, [first.as_slice(), &clones, &last].concat());
    })
    .await;
    on_engine(HealthApi::Health, async |mut c, _| {
        let can = told(&mut c).await;
        assert!(can.ends_with(&[Can::GetVolumeHealth, Can::ListVolumeHealth]), "{can:?}");
        assert!(!can.contains(&Can::VolumeCondition), "{can:?}");
    })
    .await;
}

#[tokio::test]
async fn c12_5_create_answers_size_id_source_and_this_nodes_topology() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        let mut r = create();
        r.capacity_range = Some(csi::CapacityRange { required_bytes: 5 * GIB, limit_bytes: 0 });
        r.volume_capabilities =
            vec![cap(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)];
        r.volume_content_source = Some(csi::VolumeContentSource {
            r#type: Some(csi::volume_content_source::Type::Volume(
                csi::volume_content_source::VolumeSource { volume_id: "pvc-0".into() },
            )),
        });
        let made = c.controller.create_volume(r.clone()).await.expect("created").into_inner();
        let made = made.volume.expect("told");
        assert_eq!((made.volume_id.as_str(), made.capacity_bytes), ("pvc-1", 5 * GIB));
        assert_eq!(made.content_source, r.volume_content_source);
        let segment = ("kubernetes.io/hostname".to_owned(), "hamlet-0".to_owned());
        assert_eq!(made.accessible_topology[0].segments, [segment].into());
        let calls = engine.take_calls();
        let [Call::Create(asked)] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!(asked.kind, VolumeKind::Block);
        assert_eq!(asked.source, Some(ContentSource::Volume("pvc-0".into())));
        assert_eq!(asked.capacity.required, Some(Bytes(5 << 30)));
    })
    .await;
}

#[tokio::test]
async fn c12_5_every_row_of_create_has_its_code() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        let range = |required_bytes, limit_bytes| csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes }),
            ..create()
        };
        let segments = [("kubernetes.io/hostname".to_owned(), "other".to_owned())].into();
        let elsewhere = csi::CreateVolumeRequest {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![csi::Topology { segments }],
                preferred: vec![],
            }),
            ..create()
        };
        for (request, expected) in [
            (csi::CreateVolumeRequest::default(), Code::InvalidArgument),
            (
                csi::CreateVolumeRequest { volume_capabilities: vec![], ..create() },
                Code::InvalidArgument,
            ),
            (range(-1, 0), Code::OutOfRange),
            (range(2, 1), Code::OutOfRange),
            (elsewhere, Code::ResourceExhausted),
        ] {
            assert_eq!(code(c.controller.create_volume(request).await), expected);
        }
        assert_eq!(engine.take_calls(), []);
        let differs = CreateError::AlreadyExists { id: id("pvc-1"), difference: "size".into() };
        for (error, expected) in [
            (differs, Code::AlreadyExists),
            (CreateError::SourceNotFound("s".into()), Code::NotFound),
            (
                CreateError::NoSpace { wanted: Bytes(2), available: Bytes(1) },
                Code::ResourceExhausted,
            ),
            (CreateError::Trouble(Trouble::Busy("delete")), Code::Aborted),
        ] {
            engine.answer(Answer::Create(error));
            assert_eq!(code(c.controller.create_volume(create()).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_5_a_delete_of_the_unknown_or_ungrammatical_is_ok_and_touches_nothing() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        let volume = |volume_id: &str| csi::DeleteVolumeRequest {
            volume_id: volume_id.to_owned(),
            ..Default::default()
        };
        let snapshot = |snapshot_id: &str| csi::DeleteSnapshotRequest {
            snapshot_id: snapshot_id.to_owned(),
            ..Default::default()
        };
        for hostile in ["../x", "a/b", "pvc-1\n", "@pvc-1", "..", &"a".repeat(129)] {
            assert_eq!(code(c.controller.delete_volume(volume(hostile)).await), Code::Ok);
            assert_eq!(code(c.controller.delete_snapshot(snapshot(hostile)).await), Code::Ok);
        }
        assert_eq!(engine.take_calls(), []);
        assert_eq!(code(c.controller.delete_volume(volume("")).await), Code::InvalidArgument);
        assert_eq!(code(c.controller.delete_snapshot(snapshot("")).await), Code::InvalidArgument);
        assert_eq!(code(c.controller.delete_volume(volume("pvc-9")).await), Code::Ok);
        let published = DeleteError::Published { id: id("pvc-1"), target: "/t".into() };
        engine.answer(Answer::Delete(published));
        let refused = code(c.controller.delete_volume(volume("pvc-1")).await);
        assert_eq!(refused, Code::FailedPrecondition);
        engine.answer(Answer::Delete(DeleteError::Trouble(Trouble::Busy("snapshot"))));
        assert_eq!(code(c.controller.delete_volume(volume("pvc-1")).await), Code::Aborted);
    })
    .await;
}

#[tokio::test]
async fn c12_5_validate_confirms_what_is_supported_and_knows_no_unknown_volume() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        engine.volumes.lock().push(stored("pvc-1"));
        let ask = |volume_id: &str, caps: Vec<csi::VolumeCapability>| {
            csi::ValidateVolumeCapabilitiesRequest {
                volume_id: volume_id.to_owned(),
                volume_capabilities: caps,
                ..Default::default()
            }
        };
        let ok = c.controller.validate_volume_capabilities(ask("pvc-1", vec![mount()])).await;
        let confirmed = ok.expect("validated").into_inner().confirmed.expect("confirmed");
        assert_eq!(confirmed.volume_capabilities, [mount()]);
        let block = cap(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter);
        let shared = cap(AccessType::Mount(MountVolume::default()), Mode::MultiNodeMultiWriter);
        for unsupported in [block, shared] {
            let r = ask("pvc-1", vec![unsupported]);
            let said = c.controller.validate_volume_capabilities(r).await.expect("ok").into_inner();
            assert!(said.confirmed.is_none() && !said.message.is_empty(), "{said:?}");
        }
        for (r, expected) in [
            (ask("", vec![mount()]), Code::InvalidArgument),
            (ask("pvc-1", vec![]), Code::InvalidArgument),
            (ask("pvc-2", vec![mount()]), Code::NotFound),
            (ask("../x", vec![mount()]), Code::NotFound),
        ] {
            assert_eq!(code(c.controller.validate_volume_capabilities(r).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_5_pages_survive_deletions_and_hide_what_is_on_its_way_out() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        for n in 0..5 {
            engine.volumes.lock().push(stored(&format!("pvc-{n}")));
        }
        engine.volumes.lock()[1].state = StoredState::Deleting;
        let message = "gone".to_owned();
        engine.volumes.lock()[2].conditions =
            vec![Condition { kind: ConditionKind::DataMissing, message }];
        let mut page = async |max_entries, starting_token: &str| {
            let starting_token = starting_token.to_owned();
            let r = csi::ListVolumesRequest { max_entries, starting_token };
            let said = c.controller.list_volumes(r).await.map_err(|s| s.code())?.into_inner();
            let ids: Vec<String> = said
                .entries
                .iter()
                .map(|e| e.volume.as_ref().expect("told").volume_id.clone())
                .collect();
            let sick = said.entries.iter().filter(|e| {
                e.status.as_ref().and_then(|s| s.volume_condition.as_ref()).expect("told").abnormal
            });
            Ok((ids, sick.count(), said.next_token))
        };
        let all = page(0, "").await.expect("page");
        assert_eq!(
            (all.0, all.1, all.2.as_str()),
            (vec!["pvc-0".into(), "pvc-2".into(), "pvc-3".into(), "pvc-4".into()], 1, "")
        );
        let (ids, _, next) = page(2, "").await.expect("page");
        assert_eq!(ids, ["pvc-0", "pvc-2"]);
        // The volume a token names is deleted between two pages.
        engine.volumes.lock().retain(|s| s.entry != "pvc-2");
        let (ids, _, next) = page(1, &next).await.expect("page");
        assert_eq!(ids, ["pvc-3"]);
        let (ids, _, next) = page(1, &next).await.expect("page");
        assert_eq!((ids, next.as_str()), (vec!["pvc-4".to_owned()], ""));
        assert_eq!(page(0, "invalid-token").await, Err(Code::Aborted));
        assert_eq!(page(-1, "").await, Err(Code::InvalidArgument));
        engine.answer(Answer::Down(Trouble::Unavailable("recovering".into())));
        assert_eq!(page(0, "").await, Err(Code::Unavailable));
    })
    .await;
}

#[tokio::test]
async fn c12_5_capacity_is_a_number_whatever_is_asked() {
    on_engine(HealthApi::Condition, async |mut c, _| {
        let mut ask = async |r| {
            let said = c.controller.get_capacity(r).await.expect("capacity").into_inner();
            assert_eq!(said.maximum_volume_size, Some(said.available_capacity));
            said.available_capacity
        };
        assert_eq!(ask(csi::GetCapacityRequest::default()).await, 5 * GIB);
        let topology = |value: &str| csi::GetCapacityRequest {
            accessible_topology: Some(csi::Topology {
                segments: [("kubernetes.io/hostname".to_owned(), value.to_owned())].into(),
            }),
            ..Default::default()
        };
        assert_eq!(ask(topology("hamlet-0")).await, 5 * GIB);
        assert_eq!(ask(topology("other")).await, 0);
        let shared = cap(AccessType::Mount(MountVolume::default()), Mode::MultiNodeReaderOnly);
        for (caps, expected) in [(mount(), 5 * GIB), (shared, 0)] {
            let volume_capabilities = vec![caps];
            let r = csi::GetCapacityRequest { volume_capabilities, ..Default::default() };
            assert_eq!(ask(r).await, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_5_every_row_of_controller_expand_has_its_code() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        let ask = |volume_id: &str, range| csi::ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range: range,
            ..Default::default()
        };
        let range = Some(csi::CapacityRange { required_bytes: 2 * GIB, limit_bytes: 0 });
        let negative = Some(csi::CapacityRange { required_bytes: -1, limit_bytes: 0 });
        for (r, expected) in [
            (ask("", range), Code::InvalidArgument),
            (ask("pvc-1", None), Code::InvalidArgument),
            (ask("pvc-1", negative), Code::OutOfRange),
            (ask("../x", range), Code::NotFound),
        ] {
            assert_eq!(code(c.controller.controller_expand_volume(r).await), expected);
        }
        assert_eq!(engine.take_calls(), []);
        let done = Expanded { capacity: Bytes(2 << 30), node_expansion_required: true };
        engine.answer(Answer::Expand(Ok(done)));
        let said = c.controller.controller_expand_volume(ask("pvc-1", range)).await.expect("ok");
        let said = said.into_inner();
        assert_eq!((said.capacity_bytes, said.node_expansion_required), (2 * GIB, true));
        let to = CapacityRange { required: Some(Bytes(2 << 30)), limit: None };
        assert_eq!(engine.take_calls(), [Call::Expand(id("pvc-1"), to)]);
        for (error, expected) in [
            (ExpandError::NotFound(id("pvc-1")), Code::NotFound),
            (ExpandError::OutOfRange("larger than the disk".into()), Code::OutOfRange),
            (
                ExpandError::NoSpace { wanted: Bytes(2), available: Bytes(1) },
                Code::ResourceExhausted,
            ),
            (ExpandError::Trouble(Trouble::Busy("snapshot")), Code::Aborted),
        ] {
            engine.answer(Answer::Expand(Err(error)));
            let r = ask("pvc-1", range);
            assert_eq!(code(c.controller.controller_expand_volume(r).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_5_get_volume_and_the_health_calls_know_no_unknown_volume() {
    on_engine(HealthApi::Both, async |mut c, engine| {
        for n in 0..600 {
            engine.volumes.lock().push(stored(&format!("pvc-{n:03}")));
        }
        let message = "root id was 0".to_owned();
        let escaped = Condition { kind: ConditionKind::QuotaEscaped, message };
        for n in [3, 400, 599] {
            engine.volumes.lock()[n].conditions = vec![escaped.clone()];
        }
        let get = |volume_id: &str| csi::ControllerGetVolumeRequest { volume_id: volume_id.into() };
        let said = c.controller.controller_get_volume(get("pvc-003")).await.expect("ok");
        let status = said.into_inner().status.expect("told");
        assert!(status.volume_condition.expect("told").abnormal);
        for (id, expected) in
            [("", Code::InvalidArgument), ("none", Code::NotFound), ("../x", Code::NotFound)]
        {
            assert_eq!(code(c.controller.controller_get_volume(get(id)).await), expected);
            let r = csi::ControllerGetVolumeHealthRequest {
                volume_id: id.into(),
                ..Default::default()
            };
            assert_eq!(code(c.controller.controller_get_volume_health(r).await), expected);
        }
        let mut page = async |max_entries, starting_token: &str| {
            let r = csi::ControllerListVolumeHealthRequest {
                max_entries,
                starting_token: starting_token.into(),
                ..Default::default()
            };
            let said = c.controller.controller_list_volume_health(r).await.expect("page");
            let said = said.into_inner();
            let ids: Vec<String> = said.entries.into_iter().map(|e| e.volume_id).collect();
            (ids, said.next_token)
        };
        assert_eq!(page(0, "").await.0, ["pvc-003", "pvc-400", "pvc-599"]);
        let (ids, next) = page(2, "").await;
        assert_eq!(ids, ["pvc-003", "pvc-400"]);
        assert_eq!(page(2, &next).await, (vec!["pvc-599".to_owned()], String::new()));
    })
    .await;
}

#[tokio::test]
async fn c12_5_every_row_of_the_snapshot_calls_has_its_code() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        let ask = |name: &str, source: &str| csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..Default::default()
        };
        let made = c.controller.create_snapshot(ask("s1", "pvc-1")).await.expect("made");
        let made = made.into_inner().snapshot.expect("told");
        assert_eq!((made.snapshot_id.as_str(), made.size_bytes), ("s1", GIB));
        assert!(made.ready_to_use);
        let at = made.creation_time.expect("told");
        assert_eq!((at.seconds, at.nanos), (1, 500_000_000));
        for (r, expected) in [
            (ask("", "pvc-1"), Code::InvalidArgument),
            (ask("s1", ""), Code::InvalidArgument),
            (ask("s1", "../x"), Code::NotFound),
        ] {
            assert_eq!(code(c.controller.create_snapshot(r).await), expected);
        }
        let taken = SnapshotError::AlreadyExists {
            id: sample_snapshot("s1", "pvc-2").id,
            source_volume: id("pvc-2"),
        };
        for (error, expected) in [
            (taken, Code::AlreadyExists),
            (SnapshotError::SourceNotFound(id("pvc-1")), Code::NotFound),
            (
                SnapshotError::NoSpace { wanted: Bytes(2), available: Bytes(1) },
                Code::ResourceExhausted,
            ),
            (SnapshotError::Trouble(Trouble::Busy("delete")), Code::Aborted),
        ] {
            engine.answer(Answer::Snapshot(error));
            assert_eq!(code(c.controller.create_snapshot(ask("s1", "pvc-1")).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_5_snapshots_are_listed_by_source_by_id_and_in_pages() {
    on_engine(HealthApi::Condition, async |mut c, engine| {
        for (id, source) in [("s1", "pvc-1"), ("s2", "pvc-2"), ("s3", "pvc-1"), ("s4", "pvc-1")] {
            engine.snapshots.lock().push(sample_snapshot(id, source));
        }
        let mut list = async |r: csi::ListSnapshotsRequest| {
            let said = c.controller.list_snapshots(r).await.map_err(|s| s.code())?.into_inner();
            let ids = said.entries.into_iter().map(|e| e.snapshot.expect("told").snapshot_id);
            Ok((ids.collect::<Vec<String>>(), said.next_token))
        };
        let by = |source: &str, snapshot: &str| csi::ListSnapshotsRequest {
            source_volume_id: source.to_owned(),
            snapshot_id: snapshot.to_owned(),
            ..Default::default()
        };
        let ids = |v: &[&str]| v.iter().map(|s| (*s).to_owned()).collect::<Vec<String>>();
        for (r, expected) in [
            (by("", ""), ids(&["s1", "s2", "s3", "s4"])),
            (by("pvc-1", ""), ids(&["s1", "s3", "s4"])),
            (by("", "s2"), ids(&["s2"])),
            (by("pvc-1", "s2"), ids(&[])),
            (by("none", ""), ids(&[])),
            (by("../x", ""), ids(&[])),
            (by("", "None Exist"), ids(&[])),
            (by("", "none-exist-id"), ids(&[])),
        ] {
            assert_eq!(list(r).await, Ok((expected, String::new())));
        }
        let r = csi::ListSnapshotsRequest { max_entries: 2, ..by("pvc-1", "") };
        let (first, starting_token) = list(r).await.expect("page");
        assert_eq!(first, ids(&["s1", "s3"]));
        let r = csi::ListSnapshotsRequest { starting_token, ..by("pvc-1", "") };
        assert_eq!(list(r).await, Ok((ids(&["s4"]), String::new())));
        let starting_token = "invalid-token".to_owned();
        let r = csi::ListSnapshotsRequest { starting_token, ..by("", "") };
        assert_eq!(list(r).await, Err(Code::Aborted));
    })
    .await;
}
