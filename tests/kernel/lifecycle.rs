//! A pod's life through CRI: pull, run, reach, read, stop, remove, and every status on the way.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{http, proc};

use crate::images::{PAGE, ready};

#[test]
fn a_pod_runs_serves_stops_and_is_gone() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "web")?;
    let status = pod.status()?;
    assert_eq!(status.state, i32::from(PodSandboxState::SandboxReady));
    assert_eq!(status.metadata.as_ref().map(|meta| meta.uid.as_str()), Some("uid-web"));
    assert_eq!(status.labels.get("app").map(String::as_str), Some("web"));
    assert_eq!(status.annotations.get("note").map(String::as_str), Some("kept as given"));
    assert!(status.created_at > 1_600_000_000_000_000_000, "{}", status.created_at);

    // Entrypoint, arguments, working folder and environment are the image's.
    let id = pod.start(&pod::container_config("web", &ready.image, &[]))?;
    let addr = pod.addr(8080)?;
    let page = poll("the page", Duration::from_secs(20), || {
        http::get(addr, "/hello").map_err(|error| format!("{error:#}"))
    })?;
    assert_eq!((page.status, page.text().as_str()), (200, PAGE));
    let running = pod::container_status(node, &id)?;
    assert_eq!(running.state, i32::from(ContainerState::ContainerRunning));
    assert!(running.started_at >= running.created_at && running.finished_at == 0, "{running:?}");
    assert_eq!(running.labels.get("container").map(String::as_str), Some("web"));
    assert!(running.image_ref.contains("sha256:"), "{}", running.image_ref);
    assert_eq!(running.log_path, pod.log_path("web").to_string_lossy());
    // The pod's status brings those of its containers along, and says from when they are.
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
    let whole = node.cri().pod_sandbox_status(request)?;
    assert_eq!(whole.containers_statuses, [running]);
    assert!(whole.timestamp > status.created_at, "{}", whole.timestamp);
    poll("the request in the log", Duration::from_secs(5), || {
        let log = pod.log("web").map_err(|error| format!("{error:#}"))?;
        if log.contains("GET /hello HTTP/1.1") { Ok(()) } else { Err(log) }
    })?;

    let stop = cri::StopContainerRequest { container_id: id.clone(), timeout: 10 };
    node.cri().stop_container(stop.clone())?;
    let ended = pod::container_status(node, &id)?;
    assert_eq!(ended.state, i32::from(ContainerState::ContainerExited));
    assert_eq!((ended.exit_code, ended.reason.as_str()), (0, "Completed"), "{ended:?}");
    assert!(ended.finished_at >= ended.started_at);
    assert!(pod.log("web")?.ends_with("asked to end\n"));

    // Every step again is no error.
    node.cri().stop_container(stop)?;
    pod.remove()?;
    pod.remove()?;
    let remove = cri::RemoveContainerRequest { container_id: id };
    node.cri().remove_container(remove)?;
    let left = node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?;
    assert!(left.items.is_empty(), "{left:?}");
    node.assert_clean(&ready.before)
}

#[test]
fn exit_codes_are_the_programs_own() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "codes")?;
    for (name, command, code, reason) in [
        ("seven", &["/workload", "exit", "7"][..], 7, "Error"),
        ("zero", &["/workload", "exit", "0"], 0, "Completed"),
        ("killed", &["/bin/sh", "-c", "sh -c 'kill -9 $$'; exit $?"], 137, "Error"),
    ] {
        let id = pod.start(&pod::container_config(name, &ready.image, command))?;
        let status = pod::await_exit(&ready.node, &id)?;
        assert_eq!((status.exit_code, status.reason.as_str()), (code, reason), "{name}: {status:?}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_container_that_ignores_sigterm_is_killed_after_its_grace() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "stubborn")?;
    // As pid 1, sh has no handler for SIGTERM: the signal does nothing.
    let config = pod::container_config("stubborn", &ready.image, &["/bin/sh", "-c", "sleep 1000; true"]);
    let id = pod.start(&config)?;
    let stop = cri::StopContainerRequest { container_id: id.clone(), timeout: 1 };
    ready.node.cri().stop_container(stop)?;
    let status = pod::container_status(&ready.node, &id)?;
    assert_eq!((status.state, status.exit_code), (i32::from(ContainerState::ContainerExited), 137));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn stdout_and_stderr_are_told_apart_and_whole() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "logs")?;
    let script = "/workload print 5000; /workload print 3 stderr; printf 'no newline'";
    let id = pod.start(&pod::container_config("logs", &ready.image, &["/bin/sh", "-c", script]))?;
    pod::await_exit(&ready.node, &id)?;
    let raw = poll("the log's last line", Duration::from_secs(10), || {
        let raw = std::fs::read_to_string(pod.log_path("logs")).map_err(|error| error.to_string())?;
        if raw.contains("no newline") { Ok(raw) } else { Err(format!("{} bytes", raw.len())) }
    })?;
    let out: Vec<&str> = raw.lines().filter(|line| line.contains(" stdout F line ")).collect();
    assert_eq!(out.len(), 5000);
    for (index, line) in out.iter().enumerate() {
        assert!(line.ends_with(&format!(" line {}", index + 1)), "line {index}: {line}");
    }
    assert_eq!(raw.lines().filter(|line| line.contains(" stderr F line ")).count(), 3);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_entrypoint_that_is_missing_is_a_start_error() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let pod = Pod::run(node, "missing")?;
    let id = pod.create(&pod::container_config("missing", &ready.image, &["/no/such/program"]))?;
    let start = cri::StartContainerRequest { container_id: id.clone() };
    let error = node.cri().start_container(start).expect_err("started a program that is not there");
    assert!(error.message().contains("/no/such/program"), "{error:?}");
    let status = pod::container_status(node, &id)?;
    assert_eq!(status.state, i32::from(ContainerState::ContainerExited), "{status:?}");
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    assert!(status.message.contains("/no/such/program"), "{}", status.message);
    pod.remove()?;
    node.assert_clean(&ready.before)
}

#[test]
fn arguments_environment_and_working_folder_override_the_images() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "env")?;
    let mut config = pod::container_config("env", &ready.image, &[]);
    // Arguments alone keep the image's entrypoint.
    config.args = vec!["env".into()];
    config.working_dir = "/tmp".into();
    config.envs = vec![cri::KeyValue { key: "OWN".into(), value: b"a b=c".to_vec() }];
    let id = pod.start(&config)?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    let log = pod.log("env")?;
    for line in ["FROM_IMAGE=yes", "OWN=a b=c", "PATH=/bin"] {
        assert!(log.lines().any(|found| found == line), "{line} is not in:\n{log}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn listings_follow_their_filters() -> Result<()> {
    let ready = ready()?;
    let cri = ready.node.cri();
    let (first, second) = (Pod::run(&ready.node, "first")?, Pod::run(&ready.node, "second")?);
    let id = first.start(&pod::container_config("one", &ready.image, &["/workload", "sleep", "60"]))?;
    second.start(&pod::container_config("two", &ready.image, &["/workload", "sleep", "60"]))?;
    let filter = cri::PodSandboxFilter {
        label_selector: [("app".to_owned(), "first".to_owned())].into(),
        ..Default::default()
    };
    let pods = cri.list_pod_sandbox(cri::ListPodSandboxRequest { filter: Some(filter) })?.items;
    assert_eq!(pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>(), [first.id.as_str()]);
    let filter = cri::ContainerFilter { pod_sandbox_id: first.id.clone(), ..Default::default() };
    let containers = cri.list_containers(cri::ListContainersRequest { filter: Some(filter) })?.containers;
    assert_eq!(containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
    let images = cri.list_images(cri::ListImagesRequest::default())?.images;
    assert!(images.iter().any(|image| image.repo_tags.contains(&ready.image)), "{images:?}");
    first.remove()?;
    second.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_1_the_monitor_is_one_small_process_for_each_pod() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "small")?;
    for name in ["one", "two"] {
        pod.start(&pod::container_config(name, &ready.image, &["/workload", "sleep", "60"]))?;
    }
    let monitors: Vec<_> =
        proc::all()?.into_iter().filter(|process| process.name.starts_with("gantry-monitor")).collect();
    let [monitor] = &monitors[..] else { anyhow::bail!("not one monitor: {monitors:?}") };
    let children = proc::children(monitor.pid)?;
    assert_eq!(children.len(), 3, "pause and two containers: {children:?}");
    let threads =
        std::fs::read_dir(proc::folder(monitor.pid).join("task")).context("the monitor's threads")?;
    assert_eq!(threads.count(), 1);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
