//! Objects by id, and by what lists ask for: the sandbox that they are in and the pod that they are of. Owns the maps;
//! never locks. Used by the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Container, LookupError, Sandbox};

/// The label by which a kubelet asks for what is of one pod (`pkg/kubelet/types/labels.go`).
const POD_UID: &str = "io.kubernetes.pod.uid";

/// What several objects have in common. It never changes while they are there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IndexKey {
    /// The value of the pod's label.
    Pod(String),
    /// The whole id.
    Sandbox(String),
}

impl IndexKey {
    /// What the labels say, of an object or of a filter.
    pub(crate) fn of_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        labels.get(POD_UID).map(|uid| Self::Pod(uid.clone()))
    }
}

/// Kept by id.
pub(crate) trait Indexed {
    /// As errors name it.
    const KIND: &'static str;
    /// 64 hex digits.
    fn id(&self) -> &str;
    /// All that it is part of.
    fn groups(&self) -> Vec<IndexKey>;
}

impl Indexed for Sandbox {
    const KIND: &'static str = "sandbox";

    fn id(&self) -> &str {
        &self.id
    }

    fn groups(&self) -> Vec<IndexKey> {
        IndexKey::of_labels(&self.record().labels).into_iter().collect()
    }
}

impl Indexed for Container {
    const KIND: &'static str = "container";

    fn id(&self) -> &str {
        &self.id
    }

    fn groups(&self) -> Vec<IndexKey> {
        let pod = IndexKey::of_labels(&self.record().labels);
        pod.into_iter().chain([IndexKey::Sandbox(self.sandbox_id.clone())]).collect()
    }
}

/// All objects of a kind.
#[derive(Debug)]
pub(super) struct Index<T> {
    by_id: BTreeMap<String, Arc<T>>,
    by_group: BTreeMap<IndexKey, BTreeSet<String>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), by_group: BTreeMap::new() }
    }
}

impl<T: Indexed> Index<T> {
    pub(super) fn insert(&mut self, object: Arc<T>) {
        for group in object.groups() {
            self.by_group.entry(group).or_default().insert(object.id().to_owned());
        }
        self.by_id.insert(object.id().to_owned(), object);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        let Some(object) = self.by_id.remove(id) else { return false };
        for group in object.groups() {
            if let Some(ids) = self.by_group.get_mut(&group) {
                ids.remove(id);
                if ids.is_empty() {
                    self.by_group.remove(&group);
                }
            }
        }
        true
    }

    /// By id.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.by_id.values().cloned().collect()
    }

    /// By id.
    pub(super) fn of(&self, group: &IndexKey) -> Vec<Arc<T>> {
        let ids = self.by_group.get(group).into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id)).cloned().collect()
    }

    /// The object with this id, or the only one whose id begins with it.
    pub(super) fn find(&self, id: &str) -> Result<Arc<T>, LookupError> {
        let kind = T::KIND;
        if let Some(found) = self.by_id.get(id) {
            return Ok(found.clone());
        }
        let mut matching = self.by_id.range(id.to_owned()..).take_while(|(known, _)| known.starts_with(id));
        match (matching.next(), matching.next()) {
            (Some((_, found)), None) if !id.is_empty() => Ok(found.clone()),
            (Some(_), Some(_)) if !id.is_empty() => Err(LookupError::Ambiguous { kind, id: id.to_owned() }),
            _ => Err(LookupError::NotFound { kind, id: id.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(&'static str, Option<&'static str>);

    impl Indexed for Thing {
        const KIND: &'static str = "thing";

        fn id(&self) -> &str {
            self.0
        }

        fn groups(&self) -> Vec<IndexKey> {
            self.1.map(|pod| IndexKey::Pod(pod.to_owned())).into_iter().collect()
        }
    }

    fn ids(things: &[Arc<Thing>]) -> Vec<&'static str> {
        things.iter().map(|thing| thing.0).collect()
    }

    #[test]
    fn a_group_has_what_was_added_and_not_removed() {
        let mut index = Index::default();
        for thing in
            [Thing("b", Some("web")), Thing("a", Some("web")), Thing("c", Some("db")), Thing("d", None)]
        {
            index.insert(Arc::new(thing));
        }
        let web = IndexKey::Pod("web".to_owned());
        assert_eq!(ids(&index.of(&web)), ["a", "b"]);
        assert_eq!(ids(&index.all()), ["a", "b", "c", "d"]);
        assert!(index.remove("a") && !index.remove("a"));
        assert_eq!(ids(&index.of(&web)), ["b"]);
        assert!(index.remove("b"));
        assert!(index.of(&web).is_empty() && !index.by_group.contains_key(&web));
        assert!(index.of(&IndexKey::Pod("none".to_owned())).is_empty());
    }

    #[test]
    fn an_id_may_be_cut_short_as_long_as_it_is_the_only_one() {
        let mut index = Index::default();
        for id in ["abc", "abd", "b"] {
            index.insert(Arc::new(Thing(id, None)));
        }
        assert_eq!(index.find("abc").unwrap().0, "abc");
        assert_eq!(index.find("abd").unwrap().0, "abd");
        assert!(matches!(index.find("ab"), Err(LookupError::Ambiguous { .. })));
        for none in ["", "x", "abcd"] {
            assert!(matches!(index.find(none), Err(LookupError::NotFound { .. })), "{none}");
        }
    }
}
