//! Pods with users of their own: who they are on the node, what belongs to them, and that they live as long
//! and end as clean as others. What a client sees of them is the Go suite's (`tests/go/cri`).

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::NamespaceMode;
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;

use crate::images::{Ready, facts, ready, web_image};

/// The node's id of the pods' root, and how many a pod has.
const FIRST: u32 = 1_638_400;
const COUNT: u32 = 65_536;

fn users(first: u32) -> cri::UserNamespace {
    let line = vec![cri::IdMapping { host_id: first, container_id: 0, length: COUNT }];
    cri::UserNamespace { mode: NamespaceMode::Pod.into(), uids: line.clone(), gids: line }
}

fn sandbox(node: &Node, name: &str) -> cri::PodSandboxConfig {
    let mut config = pod::sandbox_config(node, name);
    let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
    security.namespace_options.get_or_insert_default().userns_options = Some(users(FIRST));
    config
}

fn container(name: &str, image: &str, command: &[&str]) -> cri::ContainerConfig {
    let mut config = pod::container_config(name, image, command);
    pod::with_security(&mut config, |security| {
        security.namespace_options.get_or_insert_default().userns_options = Some(users(FIRST));
    });
    config
}

/// A node where pods can have users of their own. On a kernel that lacks what that takes, the node says so and
/// refuses such pods: that is looked at here, and there is nothing more to test.
#[track_caller]
fn node_with_users() -> Result<Option<Ready>> {
    let ready = ready()?;
    let status = ready.node.cri().status(cri::StatusRequest::default())?;
    let told = status.runtime_handlers.iter().filter_map(|handler| handler.features);
    if told.map(|features| features.user_namespaces).eq([true]) {
        return Ok(Some(ready));
    }
    let Err(refused) = Pod::run_config(&ready.node, sandbox(&ready.node, "refused")) else {
        anyhow::bail!("the node says that it has no user namespaces, and made one");
    };
    let text = format!("{refused:#}");
    anyhow::ensure!(text.contains("pods can't have a user namespace of their own on this node"), "{text}");
    ready.node.assert_clean(&ready.before)?;
    gantry_tests::not_run("this node has no user namespaces for pods: Linux 6.3 and newer");
    Ok(None)
}

/// Runs one container to its end and returns what it wrote.
fn output(node: &Node, pod: &Pod, name: &str, config: &cri::ContainerConfig) -> Result<String> {
    let id = pod.start(config)?;
    let status = pod::await_exit(node, &id)?;
    let log = pod.log(name)?;
    anyhow::ensure!(
        status.exit_code == 0,
        "{name} ended with {} {}: {log}",
        status.exit_code,
        status.message
    );
    Ok(log)
}

fn exec(node: &Node, id: &str, command: &[&str]) -> Result<String> {
    let cmd = command.iter().map(|&word| word.to_owned()).collect();
    let request = cri::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 20 };
    let answer = node.cri().exec_sync(request).context("ExecSync")?;
    anyhow::ensure!(answer.exit_code == 0, "{command:?}: {}", String::from_utf8_lossy(&answer.stderr));
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

#[test]
fn rt_2_10_the_namespaces_of_a_pod_belong_to_its_users() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    for pid in [NamespaceMode::Container, NamespaceMode::Pod] {
        let mut config = sandbox(&ready.node, &format!("owns-{}", i32::from(pid)));
        let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
        security.namespace_options.get_or_insert_default().pid = pid.into();
        let pod = Pod::run_config(&ready.node, config)?;
        // Each is refused to who is not the owner's root: of the network, the names, the mounts, the processes.
        let script = "ip addr add 10.99.0.1/32 dev lo && echo network
            hostname mine && echo names
            mkdir /tmp/p && mount -t tmpfs none /tmp/p && echo mounts
            stat -c 'sysctl %u' /proc/sys/net/ipv4/ip_forward
            grep -c ' /sys sysfs\\| /proc proc\\| /dev/mqueue mqueue\\| /dev/pts devpts\\| /sys/fs/cgroup' /proc/mounts
            [ -d /sys/class/net/eth0 ] && echo eth0";
        let mut config = container("look", &ready.image, &["/bin/sh", "-c", script]);
        pod::with_security(&mut config, |security| {
            security.namespace_options.get_or_insert_default().pid = pid.into();
            let add = vec!["NET_ADMIN".to_owned(), "SYS_ADMIN".to_owned()];
            security.capabilities = Some(cri::Capability { add_capabilities: add, ..Default::default() });
        });
        let log = output(&ready.node, &pod, "look", &config)?;
        let lines: Vec<&str> = log.lines().collect();
        anyhow::ensure!(lines.len() == 6, "{log}");
        assert_eq!(lines[..4], ["network", "names", "mounts", "sysctl 0"], "{log}");
        assert!(lines[4].parse::<u32>()? >= 5 && lines[5] == "eth0", "{log}");
        // The pod's address answers as any other's.
        let web = container("web", &ready.image, &["/workload", "web", "8080", "/srv/index.html"]);
        let mut web = web;
        pod::with_security(&mut web, |security| {
            security.namespace_options.get_or_insert_default().pid = pid.into();
        });
        pod.start(&web)?;
        let addr = pod.addr(8080)?;
        poll("the pod to answer", Duration::from_secs(20), || {
            gantry_tests::http::get(addr, "/").map(drop).map_err(|error| format!("{error:#}"))
        })?;
        pod.remove()?;
    }
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_9_what_takes_the_nodes_rights_is_done_before_they_are_given_up() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    let pod = Pod::run_config(&ready.node, sandbox(&ready.node, "rights"))?;
    let mut config = container("id", &ready.image, &["/workload", "id"]);
    config.linux.get_or_insert_default().resources.get_or_insert_default().oom_score_adj = -500;
    pod::with_security(&mut config, |security| {
        security.run_as_user = Some(cri::Int64Value { value: 1000 });
        security.supplemental_groups = vec![55];
    });
    let log = output(&ready.node, &pod, "id", &config)?;
    let facts = facts(&log);
    let fact = |key: &str| facts.get(key).map_or("", String::as_str);
    // Below 0 only the node's root may go, and not on every node.
    let own = rustix::thread::capabilities(None)?.effective;
    let wanted = if own.contains(rustix::thread::CapabilitySet::SYS_RESOURCE) { "-500" } else { "0" };
    assert_eq!(fact("oom_score_adj"), wanted);
    assert_eq!(fact("Uid"), "1000 1000 1000 1000");
    assert_eq!(fact("Groups"), "55 1000 1234", "setgroups is allowed");
    assert_eq!((fact("fds"), fact("comm1"), fact("Umask")), ("0 1 2", "workload", "0022"));
    for name in ["mnt", "net", "pid", "uts", "ipc", "cgroup", "user"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
        assert_ne!(fact(&format!("ns.{name}")), own.to_string_lossy(), "the host's {name} namespace");
    }
    // As the node sees a process of it: mapped ids, and nothing of the node's root.
    let id = pod.start(&container("sleep", &ready.image, &["/workload", "sleep", "60"]))?;
    let is_its = |process: &proc::Process| {
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        cgroup.is_ok_and(|text| text.contains(&id))
    };
    // The one that made the step over has nothing more to do, and may still be ending.
    let pid = poll("the container's only process", Duration::from_secs(20), || {
        let all = proc::all().map_err(|error| format!("{error:#}"))?;
        match all.iter().filter(|process| is_its(process)).collect::<Vec<_>>()[..] {
            [process] => Ok(process.pid),
            ref others => Err(format!("{others:?}")),
        }
    })?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    for key in ["Uid", "Gid"] {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{key}:"))).unwrap_or_default();
        assert!(line.split_whitespace().all(|id| id == FIRST.to_string()), "{key}{line}");
    }
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map"))?;
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", &FIRST.to_string(), &COUNT.to_string()]);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// What may be gained in an image: a set-user-ID program and one with file capabilities (CAP_CHOWN, effective).
fn gaining() -> Result<Image> {
    let mut image = web_image()?;
    let program = std::fs::read(gantry_tests::place::bin_dir()?.join("gantry-workload"))?;
    let mut capability = vec![1, 0, 0, 2];
    capability.extend([1, 0, 0, 0]);
    capability.extend([0; 12]);
    let more = Layer::default()
        .file("setuid", 0o4755, program.clone())
        .file("of-web", 0o6755, program.clone())
        .with_owner(1000, 1000)
        .file("capable", 0o755, program)
        .xattr("security.capability", &capability);
    image.layers.push(more);
    Ok(image)
}

#[test]
fn programs_of_the_image_raise_to_the_pods_root_and_no_further() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    let image = ready.registry.push("demo/gaining", "v1", &gaining()?.build()?)?;
    ready.node.pull(&image)?;
    let before = ready.node.snapshot()?;
    let pod = Pod::run_config(&ready.node, sandbox(&ready.node, "gains"))?;
    let told = |name: &str, program: &str, uid: i64| -> Result<(String, String, String)> {
        let mut config = container(name, &image, &[program, "id"]);
        pod::with_security(&mut config, |security| {
            security.run_as_user = Some(cri::Int64Value { value: uid });
        });
        let log = output(&ready.node, &pod, name, &config)?;
        let facts = facts(&log);
        let fact = |key: &str| facts.get(key).cloned().unwrap_or_default();
        Ok((fact("Uid"), fact("Gid"), fact("CapEff")))
    };
    let triple = |uid: &str, gid: &str, caps: &str| (uid.to_owned(), gid.to_owned(), caps.to_owned());
    assert_eq!(told("setuid", "/setuid", 77)?, triple("77 0 0 0", "0 0 0 0", "00000000a80425fb"));
    assert_eq!(
        told("of-web", "/of-web", 77)?,
        triple("77 1000 1000 1000", "0 1000 1000 1000", "0000000000000000")
    );
    assert_eq!(told("capable", "/capable", 77)?, triple("77 77 77 77", "0 0 0 0", "0000000000000001"));
    // On the disk what they write is nobody's of the node.
    let host = tempfile::tempdir()?;
    std::fs::set_permissions(host.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let script = "cp /bin/busybox /host/shell && chmod 4755 /host/shell";
    let mut config = container("leaves", &image, &["/bin/sh", "-c", script]);
    config.mounts = vec![cri::Mount {
        host_path: host.path().to_string_lossy().into_owned(),
        container_path: "/host".into(),
        ..Default::default()
    }];
    output(&ready.node, &pod, "leaves", &config)?;
    let left = std::fs::metadata(host.path().join("shell"))?;
    assert_eq!((left.uid(), left.gid(), left.mode() & 0o7777), (FIRST, FIRST, 0o4755));
    pod.remove()?;
    ready.node.assert_clean(&before)
}

#[test]
fn a_pod_with_users_of_its_own_outlives_the_runtime() -> Result<()> {
    let Some(Ready { mut node, registry: _registry, image, before }) = node_with_users()? else {
        return Ok(());
    };
    let config = sandbox(&node, "outlives");
    let pod = Pod::run_config(&node, config.clone())?;
    let id = pod.start(&container("first", &image, &["/workload", "sleep", "300"]))?;
    let (sandbox, ip) = (pod.id.clone(), pod.ip()?);
    drop(pod);
    node.kill()?;
    node.restart()?;
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let status = node.cri().pod_sandbox_status(request)?.status.context("no status")?;
    let options = status.linux.and_then(|linux| linux.namespaces).and_then(|all| all.options);
    assert_eq!(options.and_then(|options| options.userns_options), Some(users(FIRST)));
    assert_eq!(status.network.map(|network| network.ip), Some(ip.to_string()));
    let first = exec(&node, &id, &["/bin/sh", "-c", "readlink /proc/self/ns/user; cat /proc/self/uid_map"])?;
    // A new container of it is made with what the record tells, and started by the old monitor.
    let request = |container: cri::ContainerConfig| cri::CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(container),
        sandbox_config: Some(config.clone()),
    };
    let second = container("second", &image, &["/workload", "sleep", "300"]);
    let second = node.cri().create_container(request(second))?.container_id;
    node.cri().start_container(cri::StartContainerRequest { container_id: second.clone() })?;
    let also =
        exec(&node, &second, &["/bin/sh", "-c", "readlink /proc/self/ns/user; cat /proc/self/uid_map"])?;
    assert_eq!(first, also);
    let stranger = node.cri().create_container(request(pod::container_config("third", &image, &["/none"])));
    assert!(stranger.is_err_and(|status| status.message().contains("user namespace config")));
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    node.assert_clean(&before)
}

#[test]
fn however_soon_a_container_ends_its_code_is_told() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    let pod = Pod::run_config(&ready.node, sandbox(&ready.node, "soon"))?;
    // The process that is told of is not the one that was cloned: neither's end may be taken for the other's.
    for code in 0..15 {
        let name = format!("end{code}");
        let id = pod.start(&container(&name, &ready.image, &["/workload", "exit", &code.to_string()]))?;
        assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, code);
    }
    let none = pod.create(&container("none", &ready.image, &["/none"]))?;
    let refused = ready.node.cri().start_container(cri::StartContainerRequest { container_id: none.clone() });
    assert!(refused.is_err_and(|status| status.message().contains("exec \"/none\"")));
    assert_eq!(pod::await_exit(&ready.node, &none)?.exit_code, 128);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_mount_that_fails_fails_the_start_by_name() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    let pod = Pod::run_config(&ready.node, sandbox(&ready.node, "fails"))?;
    let mut config = container("main", &ready.image, &["/workload", "exit", "0"]);
    let line = users(FIRST).uids;
    // The kernel has no idmapped mounts of procfs.
    config.mounts = vec![cri::Mount {
        host_path: "/proc/sys".into(),
        container_path: "/host".into(),
        uid_mappings: line.clone(),
        gid_mappings: line,
        ..Default::default()
    }];
    let id = pod.create(&config)?;
    let refused = ready.node.cri().start_container(cri::StartContainerRequest { container_id: id });
    let message = refused.err().context("it was started")?.message().to_owned();
    assert!(message.contains("mount /proc/sys on /host: map the owners of its files"), "{message}");
    // Others of the pod are as before.
    output(&ready.node, &pod, "after", &container("after", &ready.image, &["/workload", "exit", "0"]))?;
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_mount_can_have_other_owners_than_the_pod() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    let host = tempfile::tempdir()?;
    std::fs::write(host.path().join("file"), "")?;
    let pod = Pod::run(&ready.node, "plain")?;
    let line = vec![cri::IdMapping { host_id: 4000, container_id: 0, length: 10 }];
    let mut config =
        pod::container_config("main", &ready.image, &["/bin/sh", "-c", "stat -c %u:%g /host/file"]);
    config.mounts = vec![cri::Mount {
        host_path: host.path().to_string_lossy().into_owned(),
        container_path: "/host".into(),
        uid_mappings: line.clone(),
        gid_mappings: line,
        ..Default::default()
    }];
    assert_eq!(output(&ready.node, &pod, "main", &config)?, "4000:4000\n");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_pod_with_users_of_its_own_ends_with_its_monitor() -> Result<()> {
    let Some(ready) = node_with_users()? else { return Ok(()) };
    let pod = Pod::run_config(&ready.node, sandbox(&ready.node, "ends"))?;
    let id = pod.start(&container("main", &ready.image, &["/workload", "sleep", "300"]))?;
    let monitors: Vec<_> =
        proc::all()?.into_iter().filter(|process| process.name.starts_with("gantry-monitor")).collect();
    let [monitor] = &monitors[..] else { anyhow::bail!("not one monitor: {monitors:?}") };
    proc::kill(monitor.pid)?;
    let status = pod::await_exit(&ready.node, &id)?;
    assert_ne!(status.exit_code, 0, "{status:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
