//! A guest that runs the whole cluster, and `kubectl` on the host to talk to it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::channel::HostChannel;
use crate::image_dir::ImageDir;
use crate::qemu::VmConfig;
use crate::rundir::RunDir;
use crate::vm::Vm;
use crate::wait::PATIENCE;

/// Port of the API server in the guest.
pub const API_PORT: u16 = 6443;

/// Port of the dashboard in the guest.
pub const DASHBOARD_PORT: u16 = 7840;

/// A guest whose node is ready, with the means to use it.
#[derive(Debug)]
pub struct Cluster {
    /// The guest.
    pub vm: Vm,
    /// The host's own channel.
    pub channel: HostChannel,
    /// kubectl with the admin's kubeconfig.
    pub kubectl: Kubectl,
}

impl Cluster {
    /// Boots `config` and waits until the node is ready.
    ///
    /// # Errors
    /// The guest does not start or does not become ready.
    pub fn boot(config: VmConfig) -> Result<Self> {
        let image = config.image.clone();
        let config = config.forward(0, API_PORT).forward(0, DASHBOARD_PORT);
        let vm = Vm::start(&config, RunDir::new()?)?;
        vm.serial().wait_for("HAMLET phase=node-ready", PATIENCE)?;
        Self::attach(vm, &image)
    }

    /// Takes hold of a guest whose node is ready.
    ///
    /// # Errors
    /// The node does not hand out its kubeconfig.
    pub(crate) fn attach(vm: Vm, image: &ImageDir) -> Result<Self> {
        let mut channel = vm.channel();
        let kubeconfig = vm.run_dir().join("kubeconfig");
        write_kubeconfig(&mut channel, vm.port(API_PORT)?, &kubeconfig)?;
        let kubectl = Kubectl::new(image.folder().join("kubectl"), kubeconfig);
        Ok(Self { vm, channel, kubectl })
    }
}

/// Asks the node for the admin's kubeconfig, points it to `port` on this machine
/// and writes it to `path`, for the owner's eyes only.
///
/// # Errors
/// The node refuses, or the file cannot be written.
pub fn write_kubeconfig(channel: &mut HostChannel, port: u16, path: &Path) -> Result<()> {
    let answer = channel.call("kubeconfig", json!({})).context("no kubeconfig from the node")?;
    let text = answer["kubeconfig"].as_str().context("the node sent no kubeconfig")?;
    let text = point_to(text, port)?;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

fn point_to(kubeconfig: &str, port: u16) -> Result<String> {
    let server = format!("https://127.0.0.1:{API_PORT}");
    if !kubeconfig.contains(&server) {
        bail!("the node's kubeconfig does not point to {server}");
    }
    Ok(kubeconfig.replace(&server, &format!("https://127.0.0.1:{port}")))
}

/// kubectl on the host.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// `program` with `kubeconfig`.
    pub fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// The kubeconfig's path.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A command that is not yet started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        // Not in the user's home: another cluster is behind this address tomorrow.
        command.env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"));
        command
    }

    /// Runs kubectl and returns what it prints.
    ///
    /// # Errors
    /// kubectl fails; its own words are in the error.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.with_input(arguments, "")
    }

    /// As [`Kubectl::run`] with `-o json`, parsed.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl printed no JSON")
    }

    /// Applies a manifest.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.with_input(&["apply", "-f", "-"], manifest)
    }

    /// Waits for a condition of an object, as `kubectl wait --for` writes it.
    ///
    /// # Errors
    /// It does not come within `deadline`.
    pub fn wait(&self, object: &str, condition: &str, deadline: Duration) -> Result<()> {
        let condition = format!("--for={condition}");
        let timeout = format!("--timeout={}s", deadline.as_secs());
        self.run(&["wait", object, &condition, &timeout]).map(drop)
    }

    fn with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
        // A kubectl that ends early says why on its standard error.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().context("cannot wait for kubectl")?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {} failed: {}", arguments.join(" "), words.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_is_pointed_to_the_forwarded_port_and_to_nothing_else() {
        let text = "clusters:\n- cluster:\n    server: https://127.0.0.1:6443\n";
        assert!(point_to(text, 4711).unwrap().contains("server: https://127.0.0.1:4711\n"));
        assert!(point_to("server: https://10.0.2.15:6443", 4711).is_err());
    }
}
