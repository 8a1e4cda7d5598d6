//! The control plane's children as [`ChildSpec`]s.

use std::path::Path;
use std::time::Duration;

use localstorage::Dir;
use pki::{Authority, Leaf, Pki};
use supervisor::{ChildFile, ChildSpec, StopSpec};

use crate::flags::{self, ApiserverFiles, ControllerFiles, EtcdFiles, Pair};
use crate::probe::HttpsProbe;
use crate::{ClientError, Settings};

const KUBECONFIG: &str = "kubeconfig";

/// One child of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The database.
    Etcd,
    /// kube-apiserver.
    Apiserver,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

/// How a part is started. `files` is the directory where its [`ChildSpec::files`] will appear.
///
/// # Errors
/// The probe's certificate cannot be read.
pub fn spec(
    part: Part,
    settings: &Settings,
    pki: &Pki,
    etcd: &Dir,
    files: &Path,
) -> Result<ChildSpec, ClientError> {
    Ok(match part {
        Part::Etcd => etcd_spec(settings, pki, etcd)?,
        Part::Apiserver => apiserver_spec(settings, pki)?,
        Part::ControllerManager => controller_manager_spec(settings, pki, files)?,
        Part::Scheduler => scheduler_spec(settings, pki, files)?,
    })
}

fn etcd_spec(s: &Settings, pki: &Pki, data: &Dir) -> Result<ChildSpec, ClientError> {
    let url = format!("https://127.0.0.1:{}/readyz", s.ports.etcd_client);
    let files = EtcdFiles {
        data: data.full_path().to_owned(),
        authority: pki.authority_path(Authority::Etcd),
        server: pair(pki, Leaf::EtcdServer),
        peer: pair(pki, Leaf::EtcdPeer),
    };
    let mut spec = child("/usr/bin/etcd", flags::etcd(s, &files)).probe(HttpsProbe::new(
        pki,
        Leaf::EtcdProbe,
        &url,
    )?);
    // R2: it finishes its log before it goes.
    spec.stop = StopSpec { grace: Duration::from_secs(30), ..StopSpec::default() };
    // Without etcd there is no cluster: among the last the kernel may kill.
    spec.oom_score_adj = -900;
    Ok(spec)
}

fn apiserver_spec(s: &Settings, pki: &Pki) -> Result<ChildSpec, ClientError> {
    let url = format!("{}/readyz", s.local_server());
    let files = ApiserverFiles {
        authority: pki.authority_path(Authority::Cluster),
        etcd_authority: pki.authority_path(Authority::Etcd),
        server: pair(pki, Leaf::Apiserver),
        etcd_client: pair(pki, Leaf::ApiserverEtcdClient),
        kubelet_client: pair(pki, Leaf::ApiserverKubeletClient),
        front_proxy_authority: pki.authority_path(Authority::FrontProxy),
        front_proxy_client: pair(pki, Leaf::FrontProxyClient),
        service_account_key: pki.service_account_key_path(),
        service_account_public: pki.service_account_public_path(),
    };
    let mut spec = child("/usr/bin/kube-apiserver", flags::apiserver(s, &files))
        .probe(HttpsProbe::new(pki, Leaf::Probe, &url)?);
    spec.oom_score_adj = -850;
    Ok(spec)
}

fn controller_manager_spec(s: &Settings, pki: &Pki, dir: &Path) -> Result<ChildSpec, ClientError> {
    let url = format!("https://127.0.0.1:{}/healthz", s.ports.controller_manager);
    let files = controller_files(pki, Leaf::ControllerManagerServing, dir);
    let args = flags::controller_manager(s, &files, &pki.service_account_key_path());
    let mut spec = child("/usr/bin/kube-controller-manager", args).probe(HttpsProbe::new(
        pki,
        Leaf::Probe,
        &url,
    )?);
    spec.files.push(kubeconfig(s, pki, Leaf::ControllerManager));
    spec.oom_score_adj = -800;
    Ok(spec)
}

fn scheduler_spec(s: &Settings, pki: &Pki, dir: &Path) -> Result<ChildSpec, ClientError> {
    let url = format!("https://127.0.0.1:{}/healthz", s.ports.scheduler);
    let files = controller_files(pki, Leaf::SchedulerServing, dir);
    let mut spec = child("/usr/bin/kube-scheduler", flags::scheduler(s, &files))
        .probe(HttpsProbe::new(pki, Leaf::Probe, &url)?);
    spec.files.push(kubeconfig(s, pki, Leaf::Scheduler));
    spec.oom_score_adj = -800;
    Ok(spec)
}

fn child(program: &str, args: Vec<String>) -> ChildSpec {
    ChildSpec::new(program).args(args).env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
}

fn pair(pki: &Pki, leaf: Leaf) -> Pair {
    Pair { certificate: pki.certificate_path(leaf), key: pki.key_path(leaf) }
}

fn controller_files(pki: &Pki, serving: Leaf, dir: &Path) -> ControllerFiles {
    ControllerFiles {
        authority: pki.authority_path(Authority::Cluster),
        server: pair(pki, serving),
        kubeconfig: dir.join(KUBECONFIG),
    }
}

fn kubeconfig(s: &Settings, pki: &Pki, leaf: Leaf) -> ChildFile {
    ChildFile {
        name: KUBECONFIG.to_owned(),
        content: pki.service_kubeconfig(leaf, &s.local_server()).into_bytes(),
    }
}
