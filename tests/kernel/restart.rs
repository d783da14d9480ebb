//! Anything may be killed at any instant: the runtime, and the monitor.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::leakcheck;
use gantry_tests::node::{Node, Programs, Roots};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;
use rustix::process::{Pid, Signal};

use crate::images::{Ready, ready};

/// Waits until the log has counted at least so far.
fn await_count(pod: &Pod, name: &str, at_least: usize) -> Result<()> {
    poll("the count to go on", Duration::from_secs(20), || {
        let log = pod.log(name).map_err(|error| format!("{error:#}"))?;
        let count = log.lines().filter(|line| line.starts_with("count ")).count();
        if count >= at_least { Ok(()) } else { Err(format!("{count} of {at_least}")) }
    })
}

/// Every number once and in order.
fn assert_no_gap(log: &str) {
    let numbers: Vec<u64> = log
        .lines()
        .filter_map(|line| line.strip_prefix("count "))
        .filter_map(|text| text.parse().ok())
        .collect();
    for (index, number) in numbers.iter().enumerate() {
        assert_eq!(usize::try_from(*number).unwrap_or(0), index + 1, "a gap in the log:\n{log}");
    }
}

fn containers(node: &Node) -> Result<Vec<cri::Container>> {
    Ok(node
        .cri()
        .list_containers(cri::ListContainersRequest::default())
        .context("ListContainers")?
        .containers)
}

#[test]
fn systemd_hears_that_the_runtime_is_ready_when_its_socket_answers() -> Result<()> {
    let roots = Roots::new()?;
    let (notify, socket) = (roots.path("notify.sock"), roots.path("cri.sock"));
    let listener = UnixDatagram::bind(&notify)?;
    listener.set_read_timeout(Some(Duration::from_secs(60)))?;
    let heard = std::thread::spawn(move || -> Result<String> {
        let mut message = [0; 64];
        let size = listener.recv(&mut message).context("hear of the runtime")?;
        UnixStream::connect(&socket).context("connect as soon as it is ready")?;
        Ok(String::from_utf8_lossy(&message[..size]).into_owned())
    });
    let variables = vec![("NOTIFY_SOCKET".to_owned(), notify)];
    let node = Node::start_with(roots, Programs { variables, ..Programs::built()? })?;
    let heard = heard.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
    assert_eq!(heard, "READY=1");
    drop(node);
    Ok(())
}

#[test]
fn a_pod_outlives_the_runtime_that_started_it() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "counts")?;
    let id = pod.start(&pod::container_config("count", &image, &["/workload", "count", "42"]))?;
    await_count(&pod, "count", 3)?;
    let (sandbox, ip, log_path) = (pod.id.clone(), pod.ip()?, pod.log_path("count"));
    drop(pod);

    node.kill()?;
    let counted = || -> Result<usize, String> {
        let raw = std::fs::read_to_string(&log_path).map_err(|error| error.to_string())?;
        Ok(raw.lines().count())
    };
    let at_death = counted().map_err(anyhow::Error::msg)?;
    poll("the log to go on without a runtime", Duration::from_secs(20), || {
        let now = counted()?;
        if now >= at_death + 3 { Ok(()) } else { Err(format!("{now} lines, {at_death} before")) }
    })?;
    node.restart()?;

    let status = pod::container_status(&node, &id)?;
    assert_eq!(status.state, i32::from(ContainerState::ContainerRunning), "{status:?}");
    assert_eq!(containers(&node)?.len(), 1);
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let answer = node.cri().pod_sandbox_status(request)?.status.context("no status")?;
    assert_eq!(answer.state, i32::from(PodSandboxState::SandboxReady));
    assert_eq!(answer.network.map(|network| network.ip), Some(ip.to_string()));

    node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 10 })?;
    let status = pod::container_status(&node, &id)?;
    assert_eq!(
        (status.state, status.exit_code),
        (i32::from(ContainerState::ContainerExited), 42),
        "{status:?}"
    );
    let log = pod::parse_log(&std::fs::read_to_string(&log_path)?)?;
    assert_no_gap(&log);
    assert!(log.ends_with("count ends\n"), "{log}");
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

#[test]
fn rt_2_4_an_exit_while_the_runtime_was_down_is_not_lost() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "ends")?;
    let id = pod.start(&pod::container_config("ends", &image, &["/workload", "count", "23", "8"]))?;
    await_count(&pod, "ends", 2)?;
    let (sandbox, log_path) = (pod.id.clone(), pod.log_path("ends"));
    drop(pod);
    node.kill()?;
    poll("the container to end by itself", Duration::from_secs(20), || {
        let left: Vec<_> = proc::all()
            .map_err(|error| format!("{error:#}"))?
            .into_iter()
            .filter(|process| process.name == "workload")
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    node.restart()?;
    let status = pod::await_exit(&node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (23, "Error"), "{status:?}");
    assert!(status.finished_at > status.started_at, "{status:?}");
    let log = pod::parse_log(&std::fs::read_to_string(&log_path)?)?;
    assert_eq!(log.lines().count(), 8, "{log}");
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

/// A process of the container that has left its cgroup holds its output, and with it the monitor, for two
/// seconds. Before, such a container had ended unseen, with 255.
#[test]
fn rt_2_4_an_exit_whose_output_is_being_drained_when_a_runtime_starts_keeps_its_code() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let mut config = pod::sandbox_config(&node, "drained");
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.namespace_options.get_or_insert_default().pid = cri::NamespaceMode::Pod.into();
    let pod = Pod::run_config(&node, config)?;
    let script = "/workload sleep 600 & exec /workload count 7";
    let mut config = pod::container_config("drained", &image, &["/bin/sh", "-c", script]);
    // The first process of a pid namespace would take the other along.
    pod::with_security(&mut config, |security| {
        security.namespace_options.get_or_insert_default().pid = cri::NamespaceMode::Pod.into();
    });
    let id = pod.start(&config)?;
    await_count(&pod, "drained", 2)?;
    let sandbox = pod.id.clone();
    drop(pod);
    let process = |words: &str| -> Result<i32> {
        let all = proc::all()?.into_iter().map(|process| process.pid);
        all.into_iter().find(|pid| proc::command_line(*pid).contains(words)).context(words.to_owned())
    };
    let (first, holder) = (process("workload count 7")?, process("workload sleep 600")?);
    for mount in leakcheck::mounts()?.iter().filter(|mount| mount.kind.starts_with("cgroup")) {
        std::fs::write(mount.point.join("cgroup.procs"), holder.to_string())?;
    }
    node.kill()?;
    rustix::process::kill_process(Pid::from_raw(first).context("pid 0")?, Signal::TERM)?;
    poll("the first process to be reaped", Duration::from_secs(20), || match proc::one(first) {
        None => Ok(()),
        Some(process) => Err(format!("{process:?}")),
    })?;
    node.restart()?;
    let status = pod::await_exit(&node, &id)?;
    proc::kill(holder)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"), "{status:?}");
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

/// It held nothing that anybody listened to: the next attempt found its port taken, for as long as the pod lived.
#[test]
fn what_a_container_leaves_running_ends_with_it_also_while_the_runtime_is_away() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let mut config = pod::sandbox_config(&node, "leaves");
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.namespace_options.get_or_insert_default().pid = cri::NamespaceMode::Pod.into();
    let pod = Pod::run_config(&node, config)?;
    let script = "/workload sleep 601 </dev/null >/dev/null 2>&1 & exec /workload count 7";
    let mut config = pod::container_config("leaves", &image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| {
        security.namespace_options.get_or_insert_default().pid = cri::NamespaceMode::Pod.into();
    });
    let id = pod.start(&config)?;
    await_count(&pod, "leaves", 2)?;
    let sandbox = pod.id.clone();
    drop(pod);
    let running = |words: &str| -> Result<Option<i32>> {
        let all = proc::all()?.into_iter().map(|process| process.pid);
        Ok(all.into_iter().find(|pid| proc::command_line(*pid).contains(words)))
    };
    let first = running("workload count 7")?.context("the first process")?;
    assert!(running("workload sleep 601")?.is_some(), "the second one");
    node.kill()?;
    rustix::process::kill_process(Pid::from_raw(first).context("pid 0")?, Signal::TERM)?;
    poll("its monitor to end both", Duration::from_secs(20), || match running("workload sleep 601") {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    node.restart()?;
    assert_eq!(pod::await_exit(&node, &id)?.exit_code, 7);
    poll("its cgroup to go", Duration::from_secs(20), || {
        let left = node.cgroup_value(&id, "cgroup.procs", "cgroup.procs");
        if left.is_err() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

/// Found with fifty pods: such a container was killed by its monitor, and run once more.
#[test]
fn a_container_whose_start_was_under_way_when_the_runtime_died_runs_on_as_it_is() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "late")?;
    let id = pod.create(&pod::container_config("late", &image, &["/workload", "count", "42"]))?;
    let (sandbox, log_path) = (pod.id.clone(), pod.log_path("late"));
    drop(pod);
    let monitor = proc::all()?.into_iter().find(|process| process.name.starts_with("gantry-monitor"));
    let monitor = Pid::from_raw(monitor.context("no monitor")?.pid).context("pid 0")?;
    rustix::process::kill_process(monitor, Signal::STOP)?;
    let asked = std::thread::scope(|scope| {
        let request = cri::StartContainerRequest { container_id: id.clone() };
        let asks = scope.spawn(|| node.cri().start_container(request));
        // The request goes right after the cgroup is made; nobody can see it on its way.
        let cgroup = poll("the start to begin", Duration::from_secs(20), || {
            node.cgroup_value(&id, "memory.limit_in_bytes", "memory.max").map_err(|e| format!("{e:#}"))
        });
        node.cri().version(cri::VersionRequest::default())?;
        rustix::process::kill_process(node.pid()?, Signal::KILL)?;
        asks.join().map_err(|_| anyhow::anyhow!("the call panicked"))?.expect_err("answered");
        cgroup.map(drop)
    });
    rustix::process::kill_process(monitor, Signal::CONT)?;
    asked?;
    node.restart()?;
    let status = pod::container_status(&node, &id)?;
    if status.state() == ContainerState::ContainerCreated {
        // The request was not sent yet, or the monitor reads it just now.
        node.cri().start_container(cri::StartContainerRequest { container_id: id.clone() })?;
    }
    let log = || pod::parse_log(&std::fs::read_to_string(&log_path)?);
    poll("the count to go on", Duration::from_secs(20), || {
        let log = log().map_err(|error| format!("{error:#}"))?;
        if log.lines().count() >= 5 { Ok(()) } else { Err(log) }
    })?;
    assert_eq!(pod::container_status(&node, &id)?.state(), ContainerState::ContainerRunning);
    assert_no_gap(&log()?);
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

#[test]
fn a_new_runtime_can_start_more_in_an_old_pod() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "more")?;
    let sandbox = pod.id.clone();
    drop(pod);
    node.restart()?;
    let config = cri::PodSandboxConfig {
        log_directory: node.logs().join("default_more_uid-more").to_string_lossy().into_owned(),
        ..pod::sandbox_config(&node, "more")
    };
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(pod::container_config("late", &image, &["/workload", "exit", "5"])),
        sandbox_config: Some(config),
    };
    let id = node.cri().create_container(request)?.container_id;
    node.cri().start_container(cri::StartContainerRequest { container_id: id.clone() })?;
    assert_eq!(pod::await_exit(&node, &id)?.exit_code, 5);
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

#[test]
fn rt_2_3_a_killed_monitor_takes_its_containers_with_it() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let there: Vec<i32> = proc::all()?.iter().map(|process| process.pid).collect();
    let pod = Pod::run(node, "orphans")?;
    // A child that has left the container's first process is ended too.
    let script = "/workload sleep 600 & /workload sleep 600";
    let id = pod.start(&pod::container_config("orphans", &ready.image, &["/bin/sh", "-c", script]))?;
    let monitors: Vec<_> =
        proc::all()?.into_iter().filter(|process| process.name.starts_with("gantry-monitor")).collect();
    let [monitor] = &monitors[..] else { anyhow::bail!("not one monitor: {monitors:?}") };
    proc::kill(monitor.pid)?;
    let status = pod::await_exit(node, &id)?;
    assert!(matches!(status.exit_code, 137 | 255), "{status:?}");
    poll("the sandbox to be NotReady", Duration::from_secs(20), || {
        let status = pod.status().map_err(|error| format!("{error:#}"))?;
        if status.state == i32::from(PodSandboxState::SandboxNotready) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })?;
    poll("every process of the pod to be gone", Duration::from_secs(20), || {
        let all = proc::all().map_err(|error| format!("{error:#}"))?;
        let left: Vec<_> =
            all.into_iter().filter(|process| process.state != 'Z' && !there.contains(&process.pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn runtime_and_monitor_killed_together_leave_a_dead_pod_that_can_be_removed() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "both")?;
    let id = pod.start(&pod::container_config("both", &image, &["/workload", "sleep", "600"]))?;
    let sandbox = pod.id.clone();
    drop(pod);
    node.kill()?;
    for process in proc::all()?.iter().filter(|process| process.name.starts_with("gantry-monitor")) {
        proc::kill(process.pid)?;
    }
    node.restart()?;
    let status = pod::await_exit(&node, &id)?;
    assert!(matches!(status.exit_code, 137 | 255), "{status:?}");
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}

fn remove(node: &Node, sandbox: &str) -> Result<()> {
    let id = sandbox.to_owned();
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: id })?;
    Ok(())
}

#[test]
fn a_record_that_a_power_cut_emptied_stops_no_start_after_a_reboot() -> Result<()> {
    let Ready { mut node, registry: _registry, image: _, before } = ready()?;
    let pod = Pod::run(&node, "cut")?;
    let sandbox = pod.id.clone();
    drop(pod);
    let request = cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() };
    node.cri().stop_pod_sandbox(request)?;
    node.kill()?;
    let record = node.root().join("sandboxes").join(&sandbox).join("record.json");
    std::fs::write(&record, "")?;
    // In the same boot it may belong to a pod that runs: nothing is served.
    let error = format!("{:#}", node.restart().expect_err("served without a record"));
    assert!(error.contains("record.json"), "{error}");
    // What a reboot does to the state folder.
    std::fs::remove_file(node.state().join("boot"))?;
    node.restart()?;
    let listed = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?;
    assert!(listed.items.is_empty(), "{listed:?}");
    node.assert_clean(&before)
}

#[test]
fn an_unfinished_sandbox_that_cannot_be_undone_keeps_no_other_pod_from_being_served() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "broken")?;
    let sandbox = pod.id.clone();
    drop(pod);
    let pod = Pod::run(&node, "well")?;
    let (well, runs) =
        (pod.id.clone(), pod.start(&pod::container_config("runs", &image, &["/workload", "sleep", "600"]))?);
    drop(pod);
    node.kill()?;
    let folder = node.root().join("sandboxes").join(&sandbox);
    let (path, busy) = (folder.join("record.json"), folder.join("busy"));
    let whole = std::fs::read_to_string(&path)?;
    // As a crash in RunPodSandbox leaves it, with something that can't be removed.
    std::fs::write(&path, whole.replace("\"complete\": true", "\"complete\": false"))?;
    std::fs::create_dir(&busy)?;
    rustix::mount::mount("none", &busy, "tmpfs", rustix::mount::MountFlags::empty(), None)?;

    node.restart()?;
    assert_eq!(
        pod::container_status(&node, &runs)?.state(),
        ContainerState::ContainerRunning,
        "the other pod"
    );
    let listed = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?;
    let broken = listed.items.iter().find(|item| item.id == sandbox).context("it is not listed")?;
    assert_eq!(broken.state(), PodSandboxState::SandboxNotready);

    node.kill()?;
    rustix::mount::unmount(&busy, rustix::mount::UnmountFlags::empty())?;
    node.restart()?;
    let listed = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?;
    assert!(listed.items.iter().all(|item| item.id == well), "undone once it can be: {listed:?}");
    remove(&node, &well)?;
    node.assert_clean(&before)
}

#[test]
fn rt_2_5_a_monitor_that_sigkill_does_not_end_keeps_no_pod_from_being_stopped_and_removed() -> Result<()> {
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "stuck")?;
    pod.start(&pod::container_config("stuck", &image, &["/workload", "sleep", "600"]))?;
    let sandbox = pod.id.clone();
    drop(pod);
    // As a write to a disk that hangs: on v1 a frozen process does not even die. On v2 it does.
    let above = format!("{}-monitors", node.roots().tag());
    let frozen: Vec<_> = leakcheck::tagged_cgroups(node.roots().tag())?
        .into_iter()
        .filter(|folder| folder.ends_with(&above))
        .flat_map(|folder| [(folder.join("freezer.state"), "FROZEN"), (folder.join("cgroup.freeze"), "1")])
        .filter(|(file, _)| file.exists())
        .collect();
    // A hybrid host has both.
    let of_v1 = frozen.iter().find(|(_, word)| *word == "FROZEN");
    let (freezer, word) = of_v1.or(frozen.first()).context("no freezer")?;
    std::fs::write(freezer, word)?;
    remove(&node, &sandbox)?;
    let listed = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?;
    assert!(listed.items.is_empty(), "{listed:?}");
    if *word == "FROZEN" {
        let stays = leakcheck::tagged_cgroups(node.roots().tag())?;
        assert!(stays.iter().any(|folder| folder.ends_with(format!("{above}/{sandbox}"))), "{stays:?}");
        // The next runtime goes on waiting.
        node.restart()?;
    }
    std::fs::write(freezer, if *word == "FROZEN" { "THAWED" } else { "0" })?;
    node.assert_clean(&before)
}

#[test]
fn rt_2_5_a_monitor_that_does_not_answer_keeps_neither_its_pod_nor_the_node_from_being_served() -> Result<()>
{
    let Ready { mut node, registry: _registry, image, before } = ready()?;
    let pod = Pod::run(&node, "stuck")?;
    let id = pod.start(&pod::container_config("stuck", &image, &["/workload", "sleep", "600"]))?;
    let sandbox = pod.id.clone();
    drop(pod);
    node.kill()?;
    let monitors: Vec<_> =
        proc::all()?.into_iter().filter(|process| process.name.starts_with("gantry-monitor")).collect();
    let [monitor] = &monitors[..] else { anyhow::bail!("not one monitor: {monitors:?}") };
    let pid = rustix::process::Pid::from_raw(monitor.pid).context("no pid")?;
    // As a write to a disk that hangs does.
    rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    node.restart()?;
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let status = node.cri().pod_sandbox_status(request)?.status.context("no status")?;
    assert_eq!(status.state(), PodSandboxState::SandboxReady, "it runs");
    assert_eq!(pod::container_status(&node, &id)?.state(), ContainerState::ContainerRunning);

    rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
    poll("an exec through the monitor", Duration::from_secs(60), || {
        let request = cri::ExecSyncRequest {
            container_id: id.clone(),
            cmd: vec!["/workload".into(), "exit".into(), "7".into()],
            timeout: 10,
        };
        match node.cri().exec_sync(request) {
            Ok(answer) if answer.exit_code == 7 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 0 })?;
    assert_eq!(pod::container_status(&node, &id)?.exit_code, 137);
    remove(&node, &sandbox)?;
    node.assert_clean(&before)
}
