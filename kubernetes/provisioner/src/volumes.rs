//! Handling of one PV (rules D1–D6, D8, V8, V9).
//!
//! Purpose: delete the volume of a released PV, then the PV, then take our finalizer off, in that order.
//! Owner: a worker of the volumes queue; one PV is handled by one worker at a time.
//! Invariants: a live read decides just before the volume is deleted (D3, W6); Retain is never deleted; the
//! finalizer goes only after the DELETE of the PV was answered (D6); each step may be repeated.
//! It must not know: how a volume is deleted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};

use crate::{
    api::{Deleted, Refusal, chain},
    backend::{Backend, DeleteRequest},
    core::{Core, Next},
    plan::{self, Failure, Kind, PvView, VolumeAction},
};

/// V8: a volume that is still mounted after this time is worth a warning.
const WARN_MOUNTED_AFTER: Duration = Duration::from_secs(300);

/// Handles the PV of that name.
pub(crate) async fn handle<B: Backend>(core: &Core<B>, name: &str) -> Next {
    let Some(pv) = core.volumes.get(name) else { return forget(core, name) };
    let hostname = core.hostname();
    let view = PvView(&pv);
    match plan::volume(view, hostname.as_deref(), core.backend.facts()) {
        VolumeAction::Foreign | VolumeAction::Keep => forget(core, name),
        VolumeAction::AddFinalizer => finalizer(core, view, true).await,
        VolumeAction::RemoveFinalizer => finalizer(core, view, false).await,
        VolumeAction::Delete { .. } | VolumeAction::Invalid => {
            delete(core, name, hostname.as_deref()).await
        }
    }
}

fn forget<B: Backend>(core: &Core<B>, name: &str) -> Next {
    let mut memory = core.volume_memory.lock();
    memory.attempts.forget(name);
    memory.waiting.remove(name);
    Next::Forget
}

/// D2, D6. Another UID or no PV at all: nothing of ours is left to change.
async fn finalizer<B: Backend>(core: &Core<B>, view: PvView<'_>, wanted: bool) -> Next {
    match core.api.finalizer(view.name(), view.uid(), wanted).await {
        Ok(()) => forget(core, view.name()),
        Err(e) if matches!(e.refusal, Refusal::NotFound | Refusal::Invalid | Refusal::Conflict) => {
            forget(core, view.name())
        }
        Err(e) => {
            slog::warn!(core.log, "finalizer not changed"; "volume" => view.name(), "error" => chain(&e));
            Next::Retry
        }
    }
}

async fn delete<B: Backend>(core: &Core<B>, name: &str, hostname: Option<&str>) -> Next {
    let live = match core.api.volume(name).await {
        Ok(Some(pv)) => pv,
        Ok(None) => return forget(core, name),
        Err(e) => {
            slog::warn!(core.log, "volume not read"; "volume" => name, "error" => chain(&e));
            return Next::Retry;
        }
    };
    let view = PvView(&live);
    let handle = match plan::volume(view, hostname, core.backend.facts()) {
        VolumeAction::Delete { handle } => handle.to_owned(),
        VolumeAction::Invalid => return fail(core, view, &Failure::finished("invalid CSI PV")),
        // The copy was stale: the watch brings what is new.
        VolumeAction::Foreign
        | VolumeAction::Keep
        | VolumeAction::AddFinalizer
        | VolumeAction::RemoveFinalizer => {
            return forget(core, name);
        }
    };
    let began = core.now();
    // Before the call, so that an unmount during it is not missed.
    core.volume_memory.lock().waiting.entry(name.to_owned()).or_insert(began);
    slog::info!(core.log, "Deleting persistent volume {}", name);
    let rq = DeleteRequest { handle, pv: name.to_owned() };
    let deleted = tokio::time::timeout(core.config.backend_timeout, core.backend.delete(&rq)).await;
    match deleted {
        Ok(Ok(())) => {}
        Ok(Err(f)) if f.kind == Kind::Waiting => return wait(core, view, &f),
        Ok(Err(f)) => return fail(core, view, &f),
        Err(_still_working) => {
            return fail(
                core,
                view,
                &Failure::in_background("the volume is still being deleted; it is looked at again"),
            );
        }
    }
    remove(core, view, began).await
}

/// D5, D6: the volume is gone; now the PV.
async fn remove<B: Backend>(core: &Core<B>, view: PvView<'_>, began: Duration) -> Next {
    let kept = match core.api.delete_volume(view.name(), view.uid()).await {
        Ok(Deleted::Kept(pv)) => PvView(&pv).has_finalizer(),
        Ok(Deleted::Gone) => false,
        // Gone already, or a new PV of that name, which is not ours to touch.
        Err(e) if matches!(e.refusal, Refusal::NotFound | Refusal::Conflict) => false,
        Err(e) => return fail(core, view, &Failure::finished(chain(&e))),
    };
    if kept {
        match core.api.finalizer(view.name(), view.uid(), false).await {
            Ok(()) => {}
            Err(e)
                if matches!(
                    e.refusal,
                    Refusal::NotFound | Refusal::Invalid | Refusal::Conflict
                ) => {}
            Err(e) => return fail(core, view, &Failure::finished(chain(&e))),
        }
    }
    core.metrics.deleted(view.class(), core.now() - began);
    slog::info!(core.log, "volume deleted"; "volume" => view.name());
    forget(core, view.name())
}

/// V8: a pod still uses it. The unmount wakes it; the user is told only if that takes long.
fn wait<B: Backend>(core: &Core<B>, view: PvView<'_>, f: &Failure) -> Next {
    let now = core.now();
    let since = *core.volume_memory.lock().waiting.entry(view.name().to_owned()).or_insert(now);
    let waited = now - since;
    if waited >= WARN_MOUNTED_AFTER {
        core.event(reference(view.0), true, "VolumeFailedDelete", f.text.clone());
        return Next::After(WARN_MOUNTED_AFTER);
    }
    Next::After(WARN_MOUNTED_AFTER - waited)
}

/// D4.
fn fail<B: Backend>(core: &Core<B>, view: PvView<'_>, f: &Failure) -> Next {
    if f.kind == Kind::Ignored {
        core.metrics.ignored("delete");
        return forget(core, view.name());
    }
    core.metrics.delete_failed(view.class());
    slog::warn!(core.log, "volume not deleted"; "volume" => view.name(), "error" => &f.text);
    core.event(reference(view.0), true, "VolumeFailedDelete", f.text.clone());
    core.volume_memory.lock().waiting.remove(view.name());
    Next::Retry
}

fn reference(pv: &PersistentVolume) -> ObjectReference {
    ObjectReference {
        kind: Some("PersistentVolume".into()),
        api_version: Some("v1".into()),
        name: pv.metadata.name.clone(),
        uid: pv.metadata.uid.clone(),
        resource_version: pv.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}
