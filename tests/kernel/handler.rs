//! Pods of a runtime handler whose containers runc makes: what a container is, and what becomes of it, is as with
//! our own. What config.json says is tested where it is written (shim/src/handler).

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{place, proc, stream_client};

use crate::images::{Ready, facts, ready};

/// Or another program of that kind, for work by hand.
pub(crate) fn runc() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("GANTRY_OCI_RUNTIME") {
        return Ok(path.into());
    }
    let path = place::bin_dir()?.join("runc");
    ensure!(path.is_file(), "{} is not there: cargo xtask test --tier kernel builds it", path.display());
    Ok(path)
}

/// A node with a handler `runc`, and one whose program is missing.
fn with_runc() -> Result<Ready> {
    let mut ready = ready()?;
    let flags = [
        format!("--handlers=runc:type=oci,path={}", runc()?.display()),
        "--handlers=gone:type=oci,path=/nonexistent/crun".to_owned(),
        "--handlers=strict:type=gantry,unset_seccomp_profile=runtime/default".to_owned(),
    ];
    ready.node.restart_with(&flags)?;
    // With the folder that runc's state goes to.
    ready.before = ready.node.snapshot()?;
    Ok(ready)
}

pub(crate) fn pod<'a>(ready: &'a Ready, name: &str) -> Result<Pod<'a>> {
    Pod::run_handler(&ready.node, pod::sandbox_config(&ready.node, name), "runc")
}

pub(crate) fn exec(
    ready: &Ready,
    id: &str,
    cmd: &[&str],
    timeout: i64,
) -> Result<cri::ExecSyncResponse, tonic::Status> {
    let cmd = cmd.iter().map(|&word| word.to_owned()).collect();
    ready.node.cri().exec_sync(cri::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout })
}

/// Waits until a container has said `ready`, and nothing else.
fn ready_in_log(pod: &Pod<'_>, container: &str) -> Result<()> {
    poll("the container to be ready", Duration::from_secs(20), || match pod.log(container) {
        Ok(log) if log == "ready\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn pid_of(ready: &Ready, id: &str) -> Result<i32> {
    let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let info = ready.node.cri().container_status(request)?.info;
    let info: serde_json::Value = serde_json::from_str(info.get("info").context("no info")?)?;
    let pid = info.get("pid").and_then(serde_json::Value::as_i64).context("no pid")?;
    Ok(i32::try_from(pid)?)
}

#[test]
fn a_container_of_runc_is_what_the_request_says() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "runc")?;
    assert_eq!(pod.status()?.runtime_handler, "runc");
    let volume = ready.node.roots().path("volume");
    std::fs::create_dir_all(&volume)?;
    std::fs::write(volume.join("text"), "of the node\n")?;
    let script = "/workload id; cat /data/text; touch /data/x 2>/dev/null || echo refused; echo $OWN; hostname; \
        cat /etc/hostname; touch /x 2>/dev/null || echo sealed; ls /proc/acpi /proc/keys | wc -l; \
        df -k /dev/shm | tail -1 | awk '{print $2}'; echo err >&2; exit 3";
    let mut config = pod::container_config("main", &ready.image, &["/bin/sh", "-c", script]);
    config.envs = vec![cri::KeyValue { key: "OWN".into(), value: b"yes".to_vec() }];
    config.mounts.push(cri::Mount {
        container_path: "/data".into(),
        host_path: volume.to_string_lossy().into_owned(),
        readonly: true,
        ..Default::default()
    });
    pod::with_security(&mut config, |security| {
        security.run_as_user = Some(cri::Int64Value { value: 1234 });
        security.supplemental_groups = vec![55];
        security.no_new_privs = true;
        security.readonly_rootfs = true;
    });
    let id = pod.start(&config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = pod.log("main")?;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"), "{log}");
    let inside = facts(&log);
    assert_eq!(inside["Uid"], "1234 1234 1234 1234", "{log}");
    assert_eq!(inside["NoNewPrivs"], "1");
    assert_eq!(inside["Groups"], "0 55");
    assert_eq!(inside["Umask"], "0022");
    assert_eq!(inside["CapEff"], "0000000000000000");
    assert_eq!(inside["cwd"], "/srv");
    assert_eq!(inside["oom_score_adj"], "1000");
    assert_eq!(inside["fds"], "0 1 2", "no descriptor of the monitor's");
    assert!(log.contains("limit Max open files 1024 "), "{log}");
    assert!(log.contains("of the node\nrefused\nyes\nrunc\nrunc\nsealed\n"), "{log}");
    assert!(log.contains("\n65536\n"), "the pod's shared memory: {log}");
    assert!(pod::parse_log(&std::fs::read_to_string(pod.log_path("main"))?)?.contains("err\n"));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_7_what_runc_leaves_is_the_monitors_own_child_and_runs_on_without_the_runtime() -> Result<()> {
    let mut ready = with_runc()?;
    let pod = pod(&ready, "own")?;
    let mut config = pod::container_config("main", &ready.image, &["/bin/sh"]);
    config.stdin = true;
    let id = pod.start(&config)?;
    let first = pid_of(&ready, &id)?;
    let parent = proc::one(first).context("it is gone")?.parent;
    assert_eq!(proc::one(parent).context("its parent is gone")?.name, "gantry-monitor");
    let (pod_id, log) = (pod.id.clone(), pod.log_path("main"));
    drop(pod);
    // Another configuration, even: what makes the containers of this pod stays what it was.
    ready.node.restart_with(&[])?;
    assert_eq!(pid_of(&ready, &id)?, first);
    let answer = exec(&ready, &id, &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], 10)?;
    assert_eq!(
        (answer.exit_code, text(&answer.stdout), text(&answer.stderr)),
        (7, "out\n".into(), "err\n".into())
    );
    let request =
        cri::AttachRequest { container_id: id.clone(), stdin: true, stdout: true, ..Default::default() };
    let url = ready.node.cri().attach(request)?.url;
    let flags = ["command", "-transport", "ws", "-stdin", &url];
    let output = stream_client::run(&flags, b"echo typed; exit 5\n")?;
    assert_eq!(text(&output.stdout), "typed\n", "{output:?}");
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!(status.exit_code, 5);
    assert_eq!(pod::parse_log(&std::fs::read_to_string(log)?)?, "typed\n");
    let cri = ready.node.cri();
    cri.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod_id.clone() })?;
    cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: pod_id })?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn an_exec_by_runc_is_a_process_of_its_container() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "exec")?;
    let mut config = pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]);
    pod::with_security(&mut config, |security| {
        security.run_as_user = Some(cri::Int64Value { value: 1234 });
        security.no_new_privs = true;
    });
    let id = pod.start(&config)?;
    let answer = exec(&ready, &id, &["/workload", "id"], 10)?;
    let inside = facts(&text(&answer.stdout));
    assert_eq!(
        (answer.exit_code, inside["Uid"].as_str()),
        (0, "1234 1234 1234 1234"),
        "{}",
        text(&answer.stderr)
    );
    assert_eq!((inside["NoNewPrivs"].as_str(), inside["fds"].as_str()), ("1", "0 1 2"));
    // So short that it may have ended before anybody was told who it is.
    for code in 0..30 {
        assert_eq!(exec(&ready, &id, &["/workload", "exit", &code.to_string()], 30)?.exit_code, code);
    }
    let late = exec(&ready, &id, &["/bin/sh", "-c", "sleep 600"], 1).unwrap_err();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded, "{late:?}");
    let absent = exec(&ready, &id, &["/no/such"], 10).unwrap_err();
    assert!(absent.message().contains("/no/such") && absent.message().contains("no such file"), "{absent:?}");
    poll("the late exec to be gone", Duration::from_secs(20), || {
        let left = exec(&ready, &id, &["/workload", "ls-proc"], 10).map_err(|error| error.to_string())?;
        let left = text(&left.stdout);
        if left.contains("sleep") || left.contains(" sh\n") { Err(left) } else { Ok(()) }
    })?;
    // A terminal, by kubectl's own library.
    let request = cri::ExecRequest {
        container_id: id.clone(),
        cmd: vec!["sh".into(), "-c".into(), "read line; echo got $line $TERM; stty size; exit 4".into()],
        tty: true,
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let url = ready.node.cri().exec(request)?.url;
    let flags = ["command", "-transport", "ws", "-tty", "-stdin", "-size", "100x40", &url];
    let output = stream_client::run(&flags, b"word\n")?;
    assert!(text(&output.stdout).contains("got word xterm"), "{output:?}");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_container_of_runc_with_a_terminal_is_attached_to() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "tty")?;
    let mut config = pod::container_config("main", &ready.image, &["sh"]);
    (config.stdin, config.tty) = (true, true);
    let id = pod.start(&config)?;
    let request = cri::AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        tty: true,
        ..Default::default()
    };
    let url = ready.node.cri().attach(request)?.url;
    let flags = ["command", "-transport", "spdy", "-tty", "-stdin", "-size", "100x40", &url];
    let script = b"until [ \"$(stty size)\" = '40 100' ]; do sleep 0.02; done; echo sized; exit 3\n";
    let output = stream_client::run(&flags, script)?;
    assert!(text(&output.stdout).contains("\nsized"), "{output:?}");
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 3);
    assert!(pod.log("main")?.contains("sized"));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_container_of_runc_ends_by_its_signal_or_its_memory() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "ends")?;
    let script = "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let id = pod.start(&pod::container_config("asked", &ready.image, &["/bin/sh", "-c", script]))?;
    ready_in_log(&pod, "asked")?;
    ready.node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 60 })?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 9);
    assert_eq!(pod.log("asked")?, "ready\nasked\n");
    let deaf = pod.start(&pod::container_config(
        "deaf",
        &ready.image,
        &["/bin/sh", "-c", "trap '' TERM; echo ready; sleep 600"],
    ))?;
    // Until its program runs, SIGTERM meets runc's init, a Go program: as pid 1 that ends with code 2.
    ready_in_log(&pod, "deaf")?;
    ready.node.cri().stop_container(cri::StopContainerRequest { container_id: deaf.clone(), timeout: 1 })?;
    assert_eq!(pod::await_exit(&ready.node, &deaf)?.exit_code, 137);
    let mut config = pod::container_config("oom", &ready.image, &["/workload", "alloc", "200"]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().memory_limit_in_bytes = 32 << 20;
    let id = pod.start(&config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"), "{status:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_start_that_runc_refuses_says_why_and_leaves_nothing() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "refused")?;
    let id = pod.create(&pod::container_config("main", &ready.image, &["/no/such/program"]))?;
    let request = cri::StartContainerRequest { container_id: id.clone() };
    let error = ready.node.cri().start_container(request).unwrap_err();
    assert!(error.message().contains("runc") && error.message().contains("/no/such/program"), "{error:?}");
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{status:?}");
    let known = ready.node.roots().path("state").join("handlers/runc");
    assert_eq!(std::fs::read_dir(&known)?.count(), 0, "runc knows a container that never was");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_profile_of_system_calls_is_compiled_by_runc() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "seccomp")?;
    let mut config = pod::container_config("main", &ready.image, &["/workload", "try-mount"]);
    let profile = cri::security_profile::ProfileType::RuntimeDefault.into();
    pod::with_security(&mut config, |security| {
        security.seccomp = Some(cri::SecurityProfile { profile_type: profile, ..Default::default() });
    });
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    assert!(pod.log("main")?.contains("refused"));
    let script = "grep -E '^Seccomp:' /proc/self/status";
    let mut config = pod::container_config("mode", &ready.image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| {
        security.seccomp = Some(cri::SecurityProfile { profile_type: profile, ..Default::default() });
    });
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    assert_eq!(pod.log("mode")?, "Seccomp:\t2\n");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_mount_into_a_container_of_runc_reaches_the_host_where_that_is_asked_for() -> Result<()> {
    let ready = with_runc()?;
    let pod = pod(&ready, "shared")?;
    let shared = ready.node.roots().path("shared");
    std::fs::create_dir_all(&shared)?;
    rustix::mount::mount("none", &shared, "tmpfs", rustix::mount::MountFlags::empty(), None)?;
    rustix::mount::mount_change(&shared, rustix::mount::MountPropagationFlags::SHARED)?;
    let script =
        "mkdir /shared/in && mount -t tmpfs none /shared/in && touch /shared/in/there && echo mounted";
    let mut config = pod::container_config("main", &ready.image, &["/bin/sh", "-c", script]);
    config.mounts.push(cri::Mount {
        container_path: "/shared".into(),
        host_path: shared.to_string_lossy().into_owned(),
        propagation: cri::MountPropagation::PropagationBidirectional.into(),
        ..Default::default()
    });
    pod::with_security(&mut config, |security| {
        security.capabilities =
            Some(cri::Capability { add_capabilities: vec!["SYS_ADMIN".into()], ..Default::default() });
    });
    let id = pod.start(&config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    let (log, there) = (pod.log("main")?, shared.join("in/there").exists());
    rustix::mount::unmount(&shared, rustix::mount::UnmountFlags::DETACH)?;
    assert_eq!((status.exit_code, there), (0, true), "{log}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn handlers_are_told_with_what_they_can_and_others_are_refused() -> Result<()> {
    let ready = with_runc()?;
    let told = ready.node.cri().status(cri::StatusRequest { verbose: false })?.runtime_handlers;
    let names: Vec<&str> = told.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "gone", "runc", "strict"]);
    let of =
        |name: &str| told.iter().find(|handler| handler.name == name).and_then(|handler| handler.features);
    assert!(of("runc").context("no features")?.recursive_read_only_mounts);
    assert_eq!(of("strict"), of(""));
    let run = |name: &str, handler: &str| {
        let config = Some(pod::sandbox_config(&ready.node, name));
        let request = cri::RunPodSandboxRequest { config, runtime_handler: handler.to_owned() };
        ready.node.cri().run_pod_sandbox(request)
    };
    let gone = run("gone", "gone").unwrap_err();
    assert!(gone.message().contains("\"gone\"") && gone.message().contains("/nonexistent/crun"), "{gone:?}");
    let unknown = run("unknown", "kata").unwrap_err();
    assert!(unknown.message().contains("runtime_handler: \"kata\""), "{unknown:?}");
    // Ours, with another default.
    let mut config = pod::sandbox_config(&ready.node, "strict");
    config.linux.get_or_insert_default().security_context.get_or_insert_default().seccomp = None;
    let pod = Pod::run_handler(&ready.node, config, "strict")?;
    let script = "grep -E '^Seccomp:' /proc/self/status";
    let mut config = pod::container_config("mode", &ready.image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| security.seccomp = None);
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    assert_eq!(pod.log("mode")?, "Seccomp:\t2\n");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
