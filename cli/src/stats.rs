//! `gantry stats`: what pods' containers use. Owns the two looks that make a rate, and the table;
//! never keeps anything. Called by main.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::cri::{ContainerStats, ContainerStatsFilter, ListContainerStatsRequest};
use serde::Serialize;
use tonic::transport::Channel;

use crate::args::{ListFormat, StatsArgs};
use crate::{output, runtime_client};

/// Between the two looks.
const SAMPLE: Duration = Duration::from_secs(1);

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    pod: String,
    container: String,
    id: String,
    /// Thousandths of a core over the last second.
    cpu_milli: u64,
    /// Bytes that cannot be taken back: what an OOM kill counts.
    working_set_bytes: u64,
    /// Bytes of the writable layer.
    disk_bytes: u64,
    /// Of the writable layer.
    inodes: u64,
}

/// Prints one table, from two looks a second apart.
pub(crate) async fn stats(args: StatsArgs) -> Result<()> {
    let StatsArgs { pod, namespace, output: format, runtime } = args;
    let client = runtime_client::runtime(runtime_client::dial(&runtime).await?);
    let first = look(client.clone()).await?;
    tokio::time::sleep(SAMPLE).await;
    let second = look(client).await?;
    let mut rows = rows(&first, &second);
    rows.retain(|row| {
        pod.as_ref().is_none_or(|name| name.is(&row.namespace, &row.pod))
            && namespace.as_ref().is_none_or(|name| row.namespace == *name)
    });
    if let Some(name) = pod.filter(|_| rows.is_empty()) {
        anyhow::bail!("no running container of a pod {name}: `gantry ps` shows what there is");
    }
    let text = match format {
        ListFormat::Table => table(&rows, false),
        ListFormat::Wide => table(&rows, true),
        ListFormat::Json => output::json(&rows)?,
        ListFormat::Yaml => output::yaml(&rows)?,
    };
    Ok(output::print(text.as_bytes())?)
}

async fn look(mut client: RuntimeServiceClient<Channel>) -> Result<Vec<ContainerStats>> {
    let ask = ListContainerStatsRequest { filter: Some(ContainerStatsFilter::default()) };
    Ok(runtime_client::answer(client.list_container_stats(ask).await)?.stats)
}

/// Containers that both looks saw, by namespace, pod and name.
fn rows(first: &[ContainerStats], second: &[ContainerStats]) -> Vec<Row> {
    let before: BTreeMap<&str, (i64, u64)> = first.iter().filter_map(|s| Some((id(s)?, cpu(s)?))).collect();
    let mut rows: Vec<Row> = second
        .iter()
        .filter_map(|stats| {
            let attributes = stats.attributes.as_ref()?;
            let label = |key: &str| attributes.labels.get(key).cloned().unwrap_or_default();
            let (at, used) = cpu(stats)?;
            let (then, was) = before.get(attributes.id.as_str()).copied()?;
            let value = |v: &Option<gantry_proto::cri::UInt64Value>| v.as_ref().map_or(0, |v| v.value);
            let layer = stats.writable_layer.as_ref();
            Some(Row {
                namespace: label(POD_NAMESPACE),
                pod: label(POD_NAME),
                container: attributes.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default(),
                id: attributes.id.clone(),
                cpu_milli: milli(used.saturating_sub(was), at.saturating_sub(then)),
                working_set_bytes: stats.memory.as_ref().map_or(0, |m| value(&m.working_set_bytes)),
                disk_bytes: layer.map_or(0, |l| value(&l.used_bytes)),
                inodes: layer.map_or(0, |l| value(&l.inodes_used)),
            })
        })
        .collect();
    rows.sort_by(|a, b| (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container)));
    rows
}

fn id(stats: &ContainerStats) -> Option<&str> {
    stats.attributes.as_ref().map(|a| a.id.as_str())
}

/// When it was measured, and nanoseconds of a core used until then.
fn cpu(stats: &ContainerStats) -> Option<(i64, u64)> {
    let cpu = stats.cpu.as_ref()?;
    Some((cpu.timestamp, cpu.usage_core_nano_seconds.as_ref()?.value))
}

/// Core-nanoseconds over nanoseconds, in thousandths of a core.
fn milli(used: u64, elapsed: i64) -> u64 {
    match u128::try_from(elapsed) {
        Ok(elapsed) if elapsed > 0 => u64::try_from(u128::from(used) * 1000 / elapsed).unwrap_or(u64::MAX),
        _ => 0,
    }
}

fn table(rows: &[Row], wide: bool) -> String {
    let mut header = vec!["NAMESPACE", "POD", "CONTAINER", "CPU(cores)", "MEMORY", "DISK"];
    if wide {
        header.extend(["INODES", "CONTAINER ID"]);
    }
    let mut lines = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in rows {
        let mut line = vec![
            row.namespace.clone(),
            row.pod.clone(),
            row.container.clone(),
            format!("{}m", row.cpu_milli),
            output::bytes(row.working_set_bytes),
            output::bytes(row.disk_bytes),
        ];
        if wide {
            line.extend([row.inodes.to_string(), row.id.chars().take(13).collect()]);
        }
        lines.push(line);
    }
    output::table(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::cri::{ContainerAttributes, ContainerMetadata, CpuUsage, UInt64Value};

    fn stats(id: &str, at: i64, used: u64) -> ContainerStats {
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: id.into(),
                metadata: Some(ContainerMetadata { name: "web".into(), attempt: 0 }),
                labels: [(POD_NAME.to_owned(), "p".to_owned())].into(),
                ..ContainerAttributes::default()
            }),
            cpu: Some(CpuUsage {
                timestamp: at,
                usage_core_nano_seconds: Some(UInt64Value { value: used }),
                ..CpuUsage::default()
            }),
            ..ContainerStats::default()
        }
    }

    #[test]
    fn a_rate_needs_both_looks() {
        let second = 1_000_000_000;
        let first = [stats("a", second, 5_000_000_000)];
        let later = [stats("a", 3 * second, 6_000_000_000), stats("new", 3 * second, 1)];
        let rows = rows(&first, &later);
        assert_eq!(rows.iter().map(|r| (r.id.as_str(), r.cpu_milli)).collect::<Vec<_>>(), [("a", 500)]);
        assert_eq!(milli(5, 0), 0);
        assert_eq!(milli(5, -1), 0);
    }
}
