//! A copy of the objects of one watch, kept whole across relists.
//!
//! Purpose: give handlers the newest known state without a read of the API server, and tell when the first
//! complete list has arrived.
//! Owner: one watch task per mirror writes; everybody reads.
//! Invariants: a relist replaces the copy at once, so readers never see half a list; an object that the watch
//! no longer selects is reported as gone (which does not mean deleted, W6); readiness is a `watch` value, so no
//! waiter can miss it (kube's own store loses wake-ups); an unchanged object is no change.
//! It must not know: what the objects are.

use std::{collections::HashMap, sync::Arc};

use kube::{Resource, runtime::watcher::Event};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

/// What one event changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delta<K> {
    /// New or different: before and now.
    Changed(Option<Arc<K>>, Arc<K>),
    /// Not selected by the watch any more.
    Gone(Arc<K>),
}

/// The copy.
pub(crate) struct Mirror<K> {
    objects: RwLock<HashMap<String, Arc<K>>>,
    /// Objects of a relist that is under way.
    pending: Mutex<HashMap<String, Arc<K>>>,
    synced: watch::Sender<bool>,
    key: fn(&K) -> Option<&str>,
    keep: Box<dyn Fn(&K) -> bool + Send + Sync>,
}

impl<K: Resource> Mirror<K> {
    /// An empty copy: `key` names an object, `keep` says which are worth keeping.
    pub(crate) fn new(
        key: fn(&K) -> Option<&str>,
        keep: impl Fn(&K) -> bool + Send + Sync + 'static,
    ) -> Mirror<K> {
        Mirror {
            objects: RwLock::default(),
            pending: Mutex::default(),
            synced: watch::Sender::new(false),
            key,
            keep: Box::new(keep),
        }
    }

    /// The object of that key.
    pub(crate) fn get(&self, key: &str) -> Option<Arc<K>> {
        self.objects.read().get(key).cloned()
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.objects.read().values().cloned().collect()
    }

    /// Waits until a complete list was seen. Cancel safe.
    pub(crate) async fn synced(&self) {
        let mut rx = self.synced.subscribe();
        // The sender lives in self, so this cannot fail.
        let _always_ok = rx.wait_for(|done| *done).await;
    }

    /// Takes in one event of the watch.
    pub(crate) fn apply(&self, event: Event<K>) -> Vec<Delta<K>> {
        match event {
            Event::Init => {
                self.pending.lock().clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some((key, object)) = self.wanted(object) {
                    self.pending.lock().insert(key, object);
                }
                Vec::new()
            }
            Event::InitDone => {
                let next = std::mem::take(&mut *self.pending.lock());
                let deltas = self.replace(next);
                self.synced.send_replace(true);
                deltas
            }
            Event::Apply(object) => {
                let key = (self.key)(&object).map(str::to_owned);
                match self.wanted(object) {
                    Some((key, object)) => {
                        let old = self.objects.write().insert(key, Arc::clone(&object));
                        changed(old, object).into_iter().collect()
                    }
                    None => key.and_then(|k| self.forget(&k)).into_iter().collect(),
                }
            }
            Event::Delete(object) => {
                (self.key)(&object).and_then(|k| self.forget(k)).into_iter().collect()
            }
        }
    }

    /// The object of that name could not be read: it is as good as gone.
    pub(crate) fn unreadable(&self, key: &str) -> Option<Delta<K>> {
        self.forget(key)
    }

    fn wanted(&self, object: K) -> Option<(String, Arc<K>)> {
        let key = (self.key)(&object)?.to_owned();
        (self.keep)(&object).then(|| (key, Arc::new(object)))
    }

    fn forget(&self, key: &str) -> Option<Delta<K>> {
        self.objects.write().remove(key).map(Delta::Gone)
    }

    fn replace(&self, next: HashMap<String, Arc<K>>) -> Vec<Delta<K>> {
        let mut old = std::mem::replace(&mut *self.objects.write(), next.clone());
        let mut deltas: Vec<Delta<K>> = Vec::new();
        for (key, object) in next {
            deltas.extend(changed(old.remove(&key), object));
        }
        deltas.extend(old.into_values().map(Delta::Gone));
        deltas
    }
}

/// A delta, unless both are the same version of the same object.
fn changed<K: Resource>(old: Option<Arc<K>>, new: Arc<K>) -> Option<Delta<K>> {
    let version = |k: &Arc<K>| (k.meta().uid.clone(), k.meta().resource_version.clone());
    match &old {
        Some(o) if version(o) == version(&new) && new.meta().resource_version.is_some() => None,
        Some(_) | None => Some(Delta::Changed(old, new)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use k8s_testkit::mk_pv;

    use super::*;

    fn mirror() -> Mirror<PersistentVolume> {
        Mirror::new(
            |v| v.metadata.name.as_deref(),
            |v| v.metadata.labels.as_ref().is_none_or(|l| !l.contains_key("hide")),
        )
    }

    fn pv(name: &str, version: &str) -> PersistentVolume {
        let mut v = mk_pv(name).build();
        v.metadata.resource_version = Some(version.into());
        v
    }

    fn names(deltas: &[Delta<PersistentVolume>]) -> Vec<String> {
        let name = |v: &PersistentVolume| v.metadata.name.clone().unwrap_or_default();
        let mut all: Vec<String> = deltas
            .iter()
            .map(|d| match d {
                Delta::Changed(None, v) => format!("+{}", name(v)),
                Delta::Changed(Some(_), v) => format!("~{}", name(v)),
                Delta::Gone(v) => format!("-{}", name(v)),
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn s11_it_is_synced_only_after_a_complete_list() {
        let m = mirror();
        let synced = || *m.synced.subscribe().borrow();
        m.apply(Event::Init);
        m.apply(Event::InitApply(pv("a", "1")));
        assert!(!synced());
        assert!(m.get("a").is_none(), "half a list is not shown");
        assert_eq!(names(&m.apply(Event::InitDone)), ["+a"]);
        assert!(synced());
    }

    #[test]
    fn a_relist_tells_what_is_new_different_and_gone_and_nothing_else() {
        let m = mirror();
        for v in [pv("a", "1"), pv("b", "1"), pv("c", "1")] {
            m.apply(Event::Apply(v));
        }
        m.apply(Event::Init);
        for v in [pv("a", "1"), pv("b", "2"), pv("d", "1")] {
            m.apply(Event::InitApply(v));
        }
        assert_eq!(names(&m.apply(Event::InitDone)), ["+d", "-c", "~b"]);
    }

    #[test]
    fn w6_an_object_that_is_no_longer_wanted_is_reported_as_gone() {
        let m = mirror();
        assert_eq!(names(&m.apply(Event::Apply(pv("a", "1")))), ["+a"]);
        let mut hidden = pv("a", "2");
        hidden.metadata.labels = Some([("hide".to_owned(), String::new())].into());
        assert_eq!(names(&m.apply(Event::Apply(hidden.clone()))), ["-a"]);
        assert!(m.apply(Event::Apply(hidden)).is_empty());
    }

    #[tokio::test]
    async fn s11_every_waiter_learns_of_readiness() {
        let m = mirror();
        let waiters = futures::future::join_all((0..3).map(|_| m.synced()));
        let feed = async {
            tokio::task::yield_now().await;
            m.apply(Event::Init);
            m.apply(Event::InitDone);
        };
        tokio::join!(waiters, feed);
    }
}
