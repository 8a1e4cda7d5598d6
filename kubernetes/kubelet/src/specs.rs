//! The worker's children as [`ChildSpec`]s.
//!
//! `files` is always the directory where the child's [`ChildSpec::files`] will appear.

use std::path::Path;
use std::time::Duration;

use localstorage::Dir;
use serde_json::Value;
use supervisor::{ChildFile, ChildSpec, KillScope, StopSpec};

use crate::probe::{GrpcSocket, HealthPort};
use crate::{
    CONTAINERD_SOCKET, Certificates, KUBE_PROXY_HEALTH_PORT, KUBELET_HEALTH_PORT, ROOT_DIR,
    Settings, config,
};

const CONFIG_TOML: &str = "config.toml";
const CONFIG_JSON: &str = "config.json";
const KUBECONFIG: &str = "kubeconfig";
/// Memory that containers may not take from the parts which keep them.
const OOM_SCORE: i32 = -999;

/// containerd. Its shims outlive it (supervisor rule R4), so pods keep running over its restart.
pub fn containerd(root: &Dir, files: &Path) -> ChildSpec {
    let mut spec = child("/usr/bin/containerd")
        .args([flag_path("config", &files.join(CONFIG_TOML))])
        .probe(GrpcSocket { path: CONTAINERD_SOCKET.into() });
    spec.files.push(ChildFile {
        name: CONFIG_TOML.to_owned(),
        content: config::containerd(root.full_path()).into_bytes(),
    });
    spec.kill_scope = KillScope::Process;
    spec.oom_score_adj = OOM_SCORE;
    spec
}

/// Imports one OCI archive into the namespace that Kubernetes uses; ends by itself.
pub fn image_import(archive: &Path) -> ChildSpec {
    let mut spec = child("/usr/bin/ctr").args([
        "--address".as_ref(),
        CONTAINERD_SOCKET.as_ref(),
        "--namespace".as_ref(),
        "k8s.io".as_ref(),
        "images".as_ref(),
        "import".as_ref(),
        archive.as_os_str(),
    ]);
    spec.one_shot = true;
    spec
}

/// The kubelet.
pub fn kubelet(s: &Settings, c: &Certificates, kubeconfig: String, files: &Path) -> ChildSpec {
    let mut spec = child("/usr/bin/kubelet")
        .args([
            flag_path("config", &files.join(CONFIG_JSON)),
            flag_path("kubeconfig", &files.join(KUBECONFIG)),
            format!("--root-dir={ROOT_DIR}"),
            format!("--hostname-override={}", s.node_name),
            format!("--node-ip={}", s.node_ip),
        ])
        .probe(HealthPort { port: KUBELET_HEALTH_PORT });
    spec.files.push(json_file(&config::kubelet(c)));
    spec.files.push(ChildFile { name: KUBECONFIG.to_owned(), content: kubeconfig.into_bytes() });
    spec.stop = StopSpec { grace: Duration::from_secs(10), ..StopSpec::default() };
    spec.oom_score_adj = OOM_SCORE;
    spec
}

/// kube-proxy.
pub fn kube_proxy(s: &Settings, kubeconfig: String, files: &Path) -> ChildSpec {
    let mut spec = child("/usr/bin/kube-proxy")
        .args([flag_path("config", &files.join(CONFIG_JSON))])
        .probe(HealthPort { port: KUBE_PROXY_HEALTH_PORT });
    spec.files.push(json_file(&config::kube_proxy(s, &files.join(KUBECONFIG))));
    spec.files.push(ChildFile { name: KUBECONFIG.to_owned(), content: kubeconfig.into_bytes() });
    spec.oom_score_adj = OOM_SCORE;
    spec
}

fn child(program: &str) -> ChildSpec {
    ChildSpec::new(program).env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
}

fn flag_path(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// JSON is YAML, which is what the Kubernetes parts read.
fn json_file(config: &Value) -> ChildFile {
    ChildFile { name: CONFIG_JSON.to_owned(), content: config.to_string().into_bytes() }
}
