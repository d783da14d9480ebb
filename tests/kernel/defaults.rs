//! What a container has without asking, and limits that only some nodes can hold: they stand where the
//! kernel has a file for them, and are refused by its name where it has none. And two things about streams
//! that only the node's own side shows.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::NamespaceMode;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::stream_client::Forward;
use gantry_tests::websocket::WebSocket;
use gantry_tests::{http, leakcheck, proc};
use rustix::process::Resource;

use crate::images::{PAGE, Ready, ready};

fn resources(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerResources {
    config.linux.get_or_insert_default().resources.get_or_insert_default()
}

#[test]
fn rt_2_8_a_container_has_1024_open_files_and_may_have_524288_whatever_the_runtime_has() -> Result<()> {
    let ready = ready()?;
    // The runtime has raised its own to the hard limit.
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(524_288);
    let pod = Pod::run(&ready.node, "files")?;
    let script = "ulimit -Sn; ulimit -Hn; /workload sleep 600";
    let id = pod.start(&pod::container_config("main", &ready.image, &["/bin/sh", "-c", script]))?;
    let expected = format!("{}\n{hard}\n", hard.min(1024));
    poll("the limits", Duration::from_secs(20), || match pod.log("main") {
        Ok(log) if log == expected => Ok(()),
        other => Err(format!("{other:?} instead of {expected:?}")),
    })?;
    let cmd = ["sh", "-c", "ulimit -Sn; ulimit -Hn"].map(str::to_owned).to_vec();
    let answer = ready.node.cri().exec_sync(cri::ExecSyncRequest { container_id: id, cmd, timeout: 20 })?;
    assert_eq!(String::from_utf8_lossy(&answer.stdout), expected, "an exec");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn memory_nodes_are_those_of_the_request() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "mems")?;
    let command = ["/bin/grep", "Mems_allowed_list", "/proc/self/status"];
    let mut config = pod::container_config("main", &ready.image, &command);
    resources(&mut config).cpuset_mems = "0".into();
    let id = pod.start(&config)?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    assert_eq!(pod.log("main")?, "Mems_allowed_list:\t0\n");
    // More than any machine has: the kernel's word, with file and value.
    config.metadata.get_or_insert_default().attempt = 1;
    resources(&mut config).cpuset_mems = "999".into();
    let error = format!("{:#}", pod.start(&config).expect_err("no such memory node"));
    assert!(error.contains("cpuset.mems") && error.contains("999"), "{error}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// Whether a cgroup of this node has a file of this name.
fn has(ready: &Ready, file: &str) -> Result<bool> {
    let folders = leakcheck::tagged_cgroups(ready.node.roots().tag())?;
    Ok(folders.iter().any(|folder| folder.join(file).exists()))
}

#[test]
fn huge_pages_are_limited_or_refused_by_the_file_that_is_missing() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "huge")?;
    let (v1, v2) = ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max");
    let counted = has(&ready, v1)? || has(&ready, v2)?;
    let mut config = pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]);
    resources(&mut config).hugepage_limits =
        vec![cri::HugepageLimit { page_size: "2MB".into(), limit: 4 << 20 }];
    match pod.start(&config) {
        Ok(id) if counted => assert_eq!(ready.node.cgroup_value(&id, v1, v2)?, (4 << 20).to_string()),
        Err(error) if !counted => {
            let error = format!("{error:#}");
            assert!(error.contains("hugetlb.2MB") && error.contains("4194304"), "{error}");
        }
        other => anyhow::bail!("{other:?} where huge pages are counted: {counted}"),
    }
    // None is what there is where they are not counted.
    config.metadata.get_or_insert_default().attempt = 1;
    resources(&mut config).hugepage_limits = vec![cri::HugepageLimit { page_size: "2MB".into(), limit: 0 }];
    pod.start(&config)?;
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_5_4_a_limit_of_processes_by_its_file_of_cgroup_v2_holds_or_is_refused_by_name() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "pids")?;
    // A shell that can't fork ends: the container must not end with it.
    let script = "(for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do /workload sleep 600 & done); \
                  exec /workload sleep 600";
    let mut config = pod::container_config("main", &ready.image, &["/bin/sh", "-c", script]);
    resources(&mut config).unified.insert("pids.max".into(), "8".into());
    let v2 = leakcheck::mounts()?.iter().all(|mount| mount.kind != "cgroup");
    match pod.start(&config) {
        Ok(id) if v2 => {
            assert_eq!(ready.node.cgroup_value(&id, "pids.max", "pids.max")?, "8");
            poll("the limit to be met", Duration::from_secs(60), || {
                match ready.node.cgroup_value(&id, "pids.events", "pids.events") {
                    Ok(events) if events.lines().any(|line| line.starts_with("max ") && line != "max 0") => {
                        Ok(())
                    }
                    other => Err(format!("{other:?}")),
                }
            })?;
        }
        Err(error) if !v2 => assert!(format!("{error:#}").contains("pids.max needs cgroup v2"), "{error:#}"),
        other => anyhow::bail!("{other:?} with v2 {v2}"),
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_port_of_a_pod_in_the_hosts_network_is_the_hosts() -> Result<()> {
    let ready = ready()?;
    let on_host = |options: &mut Option<cri::NamespaceOption>| {
        options.get_or_insert_default().set_network(NamespaceMode::Node);
    };
    let mut config = pod::sandbox_config(&ready.node, "host");
    let linux = config.linux.get_or_insert_default();
    on_host(&mut linux.security_context.get_or_insert_default().namespace_options);
    let pod = Pod::run_config(&ready.node, config)?;
    let command = ["/workload", "web", "18088", "/srv/index.html"];
    let mut config = pod::container_config("web", &ready.image, &command);
    pod::with_security(&mut config, |security| on_host(&mut security.namespace_options));
    pod.start(&config)?;
    let own = "127.0.0.1:18088".parse()?;
    poll("the page", Duration::from_secs(20), || http::get(own, "/").map_err(|error| format!("{error:#}")))?;
    for transport in ["spdy", "tunnel"] {
        let request = cri::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: Vec::new() };
        let forward = Forward::start(transport, 18088, &ready.node.cri().port_forward(request)?.url)?;
        assert_eq!(http::get(forward.addr, "/")?.text(), PAGE, "{transport}");
        forward.stop()?;
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// What the runtime holds in memory now, in KiB.
fn resident(ready: &Ready) -> Result<u64> {
    let status = proc::folder(ready.node.pid()?.as_raw_nonzero().get()).join("status");
    let status = std::fs::read_to_string(status)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// How much a process has written, and its state.
fn written(pid: i32) -> Result<(String, char), String> {
    let io = std::fs::read_to_string(proc::folder(pid).join("io")).map_err(|error| error.to_string())?;
    let written = io.lines().find(|line| line.starts_with("wchar:")).unwrap_or_default().to_owned();
    Ok((written, proc::one(pid).map_or('-', |process| process.state)))
}

#[test]
fn an_exec_waits_for_a_client_that_does_not_read_and_the_runtime_keeps_no_more_than_pipes_do() -> Result<()> {
    const TOTAL: usize = 96 << 20;
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "stalled")?;
    let id = pod.start(&pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]))?;
    let total = TOTAL.to_string();
    let cmd = ["/bin/head", "-c", &total, "/dev/zero"].map(str::to_owned).to_vec();
    let request =
        cri::ExecRequest { container_id: id, cmd, stdout: true, stderr: true, ..Default::default() };
    let url = ready.node.cri().exec(request)?.url;
    let before = resident(&ready)?;
    let mut socket = WebSocket::connect(&url, "v4.channel.k8s.io")?;
    let mut last = (String::new(), '-');
    let mut still = 0;
    poll("the command to wait for its reader", Duration::from_secs(60), || {
        let all = proc::all().map_err(|error| format!("{error:#}"))?;
        let head = all.iter().find(|process| process.name == "head").ok_or("no head yet")?;
        let now = written(head.pid)?;
        still = if now == last && now.1 == 'S' { still + 1 } else { 0 };
        last = now;
        if still > 20 { Ok(()) } else { Err(format!("{last:?}")) }
    })?;
    let rise = resident(&ready)?.saturating_sub(before);
    assert!(rise < 48 << 10, "the runtime grew by {rise} KiB for a client that does not read");
    // It goes on when its client does.
    let mut got = 0;
    while let Some(message) = socket.receive()? {
        if message.first() == Some(&1) {
            got += message.len() - 1;
        }
    }
    assert_eq!(got, TOTAL);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
