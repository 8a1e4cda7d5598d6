//! The demonstration: a claim becomes a volume, a pod fills it, the kernel stops
//! it at its limit. Applied by `up` and by `bench boot`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::{HostChannel, Kubectl, eventually};
use serde::Serialize;
use serde_json::json;

use crate::paths;

/// Each step of the demonstration takes seconds, several times that on a busy
/// machine under emulation.
const DEADLINE: Duration = Duration::from_secs(180);

/// The node counts use anew every few seconds.
const COUNT_DEADLINE: Duration = Duration::from_secs(30);

/// Manifests in build/demo, in the order they are applied.
const MANIFESTS: &[&str] = &["storageclass.yaml", "claim.yaml", "pod.yaml"];

/// What the pod saw and the kernel counted.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    /// Name of the PersistentVolume.
    pub(crate) volume: String,
    /// Capacity that the claim shows.
    pub(crate) capacity: String,
    /// Bytes the pod wrote before it was stopped.
    pub(crate) written_bytes: u64,
    /// What stopped it, in dd's words.
    pub(crate) error: String,
    /// `df` in the pod: size, used and free, in KiB.
    pub(crate) df_kib: [u64; 3],
    /// The kernel's limit for the volume.
    pub(crate) limit_bytes: u64,
    /// The kernel's count for the volume.
    pub(crate) used_bytes: u64,
}

/// Applies the manifests.
///
/// # Errors
/// The API server refuses one.
pub(crate) fn apply(kubectl: &Kubectl) -> Result<()> {
    // Pods of a namespace are refused until it has its service account.
    kubectl.wait("serviceaccount/default", "create", DEADLINE)?;
    for name in MANIFESTS {
        let path = paths::repository().join("build/demo").join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        kubectl.apply(&text)?;
    }
    Ok(())
}

/// Waits until the claim is bound.
///
/// # Errors
/// It is not; the claim's events are in the error.
pub(crate) fn wait_bound(kubectl: &Kubectl) -> Result<()> {
    let bound = kubectl.wait("pvc/demo", "jsonpath={.status.phase}=Bound", DEADLINE);
    bound.with_context(|| events(kubectl, "PersistentVolumeClaim"))
}

/// Waits until the pod runs.
///
/// # Errors
/// It does not; the pod's events are in the error.
pub(crate) fn wait_running(kubectl: &Kubectl) -> Result<()> {
    let running = kubectl.wait("pod/demo", "jsonpath={.status.phase}=Running", DEADLINE);
    running.with_context(|| events(kubectl, "Pod"))
}

/// Waits until the pod has filled its volume and gathers what came of it.
///
/// # Errors
/// The pod does not come to its end, or the node's count cannot be had.
pub(crate) fn outcome(kubectl: &Kubectl, channel: &mut HostChannel) -> Result<Outcome> {
    let ready = kubectl.wait("pod/demo", "condition=Ready", DEADLINE);
    ready.with_context(|| events(kubectl, "Pod"))?;
    let claim = kubectl.json(&["get", "pvc", "demo"])?;
    let text = |pointer: &str| claim.pointer(pointer).and_then(|value| value.as_str());
    let volume = text("/spec/volumeName").context("the claim names no volume")?.to_owned();
    let capacity = text("/status/capacity/storage").unwrap_or_default().to_owned();
    let (written_bytes, error, df_kib) = parse_log(&kubectl.run(&["logs", "demo"])?)?;
    let (limit_bytes, used_bytes) = eventually("the kernel's count", COUNT_DEADLINE, || {
        let (limit, used) = count(channel, &volume)?;
        if used < written_bytes {
            bail!("{used} bytes counted, {written_bytes} written");
        }
        Ok((limit, used))
    })?;
    Ok(Outcome { volume, capacity, written_bytes, error, df_kib, limit_bytes, used_bytes })
}

fn count(channel: &mut HostChannel, volume: &str) -> Result<(u64, u64)> {
    let answer = channel.call("volumes", json!({}))?;
    let volumes = answer["volumes"].as_array().context("the node lists no volumes")?;
    let found = volumes.iter().find(|one| one["pv"] == volume || one["claim"] == "default/demo");
    let found = found.with_context(|| format!("the node does not list {volume}"))?;
    let number = |key: &str| found[key].as_u64().with_context(|| format!("no {key}"));
    Ok((number("limit_bytes")?, number("used_bytes")?))
}

fn parse_log(log: &str) -> Result<(u64, String, [u64; 3])> {
    let line = |word: &str| {
        log.lines()
            .find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
            .with_context(|| format!("the pod did not say {word:?}; it said:\n{log}"))
    };
    let written = line("written")?.trim().parse().context("written bytes are no number")?;
    let error = line("error")?.rsplit(": ").next().unwrap_or_default().to_owned();
    let numbers: Vec<u64> =
        line("df")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let df = numbers.try_into().ok().context("df did not print three numbers")?;
    Ok((written, error, df))
}

/// Last events of the demonstration's objects, for error messages.
fn events(kubectl: &Kubectl, kind: &str) -> String {
    let selector = format!("--field-selector=involvedObject.kind={kind},involvedObject.name=demo");
    let listed = kubectl.run(&[
        "get",
        "events",
        &selector,
        "-o=custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message",
    ]);
    format!("the {kind}'s events are:\n{}", listed.unwrap_or_else(|error| format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_words_are_read_as_numbers_and_the_reason_of_its_stop() {
        let log = "written 67108864\n\
            error dd: error writing '/data/fill': No space left on device\n\
            df 65536 65536 0\n";
        let (written, error, df) = parse_log(log).unwrap();
        assert_eq!(written, 64 << 20);
        assert_eq!(error, "No space left on device");
        assert_eq!(df, [65536, 65536, 0]);
    }

    #[test]
    fn a_pod_that_said_something_else_is_quoted() {
        let error = parse_log("sh: dd: not found\n").unwrap_err().to_string();
        assert!(error.contains("dd: not found"), "{error}");
    }
}
