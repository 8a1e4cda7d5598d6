//! Watches this node's own Node object and publishes its conditions.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use pki::Leaf;
use supervisor::prelude::*;

use crate::status::{NodeCondition, NodeStatus};
use crate::table::{Table, policy};

/// Stop stage: with the controllers, while there is an API server to be watched.
const STAGE: u8 = 3;

/// The service `node-watch`.
pub(crate) fn service(table: Table) -> Service {
    Service::new(Name::from_static("node-watch"), move |ctx| {
        let table = table.clone();
        async move { run(ctx, &table).await }
    })
    .policy(Policy { critical: false, ..policy(STAGE) })
}

/// Healthy once the API server has told what there is; then follows it for ever.
async fn run(ctx: Context, table: &Table) -> Outcome {
    table.gates.objects.pass(&ctx).await?;
    let api: Api<Node> = Api::all(table.client(Leaf::NodeWatch)?);
    let own = format!("metadata.name={}", table.inputs.node.name);
    let events = watcher(api, watcher::Config::default().fields(&own)).default_backoff();
    let mut events = std::pin::pin!(events);
    let (stop, health) = (ctx.stop(), ctx.health());
    let mut ctx = Some(ctx);
    let mut running = None;
    loop {
        // A watch stream goes on for ever: None would be the library's defect.
        match stop.race(events.next()).await? {
            Some(Ok(event)) => {
                health.note("");
                if matches!(event, Event::InitDone) {
                    running = ctx.take().map(Context::healthy).or(running);
                }
                publish(table, event);
            }
            Some(Err(error)) => {
                // What was known is no longer; the watcher itself tries again.
                table.inputs.publisher.node.send_replace(NodeStatus::default());
                health.note(&format!("the API server cannot be asked: {error}"));
            }
            None => return Err(Stop::failed("the watch of the Node object ended")),
        }
    }
}

fn publish(table: &Table, event: Event<Node>) {
    let status = match event {
        Event::Apply(node) | Event::InitApply(node) => status(&node),
        Event::Delete(_) | Event::Init => NodeStatus::default(),
        Event::InitDone => return,
    };
    if status.registered {
        table.gates.node.open();
    }
    if status.is_ready() {
        let publisher = &table.inputs.publisher;
        publisher.progress.send_if_modified(|p| !std::mem::replace(&mut p.node_ready, true));
    }
    // Heartbeats change nothing that is shown.
    table.inputs.publisher.node.send_if_modified(|old| {
        let changed = *old != status;
        *old = status;
        changed
    });
}

/// What is shown of a Node object; nothing in it is trusted to be there.
fn status(node: &Node) -> NodeStatus {
    let Some(status) = &node.status else {
        return NodeStatus { registered: true, ..NodeStatus::default() };
    };
    let info = status.node_info.as_ref();
    NodeStatus {
        registered: true,
        conditions: status
            .conditions
            .iter()
            .flatten()
            .map(|c| NodeCondition {
                kind: c.type_.clone(),
                status: c.status.clone(),
                reason: c.reason.clone().unwrap_or_default(),
                message: c.message.clone().unwrap_or_default(),
                since: c.last_transition_time.as_ref().map_or(0, |t| t.0.as_second()),
            })
            .collect(),
        kubelet_version: info.map(|i| i.kubelet_version.clone()).unwrap_or_default(),
        runtime_version: info.map(|i| i.container_runtime_version.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(json: &str) -> Node {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn conditions_are_taken_as_they_are() {
        let n = node(
            r#"{"metadata":{"name":"n"},"status":{"conditions":[
                {"type":"MemoryPressure","status":"False"},
                {"type":"Ready","status":"True","reason":"KubeletReady","message":"ok",
                 "lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
        );
        let s = status(&n);
        assert!(s.registered && s.is_ready());
        assert_eq!(s.conditions[1].reason, "KubeletReady");
        assert_eq!(s.conditions[1].since, 1_767_225_600);
        assert_eq!(s.conditions[0].since, 0);
    }

    #[test]
    fn a_node_without_a_status_is_registered_and_not_ready() {
        let s = status(&node(r#"{"metadata":{"name":"n"}}"#));
        assert!(s.registered && !s.is_ready());
    }
}
