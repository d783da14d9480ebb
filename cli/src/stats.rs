//! `gantry stats`: what pods' containers use. Owns the two looks that make a rate, and the table;
//! never keeps anything. Called by main.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_proto::cri::{
    ContainerStats, ContainerStatsFilter, ContainerStatusRequest, LinuxContainerResources,
    ListContainerStatsRequest,
};
use serde::Serialize;
use tonic::Code;
use tonic::transport::Channel;

use crate::args::{ListFormat, StatsArgs};
use crate::{output, runtime_client};

/// Between the two looks.
const SAMPLE: Duration = Duration::from_secs(1);

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatsRow {
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
    #[serde(flatten)]
    limits: Limits,
}

/// Prints one table, from two looks a second apart; again with each look when it is watched.
pub(crate) async fn stats(args: StatsArgs) -> Result<()> {
    let mut client = runtime_client::runtime(runtime_client::dial(&args.runtime).await?);
    let live = args.watch && std::io::stdout().is_terminal() && args.output.is_table();
    let mut before = look(&mut client).await?;
    loop {
        tokio::time::sleep(SAMPLE).await;
        let now = look(&mut client).await?;
        let mut rows = rows(&before, &now);
        before = now;
        rows.retain(|row| is_meant(row, &args));
        if let Some(name) = args.pod.as_ref().filter(|_| rows.is_empty()) {
            anyhow::bail!("no running container of a pod {name}: `gantry ps` shows what there is");
        }
        for row in &mut rows {
            row.limits = limits(&mut client, &row.id).await?;
        }
        let text = match args.output {
            ListFormat::Table => table(&rows, false),
            ListFormat::Wide => table(&rows, true),
            ListFormat::Json => output::json(&rows)?,
            ListFormat::Yaml => output::yaml(&rows)?,
        };
        let clear = if live { output::CLEAR } else { "" };
        output::print(format!("{clear}{text}").as_bytes())?;
        if !args.watch {
            return Ok(());
        }
    }
}

fn is_meant(row: &StatsRow, args: &StatsArgs) -> bool {
    args.pod.as_ref().is_none_or(|name| name.is(&row.namespace, &row.pod))
        && args.namespace.as_ref().is_none_or(|name| row.namespace == *name)
}

/// What the container may use; nothing is known of one that is gone by now.
async fn limits(client: &mut RuntimeServiceClient<Channel>, id: &str) -> Result<Limits> {
    let ask = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let answer = match client.container_status(ask).await {
        Err(status) if status.code() == Code::NotFound => return Ok(Limits::default()),
        answer => runtime_client::answer(answer)?,
    };
    let resources = answer.status.and_then(|status| status.resources?.linux);
    Ok(resources.as_ref().map_or_else(Limits::default, Limits::of))
}

/// None without one.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_limit_milli: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_limit_bytes: Option<u64>,
}

impl Limits {
    fn of(resources: &LinuxContainerResources) -> Self {
        let above_zero = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
        let period = above_zero(resources.cpu_period);
        Self {
            cpu_limit_milli: above_zero(resources.cpu_quota)
                .zip(period)
                .map(|(quota, period)| quota.saturating_mul(1000) / period),
            memory_limit_bytes: above_zero(resources.memory_limit_in_bytes),
        }
    }
}

async fn look(client: &mut RuntimeServiceClient<Channel>) -> Result<Vec<ContainerStats>> {
    let ask = ListContainerStatsRequest { filter: Some(ContainerStatsFilter::default()) };
    Ok(runtime_client::answer(client.list_container_stats(ask).await)?.stats)
}

/// Containers that both looks saw, by namespace, pod and name.
fn rows(first: &[ContainerStats], second: &[ContainerStats]) -> Vec<StatsRow> {
    let before: BTreeMap<&str, (i64, u64)> = first.iter().filter_map(|s| Some((id(s)?, cpu(s)?))).collect();
    let mut rows: Vec<StatsRow> = second
        .iter()
        .filter_map(|stats| {
            let attributes = stats.attributes.as_ref()?;
            let label = |key: &str| attributes.labels.get(key).cloned().unwrap_or_default();
            let (at, used) = cpu(stats)?;
            let (then, was) = before.get(attributes.id.as_str()).copied()?;
            let value = |v: &Option<gantry_proto::cri::UInt64Value>| v.as_ref().map_or(0, |v| v.value);
            let layer = stats.writable_layer.as_ref();
            Some(StatsRow {
                namespace: label(POD_NAMESPACE),
                pod: label(POD_NAME),
                container: attributes.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default(),
                id: attributes.id.clone(),
                cpu_milli: milli(used.saturating_sub(was), at.saturating_sub(then)),
                working_set_bytes: stats.memory.as_ref().map_or(0, |m| value(&m.working_set_bytes)),
                disk_bytes: layer.map_or(0, |l| value(&l.used_bytes)),
                inodes: layer.map_or(0, |l| value(&l.inodes_used)),
                limits: Limits::default(),
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

fn table(rows: &[StatsRow], wide: bool) -> String {
    let mut header = vec![
        "NAMESPACE",
        "POD",
        "CONTAINER",
        "CPU(cores)",
        "CPU LIMIT",
        "CPU%",
        "MEMORY(bytes)",
        "MEMORY LIMIT",
        "MEMORY%",
        "DISK",
    ];
    if wide {
        header.extend(["INODES", "CONTAINER ID"]);
    }
    let mut lines = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in rows {
        let Limits { cpu_limit_milli, memory_limit_bytes } = row.limits;
        let none = || "<none>".to_owned();
        let mut line = vec![
            row.namespace.clone(),
            row.pod.clone(),
            row.container.clone(),
            format!("{}m", row.cpu_milli),
            cpu_limit_milli.map_or_else(none, |limit| format!("{limit}m")),
            percent(row.cpu_milli, cpu_limit_milli),
            mebi(row.working_set_bytes),
            memory_limit_bytes.map_or_else(none, mebi),
            percent(row.working_set_bytes, memory_limit_bytes),
            output::bytes(row.disk_bytes),
        ];
        if wide {
            line.extend([row.inodes.to_string(), row.id.chars().take(13).collect()]);
        }
        lines.push(line);
    }
    output::table(&lines)
}

/// As `kubectl top` prints memory.
fn mebi(bytes: u64) -> String {
    format!("{}Mi", bytes >> 20)
}

/// Of the limit; `<none>` without one.
fn percent(used: u64, limit: Option<u64>) -> String {
    let of = |limit: u64| u128::from(used) * 100 / u128::from(limit.max(1));
    limit.map_or_else(|| "<none>".to_owned(), |limit| format!("{}%", of(limit)))
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

    #[test]
    fn limits_and_percents_stand_beside_what_is_used() {
        let resources = LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            memory_limit_in_bytes: 64 << 20,
            ..LinuxContainerResources::default()
        };
        let second = 1_000_000_000;
        let mut rows = rows(&[stats("a", second, 0)], &[stats("a", 2 * second, 250_000_000)]);
        rows[0].limits = Limits::of(&resources);
        rows[0].working_set_bytes = 16 << 20;
        let text = table(&rows, false);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["p", "web", "250m", "500m", "50%", "16Mi", "64Mi", "25%", "0B"]);
        assert_eq!(
            Limits::of(&LinuxContainerResources { cpu_quota: -1, ..LinuxContainerResources::default() }),
            Limits::default()
        );
        assert_eq!(percent(1, None), "<none>");
    }
}
