//! Stats of containers and pods, against what they are known to use.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::http;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;

use crate::images::ready;

fn number(value: &Option<cri::UInt64Value>) -> u64 {
    value.as_ref().map_or(0, |value| value.value)
}

fn stats(node: &Node, id: &str) -> Result<cri::ContainerStats> {
    let request = cri::ContainerStatsRequest { container_id: id.to_owned() };
    node.cri().container_stats(request)?.stats.context("no stats")
}

#[test]
fn a_container_uses_what_it_burns_holds_and_writes() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "uses")?;
    let script = "head -c 3000000 /dev/zero > /written; mkdir /folder; \
        x=$(head -c 20000000 /dev/zero | tr '\\0' a); echo held; while true; do :; done";
    let mut config = pod::container_config("uses", &ready.image, &["/bin/sh", "-c", script]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().memory_limit_in_bytes = 256 << 20;
    let id = pod.start(&config)?;
    poll("the memory to be held", Duration::from_secs(60), || match pod.log("uses") {
        Ok(log) if log.contains("held") => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let first = stats(node, &id)?;
    let attributes = first.attributes.as_ref().context("no attributes")?;
    assert_eq!(attributes.metadata.as_ref().map(|metadata| metadata.name.as_str()), Some("uses"));
    assert_eq!(attributes.labels.get("container").map(String::as_str), Some("uses"));
    let memory = first.memory.as_ref().context("no memory")?;
    let held = number(&memory.working_set_bytes);
    assert!((19 << 20..256 << 20).contains(&held), "{memory:?}");
    assert!(number(&memory.rss_bytes) >= 19 << 20, "{memory:?}");
    assert_eq!(number(&memory.available_bytes), (256 << 20) - held, "{memory:?}");
    let layer = first.writable_layer.as_ref().context("no writable layer")?;
    assert!((2_900_000..4_000_000).contains(&number(&layer.used_bytes)), "{layer:?}");
    // The upper itself, the file, the folder, and mount points that the image lacked.
    assert!((3..40).contains(&number(&layer.inodes_used)), "{layer:?}");
    // Once there are two readings there is a rate, and a busy loop's is near one core.
    let rate = poll("the rate of a busy loop", Duration::from_secs(30), || {
        let cpu = stats(node, &id).map_err(|error| format!("{error:#}"))?.cpu.ok_or("no cpu")?;
        let rate = number(&cpu.usage_nano_cores);
        if rate > 50_000_000 { Ok(rate) } else { Err(format!("{cpu:?}")) }
    })?;
    assert!(rate <= 1_500_000_000, "{rate}");
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn a_container_that_ended_has_a_writable_layer_and_nothing_else() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "ended")?;
    let runs = pod.start(&pod::container_config("runs", &ready.image, &["/workload", "sleep", "60"]))?;
    let ended = pod.start(&pod::container_config("ended", &ready.image, &["/workload", "exit", "0"]))?;
    pod::await_exit(node, &ended)?;
    assert!(node.cri().container_stats(cri::ContainerStatsRequest { container_id: ended.clone() }).is_err());
    let list = |filter: cri::ContainerStatsFilter| -> Result<Vec<cri::ContainerStats>> {
        Ok(node.cri().list_container_stats(cri::ListContainerStatsRequest { filter: Some(filter) })?.stats)
    };
    let all = list(cri::ContainerStatsFilter::default())?;
    assert_eq!(all.len(), 2, "{all:?}");
    for one in &all {
        let id = &one.attributes.as_ref().context("no attributes")?.id;
        assert_eq!(one.cpu.is_some(), *id == runs, "{one:?}");
        assert_eq!(one.memory.is_some(), *id == runs, "{one:?}");
        assert!(one.writable_layer.is_some(), "{one:?}");
    }
    let by_id = cri::ContainerStatsFilter { id: runs[..13].to_owned(), ..Default::default() };
    assert_eq!(list(by_id)?.len(), 1);
    let by_label = cri::ContainerStatsFilter {
        label_selector: [("container".to_owned(), "ended".to_owned())].into(),
        ..Default::default()
    };
    assert_eq!(list(by_label)?.len(), 1);
    let elsewhere = cri::ContainerStatsFilter { pod_sandbox_id: "none".into(), ..Default::default() };
    assert!(list(elsewhere)?.is_empty());
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn a_pod_sums_up_its_containers_and_counts_its_bytes() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "sums")?;
    pod.start(&pod::container_config("web", &ready.image, &["/workload", "web", "8080"]))?;
    pod.start(&pod::container_config("idle", &ready.image, &["/workload", "sleep", "60"]))?;
    let addr = pod.addr(8080)?;
    poll("the page", Duration::from_secs(20), || http::get(addr, "/").map_err(|error| format!("{error:#}")))?;
    let request = cri::PodSandboxStatsRequest { pod_sandbox_id: pod.id.clone() };
    let linux = node
        .cri()
        .pod_sandbox_stats(request.clone())?
        .stats
        .context("no stats")?
        .linux
        .context("not linux")?;
    assert_eq!(linux.containers.len(), 2);
    assert_eq!(number(&linux.process.context("no processes")?.process_count), 2);
    let sum: u64 = linux
        .containers
        .iter()
        .map(|container| number(&container.cpu.unwrap_or_default().usage_core_nano_seconds))
        .sum();
    assert!(sum > 0);
    assert!(number(&linux.cpu.context("no cpu")?.usage_core_nano_seconds) >= sum);
    assert!(number(&linux.memory.context("no memory")?.usage_bytes) > 0);
    let network = linux.network.context("no network")?;
    let [eth0] = &network.interfaces[..] else { anyhow::bail!("{network:?}") };
    assert_eq!(eth0.name, "eth0");
    assert_eq!(network.default_interface.as_ref(), Some(eth0));
    assert!(number(&eth0.rx_bytes) > 0 && number(&eth0.tx_bytes) > 0, "{eth0:?}");
    let listed = node.cri().list_pod_sandbox_stats(cri::ListPodSandboxStatsRequest::default())?.stats;
    assert_eq!(listed.len(), 1);
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() })?;
    let error = node.cri().pod_sandbox_stats(request).expect_err("stats of a stopped pod");
    assert_eq!(error.code(), tonic::Code::Unavailable, "{error:?}");
    assert!(node.cri().list_pod_sandbox_stats(cri::ListPodSandboxStatsRequest::default())?.stats.is_empty());
    pod.remove()?;
    node.assert_clean(&ready.before)
}
