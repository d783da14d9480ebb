//! Limits: they stand in the cgroup, and the kernel keeps to them.

use anyhow::Result;
use gantry_tests::pod::{self, Pod};

use crate::images::ready;

#[test]
fn limits_stand_in_the_cgroup() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "limits")?;
    let mut config = pod::container_config("limits", &ready.image, &["/workload", "sleep", "60"]);
    let resources = config.linux.get_or_insert_default().resources.get_or_insert_default();
    resources.memory_limit_in_bytes = 64 << 20;
    resources.cpu_quota = 25_000;
    resources.cpu_period = 100_000;
    resources.cpu_shares = 256;
    let id = pod.start(&config)?;
    assert_eq!(node.cgroup_value(&id, "memory.limit_in_bytes", "memory.max")?, "67108864");
    let quota = node.cgroup_value(&id, "cpu.cfs_quota_us", "cpu.max")?;
    assert!(matches!(quota.as_str(), "25000" | "25000 100000"), "{quota}");
    // 256 shares are weight 10 by the kernel's own scale, 35 by KEP-2254's newer one.
    let shares = node.cgroup_value(&id, "cpu.shares", "cpu.weight")?;
    assert!(matches!(shares.as_str(), "256" | "10" | "35"), "{shares}");
    let members = node.cgroup_value(&id, "cgroup.procs", "cgroup.procs")?;
    assert_eq!(members.lines().count(), 1, "{members}");
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn a_container_over_its_memory_limit_is_oom_killed() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "oom")?;
    let mut config = pod::container_config("oom", &ready.image, &["/workload", "alloc", "200"]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().memory_limit_in_bytes = 32 << 20;
    let id = pod.start(&config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"), "{status:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_oom_that_the_container_outlives_is_not_its_end() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "outlives")?;
    let script = "/workload alloc 200; echo still here; exit 3";
    let mut config = pod::container_config("outlives", &ready.image, &["/bin/sh", "-c", script]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().memory_limit_in_bytes = 32 << 20;
    let id = pod.start(&config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"), "{status:?}");
    assert!(pod.log("outlives")?.contains("still here"));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
