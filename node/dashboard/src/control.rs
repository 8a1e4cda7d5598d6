//! What the dashboard can change, as functions that the node gives it (rule W9).
//!
//! Purpose: the dashboard holds no supervisor and no way to end the node, only these two calls, so
//! that a test can see what was asked for. Must not know: how they are carried out.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use logtree::Dn;
use serde::{Deserialize, Serialize};
use supervisor::{RestartError, Supervisor};

/// How the node shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PowerAction {
    /// Start again.
    Reboot,
    /// Switch off.
    PowerOff,
}

impl PowerAction {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            PowerAction::Reboot => "reboot",
            PowerAction::PowerOff => "poweroff",
        }
    }
}

/// Somebody who may wants the node to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowerRequest {
    /// How.
    pub action: PowerAction,
    /// Without stopping anything in order: sync and go.
    pub force: bool,
    /// Who asked, for the log.
    pub peer: String,
}

type Restart = dyn Fn(Dn) -> BoxFuture<'static, Result<(), RestartError>> + Send + Sync;
type Power = dyn Fn(PowerRequest) + Send + Sync;

/// What can be changed.
#[derive(Clone)]
pub struct Controls {
    restart: Arc<Restart>,
    power: Arc<Power>,
}

impl Controls {
    /// From two functions: one restarts the unit of a DN, one asks for the node's end and returns at once.
    pub fn new(
        restart: impl Fn(Dn) -> BoxFuture<'static, Result<(), RestartError>> + Send + Sync + 'static,
        power: impl Fn(PowerRequest) + Send + Sync + 'static,
    ) -> Controls {
        Controls { restart: Arc::new(restart), power: Arc::new(power) }
    }

    /// Restarts by this supervisor.
    pub fn of(
        supervisor: &Supervisor,
        power: impl Fn(PowerRequest) + Send + Sync + 'static,
    ) -> Controls {
        let supervisor = supervisor.clone();
        let restart = move |dn: Dn| -> BoxFuture<'static, Result<(), RestartError>> {
            let supervisor = supervisor.clone();
            Box::pin(async move { supervisor.restart(&dn).await })
        };
        Controls::new(restart, power)
    }

    pub(crate) async fn restart(&self, dn: Dn) -> Result<(), RestartError> {
        (self.restart)(dn).await
    }

    pub(crate) fn power(&self, request: PowerRequest) {
        (self.power)(request);
    }
}

impl fmt::Debug for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controls").finish_non_exhaustive()
    }
}
