//! The Runnable `provisioner`: the controller of crate `provisioner` on the node's own engine.

use std::time::Duration;

use pki::Leaf;
use provisioner::backoff::Backoff;
use provisioner::{Config, LocalConfig, LocalEngine, Provisioner};
use supervisor::Level;
use supervisor::prelude::*;

use crate::table::{Table, policy};

/// Stop stage: with the kubelet, so that nothing is provisioned for pods that are going.
const STAGE: u8 = 1;
/// Items in work are given 5 s by the controller itself.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// The service `provisioner`.
pub(crate) fn service(table: Table) -> Service {
    let policy = Policy { console: Level::Info, stop_deadline: STOP_DEADLINE, ..policy(STAGE) };
    Service::new(Name::from_static("provisioner"), move |ctx| {
        let table = table.clone();
        async move { run(ctx, &table).await }
    })
    .policy(policy)
}

async fn run(ctx: Context, table: &Table) -> Outcome {
    table.gates.objects.pass(&ctx).await?;
    let client = table.client(Leaf::Provisioner)?;
    let inputs = &table.inputs;
    let backend = LocalEngine::new(
        inputs.dirs.volumes.clone(),
        inputs.engine.clone(),
        LocalConfig::new(inputs.node.name.as_str()),
    );
    let config = Config {
        // One node is the whole cluster: nobody races for a claim.
        race: Backoff { start: Duration::ZERO, max: Duration::ZERO },
        fault: inputs.faults.provisioner_panic.clone(),
        ..Config::default()
    };
    let log = ctx.log().clone();
    Provisioner::new(client, backend, config, log, table.metrics.provisioner.clone()).run(ctx).await
}
