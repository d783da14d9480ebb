//! Pods through CRI as a kubelet would make them: configs, and the calls of a pod's life in order.
//! Owns the ids of one pod; never cleans up by itself (the tests say when, and leakcheck looks).
//! Called by the kernel tier.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, NamespaceMode};

use crate::node::Node;
use crate::poll::poll;

/// What the kubelet masks for a container that is not privileged.
pub const MASKED: [&str; 9] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
];

/// What the kubelet makes read-only.
pub const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A sandbox that exists in a runtime.
#[derive(Debug)]
pub struct Pod<'a> {
    node: &'a Node,
    pub id: String,
    config: cri::PodSandboxConfig,
}

/// The config of a sandbox `name` whose logs go below the node's log folder.
#[must_use]
pub fn sandbox_config(node: &Node, name: &str) -> cri::PodSandboxConfig {
    let uid = format!("uid-{name}");
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.clone(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: node.logs().join(format!("default_{name}_{uid}")).to_string_lossy().into_owned(),
        labels: [("app".to_owned(), name.to_owned())].into(),
        annotations: [("note".to_owned(), "kept as given".to_owned())].into(),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                seccomp: Some(unconfined()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The config of a container that runs `command` of `image`, with the kubelet's usual context.
#[must_use]
pub fn container_config(name: &str, image: &str, command: &[&str]) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() }),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        log_path: format!("{name}/0.log"),
        labels: [("container".to_owned(), name.to_owned())].into(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources { oom_score_adj: 1000, ..Default::default() }),
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                masked_paths: MASKED.map(str::to_owned).to_vec(),
                readonly_paths: READONLY.map(str::to_owned).to_vec(),
                seccomp: Some(unconfined()),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

fn namespaces() -> cri::NamespaceOption {
    cri::NamespaceOption {
        network: NamespaceMode::Pod.into(),
        pid: NamespaceMode::Container.into(),
        ipc: NamespaceMode::Pod.into(),
        ..Default::default()
    }
}

fn unconfined() -> cri::SecurityProfile {
    cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::Unconfined.into(),
        ..Default::default()
    }
}

/// Changes the security context of a container config.
pub fn with_security(
    config: &mut cri::ContainerConfig,
    change: impl FnOnce(&mut cri::LinuxContainerSecurityContext),
) {
    let linux = config.linux.get_or_insert_default();
    change(linux.security_context.get_or_insert_default());
}

impl<'a> Pod<'a> {
    /// RunPodSandbox.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run(node: &'a Node, name: &str) -> Result<Self> {
        Self::run_config(node, sandbox_config(node, name))
    }

    /// RunPodSandbox of a config of one's own.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run_config(node: &'a Node, config: cri::PodSandboxConfig) -> Result<Self> {
        Self::run_handler(node, config, "")
    }

    /// RunPodSandbox with a runtime handler.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run_handler(node: &'a Node, config: cri::PodSandboxConfig, handler: &str) -> Result<Self> {
        std::fs::create_dir_all(&config.log_directory)?;
        let request =
            cri::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        let id = node.cri().run_pod_sandbox(request).context("RunPodSandbox")?.pod_sandbox_id;
        Ok(Pod { node, id, config })
    }

    /// CreateContainer.
    ///
    /// # Errors
    /// The runtime's status, to be looked into.
    pub fn create(&self, config: &cri::ContainerConfig) -> Result<String, tonic::Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: self.id.clone(),
            config: Some(config.clone()),
            sandbox_config: Some(self.config.clone()),
        };
        self.node.cri().create_container(request).map(|answer| answer.container_id)
    }

    /// CreateContainer and StartContainer.
    ///
    /// # Errors
    /// The runtime's.
    pub fn start(&self, config: &cri::ContainerConfig) -> Result<String> {
        let id = self.create(config).context("CreateContainer")?;
        let request = cri::StartContainerRequest { container_id: id.clone() };
        self.node.cri().start_container(request).context("StartContainer")?;
        Ok(id)
    }

    /// PodSandboxStatus.
    ///
    /// # Errors
    /// The runtime's.
    pub fn status(&self) -> Result<cri::PodSandboxStatus> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: self.id.clone(), verbose: false };
        let answer = self.node.cri().pod_sandbox_status(request).context("PodSandboxStatus")?;
        answer.status.context("PodSandboxStatus without a status")
    }

    /// The pod's first address.
    ///
    /// # Errors
    /// When it has none.
    pub fn ip(&self) -> Result<IpAddr> {
        let ip = self.status()?.network.context("the sandbox has no network")?.ip;
        ip.parse().with_context(|| format!("pod IP {ip:?}"))
    }

    /// The pod's first address with a port.
    ///
    /// # Errors
    /// When it has none.
    pub fn addr(&self, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.ip()?, port))
    }

    /// The log file of a container made by [`container_config`].
    #[must_use]
    pub fn log_path(&self, container: &str) -> PathBuf {
        Path::new(&self.config.log_directory).join(container).join("0.log")
    }

    /// The container's log without the CRI prefixes, stdout and stderr together.
    ///
    /// # Errors
    /// When the file is missing or a line is not `TIME STREAM TAG text`.
    pub fn log(&self, container: &str) -> Result<String> {
        let path = self.log_path(container);
        let raw = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        parse_log(&raw)
    }

    /// StopPodSandbox and RemovePodSandbox.
    ///
    /// # Errors
    /// The runtime's.
    pub fn remove(&self) -> Result<()> {
        let cri = self.node.cri();
        cri.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: self.id.clone() })
            .context("StopPodSandbox")?;
        cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: self.id.clone() })
            .context("RemovePodSandbox")?;
        Ok(())
    }
}

/// The text of a CRI log. A partial line (`P`) is joined with what follows it.
///
/// # Errors
/// When a line is not `TIME STREAM TAG text`.
pub fn parse_log(raw: &str) -> Result<String> {
    let mut text = String::new();
    for line in raw.lines() {
        let parts: Vec<&str> = line.splitn(4, ' ').collect();
        let [time, stream, tag, rest] = parts[..] else { anyhow::bail!("not a CRI log line: {line:?}") };
        anyhow::ensure!(time.len() >= 20 && time.contains('T'), "no RFC 3339 time: {line:?}");
        anyhow::ensure!(matches!(stream, "stdout" | "stderr"), "no such stream: {line:?}");
        text.push_str(rest);
        match tag {
            "F" => text.push('\n'),
            "P" => {}
            _ => anyhow::bail!("no such tag: {line:?}"),
        }
    }
    Ok(text)
}

/// ContainerStatus.
///
/// # Errors
/// The runtime's.
pub fn container_status(node: &Node, id: &str) -> Result<cri::ContainerStatus> {
    let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let answer = node.cri().container_status(request).context("ContainerStatus")?;
    answer.status.context("ContainerStatus without a status")
}

/// Waits until a container has ended.
///
/// # Errors
/// When it has not after 30 s; shows its last status.
pub fn await_exit(node: &Node, id: &str) -> Result<cri::ContainerStatus> {
    poll("the container to end", Duration::from_secs(30), || {
        let status = container_status(node, id).map_err(|error| format!("{error:#}"))?;
        if status.state == i32::from(ContainerState::ContainerExited) {
            Ok(status)
        } else {
            Err(format!("{status:?}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_partial_lines() {
        let raw = "2026-11-21T02:00:00.000000000Z stdout P ab\n2026-11-21T02:00:00.000000001Z stdout F c\n";
        assert_eq!(parse_log(raw).unwrap(), "abc\n");
    }

    #[test]
    fn refuses_lines_that_are_not_cri() {
        for raw in ["hello", "2026-11-21T02:00:00.0Z stdin F x", "2026-11-21T02:00:00.0Z stdout X x"] {
            assert!(parse_log(raw).is_err(), "{raw}");
        }
    }
}
