//! The dashboard in a real browser: what only shows there.
//!
//! Needs Chromium. Where there is none the tests say so and pass, unless `HAMLET_BROWSER=required`
//! is set, as it is where a whole run is judged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../fixture/mod.rs"]
mod fixture;

mod chromium;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use chromium::{Browser, View};
use fixture::{TOKEN, World};
use jiff::Timestamp;
use logtree::{Dn, Name};
use supervisor::{Config, Handle, Service, State, Supervisor};

/// Colours below WCAG AA, headings that skip a level, controls without a name, and columns that
/// do not fit, as one JSON array of texts.
const AUDIT: &str = include_str!("audit.js");

const PAGES: [&str; 7] = [
    "/",
    "/dn/root.kubernetes.worker.provisioner",
    "/logs?follow=on",
    "/volumes",
    "/volumes/1f0c2a",
    "/node",
    "/nowhere",
];

/// A served dashboard.
struct Site {
    world: Arc<World>,
    at: SocketAddr,
    supervisor: Supervisor,
}

impl Site {
    fn start() -> Site {
        let now = Timestamp::now();
        let world = Arc::new(fixture::world(fixture::troubled(now), now));
        fixture::write_log(&world.logs);
        let at = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let shown = world.clone();
        let root = Service::new(Name::from_static("root"), move |ctx| {
            let shown = shown.clone();
            async move {
                let (sources, access) = (shown.sources.clone(), shown.access.clone());
                ctx.run(dashboard::service(sources, access, at)).await?;
                let running = ctx.healthy();
                Err(running.stop().stopped().await.into())
            }
        });
        let supervisor = Supervisor::start(root, Config::new(world.logs.clone(), 1));
        let mut view = supervisor.view();
        let healthy = async {
            let is = |n: &supervisor::NodeSnapshot| {
                n.dn.last() == "dashboard" && n.state == State::Healthy
            };
            view.wait_for(|s| s.nodes.iter().any(|n| is(n))).await.map(drop)
        };
        supervisor.runtime().block_on(healthy).unwrap();
        Site { world, at, supervisor }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    fn say(&self, text: &str) {
        slog::info!(self.world.logs.logger(&Dn::from_static("root.power")), "{text}");
    }

    fn stop(self) {
        self.supervisor.runtime().block_on(self.supervisor.shutdown());
    }
}

/// A logged-in browser; none where Chromium is missing and need not be there.
fn browser(site: &Site) -> Option<Browser> {
    let Some(mut browser) = Browser::start() else {
        assert_ne!(std::env::var("HAMLET_BROWSER").as_deref(), Ok("required"), "no Chromium");
        println!("skipped: there is no Chromium here");
        return None;
    };
    browser.go(&site.url(&format!("/?token={TOKEN}")));
    Some(browser)
}

/// Where people want to look for themselves, `HAMLET_SCREENSHOTS` names a folder.
fn keep_picture(browser: &mut Browser, path: &str, width: u32, dark: bool) {
    let Ok(folder) = std::env::var("HAMLET_SCREENSHOTS") else { return };
    let page: String = path.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    let theme = if dark { "dark" } else { "light" };
    let file = format!("{folder}/{}-{width}-{theme}.png", page.trim_matches('_'));
    std::fs::write(file, browser.picture()).unwrap();
}

#[test]
fn w4_every_page_meets_aa_contrast_and_fits_320_px_in_both_themes() {
    let site = Site::start();
    if let Some(mut browser) = browser(&site) {
        for path in PAGES {
            for width in [1280, 320] {
                for dark in [false, true] {
                    browser.show(View { width, dark, script: true });
                    browser.go(&site.url(path));
                    keep_picture(&mut browser, path, width, dark);
                    let found = browser.eval(AUDIT);
                    let none = serde_json::json!([]);
                    assert_eq!(found, none, "{path} at {width} px, dark: {dark}");
                }
            }
        }
    }
    site.stop();
}

#[test]
fn w2_a_restart_loop_is_seen_at_a_glance_in_every_width_and_theme() {
    let site = Site::start();
    let looping = fixture::looping(Timestamp::now());
    site.world.tree.send_replace(Arc::new(looping));
    if let Some(mut browser) = browser(&site) {
        for width in [1280, 320] {
            for dark in [false, true] {
                browser.show(View { width, dark, script: true });
                for path in ["/", "/dn/root.kubernetes.worker.kube-proxy"] {
                    browser.go(&site.url(path));
                    keep_picture(&mut browser, &format!("loop{path}"), width, dark);
                    assert_eq!(browser.eval(AUDIT), serde_json::json!([]), "{path} at {width} px");
                    let marks =
                        browser.eval("document.querySelectorAll('.cond .m, .cap .m').length");
                    assert!(marks.as_u64() > Some(3), "{path}: {marks}");
                }
                browser.go(&site.url("/"));
                // Above the fold, before the table of all services.
                let top = browser
                    .eval("document.querySelector('#loops .cond').getBoundingClientRect().top");
                assert!(top.as_f64() < Some(700.0), "{top}");
            }
        }
    }
    site.stop();
}

#[test]
fn w3_five_hundred_services_and_a_full_log_stay_usable() {
    let site = Site::start();
    let now = Timestamp::now();
    let mut snapshot = fixture::well(now);
    let many =
        (0..500).map(|n| Arc::new(fixture::healthy(&format!("root.kubernetes.s{n}"), now, 60)));
    snapshot.nodes.extend(many);
    site.world.tree.send_replace(Arc::new(snapshot));
    for n in 0..100_000 {
        let dn = format!("root.kubernetes.s{}", n % 500);
        slog::info!(site.world.logs.logger(&Dn::new(&dn).unwrap()), "line {}", n);
    }
    if let Some(mut browser) = browser(&site) {
        for width in [1280, 320] {
            browser.show(View { width, dark: false, script: true });
            let began = std::time::Instant::now();
            browser.go(&site.url("/"));
            let first = browser.eval("performance.getEntriesByType('navigation')[0].responseStart");
            println!(
                "500 services at {width} px: first byte {first} ms, loaded {:?}",
                began.elapsed()
            );
            assert!(first.as_f64() < Some(5000.0), "{first}");
            assert_eq!(browser.eval("document.querySelectorAll('.tree tbody tr').length"), 525);
            browser.wait("!document.querySelector('#live').hidden");
            browser.go(&site.url("/logs?follow=on&n=2000"));
            browser.wait("document.querySelectorAll('#log li').length === 2000");
            browser.wait("!document.querySelector('#live').hidden");
            let began = std::time::Instant::now();
            site.say("the newest of all");
            browser.wait("document.querySelector('#log li:last-child bdi').textContent.startsWith('the newest')");
            println!("live update after {:?}", began.elapsed());
            let wide = browser.eval("document.documentElement.scrollWidth - innerWidth");
            assert!(wide.as_i64() <= Some(0), "{wide} px too wide");
        }
    }
    site.stop();
}

#[test]
fn w4_everything_can_be_done_with_the_keyboard_alone() {
    let site = Site::start();
    if let Some(mut browser) = browser(&site) {
        browser.go(&site.url("/logs"));
        // The first stop leads past the navigation; then every control is reached in its order.
        let stops = browser.tab_stops(40);
        assert_eq!(stops[0], "Skip to content", "{stops:?}");
        for part in [
            "Overview", "Logs", "Volumes", "Node", "#f-dn", "#f-level", "#f-text", "#f-since",
            "#f-until", "#f-n",
        ] {
            assert!(stops.iter().any(|s| s == part), "{part} is not in {stops:?}");
        }
        assert!(browser.eval("getComputedStyle(document.activeElement).outlineStyle") != "none");
        browser.eval("document.querySelector('#f-text').focus()");
        browser.press("claim seen", Some("Enter"));
        browser.wait("location.search.includes('text=claim+seen')");
        browser.wait("document.querySelectorAll('#log li').length === 1");
    }
    site.stop();
}

#[test]
fn w3_the_page_lives_changes_and_appends_without_being_loaded_again() {
    let site = Site::start();
    if let Some(mut browser) = browser(&site) {
        browser.go(&site.url("/?log=root.power"));
        browser.wait("!document.querySelector('#live').hidden");
        browser.eval("window.untouched = true");
        assert!(browser.text("#h-verdict").ends_with("is restarting"));
        let well = fixture::well(Timestamp::now());
        site.world.tree.send_replace(Arc::new(well));
        browser.wait("document.querySelector('#h-verdict').textContent.endsWith('is ok')");
        browser.wait("document.querySelector('#say').textContent.startsWith('The node is ok')");
        let nasty = "<img src=x onerror=\"document.title='owned'\">\x1b[2J";
        site.say(nasty);
        browser
            .wait("document.querySelector('#log li:last-child bdi')?.textContent.includes('<img')");
        assert!(browser.text("#log li:last-child bdi").contains("\\x1b[2J"));
        assert_eq!(browser.eval("document.querySelectorAll('#log img').length"), 0);
        assert_eq!(browser.eval("window.untouched"), true);
    }
    site.stop();
}

#[test]
fn w3_a_reader_who_scrolled_up_is_not_moved_but_told() {
    let site = Site::start();
    for n in 0..100 {
        site.say(&format!("line {n}"));
    }
    if let Some(mut browser) = browser(&site) {
        browser.go(&site.url("/logs?follow=on&dn=root.power"));
        browser.wait("!document.querySelector('#live').hidden");
        browser.eval("document.querySelector('#log').scrollTop = 0");
        site.say("unseen");
        browser.wait("document.querySelector('#new').textContent === '1 new ↓'");
        assert_eq!(browser.eval("document.querySelector('#log').scrollTop"), 0);
        browser.eval("document.querySelector('#new').click()");
        browser.wait("document.querySelector('#new').hidden");
        assert_eq!(browser.text("#log li:last-child bdi"), "unseen");
    }
    site.stop();
}

#[test]
fn w3_a_lost_node_is_told_with_the_age_of_what_is_shown() {
    let site = Site::start();
    let found = browser(&site);
    let Some(mut browser) = found else { return site.stop() };
    browser.go(&site.url("/"));
    browser.wait("!document.querySelector('#live').hidden");
    site.stop();
    browser.wait("document.querySelector('#lost').textContent.startsWith('Connection lost.')");
    assert_eq!(browser.eval("document.querySelector('#live').hidden"), true);
}

#[test]
fn w3_without_javascript_everything_can_be_read() {
    let site = Site::start();
    if let Some(mut browser) = browser(&site) {
        browser.show(View { width: 1280, dark: false, script: false });
        for path in PAGES {
            browser.go(&site.url(path));
            let html = browser.html();
            assert!(html.contains("<h1"), "{path}");
            assert!(!html.contains("span id=\"live\" class=\"live\">"), "{path}");
        }
        browser.go(&site.url("/"));
        for part in ["is <b>restarting</b>", "claim seen", "KubeletReady", "reload the page"] {
            assert!(browser.html().contains(part), "{part}");
        }
    }
    site.stop();
}
