//! The last step: the supervisor's tree, and the wait for the end.
//!
//! Must not know: what the services do.
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use slog::info;
use supervisor::{Config, Dn, Supervisor};
use tokio::sync::watch;

use super::logged::{DataReady, Shell, mount_data};
use super::{BringupFailed, Logged};
use crate::outcome::{Ending, outcome_marker};
use crate::params::EndAction;
use crate::root;
use crate::shutdown::{EndQueue, EndRequest, FatalEnd, Standing};

/// The running node.
#[derive(Debug)]
pub struct Tree {
    supervisor: Supervisor,
    fatal_action: EndAction,
}

impl Logged {
    /// Mounts the data disk and starts the tree.
    ///
    /// # Errors
    /// The data disk cannot be used.
    pub fn start(self, standing: &mut Standing) -> Result<Tree, BringupFailed> {
        let (shell, ready) = mount_data(self, standing)?;
        let logs = shell.logs.clone();
        let consoles = shell.consoles.clone();
        let phases = shell.phases.clone();
        let fatal_action = shell.parameters.fatal;
        let (supervisor_slot, later) = watch::channel(None);
        let root = root::service(machine(shell, ready, later));
        let seed = RandomState::new().hash_one(std::process::id());
        let supervisor = Supervisor::start(root, Config::new(logs, seed));
        // Nobody may listen only if root has ended already, which `wait` sees.
        let _ = supervisor_slot.send(Some(supervisor.clone()));
        consoles.follow(supervisor.view());
        standing.tree = Some(supervisor.clone());
        phases.reach("tree");
        Ok(Tree { supervisor, fatal_action })
    }
}

fn machine(
    shell: Shell,
    ready: DataReady,
    supervisor: watch::Receiver<Option<Supervisor>>,
) -> root::Machine {
    root::Machine {
        parameters: Arc::new(shell.parameters),
        logs: shell.logs,
        consoles: shell.consoles,
        spawner: shell.spawner,
        ends: shell.ends,
        phases: shell.phases,
        boot_id: shell.boot_id,
        run: shell.run,
        data: Arc::new(ready.up.data),
        data_device: ready.up.device,
        ledger: ready.ledger,
        supervisor,
    }
}

impl Tree {
    /// Waits until somebody or something ends the node.
    pub fn wait(self, standing: &mut Standing, queue: &mut Option<EndQueue>) -> EndRequest {
        let supervisor = self.supervisor;
        let mut view = supervisor.view();
        supervisor.runtime().block_on(async {
            let mut finished = false;
            loop {
                let asked = async {
                    match queue.as_mut() {
                        Some(queue) => queue.recv().await,
                        None => None,
                    }
                };
                // Cancel safe, all three: a queue keeps what was not taken, `fatal` and `changed` only
                // look.
                tokio::select! {
                    fatal = supervisor.fatal() => return self::fatal(&fatal, self.fatal_action, standing),
                    Some(request) = asked => return request,
                    Ok(()) = view.changed(), if !finished => {
                        finished = view.borrow_and_update().boot_finished;
                        if finished {
                            boot_finished(standing);
                        }
                    }
                }
            }
        })
    }
}

fn boot_finished(standing: &mut Standing) {
    standing.boot_finished = true;
    let success = Ending { outcome: "success".into(), reason: "boot-finished".into(), clean: true };
    standing.announcer.line(&outcome_marker(&success));
    if let Some(logs) = &standing.logs {
        let log = logs.logger(&Dn::from_static("init"));
        info!(log, "boot finished after {}", crate::shutdown::uptime_text());
    }
}

fn fatal(fatal: &supervisor::Fatal, action: EndAction, standing: &mut Standing) -> EndRequest {
    standing.boot_finished = fatal.boot_finished;
    let text = format!("{}: {}", fatal.dn, fatal.reason);
    let end = if fatal.panicked { FatalEnd::panicked(text) } else { FatalEnd::failed(text) };
    end.request(action)
}
