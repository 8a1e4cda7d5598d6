//! Calls to the API server: each with a deadline, a count, and an error that names verb and object.
//!
//! Purpose: the few reads and writes the controller makes, in one place, so that the rights it needs (`rbac`)
//! can be read off this file.
//! Owner: the controller.
//! Invariants: no call lasts longer than the configured timeout; a write never overwrites what it has not read
//! (UID or resource version is always sent); errors keep the server's reason.
//! It must not know: when and why a call is made.

use std::{error::Error, fmt, future::Future, time::Duration};

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use crate::{metrics::Metrics, names::PV_FINALIZER};

/// Objects per page of a list.
const PAGE: u32 = 500;

/// What the server (or the way to it) made of a call, as far as anything depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// 404.
    NotFound,
    /// 409 on create.
    AlreadyExists,
    /// 409 on a change: somebody else was first.
    Conflict,
    /// 422.
    Invalid,
    /// 403.
    Forbidden,
    /// No answer in time.
    Timeout,
    /// Anything else.
    Other,
}

impl Refusal {
    fn word(self) -> &'static str {
        match self {
            Refusal::NotFound => "not_found",
            Refusal::AlreadyExists => "already_exists",
            Refusal::Conflict => "conflict",
            Refusal::Invalid => "invalid",
            Refusal::Forbidden => "forbidden",
            Refusal::Timeout => "timeout",
            Refusal::Other => "error",
        }
    }
}

/// A call that did not succeed.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// What followed.
    pub(crate) refusal: Refusal,
    verb: &'static str,
    object: String,
    source: Option<Box<kube::Error>>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.verb, self.object)?;
        if self.refusal == Refusal::Timeout {
            f.write_str(": the API server did not answer in time")
        } else {
            Ok(())
        }
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

/// An error with all its sources; a source that its parent already printed is left out.
pub(crate) fn chain(e: &(dyn Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        let part = s.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = s.source();
    }
    text
}

/// What became of a deleted object.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// It is gone.
    Gone,
    /// Finalizers keep it.
    Kept(Box<PersistentVolume>),
}

/// The calls.
#[derive(Clone)]
pub(crate) struct ApiCalls {
    /// The client, for watches.
    pub(crate) client: Client,
    timeout: Duration,
    metrics: Metrics,
}

impl ApiCalls {
    /// Calls through `client`, each at most `timeout` long.
    pub(crate) fn new(client: Client, timeout: Duration, metrics: Metrics) -> ApiCalls {
        ApiCalls { client, timeout, metrics }
    }

    /// W6: a claim as it is now; `None` if there is none of that name.
    pub(crate) async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PersistentVolumeClaim>, ApiError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        self.call("get", "persistentvolumeclaims", name, api.get_opt(name)).await
    }

    /// A PV as it is now; `None` if there is none of that name.
    pub(crate) async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        self.call("get", "persistentvolumes", name, api.get_opt(name)).await
    }

    /// Stores a PV.
    pub(crate) async fn create_volume(
        &self,
        pv: &PersistentVolume,
    ) -> Result<PersistentVolume, ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let name = pv.metadata.name.as_deref().unwrap_or_default();
        self.call("create", "persistentvolumes", name, api.create(&PostParams::default(), pv)).await
    }

    /// D5: deletes the PV with that UID and no other.
    pub(crate) async fn delete_volume(&self, name: &str, uid: &str) -> Result<Deleted, ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        // An object that is kept is answered as itself, with the time of its deletion; else a status comes.
        match self
            .call("delete", "persistentvolumes", name, api.delete(name, &params))
            .await?
            .left()
        {
            Some(pv) if pv.metadata.deletion_timestamp.is_some() => Ok(Deleted::Kept(Box::new(pv))),
            Some(_) | None => Ok(Deleted::Gone),
        }
    }

    /// D2, D6: puts our finalizer on the PV with that UID, or takes it off.
    pub(crate) async fn finalizer(
        &self,
        name: &str,
        uid: &str,
        wanted: bool,
    ) -> Result<(), ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let key = if wanted { "finalizers" } else { "$deleteFromPrimitiveList/finalizers" };
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid, key: [PV_FINALIZER]}}));
        let params = PatchParams::default();
        self.call("patch", "persistentvolumes", name, api.patch_metadata(name, &params, &patch))
            .await
            .map(drop)
    }

    /// E3–E5: changes the status of a claim that is still the one `change` was made from.
    pub(crate) async fn claim_status(
        &self,
        claim: &PersistentVolumeClaim,
        change: &Value,
    ) -> Result<PersistentVolumeClaim, ApiError> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        let call = api.patch_status(name, &params, &patch);
        self.call("patch", "persistentvolumeclaims/status", name, call).await
    }

    /// E5: the PV, unchanged since it was read, gets its new size.
    pub(crate) async fn volume_capacity(
        &self,
        pv: &PersistentVolume,
        size: &str,
    ) -> Result<(), ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let name = pv.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Merge(json!({
            "metadata": {"uid": pv.metadata.uid, "resourceVersion": pv.metadata.resource_version},
            "spec": {"capacity": {"storage": size}},
        }));
        let params = PatchParams::default();
        self.call("patch", "persistentvolumes", name, api.patch(name, &params, &patch))
            .await
            .map(drop)
    }

    /// All PVs, of every driver and node, page by page.
    pub(crate) async fn volumes(
        &self,
        mut look: impl FnMut(PersistentVolume),
    ) -> Result<(), ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.call("list", "persistentvolumes", "", api.list(&params)).await?;
            page.items.into_iter().for_each(&mut look);
            match page.metadata.continue_.filter(|c| !c.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    /// W1: puts a label on the PV with that UID.
    pub(crate) async fn label_volume(
        &self,
        (name, uid): (&str, &str),
        (key, value): (&str, &str),
    ) -> Result<(), ApiError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"uid": uid, "labels": {key: value}}}));
        let params = PatchParams::default();
        self.call("patch", "persistentvolumes", name, api.patch_metadata(name, &params, &patch))
            .await
            .map(drop)
    }

    /// Changes the annotations of a claim that is still the one of that UID: live read as raw JSON, so that
    /// fields this build does not know survive, and an update that fails if anybody was faster.
    pub(crate) async fn annotate_claim(
        &self,
        at: (&str, &str),
        uid: &str,
        change: impl FnOnce(&mut serde_json::Map<String, Value>),
    ) -> Result<(), ApiError> {
        let (namespace, name) = at;
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
        let refuse = |refusal, verb| ApiError {
            refusal,
            verb,
            object: format!("persistentvolumeclaims \"{name}\""),
            source: None,
        };
        let get = http::Request::get(&path)
            .body(Vec::new())
            .map_err(|_| refuse(Refusal::Other, "get"))?;
        let mut claim: Value =
            self.call("get", "persistentvolumeclaims", name, self.client.request(get)).await?;
        if claim.pointer("/metadata/uid").and_then(Value::as_str) != Some(uid) {
            return Err(refuse(Refusal::NotFound, "get"));
        }
        let metadata = claim.get_mut("metadata").and_then(Value::as_object_mut);
        let annotations = metadata
            .map(|m| m.entry("annotations").or_insert_with(|| json!({})))
            .and_then(Value::as_object_mut)
            .ok_or_else(|| refuse(Refusal::Other, "update"))?;
        change(annotations);
        let body = serde_json::to_vec(&claim).map_err(|_| refuse(Refusal::Other, "update"))?;
        let put = http::Request::put(&path)
            .header("content-type", "application/json")
            .body(body)
            .map_err(|_| refuse(Refusal::Other, "update"))?;
        self.call("update", "persistentvolumeclaims", name, self.client.request::<Value>(put))
            .await
            .map(drop)
    }

    /// Writes a new event.
    pub(crate) async fn create_event(&self, event: &Event) -> Result<(), ApiError> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        self.call("create", "events", "", api.create(&PostParams::default(), event)).await.map(drop)
    }

    /// Tells how often an event was seen by now.
    pub(crate) async fn count_event(
        &self,
        namespace: &str,
        name: &str,
        count: i32,
    ) -> Result<(), ApiError> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let patch = Patch::Merge(json!({"count": count, "lastTimestamp": now}));
        self.call("patch", "events", name, api.patch(name, &PatchParams::default(), &patch))
            .await
            .map(drop)
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        resource: &str,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let (refusal, source) = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(value)) => {
                self.metrics.request(verb, resource, "ok");
                return Ok(value);
            }
            Ok(Err(e)) => (refusal(&e), Some(Box::new(e))),
            Err(_elapsed) => (Refusal::Timeout, None),
        };
        self.metrics.request(verb, resource, refusal.word());
        let object =
            if name.is_empty() { resource.to_owned() } else { format!("{resource} \"{name}\"") };
        Err(ApiError { refusal, verb, object, source })
    }
}

fn refusal(e: &kube::Error) -> Refusal {
    match e {
        kube::Error::Api(status) if status.is_not_found() => Refusal::NotFound,
        kube::Error::Api(status) if status.is_already_exists() => Refusal::AlreadyExists,
        kube::Error::Api(status) if status.is_conflict() => Refusal::Conflict,
        kube::Error::Api(status) if status.is_invalid() => Refusal::Invalid,
        kube::Error::Api(status) if status.is_forbidden() => Refusal::Forbidden,
        _ => Refusal::Other,
    }
}
