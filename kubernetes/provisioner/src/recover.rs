//! Finding what a crash, a lost answer or an earlier release left behind (rules I4, I6, V10, W1).
//!
//! Purpose: at the start and then each hour, compare what the backend has with what Kubernetes knows.
//! Owner: `Provisioner::run` calls [`load`] before it is healthy; one task runs [`watch_over`].
//! Invariants: nothing is deleted here; volumes whose PV may not have been stored become intents, and the claims
//! queue, which handles a claim once at a time, resolves them by live reads. A volume without any tag counts as
//! stored (the registry may have been lost), so its data stays.
//! It must not know: how a claim is handled.

use std::collections::BTreeSet;

use futures::StreamExt;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::{
    api::chain,
    backend::{Backend, Stored},
    core::Core,
    names::{node_label_key, node_label_value},
    plan::{self, Failure, PvView},
};

/// I4: makes every volume without a stored PV an intent and queues its claim. Waits until the backend is ready;
/// `note` is told what it waits for.
pub(crate) async fn load<B: Backend>(core: &Core<B>, note: impl Fn(&str)) -> usize {
    let mut changes = core.backend.changes();
    loop {
        match core.backend.inventory().await {
            Ok(stored) => {
                note("");
                return enqueue(core, &stored);
            }
            Err(f) => {
                note(&format!("waits for the volumes: {}", f.text));
                // A change of the backend ends the wait; the timer covers one that tells of none.
                let _changed_or_elapsed =
                    tokio::time::timeout(core.config.backoff.start, changes.next()).await;
            }
        }
    }
}

fn enqueue<B: Backend>(core: &Core<B>, stored: &[Stored]) -> usize {
    let mut unfinished = 0;
    for volume in stored.iter().filter(|v| !v.stored) {
        let Some(owner) = &volume.owner else { continue };
        unfinished += 1;
        if core.intent(&owner.uid).is_none() {
            core.set_intent(&owner.uid, owner.clone());
            core.claim_queue.add(&owner.uid);
        }
    }
    unfinished
}

/// I6: repeats the comparison for ever. Cancel safe: it deletes nothing.
pub(crate) async fn watch_over<B: Backend>(core: &Core<B>) {
    loop {
        if let Err(f) = compare(core).await {
            slog::warn!(core.log, "volumes not compared with the cluster"; "error" => f.text);
        }
        tokio::time::sleep(core.config.inventory_interval).await;
    }
}

async fn compare<B: Backend>(core: &Core<B>) -> Result<(), Failure> {
    enqueue(core, &core.backend.inventory().await?);
    let driver = &core.backend.facts().driver;
    let (mut known, mut older) = (BTreeSet::new(), Vec::new());
    let hostname = core.hostname();
    let look = |pv: PersistentVolume| {
        let view = PvView(&pv);
        if let Some((_, handle)) = view.csi().filter(|(d, _)| d == driver) {
            known.insert(handle.to_owned());
        }
        if plan::unlabelled(view, hostname.as_deref(), core.backend.facts()) {
            older.push((view.name().to_owned(), view.uid().to_owned()));
        }
    };
    core.api.volumes(look).await.map_err(|e| Failure::no_change(chain(&e)))?;
    adopt(core, &older).await;
    // A claim that is being served right now has no PV yet, and is no orphan for that.
    known.extend(core.claim_memory.lock().intents.values().map(|o| o.pv.clone()));
    let orphans = core.backend.reconcile(&known).await?;
    core.metrics.orphans(orphans.volumes.len());
    for volume in &orphans.volumes {
        slog::warn!(core.log, "no PV names this volume; its data is kept"; "volume" => volume);
    }
    for handle in &orphans.handles {
        slog::debug!(core.log, "this PV's volume is not on this node"; "volume" => handle);
    }
    Ok(())
}

/// V10: PVs of an earlier release get the label by which they are watched; the watch does the rest (D2).
async fn adopt<B: Backend>(core: &Core<B>, older: &[(String, String)]) {
    let facts = core.backend.facts();
    let (key, value) = (node_label_key(&facts.driver), node_label_value(&facts.node));
    for (name, uid) in older {
        match core.api.label_volume((name, uid), (&key, &value)).await {
            Ok(()) => {
                slog::info!(core.log, "volume of an earlier release adopted"; "volume" => name)
            }
            Err(e) => {
                slog::warn!(core.log, "volume not adopted"; "volume" => name, "error" => chain(&e));
            }
        }
    }
}
