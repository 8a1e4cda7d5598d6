//! Service `dashboard`: what it is given. The pages are the crate `dashboard`.
use std::sync::Arc;

use dashboard::{Access, AccessError, Sources};
use prometheus_client::registry::Registry;
use supervisor::Supervisor;
use supervisor::prelude::*;

use crate::root::Shared;

/// The service, for the tree it shows.
///
/// # Errors
/// The token cannot be one.
pub fn service(
    shared: &Shared,
    supervisor: &Supervisor,
    metrics: Registry,
) -> Result<Service, AccessError> {
    let sources = Sources {
        tree: supervisor.into(),
        logs: shared.machine.logs.clone(),
        volumes: shared.volumes_view.subscribe(),
        node: shared.node_view.subscribe(),
        metrics: Arc::new(metrics),
    };
    let access = Access::with_token(&shared.token)?;
    Ok(dashboard::service(sources, access, shared.machine.parameters.dashboard_listen))
}
