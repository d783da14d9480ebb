//! The CRI runtime of a cluster's node: containerd or Gantry's own, at the paths where users have them. Owns the process
//! and its configuration; never decides what runs. Called by `cluster`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;

use super::images::{MIRRORED, PAUSE, REGISTRY};
use super::process::{NodeProcess, ProcessSpec};
use crate::cri::Cri;
use crate::peers::Programs;
use crate::poll::poll;
use crate::{place, proc};

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    Containerd,
    Gantry,
}

impl RuntimeKind {
    /// Its socket.
    #[must_use]
    pub fn socket(self) -> PathBuf {
        match self {
            RuntimeKind::Containerd => "/run/containerd/containerd.sock".into(),
            RuntimeKind::Gantry => "/run/gantry/gantry.sock".into(),
        }
    }
}

/// A running one.
#[derive(Debug)]
pub struct ClusterRuntime {
    kind: RuntimeKind,
    process: NodeProcess,
    cri: Cri,
}

impl ClusterRuntime {
    /// Starts it and waits until it and its network are ready.
    pub(super) fn start(kind: RuntimeKind, folder: &Path, logs: &Path) -> Result<Self> {
        write_mirrors(&folder.join("certs.d"))?;
        let recipe = match kind {
            RuntimeKind::Containerd => containerd(folder)?,
            RuntimeKind::Gantry => gantry(folder)?,
        };
        let process = NodeProcess::start(recipe, logs)?;
        let mut runtime = Self { kind, process, cri: Cri::new(&kind.socket())? };
        runtime.await_ready()?;
        Ok(runtime)
    }

    fn await_ready(&mut self) -> Result<()> {
        let (process, cri) = (&mut self.process, &self.cri);
        let answer = poll("the runtime to be ready", Duration::from_secs(60), || {
            if let Err(error) = process.check() {
                return Ok(Err(error));
            }
            ready(cri).map(Ok)
        });
        answer.flatten().with_context(|| self.process.log_tail())
    }

    /// Which one it is.
    #[must_use]
    pub fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// Its CRI.
    #[must_use]
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Its process, to be killed and started again.
    pub fn process(&mut self) -> &mut NodeProcess {
        &mut self.process
    }

    /// Kills its process and starts it again; returns when it is ready. Containers run on.
    ///
    /// # Errors
    /// When it cannot be killed or started, or is not ready in a minute.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.take_over()
    }

    /// Stops its process, for a `gantry node` that serves its socket instead; pods run on.
    pub(super) fn give_way(&mut self) -> Result<()> {
        self.process.stop().map(drop)
    }

    /// Starts its process again, now that nobody serves its socket.
    pub(super) fn take_over(&mut self) -> Result<()> {
        self.process.restart()?;
        self.await_ready()
    }

    /// Removes every pod, then stops. With no kubelet beside it nobody brings them back.
    pub(super) fn end(&mut self) -> Result<()> {
        let removed = self.remove_pods();
        self.process.stop()?;
        removed.with_context(|| self.process.log_tail())?;
        // A shim ends a moment after its last container.
        poll("the shims to end", Duration::from_secs(20), || {
            let all = proc::all().map_err(|error| format!("{error:#}"))?;
            let left: Vec<_> = all.iter().filter(|one| one.name.starts_with("containerd-shim")).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
    }

    fn remove_pods(&self) -> Result<()> {
        for sandbox in self.cri.list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items {
            let pod_sandbox_id = sandbox.id;
            self.cri
                .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() })?;
            self.cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id })?;
        }
        Ok(())
    }
}

fn ready(cri: &Cri) -> Result<(), String> {
    let answer = cri.status(cri::StatusRequest { verbose: false }).map_err(|status| status.to_string())?;
    let conditions = answer.status.unwrap_or_default().conditions;
    let named = ["RuntimeReady", "NetworkReady"];
    match conditions.iter().find(|one| named.contains(&one.r#type.as_str()) && !one.status) {
        None => Ok(()),
        Some(condition) => Err(format!("{}: {} {}", condition.r#type, condition.reason, condition.message)),
    }
}

fn containerd(folder: &Path) -> Result<ProcessSpec> {
    let programs = Programs::built()?;
    let config = folder.join("containerd.toml");
    std::fs::write(&config, containerd_config(folder, &programs))?;
    let path = std::env::var("PATH").unwrap_or_default();
    // The shim is looked for in PATH; portmap runs nft.
    let path = format!("{}:{path}:/usr/sbin:/sbin", programs.folder().display());
    let args = ["--config".into(), config.into_os_string()];
    Ok(ProcessSpec::new("containerd", programs.path("containerd"), args).env("PATH", path))
}

/// Defaults but for what this machine lacks: without CAP_SYS_RESOURCE every pod would fail, and an exec whose child keeps
/// the pipe would be waited for without end.
fn containerd_config(folder: &Path, programs: &Programs) -> String {
    format!(
        r#"version = 3
disabled_plugins = ["io.containerd.nri.v1.nri"]

[debug]
level = "info"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{certs}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
drain_exec_sync_io_timeout = "10s"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{net}"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#,
        certs = folder.join("certs.d").display(),
        cni = programs.path("cni").display(),
        net = folder.join("cni/net.d").display(),
        runc = programs.path("runc").display(),
    )
}

fn gantry(folder: &Path) -> Result<ProcessSpec> {
    let args = std::iter::once("runtime".into()).chain(gantry_flags(folder)?);
    Ok(ProcessSpec::new("gantry-runtime", place::bin_dir()?.join("gantry"), args))
}

/// The flags of Gantry's runtime, alone or in `gantry node`.
pub(super) fn gantry_flags(folder: &Path) -> Result<[std::ffi::OsString; 3]> {
    let programs = place::bin_dir()?;
    let at = |flag: &str, path: PathBuf| {
        let mut flag = std::ffi::OsString::from(format!("--{flag}="));
        flag.push(path);
        flag
    };
    Ok([
        at("cni-conf-dir", folder.join("cni/net.d")),
        at("registry-hosts-dir", folder.join("certs.d")),
        at("programs-dir", programs),
    ])
}

/// As an operator writes them: each registry's images come from the local one, in plain HTTP.
fn write_mirrors(certs: &Path) -> Result<()> {
    for host in MIRRORED {
        let folder = certs.join(host);
        std::fs::create_dir_all(&folder)?;
        let text = format!(
            "server = \"https://{host}\"\n\n[host.\"http://{REGISTRY}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
        );
        std::fs::write(folder.join("hosts.toml"), text).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}
