//! `/metrics/resource`. Pure: owns the families; the numbers are a summary's. Called by
//! [`super::resource`].

use super::{Kind, Summary, Text};
use crate::stats::summary::{ContainerStats, CpuStats, MemoryStats, SwapStats};

/// A value and when it was taken.
type Value = (f64, Option<i64>);

#[expect(clippy::cast_precision_loss, reason = "times and bytes, as upstream")]
fn cpu(stats: Option<&CpuStats>) -> Option<Value> {
    let stats = stats?;
    Some((stats.usage_core_nano_seconds? as f64 / 1e9, Some(stats.time / 1_000_000)))
}

#[expect(clippy::cast_precision_loss, reason = "times and bytes, as upstream")]
fn memory(stats: Option<&MemoryStats>) -> Option<Value> {
    let stats = stats?;
    Some((stats.working_set_bytes? as f64, Some(stats.time / 1_000_000)))
}

#[expect(clippy::cast_precision_loss, reason = "times and bytes, as upstream")]
fn swap(stats: Option<&SwapStats>) -> Option<Value> {
    let stats = stats?;
    Some((stats.swap_usage_bytes? as f64, Some(stats.time / 1_000_000)))
}

#[expect(clippy::cast_precision_loss, reason = "times and bytes, as upstream")]
fn swap_limit(stats: Option<&SwapStats>) -> Option<Value> {
    let stats = stats?;
    let limit = stats.swap_available_bytes?.saturating_add(stats.swap_usage_bytes.unwrap_or_default());
    Some((limit as f64, Some(stats.time / 1_000_000)))
}

#[expect(clippy::cast_precision_loss, reason = "times and bytes, as upstream")]
fn start(container: &ContainerStats) -> Option<Value> {
    (container.start_time > 0).then(|| (container.start_time as f64 / 1e9, None))
}

/// One family; nothing when it has no sample.
fn family(text: &mut Text, head: (&str, &str, Kind), samples: &[(Vec<(&str, &str)>, Value)]) {
    let (name, help, kind) = head;
    if !samples.is_empty() {
        text.family(name, help, kind);
    }
    for (labels, (value, millis)) in samples {
        text.sample_at(name, labels, *value, *millis);
    }
}

/// Everything; without a summary only that there was none.
pub(super) fn write(summary: Option<&Summary>, text: &mut Text) {
    if let Some(summary) = summary {
        containers(summary, text);
        node(summary, text);
        pods(summary, text);
    }
    let failed = f64::from(u8::from(summary.is_none()));
    for (name, help) in [
        ("resource_scrape_error", "[STABLE] 1 when statistics could not be had, else 0."),
        ("scrape_error", "[ALPHA] (Deprecated since 1.29.0) The same."),
    ] {
        text.family(name, help, Kind::Gauge);
        text.sample(name, &[], failed);
    }
}

fn containers(summary: &Summary, text: &mut Text) {
    type ContainerMetric = fn(&ContainerStats) -> Option<Value>;
    let families: [(&str, &str, Kind, ContainerMetric); 5] = [
        (
            "container_cpu_usage_seconds_total",
            "[STABLE] Processor time in core-seconds.",
            Kind::Counter,
            |c| cpu(c.cpu.as_ref()),
        ),
        ("container_memory_working_set_bytes", "[STABLE] Working set in bytes.", Kind::Gauge, |c| {
            memory(c.memory.as_ref())
        }),
        ("container_start_time_seconds", "[STABLE] Start in Unix time.", Kind::Gauge, start),
        ("container_swap_limit_bytes", "[ALPHA] Most swap in bytes.", Kind::Gauge, |c| {
            swap_limit(c.swap.as_ref())
        }),
        ("container_swap_usage_bytes", "[ALPHA] Swap in bytes.", Kind::Gauge, |c| swap(c.swap.as_ref())),
    ];
    for (name, help, kind, pick) in families {
        let mut samples = Vec::new();
        for pod in &summary.pods {
            let of = |container: &ContainerStats| pick(container);
            for container in &pod.containers {
                let labels = vec![
                    ("container", container.name.as_str()),
                    ("namespace", &pod.pod_ref.namespace),
                    ("pod", &pod.pod_ref.name),
                ];
                samples.extend(of(container).map(|value| (labels, value)));
            }
        }
        family(text, (name, help, kind), &samples);
    }
}

fn node(summary: &Summary, text: &mut Text) {
    let node = &summary.node;
    let families = [
        (
            "node_cpu_usage_seconds_total",
            "[STABLE] Processor time in core-seconds.",
            Kind::Counter,
            cpu(node.cpu.as_ref()),
        ),
        (
            "node_memory_working_set_bytes",
            "[STABLE] Working set in bytes.",
            Kind::Gauge,
            memory(node.memory.as_ref()),
        ),
        ("node_swap_usage_bytes", "[ALPHA] Swap in bytes.", Kind::Gauge, swap(node.swap.as_ref())),
    ];
    for (name, help, kind, value) in families {
        let samples: Vec<_> = value.into_iter().map(|value| (Vec::new(), value)).collect();
        family(text, (name, help, kind), &samples);
    }
}

fn pods(summary: &Summary, text: &mut Text) {
    let mut all: [Vec<_>; 3] = Default::default();
    for pod in &summary.pods {
        let values = [cpu(pod.cpu.as_ref()), memory(pod.memory.as_ref()), swap(pod.swap.as_ref())];
        for (samples, value) in all.iter_mut().zip(values) {
            let labels = vec![("namespace", pod.pod_ref.namespace.as_str()), ("pod", &pod.pod_ref.name)];
            samples.extend(value.map(|value| (labels, value)));
        }
    }
    let [cpu, memory, swap] = all;
    family(
        text,
        ("pod_cpu_usage_seconds_total", "[STABLE] Processor time in core-seconds.", Kind::Counter),
        &cpu,
    );
    family(text, ("pod_memory_working_set_bytes", "[STABLE] Working set in bytes.", Kind::Gauge), &memory);
    family(text, ("pod_swap_usage_bytes", "[ALPHA] Swap in bytes.", Kind::Gauge), &swap);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summary::{NodeStats, PodReference, PodStats};

    #[test]
    fn what_metrics_server_reads() {
        let time = 1_700_000_000_123_456_789;
        let cpu = CpuStats { time, usage_core_nano_seconds: Some(1_500_000_000), ..CpuStats::default() };
        let memory = MemoryStats { time, working_set_bytes: Some(4096), ..MemoryStats::default() };
        let container = ContainerStats {
            name: "c".into(),
            start_time: time,
            cpu: Some(cpu.clone()),
            memory: Some(memory.clone()),
            ..ContainerStats::default()
        };
        let pod_ref = PodReference { name: "web".into(), namespace: "ns".into(), uid: "u".into() };
        let pod = PodStats { pod_ref, containers: vec![container], ..PodStats::default() };
        let node = NodeStats { cpu: Some(cpu), memory: Some(memory), ..NodeStats::default() };
        let mut text = Text::new();
        write(Some(&Summary { node, pods: vec![pod] }), &mut text);
        let text = text.finish();
        for line in [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"web\"} 1.5 1700000000123",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"web\"} 4096 1700000000123",
            "node_cpu_usage_seconds_total 1.5 1700000000123",
            "node_memory_working_set_bytes 4096 1700000000123",
            "resource_scrape_error 0",
            "# TYPE container_cpu_usage_seconds_total counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
        assert!(!text.contains("pod_cpu_usage"), "{text}");
        let mut none = Text::new();
        write(None, &mut none);
        assert!(none.finish().ends_with("scrape_error 1\n"));
    }
}
