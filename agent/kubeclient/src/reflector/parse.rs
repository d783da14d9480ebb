//! What a page of a list and a line of a watch say. Owns how an object is read that is not as its type has it: null is an
//! absent field, as for client-go, and one that cannot be read at all holds up no other. Called by [`super::wire`].

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::{Status, WatchEvent};
use serde::Deserialize;
use serde_json::Value;

use super::Object;

/// An object whose form is unknown here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) uid: String,
    pub(super) version: String,
    /// `NAMESPACE/NAME`.
    name: String,
    error: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.error)
    }
}

/// A page.
#[derive(Debug, Deserialize)]
pub(super) struct ListPage<K> {
    #[serde(default)]
    pub(super) metadata: ListMeta,
    #[serde(default = "Vec::new")]
    pub(super) items: Vec<K>,
}

/// What one line of a watch tells.
#[derive(Debug)]
pub(super) enum WatchLine<K> {
    Event(WatchEvent<K>),
    /// Of an object that is there, or was.
    Unreadable(Unreadable, bool),
}

/// A page of a list, with each object that can be read.
///
/// # Errors
/// When it is no list.
pub(super) fn page<K: Object>(text: &str) -> serde_json::Result<ListPage<Result<K, Unreadable>>> {
    match serde_json::from_str::<ListPage<K>>(text) {
        Ok(ListPage { metadata, items }) => {
            Ok(ListPage { metadata, items: items.into_iter().map(Ok).collect() })
        }
        Err(_) => {
            let ListPage { metadata, items } = serde_json::from_str::<ListPage<Value>>(text)?;
            Ok(ListPage { metadata, items: items.into_iter().map(object).collect() })
        }
    }
}

/// A line of a watch; none of one that was cut.
///
/// # Errors
/// What the server says instead of an event, and a line that is no event.
pub(super) fn change<K: Object>(line: &str) -> kube::Result<Option<WatchLine<K>>> {
    let first = match serde_json::from_str::<WatchEvent<K>>(line) {
        Ok(event) => return Ok(Some(WatchLine::Event(event))),
        Err(error) if error.is_eof() => return Ok(None),
        Err(error) => error,
    };
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(rename = "type")]
        kind: String,
        object: Value,
    }
    match serde_json::from_str(line) {
        Ok(Envelope { kind, object: value }) => {
            let is_there = kind != "DELETED";
            match (kind.as_str(), object::<K>(value)) {
                ("ADDED", Ok(object)) => Ok(Some(WatchLine::Event(WatchEvent::Added(object)))),
                ("MODIFIED", Ok(object)) => Ok(Some(WatchLine::Event(WatchEvent::Modified(object)))),
                ("DELETED", Ok(object)) => Ok(Some(WatchLine::Event(WatchEvent::Deleted(object)))),
                ("ADDED" | "MODIFIED" | "DELETED", Err(unreadable)) => {
                    Ok(Some(WatchLine::Unreadable(unreadable, is_there)))
                }
                _ => Err(kube::Error::SerdeError(first)),
            }
        }
        // A server that has no watch for it says so without an envelope.
        Err(_) => Err(match serde_json::from_str::<Status>(line) {
            Ok(status) => kube::Error::Api(status.boxed()),
            Err(_) => kube::Error::SerdeError(first),
        }),
    }
}

fn object<K: Object>(mut value: Value) -> Result<K, Unreadable> {
    drop_nulls(&mut value);
    let of = |name: &str| value["metadata"][name].as_str().unwrap_or_default().to_owned();
    let (uid, version) = (of("uid"), of("resourceVersion"));
    let name = format!("{}/{}", of("namespace"), of("name"));
    K::deserialize(value).map_err(|error| Unreadable { uid, version, name, error: error.to_string() })
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
