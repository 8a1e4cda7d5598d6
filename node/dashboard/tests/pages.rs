//! What pages offer beyond reading: search by time, download, charts, loops, and forms for admins.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod fixture;

use axum::body::Body;
use axum::response::Response;
use dashboard::{Peer, Role};
use fixture::World;
use http::{Request, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use logtree::Dn;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tower::ServiceExt;

fn world() -> World {
    let now = Timestamp::now();
    let world = fixture::world(fixture::looping(now), now);
    fixture::write_log(&world.logs);
    world
}

fn certificate(role: Role) -> Peer {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Peer::Certificate { address, name: "somebody".to_owned(), role }
}

async fn get(world: &World, path: &str, role: Role) -> Response {
    let router = dashboard::router(world.sources.clone(), world.access.clone());
    let request =
        Request::get(path).header(header::ACCEPT, "text/html").extension(certificate(role));
    router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn w9_forms_are_there_for_admins_and_only_for_them() {
    let world = world();
    for (path, forms) in [
        ("/dn/root.storage", &["action=\"/restart/root.storage\"", "action=\"/level\""][..]),
        ("/dn/root", &["action=\"/level\""]),
        ("/node", &["action=\"/power\""]),
    ] {
        let admin = text(get(&world, path, Role::Admin).await).await;
        let viewer = text(get(&world, path, Role::Viewer).await).await;
        for form in forms {
            assert!(admin.contains(form), "{path}: no {form}");
        }
        assert!(!viewer.contains("method=\"post\""), "{path}");
        assert!(viewer.contains("read only") && admin.contains("you may change things"), "{path}");
    }
    let root = text(get(&world, "/dn/root", Role::Admin).await).await;
    assert!(!root.contains("/restart/"), "root is not restarted");
}

#[tokio::test(start_paused = true)]
async fn w2_a_restart_loop_comes_first_with_its_history_and_last_error() {
    let world = world();
    let page = text(get(&world, "/", Role::Viewer).await).await;
    let at = |part: &str| page.find(part).unwrap_or_else(|| panic!("no {part}"));
    assert!(at("Restart loops") < at("Services well"));
    let part = &page[at("Restart loops")..at("Services well")];
    for word in [
        "root.<wbr>kubernetes.<wbr>worker.<wbr>kube-proxy",
        "<b>5 times</b> in 10 min, 12 since boot",
        "aria-label=\"10 deaths in the last hour\"",
        "cannot bind 10256: Address in use",
        "/logs?dn=root.kubernetes.worker.kube-proxy&amp;until=20",
    ] {
        assert!(part.contains(word), "no {word} in {part}");
    }
    // Two deaths are no loop.
    assert!(!part.contains("provisioner"));
    let now = Timestamp::now();
    let calm = fixture::world(fixture::well(now), now);
    assert!(!text(get(&calm, "/", Role::Viewer).await).await.contains("Restart loops"));
}

#[tokio::test(start_paused = true)]
async fn w2_memory_and_volumes_show_how_they_went() {
    let world = world();
    let node = text(get(&world, "/node", Role::Viewer).await).await;
    assert!(node.contains("aria-label=\"Memory in use over the last 59 min\""));
    let volume = text(get(&world, "/volumes/1f0c2a", Role::Viewer).await).await;
    assert!(volume.contains("aria-label=\"Space in use over the last 59 min\""));
    let trashed = text(get(&world, "/volumes/77aa01", Role::Viewer).await).await;
    assert!(!trashed.contains("Space in use over"), "there is nothing to draw");
}

#[tokio::test(start_paused = true)]
async fn w3_all_that_matches_can_be_downloaded_as_text() {
    let world = world();
    let log = world.logs.logger(&Dn::from_static("root.power"));
    for n in 0..3000 {
        slog::info!(log, "press {}", n);
    }
    world.node.send_modify(|n| Arc::make_mut(n).node_name = "a\"b\r\nc/../d".to_owned());
    let response = get(&world, "/logs.txt?dn=root.power&text=press", Role::Viewer).await;
    let headers = response.headers();
    assert_eq!(headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(
        headers[header::CONTENT_DISPOSITION],
        "attachment; filename=\"a_b__c_.._d-log.txt\""
    );
    let file = text(response).await;
    assert_eq!(file.lines().count(), 3000);
    assert!(file.lines().next().unwrap().ends_with("] press 0"), "{}", &file[..200]);
    assert!(file.lines().last().unwrap().ends_with("] press 2999"));
    let none = get(&world, "/logs.txt?until=2000-01-01T00:00", Role::Viewer).await;
    assert_eq!(text(none).await, "");
    assert_eq!(get(&world, "/logs.txt?level=loud", Role::Viewer).await.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn w3_the_form_asks_for_times_and_keeps_them() {
    let world = world();
    let path = "/logs?since=2026-11-21T15:00&until=2026-11-21T16:00:00Z";
    let page = text(get(&world, path, Role::Viewer).await).await;
    assert!(page.contains(
        "name=\"since\" type=\"datetime-local\" step=\"1\" value=\"2026-11-21T15:00:00\""
    ));
    assert!(page.contains(
        "name=\"until\" type=\"datetime-local\" step=\"1\" value=\"2026-11-21T16:00:00\""
    ));
    let link =
        "/logs.txt?dn=&amp;since=2026-11-21T15%3A00%3A00Z&amp;until=2026-11-21T16%3A00%3A00Z";
    assert!(page.contains(link), "{page}");
}
