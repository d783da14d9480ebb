//! The monitor's traps (runtime-traps §2) as far as no other file has them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{NamespaceMode, PodSandboxState};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::{bound, poll};
use gantry_tests::proc::{self, Process};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::images::ready;

fn monitor() -> Result<Process> {
    let all = proc::all()?.into_iter();
    let mut monitors: Vec<Process> =
        all.filter(|process| process.name.starts_with("gantry-monitor")).collect();
    anyhow::ensure!(monitors.len() == 1, "not one monitor: {monitors:?}");
    monitors.pop().context("no monitor")
}

#[test]
fn rt_2_2_monitor_and_pause_run_from_sealed_memory_never_from_the_installed_files() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "sealed")?;
    let id = pod.start(&pod::container_config("sealed", &ready.image, &["/workload", "sleep", "60"]))?;
    let monitor = monitor()?;
    let mut sealed = vec![monitor.pid];
    let mut containers = 0;
    for child in proc::children(monitor.pid)? {
        let exe = std::fs::read_link(proc::folder(child.pid).join("exe"))?;
        if exe.ends_with("workload") {
            containers += 1;
        } else {
            sealed.push(child.pid);
        }
    }
    assert_eq!((containers, sealed.len()), (1, 2));
    for pid in sealed {
        let exe = proc::folder(pid).join("exe");
        let name = std::fs::read_link(&exe)?;
        assert!(name.to_string_lossy().starts_with("/memfd:gantry-"), "{}", name.display());
        let error = std::fs::OpenOptions::new().write(true).open(&exe).expect_err("opened for writing");
        let errno = Errno::from_io_error(&error);
        assert!(matches!(errno, Some(Errno::TXTBSY | Errno::PERM)), "{error}");
    }
    assert!(!id.is_empty());
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_5_a_monitor_that_hangs_holds_up_no_stop() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "hangs")?;
    pod.start(&pod::container_config("hangs", &ready.image, &["/workload", "sleep", "600"]))?;
    // As good as one in D state on a dead disk, as far as anybody waits for it.
    let pid = Pid::from_raw(monitor()?.pid).context("pid 0")?;
    rustix::process::kill_process(pid, Signal::STOP)?;
    let begun = Instant::now();
    let request = cri::StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
    node.cri().stop_pod_sandbox(request)?;
    // Every wait of a stop that goes by the monitor is bounded: 3 s for each process and 2 s for itself.
    assert!(begun.elapsed() < bound(Duration::from_secs(60)), "{:?}", begun.elapsed());
    assert_eq!(pod.status()?.state(), PodSandboxState::SandboxNotready);
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn rt_2_6_the_monitor_is_in_a_leaf_of_its_own_outside_the_pods_cgroup() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "leaf")?;
    let monitor = monitor()?;
    let text = std::fs::read_to_string(proc::folder(monitor.pid).join("cgroup"))?;
    let own = format!("/{}-monitors/{}", ready.node.roots().tag(), pod.id);
    let with_pods = text.lines().filter(|line| line.contains(ready.node.roots().tag()));
    for line in with_pods.clone() {
        assert!(line.ends_with(&own), "{line}");
    }
    assert!(with_pods.count() > 0, "{text}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_7_a_container_in_the_nodes_pid_namespace_ends_as_a_whole() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let mut config = pod::sandbox_config(node, "strays");
    let host_pid = |options: &mut Option<cri::NamespaceOption>| {
        options.get_or_insert_default().set_pid(NamespaceMode::Node);
    };
    let linux = config.linux.get_or_insert_default();
    host_pid(&mut linux.security_context.get_or_insert_default().namespace_options);
    let pod = Pod::run_config(node, config)?;
    // The stray holds the output open, too.
    let script = "/workload sleep 600 & exit 7";
    let mut config = pod::container_config("strays", &ready.image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| host_pid(&mut security.namespace_options));
    let id = pod.start(&config)?;
    assert_eq!(pod::await_exit(node, &id)?.exit_code, 7);
    poll("the stray to be gone", Duration::from_secs(20), || {
        let all = proc::all().map_err(|error| format!("{error:#}"))?;
        let left: Vec<_> = all.into_iter().filter(|process| process.name == "workload").collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn rt_2_14_a_state_folder_with_a_long_name_is_fine() -> Result<()> {
    let mut ready = ready()?;
    let long = ready.node.roots().path("state").join("x".repeat(120));
    ready.node.set_flags(&[format!("--state={}", long.display())]);
    ready.node.restart()?;
    // Not on disk yet, so known in the old state folder only.
    ready.node.pull(&ready.image)?;
    let before = ready.node.snapshot()?;
    let pod = Pod::run(&ready.node, "long")?;
    let id = pod.start(&pod::container_config("long", &ready.image, &["/workload", "sleep", "600"]))?;
    drop(pod);
    // And found again by it.
    ready.node.restart()?;
    let status = pod::container_status(&ready.node, &id)?;
    assert_eq!(status.state(), cri::ContainerState::ContainerRunning);
    let listed = ready.node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
    let [sandbox] = &listed[..] else { anyhow::bail!("{listed:?}") };
    let pod_sandbox_id = sandbox.id.clone();
    ready.node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id })?;
    ready.node.assert_clean(&before)
}
