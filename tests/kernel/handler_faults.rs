//! What goes wrong around an OCI runtime: it is slow, it is given up, whoever waits for it dies, its hooks are due
//! later. The program is runc behind a script that holds it where a test wants it.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_proto::cri::ContainerState;
use gantry_tests::cri::Cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;

use crate::handler::{exec, pid_of, pod, runc};
use crate::images::{Ready, ready};

const PATIENCE: Duration = Duration::from_secs(20);

/// A node whose handler `runc` is a script: `steps` by a command of the program, run around it as `$run`.
/// Files that they write are in the folder `at`.
fn start_held(steps: &[(&str, &str)]) -> Result<Ready> {
    let mut ready = ready()?;
    let (at, script) = (ready.node.roots().path("at"), ready.node.roots().path("held-runc"));
    std::fs::create_dir_all(&at)?;
    let cases: String = steps.iter().map(|(verb, what)| format!("*' {verb} '*) {what};;\n")).collect();
    let (runc, at) = (runc()?, at.display().to_string());
    let text = format!(
        "#!/bin/sh\nrun={}\nat={at}\nuntil_go() {{ until [ -e $at/go ]; do sleep 0.02; done; }}\n\
         case \" $* \" in\n{cases}esac\nexec $run \"$@\"\n",
        runc.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    ready.node.restart_with(&[format!("--handlers=runc:type=oci,path={}", script.display())])?;
    ready.before = ready.node.snapshot()?;
    Ok(ready)
}

fn at(ready: &Ready, name: &str) -> PathBuf {
    ready.node.roots().path("at").join(name)
}

fn await_file(ready: &Ready, name: &str) -> Result<()> {
    let path = at(ready, name);
    poll(name, PATIENCE, || if path.exists() { Ok(()) } else { Err("not there".into()) })
}

fn let_go(ready: &Ready) -> Result<()> {
    Ok(std::fs::write(at(ready, "go"), "")?)
}

/// StartContainer, on a connection of its own.
fn starting(ready: &Ready, id: &str) -> thread::JoinHandle<Result<Result<(), tonic::Status>>> {
    let (socket, container_id) = (ready.node.socket(), id.to_owned());
    thread::spawn(move || {
        Ok(Cri::new(&socket)?.start_container(cri::StartContainerRequest { container_id }).map(drop))
    })
}

fn remove(ready: &Ready, sandbox: String) -> Result<()> {
    let cri = ready.node.cri();
    cri.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    Ok(())
}

/// Waits until nobody has these words in their command line.
fn await_nobody(words: &str) -> Result<()> {
    poll("nobody to be left", PATIENCE, || {
        let all = proc::all().map_err(|error| format!("{error:#}"))?;
        let lines = all.iter().map(|process| (process.pid, proc::command_line(process.pid)));
        let left: Vec<_> = lines.filter(|(_, line)| line.contains(words)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
}

const HOLD: &str = "touch $at/begun; until_go";

/// It was taken for running, by the number of who waits for runc: no signal reached it ever after.
#[test]
fn a_start_that_outlives_its_runtime_goes_on_as_the_next_ones() -> Result<()> {
    let mut ready = start_held(&[("create", HOLD)])?;
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let pod = pod(&ready, "midway")?;
    let id = pod.create(&pod::container_config("main", &ready.image, &["/bin/sh", "-c", script]))?;
    let (sandbox, log) = (pod.id.clone(), pod.log_path("main"));
    drop(pod);
    let first = starting(&ready, &id);
    await_file(&ready, "begun")?;
    ready.node.kill()?;
    ensure!(first.join().map_err(|_| anyhow::anyhow!("panicked"))??.is_err(), "answered by nobody");
    ready.node.restart()?;
    let status = pod::container_status(&ready.node, &id)?;
    assert_eq!(status.state(), ContainerState::ContainerCreated, "{status:?}");
    let_go(&ready)?;
    poll("the container to run", PATIENCE, || {
        let status = pod::container_status(&ready.node, &id).map_err(|error| format!("{error:#}"))?;
        let running = status.state() == ContainerState::ContainerRunning;
        if running { Ok(()) } else { Err(format!("{status:?}")) }
    })?;
    let pid = pid_of(&ready, &id)?;
    let cgroup = std::fs::read_to_string(proc::folder(pid).join("cgroup"))?;
    ensure!(cgroup.contains(&id), "another process: {pid} {cgroup}");
    poll("the trap to be set", PATIENCE, || match std::fs::read_to_string(&log) {
        Ok(text) if text.contains("ready") => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    ready.node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 60 })?;
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 9);
    remove(&ready, sandbox)?;
    ready.node.assert_clean(&ready.before)
}

/// And one that fails after all is a start that failed.
#[test]
fn a_start_that_outlives_its_runtime_and_fails_is_told() -> Result<()> {
    let mut ready = start_held(&[("create", "touch $at/begun; until_go; exit 3")])?;
    let pod = pod(&ready, "fails")?;
    let id = pod.create(&pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]))?;
    let sandbox = pod.id.clone();
    drop(pod);
    let first = starting(&ready, &id);
    await_file(&ready, "begun")?;
    ready.node.kill()?;
    ensure!(first.join().map_err(|_| anyhow::anyhow!("panicked"))??.is_err(), "answered by nobody");
    ready.node.restart()?;
    let_go(&ready)?;
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{status:?}");
    remove(&ready, sandbox)?;
    ready.node.assert_clean(&ready.before)
}

/// Nobody waited for it, and it ran on in the container: one more for each probe that came late.
#[test]
fn an_exec_that_is_late_before_anybody_knows_its_process_ends_all_the_same() -> Result<()> {
    let begun = "case \"$*\" in *' exec '*) $run \"$@\"; touch $at/begun; until_go; exit 0;; esac";
    for goes_on in [true, false] {
        let ready = start_held(&[("exec", begun)])?;
        let pod = pod(&ready, "late")?;
        let id = pod.start(&pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]))?;
        let late = exec(&ready, &id, &["/bin/sleep", "617"], 1).unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded, "{late:?}");
        await_file(&ready, "begun")?;
        if goes_on {
            let_go(&ready)?;
        }
        await_nobody("/bin/sleep 617")?;
        let bundle = ready.node.root().join("containers").join(&id).join("bundle");
        poll("the files of the exec to go", PATIENCE, || {
            let names = std::fs::read_dir(&bundle).map_err(|error| error.to_string())?.flatten();
            let left: Vec<_> = names
                .map(|entry| entry.file_name())
                .filter(|name| name.to_string_lossy().starts_with("exec-"))
                .collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })?;
        pod.remove()?;
        ready.node.assert_clean(&ready.before)?;
    }
    Ok(())
}

#[test]
fn a_start_that_is_given_up_ends_what_the_program_has_begun() -> Result<()> {
    let ready = start_held(&[("create", "sleep 613 & exit 3")])?;
    let pod = pod(&ready, "given-up")?;
    let id = pod.create(&pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]))?;
    let error =
        ready.node.cri().start_container(cri::StartContainerRequest { container_id: id }).unwrap_err();
    assert!(error.message().contains("it ended with 3"), "{error:?}");
    await_nobody("sleep 613")?;
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// They would go on, and make a container that is told as ended.
#[test]
fn a_monitor_takes_who_runs_the_program_along() -> Result<()> {
    let ready = start_held(&[("create", HOLD)])?;
    let pod = pod(&ready, "orphans")?;
    let id = pod.create(&pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]))?;
    let start = starting(&ready, &id);
    await_file(&ready, "begun")?;
    let all = proc::all()?;
    let monitors: Vec<i32> =
        all.iter().filter(|one| one.name == "gantry-monitor").map(|one| one.pid).collect();
    let first = all.iter().find(|one| monitors.contains(&one.pid) && !monitors.contains(&one.parent));
    proc::kill(first.context("no monitor")?.pid)?;
    ensure!(start.join().map_err(|_| anyhow::anyhow!("panicked"))??.is_err(), "started");
    await_nobody(&id)?;
    let status = pod::await_exit(&ready.node, &id)?;
    assert_eq!(status.reason, "StartError", "{status:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn hooks_after_the_end_run_at_the_end_under_a_program_too() -> Result<()> {
    let ready = start_held(&[])?;
    let (folder, ran) = (ready.node.roots().path("cdi"), ready.node.roots().path("ran"));
    std::fs::create_dir_all(&folder)?;
    let script = format!("echo x >> {}", ran.display());
    let hook = serde_json::json!({"hookName": "poststop", "path": "/bin/sh", "args": ["sh", "-c", script]});
    let devices = [serde_json::json!({"name": "after", "containerEdits": {"hooks": [hook]}})];
    let spec = serde_json::json!({"cdiVersion": "1.0.0", "kind": "test.gantry/thing", "devices": devices});
    std::fs::write(folder.join("after.json"), spec.to_string())?;
    let pod = pod(&ready, "after")?;
    let mut config = pod::container_config("main", &ready.image, &["/bin/true"]);
    config.cdi_devices = vec![cri::CdiDevice { name: "test.gantry/thing=after".into() }];
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    // Not at the removal first.
    poll("the hook", PATIENCE, || std::fs::read_to_string(&ran).map_err(|error| error.to_string()))?;
    ready.node.cri().remove_container(cri::RemoveContainerRequest { container_id: id })?;
    assert_eq!(std::fs::read_to_string(&ran)?, "x\n");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// The handler's own default went with its name.
#[test]
fn a_sandbox_keeps_the_default_that_it_was_made_with() -> Result<()> {
    let mut ready = ready()?;
    ready
        .node
        .restart_with(&["--handlers=strict:type=gantry,unset_seccomp_profile=runtime/default".into()])?;
    let config = pod::sandbox_config(&ready.node, "strict");
    let pod = Pod::run_handler(&ready.node, config.clone(), "strict")?;
    let (sandbox, log) = (pod.id.clone(), pod.log_path("mode"));
    drop(pod);
    ready.node.restart_with(&[])?;
    let script = "grep -E '^Seccomp:' /proc/self/status";
    let mut own = pod::container_config("mode", &ready.image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut own, |security| security.seccomp = None);
    let asked = cri::CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(own),
        sandbox_config: Some(config),
    };
    let container_id = ready.node.cri().create_container(asked)?.container_id;
    ready.node.cri().start_container(cri::StartContainerRequest { container_id: container_id.clone() })?;
    pod::await_exit(&ready.node, &container_id)?;
    assert_eq!(pod::parse_log(&std::fs::read_to_string(log)?)?, "Seccomp:\t2\n");
    remove(&ready, sandbox)?;
    ready.node.assert_clean(&ready.before)
}
