//! `/metrics` and the endpoints below it. Owns which families are where; what a family says comes from
//! [`gantry_metrics`] and [`super::stats`]. Called by [`super::serve`].

mod cadvisor;
mod resource;

use std::sync::Arc;

use gantry_base::error::chain;
use gantry_metrics::process;
use gantry_metrics::text::{CONTENT_TYPE, Kind, Text};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;

use super::answer::{self, Answer};
use super::context::ServerContext;
use super::cri::{Cri, said as said_by};
use super::stats::Depth;
use super::stats::summary::{Summary, VolumeStats};

/// Where a pod came from.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

fn said(text: Text) -> Answer {
    answer::of_type(StatusCode::OK, CONTENT_TYPE, text.finish())
}

fn write_start_time(text: &mut Text) {
    if let Ok(process) = process::read() {
        process.write_start(text);
    }
}

async fn summary(inner: &ServerContext, depth: Depth) -> Option<Summary> {
    match inner.sources.stats.summary(inner.sources.stats_sources(), depth).await {
        Ok(summary) => Some(summary),
        Err(error) => {
            tracing::warn!(error = chain(&error), "statistics are missing from metrics");
            None
        }
    }
}

/// Counts what is there now: pods and containers come and go without anybody who counts along.
#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
async fn census(inner: &ServerContext) {
    let sources = &inner.sources;
    let metrics = &sources.metrics;
    match Cri::new(&sources.runtime, &sources.metrics).census().await {
        Ok((pods, containers)) => {
            metrics.running_pods.set([], pods as f64);
            let states = containers.into_iter().map(|(state, count)| ([state.to_owned()], count as f64));
            metrics.running_containers.replace(states);
        }
        Err(status) => tracing::warn!(error = said_by(&status), "the runtime's pods are not counted"),
    }
    sources.pods.count(metrics);
    let pods = sources.pods.pods();
    let is_static = |pod: &&Arc<Pod>| {
        let source = pod.metadata.annotations.as_ref().and_then(|notes| notes.get(CONFIG_SOURCE));
        source.is_some_and(|source| source != "api")
    };
    let from_files = pods.iter().filter(is_static).count();
    metrics.desired_pods.set(["true"], from_files as f64);
    metrics.desired_pods.set([""], (pods.len() - from_files) as f64);
    let ephemeral = pods.iter().filter_map(|pod| pod.spec.as_ref()?.ephemeral_containers.as_ref());
    metrics.managed_ephemeral_containers.set([], ephemeral.map(Vec::len).sum::<usize>() as f64);
}

/// The agent's own.
pub(super) async fn metrics(inner: &ServerContext) -> Answer {
    let mut text = Text::new();
    let sources = &inner.sources;
    census(inner).await;
    sources.metrics.write(&mut text);
    if let Ok(process) = process::read() {
        process.write(&mut text);
    }
    build_info(&sources.version, &mut text);
    volumes(&sources.stats.claims(), &mut text);
    if let Some(summary) = summary(inner, Depth::All).await {
        logs(&summary, &mut text);
    }
    said(text)
}

fn build_info(version: &str, text: &mut Text) {
    let name = "kubernetes_build_info";
    text.family(name, "[BETA] What was built, from what; always 1.", Kind::Gauge);
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let platform = format!("linux/{}", if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" });
    let labels = [
        ("build_date", ""),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("git_version", version),
        ("go_version", ""),
        ("major", major),
        ("minor", minor),
        ("platform", &platform),
    ];
    text.sample(name, &labels, 1.0);
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a volume, as upstream")]
fn volumes(found: &[VolumeStats], text: &mut Text) {
    type VolumeMetric = fn(&VolumeStats) -> Option<u64>;
    let families: [(&str, &str, VolumeMetric); 6] = [
        ("kubelet_volume_stats_available_bytes", "[ALPHA] Room left in the volume.", |v| {
            v.fs.available_bytes
        }),
        ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Size of the volume.", |v| v.fs.capacity_bytes),
        ("kubelet_volume_stats_inodes", "[ALPHA] Inodes of the volume.", |v| v.fs.inodes),
        ("kubelet_volume_stats_inodes_free", "[ALPHA] Inodes left.", |v| v.fs.inodes_free),
        ("kubelet_volume_stats_inodes_used", "[ALPHA] Inodes in use.", |v| v.fs.inodes_used),
        ("kubelet_volume_stats_used_bytes", "[ALPHA] Bytes in use.", |v| v.fs.used_bytes),
    ];
    for (name, help, pick) in families {
        // A claim that several pods use is one volume.
        let mut samples: Vec<(&str, &str, u64)> = found
            .iter()
            .filter_map(|volume| {
                let claim = volume.pvc_ref.as_ref()?;
                Some((claim.namespace.as_str(), claim.name.as_str(), pick(volume)?))
            })
            .collect();
        samples.sort_unstable();
        samples.dedup_by_key(|(namespace, name, _)| (*namespace, *name));
        if !samples.is_empty() {
            text.family(name, help, Kind::Gauge);
        }
        for (namespace, claim, value) in samples {
            text.sample(name, &[("namespace", namespace), ("persistentvolumeclaim", claim)], value as f64);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a log")]
fn logs(summary: &Summary, text: &mut Text) {
    let name = "kubelet_container_log_filesystem_used_bytes";
    text.family(name, "[ALPHA] Bytes of a container's logs.", Kind::Gauge);
    for pod in &summary.pods {
        for container in &pod.containers {
            if let Some(used) = container.logs.as_ref().and_then(|logs| logs.used_bytes) {
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", &pod.pod_ref.namespace),
                    ("pod", &pod.pod_ref.name),
                    ("uid", &pod.pod_ref.uid),
                ];
                text.sample(name, &labels, used as f64);
            }
        }
    }
}

/// What metrics-server reads.
pub(super) async fn resource(inner: &ServerContext) -> Answer {
    let mut text = Text::new();
    resource::write(summary(inner, Depth::CpuAndMemory).await.as_ref(), &mut text);
    said(text)
}

/// Containers by cAdvisor's names.
pub(super) async fn cadvisor(inner: &ServerContext) -> Answer {
    let machine = inner.sources.stats.machine().clone();
    let groups = inner.sources.stats.groups();
    let found = summary(inner, Depth::All).await;
    let (pods, oom_counts) = (inner.sources.pods.pods(), inner.sources.oom_counts.clone());
    let system = inner.sources.system.clone();
    // Some files for each container: not for a thread that others wait for.
    let written = tokio::task::spawn_blocking(move || {
        let mut text = Text::new();
        cadvisor::machine(&machine, &system, &mut text);
        cadvisor::containers(found.as_ref(), &pods, (&machine, &groups), &oom_counts, &mut text);
        text
    });
    match written.await {
        Ok(text) => said(text),
        Err(error) => answer::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Probes.
pub(super) fn probes(inner: &ServerContext) -> Answer {
    let mut text = Text::new();
    inner.sources.probe_metrics.write(&mut text);
    write_start_time(&mut text);
    said(text)
}

/// Health checks.
pub(super) fn slis(inner: &ServerContext) -> Answer {
    let mut text = Text::new();
    inner.sources.metrics.write_health(&mut text);
    write_start_time(&mut text);
    said(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summary::{FsStats, PvcReference};

    #[test]
    fn a_claim_that_two_pods_use_is_one_volume() {
        let of = |used| VolumeStats {
            name: "v".into(),
            fs: FsStats { used_bytes: Some(used), ..FsStats::default() },
            pvc_ref: Some(PvcReference { name: "data".into(), namespace: "ns".into() }),
        };
        let mut text = Text::new();
        volumes(&[of(5), of(5)], &mut text);
        assert_eq!(
            text.finish(),
            "# HELP kubelet_volume_stats_used_bytes [ALPHA] Bytes in use.\n\
             # TYPE kubelet_volume_stats_used_bytes gauge\n\
             kubelet_volume_stats_used_bytes{namespace=\"ns\",persistentvolumeclaim=\"data\"} 5\n"
        );
    }
}
