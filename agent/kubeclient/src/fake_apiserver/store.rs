//! The objects and their history. Owns versions, UIDs, selectors and the rules of deletion; never
//! knows HTTP. Called by [`super::serve`] and tests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::strategic_merge::{self, apply};

/// Where an object is, or which ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub(super) api: String,
    pub(super) namespace: Option<String>,
    pub(super) plural: String,
    pub(super) name: Option<String>,
    pub(super) sub: Option<String>,
}

impl Target {
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let api = match parts.next()? {
            "api" => format!("/api/{}", parts.next()?),
            "apis" => format!("/apis/{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let mut rest: Vec<String> = parts.map(str::to_owned).collect();
        let mut namespace = None;
        if rest.len() > 2 && rest.first().is_some_and(|part| part == "namespaces") {
            namespace = Some(rest.remove(1));
            rest.remove(0);
        }
        let mut rest = rest.into_iter();
        Some(Self { api, namespace, plural: rest.next()?, name: rest.next(), sub: rest.next() })
    }

    /// Under which the object is kept.
    pub(super) fn key(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        match &self.namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}/{name}", self.api, self.plural),
            None => format!("{}/{}/{name}", self.api, self.plural),
        }
    }

    fn holds(&self, other: &Self) -> bool {
        self.api == other.api
            && self.plural == other.plural
            && self.namespace.as_ref().is_none_or(|namespace| other.namespace.as_ref() == Some(namespace))
    }
}

/// One change.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: &'static str,
    pub(super) target: Option<Target>,
    pub(super) object: Value,
}

/// Why not: the code and the reason of a Status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct No(pub(super) u16, pub(super) &'static str, pub(super) String);

#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<String, (Target, Value)>,
    changes: Vec<Change>,
    version: u64,
    oldest: u64,
    uids: u64,
}

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(&Target::parse(path)?.key()).map(|(_, object)| object)
    }

    pub(super) fn collection(&self, path: &str) -> Vec<Value> {
        Target::parse(path).map(|target| self.list(&target, "")).unwrap_or_default()
    }

    pub(super) fn list(&self, of: &Target, selector: &str) -> Vec<Value> {
        let all = self
            .objects
            .values()
            .filter(|(target, object)| of.holds(target) && matches_selector(object, selector));
        all.map(|(_, object)| object.clone()).collect()
    }

    /// Since a version; none when it is too old.
    pub(super) fn since(&self, of: &Target, selector: &str, version: u64) -> Option<Vec<Change>> {
        if version < self.oldest {
            return None;
        }
        let news = self.changes.iter().filter(|change| change.version > version);
        let wanted = |change: &&Change| match &change.target {
            Some(target) => of.holds(target) && matches_selector(&change.object, selector),
            None => true,
        };
        Some(news.filter(wanted).cloned().collect())
    }

    pub(super) fn compact(&mut self) {
        self.oldest = self.version;
    }

    pub(super) fn bookmark(&mut self) {
        self.version += 1;
        let (version, object) =
            (self.version, json!({ "metadata": { "resourceVersion": self.version.to_string() } }));
        self.changes.push(Change { version, kind: "BOOKMARK", target: None, object });
    }

    /// # Panics
    /// Of no path of an object: the test is wrong.
    #[expect(clippy::panic, reason = "for tests")]
    pub(super) fn put(&mut self, path: &str, object: Value) -> Value {
        match Target::parse(path) {
            Some(target) => self.write(target, object),
            None => panic!("{path} is no path of an object"),
        }
    }

    fn write(&mut self, target: Target, mut object: Value) -> Value {
        let key = target.key();
        let there = self.objects.contains_key(&key);
        let old = self.objects.get(&key).and_then(|(_, old)| old.pointer("/metadata/uid")).cloned();
        self.version += 1;
        if let Some(meta) = meta(&mut object) {
            if !meta.contains_key("uid") {
                self.uids += 1;
                let new = json!(format!("00000000-0000-0000-0000-{:012}", self.uids));
                // A replaced object is the same one.
                meta.insert("uid".to_owned(), old.unwrap_or(new));
            }
            if let (false, Some(name)) = (meta.contains_key("name"), &target.name) {
                meta.insert("name".to_owned(), json!(name));
            }
            if let Some(namespace) = &target.namespace {
                meta.insert("namespace".to_owned(), json!(namespace));
            }
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            meta.entry("creationTimestamp").or_insert(json!(now));
            meta.insert("resourceVersion".to_owned(), json!(self.version.to_string()));
        }
        let kind = if there { "MODIFIED" } else { "ADDED" };
        let (version, made) = (self.version, object.clone());
        self.changes.push(Change { version, kind, target: Some(target.clone()), object: object.clone() });
        self.objects.insert(key, (target, object));
        made
    }

    pub(super) fn remove(&mut self, path: &str) {
        if let Some(target) = Target::parse(path) {
            self.drop_object(&target);
        }
    }

    fn drop_object(&mut self, target: &Target) -> Option<Value> {
        let (target, mut object) = self.objects.remove(&target.key())?;
        self.version += 1;
        if let Some(meta) = meta(&mut object) {
            meta.insert("resourceVersion".to_owned(), json!(self.version.to_string()));
        }
        let (version, gone) = (self.version, object.clone());
        self.changes.push(Change { version, kind: "DELETED", target: Some(target), object });
        Some(gone)
    }

    pub(super) fn create(&mut self, mut target: Target, object: Value) -> Result<Value, No> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        target.name = Some(name.to_owned());
        if self.objects.contains_key(&target.key()) {
            return Err(No(409, "AlreadyExists", format!("{} {name:?} already exists", target.plural)));
        }
        let mut object = object;
        // The server chooses it.
        if let Some(meta) = meta(&mut object) {
            meta.remove("uid");
        }
        Ok(self.write(target, object))
    }

    fn existing(&self, target: &Target) -> Result<&Value, No> {
        let name = target.name.clone().unwrap_or_default();
        let missing = || No(404, "NotFound", format!("{} {name:?} not found", target.plural));
        self.objects.get(&target.key()).map(|(_, object)| object).ok_or_else(missing)
    }

    pub(super) fn update(&mut self, target: Target, mut object: Value) -> Result<Value, No> {
        let old = self.existing(&target)?;
        let sent = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        let version = old.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if !sent.is_empty() && Some(sent) != version {
            return Err(No(409, "Conflict", "the object has been modified".to_owned()));
        }
        let uid = old.pointer("/metadata/uid").cloned().unwrap_or_default();
        if let Some(meta) = meta(&mut object) {
            meta.insert("uid".to_owned(), uid);
        }
        Ok(self.write(Target { sub: None, ..target }, object))
    }

    pub(super) fn patch(&mut self, target: Target, patch: &Value) -> Result<Value, No> {
        let old = self.existing(&target)?;
        let uid = patch.pointer("/metadata/uid");
        if uid.is_some() && uid != old.pointer("/metadata/uid") {
            let text = "Precondition failed: UID in precondition differs from UID in object meta";
            return Err(No(409, "Conflict", text.to_owned()));
        }
        let lists = match target.plural.as_str() {
            "pods" => strategic_merge::POD,
            "nodes" => strategic_merge::NODE,
            // Of an Event nothing is merged.
            _ => &[],
        };
        let mut object = old.clone();
        apply::apply(&mut object, patch, lists);
        if object == *old {
            return Ok(object);
        }
        Ok(self.write(Target { sub: None, ..target }, object))
    }

    /// A pod that has a node and a grace is only marked, as is what has finalizers; a mirror pod has no
    /// grace.
    pub(super) fn delete(&mut self, target: &Target, options: &Value) -> Result<Value, No> {
        let old = self.existing(target)?.clone();
        let wanted = options.pointer("/preconditions/uid");
        if wanted.is_some_and(|uid| !uid.is_null()) && wanted != old.pointer("/metadata/uid") {
            let text = "Precondition failed: UID in precondition differs from UID in object meta";
            return Err(No(409, "Conflict", text.to_owned()));
        }
        let mirror = old.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
        let placed = old.pointer("/spec/nodeName").is_some();
        let own = old.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
        let grace = options.get("gracePeriodSeconds").and_then(Value::as_i64).unwrap_or(own);
        let grace = if target.plural != "pods" || mirror || !placed { 0 } else { grace };
        let held =
            old.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty());
        if grace == 0 && !held {
            return self.drop_object(target).ok_or(No(404, "NotFound", String::new()));
        }
        let mut object = old;
        if let Some(meta) = meta(&mut object) {
            let end = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            meta.entry("deletionTimestamp").or_insert(json!(end));
            meta.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
        }
        Ok(self.write(target.clone(), object))
    }

    /// A collection, or what of it is selected: at once.
    pub(super) fn delete_all(&mut self, of: &Target, selector: &str) -> Value {
        let wanted =
            |(target, object): &&(Target, Value)| of.holds(target) && matches_selector(object, selector);
        let targets: Vec<Target> =
            self.objects.values().filter(wanted).map(|(target, _)| target.clone()).collect();
        for target in targets {
            self.drop_object(&target);
        }
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })
    }
}

fn meta(object: &mut Value) -> Option<&mut Map<String, Value>> {
    if object.get("metadata").is_none() {
        object.as_object_mut()?.insert("metadata".to_owned(), json!({}));
    }
    object.get_mut("metadata")?.as_object_mut()
}

/// `a.b=c,d!=e`.
fn matches_selector(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let (path, wanted, equal) = match term.split_once("!=") {
            Some((path, wanted)) => (path, wanted, false),
            None => match term.split_once('=') {
                Some((path, wanted)) => (path, wanted, true),
                None => return false,
            },
        };
        let found = object.pointer(&format!("/{}", path.replace('.', "/"))).and_then(Value::as_str);
        (found.unwrap_or_default() == wanted.trim_start_matches('=')) == equal
    })
}
