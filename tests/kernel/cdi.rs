//! CDI devices as the container's processes and the hooks meet them. What a file means is tested where it is
//! read (shim/src/cdi), how a hook is run where it is (shim/monitor/src/init/hooks).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use serde_json::{Value, json};

use crate::images::{Ready, ready};

const KIND: &str = "test.gantry/thing";

/// A file of the node's folder with one device.
fn offer(node: &Node, name: &str, edits: &Value) -> Result<()> {
    let folder = node.roots().path("cdi");
    std::fs::create_dir_all(&folder)?;
    let spec =
        json!({"cdiVersion": "1.0.0", "kind": KIND, "devices": [{"name": name, "containerEdits": edits}]});
    Ok(std::fs::write(folder.join(format!("{name}.json")), spec.to_string())?)
}

fn with(ready: &Ready, name: &str, device: &str, script: &str) -> cri::ContainerConfig {
    let mut config = pod::container_config(name, &ready.image, &["/bin/sh", "-c", script]);
    config.cdi_devices = vec![cri::CdiDevice { name: format!("{KIND}={device}") }];
    config
}

fn hook(stage: &str, script: &str) -> Value {
    json!({"hookName": stage, "path": "/bin/sh", "args": ["sh", "-c", script]})
}

/// What a hook of each stage wrote: the state it read, and what it saw of its namespaces.
fn read_criu_words(node: &Node, stage: &str) -> Result<(Value, String)> {
    let path = node.roots().path("hooks").join(stage);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (state, rest) = text.split_once('|').context("no state")?;
    Ok((serde_json::from_str(state)?, rest.trim().to_owned()))
}

#[test]
fn a_device_brings_its_node_mounts_variables_and_groups() -> Result<()> {
    let ready = ready()?;
    let lib = ready.node.roots().path("lib");
    std::fs::create_dir_all(&lib)?;
    std::fs::write(lib.join("text"), "of the node\n")?;
    offer(
        &ready.node,
        "zero",
        &json!({
            "env": ["THING=there", "PATH=/bin:/usr/bin"],
            "deviceNodes": [
                {"path": "/dev/deep/thing", "hostPath": "/dev/zero", "permissions": "r", "fileMode": 0o640},
                {"path": "/dev/pipe", "type": "p"},
            ],
            "mounts": [
                {"hostPath": lib, "containerPath": "/opt/lib", "options": ["ro", "nosuid", "nodev", "noexec", "bind"]},
                {"hostPath": "tmpfs", "containerPath": "/opt/tmp", "type": "tmpfs", "options": ["size=1m", "mode=0700"]},
            ],
            "additionalGids": [4321],
        }),
    )?;
    let pod = Pod::run(&ready.node, "cdi")?;
    let script = "echo $THING; stat -c '%A %t:%T %u %g' /dev/deep/thing /dev/pipe; \
        head -c 3 /dev/deep/thing | wc -c; \
        cat /opt/lib/text; touch /opt/lib/x 2>/dev/null || echo refused; \
        grep ' /opt/lib ' /proc/mounts | grep -o 'ro,nosuid,nodev,noexec'; stat -c %a /opt/tmp; touch /opt/tmp/x; \
        id -G";
    let id = pod.start(&with(&ready, "main", "zero", script))?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = pod.log("main")?;
    assert_eq!(status.exit_code, 0, "{log}");
    let expected = "there\ncrw-r----- 1:5 0 0\nprw-rw-rw- 0:0 0 0\n3\nof the node\nrefused\n\
                    ro,nosuid,nodev,noexec\n700\n0 4321\n";
    assert_eq!(log, expected);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// Each writes what it reads and sees into a file of its name.
fn at_all_stages(folder: &Path) -> Vec<Value> {
    let at = folder.display();
    ["prestart", "createRuntime", "createContainer", "poststart", "poststop"]
        .into_iter()
        .map(|stage| {
            let look = "readlink /proc/self/ns/mnt; readlink /proc/self/ns/net; readlink /proc/self/ns/pid; pwd";
            hook(stage, &format!("{{ cat; echo '|'; {look}; }} > {at}/{stage}; echo {stage} >> {at}/order"))
        })
        .chain([
            // Into the root before it is entered, as nvidia-ctk does it: by the bundle's own word.
            hook(
                "createContainer",
                &format!(
                    "bundle=$(sed 's/.*\"bundle\":\"\\([^\"]*\\)\".*/\\1/'); cp $bundle/config.json {at}/config.json; \
                     root=$(sed -n 's/ *\"path\": \"\\(.*\\/root\\)\",*/\\1/p' $bundle/config.json); echo made > $root/made"
                ),
            ),
            // In the container, by a program of its own.
            hook("startContainer", "{ cat; echo '|'; id -u; pwd; readlink /proc/self/ns/mnt; } > /dev/shm/start"),
        ])
        .collect()
}

#[test]
fn hooks_run_at_their_stages_and_read_the_state() -> Result<()> {
    let ready = ready()?;
    let folder = ready.node.roots().path("hooks");
    std::fs::create_dir_all(&folder)?;
    let all = at_all_stages(&folder);
    offer(&ready.node, "hooked", &json!({"hooks": all}))?;
    let pod = Pod::run(&ready.node, "hooked")?;
    let script =
        "cat /made /dev/shm/start; readlink /proc/self/ns/mnt; readlink /proc/self/ns/net; exec sleep 1000";
    let mut config = with(&ready, "main", "hooked", script);
    pod::with_security(&mut config, |security| security.run_as_user = Some(cri::Int64Value { value: 1000 }));
    let id = pod.start(&config)?;
    let log = poll("the script", Duration::from_secs(20), || {
        let log = pod.log("main").map_err(|error| error.to_string())?;
        if log.contains("net:[") { Ok(log) } else { Err(log) }
    })?;
    let own = |kind: &str| {
        std::fs::read_link(format!("/proc/self/ns/{kind}")).map(|path| path.display().to_string())
    };
    let containers = |kind: &str| {
        let found = log.lines().rev().find(|line| line.starts_with(kind)).map(str::to_owned);
        found.context("no namespace in the log")
    };
    for stage in ["prestart", "createRuntime", "poststart"] {
        let (state, rest) = read_criu_words(&ready.node, stage)?;
        let status = if stage == "poststart" { "running" } else { "creating" };
        assert_eq!((&state["id"], &state["status"]), (&json!(id), &json!(status)), "{stage}");
        let lines: Vec<&str> = rest.lines().collect();
        assert_eq!(lines[..2], [own("mnt")?, own("net")?], "{stage}");
        // As the runtime sees it: the container's process.
        let net = std::fs::read_link(format!("/proc/{}/ns/net", state["pid"]))?;
        assert_eq!(net.display().to_string(), containers("net:[")?, "{stage}");
        assert_eq!(state["annotations"]["io.kubernetes.cri.container-name"], json!("main"));
    }
    let (state, rest) = read_criu_words(&ready.node, "createContainer")?;
    assert_eq!((&state["pid"], &state["status"]), (&json!(1), &json!("creating")));
    let lines: Vec<&str> = rest.lines().collect();
    assert_eq!(lines[..2], [containers("mnt:[")?, containers("net:[")?]);
    ensure!(lines[3].ends_with("/root"), "not in the root: {rest}");
    ensure!(log.starts_with("made\n") && log.contains("\"status\":\"created\""), "{log}");
    ensure!(log.contains("\n1000\n"), "startContainer runs as the container's user: {log}");
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    assert_eq!(config["process"]["user"]["uid"], json!(1000));
    assert!(!folder.join("poststop").exists());
    pod.remove()?;
    let (state, _) = read_criu_words(&ready.node, "poststop")?;
    assert_eq!((state["status"].as_str(), state.get("pid")), (Some("stopped"), None));
    let order = std::fs::read_to_string(folder.join("order"))?;
    assert_eq!(order, "prestart\ncreateRuntime\ncreateContainer\npoststart\npoststop\n");
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_hook_that_fails_ends_the_start_and_leaves_nothing() -> Result<()> {
    let ready = ready()?;
    let stopped = ready.node.roots().path("stopped");
    let pod = Pod::run(&ready.node, "failing")?;
    for (stage, script, words) in [
        ("createRuntime", "echo no such card >&2; exit 3", "exit status 3, stdout: , stderr: no such card"),
        ("createContainer", "exit 4", "error running createContainer hook #0: exit status 4"),
        ("startContainer", "exit 5", "error running startContainer hook #0: exit status 5"),
        ("poststart", "exit 6", "error running poststart hook #0: exit status 6"),
        ("prestart", "sleep 1000", "hook ran past specified timeout of 1.0s"),
    ] {
        let mut failing = hook(stage, script);
        if stage == "prestart" {
            failing["timeout"] = json!(1);
        }
        let after = hook("poststop", &format!("echo {stage} >> {}", stopped.display()));
        offer(&ready.node, stage, &json!({"hooks": [failing, after]}))?;
        let id = pod.create(&with(&ready, stage, stage, "exec sleep 1000"))?;
        let request = cri::StartContainerRequest { container_id: id.clone() };
        let error = ready.node.cri().start_container(request).expect_err("started");
        ensure!(error.message().contains(words), "{stage}: {error}");
        let status = pod::container_status(&ready.node, &id)?;
        assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{stage}");
        ready.node.cri().remove_container(cri::RemoveContainerRequest { container_id: id })?;
    }
    let order = std::fs::read_to_string(&stopped)?;
    assert_eq!(order, "createRuntime\ncreateContainer\nstartContainer\npoststart\nprestart\n");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn poststop_runs_once_also_when_the_runtime_was_away() -> Result<()> {
    let mut ready = ready()?;
    let file = ready.node.roots().path("stopped");
    offer(
        &ready.node,
        "away",
        &json!({"hooks": [hook("poststop", &format!("echo x >> {}", file.display()))]}),
    )?;
    let pod = Pod::run(&ready.node, "away")?;
    let (id, sandbox) = (pod.start(&with(&ready, "main", "away", "exec sleep 1000"))?, pod.id.clone());
    let process = gantry_tests::proc::all()?
        .into_iter()
        .find(|process| {
            let cgroups = std::fs::read_to_string(gantry_tests::proc::folder(process.pid).join("cgroup"));
            cgroups.is_ok_and(|text| text.contains(&id))
        })
        .context("no process")?;
    ready.node.kill()?;
    gantry_tests::proc::kill(process.pid)?;
    ready.node.restart()?;
    // Not at the removal first.
    poll("the hook", Duration::from_secs(20), || {
        std::fs::read_to_string(&file).map(drop).map_err(|error| error.to_string())
    })?;
    let container_id = id;
    ready.node.cri().remove_container(cri::RemoveContainerRequest { container_id })?;
    assert_eq!(std::fs::read_to_string(&file)?, "x\n");
    ready.node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    ready.node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    assert_eq!(std::fs::read_to_string(&file)?, "x\n");
    ready.node.assert_clean(&ready.before)
}

#[test]
fn what_cannot_be_given_is_refused_by_name_and_a_bad_file_is_told() -> Result<()> {
    let mut ready = ready()?;
    offer(&ready.node, "good", &json!({"env": ["GOOD=yes"]}))?;
    let bad: PathBuf = ready.node.roots().path("cdi/bad.yaml");
    std::fs::write(&bad, "kind: [")?;
    let pod = Pod::run(&ready.node, "refused")?;
    let refused = |device: &str| pod.create(&with(&ready, "no", device, "true")).expect_err("created");
    let error = refused("none");
    ensure!(error.message().contains(&format!("unresolvable CDI devices {KIND}=none")), "{error}");
    ensure!(error.message().contains("bad.yaml"), "{error}");
    let info = ready.node.cri().status(cri::StatusRequest { verbose: true })?.info;
    ensure!(info.get("cdiErrors").is_some_and(|errors| errors.contains("bad.yaml")), "{info:?}");
    // The others go on, by an annotation, too.
    let mut config = with(&ready, "main", "good", "echo $GOOD");
    config.cdi_devices.clear();
    config.annotations.insert("cdi.k8s.io/test".into(), format!("{KIND}=good"));
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    assert_eq!(pod.log("main")?, "yes\n");
    pod.remove()?;
    ready.node.restart_with(&["--enable-cdi=false".to_owned()])?;
    let pod = Pod::run(&ready.node, "disabled")?;
    let error = pod.create(&with(&ready, "no", "good", "true")).expect_err("created");
    ensure!(error.message().contains("requested but CDI support is explicitly disabled"), "{error}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
