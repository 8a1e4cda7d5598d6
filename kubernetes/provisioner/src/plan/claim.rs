//! What to do with a claim (rules L6–L8, L12, L13, N1–N3).
//!
//! Purpose: tell claims of this node's driver from all others, and those that need a volume from those that do not.
//! Invariants: pure; see the parent module.
//! It must not know: whether a volume exists already.

use k8s_openapi::{
    api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::Facts;
use crate::names::{ANN_CLASS, ANN_MIGRATED_TO, ANN_PROVISIONER, ANN_SELECTED_NODE};

/// A claim, with every field reached without assuming that it is there.
#[derive(Clone, Copy, Debug)]
pub struct ClaimView<'a>(pub &'a PersistentVolumeClaim);

impl<'a> ClaimView<'a> {
    /// Its UID, if it has one.
    pub fn uid(self) -> Option<&'a str> {
        self.0.metadata.uid.as_deref().filter(|u| !u.is_empty())
    }

    /// Its name, or "".
    pub fn name(self) -> &'a str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its namespace, or "".
    pub fn namespace(self) -> &'a str {
        self.0.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its class: the old annotation wins over the field. "" and none are the same: no class.
    pub fn class(self) -> Option<&'a str> {
        annotation(&self.0.metadata, ANN_CLASS)
            .or_else(|| self.0.spec.as_ref()?.storage_class_name.as_deref())
            .filter(|c| !c.is_empty())
    }

    /// The volume it is bound to or asks for.
    pub fn volume_name(self) -> Option<&'a str> {
        self.0.spec.as_ref()?.volume_name.as_deref().filter(|v| !v.is_empty())
    }

    /// The size it asks for, as written.
    pub fn request(self) -> Option<&'a str> {
        let requests = self.0.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
        requests.get("storage").map(|q| q.0.as_str())
    }

    /// Volume mode; none means Filesystem.
    pub fn mode(self) -> Option<&'a str> {
        self.0.spec.as_ref()?.volume_mode.as_deref()
    }

    /// Access modes, in order.
    pub fn access_modes(self) -> &'a [String] {
        self.0.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default()
    }
}

/// An annotation of an object.
pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The first of several spellings that is there and not empty.
fn first<'a>(meta: &'a ObjectMeta, keys: &[&str]) -> Option<&'a str> {
    keys.iter().filter_map(|k| annotation(meta, k)).find(|v| !v.is_empty())
}

/// L8: the claim waits for our driver.
pub fn ours(meta: &ObjectMeta, facts: &Facts) -> bool {
    let is_us = |v: &str| v == facts.driver;
    first(meta, &ANN_PROVISIONER).is_some_and(is_us)
        || annotation(meta, ANN_MIGRATED_TO).is_some_and(is_us)
}

/// Which node a claim was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected {
    /// N1: this one.
    Here,
    /// N2: another.
    Elsewhere,
    /// N3: none yet.
    Nowhere,
}

/// N1–N3: which node the scheduler chose for a claim.
pub fn selected(meta: &ObjectMeta, facts: &Facts) -> Selected {
    match first(meta, &ANN_SELECTED_NODE) {
        Some(node) if node == facts.node => Selected::Here,
        Some(_) => Selected::Elsewhere,
        None => Selected::Nowhere,
    }
}

/// What to do with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// L8, N2: not for us.
    Foreign,
    /// L6: it has its volume or waits for a pod.
    NotWanted,
    /// L7, L12: its class does not exist (yet).
    ClassMissing,
    /// P3: it has no class.
    NoClass,
    /// L13: its class is another provisioner's.
    ForeignClass,
    /// N3, N4: bound immediately, by whichever node takes it first.
    Race,
    /// It needs a volume from us, now.
    Provision,
}

/// Decides about a claim, given the class it names if that exists.
pub fn claim(c: ClaimView<'_>, class: Option<&StorageClass>, facts: &Facts) -> ClaimAction {
    let node = selected(&c.0.metadata, facts);
    if !ours(&c.0.metadata, facts) || node == Selected::Elsewhere {
        return ClaimAction::Foreign;
    }
    if c.volume_name().is_some() {
        return ClaimAction::NotWanted;
    }
    if c.class().is_none() {
        return ClaimAction::NoClass;
    }
    let Some(class) = class else { return ClaimAction::ClassMissing };
    if class.provisioner != facts.driver {
        return ClaimAction::ForeignClass;
    }
    match (node, class.volume_binding_mode.as_deref()) {
        (Selected::Here, _) => ClaimAction::Provision,
        (Selected::Nowhere, Some("Immediate")) => ClaimAction::Race,
        (Selected::Nowhere | Selected::Elsewhere, _) => ClaimAction::NotWanted,
    }
}

#[cfg(test)]
mod tests {
    use k8s_testkit::{mk_class, mk_pvc};

    use super::*;
    use crate::{names::DEFAULT_DRIVER, testing::facts};

    fn pvc() -> PersistentVolumeClaim {
        mk_pvc("ns", "c")
            .uid("u")
            .class("fast")
            .provisioner(DEFAULT_DRIVER)
            .selected_node("n1")
            .build()
    }

    fn with(annotations: &[(&str, &str)]) -> PersistentVolumeClaim {
        let mut c = pvc();
        c.metadata.annotations =
            Some(annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        c
    }

    #[test]
    fn l6_l8_l12_l13_n_each_claim_gets_its_action() {
        let class = mk_class("fast", DEFAULT_DRIVER).build();
        let immediate = mk_class("fast", DEFAULT_DRIVER).binding("Immediate").build();
        let foreign = mk_class("fast", "other").build();
        let mut bound = pvc();
        bound.spec.get_or_insert_default().volume_name = Some("pv".into());
        let mut classless = pvc();
        classless.spec.get_or_insert_default().storage_class_name = Some(String::new());
        let ann = ANN_PROVISIONER[0];
        let unselected = with(&[(ann, DEFAULT_DRIVER)]);
        let elsewhere = with(&[(ann, DEFAULT_DRIVER), (ANN_SELECTED_NODE[0], "n2")]);
        let unnamed = with(&[(ANN_SELECTED_NODE[0], "n1")]);
        let theirs = with(&[(ann, "other"), (ANN_SELECTED_NODE[0], "n1")]);
        let beta = with(&[(ANN_PROVISIONER[1], DEFAULT_DRIVER), (ANN_SELECTED_NODE[1], "n1")]);
        let migrated = with(&[
            (ann, "in-tree"),
            (ANN_MIGRATED_TO, DEFAULT_DRIVER),
            (ANN_SELECTED_NODE[0], "n1"),
        ]);
        let plain_wins = with(&[
            (ann, DEFAULT_DRIVER),
            (ANN_SELECTED_NODE[0], "n1"),
            (ANN_SELECTED_NODE[1], "n2"),
        ]);
        let empty = PersistentVolumeClaim::default();
        let plain = pvc();
        let table: Vec<(&str, &PersistentVolumeClaim, Option<&StorageClass>, ClaimAction)> = vec![
            ("selected", &plain, Some(&class), ClaimAction::Provision),
            ("bound", &bound, Some(&class), ClaimAction::NotWanted),
            ("no class named", &classless, None, ClaimAction::NoClass),
            ("class missing", &plain, None, ClaimAction::ClassMissing),
            ("class of another", &plain, Some(&foreign), ClaimAction::ForeignClass),
            ("waits for a pod", &unselected, Some(&class), ClaimAction::NotWanted),
            ("immediate", &unselected, Some(&immediate), ClaimAction::Race),
            ("immediate, selected", &plain, Some(&immediate), ClaimAction::Provision),
            ("other node", &elsewhere, Some(&class), ClaimAction::Foreign),
            ("no provisioner annotation", &unnamed, Some(&class), ClaimAction::Foreign),
            ("other provisioner", &theirs, Some(&class), ClaimAction::Foreign),
            ("older annotations", &beta, Some(&class), ClaimAction::Provision),
            ("migrated", &migrated, Some(&class), ClaimAction::Provision),
            ("plain annotation wins", &plain_wins, Some(&class), ClaimAction::Provision),
            ("empty object", &empty, None, ClaimAction::Foreign),
        ];
        for (what, c, class, action) in table {
            assert_eq!(claim(ClaimView(c), class, &facts()), action, "{what}");
        }
    }

    #[test]
    fn the_class_annotation_wins_over_the_field() {
        let c = with(&[(ANN_CLASS, "slow")]);
        assert_eq!(ClaimView(&c).class(), Some("slow"));
        assert_eq!(ClaimView(&pvc()).class(), Some("fast"));
    }
}
