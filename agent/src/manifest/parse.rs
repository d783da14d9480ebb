//! YAML text to Kubernetes' own types, without losing an unknown field or the place of
//! a wrong one. Pure: owns the detection; never judges values. Called by
//! [`super`].

use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_json::{Map, Value};

use super::field::FieldError;
use super::places::{self, PathSegment};
use super::suggest;
use super::workload::Workload;

/// All documents that are not empty. Duplicate keys, alias bombs and values that JSON
/// cannot hold are errors; `0644` is octal and `yes` a boolean, as in Kubernetes.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let mut values: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options())?;
    values.retain(|value| !value.is_null());
    Ok(values)
}

pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
    }
}

/// What a document says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    ConfigMap,
    Secret,
    List,
    /// Pods by a template.
    Workload(Workload),
}

/// What the document says it is, or what it is instead.
pub(super) fn kind(value: &Value) -> Result<Kind, String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    match (text("kind"), text("apiVersion")) {
        (Some("Pod"), Some("v1")) => Ok(Kind::Pod),
        (Some("ConfigMap"), Some("v1")) => Ok(Kind::ConfigMap),
        (Some("Secret"), Some("v1")) => Ok(Kind::Secret),
        (Some("List"), Some("v1")) => Ok(Kind::List),
        (Some("Deployment"), Some("apps/v1")) => Ok(Kind::Workload(Workload::Deployment)),
        (Some("ReplicaSet"), Some("apps/v1")) => Ok(Kind::Workload(Workload::ReplicaSet)),
        (Some("StatefulSet"), Some("apps/v1")) => Ok(Kind::Workload(Workload::StatefulSet)),
        (Some("DaemonSet"), Some("apps/v1")) => Ok(Kind::Workload(Workload::DaemonSet)),
        (Some("Job"), Some("batch/v1")) => Ok(Kind::Workload(Workload::Job)),
        _ => Err(render_value(value)),
    }
}

/// `kind Service of apiVersion v1`.
pub(super) fn render_value(value: &Value) -> String {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    match (text("kind"), text("apiVersion")) {
        (Some(kind), Some(version)) => format!("kind {kind} of apiVersion {version}"),
        (Some(kind), None) => format!("kind {kind} without apiVersion"),
        (None, _) => "a document without kind".to_owned(),
    }
}

/// What to do about a kind that only a cluster has, by what [`render_value`] says of it; what there is otherwise.
pub(super) fn instead(found: &str) -> &'static str {
    let kind = found.split_whitespace().nth(1).unwrap_or_default();
    match kind {
        "Service" => {
            ": kube-proxy serves its address in a cluster: remove it, and reach the pod by its IP, a hostPort or \
             `gantry port-forward`"
        }
        "Ingress" | "HTTPRoute" | "Gateway" => {
            ": a controller serves it in a cluster: remove it, and reach the pod by a hostPort"
        }
        "CronJob" => {
            ": a controller starts its Jobs by the clock: run its template as a Job, by a systemd timer"
        }
        "PersistentVolumeClaim" | "PersistentVolume" => {
            ": a controller binds it to a volume: remove it, and use a hostPath or emptyDir volume"
        }
        "ReplicationController" => ": write it as a ReplicaSet of apiVersion apps/v1",
        "Namespace" | "ServiceAccount" => {
            ": nothing keeps it without an API server: remove it, pods may name it"
        }
        _ => {
            ", only Pod, ConfigMap, Secret and List of apiVersion v1, Deployment, ReplicaSet, StatefulSet and DaemonSet of \
             apps/v1, and Job of batch/v1"
        }
    }
}

/// The objects of a List; what else it says is not looked at.
pub(super) fn items(value: Value) -> Result<Vec<Value>, FieldError> {
    let Value::Object(mut list) = value else { return Ok(Vec::new()) };
    for key in list.keys() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "items") {
            return Err(FieldError::Unknown { field: key.clone(), hint: suggest::hint(key) });
        }
    }
    match list.remove("items") {
        Some(Value::Array(items)) => Ok(items),
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(_) => Err(super::field::invalid("items", "", "must be a list of objects")),
    }
}

/// The typed object, when each field is known and of the right type.
pub(super) fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    let mut unknown: Option<(String, String)> = None;
    let parsed: Result<T, _> = serde_ignored::deserialize(value, |path| {
        unknown.get_or_insert_with(|| (render(&path), last_key(&path)));
    });
    let object = parsed.map_err(|source| FieldError::Type { field: culprit::<T>(value), source })?;
    match unknown {
        Some((field, key)) => Err(FieldError::Unknown { field, hint: suggest::hint(&key) }),
        None => Ok(object),
    }
}

/// `spec.containers[0].image`.
fn render(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", render(parent)),
        Path::Map { parent, key } => match render(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            render(parent)
        }
    }
}

fn last_key(path: &Path<'_>) -> String {
    match path {
        Path::Map { key, .. } => key.clone(),
        Path::Root => String::new(),
        Path::Seq { parent, .. }
        | Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => last_key(parent),
    }
}

/// Where the field of the wrong type is: every field of the API types may be left out, so
/// the document is cut down to one branch at a time until the branch that fails is found.
fn culprit<T: DeserializeOwned>(value: &Value) -> String {
    let mut steps: Vec<PathSegment> = Vec::new();
    let mut at = value;
    let text = |key: &str| value.get(key).cloned().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    loop {
        let children: Vec<(PathSegment, &Value)> = match at {
            Value::Object(map) => map.iter().map(|(k, v)| (PathSegment::Key(k.clone()), v)).collect(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(i, v)| (PathSegment::Index(i), v)).collect()
            }
            _ => break,
        };
        let failing = children.into_iter().find(|(step, child)| {
            let branch = steps.iter().chain(std::iter::once(step)).rev();
            let branch = with_type(wrap(branch, child), &version, &kind);
            T::deserialize(branch).is_err()
        });
        match failing {
            Some((step, child)) => {
                steps.push(step);
                at = child;
            }
            None => break,
        }
    }
    places::render(&steps)
}

fn wrap<'a>(steps_inside_out: impl Iterator<Item = &'a PathSegment>, leaf: &Value) -> Value {
    steps_inside_out.fold(leaf.clone(), |inner, step| match step {
        PathSegment::Key(key) => Value::Object(Map::from_iter([(key.clone(), inner)])),
        PathSegment::Index(_) => Value::Array(vec![inner]),
    })
}

fn with_type(mut value: Value, version: &Value, kind: &Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.entry("apiVersion").or_insert_with(|| version.clone());
        map.entry("kind").or_insert_with(|| kind.clone());
    }
    value
}
