//! Every route, as a browser, a program and an attacker see it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use fixture::{BOOT_ID, TOKEN, World, change};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use logtree::Dn;
use serde_json::Value;
use tower::ServiceExt;

const NOW: i64 = 1_795_276_800; // 2026-11-21T16:00:00Z

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn troubled() -> World {
    let world = fixture::world(fixture::troubled(now()), now());
    fixture::write_log(&world.logs);
    world
}

fn router(world: &World) -> Router {
    dashboard::router(world.sources.clone(), world.access.clone())
}

fn get(path: &str) -> http::request::Builder {
    Request::get(path).header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
}

async fn send(router: &Router, request: http::request::Builder) -> Response {
    router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn page(world: &World, path: &str) -> String {
    let response = send(&router(world), get(path).header(header::ACCEPT, "text/html")).await;
    assert_eq!(response.status(), 200, "{path}");
    text(response).await
}

async fn json(world: &World, path: &str) -> Value {
    let response = send(&router(world), get(path)).await;
    assert_eq!(response.status(), 200, "{path}");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    serde_json::from_str(&text(response).await).unwrap()
}

const PAGES: [&str; 8] = [
    "/",
    "/?log=root.storage",
    "/dn/root.kubernetes.worker.provisioner",
    "/logs",
    "/logs?follow=on&dn=root&level=warning&n=5",
    "/volumes",
    "/volumes/1f0c2a",
    "/node",
];
const DOCUMENTS: [&str; 9] = [
    "/api/v1/dns",
    "/api/v1/node",
    "/api/v1/tree",
    "/api/v1/tree/root.storage",
    "/api/v1/logs",
    "/api/v1/volumes",
    "/api/v1/conditions",
    "/api/v1/processes",
    "/api/v1/transitions",
];

#[tokio::test(start_paused = true)]
async fn w1_every_answer_carries_the_protecting_headers() {
    let world = troubled();
    let router = router(&world);
    let others = ["/style.css", "/app.js", "/metrics", "/livez", "/readyz", "/healthz", "/nowhere"];
    for path in PAGES.iter().chain(&DOCUMENTS).chain(&others) {
        let response = send(&router, get(path)).await;
        let headers = response.headers();
        let csp = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(csp.starts_with("default-src 'none'; style-src 'self'"), "{path}");
        assert!(csp.contains("frame-ancestors 'none'"), "{path}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        assert_eq!(headers[header::REFERRER_POLICY], "no-referrer", "{path}");
        assert_eq!(headers[header::CACHE_CONTROL], "no-store", "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn w1_pages_obey_their_own_content_security_policy() {
    let world = troubled();
    for path in PAGES {
        let html = page(&world, path).await;
        for forbidden in [" style=", "<style", "onclick", "javascript:", "http://", "https://"] {
            let at = html.find(forbidden).filter(|i| !html[*i..].starts_with("http://www.w3.org"));
            assert_eq!(at, None, "{path} has {forbidden}");
        }
        assert_eq!(html.matches("<script").count(), 1, "{path}");
        assert!(html.contains("<script src=\"/app.js\" defer></script>"), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn w4_ids_are_unique_and_every_label_and_heading_reference_has_its_target() {
    let world = troubled();
    for path in PAGES {
        let html = page(&world, path).await;
        let values = |attribute: &str| -> Vec<String> {
            let open = format!(" {attribute}=\"");
            let parts = html.split(&open).skip(1);
            parts.map(|p| p.split('"').next().unwrap().to_owned()).collect()
        };
        let ids = values("id");
        let unique: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{path}: {ids:?}");
        for target in values("for").iter().chain(&values("aria-labelledby")) {
            assert!(unique.contains(target), "{path}: nothing has the id {target}");
        }
        assert_eq!(html.matches("<h1").count(), 1, "{path}");
        let captions = html.matches("<caption").count();
        assert_eq!(html.matches("<table").count(), captions, "{path}: every table has a caption");
    }
}

#[tokio::test(start_paused = true)]
async fn w1_the_assets_stay_within_their_limits() {
    let world = troubled();
    for (path, kind, max) in
        [("/style.css", "text/css", 16 << 10), ("/app.js", "text/javascript", 12 << 10)]
    {
        let response = send(&router(&world), Request::get(path)).await;
        let of = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        assert!(of.starts_with(kind), "{of}");
        let size = text(response).await.len();
        assert!(size > 0 && size <= max, "{path} has {size} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn w1_everything_but_get_and_head_is_405() {
    let world = troubled();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        for path in ["/", "/api/v1/tree", "/nowhere"] {
            let response = send(&router(&world), get(path).method(method)).await;
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert_eq!(response.headers()[header::ALLOW], "GET, HEAD");
        }
    }
    let response = send(&router(&world), get("/").method("HEAD")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, "");
}

#[tokio::test(start_paused = true)]
async fn w2_the_first_page_says_who_is_ill_and_why_and_when_it_is_tried_again() {
    let html = page(&troubled(), "/").await;
    assert!(html.contains("hamlet-0 is <b>restarting</b>"));
    assert!(html.contains("href=\"/dn/root.kubernetes.worker.provisioner\""));
    assert!(html.contains("index out of bounds"));
    assert!(html.contains("Next try <time class=\"in\""));
    for part in ["apiserver", "KubeletReady", "default/demo-data", "64 MiB", "nobody wrote down"] {
        assert!(html.contains(part), "{part}");
    }
    // The log of everything, newest entries.
    assert!(html.contains("claim seen"));
    assert!(html.contains("<i>claim=</i>default/demo-data"));
}

#[tokio::test(start_paused = true)]
async fn w2_the_first_page_is_at_most_60_kib_for_60_dns() {
    let world = troubled();
    let mut snapshot = fixture::troubled(now());
    for n in snapshot.nodes.len()..60 {
        let mut node = fixture::healthy(&format!("root.kubernetes.worker.extra-{n}"), now(), 60);
        node.note = Some("doing what such a service does".to_owned());
        snapshot.nodes.push(Arc::new(node));
    }
    world.tree.send_replace(Arc::new(snapshot));
    let size = page(&world, "/").await.len();
    assert!(size <= 60 << 10, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn w2_the_log_of_a_chosen_service_is_shown_on_the_first_page() {
    let html = page(&troubled(), "/?log=root.storage").await;
    assert!(html.contains("recovery finished"));
    assert!(!html.contains("claim seen"));
    assert!(html.contains("<option selected>root.storage</option>"));
}

#[tokio::test(start_paused = true)]
async fn w3_older_and_newer_pages_meet_without_gap_or_overlap() {
    let world = troubled();
    let log = world.logs.logger(&Dn::from_static("root.power"));
    for n in 0..50 {
        slog::info!(log, "line {n}"; "n" => n);
    }
    let numbers = |answer: &Value| -> Vec<String> {
        let entries = answer["entries"].as_array().unwrap();
        entries.iter().map(|e| e["fields"]["n"].as_str().unwrap().to_owned()).collect()
    };
    let newest = json(&world, "/api/v1/logs?dn=root.power&n=20").await;
    let first = newest["entries"][0]["seq"].as_u64().unwrap();
    let older = json(&world, &format!("/api/v1/logs?dn=root.power&n=20&before={first}")).await;
    let first = older["entries"][0]["seq"].as_u64().unwrap();
    let oldest = json(&world, &format!("/api/v1/logs?dn=root.power&n=20&before={first}")).await;
    let all = [numbers(&oldest), numbers(&older), numbers(&newest)].concat();
    assert_eq!(all, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    let last = older["entries"][19]["seq"].as_u64().unwrap();
    let newer = json(&world, &format!("/api/v1/logs?dn=root.power&n=5&after={last}")).await;
    assert_eq!(numbers(&newer), ["30", "31", "32", "33", "34"]);
    let cursor = newer["cursor"].as_u64().unwrap();
    let next = json(&world, &format!("/api/v1/logs?dn=root.power&n=5&after={cursor}")).await;
    assert_eq!(numbers(&next), ["35", "36", "37", "38", "39"]);
}

#[tokio::test(start_paused = true)]
async fn w3_a_time_span_is_searched_in_full_or_as_a_form_sends_it() {
    let world = troubled();
    let all = json(&world, "/api/v1/logs").await["entries"].as_array().unwrap().clone();
    let at = |i: usize| all[i]["time"].as_str().unwrap().to_owned();
    let count = async |query: String| {
        json(&world, &format!("/api/v1/logs?{query}")).await["entries"].as_array().unwrap().len()
    };
    let later = |i: usize| all.iter().filter(|e| e["time"].as_str() >= Some(&at(i))).count();
    let earlier = |i: usize| all.iter().filter(|e| e["time"].as_str() <= Some(&at(i))).count();
    assert_eq!(count(format!("since={}", at(3))).await, later(3));
    assert_eq!(count(format!("until={}", at(3))).await, earlier(3));
    assert_eq!(
        count(format!("since={}&until={}", at(3), at(3))).await,
        later(3) + earlier(3) - all.len()
    );
    assert_eq!(count("since=2000-01-01T00:00".into()).await, all.len());
    assert_eq!(count("until=2000-01-01T00:00:00".into()).await, 0);
    // Pages of a span stay in it.
    assert_eq!(count(format!("until={}&before={}", at(5), all[5]["seq"])).await, 5);
    assert_eq!(count(format!("until={}&after={}&n=4", at(15), all[1]["seq"])).await, 4);
}

#[tokio::test(start_paused = true)]
async fn w8_a_reader_may_wait_for_the_first_entry() {
    let world = troubled();
    let cursor = json(&world, "/api/v1/logs").await["cursor"].clone();
    let path = format!("/api/v1/logs?after={cursor}&wait=20&level=warning");
    let began = tokio::time::Instant::now();
    assert_eq!(json(&world, &path).await["entries"].as_array().unwrap().len(), 0);
    assert_eq!(began.elapsed(), Duration::from_secs(20));
    let log = world.logs.logger(&Dn::from_static("root.power"));
    let say = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        slog::info!(log, "too low");
        tokio::time::sleep(Duration::from_secs(5)).await;
        slog::warn!(log, "pressed");
    };
    let (answer, ()) = tokio::join!(json(&world, &path), say);
    assert_eq!(began.elapsed(), Duration::from_secs(30));
    assert_eq!(answer["entries"][0]["message"], "pressed");
    assert_eq!(answer["cursor"], answer["entries"][0]["seq"]);
}

#[tokio::test(start_paused = true)]
async fn w3_the_form_keeps_what_was_asked() {
    let html =
        page(&troubled(), "/logs?dn=root.storage&children=off&level=info&text=%3Cb%3E&n=7").await;
    assert!(html.contains("<option selected>root.storage</option>"));
    assert!(html.contains("<option selected>info</option>"));
    assert!(html.contains("value=\"&lt;b&gt;\""));
    assert!(html.contains("value=\"7\""));
    // Without follow nothing moves by itself, with it a browser without JavaScript reloads.
    assert!(!html.contains("http-equiv"));
    let html = page(&troubled(), "/logs?follow=on").await;
    assert!(html.contains("<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>"));
}

#[tokio::test(start_paused = true)]
async fn w16_hostile_text_is_shown_and_never_obeyed() {
    let world = troubled();
    let nasty = "<script>alert(1)</script>\x1b[2J\u{202e}evil\"'&\0";
    let mut snapshot = fixture::troubled(now());
    change(&mut snapshot, "root.storage", |node| {
        node.note = Some(nasty.to_owned());
        node.reason = nasty.to_owned();
        node.conditions = vec![supervisor::Condition::degraded("Nasty", nasty)];
        if let Some(death) = &mut node.last_death {
            death.text = nasty.to_owned();
        }
    });
    snapshot.verdict_reason = nasty.to_owned();
    world.tree.send_replace(Arc::new(snapshot));
    world.volumes.send_modify(|view| {
        let view = Arc::make_mut(view);
        view.volumes[0].claim = Some(nasty.to_owned());
        view.volumes[0].id = nasty.to_owned();
        view.volumes[0].published = vec![nasty.to_owned()];
        view.volumes[0].conditions[0].message = nasty.to_owned();
    });
    world.node.send_modify(|view| {
        let view = Arc::make_mut(view);
        view.node_name = nasty.to_owned();
        view.version = nasty.to_owned();
        view.conditions[0].message = nasty.to_owned();
        view.outcomes[0].reason = nasty.to_owned();
        view.mounts[0].source = nasty.to_owned();
    });
    let log = world.logs.logger(&Dn::from_static("root.storage"));
    slog::info!(log, "{nasty}"; "key" => nasty);
    slog::info!(log, "{}", "x".repeat(64 << 10));
    let volume = "/volumes/%3Cscript%3Ealert(1)%3C%2Fscript%3E%1B%5B2J%E2%80%AEevil%22'%26%00";
    for path in ["/", "/dn/root.storage", "/logs?dn=root.storage", "/volumes", volume, "/node"] {
        let html = page(&world, path).await;
        assert_eq!(html.matches("<script").count(), 1, "{path}");
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{path}");
        for c in ['\x1b', '\0', '\u{202e}'] {
            assert!(!html.contains(c), "{path} has {c:?}");
        }
        assert!(html.contains("\\x1b[2J\\u{202e}evil"), "{path}");
        assert!(html.len() < 128 << 10, "{path} has {} bytes", html.len());
    }
}

#[tokio::test(start_paused = true)]
async fn w6_without_the_token_nothing_but_liveness_is_told() {
    let world = troubled();
    let router = router(&world);
    for path in PAGES.iter().chain(&DOCUMENTS).chain(&["/metrics", "/healthz", "/readyz?verbose"]) {
        let response = send(&router, Request::get(*path).header(header::ACCEPT, "text/html")).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{path}");
        assert!(
            response.headers()[header::WWW_AUTHENTICATE].to_str().unwrap().starts_with("Bearer")
        );
        let body = text(response).await;
        for secret in ["hamlet-0", "provisioner", BOOT_ID, TOKEN] {
            assert!(!body.contains(secret), "{path} tells {secret}");
        }
    }
    for path in ["/livez", "/readyz"] {
        let response = send(&router, Request::get(path)).await;
        assert_ne!(response.status(), StatusCode::UNAUTHORIZED);
        assert!(text(response).await.len() < 32);
    }
}

#[tokio::test(start_paused = true)]
async fn w6_the_link_sets_a_cookie_and_hides_the_token() {
    let world = troubled();
    let router = router(&world);
    let response = send(&router, Request::get(format!("/?token={TOKEN}"))).await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    assert_eq!(response.headers()[header::LOCATION], "/");
    let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
    assert!(!cookie.contains(TOKEN));
    let pair = cookie.split(';').next().unwrap();
    let response = send(&router, Request::get("/node").header(header::COOKIE, pair)).await;
    assert_eq!(response.status(), 200);
    // Only the first page takes the token in its address.
    let response = send(&router, Request::get(format!("/node?token={TOKEN}"))).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn w6_the_eleventh_wrong_token_of_a_minute_is_429() {
    let world = troubled();
    let router = router(&world);
    for _ in 0..10 {
        let response = send(&router, Request::get("/?token=guess")).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    }
    let response = send(&router, get("/api/v1/tree")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()[header::RETRY_AFTER], "60");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(send(&router, get("/api/v1/tree")).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn w7_readiness_follows_the_verdict() {
    let world = fixture::world(fixture::well(now()), now());
    let status = async |path| send(&router(&world), get(path)).await.status().as_u16();
    assert_eq!(status("/readyz").await, 200);
    assert_eq!(status("/healthz").await, 200);
    assert_eq!(status("/healthz/root.storage").await, 200);
    let mut booting = fixture::well(now());
    booting.boot_finished = false;
    world.tree.send_replace(Arc::new(booting));
    assert_eq!(status("/readyz").await, 503);
    let mut leaving = fixture::well(now());
    leaving.shutting_down = true;
    world.tree.send_replace(Arc::new(leaving));
    assert_eq!(status("/readyz").await, 503);
    world.tree.send_replace(Arc::new(fixture::troubled(now())));
    assert_eq!(status("/readyz").await, 503);
    assert_eq!(status("/healthz/root.kubernetes.worker.provisioner").await, 503);
    assert_eq!(status("/healthz/root.kubernetes.controlplane.scheduler").await, 200);
    assert_eq!(status("/healthz/root.nobody").await, 404);
    assert_eq!(status("/livez").await, 200);
    let list = text(send(&router(&world), get("/healthz?verbose")).await).await;
    assert!(list.contains("[+]root.storage ok\n"), "{list}");
    assert!(list.contains("[-]root.kubernetes.worker.provisioner restarting: panicked"), "{list}");
}

#[tokio::test(start_paused = true)]
async fn w7_without_a_supervisor_nothing_lives() {
    let world = troubled();
    let router = router(&world);
    drop(world.tree);
    assert_eq!(send(&router, Request::get("/livez")).await.status(), 503);
}

#[tokio::test(start_paused = true)]
async fn w16_what_is_not_there_is_404_and_says_what_is() {
    let world = troubled();
    let router = router(&world);
    for (path, hint) in [
        ("/api/v1/tree/root.worker.kubelet", "root.kubernetes.worker.kubelet"),
        ("/dn/root.nobody-at-all", "first page"),
        ("/volumes/none", "/volumes"),
        ("/nowhere", "first page"),
    ] {
        let response = send(&router, get(path)).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        let body = text(response).await;
        assert!(body.contains(hint), "{path}: {body}");
    }
    let response = send(&router, get("/nowhere").header(header::ACCEPT, "text/html,*/*")).await;
    let body = text(response).await;
    assert!(body.starts_with("<!DOCTYPE html>") && body.contains("404 Not Found"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn w16_bad_requests_name_the_allowed_values() {
    let world = troubled();
    let router = router(&world);
    for path in [
        "/logs?level=loud",
        "/api/v1/logs?n=1000000000",
        "/api/v1/logs?after=elephant",
        "/api/v1/logs?n=1&n=2",
        "/dn/Root..x",
        "/?log=%FF",
        "/api/v1/tree/%FF",
        "/api/v1/stream?tree=maybe",
    ] {
        let response = send(&router, get(path)).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{path}");
        let body: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(body["error"]["code"], "bad_request");
        assert!(!body["error"]["hint"].as_str().unwrap().is_empty(), "{path}");
    }
    let long = format!("/api/v1/logs?text={}", "x".repeat(9000));
    assert_eq!(send(&router, get(&long)).await.status(), StatusCode::URI_TOO_LONG);
}

#[tokio::test(start_paused = true)]
async fn w16_the_log_of_a_vanished_service_stays_readable() {
    let world = troubled();
    slog::info!(world.logs.logger(&Dn::from_static("libs.kube")), "from a library");
    let html = page(&world, "/dn/libs.kube").await;
    assert!(html.contains("no service of the tree now"));
    assert!(html.contains("from a library"));
}

#[tokio::test(start_paused = true)]
async fn w5_a_page_sees_the_tree_and_its_log_change() {
    let world = troubled();
    let mut stream = Sse::open(&world, "/api/v1/stream?tree=on&logs=on&dn=root.power", None).await;
    let first = stream.next().await;
    assert!(first.starts_with("retry: 2000\n\nevent: state\n"), "{first}");
    assert!(first.contains("\"verdict\":\"restarting\""));
    world.tree.send_replace(Arc::new(fixture::well(now())));
    let state = stream.next().await;
    assert!(state.starts_with("event: state\n") && state.contains("\"verdict\":\"ok\""));
    slog::info!(world.logs.logger(&Dn::from_static("root.storage")), "not asked for");
    slog::info!(world.logs.logger(&Dn::from_static("root.power")), "button <pressed>");
    let entry = stream.next().await;
    assert!(entry.starts_with(&format!("event: entry\nid: {BOOT_ID}:")), "{entry}");
    assert!(entry.contains("\"message\":\"button <pressed>\""));
    assert!(!entry.contains("not asked for"));
}

#[tokio::test(start_paused = true)]
async fn w5_a_browser_that_comes_back_gets_exactly_what_came_since() {
    let world = troubled();
    let log = world.logs.logger(&Dn::from_static("root.power"));
    let path = "/api/v1/stream?logs=on&dn=root.power";
    let mut stream = Sse::open(&world, path, None).await;
    stream.next().await;
    slog::info!(log, "one");
    let one = stream.next().await;
    let id = one.lines().find_map(|l| l.strip_prefix("id: ")).unwrap().to_owned();
    drop(stream);
    slog::info!(log, "two");
    slog::info!(log, "three");
    let mut stream = Sse::open(&world, path, Some(&id)).await;
    let head = stream.next().await;
    assert!(!head.contains("reset"), "{head}");
    let rest = stream.next().await;
    assert!(!rest.contains("\"one\"") && rest.contains("\"two\"") && rest.contains("\"three\""));
    drop(stream);
    let mut stream = Sse::open(&world, path, Some("other-boot:3")).await;
    let head = stream.next().await;
    assert!(head.contains("event: reset\n"), "{head}");
}

#[tokio::test(start_paused = true)]
async fn w5_a_silent_stream_says_every_15_s_that_it_lives() {
    let world = troubled();
    let mut stream = Sse::open(&world, "/api/v1/stream", None).await;
    stream.next().await;
    let begin = tokio::time::Instant::now();
    assert!(stream.next().await.starts_with(':'));
    assert_eq!(begin.elapsed(), Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn w5_the_33rd_stream_is_503_until_one_ends() {
    let world = troubled();
    let router = router(&world);
    let mut open = Vec::new();
    for _ in 0..32 {
        let response = send(&router, get("/api/v1/stream")).await;
        assert_eq!(response.status(), 200);
        open.push(response);
    }
    let response = send(&router, get("/api/v1/logs?follow=1")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key(header::RETRY_AFTER));
    open.pop();
    assert_eq!(send(&router, get("/api/v1/stream")).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn w8_a_followed_log_is_one_object_a_line() {
    let world = troubled();
    let response = send(&router(&world), get("/api/v1/logs?dn=root.storage&follow=1")).await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/x-ndjson");
    let mut body = response.into_body();
    let chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let lines: Vec<Value> = String::from_utf8(chunk.to_vec())
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1]["message"], "recovery finished");
    assert_eq!(lines[1]["fields"]["volumes"], "3");
}

#[tokio::test(start_paused = true)]
async fn w8_the_documents_keep_their_shape() {
    let world = troubled();
    let mut tree = json(&world, "/api/v1/tree").await;
    tree["nodes"]
        .as_array_mut()
        .unwrap()
        .retain(|n| n["dn"].as_str().unwrap().ends_with("provisioner"));
    insta::assert_json_snapshot!("tree", tree);
    let dn = json(&world, "/api/v1/tree/root.kubernetes.worker.provisioner").await;
    insta::assert_json_snapshot!("tree_dn", dn);
    insta::assert_json_snapshot!("volumes", json(&world, "/api/v1/volumes").await);
    insta::assert_json_snapshot!("node", json(&world, "/api/v1/node").await);
    insta::assert_json_snapshot!("conditions", json(&world, "/api/v1/conditions").await);
    let mut logs = json(&world, "/api/v1/logs?dn=root.storage&n=1").await;
    let time = logs["entries"][0]["time"].take();
    assert_eq!(time.as_str().unwrap().len(), "2026-11-21T16:00:00.000000000Z".len());
    logs["entries"][0]["source"].take();
    insta::assert_json_snapshot!("logs", logs);
}

#[tokio::test(start_paused = true)]
async fn m12_the_metrics_page_is_strict_openmetrics() {
    let world = troubled();
    let router = router(&world);
    send(&router, get("/nowhere")).await;
    let response = send(&router, get("/metrics")).await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let page = text(response).await;
    assert!(page.ends_with("# EOF\n"));
    let mut families = std::collections::HashSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(families.insert(name.to_owned()), "{name} twice");
            assert!(name.starts_with("hamlet_"), "{name}");
        }
    }
    let provisioner = "dn=\"root.kubernetes.worker.provisioner\"";
    for sample in [
        format!("hamlet_supervisor_dn_state{{{provisioner},state=\"dead\"}} 1"),
        format!("hamlet_supervisor_dn_state{{{provisioner},state=\"healthy\"}} 0"),
        format!("hamlet_supervisor_dn_starts_total{{{provisioner},cause=\"panicked\"}} 2"),
        "hamlet_child_up{dn=\"root.kubernetes.controlplane.etcd\"} 1".to_owned(),
        "hamlet_logtree_entries_total{dn=\"root.storage\",level=\"info\"} 3".to_owned(),
        "hamlet_node_phase_seconds{phase=\"tree\"} 1.4".to_owned(),
        "hamlet_dashboard_requests_total{route=\"none\",code=\"404\"} 1".to_owned(),
    ] {
        assert!(page.lines().any(|l| l == sample), "no {sample} in\n{page}");
    }
}

/// Panics when it is scraped.
#[derive(Debug)]
struct Broken;

impl prometheus_client::collector::Collector for Broken {
    fn encode(
        &self,
        _: prometheus_client::encoding::DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        panic!("a collector of another part is broken")
    }
}

#[tokio::test(start_paused = true)]
async fn w10_a_panic_of_a_handler_is_500_and_nothing_else() {
    let mut world = troubled();
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(Broken));
    world.sources.metrics = Arc::new(registry);
    let router = router(&world);
    let response = send(&router, get("/metrics")).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text(response).await.contains("\"code\":\"internal\""));
    assert_eq!(send(&router, get("/")).await.status(), 200);
}

/// One open stream, with the router that it belongs to.
struct Sse {
    body: Body,
    _router: Router,
}

impl Sse {
    async fn open(world: &World, path: &str, resume: Option<&str>) -> Sse {
        let mut request = get(path);
        if let Some(id) = resume {
            request = request.header("last-event-id", id);
        }
        let router = router(world);
        let response = send(&router, request).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        Sse { body: response.into_body(), _router: router }
    }

    async fn next(&mut self) -> String {
        let data = self.body.frame().await.unwrap().unwrap().into_data().unwrap();
        String::from_utf8(data.to_vec()).unwrap()
    }
}
