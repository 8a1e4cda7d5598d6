//! The services below `controlplane`.

use std::time::Duration;

use controlplane::Part;
use controlplane::bootstrap;
use pki::Leaf;
use supervisor::prelude::*;

use crate::gate::Gate;
use crate::table::{Table, child_policy, policy};

/// Stop stage of etcd: after everything that writes to it.
const ETCD_STAGE: u8 = 5;
/// Stop stage of the API server.
const APISERVER_STAGE: u8 = 4;
/// Stop stage of the controllers.
const CONTROLLER_STAGE: u8 = 3;

/// The service `controlplane`.
pub(crate) fn service(table: Table) -> Service {
    Service::new(Name::from_static("controlplane"), move |ctx| {
        crate::run_children(ctx, services(&table))
    })
}

/// All of them in the order of their start.
pub(crate) fn services(table: &Table) -> Vec<Service> {
    let g = &table.gates;
    let ten = Duration::from_secs(10);
    vec![
        child(table, Part::Etcd, &[], Some(&g.etcd))
            .service(Name::from_static("etcd"), child_policy(ETCD_STAGE, Duration::from_secs(30))),
        child(table, Part::Apiserver, &[&g.etcd], Some(&g.apiserver))
            .service(Name::from_static("apiserver"), child_policy(APISERVER_STAGE, ten)),
        // It ends by itself if the API server is not healthy within 10 s of its start.
        child(table, Part::ControllerManager, &[&g.apiserver], None)
            .service(Name::from_static("controller-manager"), child_policy(CONTROLLER_STAGE, ten)),
        child(table, Part::Scheduler, &[&g.apiserver], None)
            .service(Name::from_static("scheduler"), child_policy(CONTROLLER_STAGE, ten)),
        bootstrap_service(table.clone()),
    ]
}

fn child(
    table: &Table,
    part: Part,
    after: &[&Gate],
    opens: Option<&Gate>,
) -> crate::gate::GatedChild {
    let this = table.clone();
    table.child(after, opens, move |files| {
        let etcd = &this.inputs.dirs.etcd;
        Ok(controlplane::spec(part, &this.controlplane(), &this.pki, etcd, files)?)
    })
}

fn bootstrap_service(table: Table) -> Service {
    Service::new(Name::from_static("bootstrap"), move |ctx| {
        let table = table.clone();
        async move { bootstrap(ctx, &table).await }
    })
    .policy(policy(CONTROLLER_STAGE))
}

/// Applies the cluster's first objects, then is done. A failure is tried again by the tree.
async fn bootstrap(ctx: Context, table: &Table) -> Outcome {
    table.gates.apiserver.pass(&ctx).await?;
    let stop = ctx.stop();
    let client = table.client(Leaf::Bootstrap)?;
    let mut objects = bootstrap::objects(provisioner::DEFAULT_DRIVER)?;
    objects.extend(bootstrap::role_of_group(
        &provisioner::rbac::cluster_role(),
        pki::spec::PROVISIONER_GROUP,
    )?);
    for object in &objects {
        ctx.health().note(&format!("applying {} {}", object.kind(), object.name()));
        stop.race(object.apply(&client)).await??;
    }
    slog::info!(ctx.log(), "the cluster's first objects are applied"; "count" => objects.len());
    table.gates.objects.open();
    table
        .inputs
        .publisher
        .progress
        .send_if_modified(|p| !std::mem::replace(&mut p.controlplane_ready, true));
    Ok(ctx.healthy().done())
}
