//! The whole house on a thawed cluster: claims, pods, the kubelet, the dashboard.
//! Nothing here is about boots or crashes of the machine.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use e2e::{API_PORT, Cluster, DASHBOARD_PORT, ImageDir, PATIENCE, eventually, probe, thaw};
use serde_json::{Value, json};

const LIMIT: u64 = 64 << 20;

const CLASS: &str = include_str!("../../demo/storageclass.yaml");
const CLAIM: &str = include_str!("../../demo/claim.yaml");
const POD: &str = include_str!("../../demo/pod.yaml");

/// A thawed cluster with the demonstration's class.
fn cluster() -> Result<Cluster> {
    let image = ImageDir::from_env()?;
    let accelerator = probe(&image.kernel())?;
    let cluster = thaw(&image, accelerator)?;
    cluster.kubectl.apply(CLASS)?;
    Ok(cluster)
}

fn claim(name: &str, storage: &str, mode: &str) -> String {
    CLAIM
        .replace("name: demo", &format!("name: {name}"))
        .replace("64Mi", &format!("{storage:?}"))
        .replace("ReadWriteOnce", mode)
}

/// A pod that runs `script` with the claim of the same name at /data.
fn pod(name: &str, script: &str, read_only: bool) -> String {
    let script = serde_json::to_string(script).expect("a text is JSON");
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
    - name: main
      image: hamlet.dev/busybox:1
      imagePullPolicy: IfNotPresent
      command: [sh, -c, {script}]
      volumeMounts: [{{name: data, mountPath: /data, readOnly: {read_only}}}]
  volumes:
    - name: data
      persistentVolumeClaim: {{claimName: {name}, readOnly: {read_only}}}
"
    )
}

fn volumes(cluster: &mut Cluster) -> Result<Value> {
    Ok(cluster.channel.call("volumes", json!({}))?)
}

fn engine_objects(cluster: &mut Cluster) -> Result<Vec<Value>> {
    let answer = cluster.channel.call("test.engine", json!({ "action": "inventory" }))?;
    Ok(answer["objects"].as_array().context("no inventory")?.clone())
}

/// Messages of a claim's events.
fn events_of_claim(cluster: &Cluster, name: &str) -> Result<String> {
    let selector = format!(
        "--field-selector=involvedObject.kind=PersistentVolumeClaim,involvedObject.name={name}"
    );
    cluster.kubectl.run(&[
        "get",
        "events",
        &selector,
        "-o",
        "jsonpath={.items[*]['reason','message']}",
    ])
}

/// The snapshot of one node of the tree, by the end of its DN.
fn node_of(cluster: &mut Cluster, dn_end: &str) -> Result<Value> {
    let tree = cluster.channel.call("tree", json!({}))?;
    let nodes = tree["nodes"].as_array().context("no nodes in the tree")?;
    let found =
        nodes.iter().find(|node| node["dn"].as_str().is_some_and(|dn| dn.ends_with(dn_end)));
    found.cloned().with_context(|| format!("no {dn_end} in the tree"))
}

#[test]
fn a_claim_becomes_a_volume_whose_limit_the_pod_meets_and_deletion_gives_it_back() -> Result<()> {
    let mut cluster = cluster()?;
    let free = volumes(&mut cluster)?["capacity"]["available_bytes"].clone();
    cluster.kubectl.apply(CLAIM)?;
    cluster.kubectl.apply(POD)?;
    cluster.kubectl.wait("pvc/demo", "jsonpath={.status.phase}=Bound", PATIENCE)?;
    cluster.kubectl.wait("pod/demo", "condition=Ready", PATIENCE)?;
    let said = cluster.kubectl.run(&["logs", "demo"])?;
    ensure!(said.contains(&format!("written {LIMIT}\n")), "{said}");
    ensure!(said.contains("No space left on device"), "{said}");
    ensure!(said.contains("df 65536 65536 0"), "{said}");
    let objects = engine_objects(&mut cluster)?;
    ensure!(objects.len() == 1, "{objects:?}");
    let id = objects[0]["id"].as_str().context("no id")?.to_owned();
    let quota =
        cluster.channel.call("test.quota", json!({ "path": format!("/data/volumes/{id}") }))?;
    ensure!(quota["limit_bytes"] == LIMIT && quota["used_bytes"] == LIMIT, "{quota}");
    stats_show_the_volume(&cluster)?;

    cluster.kubectl.run(&["delete", "pod/demo", "pvc/demo", "--timeout=300s"])?;
    eventually("the volume is gone", PATIENCE, || {
        ensure!(engine_objects(&mut cluster)?.is_empty(), "still in the inventory");
        let volumes = cluster.kubectl.json(&["get", "pv"])?;
        ensure!(volumes["items"] == json!([]), "still a PersistentVolume");
        Ok(())
    })?;
    eventually("the space is back", PATIENCE, || {
        let now = volumes(&mut cluster)?["capacity"]["available_bytes"].clone();
        // The log of what happened takes a little, the volume would take 64 MiB.
        let (now, free) = (now.as_u64().context("bytes")?, free.as_u64().context("bytes")?);
        ensure!(now + (32 << 20) > free, "{now} bytes free, {free} before");
        Ok(())
    })
}

/// The kubelet's summary API shows the claim's size and use.
fn stats_show_the_volume(cluster: &Cluster) -> Result<()> {
    eventually("the kubelet's statistics", PATIENCE, || {
        let path = "/api/v1/nodes/hamlet-0/proxy/stats/summary";
        let summary = cluster.kubectl.run(&["get", "--raw", path])?;
        let summary: Value = serde_json::from_str(&summary)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let volume = pods
            .iter()
            .flat_map(|pod| pod["volume"].as_array().into_iter().flatten())
            .find(|volume| volume["pvcRef"]["name"] == "demo")
            .context("no statistics of the claim yet")?;
        ensure!(volume["capacityBytes"] == LIMIT, "{volume}");
        ensure!(volume["usedBytes"] == LIMIT, "{volume}");
        Ok(())
    })
}

/// Changes what a claim asks for.
fn ask(cluster: &Cluster, name: &str, storage: &str) -> Result<()> {
    let patch = json!({ "spec": { "resources": { "requests": { "storage": storage } } } });
    cluster
        .kubectl
        .run(&["patch", &format!("pvc/{name}"), "--type=merge", "-p", &patch.to_string()])
        .map(drop)
}

#[test]
fn e4_e5_a_claim_that_asks_for_more_grows_under_its_running_pod() -> Result<()> {
    let cluster = cluster()?;
    cluster.kubectl.apply(CLAIM)?;
    cluster.kubectl.apply(POD)?;
    cluster.kubectl.wait("pod/demo", "condition=Ready", PATIENCE)?;
    ask(&cluster, "demo", "128Mi")?;
    cluster.kubectl.wait("pvc/demo", "jsonpath={.status.capacity.storage}=128Mi", PATIENCE)?;
    let pv = cluster.kubectl.json(&["get", "pv"])?["items"][0].clone();
    ensure!(pv["spec"]["capacity"]["storage"] == "128Mi", "{pv}");
    // The demonstration has written 64 MiB; exactly as much fits now.
    let fill =
        "dd if=/dev/zero of=/data/more bs=65536 2>/dev/null; stat -c %s /data/more; df -k /data";
    let said = cluster.kubectl.run(&["exec", "demo", "--", "sh", "-c", fill])?;
    ensure!(said.lines().next() == Some(&*LIMIT.to_string()), "{said}");
    ensure!(said.contains("131072"), "{said}");
    ask(&cluster, "demo", "100Ti")?;
    eventually("the refusal", PATIENCE, || {
        let events = events_of_claim(&cluster, "demo")?;
        ensure!(events.contains("VolumeResizeFailed"), "{events}");
        Ok(())
    })?;
    ask(&cluster, "demo", "160Mi")?;
    cluster.kubectl.wait("pvc/demo", "jsonpath={.status.capacity.storage}=160Mi", PATIENCE)?;
    let events = events_of_claim(&cluster, "demo")?;
    ensure!(events.contains("VolumeResizeSuccessful"), "{events}");
    Ok(())
}

#[test]
fn v7_a_clone_begins_with_its_sources_data_and_then_lives_alone() -> Result<()> {
    let cluster = cluster()?;
    cluster.kubectl.apply(&claim("origin", "16Mi", "ReadWriteOnce"))?;
    cluster.kubectl.apply(&pod("origin", "echo first > /data/text; sync", false))?;
    cluster.kubectl.wait("pod/origin", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    let copy = claim("copy", "16Mi", "ReadWriteOnce")
        + "  dataSource: {kind: PersistentVolumeClaim, name: origin}\n";
    cluster.kubectl.apply(&copy)?;
    cluster.kubectl.apply(&pod("copy", "cat /data/text; echo second > /data/text", false))?;
    cluster.kubectl.wait("pod/copy", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    ensure!(cluster.kubectl.run(&["logs", "copy"])?.trim() == "first");
    cluster.kubectl.run(&["delete", "pod/origin", "--timeout=300s"])?;
    cluster.kubectl.apply(&pod("origin", "cat /data/text", true))?;
    cluster.kubectl.wait("pod/origin", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    ensure!(cluster.kubectl.run(&["logs", "origin"])?.trim() == "first");
    Ok(())
}

#[test]
fn a_block_claim_is_a_device_of_exactly_its_size_and_keeps_what_is_written() -> Result<()> {
    let mut cluster = cluster()?;
    let block = claim("raw", "16Mi", "ReadWriteOnce") + "  volumeMode: Block\n";
    cluster.kubectl.apply(&block)?;
    let user = |script: &str| {
        pod("raw", script, false).replace(
            "volumeMounts: [{name: data, mountPath: /data, readOnly: false}]",
            "volumeDevices: [{name: data, devicePath: /dev/data}]",
        )
    };
    let fill = "blockdev --getsize64 /dev/data; yes hamlet | dd of=/dev/data bs=65536 count=256 iflag=fullblock 2>/dev/null; sync; echo $?";
    cluster.kubectl.apply(&user(fill))?;
    cluster.kubectl.wait("pod/raw", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    let said = cluster.kubectl.run(&["logs", "raw"])?;
    ensure!(said == "16777216\n0\n", "{said}");
    cluster.kubectl.run(&["delete", "pod/raw", "--timeout=300s"])?;
    cluster.kubectl.apply(&user("tail -c 7 /dev/data; head -c 7 /dev/data"))?;
    cluster.kubectl.wait("pod/raw", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    let said = cluster.kubectl.run(&["logs", "raw"])?;
    ensure!(said.contains("hamlet"), "{said}");
    cluster.kubectl.run(&["delete", "pod/raw", "pvc/raw", "--timeout=300s"])?;
    eventually("the volume is gone", PATIENCE, || {
        ensure!(engine_objects(&mut cluster)?.is_empty(), "still in the inventory");
        Ok(())
    })
}

#[test]
fn a_read_only_pod_cannot_write_and_sees_what_another_wrote() -> Result<()> {
    let cluster = cluster()?;
    cluster.kubectl.apply(&claim("shared", "16Mi", "ReadWriteOnce"))?;
    cluster.kubectl.apply(&pod("shared", "echo hello > /data/text", false))?;
    cluster.kubectl.wait("pod/shared", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    cluster.kubectl.run(&["delete", "pod/shared", "--timeout=300s"])?;
    let script = "cat /data/text; touch /data/other || true";
    cluster.kubectl.apply(&pod("shared", script, true))?;
    cluster.kubectl.wait("pod/shared", "jsonpath={.status.phase}=Succeeded", PATIENCE)?;
    let said = cluster.kubectl.run(&["logs", "shared"])?;
    ensure!(said.contains("hello") && said.contains("Read-only file system"), "{said}");
    Ok(())
}

#[test]
fn absurd_claims_are_refused_or_get_an_event_and_nothing_is_made() -> Result<()> {
    let mut cluster = cluster()?;
    let entries = engine_objects(&mut cluster)?;
    let mut accepted = Vec::new();
    for (name, storage, mode) in [
        ("zero", "0", "ReadWriteOnce"),
        ("negative", "-1Gi", "ReadWriteOnce"),
        ("enormous", "16Ei", "ReadWriteOnce"),
        ("larger-than-the-disk", "100Ti", "ReadWriteOnce"),
        ("odd-mode", "1Mi", "ReadSometimes"),
        ("many-writers", "1Mi", "ReadWriteMany"),
        ("../etc/passwd", "1Mi", "ReadWriteOnce"),
    ] {
        match cluster.kubectl.apply(&claim(name, storage, mode)) {
            Ok(_) => {
                // A class that waits for the first consumer wants one.
                cluster.kubectl.apply(&pod(name, "true", false))?;
                accepted.push(name);
            }
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("nvalid") || text.contains("nsupported"), "{name}: {text}");
            }
        }
    }
    ensure!(accepted.contains(&"larger-than-the-disk"), "{accepted:?}");
    for name in accepted {
        eventually(&format!("an event on claim {name}"), PATIENCE, || {
            let events = events_of_claim(&cluster, name)?;
            ensure!(events.contains("ProvisioningFailed"), "{events:?}");
            Ok(())
        })?;
        let claim = cluster.kubectl.json(&["get", "pvc", name])?;
        ensure!(claim["status"]["phase"] == "Pending", "{name}: {claim}");
    }
    ensure!(engine_objects(&mut cluster)? == entries, "something was made");
    ensure!(cluster.kubectl.json(&["get", "pv"])?["items"] == json!([]), "a PersistentVolume");
    Ok(())
}

#[test]
fn csi_12_5_a_handle_that_is_a_path_gets_an_event_and_touches_nothing() -> Result<()> {
    let mut cluster = cluster()?;
    let before = cluster.channel.call("test.ls", json!({ "path": "/data" }))?;
    cluster.kubectl.apply(
        "apiVersion: v1
kind: PersistentVolume
metadata: {name: hostile}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: hostile}
  csi: {driver: com.nexantic.smalltown.vfs, volumeHandle: ../../etc}
",
    )?;
    let bound = claim("hostile", "1Mi", "ReadWriteOnce") + "  volumeName: hostile\n";
    cluster.kubectl.apply(&bound)?;
    cluster.kubectl.apply(&pod("hostile", "true", false))?;
    eventually("an event on the pod", PATIENCE, || {
        let events =
            cluster.kubectl.run(&["get", "events", "-o", "jsonpath={.items[*]['reason']}"])?;
        ensure!(events.contains("FailedMount"), "{events}");
        Ok(())
    })?;
    ensure!(cluster.channel.call("test.ls", json!({ "path": "/data" }))? == before);
    ensure!(engine_objects(&mut cluster)?.is_empty());
    Ok(())
}

#[test]
fn a_provisioner_that_panics_is_restarted_shown_on_the_dashboard_and_serves_what_waits()
-> Result<()> {
    let mut cluster = cluster()?;
    let before = node_of(&mut cluster, ".provisioner")?;
    let dn = before["dn"].as_str().context("a DN")?.to_owned();
    cluster.channel.call("test.panic", json!({ "dn": dn }))?;
    cluster.kubectl.apply(&claim("waiting", "8Mi", "ReadWriteOnce"))?;
    cluster.kubectl.apply(&pod("waiting", "df -k /data", false))?;
    eventually("a restart", PATIENCE, || {
        let now = node_of(&mut cluster, ".provisioner")?;
        ensure!(now["deaths"].as_u64() > before["deaths"].as_u64(), "{now}");
        ensure!(now["starts"].as_u64() > before["starts"].as_u64(), "{now}");
        let death = now["last_death"].to_string();
        ensure!(death.to_lowercase().contains("panic"), "{death}");
        Ok(())
    })?;
    cluster.kubectl.wait("pvc/waiting", "jsonpath={.status.phase}=Bound", PATIENCE)?;
    let page = dashboard(&mut cluster, &format!("/dn/{dn}"))?;
    ensure!(page.contains("200 OK") && page.to_lowercase().contains("panic"), "{page}");
    Ok(())
}

#[test]
fn a_killed_api_server_comes_back_without_a_reboot() -> Result<()> {
    let mut cluster = cluster()?;
    let boot = cluster.channel.call("status", json!({}))?["boot_id"].clone();
    let before = node_of(&mut cluster, ".apiserver")?;
    cluster.channel.call("test.kill", json!({ "dn": before["dn"] }))?;
    eventually("a restart", PATIENCE, || {
        let now = node_of(&mut cluster, ".apiserver")?;
        ensure!(now["starts"].as_u64() > before["starts"].as_u64(), "{now}");
        Ok(())
    })?;
    eventually("the API server answers", PATIENCE, || {
        cluster.kubectl.run(&["get", "--raw", "/readyz"])
    })?;
    cluster.kubectl.wait("node/hamlet-0", "condition=Ready", PATIENCE)?;
    ensure!(cluster.channel.call("status", json!({}))?["boot_id"] == boot, "the node rebooted");
    Ok(())
}

#[test]
fn w6_the_dashboard_wants_its_token_and_then_shows_the_tree() -> Result<()> {
    let mut cluster = cluster()?;
    let port = cluster.vm.port(DASHBOARD_PORT)?;
    let locked = http(port, "/", None)?;
    ensure!(locked.starts_with("HTTP/1.1 401"), "{locked}");
    let page = dashboard(&mut cluster, "/")?;
    ensure!(page.starts_with("HTTP/1.1 200"), "{page}");
    for words in ["kubernetes", "apiserver", "storage"] {
        ensure!(page.contains(words), "no {words} on the page");
    }
    let health = http(port, "/readyz", None)?;
    ensure!(health.starts_with("HTTP/1.1 200"), "{health}");
    let metrics = dashboard(&mut cluster, "/metrics")?;
    ensure!(metrics.contains("hamlet_supervisor_dn_state") && metrics.contains("# EOF"));
    Ok(())
}

#[test]
fn a_stranger_is_not_let_in_and_the_anonymous_user_may_do_nothing() -> Result<()> {
    let cluster = cluster()?;
    let server = format!("--server=https://127.0.0.1:{}", cluster.vm.port(API_PORT)?);
    let stranger = ["--kubeconfig=/dev/null", &server, "--insecure-skip-tls-verify", "--token=x"];
    for (who, flags, words) in [
        ("stranger", &stranger[..], "nauthorized"),
        ("anonymous", &["--as=system:anonymous"], "orbidden"),
    ] {
        let answer = cluster.kubectl.run(&[&["get", "--raw", "/api/v1/pods"], flags].concat());
        let Err(error) = answer else { bail!("the {who} may list pods") };
        ensure!(format!("{error:#}").contains(words), "{error:#}");
    }
    Ok(())
}

/// A page of the dashboard, with its header.
fn dashboard(cluster: &mut Cluster, path: &str) -> Result<String> {
    let answer = cluster.channel.call("dashboard", json!({}))?;
    let token = answer["token"].as_str().context("no token")?.to_owned();
    http(cluster.vm.port(DASHBOARD_PORT)?, path, Some(&token))
}

fn http(port: u16, path: &str, token: Option<&str>) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("no dashboard")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
