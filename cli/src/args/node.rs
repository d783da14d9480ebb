//! The flags of run, node, agent and down. Owns which go together; never acts. Parsed by [`crate::main`].

use std::path::PathBuf;

use clap::Args;

use super::{AgentFlags, DEFAULT_AGENT_SOCKET, RuntimeFlags, unix_endpoint, unix_path};

/// Which pods, and where an agent keeps what it has of them.
#[derive(Debug, Args)]
pub(crate) struct PodsFlags {
    /// Manifests, folders of them, or http and https URLs (`gantry run` alone); - is standard input. Each may hold
    /// several documents of kind Pod, ConfigMap and Secret.
    #[arg(required_unless_present = "manifest_dir", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Run the static pods of this folder, too, and follow its changes.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifest_dir: Option<PathBuf>,
    /// Where `gantry ps` and the like reach this agent.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_AGENT_SOCKET)]
    pub(crate) agent_socket: PathBuf,
    /// Folder of the pods' log folders.
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    pub(crate) pod_logs_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) pods: PodsFlags,
    /// Go to the background, as two processes, and return when they know all pods. The same command
    /// takes the pods up again when both were killed.
    #[arg(short, long, conflicts_with = "container_runtime_endpoint")]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) flags: RuntimeFlags,
    /// Use this runtime instead of one in the same process; of the flags above only --root (for the
    /// default of --root-dir) and --cgroup-root (for the pods' cgroups) still count then.
    #[arg(long, value_name = "unix:///PATH", value_parser = unix_endpoint)]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// Folder of the pods' volumes, laid out as a kubelet's; `kubelet` below --root when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) root_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Address that the runtime serves on, for other clients than the kubelet.
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///run/gantry/gantry.sock", value_parser = unix_path)]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) flags: RuntimeFlags,
    /// The kubelet's arguments, as of `gantry kubelet`; its runtime endpoint is always this node's own.
    #[arg(last = true, value_name = "KUBELET-ARGUMENT")]
    pub(crate) kubelet: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Manifests, folders of them, or http and https URLs; - is standard input.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) pods: PodsFlags,
    /// The runtime.
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///run/gantry/gantry.sock", value_parser = unix_endpoint)]
    pub(crate) container_runtime_endpoint: String,
    /// Folder of the pods' volumes, laid out as a kubelet's.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gantry/kubelet")]
    pub(crate) root_dir: PathBuf,
    /// Cgroup below which pods and their classes are made: the runtime's.
    #[arg(long, value_name = "PATH", default_value = "/gantry")]
    pub(crate) cgroup_root: String,
    /// RuntimeDefault seccomp for containers that name no profile; Unconfined otherwise, as a kubelet.
    #[arg(long)]
    pub(crate) seccomp_default: bool,
    /// Begin by leaving the terminal and its session.
    #[arg(long, hide = true)]
    pub(crate) daemon: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// The runtime's --state.
    #[arg(long, value_name = "DIR", default_value = "/run/gantry")]
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
    /// Seconds between SIGTERM and SIGKILL, in place of each pod's own; 0 kills at once.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=315_360_000))]
    pub(crate) grace: Option<i64>,
}
