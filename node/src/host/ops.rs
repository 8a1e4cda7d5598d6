//! What the host can ask for.
//!
//! Invariants: every operation answers; unknown ones name the nearest known one. Must not know: the port.
use dashboard::{Ask, Local, Peer};
use serde_json::{Map, Value, json};
use supervisor::{Level, Supervisor};

use logtree::{Backlog, Dn, Kind, Query};

use super::answer::{Answer, Refusal};
use crate::clock;
use crate::names::{NotOne, resolve};
use crate::nearest::nearest;
use crate::params::EndAction;
use crate::root::Shared;
use crate::services::view::rss_self;
use crate::shutdown::Reason;

const OPS: &[&str] = &[
    "status",
    "kubeconfig",
    "dashboard",
    "tree",
    "logs",
    "volumes",
    "api",
    "reboot",
    "poweroff",
    #[cfg(feature = "faults")]
    "test.set_clock",
    #[cfg(feature = "faults")]
    "test.kill",
    #[cfg(feature = "faults")]
    "test.panic",
    #[cfg(feature = "faults")]
    "test.engine",
    #[cfg(feature = "faults")]
    "test.fill",
    #[cfg(feature = "faults")]
    "test.quota",
    #[cfg(feature = "faults")]
    "test.ls",
    #[cfg(feature = "faults")]
    "test.write",
    #[cfg(feature = "faults")]
    "test.read",
    #[cfg(feature = "faults")]
    "test.run",
    #[cfg(feature = "faults")]
    "test.arm",
];

/// Entries of one `logs` answer.
const MAX_LINES: usize = 2000;

/// What operations act on.
pub struct Node {
    /// The node's parts.
    pub shared: Shared,
    /// The tree.
    pub supervisor: Supervisor,
    /// The dashboard's own answers.
    pub dashboard: Local,
}

/// The arguments of a request.
pub(crate) type Arguments = Map<String, Value>;

/// Serves one line.
pub(crate) async fn handle(node: &Node, line: &str) -> Answer {
    let mut arguments: Arguments = match serde_json::from_str(line) {
        Ok(arguments) => arguments,
        Err(e) => {
            let refusal = Refusal::new("bad_request", format!("not a JSON object: {e}"))
                .hint(r#"send one line such as {"id":1,"op":"status"}"#);
            return Answer::refused(refusal);
        }
    };
    let id = arguments.remove("id").unwrap_or_default();
    let result = match arguments.remove("op") {
        Some(Value::String(op)) => operate(node, &op, &arguments).await,
        _ => Err(Refusal::new("bad_request", "op is missing").hint(OPS.join(", "))),
    };
    Answer { id, result }
}

async fn operate(node: &Node, op: &str, arguments: &Arguments) -> Result<Value, Refusal> {
    match op {
        "status" => Ok(status(node)),
        "kubeconfig" => kubeconfig(node),
        "dashboard" => Ok(json!({
            "port": node.shared.machine.parameters.dashboard_listen.port(),
            "token": &*node.shared.token,
        })),
        "tree" => to_value(&*node.supervisor.view().borrow()),
        "logs" => logs(node, arguments),
        "volumes" => to_value(&**node.shared.volumes_view.borrow()),
        "api" => api(node, arguments).await,
        "reboot" => Ok(end(node, EndAction::Reboot)),
        "poweroff" => Ok(end(node, EndAction::PowerOff)),
        #[cfg(feature = "faults")]
        test if test.starts_with("test.") => super::faults::operate(node, test, arguments).await,
        _ => Err(unknown(op)),
    }
}

/// The refusal of an operation that does not exist.
pub(crate) fn unknown(op: &str) -> Refusal {
    let hint = nearest(op, OPS).map(|n| format!("the nearest known one is {n}"));
    Refusal::new("unknown_op", format!("no operation {op:?}")).hint(hint.unwrap_or_default())
}

fn to_value(value: &impl serde::Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|e| Refusal::new("internal", e.to_string()))
}

fn status(node: &Node) -> Value {
    let machine = &node.shared.machine;
    let snapshot = node.supervisor.view().borrow().clone();
    let phases: Map<String, Value> = machine
        .phases
        .list()
        .into_iter()
        .map(|(name, at)| (name.to_owned(), json!(at.as_secs_f64())))
        .collect();
    json!({
        "version": crate::VERSION,
        "boot_id": machine.boot_id,
        "uptime_s": clock::uptime().as_secs_f64(),
        "phase": machine.phases.current(),
        "phases": phases,
        "verdict": snapshot.verdict,
        "verdict_dn": snapshot.verdict_dn,
        "verdict_reason": snapshot.verdict_reason,
        "rss_bytes": rss_self(),
        "logtree_bytes": machine.logs.stats().retained_bytes,
    })
}

fn kubeconfig(node: &Node) -> Result<Value, Refusal> {
    match node.shared.cluster.admin_kubeconfig("https://127.0.0.1:6443") {
        Ok(text) => Ok(json!({ "kubeconfig": text })),
        Err(e @ kubernetes::KubeconfigError::NotReady) => {
            Err(Refusal::new("not_ready", e.to_string()).hint("ask again in a second"))
        }
        Err(e @ kubernetes::KubeconfigError::Unreadable { .. }) => {
            Err(Refusal::new("internal", crate::bringup::chain(&e)))
        }
    }
}

/// A question to the dashboard: `{"op": "api", "method": "GET", "path": "/api/v1/tree"}`, with `body` for
/// POST. The answer carries its HTTP status and its text.
async fn api(node: &Node, arguments: &Arguments) -> Result<Value, Refusal> {
    let text = |key: &str, default: &str| {
        arguments.get(key).and_then(Value::as_str).unwrap_or(default).to_owned()
    };
    let ask = Ask { method: text("method", "GET"), path: text("path", ""), body: text("body", "") };
    match node.dashboard.ask(Peer::Host, ask).await {
        Ok(reply) => Ok(json!({ "status": reply.status, "body": reply.body })),
        Err(e) => Err(Refusal::new("bad_request", e.to_string())),
    }
}

fn logs(node: &Node, arguments: &Arguments) -> Result<Value, Refusal> {
    let dn = arguments.get("dn").and_then(Value::as_str).unwrap_or_default();
    let bad = |text: String| Refusal::new("bad_request", text);
    let dn = if dn.is_empty() { Dn::ALL } else { known_dn(dn, &node.known_dns())? };
    let n = arguments.get("n").and_then(Value::as_u64).unwrap_or(200);
    let n = usize::try_from(n).unwrap_or(MAX_LINES).min(MAX_LINES);
    let min_level: Option<Level> = match arguments.get("level").and_then(Value::as_str) {
        Some(level) => Some(level.parse().map_err(|e: logtree::LevelError| bad(e.to_string()))?),
        None => None,
    };
    let query = Query {
        dn,
        children: true,
        backlog: Backlog::Last(n),
        follow: false,
        min_level,
        kind: Kind::Any,
        contains: None,
    };
    let tree = &node.shared.machine.logs;
    let mut reader = tree.read(query).map_err(|e| bad(e.to_string()))?;
    let mut lines = Vec::new();
    while lines.len() < n {
        let batch = reader.next(256);
        if batch.entries.is_empty() {
            break;
        }
        for entry in batch.entries {
            lines.extend(logtree::to_text(&entry).lines().map(str::to_owned));
        }
    }
    Ok(json!({ "lines": lines }))
}

impl Node {
    /// The DNs of the tree and those with a log.
    fn known_dns(&self) -> Vec<Dn> {
        let mut dns = self.shared.machine.logs.dns();
        dns.extend(self.supervisor.view().borrow().nodes.iter().map(|n| n.dn.clone()));
        dns.sort();
        dns.dedup();
        dns
    }
}

/// The known DN that `text` names, whole or by its last names (`kubelet`).
fn known_dn(text: &str, known: &[Dn]) -> Result<Dn, Refusal> {
    let names: Vec<&str> = known.iter().map(Dn::as_str).collect();
    let refusal = match resolve(text, &names) {
        Ok(dn) => return Dn::new(dn).map_err(|e| Refusal::new("bad_request", e.to_string())),
        Err(NotOne::None { nearest }) => {
            let hint = nearest.map(|n| format!("the nearest known one is {n}"));
            Refusal::new("unknown_dn", format!("there is no {text:?}"))
                .hint(hint.unwrap_or_default())
        }
        Err(NotOne::Several(names)) => {
            Refusal::new("ambiguous_dn", format!("{text:?} names several")).hint(names.join(", "))
        }
    };
    Err(refusal)
}

fn end(node: &Node, action: EndAction) -> Value {
    let text = format!("the host asks for {}", action.as_str());
    node.shared.machine.ends.ask(Reason::Host(action), text);
    json!({})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b11_an_unknown_operation_names_the_nearest_known_one() {
        let refusal = unknown("volume");
        assert_eq!(refusal.code, "unknown_op");
        assert_eq!(refusal.hint, "the nearest known one is volumes");
    }

    #[test]
    fn c2_a_dn_is_named_whole_or_by_a_unique_tail() {
        let dns: Vec<Dn> =
            ["init", "root.a", "root.a.b", "root.c.b"].into_iter().map(Dn::from_static).collect();
        assert_eq!(known_dn("root.a", &dns).unwrap().as_str(), "root.a");
        assert_eq!(known_dn("c.b", &dns).unwrap().as_str(), "root.c.b");
        assert_eq!(known_dn("init", &dns).unwrap().as_str(), "init");
        let several = known_dn("b", &dns).unwrap_err();
        assert_eq!((several.code, several.hint.as_str()), ("ambiguous_dn", "root.a.b, root.c.b"));
        let none = known_dn("root.x", &dns).unwrap_err();
        assert_eq!(
            (none.code, none.hint.as_str()),
            ("unknown_dn", "the nearest known one is root.a")
        );
    }
}
