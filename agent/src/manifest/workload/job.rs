//! A Job's pods: as many as its completions, all at once. Pure. Called by [`super`].

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as api;

use super::{MOST, Workload, WorkloadPlan, count_of};
use crate::manifest::field::{ManifestSource, Result, invalid_plain, one_of, refuse_set, required};
use crate::manifest::meta::meta;

/// As upstream names it in annotations and labels.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const MODES: [(&str, bool); 2] = [("Indexed", true), ("NonIndexed", false)];

pub(super) fn job(object: batch::Job) -> Result<WorkloadPlan> {
    let batch::Job { metadata, spec, status: _ } = object;
    let batch::JobSpec {
        active_deadline_seconds,
        completion_mode,
        completions,
        parallelism,
        suspend,
        mut template,
        // Noted: without a controller no pod is tried again, and nothing is removed.
        backoff_limit: _,
        ttl_seconds_after_finished: _,
        // Inert: the pods are known by their names.
        manual_selector: _,
        pod_replacement_policy: _,
        selector: _,
        // Refused: they say what becomes of pods that failed.
        backoff_limit_per_index,
        managed_by,
        max_failed_indexes,
        pod_failure_policy,
        success_policy,
    } = spec.ok_or_else(|| required("spec"))?;
    for (field, set) in [
        ("backoffLimitPerIndex", backoff_limit_per_index.is_some()),
        ("managedBy", managed_by.is_some_and(|name| !name.is_empty())),
        ("maxFailedIndexes", max_failed_indexes.is_some()),
        ("podFailurePolicy", pod_failure_policy.is_some()),
        ("successPolicy", success_policy.is_some()),
    ] {
        refuse_set(format!("spec.{field}"), set)?;
    }
    let meta = meta(metadata, ManifestSource::File)?;
    let indexed = one_of("spec.completionMode", completion_mode.as_deref().unwrap_or("NonIndexed"), &MODES)?;
    let side_by_side = count_of("spec.parallelism", parallelism.unwrap_or(1), MOST)?;
    let wanted = match completions {
        Some(completions) => count_of("spec.completions", completions, MOST)?,
        None if indexed => return Err(required("spec.completions")),
        None => side_by_side,
    };
    let count = if suspend == Some(true) || side_by_side == 0 { 0 } else { wanted };
    if side_by_side < count {
        let detail = format!(
            "a controller starts one pod after another: on one node all {wanted} start at once, which \
             `parallelism: {wanted}` says"
        );
        return Err(invalid_plain("spec.parallelism", side_by_side, detail));
    }
    if let (Some(limit), Some(spec)) = (active_deadline_seconds, template.spec.as_mut()) {
        let own = spec.active_deadline_seconds.unwrap_or(limit);
        spec.active_deadline_seconds = Some(own.min(limit));
    }
    Ok(WorkloadPlan { kind: Workload::Job, meta, template, first: Some(0), count, indexed })
}

/// As the Job controller tells a pod of an Indexed Job which one it is.
pub(super) fn tell_index(
    index: &str,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
    spec: &mut api::PodSpec,
) {
    labels.insert(INDEX.to_owned(), index.to_owned());
    annotations.insert(INDEX.to_owned(), index.to_owned());
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|var| var.name == "JOB_COMPLETION_INDEX") {
            let (name, value) = ("JOB_COMPLETION_INDEX".to_owned(), Some(index.to_owned()));
            env.push(api::EnvVar { name, value, value_from: None });
        }
    }
}
