//! What changes something, and who is refused (rules W6 and W9).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod fixture;

use std::net::{IpAddr, Ipv4Addr};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use dashboard::{Ask, AskError, Local, Peer, Role};
use fixture::{TOKEN, World};
use http::{Request, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use logtree::{Backlog, Dn, Level, Query};
use serde_json::{Value, json};
use tower::ServiceExt;

const STORAGE: &str = "/api/v1/restart/root.storage";
const WRITES: [(&str, &str); 6] = [
    (STORAGE, ""),
    ("/restart/root.storage", ""),
    ("/api/v1/level", r#"{"dn":"root.storage","level":"trace"}"#),
    ("/level", r#"{"dn":"root.storage","level":"trace"}"#),
    ("/api/v1/power", r#"{"action":"reboot"}"#),
    ("/power", r#"{"action":"reboot"}"#),
];

fn world() -> World {
    let now = Timestamp::from_second(1_795_276_800).unwrap();
    fixture::world(fixture::well(now), now)
}

fn router(world: &World) -> Router {
    dashboard::router(world.sources.clone(), world.access.clone())
}

fn certificate(role: Role) -> Peer {
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
    Peer::Certificate { address, name: "somebody".to_owned(), role }
}

fn post(path: &str, body: &str) -> http::request::Builder {
    let kind = if body.starts_with('{') {
        "application/json"
    } else {
        "application/x-www-form-urlencoded"
    };
    Request::post(path).header(header::CONTENT_TYPE, kind).header(header::HOST, "node:7840")
}

async fn send(world: &World, request: http::request::Builder, body: &str) -> Response {
    let request = request.body(Body::from(body.to_owned())).unwrap();
    router(world).oneshot(request).await.unwrap()
}

async fn as_admin(world: &World, path: &str, body: &str) -> (u16, Value) {
    let request = post(path, body).extension(Peer::Socket { pid: 7 });
    let response = send(world, request, body).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn level_of(world: &World, dn: &str) -> Level {
    world.logs.level(&Dn::new(dn).unwrap())
}

#[tokio::test(start_paused = true)]
async fn w9_who_may_not_write_changes_nothing_and_is_told_what_would_do() {
    let world = world();
    let network = Peer::Network(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2)));
    let bearer = format!("Bearer {TOKEN}");
    for (path, body) in WRITES {
        for (peer, token, status) in [
            (network.clone(), None, 401),
            (network.clone(), Some("Bearer wrong"), 401),
            (network.clone(), Some(bearer.as_str()), 403),
            (certificate(Role::Viewer), None, 403),
            (certificate(Role::Viewer), Some(bearer.as_str()), 403),
        ] {
            let mut request = post(path, body).extension(peer.clone());
            if let Some(token) = token {
                request = request.header(header::AUTHORIZATION, token);
            }
            let response = send(&world, request, body).await;
            assert_eq!(response.status(), status, "{path} by {peer} with {token:?}");
        }
    }
    assert_eq!(*world.asked.lock(), [""; 0]);
    assert_eq!(level_of(&world, "root.storage"), Level::Debug);
    let response = send(&world, post(STORAGE, "").extension(certificate(Role::Viewer)), "").await;
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(problem["error"]["code"], "forbidden");
    assert!(problem["error"]["hint"].as_str().unwrap().contains("control socket"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn w9_socket_host_channel_and_admin_certificate_may_write() {
    let world = world();
    for peer in [Peer::Socket { pid: 7 }, Peer::Host, certificate(Role::Admin)] {
        let response = send(&world, post(STORAGE, "").extension(peer), "").await;
        assert_eq!(response.status(), 200);
    }
    assert_eq!(*world.asked.lock(), ["restart root.storage"; 3]);
}

#[tokio::test(start_paused = true)]
async fn w9_a_page_of_another_site_cannot_use_an_admins_certificate() {
    let world = world();
    for (name, value, status) in [
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "https://node:7840", 200),
        ("sec-fetch-site", "same-origin", 200),
        ("sec-fetch-site", "none", 200),
    ] {
        let request = post(STORAGE, "").extension(certificate(Role::Admin)).header(name, value);
        assert_eq!(send(&world, request, "").await.status(), status, "{name}: {value}");
    }
    assert_eq!(world.asked.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn w9_a_write_is_a_post_and_a_read_is_not() {
    let world = world();
    for (path, _) in WRITES {
        let request = Request::get(path).extension(Peer::Host);
        let response = send(&world, request, "").await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::ALLOW]),
            (405, &"POST".parse().unwrap())
        );
    }
    let response = send(&world, post("/api/v1/tree", "").extension(Peer::Host), "").await;
    assert_eq!(response.headers()[header::ALLOW], "GET, HEAD");
}

#[tokio::test(start_paused = true)]
async fn w16_a_write_that_makes_no_sense_says_what_would() {
    let world = world();
    for (path, body, status, says) in [
        ("/api/v1/restart/root", "", 400, "root"),
        ("/api/v1/restart/root.gone", "", 404, "there is no service root.gone"),
        ("/api/v1/restart/root.orphan", "", 409, "parent"),
        ("/api/v1/restart/ROOT", "", 400, "ROOT"),
        ("/api/v1/level", r#"{"dn":"root.storage"}"#, 400, "level"),
        ("/api/v1/level", r#"{"dn":"root.storage","level":"loud"}"#, 400, "no level loud"),
        ("/api/v1/level", r#"{"dn":"root.nobody","level":"debug"}"#, 404, "root.nobody"),
        ("/api/v1/level", r#"{"dn":"root","level":"debug","for_s":1000000}"#, 400, "for_s"),
        ("/api/v1/level", "{", 400, ""),
        ("/api/v1/power", r#"{"action":"explode"}"#, 400, "explode"),
        ("/api/v1/power", r#"{"action":"reboot","force":7}"#, 400, "force"),
        ("/api/v1/power", "", 400, "action"),
    ] {
        let (got, answer) = as_admin(&world, path, body).await;
        assert_eq!(got, status, "{path} {body}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{path} {body}: {message}");
        assert_ne!(answer["error"]["hint"], "", "{path} {body}");
    }
    assert_eq!(*world.asked.lock(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn w9_levels_reach_the_log_and_expire() {
    let world = world();
    let body = r#"{"dn":"root.storage","level":"trace","for_s":60}"#;
    let (status, answer) = as_admin(&world, "/api/v1/level", body).await;
    assert_eq!((status, answer), (200, json!({"dn":"root.storage","level":"trace","for_s":60})));
    assert_eq!(level_of(&world, "root.storage"), Level::Trace);
    assert_eq!(level_of(&world, "root.power"), Level::Debug);
    let (_, answer) = as_admin(&world, "/api/v1/level", "dn=root&level=warning").await;
    assert_eq!(answer["for_s"], 900);
    assert_eq!(level_of(&world, "root.power"), Level::Warning);
}

#[tokio::test(start_paused = true)]
async fn w9_power_passes_on_what_was_asked_and_by_whom() {
    let world = world();
    for body in [
        r#"{"action":"poweroff"}"#,
        r#"{"action":"reboot","force":true}"#,
        "action=reboot&force=on",
    ] {
        assert_eq!(as_admin(&world, "/api/v1/power", body).await.0, 200);
    }
    let by = "pid 7 at the control socket";
    assert_eq!(
        *world.asked.lock(),
        [
            format!("poweroff force=false by {by}"),
            format!("reboot force=true by {by}"),
            format!("reboot force=true by {by}"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn w9_a_form_leads_back_to_its_page() {
    let world = world();
    for (path, body, back) in [
        ("/restart/root.storage", "", "/dn/root.storage"),
        ("/level", "dn=root.storage&level=debug", "/dn/root.storage"),
        ("/power", "action=reboot", "/"),
    ] {
        let response = send(&world, post(path, body).extension(Peer::Host), body).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::LOCATION]),
            (303, &back.parse().unwrap())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn b11_the_host_asks_without_a_connection_and_gets_whole_answers() {
    let world = world();
    let local = Local::new(
        world.sources.clone(),
        world.access.clone(),
        world.logs.logger(&Dn::from_static("root.host-channel")),
    );
    let ask = |method: &str, path: &str| Ask {
        method: method.into(),
        path: path.into(),
        body: String::new(),
    };
    let tree = local.ask(Peer::Host, ask("GET", "/api/v1/tree")).await.unwrap();
    assert!(tree.is_success() && tree.body.contains("\"verdict\":\"ok\""));
    assert!(local.ask(Peer::Host, ask("POST", STORAGE)).await.unwrap().is_success());
    assert_eq!(local.ask(Peer::Host, ask("GET", "/nowhere")).await.unwrap().status, 404);
    for path in ["/api/v1/logs?follow=1", "/api/v1/stream"] {
        let refused = local.ask(Peer::Host, ask("GET", path)).await;
        assert!(matches!(refused, Err(AskError::Endless)), "{path}");
    }
    for (method, path) in [("GET", "no path"), ("", "/"), ("GET\n", "/")] {
        let refused = local.ask(Peer::Host, ask(method, path)).await;
        assert!(matches!(refused, Err(AskError::Request(_))), "{method} {path}");
    }
    // Every write is in the log, with who sent it.
    let mut reader =
        world.logs.read(Query { backlog: Backlog::All, ..Query::all(Dn::ALL) }).unwrap();
    let lines: Vec<String> = reader.next(100).entries.iter().map(|e| logtree::to_text(e)).collect();
    assert!(
        lines
            .iter()
            .any(|l| l.contains("restart of root.storage requested peer=\"the host channel\"")),
        "{lines:?}"
    );
}
