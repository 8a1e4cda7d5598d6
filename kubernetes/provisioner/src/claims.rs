//! Handling of one claim (rules L1–L24, N4–N9, I1–I5, V4).
//!
//! Purpose: carry out what `plan` decides about a claim: make its volume, store its PV, say what went wrong.
//! Owner: a worker of the claims queue; one claim is handled by one worker at a time.
//! Invariants: the claim is read live before anything is made (I3); from before the first call of the backend
//! until the PV is stored or the volume is gone there is an intent, here and durably in the backend (I1); a PV
//! that exists is never replaced and its volume never deleted by this module (I4).
//! It must not know: how a volume is made.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use rand::Rng;

use crate::{
    EventMode,
    api::{Refusal, chain},
    backend::{Backend, DeleteRequest, Owner},
    backoff::Request,
    core::{Core, Next},
    names::ANN_SELECTED_NODE,
    plan::{
        self, ClaimAction, ClaimView, CreateInput, CreatePlan, Failure, Kind, PvView, Selected,
        Track, is_of_claim,
    },
    resize,
};

/// B5: in lean mode an attempt that lasts this long is announced.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(2);

/// One attempt at one claim.
struct Attempt<'a> {
    uid: &'a str,
    claim: ClaimView<'a>,
    class_name: String,
    source: String,
    first: bool,
    began: Duration,
}

/// Handles the claim of that UID.
pub(crate) async fn handle<B: Backend>(core: &Core<B>, uid: &str) -> Next {
    let intent = core.intent(uid);
    if let Some(pv) = core.known_volume(uid) {
        if intent.is_some() && settled(core, uid, intent, &pv).await == Next::Retry {
            return Next::Retry;
        }
        return resize::handle(core, uid, &pv).await;
    }
    let Some(meta) = core.claims.get(uid) else {
        return match intent {
            Some(owner) => resolve(core, uid, &owner).await,
            None => forget(core, uid),
        };
    };
    let name = meta.metadata.name.as_deref().unwrap_or_default();
    let namespace = meta.metadata.namespace.as_deref().unwrap_or_default();
    match core.api.claim(namespace, name).await {
        Ok(Some(claim)) if claim.metadata.uid.as_deref() == Some(uid) => {
            decide(core, uid, &claim, intent).await
        }
        Ok(_) => match intent {
            Some(owner) => resolve(core, uid, &owner).await,
            None => forget(core, uid),
        },
        Err(e) => {
            slog::warn!(core.log, "claim not read"; "claim" => format!("{namespace}/{name}"), "error" => chain(&e));
            Next::Retry
        }
    }
}

/// Nothing to do until something changes.
pub(crate) fn forget<B: Backend>(core: &Core<B>, uid: &str) -> Next {
    core.claim_memory.lock().forget(uid);
    Next::Forget
}

/// L9: the claim's PV is stored.
async fn settled<B: Backend>(
    core: &Core<B>,
    uid: &str,
    intent: Option<Owner>,
    pv: &PersistentVolume,
) -> Next {
    if let Some(owner) = intent {
        let handle = PvView(pv).csi().map_or_else(|| owner.pv.clone(), |(_, h)| h.to_owned());
        if let Err(f) = core.backend.confirm(&handle, &owner).await {
            slog::warn!(core.log, "stored volume not confirmed"; "volume" => handle, "error" => f.text);
            return Next::Retry;
        }
        core.drop_intent(uid);
    }
    forget(core, uid)
}

async fn decide<B: Backend>(
    core: &Core<B>,
    uid: &str,
    claim: &PersistentVolumeClaim,
    intent: Option<Owner>,
) -> Next {
    let view = ClaimView(claim);
    let class = view.class().and_then(|name| core.classes.get(name));
    let attempt = Attempt {
        uid,
        claim: view,
        class_name: view.class().unwrap_or_default().to_owned(),
        source: source_kind(claim),
        first: !core.claim_memory.lock().attempts.is_failing(uid),
        began: core.now(),
    };
    match (plan::claim(view, class.as_deref(), core.backend.facts()), class) {
        (ClaimAction::Provision, Some(class)) => provision(core, &attempt, &class).await,
        (ClaimAction::Race, Some(class)) => race(core, &attempt, &class).await,
        // L7, L12: no event; the metric tells.
        (ClaimAction::ClassMissing | ClaimAction::Provision | ClaimAction::Race, _) => {
            core.metrics.provision_failed(&attempt.class_name, &attempt.source);
            Next::Retry
        }
        (ClaimAction::NoClass, _) => {
            let text = "storage class was nil; create the claim anew with spec.storageClassName";
            fail(core, &attempt, None, Failure::finished(text)).await
        }
        (ClaimAction::Foreign | ClaimAction::NotWanted | ClaimAction::ForeignClass, _) => {
            match intent {
                Some(owner) => resolve(core, uid, &owner).await,
                None => forget(core, uid),
            }
        }
    }
}

fn source_kind(claim: &PersistentVolumeClaim) -> String {
    let spec = claim.spec.as_ref();
    spec.and_then(|s| s.data_source.as_ref()).map(|s| s.kind.clone()).unwrap_or_default()
}

/// The normal way: plan, look for the PV, make, store.
async fn provision<B: Backend>(
    core: &Core<B>,
    attempt: &Attempt<'_>,
    class: &StorageClass,
) -> Next {
    let request = request(attempt, class);
    let wait = core.claim_memory.lock().slow.remaining(attempt.uid, &request, core.now());
    if let Some(wait) = wait {
        return Next::After(wait);
    }
    core.claim_memory.lock().first.entry(attempt.uid.to_owned()).or_insert(attempt.began);
    let hostname = core.hostname();
    let input = CreateInput {
        claim: attempt.claim,
        class,
        facts: core.backend.facts(),
        hostname: hostname.as_deref(),
    };
    let planned = match plan::create(&input) {
        Ok(plan) => with_source(core, attempt, plan).await,
        Err(f) => Err(f),
    };
    let plan = match planned {
        Ok(plan) => plan,
        Err(f) => return fail(core, attempt, Some(request), f).await,
    };
    let owner = Owner::of(&plan);
    match core.api.volume(&plan.name).await {
        Ok(None) => {}
        Ok(Some(pv)) if is_of_claim(PvView(&pv), attempt.uid, &plan.driver) => {
            return settled(core, attempt.uid, Some(owner), &pv).await;
        }
        Ok(Some(pv)) => return fail(core, attempt, None, taken(&plan.name, PvView(&pv))).await,
        Err(e) => return fail(core, attempt, None, Failure::no_change(chain(&e))).await,
    }
    if core.config.events == EventMode::Peer {
        announce(core, attempt);
    }
    core.set_intent(attempt.uid, owner.clone());
    let work = make(core, &plan, &owner);
    tokio::pin!(work);
    let early = tokio::time::timeout(ANNOUNCE_AFTER, &mut work).await;
    let made = match early {
        Ok(made) => made,
        Err(_still_working) => {
            if core.config.events == EventMode::Lean && attempt.first {
                announce(core, attempt);
            }
            work.await
        }
    };
    match made {
        Ok(handle) => succeed(core, attempt, &owner, &handle).await,
        Err(f) => fail(core, attempt, Some(request), f).await,
    }
}

/// C5, C7: reads the claim that this one is to be a clone of, and its PV, live.
async fn with_source<B: Backend>(
    core: &Core<B>,
    attempt: &Attempt<'_>,
    plan: CreatePlan,
) -> Result<CreatePlan, Failure> {
    let Some(name) = plan::cloned_claim(attempt.claim) else { return Ok(plan) };
    let namespace = attempt.claim.namespace();
    let unread = |why: String| {
        Failure::no_change(format!(
            "error getting PVC {name} (namespace \"{namespace}\") from api server: {why}"
        ))
    };
    let source = core.api.claim(namespace, name).await.map_err(|e| unread(chain(&e)))?;
    let source = source.ok_or_else(|| unread("there is no such claim".into()))?;
    let source = ClaimView(&source);
    let volume = plan::cloned_volume(&plan, source)?;
    let pv = core.api.volume(volume).await.map_err(|e| Failure::no_change(chain(&e)))?;
    let from = plan::clone_of(&plan, source, pv.as_ref().map(PvView))?;
    Ok(CreatePlan { source: Some(from), ..plan })
}

/// L4, L5: what a changed claim or class would change.
fn request(attempt: &Attempt<'_>, class: &StorageClass) -> Request {
    Request {
        class_uid: class.metadata.uid.clone().unwrap_or_default(),
        size: attempt.claim.request().unwrap_or_default().to_owned(),
    }
}

/// L9: somebody else's PV has the name.
fn taken(name: &str, pv: PvView<'_>) -> Failure {
    let by = pv.claim_name().map_or_else(String::new, |c| format!(" by claim {c}"));
    Failure::finished(format!("volume name {name} is already used{by}"))
}

/// Makes the volume and stores its PV; answers the handle.
async fn make<B: Backend>(
    core: &Core<B>,
    plan: &CreatePlan,
    owner: &Owner,
) -> Result<String, Failure> {
    let out = tokio::time::timeout(core.config.backend_timeout, core.backend.provision(plan))
        .await
        .unwrap_or_else(|_| {
            Err(Failure::in_background(format!(
                "volume {} is still being made after {} s; it is looked at again",
                plan.name,
                core.config.backend_timeout.as_secs()
            )))
        })?;
    let pv = plan::pv(plan, &out);
    match core.api.create_volume(&pv).await {
        Ok(_) => Ok(out.handle),
        // L24: a lost answer, or another claim's; nothing is deleted for it.
        Err(e) if e.refusal == Refusal::AlreadyExists => match core.api.volume(&plan.name).await {
            Ok(Some(stored))
                if is_of_claim(PvView(&stored), &owner.uid, &plan.driver)
                    && PvView(&stored).csi().is_some_and(|(_, h)| h == out.handle) =>
            {
                Ok(out.handle)
            }
            Ok(Some(stored)) => Err(Failure {
                state: plan::State::InBackground,
                ..taken(&plan.name, PvView(&stored))
            }),
            Ok(None) | Err(_) => Err(unsaved(&plan.name, &e)),
        },
        Err(e) => Err(unsaved(&plan.name, &e)),
    }
}

/// The volume is there and its PV is not: the next attempt finds the one and stores the other.
fn unsaved(name: &str, e: &crate::api::ApiError) -> Failure {
    Failure::in_background(format!("error saving volume {name}: {}", chain(e)))
}

async fn succeed<B: Backend>(
    core: &Core<B>,
    attempt: &Attempt<'_>,
    owner: &Owner,
    handle: &str,
) -> Next {
    let now = core.now();
    let first = core.claim_memory.lock().first.get(attempt.uid).copied().unwrap_or(attempt.began);
    core.metrics.provisioned(
        &attempt.class_name,
        &attempt.source,
        now - attempt.began,
        now - first,
    );
    slog::info!(core.log, "Successfully provisioned volume {}", owner.pv;
        "claim" => format!("{}/{}", owner.namespace, owner.name));
    let confirmed = core.backend.confirm(handle, owner).await;
    if let Some(object) = plan::claim_ref(attempt.claim) {
        core.event(
            object,
            false,
            "ProvisioningSucceeded",
            format!("Successfully provisioned volume {}", owner.pv),
        );
    }
    core.claim_memory.lock().forget(attempt.uid);
    match confirmed {
        Ok(()) => {
            core.drop_intent(attempt.uid);
            Next::Forget
        }
        // The PV is stored; only the note of it is not. The intent stays until that is made up for.
        Err(f) => {
            slog::warn!(core.log, "stored volume not confirmed"; "volume" => handle, "error" => f.text);
            Next::Retry
        }
    }
}

/// L16–L21: what a failed attempt leaves behind.
async fn fail<B: Backend>(
    core: &Core<B>,
    attempt: &Attempt<'_>,
    request: Option<Request>,
    f: Failure,
) -> Next {
    let uid = attempt.uid;
    let selected =
        plan::selected(&attempt.claim.0.metadata, core.backend.facts()) == Selected::Here;
    let settle = plan::settle(f.state, core.intent(uid).is_some(), selected);
    if settle.track == Track::Out {
        core.drop_intent(uid);
    }
    let object = plan::claim_ref(attempt.claim);
    match f.kind {
        Kind::Ignored => core.metrics.ignored("provision"),
        Kind::Stop | Kind::Error | Kind::Waiting => {
            core.metrics.provision_failed(&attempt.class_name, &attempt.source);
            slog::warn!(core.log, "volume not provisioned";
                "claim" => format!("{}/{}", attempt.claim.namespace(), attempt.claim.name()), "error" => &f.text);
        }
    }
    if let Some(object) = object {
        let (warning, reason, text) = match f.kind {
            Kind::Ignored => (false, "Provisioning", f.text.clone()),
            Kind::Stop | Kind::Error | Kind::Waiting if f.infeasible => (
                true,
                "ProvisioningFailed",
                format!(
                    "Volume provisioning failed with infeasible error. Retries will be delayed. {}",
                    f.text
                ),
            ),
            Kind::Stop | Kind::Error | Kind::Waiting => {
                (true, "ProvisioningFailed", f.text.clone())
            }
        };
        if f.kind == Kind::Error && attempt.first && core.config.events == EventMode::Lean {
            announce(core, attempt);
        }
        core.event(object, warning, reason, text);
    }
    if settle.reschedule {
        return reschedule(core, attempt).await;
    }
    match (f.kind, f.infeasible, request) {
        (Kind::Ignored | Kind::Stop, _, _) => forget(core, uid),
        (Kind::Error | Kind::Waiting, true, Some(request)) => {
            let wait = core.config.backoff.max;
            let mut memory = core.claim_memory.lock();
            memory.slow.insert(uid, request, core.now() + wait);
            // It counts as failing, so that the same sentence is not announced as new each time.
            let _delay = memory.attempts.failed(uid, core.config.backoff);
            Next::After(wait)
        }
        (Kind::Error | Kind::Waiting, _, _) => Next::Retry,
    }
}

fn announce<B: Backend>(core: &Core<B>, attempt: &Attempt<'_>) {
    if let Some(object) = plan::claim_ref(attempt.claim) {
        let claim = attempt.claim;
        let text = format!(
            "External provisioner is provisioning volume for claim \"{}/{}\"",
            claim.namespace(),
            claim.name()
        );
        core.event(object, false, "Provisioning", text);
    }
}

/// L18, L19: takes the selected node off, so that the scheduler chooses again.
async fn reschedule<B: Backend>(core: &Core<B>, attempt: &Attempt<'_>) -> Next {
    let at = (attempt.claim.namespace(), attempt.claim.name());
    let take_off = |annotations: &mut serde_json::Map<String, serde_json::Value>| {
        for key in ANN_SELECTED_NODE {
            annotations.remove(key);
        }
    };
    match core.api.annotate_claim(at, attempt.uid, take_off).await {
        Ok(()) => forget(core, attempt.uid),
        Err(e) if e.refusal == Refusal::NotFound => forget(core, attempt.uid),
        Err(e) => {
            slog::warn!(core.log, "claim not rescheduled"; "claim" => at.1, "error" => chain(&e));
            Next::Retry
        }
    }
}

/// N4–N9: a claim that is bound immediately goes to the first node with room that writes its name on it.
async fn race<B: Backend>(core: &Core<B>, attempt: &Attempt<'_>, class: &StorageClass) -> Next {
    let hostname = core.hostname();
    if !allowed(class, hostname.as_deref()) {
        return forget(core, attempt.uid);
    }
    let now = core.now();
    let (tries, due) = {
        let mut memory = core.claim_memory.lock();
        *memory
            .races
            .entry(attempt.uid.to_owned())
            .or_insert_with(|| (0, now + race_delay(core.config.race, 0)))
    };
    if due > now {
        return Next::After(due - now);
    }
    let facts = core.backend.facts();
    let input = CreateInput { claim: attempt.claim, class, facts, hostname: hostname.as_deref() };
    let wanted = match plan::create(&input) {
        Ok(plan) => plan.bytes,
        // Refused by the node that would take it: the sentence must reach the user.
        Err(f) => return fail(core, attempt, Some(request(attempt, class)), f).await,
    };
    if let Ok(room) = core.backend.capacity().await
        && room.available_bytes < wanted
    {
        // N8: short; N11: a capacity change wakes the claim.
        return Next::Retry;
    }
    let at = (attempt.claim.namespace(), attempt.claim.name());
    let node = facts.node.clone();
    let take = move |annotations: &mut serde_json::Map<String, serde_json::Value>| {
        annotations.entry(ANN_SELECTED_NODE[0]).or_insert(serde_json::Value::String(node));
    };
    match core.api.annotate_claim(at, attempt.uid, take).await {
        // The update's own event starts the work.
        Ok(()) => forget(core, attempt.uid),
        Err(e) if e.refusal == Refusal::NotFound => forget(core, attempt.uid),
        Err(e) if e.refusal == Refusal::Conflict => {
            let delay = race_delay(core.config.race, tries + 1);
            core.claim_memory
                .lock()
                .races
                .insert(attempt.uid.to_owned(), (tries + 1, core.now() + delay));
            Next::After(delay)
        }
        Err(e) => {
            let text = format!(
                "PVC {}/{}: selecting node \"{}\" for PVC failed: {}",
                at.0,
                at.1,
                facts.node,
                chain(&e)
            );
            fail(core, attempt, None, Failure::no_change(text)).await
        }
    }
}

/// N4: min(max, base × 2ⁿ) − rand[0,1) × base, not below zero.
fn race_delay(race: crate::backoff::Backoff, tries: u32) -> Duration {
    let share: f64 = rand::rng().random();
    race.delay(tries).saturating_sub(race.start.mul_f64(share))
}

/// N3: whether the class allows volumes on this node.
fn allowed(class: &StorageClass, hostname: Option<&str>) -> bool {
    let Some(terms) = class.allowed_topologies.as_deref().filter(|t| !t.is_empty()) else {
        return true;
    };
    terms.iter().any(|term| {
        term.match_label_expressions.iter().flatten().all(|e| {
            e.key != crate::names::HOSTNAME_LABEL
                || hostname.is_some_and(|h| e.values.iter().any(|v| v == h))
        })
    })
}

/// I4, I5: the volume may be half made and nobody seems to want it. Live reads decide.
pub(crate) async fn resolve<B: Backend>(core: &Core<B>, uid: &str, owner: &Owner) -> Next {
    match core.api.volume(&owner.pv).await {
        Ok(Some(pv)) if is_of_claim(PvView(&pv), uid, &core.backend.facts().driver) => {
            return settled(core, uid, Some(owner.clone()), &pv).await;
        }
        Ok(_) => {}
        Err(e) => return unresolved(core, owner, &chain(&e)),
    }
    match core.api.claim(&owner.namespace, &owner.name).await {
        Ok(Some(claim)) if claim.metadata.uid.as_deref() == Some(uid) => {
            let view = ClaimView(&claim);
            let class = view.class().and_then(|name| core.classes.get(name));
            match plan::claim(view, class.as_deref(), core.backend.facts()) {
                // The watch is behind: the normal path takes it as soon as it has caught up.
                ClaimAction::Provision | ClaimAction::ClassMissing => return Next::Retry,
                ClaimAction::Foreign
                | ClaimAction::NotWanted
                | ClaimAction::NoClass
                | ClaimAction::ForeignClass
                | ClaimAction::Race => {}
            }
        }
        Ok(_) => {}
        Err(e) => return unresolved(core, owner, &chain(&e)),
    }
    slog::info!(core.log, "Deleting persistent volume {}", owner.pv; "reason" => "its claim no longer wants it, and no PV was stored");
    let rq = DeleteRequest { handle: owner.pv.clone(), pv: owner.pv.clone() };
    match core.backend.delete(&rq).await {
        Ok(()) => {
            core.drop_intent(uid);
            forget(core, uid)
        }
        Err(f) => unresolved(core, owner, &f.text),
    }
}

fn unresolved<B: Backend>(core: &Core<B>, owner: &Owner, why: &str) -> Next {
    slog::warn!(core.log, "abandoned volume not deleted"; "volume" => &owner.pv, "error" => why);
    Next::Retry
}
