//! What a container may see and do, looked at from within.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::leakcheck;
use gantry_tests::node::{Node, Programs, Roots};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;

use crate::images::{Ready, facts, ready, ready_on};

/// containerd's default set: what Docker's images expect to have.
const DEFAULT_CAPABILITIES: &str = "00000000a80425fb";

/// Runs one command to its end and returns its log.
fn log_of(ready: &Ready, pod: &Pod, name: &str, command: &[&str]) -> Result<String> {
    let id = pod.start(&pod::container_config(name, &ready.image, command))?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = pod.log(name)?;
    anyhow::ensure!(status.exit_code == 0, "{name} ended with {}: {log}", status.exit_code);
    Ok(log)
}

#[test]
fn a_container_is_by_itself() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "alone")?;
    let log = log_of(&ready, &pod, "id", &["/workload", "id"])?;
    let facts = facts(&log);
    let fact = |key: &str| facts.get(key).map_or("", String::as_str);
    assert_eq!(fact("pid"), "1");
    assert_eq!(fact("comm1"), "workload", "pid 1 is the container's own program");
    assert_eq!(fact("hostname"), "alone");
    assert_eq!(fact("cwd"), "/srv");
    assert_eq!(fact("Umask"), "0022");
    assert_eq!(fact("fds"), "0 1 2", "nothing of the monitor's is open");
    assert_eq!(fact("session"), "1", "a session of its own");
    assert_eq!(fact("SigBlk"), "0000000000000000");
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(fact(set), DEFAULT_CAPABILITIES, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(fact(set), "0000000000000000", "{set}");
    }
    for name in ["mnt", "net", "pid", "uts", "ipc", "cgroup"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
        let theirs = fact(&format!("ns.{name}"));
        assert!(theirs.starts_with(name), "{name}: {theirs:?}");
        // As under containerd: there is none on cgroup v1.
        let shared = name == "cgroup" && !on_v2()?;
        assert_eq!(theirs == own.to_string_lossy(), shared, "the host's {name} namespace");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

fn on_v2() -> Result<bool> {
    Ok(leakcheck::mounts()?.iter().all(|mount| mount.kind != "cgroup"))
}

/// What the kernel keeps for each cgroup file system, whoever mounts it.
fn cgroup_options() -> Result<BTreeSet<String>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let systems = table.lines().filter_map(|line| line.split_once(" - ").map(|(_, system)| system));
    Ok(systems.filter(|system| system.starts_with("cgroup")).map(str::to_owned).collect())
}

#[test]
fn a_privileged_container_sees_the_nodes_cgroups_and_leaves_their_options_alone() -> Result<()> {
    let ready = ready()?;
    let before = cgroup_options()?;
    let script = "readlink /proc/self/ns/cgroup; cat /proc/self/cgroup; grep ' /sys/fs/cgroup' /proc/mounts; \
        ls /sys/fs/cgroup /sys/fs/cgroup/*; sleep 1000";
    let own = std::fs::read_link("/proc/self/ns/cgroup")?.display().to_string();
    for privileged in [false, true] {
        let mut config = pod::sandbox_config(&ready.node, &format!("cgroups-{privileged}"));
        let linux = config.linux.get_or_insert_default();
        linux.security_context.get_or_insert_default().privileged = privileged;
        let pod = Pod::run_config(&ready.node, config)?;
        let mut config = pod::container_config("look", &ready.image, &["sh", "-c", script]);
        pod::with_security(&mut config, |security| security.privileged = privileged);
        let id = pod.start(&config)?;
        let log = poll("the whole look", Duration::from_secs(20), || {
            let log = pod.log("look").map_err(|error| format!("{error:#}"))?;
            if log.contains("cgroup.procs") { Ok(log) } else { Err(log) }
        })?;
        let by_the_nodes_names = privileged || !on_v2()?;
        assert_eq!(log.starts_with(&own), by_the_nodes_names, "{log}");
        assert_eq!(log.contains(&id), by_the_nodes_names, "{log}");
        let mounts: Vec<&str> =
            log.lines().filter(|line| line.contains(" /sys/fs/cgroup") && line.contains(" cgroup")).collect();
        let wanted = format!("{},nosuid,nodev,noexec,", if privileged { "rw" } else { "ro" });
        assert!(!mounts.is_empty() && mounts.iter().all(|line| line.contains(&wanted)), "{mounts:?}");
        // Its own folder has no others below it; the root of the tree has.
        let tag = ready.node.roots().tag();
        assert_eq!(log.contains(&format!("\n{tag}")), privileged && on_v2()?, "{tag}: {log}");
        let cmd = ["cat", "/proc/self/cgroup"].map(str::to_owned).to_vec();
        let exec = cri::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 20 };
        let seen = String::from_utf8_lossy(&ready.node.cri().exec_sync(exec)?.stdout).into_owned();
        assert_eq!(seen.contains(&id), by_the_nodes_names, "{seen}");
        pod.remove()?;
    }
    assert_eq!(cgroup_options()?, before);
    ready.node.assert_clean(&ready.before)
}

#[test]
fn containers_of_a_pod_share_network_and_ipc_and_not_pids() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "shared")?;
    let first = facts(&log_of(&ready, &pod, "one", &["/workload", "id"])?);
    let second = facts(&log_of(&ready, &pod, "two", &["/workload", "id"])?);
    for name in ["ns.net", "ns.ipc"] {
        assert_eq!(first.get(name), second.get(name), "{name}");
    }
    let third = pod.start(&pod::container_config("three", &ready.image, &["/workload", "sleep", "60"]))?;
    let seen = log_of(&ready, &pod, "four", &["/workload", "ls-proc"])?;
    assert_eq!(seen.trim(), "1 workload", "another container's process is seen");
    assert_eq!(pod::container_status(&ready.node, &third)?.exit_code, 0);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_container_in_its_targets_pid_namespace_sees_it_and_ends_with_it() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "target")?;
    let target = pod.start(&pod::container_config("target", &ready.image, &["/workload", "sleep", "60"]))?;
    let joining = |name: &str, command: &[&str]| {
        let mut config = pod::container_config(name, &ready.image, command);
        pod::with_security(&mut config, |security| {
            let options = security.namespace_options.get_or_insert_default();
            options.pid = gantry_proto::cri::NamespaceMode::Target.into();
            // As a kubelet sends it, and short.
            options.target_id = target.chars().take(16).collect();
        });
        config
    };
    let guest = pod.start(&joining("guest", &["/workload", "sleep", "60"]))?;
    let look = pod.start(&joining("look", &["/workload", "ls-proc"]))?;
    assert_eq!(pod::await_exit(&ready.node, &look)?.exit_code, 0);
    let seen = pod.log("look")?;
    assert!(seen.starts_with("1 workload"), "the target is pid 1: {seen}");
    assert_eq!(seen.lines().count(), 3, "target, guest and who looks: {seen}");
    // The end of a guest is its own, that of the target everybody's.
    let status = pod::container_status(&ready.node, &target)?;
    assert_eq!(status.state, i32::from(gantry_proto::cri::ContainerState::ContainerRunning));
    let stop = gantry_proto::cri::StopContainerRequest { container_id: target.clone(), timeout: 0 };
    ready.node.cri().stop_container(stop)?;
    assert_eq!(pod::await_exit(&ready.node, &guest)?.exit_code, 137);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_8_signals_are_as_a_program_expects_them() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "signals")?;
    // cat, since Rust's start ignores SIGPIPE by itself.
    let log = log_of(&ready, &pod, "signals", &["/bin/cat", "/proc/self/status"])?;
    for line in ["SigIgn:\t0000000000000000", "SigBlk:\t0000000000000000"] {
        assert!(log.lines().any(|found| found == line), "{line} is not in:\n{log}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// What a task hands down to its children, one a line; the process that is looked at is a child of the shell.
const HANDED_DOWN: &str = "
    grep -h Cpus_allowed_list /proc/self/status
    cut -d ' ' -f 19,41 /proc/self/stat
    cat /proc/self/timerslack_ns /proc/self/personality
    busybox ionice -p $$";

/// CPU affinity, nice value, scheduling and I/O policy, execution domain: of an administrator's shell, a unit file.
#[test]
fn rt_2_8_what_the_runtime_was_started_with_stays_its_own() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let wrapper = folder.path().join("gantry");
    let mut programs = Programs::built()?;
    // The small VM has busybox alone, whose static build can't change execution domain and scheduling policy.
    let rest = "more=; ! command -v setarch chrt >/dev/null || more='setarch -R chrt -b 0'";
    let begin = "exec $more busybox taskset 1 busybox ionice -c 2 -n 7";
    let own = programs.gantry.display();
    let text = format!("#!/bin/sh\nbusybox renice -n 5 -p $$\n{rest}\n{begin} {own} \"$@\"\n");
    std::fs::write(&wrapper, text)?;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))?;
    programs.gantry = wrapper;
    let ready = ready_on(Node::start_with(Roots::new()?, programs)?)?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", ready.node.pid()?.as_raw_nonzero()))?;
    assert_eq!(stat.split(' ').nth(18), Some("5"), "nobody changed the runtime: {stat}");
    let output = std::process::Command::new("/bin/sh").args(["-c", HANDED_DOWN]).output()?;
    let plain = String::from_utf8(output.stdout)?;
    assert_eq!(plain.lines().count(), 5, "{plain}");

    let pod = Pod::run(&ready.node, "plain")?;
    let log = log_of(&ready, &pod, "start", &["/bin/sh", "-c", HANDED_DOWN])?;
    assert_eq!(log, plain, "of a container");
    let id = pod.start(&pod::container_config("exec", &ready.image, &["/workload", "sleep", "600"]))?;
    let cmd = ["/bin/sh", "-c", HANDED_DOWN].map(str::to_owned).to_vec();
    let answer = ready.node.cri().exec_sync(cri::ExecSyncRequest { container_id: id, cmd, timeout: 60 })?;
    assert_eq!(String::from_utf8_lossy(&answer.stdout), plain, "of a command in it");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn what_must_not_be_touched_is_not() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "walls")?;
    // Kernels differ in which of these they have; that there is something to hide is checked too.
    let masked = ["/proc/timer_list", "/proc/keys", "/proc/sched_debug", "/proc/latency_stats"];
    assert!(masked.iter().any(|path| std::fs::read(path).is_ok_and(|bytes| !bytes.is_empty())));
    let script = "
        cat /proc/timer_list /proc/keys /proc/sched_debug /proc/latency_stats 2>/dev/null | wc -c
        ls /sys/firmware | wc -l
        /workload try-write /proc/sys/kernel/hostname
        /workload try-write /proc/sysrq-trigger
        /workload try-write /sys/kernel/mm/ksm/run
        /workload try-mount
        mknod /tmp/disk b 8 0 && dd if=/tmp/disk of=/dev/null bs=512 count=1 2>&1 | grep -c 'not permitted'
        echo made-it";
    let log = log_of(&ready, &pod, "walls", &["/bin/sh", "-c", script])?;
    let lines: Vec<&str> = log.lines().collect();
    let [hidden, firmware, hostname, sysrq, sys, mount, disk, end] = lines[..] else {
        anyhow::bail!("unexpected output:\n{log}")
    };
    assert_eq!((hidden, firmware, end), ("0", "0", "made-it"));
    for line in [hostname, sysrq, sys, mount] {
        assert!(line.starts_with("refused"), "{line}");
    }
    assert_eq!(disk, "1", "a block device can be read through a node of one's own: {log}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn no_new_privs_and_users_are_as_asked() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "user")?;
    let mut config = pod::container_config("user", &ready.image, &["/workload", "id"]);
    pod::with_security(&mut config, |context| {
        context.no_new_privs = true;
        context.run_as_user = Some(gantry_proto::cri::Int64Value { value: 1000 });
        context.supplemental_groups = vec![4321];
    });
    let id = pod.start(&config)?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    let facts = facts(&pod.log("user")?);
    let fact = |key: &str| facts.get(key).map_or("", String::as_str);
    assert_eq!(fact("NoNewPrivs"), "1");
    assert_eq!(fact("Uid"), "1000 1000 1000 1000");
    assert_eq!(fact("Gid"), "1000 1000 1000 1000", "the group of /etc/passwd in the image");
    let groups: Vec<&str> = fact("Groups").split(' ').collect();
    assert!(groups.contains(&"4321") && groups.contains(&"1234"), "{groups:?}");
    assert_eq!(fact("CapEff"), "0000000000000000", "a user who is not root keeps none");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_read_only_root_is_read_only() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "readonly")?;
    let mut config = pod::container_config("readonly", &ready.image, &["/workload", "try-write", "/etc/x"]);
    pod::with_security(&mut config, |context| context.readonly_rootfs = true);
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    let log = pod.log("readonly")?;
    assert!(log.starts_with("refused /etc/x: Read-only"), "{log}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn what_one_container_writes_stays_its_own() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "layers")?;
    let log =
        log_of(&ready, &pod, "one", &["/bin/sh", "-c", "echo x > /srv/index.html; rm /etc/motd; ls /etc"])?;
    assert!(!log.contains("motd"), "{log}");
    let log = log_of(&ready, &pod, "two", &["/bin/cat", "/srv/index.html", "/etc/motd"])?;
    assert!(log.contains(crate::images::PAGE.trim()) && log.contains("hi"), "{log}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn any_user_may_listen_on_low_ports_and_ping_unless_the_pod_says_otherwise() -> Result<()> {
    let ready = ready()?;
    let files = "/proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range";
    let script = format!("cat {files}");
    for (name, own, expected) in
        [("plain", None, "0 0 2147483647"), ("own", Some("1000"), "1000 0 2147483647")]
    {
        let mut config = pod::sandbox_config(&ready.node, name);
        if let Some(start) = own {
            let linux = config.linux.get_or_insert_default();
            linux.sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), start.into());
        }
        let pod = Pod::run_config(&ready.node, config)?;
        let log = log_of(&ready, &pod, name, &["/bin/sh", "-c", &script])?;
        assert_eq!(log.split_whitespace().collect::<Vec<_>>().join(" "), expected);
        pod.remove()?;
    }
    ready.node.assert_clean(&ready.before)
}
