//! PURE: rules for the dependency graph, out of `cargo metadata`.
//!
//! The arrows between our crates are written down once, here; a crate that is
//! not in the table may depend on none of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::licence::is_permissive;

/// Crate → crates of ours it may depend on (not for its tests).
const ARROWS: &[(&str, &[&str])] = &[
    (
        "node",
        &["kubernetes", "dashboard", "volumes", "localstorage", "nodesys", "supervisor", "logtree"],
    ),
    ("dashboard", &["supervisor", "logtree"]),
    (
        "kubernetes",
        &[
            "controlplane",
            "csi-node",
            "kubelet",
            "localstorage",
            "pki",
            "provisioner",
            "supervisor",
            "volumes",
        ],
    ),
    ("kubelet", &["volumes", "localstorage", "supervisor"]),
    ("controlplane", &["pki", "localstorage", "supervisor"]),
    ("pki", &["localstorage"]),
    ("provisioner", &["volumes", "localstorage", "csi-proto", "supervisor"]),
    ("csi-node", &["volumes", "csi-proto", "supervisor"]),
    ("volumes", &["localstorage", "nodesys", "supervisor"]),
    ("localstorage", &["nodesys"]),
    ("supervisor", &["logtree"]),
    ("bench", &["supervisor", "logtree"]),
    ("xtask", &["image", "e2e"]),
];

/// Only tests may use it.
const TEST_ONLY: &str = "k8s-testkit";

/// Low crates that must stay quick to compile and free of Kubernetes.
const LOW: &[&str] = &["localstorage", "logtree", "nodesys", "supervisor", "volumes"];

/// What the low crates must not pull in, however indirectly.
const HIGH: &[&str] = &["k8s-openapi", "kube", "kube-client", "kube-runtime", "tonic"];

/// Findings in the graph.
///
/// # Errors
/// The metadata is not what cargo writes.
pub(super) fn check(metadata: &Value, root: &Path) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("no packages in cargo's metadata")?;
    let mut findings = Vec::new();
    let names: BTreeMap<&str, &str> =
        packages.iter().filter_map(|p| Some((p["id"].as_str()?, p["name"].as_str()?))).collect();
    let ours: BTreeSet<&str> = packages
        .iter()
        .filter(|package| package["source"].is_null())
        .filter_map(|package| package["name"].as_str())
        .collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if ours.contains(name) {
            findings.extend(arrows(name, package, &ours));
            findings.extend(lints(name, package, root));
        } else if !package["license"].as_str().is_some_and(is_permissive) {
            let licence = package["license"].as_str().unwrap_or("no licence");
            findings.push(format!("dependency {name}: {licence} is not known as permissive"));
        }
    }
    for low in LOW {
        for high in reachable(metadata, &names, low).iter().filter(|name| HIGH.contains(name)) {
            findings.push(format!("crate {low} pulls in {high}"));
        }
    }
    Ok(findings)
}

fn arrows(name: &str, package: &Value, ours: &BTreeSet<&str>) -> Vec<String> {
    let allowed = ARROWS.iter().find(|(from, _)| *from == name).map_or(&[][..], |(_, to)| *to);
    let mut findings = Vec::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let to = dependency["name"].as_str().unwrap_or_default();
        if dependency["kind"] == "dev" || !ours.contains(to) || allowed.contains(&to) {
            continue;
        }
        let why = if to == TEST_ONLY { ": it is for tests only" } else { "" };
        findings.push(format!("crate {name} must not depend on {to}{why}"));
    }
    findings
}

/// Every crate takes the workspace's lints; the one with unsafe code says why not.
fn lints(name: &str, package: &Value, root: &Path) -> Option<String> {
    let path = package["manifest_path"].as_str()?;
    if name == "nodesys" {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    let inherits = text.contains("[lints]\nworkspace = true");
    let path = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
    (!inherits).then(|| format!("{}: does not take the workspace's lints", path.display()))
}

/// Names of everything `from` needs to be built, but not tested.
fn reachable<'a>(
    metadata: &'a Value,
    names: &BTreeMap<&'a str, &'a str>,
    from: &str,
) -> BTreeSet<&'a str> {
    let nodes = metadata["resolve"]["nodes"].as_array();
    let nodes: BTreeMap<&str, &Value> =
        nodes.into_iter().flatten().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let start = names.iter().find(|(_, name)| **name == from).map(|(id, _)| *id);
    let mut queue: Vec<&str> = start.into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = queue.pop() {
        if !seen.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id).and_then(|node| node["deps"].as_array());
        for dependency in dependencies.into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            if kinds.into_iter().flatten().any(|kind| kind["kind"] != "dev") {
                queue.extend(dependency["pkg"].as_str());
            }
        }
    }
    seen.iter().filter_map(|id| names.get(id).copied()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, source: Value, dependencies: &[(&str, Value)]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        json!({
            "id": name, "name": name, "source": source, "license": "MIT",
            "manifest_path": format!("/nowhere/{name}/Cargo.toml"), "dependencies": dependencies,
        })
    }

    #[test]
    fn an_arrow_against_the_plan_is_found_and_one_of_tests_is_not() {
        let packages = json!([
            package("volumes", Value::Null, &[("node", Value::Null)]),
            package("node", Value::Null, &[("k8s-testkit", Value::Null)]),
            package("k8s-testkit", Value::Null, &[]),
            package("csi-node", Value::Null, &[("k8s-testkit", json!("dev"))]),
        ]);
        let metadata = json!({ "packages": packages, "resolve": { "nodes": [] } });
        let findings = check(&metadata, Path::new("/")).unwrap();
        assert_eq!(
            findings,
            [
                "crate volumes must not depend on node",
                "crate node must not depend on k8s-testkit: it is for tests only",
            ]
        );
    }

    #[test]
    fn an_indirect_way_from_a_low_crate_to_kubernetes_is_found() {
        let packages = json!([
            package("volumes", Value::Null, &[]),
            package("middle", json!("registry"), &[]),
            package("kube", json!("registry"), &[]),
        ]);
        let edge = |to: &str, kind: Value| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let nodes = |kind: Value| {
            json!([
                { "id": "volumes", "deps": [edge("middle", Value::Null)] },
                { "id": "middle", "deps": [edge("kube", kind)] },
                { "id": "kube", "deps": [] },
            ])
        };
        let metadata = json!({ "packages": packages, "resolve": { "nodes": nodes(Value::Null) } });
        assert_eq!(check(&metadata, Path::new("/")).unwrap(), ["crate volumes pulls in kube"]);
        let metadata = json!({ "packages": packages, "resolve": { "nodes": nodes(json!("dev")) } });
        assert!(check(&metadata, Path::new("/")).unwrap().is_empty());
    }

    #[test]
    fn a_dependency_with_another_licence_is_named_with_it() {
        let mut copyleft = package("a", json!("registry"), &[]);
        copyleft["license"] = json!("GPL-3.0");
        let metadata = json!({ "packages": [copyleft], "resolve": { "nodes": [] } });
        assert!(check(&metadata, Path::new("/")).unwrap()[0].contains("GPL-3.0"));
    }
}
