//! Clusters that are booted for real, because they go down and come back.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cache, Cluster, DataDisk, Ending, ImageDir, PATIENCE, VmConfig, eventually, probe};
use serde_json::{Value, json};

const DISK: u64 = 8 << 30;
const DOWN: Duration = Duration::from_secs(130);

const CLASS: &str = include_str!("../../demo/storageclass.yaml");

fn boot(disk: &DataDisk) -> Result<Cluster> {
    let image = ImageDir::from_env()?;
    let accelerator = probe(&image.kernel())?;
    let config = VmConfig::new(image, accelerator).data_disk(disk.path(), Cache::Writeback);
    let cluster = Cluster::boot(config)?;
    cluster.kubectl.wait("serviceaccount/default", "create", PATIENCE)?;
    Ok(cluster)
}

fn claim(name: &str, class: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  storageClassName: {class}
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 4Mi}}}}
"
    )
}

/// A pod that adds a line to a file of each claim and says what is in it.
fn pod(name: &str, claims: &[&str]) -> String {
    let mut text = format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  containers:
    - name: main
      image: hamlet.dev/busybox:1
      imagePullPolicy: IfNotPresent
      command: [sh, -c, 'trap \"exit 0\" TERM; for d in /data/*; do echo line >> $d/text; echo \
         $d $(cat $d/text); done; sync; while :; do sleep 3600 & wait $!; done']
      volumeMounts:
"
    );
    for claim in claims {
        text.push_str(&format!("        - {{name: {claim}, mountPath: /data/{claim}}}\n"));
    }
    text.push_str("  volumes:\n");
    for claim in claims {
        text.push_str(&format!(
            "    - {{name: {claim}, persistentVolumeClaim: {{claimName: {claim}}}}}\n"
        ));
    }
    text
}

fn entries(cluster: &mut Cluster) -> Result<BTreeSet<String>> {
    let mut answer = cluster.channel.call("test.ls", json!({ "path": "/data/volumes" }))?;
    Ok(serde_json::from_value(answer["names"].take())?)
}

fn volumes(cluster: &Cluster) -> Result<Vec<Value>> {
    let list = cluster.kubectl.json(&["get", "pv"])?;
    Ok(list["items"].as_array().context("no list of PersistentVolumes")?.clone())
}

#[test]
fn a_reboot_keeps_the_data_of_a_bound_claim_and_of_a_retained_volume() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut cluster = boot(&disk)?;
    let retain = CLASS
        .replace("name: local", "name: retain")
        .replace("is-default-class: \"true\"", "is-default-class: \"false\"")
        .replace("reclaimPolicy: Delete", "reclaimPolicy: Retain");
    cluster.kubectl.apply(CLASS)?;
    cluster.kubectl.apply(&retain)?;
    cluster.kubectl.apply(&(claim("bound", "local") + &claim("kept", "retain")))?;
    cluster.kubectl.apply(&pod("writer", &["bound", "kept"]))?;
    cluster.kubectl.wait("pod/writer", "condition=Ready", PATIENCE)?;
    let before = entries(&mut cluster)?;
    ensure!(before.len() == 2, "{before:?}");
    cluster.channel.call("poweroff", json!({}))?;
    ensure!(cluster.vm.wait_end(DOWN)? == Ending::PowerOff);

    let mut cluster = boot(&disk)?;
    eventually("the pod runs again and finds its data", PATIENCE, || {
        let said = cluster.kubectl.run(&["logs", "writer"])?;
        ensure!(said.contains("/data/bound line line"), "{said}");
        ensure!(said.contains("/data/kept line line"), "{said}");
        Ok(())
    })?;
    ensure!(entries(&mut cluster)? == before);
    cluster.kubectl.run(&["delete", "pod/writer", "pvc/bound", "pvc/kept", "--timeout=60s"])?;
    eventually("one volume is released, the other gone", PATIENCE, || {
        let left = volumes(&cluster)?;
        ensure!(left.len() == 1, "{} volumes", left.len());
        ensure!(left[0]["status"]["phase"] == "Released", "{}", left[0]["status"]);
        Ok(())
    })?;
    ensure!(entries(&mut cluster)?.len() == 1);
    Ok(())
}

#[test]
fn a_power_cut_amid_fifty_claims_leaves_volumes_and_registry_in_agreement() -> Result<()> {
    let disk = DataDisk::new(DISK)?;
    let mut cluster = boot(&disk)?;
    cluster.kubectl.apply(CLASS)?;
    let names: Vec<String> = (0..50).map(|number| format!("claim-{number:02}")).collect();
    let groups: Vec<Vec<&str>> =
        names.chunks(10).map(|group| group.iter().map(String::as_str).collect()).collect();
    let manifest = |number: usize| {
        let claims: String = groups[number].iter().map(|name| claim(name, "local")).collect();
        claims + &pod(&format!("pod-{number}"), &groups[number])
    };
    cluster.kubectl.apply(&manifest(0))?;
    cluster.kubectl.wait("pod/pod-0", "condition=Ready", PATIENCE)?;
    for number in 1..groups.len() {
        cluster.kubectl.apply(&manifest(number))?;
    }
    let claims: Vec<String> = groups[0].iter().map(|name| format!("pvc/{name}")).collect();
    let mut delete = vec!["delete", "--wait=false", "pod/pod-0"];
    delete.extend(claims.iter().map(String::as_str));
    cluster.kubectl.run(&delete)?;
    eventually("creations are under way", PATIENCE, || {
        let made = entries(&mut cluster)?.len();
        ensure!(made >= 15, "{made} volumes yet");
        Ok(())
    })?;
    cluster.vm.power_cut();

    let mut cluster = boot(&disk)?;
    eventually("every claim is served and every deleted one gone", PATIENCE, || {
        let claims = cluster.kubectl.json(&["get", "pvc"])?;
        let claims = claims["items"].as_array().context("no list of claims")?.clone();
        let bound = claims.iter().filter(|claim| claim["status"]["phase"] == "Bound").count();
        ensure!(bound == claims.len(), "{bound} of {} bound", claims.len());
        ensure!(claims.len() == 40, "{} claims", claims.len());
        agree(&mut cluster, &claims)
    })
}

/// One PersistentVolume, one entry, one registry record and one project for each
/// claim, and nothing else.
fn agree(cluster: &mut Cluster, claims: &[Value]) -> Result<()> {
    let handles: BTreeSet<String> = volumes(cluster)?
        .iter()
        .filter_map(|volume| volume["spec"]["csi"]["volumeHandle"].as_str().map(str::to_owned))
        .collect();
    ensure!(handles.len() == claims.len(), "{} handles", handles.len());
    ensure!(entries(cluster)? == handles, "directories and PersistentVolumes differ");
    let inventory = cluster.channel.call("test.engine", json!({ "action": "inventory" }))?;
    let objects = inventory["objects"].as_array().context("no inventory")?;
    ensure!(objects.len() == handles.len(), "{} objects", objects.len());
    let mut projects = BTreeSet::new();
    for object in objects {
        let id = object["id"].as_str().context("an id")?;
        ensure!(handles.contains(id), "{id} belongs to nobody");
        let path = format!("/data/volumes/{id}");
        let quota = cluster.channel.call("test.quota", json!({ "path": path }))?;
        ensure!(quota["project_id"] == object["project_id"], "{id}: {quota}");
        ensure!(quota["limit_bytes"] == 4 << 20, "{id}: {quota}");
        ensure!(projects.insert(quota["project_id"].to_string()), "{id} shares its project");
    }
    Ok(())
}
