//! Growing the volume of a bound claim (rules E1–E5).
//!
//! Purpose: carry out what `plan::resize` decides: say on the claim that it is being resized, let the backend do
//! it, give the PV and then the claim the new size.
//! Owner: a worker of the claims queue.
//! Invariants: each step may be repeated, so a cut anywhere is made up for by the next attempt; the PV's size
//! follows the backend's, the claim's follows the PV's, and neither ever becomes smaller.
//! It must not know: how a volume grows.

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    jiff::Timestamp,
};

use crate::{
    api::{ApiError, Refusal, chain},
    backend::{Backend, ExpandRequest},
    backoff::Request,
    claims::forget,
    core::{Core, Next},
    plan::{self, ClaimView, Failure, PvView, ResizePlan},
};

/// Looks whether the claim with that UID, whose PV is stored, asks for more than it has.
pub(crate) async fn handle<B: Backend>(core: &Core<B>, uid: &str, pv: &PersistentVolume) -> Next {
    let Some(meta) = core.claims.get(uid).filter(|_| core.backend.facts().expand) else {
        return forget(core, uid);
    };
    let name = meta.metadata.name.as_deref().unwrap_or_default();
    let namespace = meta.metadata.namespace.as_deref().unwrap_or_default();
    let claim = match core.api.claim(namespace, name).await {
        Ok(Some(claim)) if claim.metadata.uid.as_deref() == Some(uid) => claim,
        Ok(_) => return forget(core, uid),
        Err(e) => return retry(core, &claim_name(namespace, name), &e),
    };
    match plan::resize(ClaimView(&claim), PvView(pv), core.backend.facts()) {
        None => forget(core, uid),
        Some(Err(f)) => refuse(core, uid, &claim, pv, &f).await,
        Some(Ok(plan)) => grow(core, uid, claim, pv, &plan).await,
    }
}

async fn grow<B: Backend>(
    core: &Core<B>,
    uid: &str,
    claim: PersistentVolumeClaim,
    pv: &PersistentVolume,
    plan: &ResizePlan,
) -> Next {
    let wait = core.claim_memory.lock().slow.remaining(uid, &request(&claim, pv), core.now());
    if let Some(wait) = wait {
        return Next::After(wait);
    }
    let claim = match begin(core, claim, plan).await {
        Ok(claim) => claim,
        Err(e) => return retry(core, &plan.pv, &e),
    };
    let rq = ExpandRequest { handle: plan.handle.clone(), pv: plan.pv.clone(), bytes: plan.bytes };
    let grown = tokio::time::timeout(core.config.backend_timeout, core.backend.expand(&rq)).await;
    let grown = grown.unwrap_or_else(|_| {
        let text = format!("volume {} is still growing; it is looked at again", plan.pv);
        Err(Failure::in_background(text))
    });
    if let Err(f) = grown {
        return refuse(core, uid, &claim, pv, &f).await;
    }
    let stored = async {
        if plan.grow_pv {
            core.api.volume_capacity(pv, &plan.to).await?;
        }
        core.api.claim_status(&claim, &plan::resize_done(&claim, plan)).await
    };
    if let Err(e) = stored.await {
        return retry(core, &plan.pv, &e);
    }
    slog::info!(core.log, "volume resized"; "volume" => &plan.pv, "size" => &plan.to);
    say(core, &claim, false, "VolumeResizeSuccessful", "Resize volume succeeded".into());
    forget(core, uid)
}

/// E3; answers the claim as it is then.
async fn begin<B: Backend>(
    core: &Core<B>,
    claim: PersistentVolumeClaim,
    plan: &ResizePlan,
) -> Result<PersistentVolumeClaim, ApiError> {
    if !plan.announce {
        return Ok(claim);
    }
    let change = plan::resize_begun(&claim, plan, &Timestamp::now().to_string());
    let claim = core.api.claim_status(&claim, &change).await?;
    let text = format!("External resizer is resizing volume {}", plan.pv);
    say(core, &claim, false, "Resizing", text);
    Ok(claim)
}

/// E4: the claim says why, and what cannot ever be done is tried at the slowest pace only.
async fn refuse<B: Backend>(
    core: &Core<B>,
    uid: &str,
    claim: &PersistentVolumeClaim,
    pv: &PersistentVolume,
    f: &Failure,
) -> Next {
    slog::warn!(core.log, "volume not resized"; "volume" => PvView(pv).name(), "error" => &f.text);
    let change = plan::resize_failed(claim, f, &Timestamp::now().to_string());
    if let Err(e) = core.api.claim_status(claim, &change).await {
        return retry(core, PvView(pv).name(), &e);
    }
    say(core, claim, true, "VolumeResizeFailed", format!("Failed to resize PV: {}", f.text));
    if !f.infeasible {
        return Next::Retry;
    }
    let wait = core.config.backoff.max;
    core.claim_memory.lock().slow.insert(uid, request(claim, pv), core.now() + wait);
    Next::After(wait)
}

/// What would have to change for an infeasible resize to be tried at once.
fn request(claim: &PersistentVolumeClaim, pv: &PersistentVolume) -> Request {
    Request {
        class_uid: PvView(pv).uid().to_owned(),
        size: ClaimView(claim).request().unwrap_or_default().to_owned(),
    }
}

fn say<B: Backend>(
    core: &Core<B>,
    claim: &PersistentVolumeClaim,
    warning: bool,
    reason: &'static str,
    text: String,
) {
    if let Some(object) = plan::claim_ref(ClaimView(claim)) {
        core.event(object, warning, reason, text);
    }
}

fn claim_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// A conflict means that somebody changed the object: the next look sees what.
fn retry<B: Backend>(core: &Core<B>, what: &str, e: &ApiError) -> Next {
    if e.refusal != Refusal::Conflict {
        slog::warn!(core.log, "resize interrupted"; "of" => what, "error" => chain(e));
    }
    Next::Retry
}
