//! A guest without Kubernetes, for tests of boot and storage: up in seconds, and
//! driven over the host's own channel by the operations of a test image.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::channel::{ChannelError, HostChannel};
use crate::image_dir::ImageDir;
use crate::kvm::probe;
use crate::qemu::{Cache, VmConfig};
use crate::rundir::RunDir;
use crate::vm::{DataDisk, Ending, Vm};
use crate::wait::PATIENCE;

/// Memory of a node without Kubernetes, in MiB.
const MEMORY_MIB: u64 = 1024;

/// Time for an orderly way down without Kubernetes.
const DOWN_DEADLINE: Duration = Duration::from_secs(130);

/// A node that runs storage only.
#[derive(Debug)]
pub struct StorageNode {
    /// The guest.
    pub vm: Vm,
    /// The host's own channel.
    pub channel: HostChannel,
}

/// What the kernel's project quota says of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Quota {
    /// Project of the directory; 0 is none.
    pub project_id: u32,
    /// Byte limit.
    pub limit_bytes: Option<u64>,
    /// Bytes in use.
    pub used_bytes: Option<u64>,
    /// Limit of files and directories.
    pub inode_limit: Option<u64>,
    /// Files and directories.
    pub inodes_used: Option<u64>,
}

/// How a file was filled.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Written {
    /// Bytes that went in.
    pub written: u64,
    /// Error that stopped it.
    pub errno: i32,
}

impl StorageNode {
    /// A guest's configuration; tests may add parameters.
    ///
    /// # Errors
    /// There is no image; says which command builds one.
    pub fn config(disk: &DataDisk) -> Result<VmConfig> {
        let image = ImageDir::from_env()?;
        let accelerator = probe(&image.kernel())?;
        let config = VmConfig::new(image, accelerator).memory(MEMORY_MIB);
        Ok(config.data_disk(disk.path(), Cache::Writeback).parameter("hamlet.run=storage"))
    }

    /// Boots and waits until storage is healthy.
    ///
    /// # Errors
    /// The guest does not start or storage does not come up.
    pub fn boot(disk: &DataDisk) -> Result<Self> {
        let vm = Vm::start(&Self::config(disk)?, RunDir::new()?)?;
        vm.serial().wait_for("HAMLET phase=storage ", PATIENCE)?;
        let channel = vm.channel();
        Ok(Self { vm, channel })
    }

    /// An operation of the volume engine.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn engine(&mut self, action: &str, mut arguments: Value) -> Result<Value, ChannelError> {
        arguments["action"] = json!(action);
        self.channel.call("test.engine", arguments)
    }

    /// Creates a directory volume.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn create(&mut self, name: &str, bytes: u64) -> Result<Value, ChannelError> {
        self.engine("create", json!({ "name": name, "bytes": bytes }))
    }

    /// Deletes a volume.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn delete(&mut self, id: &str) -> Result<Value, ChannelError> {
        self.engine("delete", json!({ "volume": id }))
    }

    /// Objects the engine knows.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn inventory(&mut self) -> Result<Vec<Value>> {
        let answer = self.engine("inventory", json!({}))?;
        Ok(answer["objects"].as_array().context("no objects in the inventory")?.clone())
    }

    /// Names in a directory of the guest.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>> {
        let mut answer = self.channel.call("test.ls", json!({ "path": path }))?;
        serde_json::from_value(answer["names"].take()).context("no names in the listing")
    }

    /// Writes a file until it cannot grow any more.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn fill(&mut self, path: &str, chunk: u64) -> Result<Written> {
        self.typed("test.fill", json!({ "path": path, "chunk": chunk }))
    }

    /// The kernel's quota of a directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn quota(&mut self, path: &str) -> Result<Quota> {
        self.typed("test.quota", json!({ "path": path }))
    }

    fn typed<T: DeserializeOwned>(&mut self, op: &str, arguments: Value) -> Result<T> {
        let answer = self.channel.call(op, arguments)?;
        serde_json::from_value(answer.clone()).with_context(|| format!("{op} answered {answer}"))
    }

    /// Powers off in order.
    ///
    /// # Errors
    /// The guest does not end, or does not end well.
    pub fn power_off(mut self) -> Result<()> {
        self.channel.call("poweroff", json!({}))?;
        let ending = self.vm.wait_end(DOWN_DEADLINE)?;
        anyhow::ensure!(ending == Ending::PowerOff, "the guest ended by {ending:?}");
        Ok(())
    }

    /// Cuts the power.
    pub fn power_cut(self) {
        self.vm.power_cut();
    }
}
