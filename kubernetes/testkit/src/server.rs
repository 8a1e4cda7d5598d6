//! A scripted API server in memory, behind a real `kube::Client`.
//!
//! Purpose: keep objects, answer get, list, watch, create, update, patch and delete as a real API server does
//! (resource versions, UIDs, finalizers, preconditions, selectors, 409s), write down every request, and fail
//! on demand.
//! Owner: one test. One task serves; it ends with the test's runtime.
//! Invariants: no network, no wall clock; an object's history is replayed to a watch, so nothing is missed
//! between list and watch.
//! It must not know: any controller.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, channel::mpsc};
use http::{Method, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;
/// Resource, namespace ("" if none), name.
type Key = (String, String, String);

/// A request that was made.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `POST`, ...
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Query, "" if none.
    pub query: String,
    /// Body, null if none.
    pub body: Value,
}

/// What to answer instead of the truth.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This status and reason, and nothing is done.
    Refuse(u16, &'static str),
    /// It is done, but the answer is this.
    Lose(u16, &'static str),
}

struct Rule {
    method: &'static str,
    path: String,
    answer: Answer,
    times: usize,
}

struct Watcher {
    resource: String,
    selectors: Selectors,
    send: mpsc::UnboundedSender<Value>,
}

#[derive(Clone, Default)]
struct Selectors {
    labels: String,
    fields: String,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    version: u64,
    watchers: Vec<Watcher>,
    history: Vec<(u64, String, &'static str, Value, Option<Value>)>,
    journal: Vec<Request>,
    rules: Vec<Rule>,
    /// So many more requests are served; then all are answered like this.
    outage: Option<(usize, Answer)>,
}

/// The server. Clones are the same server.
#[derive(Clone, Default)]
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl ApiServer {
    /// Starts an empty server and a client of it. Needs a tokio runtime.
    pub fn start() -> (ApiServer, kube::Client) {
        let server = ApiServer::default();
        let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, Reply>();
        let me = server.clone();
        let serve = async move {
            while let Some((request, respond)) = handle.next_request().await {
                let reply = me.answer(request).await;
                respond.send_response(reply);
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the server belongs to the runtime of one test"
        )]
        tokio::spawn(serve);
        (server, kube::Client::new(service, "default"))
    }

    /// Stores an object, as somebody else would.
    pub fn put<K: k8s_openapi::Resource + serde_json_like::ToJson>(&self, object: &K) {
        let mut value = object.to_json();
        if let Some(o) = value.as_object_mut() {
            o.insert("apiVersion".into(), json!(K::API_VERSION));
            o.insert("kind".into(), json!(K::KIND));
        }
        let name = text(&value, "/metadata/name");
        let namespace = text(&value, "/metadata/namespace");
        let key = (K::URL_PATH_SEGMENT.to_owned(), namespace, name);
        self.state.lock().store(key, value);
        self.changed.notify_waiters();
    }

    /// Stores an object without telling any watch, so that copies are stale.
    pub fn put_unseen<K: k8s_openapi::Resource + serde_json_like::ToJson>(&self, object: &K) {
        let watchers = std::mem::take(&mut self.state.lock().watchers);
        self.put(object);
        let mut state = self.state.lock();
        state.watchers = watchers;
        state.history.pop();
    }

    /// Changes a stored object, as somebody else would.
    pub fn edit(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        let mut state = self.state.lock();
        if let Some(mut object) = state.objects.get(&key).cloned() {
            change(&mut object);
            state.store(key, object);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// After `requests` more requests everything is answered with `answer`, until [`ApiServer::heal`].
    pub fn outage_after(&self, requests: usize, answer: Answer) {
        self.state.lock().outage = Some((requests, answer));
    }

    /// Ends an outage; tells whether it had begun.
    pub fn heal(&self) -> bool {
        self.state.lock().outage.take().is_some_and(|(left, _)| left == 0)
    }

    /// Removes an object, whatever its finalizers.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) {
        self.state.lock().erase(&(resource.into(), namespace.into(), name.into()));
        self.changed.notify_waiters();
    }

    /// The object of that name, or null.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Value {
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        self.state.lock().objects.get(&key).cloned().unwrap_or_default()
    }

    /// All objects of a resource.
    pub fn all(&self, resource: &str) -> Vec<Value> {
        self.state
            .lock()
            .objects
            .iter()
            .filter(|((r, ..), _)| r == resource)
            .map(|(_, v)| v.clone())
            .collect()
    }

    /// Requests so far whose method is `method` and whose path contains `path`.
    pub fn requests(&self, method: &str, path: &str) -> Vec<Request> {
        let journal = &self.state.lock().journal;
        journal.iter().filter(|r| r.method == method && r.path.contains(path)).cloned().collect()
    }

    /// Writes so far: `METHOD path`, without events.
    pub fn writes(&self) -> Vec<String> {
        let journal = &self.state.lock().journal;
        let write = |r: &&Request| r.method != "GET" && !r.path.contains("/events");
        journal.iter().filter(write).map(|r| format!("{} {}", r.method, r.path)).collect()
    }

    /// Messages of the stored events, `reason: message`, in order of their names.
    pub fn events(&self) -> Vec<String> {
        let line = |e: &Value| format!("{}: {}", text(e, "/reason"), text(e, "/message"));
        self.all("events").iter().map(line).collect()
    }

    /// Answers the next `times` requests of that method to a path that contains `path` with `answer`.
    pub fn script(&self, method: &'static str, path: &str, answer: Answer, times: usize) {
        self.state.lock().rules.push(Rule { method, path: path.to_owned(), answer, times });
    }

    /// Forgets all that was scripted.
    pub fn forget_scripts(&self) {
        self.state.lock().rules.clear();
    }

    /// Waits until `condition` holds for the server. Panics after 2 h of the runtime's clock.
    pub async fn until(&self, what: &str, condition: impl Fn(&ApiServer) -> bool) {
        let met = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if condition(self) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(std::time::Duration::from_secs(7200), met).await.is_err() {
            let state = self.state.lock();
            let journal: Vec<String> =
                state.journal.iter().map(|r| format!("{} {}", r.method, r.path)).collect();
            panic!("never: {what}\nrequests:\n{}", journal.join("\n"));
        }
    }

    async fn answer(&self, request: http::Request<Body>) -> Reply {
        let (head, body) = request.into_parts();
        let bytes =
            body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let reply = {
            let mut state = self.state.lock();
            state.journal.push(Request {
                method: head.method.to_string(),
                path: path.clone(),
                query: query.clone(),
                body: body.clone(),
            });
            match state.scripted(head.method.as_str(), &path) {
                Some(Answer::Refuse(code, reason)) => failure(code, reason, &path),
                Some(Answer::Lose(code, reason)) => {
                    let _done_but_not_told = state.serve(&head.method, &path, &query, body);
                    failure(code, reason, &path)
                }
                None => state.serve(&head.method, &path, &query, body),
            }
        };
        self.changed.notify_waiters();
        reply
    }
}

/// `Serialize` by another name, so that callers need no serde of their own.
mod serde_json_like {
    /// Anything that is JSON.
    pub trait ToJson {
        /// As JSON.
        fn to_json(&self) -> serde_json::Value;
    }

    impl<T: k8s_openapi::serde::Serialize> ToJson for T {
        fn to_json(&self) -> serde_json::Value {
            serde_json::to_value(self).unwrap_or_default()
        }
    }
}

impl State {
    fn scripted(&mut self, method: &str, path: &str) -> Option<Answer> {
        match &mut self.outage {
            Some((0, answer)) => return Some(answer.clone()),
            Some((left, _)) => *left -= 1,
            None => {}
        }
        let rule = self
            .rules
            .iter_mut()
            .find(|r| r.times > 0 && r.method == method && path.contains(&r.path))?;
        rule.times -= 1;
        Some(rule.answer.clone())
    }

    fn serve(&mut self, method: &Method, path: &str, query: &str, body: Value) -> Reply {
        let Some((resource, namespace, name)) = route(path) else {
            return failure(404, "NotFound", path);
        };
        let query = parse_query(query);
        let get = |k: &str| query.get(k).cloned().unwrap_or_default();
        let selectors = Selectors { labels: get("labelSelector"), fields: get("fieldSelector") };
        let key = (resource.clone(), namespace, name.clone());
        match (method.as_str(), name.is_empty()) {
            ("GET", true) if matches!(get("watch").as_str(), "true" | "1") => {
                self.watch(resource, selectors, get("resourceVersion").parse().unwrap_or(0))
            }
            ("GET", true) => self.list(&key, &selectors),
            ("GET", false) => match self.objects.get(&key) {
                Some(object) => ok(200, object),
                None => failure(404, "NotFound", path),
            },
            ("POST", true) => self.create(key, body),
            ("PUT", false) => self.update(key, body),
            ("PATCH", false) => self.patch(key, &body),
            ("DELETE", false) => self.delete(key, &body),
            _ => failure(405, "MethodNotAllowed", path),
        }
    }

    fn list(&self, key: &Key, selectors: &Selectors) -> Reply {
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|((r, ns, _), v)| {
                *r == key.0 && (key.1.is_empty() || *ns == key.1) && selectors.match_(v)
            })
            .map(|(_, v)| v)
            .collect();
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": items,
        });
        ok(200, &list)
    }

    fn watch(&mut self, resource: String, selectors: Selectors, since: u64) -> Reply {
        let (send, receive) = mpsc::unbounded();
        let watcher = Watcher { resource, selectors, send };
        for (version, resource, kind, object, before) in &self.history {
            if *version > since && *resource == watcher.resource {
                watcher.tell(kind, object, before.as_ref());
            }
        }
        self.watchers.push(watcher);
        let frames = receive.map(|event: Value| {
            let mut line = event.to_string();
            line.push('\n');
            Ok::<_, Infallible>(Frame::data(Bytes::from(line)))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    fn create(&mut self, mut key: Key, mut body: Value) -> Reply {
        key.2 = text(&body, "/metadata/name");
        if self.objects.contains_key(&key) {
            return failure(409, "AlreadyExists", &key.2);
        }
        if let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.insert("uid".into(), json!(format!("uid-{}", self.version + 1)));
            meta.insert("creationTimestamp".into(), json!("2026-01-01T00:00:00Z"));
        }
        ok(201, &self.store(key, body))
    }

    fn update(&mut self, key: Key, body: Value) -> Reply {
        let Some(current) = self.objects.get(&key) else { return failure(404, "NotFound", &key.2) };
        let sent = text(&body, "/metadata/resourceVersion");
        if !sent.is_empty() && sent != text(current, "/metadata/resourceVersion") {
            return failure(409, "Conflict", &key.2);
        }
        ok(200, &self.store(key, body))
    }

    fn patch(&mut self, key: Key, patch: &Value) -> Reply {
        let Some(current) = self.objects.get(&key) else { return failure(404, "NotFound", &key.2) };
        let uid = text(patch, "/metadata/uid");
        if !uid.is_empty() && uid != text(current, "/metadata/uid") {
            return failure(422, "Invalid", &key.2);
        }
        let sent = text(patch, "/metadata/resourceVersion");
        if !sent.is_empty() && sent != text(current, "/metadata/resourceVersion") {
            return failure(409, "Conflict", &key.2);
        }
        let mut object = current.clone();
        merge(&mut object, patch);
        let pointer = "/metadata/finalizers";
        if let Some(off) = patch
            .pointer("/metadata/$deleteFromPrimitiveList~1finalizers")
            .and_then(Value::as_array)
        {
            if let Some(list) = object.pointer_mut(pointer).and_then(Value::as_array_mut) {
                list.retain(|f| !off.contains(f));
            }
            if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove("$deleteFromPrimitiveList/finalizers");
            }
        } else if let (Some(old), Some(new)) = (current.pointer(pointer), patch.pointer(pointer)) {
            // Strategic merge of a primitive list: union.
            let mut union = old.as_array().cloned().unwrap_or_default();
            union.extend(
                new.as_array()
                    .into_iter()
                    .flatten()
                    .filter(|f| !union.contains(f))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
            if let Some(list) = object.pointer_mut(pointer) {
                *list = Value::Array(union);
            }
        }
        let free = object.pointer(pointer).and_then(Value::as_array).is_none_or(Vec::is_empty);
        if free && object.pointer("/metadata/deletionTimestamp").is_some() {
            self.erase(&key);
            return ok(200, &object);
        }
        ok(200, &self.store(key, object))
    }

    fn delete(&mut self, key: Key, options: &Value) -> Reply {
        let Some(current) = self.objects.get(&key) else { return failure(404, "NotFound", &key.2) };
        let uid = text(options, "/preconditions/uid");
        if !uid.is_empty() && uid != text(current, "/metadata/uid") {
            return failure(409, "Conflict", &key.2);
        }
        let mut object = current.clone();
        if object
            .pointer("/metadata/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|f| !f.is_empty())
        {
            if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.insert("deletionTimestamp".into(), json!("2026-01-01T00:00:01Z"));
            }
            return ok(200, &self.store(key, object));
        }
        self.erase(&key);
        ok(200, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn store(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.insert("resourceVersion".into(), json!(self.version.to_string()));
            meta.entry("uid").or_insert_with(|| json!(format!("uid-{}", self.version)));
        }
        let before = self.objects.insert(key.clone(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.record(&key.0, kind, object.clone(), before);
        object
    }

    fn erase(&mut self, key: &Key) {
        if let Some(object) = self.objects.remove(key) {
            self.version += 1;
            self.record(&key.0, "DELETED", object.clone(), Some(object));
        }
    }

    fn record(&mut self, resource: &str, kind: &'static str, object: Value, before: Option<Value>) {
        self.watchers.retain(|w| !w.send.is_closed());
        for watcher in self.watchers.iter().filter(|w| w.resource == resource) {
            watcher.tell(kind, &object, before.as_ref());
        }
        self.history.push((self.version, resource.to_owned(), kind, object, before));
    }
}

impl Watcher {
    /// As a real watch with selectors: what begins to match is added, what ceases to match is deleted.
    fn tell(&self, kind: &str, object: &Value, before: Option<&Value>) {
        let now = kind != "DELETED" && self.selectors.match_(object);
        let then = before.is_some_and(|b| self.selectors.match_(b));
        let kind = match (then, now) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return,
        };
        // A closed watch is removed at the next change.
        let _closed = self.send.unbounded_send(json!({"type": kind, "object": object}));
    }
}

impl Selectors {
    fn match_(&self, object: &Value) -> bool {
        let label = |k: &str| {
            object.pointer("/metadata/labels").and_then(|l| l.get(k)).and_then(Value::as_str)
        };
        let labels = self.labels.split(',').filter(|t| !t.is_empty()).all(|term| {
            match term.split_once('=') {
                Some((k, v)) => label(k) == Some(v.trim_start_matches('=')),
                None => match term.strip_prefix('!') {
                    Some(k) => label(k).is_none(),
                    None => label(term).is_some(),
                },
            }
        });
        let fields = self.fields.split(',').filter(|t| !t.is_empty()).all(|term| {
            term.split_once('=')
                .is_some_and(|(k, v)| text(object, &format!("/{}", k.replace('.', "/"))) == v)
        });
        labels && fields
    }
}

/// Resource, namespace, name of a path.
fn route(path: &str) -> Option<Key> {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => return None,
    };
    let own = |s: &&str| (*s).to_owned();
    match rest {
        ["namespaces", ns, resource] => Some((own(resource), own(ns), String::new())),
        ["namespaces", ns, resource, name, ..] => Some((own(resource), own(ns), own(name))),
        [resource] => Some((own(resource), String::new(), String::new())),
        [resource, name, ..] => Some((own(resource), String::new(), own(name))),
        [] => None,
    }
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| {
        let mut out = Vec::new();
        let mut bytes = text.bytes();
        while let Some(b) = bytes.next() {
            match b {
                b'+' => out.push(b' '),
                b'%' => {
                    let hex: String = bytes.by_ref().take(2).map(char::from).collect();
                    out.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
                }
                other => out.push(other),
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (decode(k), decode(v)))
        .collect()
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (key, value) in changes {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn ok(code: u16, body: &Value) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *reply.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    reply
}

fn failure(code: u16, reason: &str, what: &str) -> Reply {
    ok(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": format!("{what}: {reason}"),
        }),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::{Api, api::PostParams};

    use super::*;
    use crate::mk_pv;

    #[tokio::test]
    async fn a_kube_client_creates_reads_and_is_refused() {
        let (server, client) = ApiServer::start();
        let api: Api<PersistentVolume> = Api::all(client);
        let pv = mk_pv("a").finalizer("f").build();
        let made = api.create(&PostParams::default(), &pv).await.unwrap();
        assert!(made.metadata.uid.is_some());
        assert!(
            matches!(api.create(&PostParams::default(), &pv).await, Err(kube::Error::Api(s)) if s.is_already_exists())
        );
        assert_eq!(api.get_opt("b").await.unwrap(), None);
        server.script("GET", "persistentvolumes/a", Answer::Refuse(503, "ServiceUnavailable"), 1);
        assert!(api.get("a").await.is_err());
        assert!(api.get("a").await.is_ok());
    }

    #[tokio::test]
    async fn a_finalizer_keeps_a_deleted_object_until_it_is_taken_off() {
        let (server, client) = ApiServer::start();
        let api: Api<PersistentVolume> = Api::all(client);
        server.put(&mk_pv("a").finalizer("f").build());
        let kept = api.delete("a", &Default::default()).await.unwrap();
        assert!(kept.is_left());
        let patch = kube::api::Patch::Strategic(
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}),
        );
        api.patch_metadata("a", &Default::default(), &patch).await.unwrap();
        assert_eq!(server.get("persistentvolumes", "", "a"), Value::Null);
    }

    #[tokio::test]
    async fn a_watch_with_a_selector_tells_what_begins_and_ceases_to_match() {
        use futures::TryStreamExt;
        use kube::runtime::watcher;
        let (server, client) = ApiServer::start();
        server.put(&mk_pv("old").label("x", "1").build());
        server.put(&mk_pv("other").build());
        let api: Api<PersistentVolume> = Api::all(client);
        let stream = watcher(api, watcher::Config::default().labels("x=1"));
        let mut stream = std::pin::pin!(stream);
        let mut seen = Vec::new();
        let mut next = async |n: usize| {
            for _ in 0..n {
                let line = match stream.try_next().await.unwrap().unwrap() {
                    watcher::Event::Init => "init".to_owned(),
                    watcher::Event::InitDone => "done".to_owned(),
                    watcher::Event::InitApply(v) | watcher::Event::Apply(v) => {
                        format!("+{}", v.metadata.name.unwrap())
                    }
                    watcher::Event::Delete(v) => format!("-{}", v.metadata.name.unwrap()),
                };
                seen.push(line);
            }
        };
        next(3).await;
        server.put(&mk_pv("new").label("x", "1").build());
        server.put(&mk_pv("old").label("x", "2").build());
        next(2).await;
        assert_eq!(seen, ["init", "+old", "done", "+new", "-old"]);
    }
}
