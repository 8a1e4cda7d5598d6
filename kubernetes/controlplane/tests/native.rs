//! The real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, with our
//! certificates, flags, probes and first objects. Beside the VM tests, which have the whole node
//! around the same, this one says within seconds which of those is wrong.
//!
//! Run by `cargo xtask test`, which builds the programs and names their folders in
//! `HAMLET_UPSTREAM_BIN` (separated as in PATH): one holds `etcd`, one the multicall `kube`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use controlplane::{HttpsProbe, Part, Ports, Settings, bootstrap, client, spec};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use pki::{Leaf, Pki, Request};
use supervisor::Probe as _;

const DRIVER: &str = "com.nexantic.smalltown.vfs";

struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in self.0.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that was built for the node.
fn upstream(program: &str) -> anyhow::Result<PathBuf> {
    let folders = std::env::var_os("HAMLET_UPSTREAM_BIN")
        .context("HAMLET_UPSTREAM_BIN is not set; `cargo xtask test` sets it")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.exists())
        .with_context(|| format!("no {program} in {}", folders.display()))
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A client that shows no certificate.
fn stranger(url: &str) -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::new(url.parse()?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

struct Trial {
    dir: tempfile::TempDir,
    etcd: localstorage::Dir,
    pki: Pki,
    settings: Settings,
    started: Started,
}

impl Trial {
    fn new() -> anyhow::Result<Trial> {
        let dir = tempfile::tempdir()?;
        for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            std::os::unix::fs::symlink(upstream("kube")?, dir.path().join(name))?;
        }
        std::os::unix::fs::symlink(upstream("etcd")?, dir.path().join("etcd"))?;
        std::fs::create_dir(dir.path().join("data"))?;
        let data = localstorage::testing::data_at(&dir.path().join("data"))?;
        let request = Request {
            node_name: "hamlet-0".to_owned(),
            node_ip: [10, 0, 2, 15].into(),
            service_ip: [10, 96, 0, 1].into(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let (pki, _) = Pki::ensure(&data.kubernetes.pki, request, i64::try_from(now)?)?;
        let settings = Settings {
            advertise_address: [10, 0, 2, 15].into(),
            ports: Ports {
                apiserver: free_port()?,
                etcd_client: free_port()?,
                etcd_peer: free_port()?,
                controller_manager: free_port()?,
                scheduler: free_port()?,
            },
            service_cidr: "10.96.0.0/16".to_owned(),
            cluster_cidr: "10.244.0.0/16".to_owned(),
        };
        Ok(Trial { dir, etcd: data.etcd, pki, settings, started: Started(Vec::new()) })
    }

    /// Starts a part as the node would and waits until its own probe passes.
    async fn start(&mut self, part: Part) -> anyhow::Result<Duration> {
        let files = self.dir.path().join(format!("{part:?}"));
        std::fs::create_dir(&files)?;
        let spec = spec(part, &self.settings, &self.pki, &self.etcd, &files)?;
        for file in &spec.files {
            std::fs::write(files.join(&file.name), &file.content)?;
        }
        let name = spec.program.file_name().context("no program")?;
        let log = std::fs::File::create(files.join("log"))?;
        let begin = Instant::now();
        self.started.0.push(
            Command::new(self.dir.path().join(name))
                .args(&spec.args)
                .env_clear()
                .envs(spec.env.iter().cloned())
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?,
        );
        let probe = spec.probe.context("no probe")?;
        loop {
            match probe.ready().await {
                Ok(()) => return Ok(begin.elapsed()),
                Err(why) if begin.elapsed() > Duration::from_secs(90) => {
                    let log = std::fs::read_to_string(files.join("log"))?;
                    let tail: Vec<&str> = log.lines().rev().take(30).collect();
                    anyhow::bail!("{part:?}: {why}\n{}", tail.join("\n"));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn client(&self, leaf: Leaf) -> anyhow::Result<kube::Client> {
        Ok(client(&self.pki, leaf, &self.settings.local_server())?)
    }
}

fn code<T>(result: Result<T, kube::Error>) -> Option<u16> {
    match result {
        Err(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

async fn only_etcds_own_clients_reach_it(t: &Trial) -> anyhow::Result<()> {
    let url = format!("https://127.0.0.1:{}/readyz", t.settings.ports.etcd_client);
    let foreign = HttpsProbe::new(&t.pki, Leaf::Admin, &url)?;
    ensure!(foreign.ready().await.is_err(), "the admin reaches etcd");
    let request = http::Request::get("/readyz").body(Vec::new())?;
    let none = stranger(&url)?.request_text(request).await;
    ensure!(none.is_err(), "etcd answers without a certificate");
    Ok(())
}

async fn nobody_is_anonymous(t: &Trial) -> anyhow::Result<()> {
    let client = stranger(&t.settings.local_server())?;
    for path in ["/readyz", "/version", "/api"] {
        let request = http::Request::get(path).body(Vec::new())?;
        let answer = code(client.request_text(request).await);
        ensure!(answer == Some(401), "{path}: {answer:?}");
    }
    Ok(())
}

async fn first_objects_are_applied_twice_without_a_change(t: &Trial) -> anyhow::Result<()> {
    let client = t.client(Leaf::Bootstrap)?;
    let drivers: Api<CSIDriver> = Api::all(client.clone());
    let mut versions = Vec::new();
    for _ in 0..2 {
        for object in bootstrap::objects(DRIVER)? {
            object.apply(&client).await?;
        }
        let driver = drivers.get(DRIVER).await?;
        ensure!(driver.spec.attach_required == Some(false));
        versions.push(driver.metadata.resource_version);
    }
    ensure!(versions[0] == versions[1], "{versions:?}");
    Ok(())
}

async fn every_identity_may_do_its_own_work_only(t: &Trial) -> anyhow::Result<()> {
    let all = ListParams::default();
    let admin = t.client(Leaf::Admin)?;
    Api::<Secret>::all(admin.clone()).list(&all).await.context("admin")?;
    let probe = t.client(Leaf::Probe)?;
    ensure!(code(Api::<Node>::all(probe).list(&all).await) == Some(403), "the probe lists nodes");
    let watch = t.client(Leaf::NodeWatch)?;
    Api::<Node>::all(watch.clone()).list(&all).await.context("node-watch")?;
    ensure!(code(Api::<Pod>::all(watch).list(&all).await) == Some(403), "node-watch lists pods");

    let kubelet = Api::<Node>::all(t.client(Leaf::Kubelet)?);
    let node = |name: &str| Node {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Node::default()
    };
    let other = kubelet.create(&PostParams::default(), &node("other")).await;
    ensure!(code(other) == Some(403), "a kubelet registers another node");
    kubelet.create(&PostParams::default(), &node("hamlet-0")).await.context("own node")?;
    Ok(())
}

#[tokio::test]
async fn the_control_plane_comes_up_with_our_certificates_flags_and_probes() -> anyhow::Result<()> {
    let mut t = Trial::new()?;
    for part in [Part::Etcd, Part::Apiserver] {
        println!("{part:?} ready after {:?}", t.start(part).await?);
    }
    only_etcds_own_clients_reach_it(&t).await?;
    nobody_is_anonymous(&t).await?;
    first_objects_are_applied_twice_without_a_change(&t).await?;
    every_identity_may_do_its_own_work_only(&t).await?;
    for part in [Part::ControllerManager, Part::Scheduler] {
        println!("{part:?} ready after {:?}", t.start(part).await?);
    }
    Ok(())
}
