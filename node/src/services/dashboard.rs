//! Service `dashboard`: what it is given. The pages are the crate `dashboard`.
use std::sync::Arc;

use dashboard::{Access, AccessError, Controls, Listen, PowerAction, PowerRequest, Sources};
use prometheus_client::registry::Registry;
use supervisor::Supervisor;
use supervisor::prelude::*;

use crate::params::EndAction;
use crate::root::Shared;
use crate::shutdown::{EndRequests, Reason};

/// Name of the control socket in the node's own folder below `/run`.
pub const CONTROL_SOCKET: &str = "control.sock";

/// What the dashboard shows and changes, and who may look; the host channel answers by the same.
///
/// # Errors
/// The token cannot be one.
pub fn parts(
    shared: &Shared,
    supervisor: &Supervisor,
    metrics: Registry,
) -> Result<(Sources, Access), AccessError> {
    let ends = shared.machine.ends.clone();
    let sources = Sources {
        tree: supervisor.into(),
        logs: shared.machine.logs.clone(),
        volumes: shared.volumes_view.subscribe(),
        node: shared.node_view.subscribe(),
        metrics: Arc::new(metrics),
        controls: Controls::of(supervisor, move |request| power(&ends, &request)),
    };
    Ok((sources, Access::with_token(&shared.token)?))
}

/// The service.
pub fn service(shared: &Shared, sources: Sources, access: Access) -> Service {
    let machine = &shared.machine;
    let listen = Listen {
        tcp: machine.parameters.dashboard_listen,
        control: Some(machine.run.hamlet.full_path().join(CONTROL_SOCKET)),
    };
    dashboard::service(sources, access, listen)
}

fn power(ends: &EndRequests, request: &PowerRequest) {
    let action = match request.action {
        PowerAction::Reboot => EndAction::Reboot,
        PowerAction::PowerOff => EndAction::PowerOff,
    };
    let text = format!("{} asks for {}", request.peer, action.as_str());
    if request.force {
        ends.force(Reason::Dashboard(action), text);
    } else {
        ends.ask(Reason::Dashboard(action), text);
    }
}
