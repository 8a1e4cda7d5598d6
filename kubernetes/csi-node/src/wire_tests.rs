//! The driver over a real unix socket, on a fake engine: what callers see (rule 12.5).

use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi;
use csi_proto::csi::node_service_capability::{Type, rpc};
use csi_proto::csi::volume_capability::access_mode::Mode;
use csi_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use prometheus_client::registry::Registry;
use tonic::{Code, Status};
use volumes::{
    Bytes, CapacityRange, Condition, ConditionKind, EnginePhase, ExpandError, Expanded,
    PublishError, StatsError, Trouble, VolumeId, VolumeKind,
};

use crate::config::HealthApi;
use crate::runnable::csi_app;
use crate::server::serve;
use crate::socket::BoundSocket;
use crate::testing::{Answer, Call, Client, FakeEngine, Home, Lines, sample_stats, with_driver};

/// Handles that must touch nothing (rule 3.5), each a bad request to every call.
fn hostile_handles() -> [String; 9] {
    let fixed = ["", "..", ".engine", "../x", "a/b", "pvc-1\n", "pvc-1\0", "/etc"];
    let mut all = [const { String::new() }; 9];
    for (slot, handle) in all.iter_mut().zip(fixed) {
        slot.push_str(handle);
    }
    all[8] = "a".repeat(129);
    all
}

fn id() -> VolumeId {
    VolumeId::parse("pvc-1").expect("id")
}

fn capability(access_type: AccessType) -> Option<csi::VolumeCapability> {
    Some(csi::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    })
}

fn publish() -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: "pvc-1".into(),
        target_path: "/pods/1/mount".into(),
        volume_capability: capability(AccessType::Mount(MountVolume::default())),
        ..Default::default()
    }
}

fn unpublish() -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest {
        volume_id: "pvc-1".into(),
        target_path: "/pods/1/mount".into(),
    }
}

fn stats() -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: "pvc-1".into(),
        volume_path: "/pods/1/mount".into(),
        ..Default::default()
    }
}

fn expand() -> csi::NodeExpandVolumeRequest {
    csi::NodeExpandVolumeRequest {
        volume_id: "pvc-1".into(),
        volume_path: "/pods/1/mount".into(),
        ..Default::default()
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn on_ready_engine<F, Fut>(body: F)
where
    F: FnOnce(Client, Arc<FakeEngine>, Lines) -> Fut,
    Fut: Future<Output = ()>,
{
    let (home, engine, log) = (Home::new(), FakeEngine::ready(), Lines::default());
    let (e, l) = (engine.clone(), log.clone());
    with_driver(&home, &engine, &log, |client| body(client, e, l)).await;
}

#[tokio::test]
async fn c12_1_identity_tells_name_version_and_capabilities() {
    on_ready_engine(async |mut c, _, _| {
        let info = c.identity.get_plugin_info(csi::GetPluginInfoRequest {}).await;
        let info = info.expect("info").into_inner();
        assert_eq!(info.name, "com.nexantic.smalltown.vfs");
        assert_eq!(info.vendor_version, env!("CARGO_PKG_VERSION"));
        let can = c.identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await;
        let can = format!("{:?}", can.expect("capabilities").into_inner());
        for capability in ["ControllerService", "VolumeAccessibilityConstraints", "Online"] {
            assert!(can.contains(capability), "{can}");
        }
    })
    .await;
}

#[tokio::test]
async fn c12_1_probe_follows_the_engine() {
    on_ready_engine(async |mut c, engine, _| {
        for (phase, expected) in [
            (EnginePhase::Stopped, Ok(false)),
            (EnginePhase::Recovering, Ok(false)),
            (EnginePhase::Ready, Ok(true)),
            (EnginePhase::Degraded("disk full".into()), Err(Code::FailedPrecondition)),
        ] {
            *engine.phase.lock() = phase;
            let said = c.identity.probe(csi::ProbeRequest {}).await;
            let said = said.map(|r| r.into_inner().ready.expect("set")).map_err(|s| s.code());
            assert_eq!(said, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_2_node_capabilities_follow_the_health_api() {
    use rpc::Type::{
        ExpandVolume, GetStorageHealth, GetVolumeHealth, GetVolumeStats, SingleNodeMultiWriter,
        VolumeCondition,
    };
    let always = [ExpandVolume, GetVolumeStats, SingleNodeMultiWriter];
    for (api, more) in [
        (HealthApi::Condition, vec![VolumeCondition]),
        (HealthApi::Health, vec![GetVolumeHealth, GetStorageHealth]),
        (HealthApi::Both, vec![VolumeCondition, GetVolumeHealth, GetStorageHealth]),
    ] {
        let mut home = Home::new();
        home.config.health_api = api;
        let (engine, log) = (FakeEngine::ready(), Lines::default());
        with_driver(&home, &engine, &log, async |mut c| {
            let answer = c.node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await;
            let said = answer.expect("capabilities").into_inner().capabilities;
            let said: Vec<_> = said
                .into_iter()
                .map(|c| match c.r#type {
                    Some(Type::Rpc(r)) => r.r#type(),
                    None => panic!("a capability without a type"),
                })
                .collect();
            assert_eq!(said, [always.as_slice(), &more].concat());
        })
        .await;
    }
}

#[tokio::test]
async fn c12_3_node_info_has_name_and_hostname_topology() {
    on_ready_engine(async |mut c, _, _| {
        let info = c.node.node_get_info(csi::NodeGetInfoRequest {}).await;
        let info = info.expect("info").into_inner();
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("hamlet-0", 0));
        let segments = info.accessible_topology.expect("topology").segments;
        let expected = ("kubernetes.io/hostname".to_owned(), "hamlet-0".to_owned());
        assert_eq!(segments, [expected].into());
    })
    .await;
}

#[tokio::test]
async fn c12_5_publish_hands_typed_values_to_the_engine_and_every_error_has_its_code() {
    on_ready_engine(async |mut c, engine, _| {
        let mut request = publish();
        request.readonly = true;
        c.node.node_publish_volume(request).await.expect("published");
        let calls = engine.take_calls();
        let [Call::Publish(p)] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!((p.id.clone(), p.kind, p.read_only), (id(), VolumeKind::Filesystem, true));

        let mut block = publish();
        block.volume_capability = capability(AccessType::Block(BlockVolume {}));
        c.node.node_publish_volume(block).await.expect("published");
        let calls = engine.take_calls();
        let [Call::Publish(p)] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!(p.kind, VolumeKind::Block);

        let other = PublishError::OtherFlags { id: id(), target: "/t".into(), flags: "ro".into() };
        for (error, expected) in [
            (PublishError::NotFound(id()), Code::NotFound),
            (PublishError::DataMissing(id()), Code::DataLoss),
            (PublishError::InvalidTarget("in /data/volumes".into()), Code::InvalidArgument),
            (other, Code::AlreadyExists),
            (PublishError::Precondition("in use".into()), Code::FailedPrecondition),
            (PublishError::Trouble(Trouble::Busy("delete")), Code::Aborted),
            (PublishError::Trouble(Trouble::Unavailable("full".into())), Code::Unavailable),
        ] {
            engine.answer(Answer::Publish(error));
            assert_eq!(code(c.node.node_publish_volume(publish()).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c12_5_an_empty_or_hostile_request_is_refused_and_never_reaches_the_engine() {
    on_ready_engine(async |mut c, engine, _| {
        for handle in hostile_handles() {
            let volume_id = handle.clone();
            let results = [
                code(
                    c.node
                        .node_publish_volume(csi::NodePublishVolumeRequest {
                            volume_id: volume_id.clone(),
                            ..publish()
                        })
                        .await,
                ),
                code(
                    c.node
                        .node_unpublish_volume(csi::NodeUnpublishVolumeRequest {
                            volume_id: volume_id.clone(),
                            ..unpublish()
                        })
                        .await,
                ),
                code(
                    c.node
                        .node_get_volume_stats(csi::NodeGetVolumeStatsRequest {
                            volume_id: volume_id.clone(),
                            ..stats()
                        })
                        .await,
                ),
                code(
                    c.node
                        .node_expand_volume(csi::NodeExpandVolumeRequest { volume_id, ..expand() })
                        .await,
                ),
            ];
            assert_eq!(results, [Code::InvalidArgument; 4], "{handle:?}");
        }
        for target in ["", "relative", "/", "/a/../etc", "/a\0b"] {
            let target_path = target.to_owned();
            let request = csi::NodePublishVolumeRequest { target_path, ..publish() };
            assert_eq!(code(c.node.node_publish_volume(request).await), Code::InvalidArgument);
        }
        let empty = csi::NodePublishVolumeRequest::default();
        assert_eq!(code(c.node.node_publish_volume(empty).await), Code::InvalidArgument);
        assert_eq!(engine.take_calls(), []);
    })
    .await;
}

#[tokio::test]
async fn c11_4_unpublish_of_what_is_not_there_is_ok_and_of_what_is_foreign_is_internal() {
    on_ready_engine(async |mut c, engine, _| {
        assert_eq!(code(c.node.node_unpublish_volume(unpublish()).await), Code::Ok);
        for (error, expected) in [
            (PublishError::NotFound(id()), Code::Ok),
            (PublishError::DataMissing(id()), Code::Ok),
            (PublishError::Foreign("a mount of tmpfs".into()), Code::Internal),
            (PublishError::Precondition("busy".into()), Code::Internal),
            (PublishError::Trouble(Trouble::Busy("publish")), Code::Aborted),
        ] {
            engine.answer(Answer::Publish(error));
            assert_eq!(code(c.node.node_unpublish_volume(unpublish()).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c11_6_stats_tell_bytes_inodes_and_the_condition() {
    on_ready_engine(async |mut c, engine, _| {
        let said = c.node.node_get_volume_stats(stats()).await.expect("stats").into_inner();
        let usage: Vec<_> =
            said.usage.iter().map(|u| (u.unit, u.total, u.used, u.available)).collect();
        assert_eq!(usage, [(1, 1 << 30, 4096, (1 << 30) - 4096), (2, 100_000, 1, 99_999)]);
        assert!(!said.volume_condition.expect("told").abnormal);

        let mut sick = sample_stats();
        sick.bytes.total = u64::MAX;
        sick.inodes = None;
        let message = "root id was 0".to_owned();
        sick.conditions = vec![Condition { kind: ConditionKind::QuotaEscaped, message }];
        engine.answer(Answer::Stats(Ok(sick)));
        let said = c.node.node_get_volume_stats(stats()).await.expect("stats").into_inner();
        assert_eq!((said.usage.len(), said.usage[0].total), (1, i64::MAX));
        let condition = said.volume_condition.expect("told");
        assert!(condition.abnormal);
        assert_eq!(condition.message, "QuotaEscaped: root id was 0");
    })
    .await;
}

#[tokio::test]
async fn c12_5_stats_of_a_wrong_place_are_not_found_and_of_no_place_a_bad_request() {
    on_ready_engine(async |mut c, engine, _| {
        for (volume_path, expected) in [
            ("", Code::InvalidArgument),
            ("some/path", Code::NotFound),
            ("/a/../b", Code::NotFound),
            ("/", Code::NotFound),
        ] {
            let volume_path = volume_path.to_owned();
            let request = csi::NodeGetVolumeStatsRequest { volume_path, ..stats() };
            assert_eq!(code(c.node.node_get_volume_stats(request).await), expected);
        }
        assert_eq!(engine.take_calls(), []);
        engine.answer(Answer::Stats(Err(StatsError::NotFound(id()))));
        assert_eq!(code(c.node.node_get_volume_stats(stats()).await), Code::NotFound);
    })
    .await;
}

#[tokio::test]
async fn c11_5_node_expand_re_asserts_and_answers_the_exact_capacity() {
    on_ready_engine(async |mut c, engine, _| {
        let range = csi::CapacityRange { required_bytes: 1 << 30, limit_bytes: 2 << 30 };
        let request = csi::NodeExpandVolumeRequest { capacity_range: Some(range), ..expand() };
        let said = c.node.node_expand_volume(request).await.expect("expanded").into_inner();
        assert_eq!(said.capacity_bytes, 1 << 30);
        let calls = engine.take_calls();
        let [Call::Stats(..), Call::Expand(_, to)] = calls.as_slice() else { panic!("{calls:?}") };
        let limit = Some(Bytes(2 << 30));
        assert_eq!(*to, CapacityRange { required: Some(Bytes(1)), limit });
    })
    .await;
}

#[tokio::test]
async fn c11_5_node_expand_never_grows_a_volume_by_itself() {
    on_ready_engine(async |mut c, engine, _| {
        let range = csi::CapacityRange { required_bytes: (1 << 30) + 1, limit_bytes: 0 };
        let request = csi::NodeExpandVolumeRequest { capacity_range: Some(range), ..expand() };
        let refused = c.node.node_expand_volume(request).await.expect_err("too early");
        assert_eq!(refused.code(), Code::Internal);
        assert!(refused.message().contains("has 1073741824 bytes"), "{refused}");
        let calls = engine.take_calls();
        let Some(Call::Expand(_, to)) = calls.last() else { panic!("{calls:?}") };
        assert_eq!(to.required, Some(Bytes(1)));
    })
    .await;
}

#[tokio::test]
async fn c12_5_node_expand_codes_follow_the_table() {
    on_ready_engine(async |mut c, engine, _| {
        let with_range = |required_bytes, limit_bytes| csi::NodeExpandVolumeRequest {
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes }),
            ..expand()
        };
        let at =
            |path: &str| csi::NodeExpandVolumeRequest { volume_path: path.to_owned(), ..expand() };
        for (request, expected) in [
            (with_range(-1, 0), Code::OutOfRange),
            (with_range(2, 1), Code::OutOfRange),
            (at(""), Code::InvalidArgument),
            (at("some/path"), Code::NotFound),
        ] {
            assert_eq!(code(c.node.node_expand_volume(request).await), expected);
        }
        assert_eq!(engine.take_calls(), []);
        engine.answer(Answer::Stats(Err(StatsError::NotFound(id()))));
        assert_eq!(code(c.node.node_expand_volume(expand()).await), Code::NotFound);
        for (result, expected) in [
            (Err(ExpandError::NotFound(id())), Code::NotFound),
            (Err(ExpandError::OutOfRange("limit below".into())), Code::OutOfRange),
            (
                Err(ExpandError::NoSpace { wanted: Bytes(2), available: Bytes(1) }),
                Code::ResourceExhausted,
            ),
            (Ok(Expanded { capacity: Bytes(7), node_expansion_required: false }), Code::Ok),
        ] {
            engine.answer(Answer::Stats(Ok(sample_stats())));
            engine.answer(Answer::Expand(result));
            assert_eq!(code(c.node.node_expand_volume(expand()).await), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn c11_7_health_has_two_wire_forms_of_one_source() {
    let mut home = Home::new();
    home.config.health_api = HealthApi::Both;
    let (engine, log) = (FakeEngine::ready(), Lines::default());
    with_driver(&home, &engine, &log, async |mut c| {
        let message = "the entry is gone".to_owned();
        let gone = Condition { kind: ConditionKind::DataMissing, message };
        engine.answer(Answer::Health(vec![gone]));
        let volume_id = "pvc-1".to_owned();
        let request = csi::NodeGetVolumeHealthRequest { volume_id, ..Default::default() };
        let said = c.node.node_get_volume_health(request).await.expect("health").into_inner();
        let health = said.volume_health.expect("told");
        let [entry] = health.health_statuses.as_slice() else { panic!("{health:?}") };
        assert_eq!(entry.status(), csi::VolumeHealthErrorType::DataLoss);
        assert_eq!(entry.reason, "DataMissing");

        let ask = csi::NodeGetStorageHealthRequest::default;
        let said = c.node.node_get_storage_health(ask()).await.expect("health").into_inner();
        assert_eq!(said.backend_health, []);
        *engine.phase.lock() = EnginePhase::Degraded("EIO".into());
        let said = c.node.node_get_storage_health(ask()).await.expect("health").into_inner();
        let [backend] = said.backend_health.as_slice() else { panic!("{said:?}") };
        assert_eq!(backend.status(), csi::StorageHealthErrorType::StorageDegraded);
    })
    .await;
}

#[tokio::test]
async fn c12_5_what_is_not_served_is_unimplemented() {
    on_ready_engine(async |mut c, _, _| {
        let (n, k) = (&mut c.node, &mut c.controller);
        let results = [
            code(n.node_stage_volume(csi::NodeStageVolumeRequest::default()).await),
            code(n.node_unstage_volume(csi::NodeUnstageVolumeRequest::default()).await),
            code(n.node_get_volume_health(csi::NodeGetVolumeHealthRequest::default()).await),
            code(n.node_get_storage_health(csi::NodeGetStorageHealthRequest::default()).await),
            code(k.controller_publish_volume(csi::ControllerPublishVolumeRequest::default()).await),
            code(
                k.controller_unpublish_volume(csi::ControllerUnpublishVolumeRequest::default())
                    .await,
            ),
            code(k.controller_modify_volume(csi::ControllerModifyVolumeRequest::default()).await),
            code(
                k.controller_get_volume_health(csi::ControllerGetVolumeHealthRequest::default())
                    .await,
            ),
            code(
                k.controller_list_volume_health(csi::ControllerListVolumeHealthRequest::default())
                    .await,
            ),
            code(k.get_snapshot(csi::GetSnapshotRequest::default()).await),
        ];
        assert_eq!(results, [Code::Unimplemented; 10]);
    })
    .await;
}

#[tokio::test]
async fn c12_5_every_status_but_ok_is_logged_locally_with_its_chain() {
    on_ready_engine(async |mut c, engine, log| {
        c.node.node_publish_volume(publish()).await.expect("published");
        assert_eq!(log.take(), Vec::<String>::new());

        let source = Arc::new(std::io::Error::other("disk on fire"));
        let step = Trouble::Step { step: "bind", id: "pvc-1".into(), source };
        engine.answer(Answer::Publish(PublishError::Trouble(step)));
        let status = c.node.node_publish_volume(publish()).await.expect_err("failed");
        assert_eq!(status.message(), "bind of volume pvc-1 failed: disk on fire");
        let lines = log.take();
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        for part in ["ERRO", "/csi.v1.Node/NodePublishVolume", "Internal", "disk on fire"] {
            assert!(line.contains(part), "{part} in {line}");
        }

        let volume_id = "../x".to_owned();
        let hostile = csi::NodeUnpublishVolumeRequest { volume_id, ..unpublish() };
        c.node.node_unpublish_volume(hostile).await.expect_err("refused");
        let lines = log.take();
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        for part in ["WARN", "InvalidArgument", "../x"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    })
    .await;
}

#[tokio::test]
async fn c13_calls_are_counted_by_method_and_code_and_unknown_methods_make_no_series() {
    let (home, engine, log) = (Home::new(), FakeEngine::ready(), Lines::default());
    let mut registry = Registry::default();
    home.config.metrics.register(&mut registry);
    with_driver(&home, &engine, &log, async |mut c| {
        c.identity.probe(csi::ProbeRequest {}).await.expect("ready");
        let _ = c.node.node_publish_volume(csi::NodePublishVolumeRequest::default()).await;
        let _ = c.controller.get_snapshot(csi::GetSnapshotRequest::default()).await;
    })
    .await;
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("text");
    for series in [
        r#"seconds_count{method_name="/csi.v1.Identity/Probe",grpc_status_code="OK"} 1"#,
        r#"{method_name="/csi.v1.Node/NodePublishVolume",grpc_status_code="InvalidArgument"} 1"#,
        r#"{method_name="unknown",grpc_status_code="Unimplemented"} 1"#,
    ] {
        assert!(page.contains(series), "{series} in {page}");
    }
    assert!(!page.contains("Controller"), "{page}");
}

#[tokio::test]
async fn c17_a_message_beyond_4_mib_is_resource_exhausted() {
    on_ready_engine(async |mut c, engine, _| {
        let volume_id = "a".repeat(5 << 20);
        let request = csi::NodePublishVolumeRequest { volume_id, ..publish() };
        let refused = c.node.node_publish_volume(request).await;
        assert_eq!(code(refused), Code::ResourceExhausted);
        assert_eq!(engine.take_calls(), []);
        assert_eq!(code(c.node.node_publish_volume(publish()).await), Code::Ok);
    })
    .await;
}

/// Serves, starts a publish that the engine holds, then asks the server to stop.
async fn stop_during_a_call(release: bool) -> (Result<(), Code>, Lines) {
    let (home, engine, log) = (Home::new(), FakeEngine::ready(), Lines::default());
    engine.answer(Answer::Hold);
    let config = Arc::new(home.config.clone());
    let app = csi_app(&config, engine.clone(), log.logger());
    let socket = BoundSocket::bind(&config.socket).await.expect("bind");
    let (stop, stopping) = tokio::sync::oneshot::channel();
    let served = serve(socket, app, 0, stopping);
    let called = async {
        let mut client = Client::connect(&config.socket).await;
        let call = client.node.node_publish_volume(publish());
        let interrupt = async {
            engine.held.notified().await;
            stop.send(()).expect("the server runs");
            if release {
                engine.release.notify_one();
            }
        };
        let (result, ()) = tokio::join!(call, interrupt);
        result.map(|_| ()).map_err(|s| s.code())
    };
    let (end, result) = tokio::join!(served, called);
    end.expect("serves until told").expect("told");
    assert!(!config.socket.exists(), "the socket is removed");
    (result, log)
}

#[tokio::test]
async fn x6_a_running_call_is_answered_after_the_socket_is_closed() {
    let (result, log) = stop_during_a_call(true).await;
    assert_eq!(result, Ok(()));
    assert!(!log.take().iter().any(|l| l.contains("cut off")));
}

#[tokio::test(start_paused = true)]
async fn x6_a_call_that_does_not_end_is_cut_off_after_five_seconds() {
    let started = tokio::time::Instant::now();
    let (result, log) = stop_during_a_call(false).await;
    assert!(result.is_err(), "{result:?}");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
    assert!(log.take().iter().any(|l| l.contains("cut off")));
}
