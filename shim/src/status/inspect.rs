//! What `crictl inspect` and `crictl inspectp` show beside the status: the `info` that scripts read for pids, namespaces
//! and addresses, with containerd's names (ContainerInfo, SandboxInfo). Owns its form; what containerd has there of its
//! own snapshots and of configs that are not kept is left out. Pure but for reading states. Called by `status`.

use serde_json::{Value, json};

use crate::store::record::Process;
use crate::store::{Container, ContainerState, Sandbox, SandboxState};

/// Of a container.
pub(super) fn container(container: &Container) -> Value {
    let record = container.record();
    let process = match container.state() {
        ContainerState::Running(_) => record.started.map(|started| started.process),
        ContainerState::Created | ContainerState::Exited(_) => None,
    };
    json!({
        "sandboxID": record.sandbox_id,
        "pid": pid(process),
        "removing": false,
        "folder": container.folder,
        "runtimeSpec": {
            "annotations": record.annotations,
            "linux": { "cgroupsPath": record.cgroup, "namespaces": namespaces(process, None) },
        },
    })
}

/// Of a sandbox; its process is pause.
pub(super) fn sandbox(sandbox: &Sandbox) -> Value {
    let record = sandbox.record();
    let ready = sandbox.state() == SandboxState::Ready;
    let process = record.pause.filter(|_| ready);
    let netns = record.network.as_ref().map(|network| network.netns.display().to_string());
    json!({
        "pid": pid(process),
        "processStatus": if ready { "running" } else { "deleted" },
        "netNamespaceClosed": record.network.is_some() && record.stopped,
        "runtimeHandler": record.runtime_handler,
        "cniResult": record.network.as_ref().and_then(|network| network.result.as_ref()),
        "runtimeSpec": {
            "hostname": record.hostname,
            "annotations": record.annotations,
            "linux": { "cgroupsPath": record.cgroup_parent, "namespaces": namespaces(process, netns.as_deref()) },
        },
    })
}

fn pid(process: Option<Process>) -> i32 {
    process.map_or(0, |process| process.pid)
}

/// By path, as a program outside enters them.
fn namespaces(process: Option<Process>, netns: Option<&str>) -> Vec<Value> {
    let own = [("pid", "pid"), ("ipc", "ipc"), ("uts", "uts"), ("mount", "mnt"), ("network", "net")];
    let of = |Process { pid, .. }: Process| {
        own.map(|(kind, file)| {
            let path = match netns {
                Some(netns) if kind == "network" => netns.to_owned(),
                _ => format!("/proc/{pid}/ns/{file}"),
            };
            json!({ "type": kind, "path": path })
        })
    };
    process.map(of).into_iter().flatten().collect()
}
