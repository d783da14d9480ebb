//! Deployment, ReplicaSet, StatefulSet, DaemonSet and Job as one node runs them: their pods, from the template. Pure:
//! owns the ledger of what is honoured, noted or refused of each, by destructuring without `..`; never replaces a pod,
//! which is a controller's work. Called by [`super`].

mod job;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::Value;

use super::field::{FieldError, ManifestSource, Result, invalid, invalid_plain, required};
use super::meta::{Meta, meta};
use super::{Object, parse, pod};

/// As a kubelet's maxPods.
const MOST: u32 = 110;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
        }
    }

    /// What its controller would do, and nobody does here.
    fn missing_behaviour(self) -> &'static str {
        match self {
            Self::Deployment | Self::ReplicaSet => {
                "a pod that is stopped is not replaced, a change is not rolled out"
            }
            Self::StatefulSet => "all pods start at once, and one that is stopped is not replaced",
            Self::DaemonSet => "a pod that is stopped is not replaced",
            Self::Job => "a failed pod is not replaced (backoffLimit), and a finished Job is not removed",
        }
    }
}

/// What a workload comes to on one node.
struct WorkloadPlan {
    kind: Workload,
    meta: Meta,
    template: api::PodTemplateSpec,
    /// The number of the first pod; none for a pod with the workload's own name.
    first: Option<u32>,
    count: u32,
    /// Each pod's number is told to it, as of an Indexed Job.
    indexed: bool,
}

/// Its pods, and what to say of it.
pub(super) fn pods(kind: Workload, value: &Value) -> Result<(Vec<Object>, String)> {
    let plan = match kind {
        Workload::Deployment => deployment(parse::typed(value)?),
        Workload::ReplicaSet => replica_set(parse::typed(value)?),
        Workload::StatefulSet => stateful_set(parse::typed(value)?),
        Workload::DaemonSet => daemon_set(parse::typed(value)?),
        Workload::Job => job::job(parse::typed(value)?),
    }?;
    restart_policy(&plan)?;
    let numbers: Vec<Option<u32>> = match plan.first {
        Some(first) => (first..first.saturating_add(plan.count)).map(Some).collect(),
        None => vec![None],
    };
    let mut objects = Vec::with_capacity(numbers.len());
    for number in numbers {
        // The file's own faults are the template's: the name is the workload's.
        let pod = pod::pod(plan.pod(number), ManifestSource::File).map_err(in_template)?;
        objects.push(Object::Pod { pod: Box::new(pod), uid_given: false });
    }
    let names: Vec<String> = objects.iter().map(|object| object.id().1).collect();
    Ok((objects, plan.note(&names)))
}

impl WorkloadPlan {
    fn pod(&self, number: Option<u32>) -> api::Pod {
        let name = match number {
            Some(number) => format!("{}-{number}", self.meta.name),
            None => self.meta.name.clone(),
        };
        let template = self.template.metadata.clone().unwrap_or_default();
        let mut labels = template.labels.unwrap_or_default();
        let mut annotations = template.annotations.unwrap_or_default();
        let mut spec = self.template.spec.clone().unwrap_or_default();
        let number = number.map(|number| number.to_string()).unwrap_or_default();
        match self.kind {
            Workload::StatefulSet => {
                labels.insert("apps.kubernetes.io/pod-index".into(), number);
                labels.insert("statefulset.kubernetes.io/pod-name".into(), name.clone());
            }
            Workload::Job => {
                for key in ["batch.kubernetes.io/job-name", "job-name"] {
                    labels.insert(key.into(), self.meta.name.clone());
                }
                if self.indexed {
                    job::tell_index(&number, &mut labels, &mut annotations, &mut spec);
                }
            }
            Workload::Deployment | Workload::ReplicaSet | Workload::DaemonSet => {}
        }
        let metadata = ObjectMeta {
            name: Some(name),
            namespace: Some(self.meta.namespace.clone()),
            labels: Some(labels).filter(|labels| !labels.is_empty()),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        };
        api::Pod { metadata, spec: Some(spec), status: None }
    }

    /// `Deployment default/web runs as 2 pods on this node (web-0, web-1): …`.
    fn note(&self, pods: &[String]) -> String {
        let what = format!("{} {}/{}", self.kind.name(), self.meta.namespace, self.meta.name);
        let short = |name: &String| name.rsplit('/').next().unwrap_or_default().to_owned();
        let undone = self.kind.missing_behaviour();
        match pods {
            [] => format!("{what} asks for no pod"),
            [only] => format!("{what} runs as one pod on this node ({}): {undone}", short(only)),
            [first, .., last] => {
                let count = pods.len();
                format!(
                    "{what} runs as {count} pods on this node ({} to {}): {undone}",
                    short(first),
                    short(last)
                )
            }
        }
    }
}

fn deployment(object: apps::Deployment) -> Result<WorkloadPlan> {
    let apps::Deployment { metadata, spec, status: _ } = object;
    let apps::DeploymentSpec {
        replicas,
        selector,
        template,
        // Inert: how a controller rolls out a change.
        min_ready_seconds: _,
        paused: _,
        progress_deadline_seconds: _,
        revision_history_limit: _,
        strategy: _,
    } = spec.ok_or_else(|| required("spec"))?;
    plan_replicas(Workload::Deployment, metadata, replicas, &selector, template)
}

fn replica_set(object: apps::ReplicaSet) -> Result<WorkloadPlan> {
    let apps::ReplicaSet { metadata, spec, status: _ } = object;
    let apps::ReplicaSetSpec { replicas, selector, template, min_ready_seconds: _ } =
        spec.ok_or_else(|| required("spec"))?;
    plan_replicas(Workload::ReplicaSet, metadata, replicas, &selector, template.unwrap_or_default())
}

fn stateful_set(object: apps::StatefulSet) -> Result<WorkloadPlan> {
    let apps::StatefulSet { metadata, spec, status: _ } = object;
    let apps::StatefulSetSpec {
        ordinals,
        replicas,
        selector,
        service_name,
        mut template,
        volume_claim_templates,
        // Inert: how a controller starts pods and rolls out a change.
        min_ready_seconds: _,
        persistent_volume_claim_retention_policy: _,
        pod_management_policy: _,
        revision_history_limit: _,
        update_strategy: _,
    } = spec.ok_or_else(|| required("spec"))?;
    if volume_claim_templates.is_some_and(|list| !list.is_empty()) {
        let remedy =
            "a controller makes a volume for each claim: use a hostPath or emptyDir volume of the template";
        return Err(FieldError::UnsupportedBut { field: "spec.volumeClaimTemplates".to_owned(), remedy });
    }
    if let Some(spec) = template.spec.as_mut().filter(|spec| spec.subdomain.is_none()) {
        spec.subdomain = service_name.filter(|name| !name.is_empty());
    }
    let plan = plan_replicas(Workload::StatefulSet, metadata, replicas, &selector, template)?;
    let start = ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
    Ok(WorkloadPlan { first: Some(count_of("spec.ordinals.start", start, u32::MAX)?), ..plan })
}

fn daemon_set(object: apps::DaemonSet) -> Result<WorkloadPlan> {
    let apps::DaemonSet { metadata, spec, status: _ } = object;
    let apps::DaemonSetSpec {
        selector,
        template,
        // Inert: how a controller rolls out a change.
        min_ready_seconds: _,
        revision_history_limit: _,
        update_strategy: _,
    } = spec.ok_or_else(|| required("spec"))?;
    let plan = plan_replicas(Workload::DaemonSet, metadata, Some(1), &selector, template)?;
    Ok(WorkloadPlan { first: None, ..plan })
}

fn plan_replicas(
    kind: Workload,
    metadata: ObjectMeta,
    replicas: Option<i32>,
    selector: &LabelSelector,
    template: api::PodTemplateSpec,
) -> Result<WorkloadPlan> {
    let meta = meta(metadata, ManifestSource::File)?;
    let count = count_of("spec.replicas", replicas.unwrap_or(1), MOST)?;
    let labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    selects(kind, selector, &labels)?;
    Ok(WorkloadPlan { kind, meta, template, first: Some(0), count, indexed: false })
}

fn count_of(field: &str, count: i32, most: u32) -> Result<u32> {
    match u32::try_from(count) {
        Ok(count) if count <= most => Ok(count),
        Ok(_) => Err(invalid_plain(field, count, format!("one node runs at most {most} pods"))),
        Err(_) => Err(invalid_plain(field, count, "must be greater than or equal to 0")),
    }
}

/// As the API server checks it.
fn selects(kind: Workload, selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Result<()> {
    let LabelSelector { match_expressions, match_labels } = selector;
    let (exact, rules) = (match_labels.iter().flatten(), match_expressions.iter().flatten());
    if exact.clone().count() + rules.clone().count() == 0 {
        let detail = format!("empty selector is invalid for {}", kind.name().to_lowercase());
        return Err(invalid_plain("spec.selector", "{}", detail));
    }
    let mut fits = exact.fold(true, |fits, (key, value)| fits && labels.get(key) == Some(value));
    for rule in rules {
        let value = labels.get(&rule.key);
        let listed = || value.is_some_and(|value| rule.values.iter().flatten().any(|one| one == value));
        fits &= match rule.operator.as_str() {
            "In" => listed(),
            "NotIn" => !listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => {
                return Err(invalid(
                    "spec.selector.matchExpressions",
                    other,
                    "not a valid selector operator",
                ));
            }
        };
    }
    let shown = || serde_json::to_string(labels).unwrap_or_default();
    let detail = "`selector` does not match template `labels`";
    if fits { Ok(()) } else { Err(invalid_plain("spec.template.metadata.labels", shown(), detail)) }
}

/// Which one is allowed hangs on who would restart the pod.
fn restart_policy(plan: &WorkloadPlan) -> Result<()> {
    const FIELD: &str = "spec.template.spec.restartPolicy";
    let policy = plan.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("");
    let value = |supported: &str| {
        let (field, value) = (FIELD.to_owned(), policy.to_owned());
        Err(FieldError::Value { field, value, supported: supported.to_owned() })
    };
    match (plan.kind, policy) {
        (Workload::Job, "OnFailure" | "Never") => Ok(()),
        (Workload::Job, "") => {
            let detail = ": valid values: \"OnFailure\", \"Never\"".to_owned();
            Err(FieldError::Required { field: FIELD.to_owned(), detail })
        }
        (Workload::Job, _) => value("\"OnFailure\", \"Never\""),
        (_, "" | "Always") => Ok(()),
        _ => value("\"Always\""),
    }
}

/// A pod's field as the workload has it.
fn in_template(mut error: FieldError) -> FieldError {
    let field = error.field_mut();
    *field = format!("spec.template.{field}");
    error
}

#[cfg(test)]
mod tests;
