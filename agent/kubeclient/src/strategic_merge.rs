//! Strategic merge patches: what changed between two objects, in the API server's own format. Pure:
//! owns the lists that are merged by a key; never sends anything. Called by `status` and
//! `registration`; tests' server applies them with the same tables.
//!
//! Only what differs is in a patch, so that what others write meanwhile stays (trap 5).

use serde_json::{Map, Value, json};

/// How a list changes; lists that are not named are replaced whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Item by item, matched by this field.
    Merge(&'static str),
    /// Whole, although the server would merge it: its key is not unique.
    Replace,
}

/// The lists of one kind by path; as `patchStrategy` of the API's types.
pub type Lists = &'static [(&'static str, Strategy)];

/// Of a Pod's status.
pub const POD: Lists = &[
    ("status.conditions", Strategy::Merge("type")),
    ("status.hostIPs", Strategy::Merge("ip")),
    ("status.podIPs", Strategy::Merge("ip")),
    ("status.resourceClaimStatuses", Strategy::Merge("name")),
    ("metadata.ownerReferences", Strategy::Merge("uid")),
];

/// Of a Node. Its addresses are declared as merged by type, which is not unique.
pub const NODE: Lists = &[
    ("status.conditions", Strategy::Merge("type")),
    ("status.addresses", Strategy::Replace),
    ("metadata.ownerReferences", Strategy::Merge("uid")),
];

/// From `old` to `new`; none when they are equal.
#[must_use]
pub fn diff(old: &Value, new: &Value, lists: Lists) -> Option<Value> {
    let patch = maps(as_map(old)?, as_map(new)?, "", lists);
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Without what is empty at any depth: to compare, for a server leaves it out.
#[must_use]
pub fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().map(|(name, value)| (name.clone(), without_empty(value)));
            Value::Object(kept.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_empty).collect()),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn as_map(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object()
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn strategy(path: &str, lists: Lists) -> Option<Strategy> {
    lists.iter().find(|(at, _)| *at == path).map(|(_, strategy)| *strategy)
}

fn maps(old: &Map<String, Value>, new: &Map<String, Value>, path: &str, lists: Lists) -> Map<String, Value> {
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        let at = below(path, key);
        match (old.get(key), value) {
            (Some(before), _) if before == value => {}
            (Some(Value::Object(before)), Value::Object(after)) => {
                let inner = maps(before, after, &at, lists);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (Some(Value::Array(before)), Value::Array(after)) => match strategy(&at, lists) {
                Some(Strategy::Merge(by)) => merge_lists(&mut patch, key, by, (before, after), lists),
                Some(Strategy::Replace) => {
                    let mut all = after.clone();
                    all.push(json!({ "$patch": "replace" }));
                    patch.insert(key.clone(), Value::Array(all));
                }
                None => {
                    patch.insert(key.clone(), value.clone());
                }
            },
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    patch
}

/// The items that differ, those that go, and the order in which they shall stand.
fn merge_lists(
    patch: &mut Map<String, Value>,
    key: &str,
    by: &str,
    (before, after): (&[Value], &[Value]),
    lists: Lists,
) {
    let find = |list: &[Value], id: &Value| list.iter().find(|item| item.get(by) == Some(id)).cloned();
    let mut items = Vec::new();
    for item in after {
        let Some(id) = item.get(by) else { continue };
        match (find(before, id), item) {
            (Some(old), new) if old == *new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                let mut change = maps(&old, new, "", lists);
                change.insert(by.to_owned(), id.clone());
                items.push(Value::Object(change));
            }
            _ => items.push(item.clone()),
        }
    }
    let gone = before.iter().filter_map(|item| item.get(by)).filter(|id| find(after, id).is_none());
    items.extend(gone.map(|id| json!({ "$patch": "delete", by: id })));
    let order: Vec<Value> =
        after.iter().filter_map(|item| item.get(by)).map(|id| json!({ by: id })).collect();
    patch.insert(format!("$setElementOrder/{key}"), Value::Array(order));
    if !items.is_empty() {
        patch.insert(key.to_owned(), Value::Array(items));
    }
}

#[cfg(any(test, feature = "testing"))]
pub(crate) mod apply;

#[cfg(test)]
mod tests;
