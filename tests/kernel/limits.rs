//! Limits: they stand in the cgroup, and the kernel keeps to them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{leakcheck, place};

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
fn rt_5_3_a_container_over_its_memory_limit_is_oom_killed() -> Result<()> {
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
fn rt_5_2_an_oom_that_the_container_outlives_is_told_and_is_not_its_end() -> Result<()> {
    let mut ready = ready()?;
    let script = "/workload alloc 200; echo still here; read go < /pipe; /workload alloc 200; read end < /pipe; exit 3";
    let mut config = pod::container_config("outlives", &ready.image, &["/bin/sh", "-c", script]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().memory_limit_in_bytes = 32 << 20;
    // The container waits at a pipe of ours until its OOM has been counted.
    let pipe = ready.node.roots().path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)?;
    let host_path = pipe.to_string_lossy().into_owned();
    config.mounts.push(cri::Mount { container_path: "/pipe".into(), host_path, ..Default::default() });
    let (sandbox, id) = {
        let pod = Pod::run(&ready.node, "outlives")?;
        let mut told = ready.node.cri().out_of_memory()?;
        let id = pod.start(&config)?;
        poll("the OOM to be counted", Duration::from_secs(60), || {
            let counted = oom_events(&ready.node, &id).map_err(|error| format!("{error:#}"))?;
            let outlived = pod.log("outlives").is_ok_and(|log| log.contains("still here"));
            if outlived && counted > 0 {
                Ok(())
            } else {
                Err(format!("{counted} are counted, outlived: {outlived}"))
            }
        })?;
        let event = told.receive()?.context("the stream has ended")?;
        assert_eq!((event.container_id, event.kills), (id.clone(), 1));
        (pod.id.clone(), id)
    };
    // The next runtime watches on, and tells of what comes from then on.
    ready.node.restart()?;
    let node = &ready.node;
    let mut told = node.cri().out_of_memory()?;
    std::fs::write(&pipe, "go\n")?;
    let event = told.receive()?.context("the stream has ended")?;
    assert_eq!((event.container_id, event.kills), (id.clone(), 2));
    std::fs::write(&pipe, "end\n")?;
    let status = pod::await_exit(node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"), "{status:?}");
    std::fs::remove_file(&pipe)?;
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    node.assert_clean(&ready.before)
}

/// `container_oom_events_total` of a container, by its id among the labels.
fn oom_events(node: &gantry_tests::node::Node, id: &str) -> Result<u64> {
    let pods = node.cri().list_pod_sandbox_metrics(cri::ListPodSandboxMetricsRequest::default())?.pod_metrics;
    let mut containers = pods.into_iter().flat_map(|pod| pod.container_metrics);
    let found = containers.find(|container| container.container_id == id).context("no metrics of it")?;
    let mut metrics = found.metrics.into_iter();
    let metric =
        metrics.find(|metric| metric.name == "container_oom_events_total").context("no such metric")?;
    assert_eq!(metric.label_values.get(3).map(String::as_str), Some(id), "{metric:?}");
    Ok(metric.value.map_or(0, |value| value.value))
}

fn update(
    node: &gantry_tests::node::Node,
    id: &str,
    linux: cri::LinuxContainerResources,
) -> Result<(), tonic::Status> {
    let request = cri::UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(linux),
        ..Default::default()
    };
    node.cri().update_container_resources(request).map(drop)
}

fn container_resources(node: &gantry_tests::node::Node, id: &str) -> Result<cri::LinuxContainerResources> {
    let status = pod::container_status(node, id)?;
    Ok(status.resources.and_then(|resources| resources.linux).unwrap_or_default())
}

#[test]
fn limits_change_under_a_running_container_up_and_down() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "resize")?;
    let mut config = pod::container_config("resize", &ready.image, &["/workload", "sleep", "60"]);
    let resources = config.linux.get_or_insert_default().resources.get_or_insert_default();
    resources.memory_limit_in_bytes = 64 << 20;
    resources.cpu_quota = 25_000;
    resources.cpu_period = 100_000;
    let id = pod.start(&config)?;
    let memory = || node.cgroup_value(&id, "memory.limit_in_bytes", "memory.max");
    let cpu = || node.cgroup_value(&id, "cpu.cfs_quota_us", "cpu.max");
    // Up and down: v1 keeps memory below memory+swap at every moment.
    for mib in [128, 32, 96] {
        let limit = mib << 20;
        let wanted = cri::LinuxContainerResources { memory_limit_in_bytes: limit, ..Default::default() };
        update(node, &id, wanted)?;
        assert_eq!(memory()?, limit.to_string());
        assert_eq!(container_resources(node, &id)?.memory_limit_in_bytes, limit);
    }
    assert!(cpu()?.starts_with("25000"), "{}", cpu()?);
    // A quota that does not fit the old period, and the other way round.
    for (quota, period) in [(900_000, 1_000_000), (2_000, 10_000)] {
        let wanted =
            cri::LinuxContainerResources { cpu_quota: quota, cpu_period: period, ..Default::default() };
        update(node, &id, wanted)?;
        assert!(cpu()?.starts_with(&quota.to_string()), "{}", cpu()?);
    }
    let none = cri::LinuxContainerResources { cpu_quota: -1, ..Default::default() };
    update(node, &id, none)?;
    assert!(matches!(cpu()?.as_str(), "-1" | "max 10000"), "{}", cpu()?);
    pod.remove()?;
    node.assert_clean(&ready.before)
}

/// As the kubelet says it with LimitedSwap: only v2 counts swap by itself.
#[test]
fn a_container_has_the_swap_that_it_is_given_and_loses_it_again() -> Result<()> {
    if leakcheck::mounts()?.iter().any(|mount| mount.kind == "cgroup") {
        gantry_tests::not_run("memory.swap.max is a file of cgroup v2");
        return Ok(());
    }
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "swap")?;
    let mut config = pod::container_config("swap", &ready.image, &["/workload", "sleep", "60"]);
    let resources = config.linux.get_or_insert_default().resources.get_or_insert_default();
    resources.memory_limit_in_bytes = 64 << 20;
    let id = pod.start(&config)?;
    let swap = || node.cgroup_value(&id, "memory.memsw.limit_in_bytes", "memory.swap.max");
    // A container with a limit of memory and none of swap does not swap, as on containerd.
    assert_eq!(swap()?, "0");
    for bytes in ["8388608", "0"] {
        let unified = [("memory.swap.max".to_owned(), bytes.to_owned())].into();
        update(node, &id, cri::LinuxContainerResources { unified, ..Default::default() })?;
        assert_eq!(swap()?, bytes);
    }
    pod.remove()?;
    // And from its start.
    let pod = Pod::run(node, "swaps")?;
    let resources = config.linux.get_or_insert_default().resources.get_or_insert_default();
    resources.unified.insert("memory.swap.max".to_owned(), "4194304".to_owned());
    let id = pod.start(&config)?;
    assert_eq!(node.cgroup_value(&id, "memory.memsw.limit_in_bytes", "memory.swap.max")?, "4194304");
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn an_update_of_which_the_kernel_refuses_a_part_changes_nothing() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "whole")?;
    // No limits: there is nothing in the record that could be set again.
    let id = pod.start(&pod::container_config("whole", &ready.image, &["/workload", "sleep", "60"]))?;
    let values = || -> Result<[String; 3]> {
        Ok([
            node.cgroup_value(&id, "memory.limit_in_bytes", "memory.max")?,
            node.cgroup_value(&id, "cpu.shares", "cpu.weight")?,
            node.cgroup_value(&id, "cpu.cfs_quota_us", "cpu.max")?,
        ])
    };
    let before = values()?;
    let wanted = cri::LinuxContainerResources {
        memory_limit_in_bytes: 256 << 20,
        cpu_shares: 512,
        cpu_quota: 20_000,
        cpu_period: 50_000,
        // More than any node has; written last.
        cpuset_cpus: "9999".into(),
        ..Default::default()
    };
    update(node, &id, wanted).expect_err("no such CPU");
    assert_eq!(values()?, before);
    assert_eq!(container_resources(node, &id)?.cpu_shares, 0);
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn a_memory_limit_below_what_is_used_is_refused_and_changes_nothing() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "below")?;
    let script = "x=$(head -c 20000000 /dev/zero | tr '\\0' a); echo held; /workload sleep 600; echo ${#x}";
    let mut config = pod::container_config("below", &ready.image, &["/bin/sh", "-c", script]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().memory_limit_in_bytes = 128 << 20;
    let id = pod.start(&config)?;
    poll("the memory to be held", Duration::from_secs(60), || match pod.log("below") {
        Ok(log) if log.contains("held") => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let wanted = cri::LinuxContainerResources {
        memory_limit_in_bytes: 8 << 20,
        cpu_shares: 512,
        ..Default::default()
    };
    let error = update(node, &id, wanted).expect_err("a limit below the usage");
    assert!(error.message().contains("below"), "{error:?}");
    assert_eq!(node.cgroup_value(&id, "memory.limit_in_bytes", "memory.max")?, (128 << 20).to_string());
    assert_eq!(container_resources(node, &id)?.cpu_shares, 0);
    let status = pod::container_status(node, &id)?;
    assert_eq!(status.state(), cri::ContainerState::ContainerRunning);
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn limits_of_a_created_container_wait_for_its_start_and_an_ended_one_takes_them_too() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "later")?;
    let id = pod.create(&pod::container_config("later", &ready.image, &["/workload", "sleep", "60"]))?;
    let wanted = |limit| cri::LinuxContainerResources { memory_limit_in_bytes: limit, ..Default::default() };
    update(node, &id, wanted(48 << 20))?;
    node.cri().start_container(cri::StartContainerRequest { container_id: id.clone() })?;
    assert_eq!(node.cgroup_value(&id, "memory.limit_in_bytes", "memory.max")?, (48 << 20).to_string());
    node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 10 })?;
    update(node, &id, wanted(24 << 20))?;
    assert_eq!(container_resources(node, &id)?.memory_limit_in_bytes, 24 << 20);
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn rt_5_4_files_of_cgroup_v2_are_written_or_refused_by_name() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "unified")?;
    let mut config = pod::container_config("unified", &ready.image, &["/workload", "sleep", "60"]);
    let resources = config.linux.get_or_insert_default().resources.get_or_insert_default();
    resources.unified.insert("memory.oom.group".into(), "1".into());
    let v2 = leakcheck::mounts()?.iter().all(|mount| mount.kind != "cgroup");
    match pod.create(&config) {
        Ok(id) if v2 => {
            node.cri().start_container(cri::StartContainerRequest { container_id: id.clone() })?;
            assert_eq!(node.cgroup_value(&id, "memory.oom.group", "memory.oom.group")?, "1");
        }
        Err(error) if !v2 => assert!(error.message().contains("memory.oom.group"), "{error:?}"),
        other => anyhow::bail!("{other:?} with v2 {v2}"),
    }
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn a_pod_cgroup_that_the_caller_names_is_the_callers() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let steps = [node.roots().tag(), "given", "pod"];
    let parent = place::cgroup_parent(&steps);
    let mut config = pod::sandbox_config(node, "given");
    let linux = config.linux.get_or_insert_default();
    linux.cgroup_parent.clone_from(&parent);
    linux.resources.get_or_insert_default().memory_limit_in_bytes = 64 << 20;
    let pod = Pod::run_config(node, config)?;
    let id = pod.start(&pod::container_config("given", &ready.image, &["/workload", "sleep", "60"]))?;
    let folders = leakcheck::tagged_cgroups(node.roots().tag())?;
    let path = place::cgroup(&steps);
    let within = |folder: &&PathBuf| folder.ends_with(&id) && folder.to_string_lossy().contains(&path);
    assert!(folders.iter().filter(within).count() > 0, "{folders:?}");
    let limit = |folder: &std::path::PathBuf| {
        ["memory.limit_in_bytes", "memory.max"]
            .iter()
            .find_map(|file| std::fs::read_to_string(folder.join(file)).ok())
    };
    let given: Vec<_> = folders.iter().filter(|folder| folder.to_string_lossy().ends_with(&path)).collect();
    assert!(given.iter().all(|folder| limit(folder).is_none_or(|limit| limit.trim() != "67108864")));
    pod.remove()?;
    place::end_named_steps(&steps, &given)?;
    node.assert_clean(&ready.before)
}

#[test]
fn a_pod_cgroup_of_ours_has_the_pods_limits_with_its_overhead() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let mut config = pod::sandbox_config(node, "whole");
    let linux = config.linux.get_or_insert_default();
    linux.resources.get_or_insert_default().memory_limit_in_bytes = 64 << 20;
    linux.overhead.get_or_insert_default().memory_limit_in_bytes = 16 << 20;
    let pod = Pod::run_config(node, config)?;
    let limit = || node.cgroup_value(&pod.id, "memory.limit_in_bytes", "memory.max");
    assert_eq!(limit()?, (80 << 20).to_string());
    let resources = cri::LinuxContainerResources { memory_limit_in_bytes: 96 << 20, ..Default::default() };
    node.cri().update_pod_sandbox_resources(cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        overhead: None,
        resources: Some(resources),
    })?;
    assert_eq!(limit()?, (96 << 20).to_string());
    pod.remove()?;
    node.assert_clean(&ready.before)
}
