//! The command line. Owns flags, defaults and help; never acts. Parsed by [`crate::main`].

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A Kubernetes node in one program: runs pods on its own container runtime.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Say more on stderr; twice for each step.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the container runtime (CRI v1) on a unix socket.
    Runtime(RuntimeArgs),
    /// Run the pods of YAML files in the foreground, until they have ended or Ctrl-C.
    ///
    /// Ends with 0 when all pods succeeded or were stopped on request, 1 when one failed,
    /// 2 when a file is wrong.
    Run(Box<RunArgs>),
    /// List the pods of a running agent.
    Ps(PsArgs),
    /// Print what a container wrote.
    Logs(LogsArgs),
    /// Stop a pod and remove it.
    Stop(StopArgs),
    /// Show where the time of a pod's start went.
    Timeline(TimelineArgs),
}

/// Where the runtime keeps things; all of it can be moved, so that several nodes live on
/// one machine.
#[derive(Debug, Args)]
pub(crate) struct RuntimeFlags {
    /// Images, layers, records of sandboxes and containers.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gantry")]
    pub(crate) root: PathBuf,
    /// Sockets, locks and what need not survive a reboot.
    #[arg(long, value_name = "DIR", default_value = "/run/gantry")]
    pub(crate) state: PathBuf,
    /// Network configurations; the first by name is used.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,
    /// Network plugins that are not built in.
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,
    /// Results of network plugins, kept until their pods are gone.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni/results")]
    pub(crate) cni_cache_dir: PathBuf,
    /// Leased addresses.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni/networks")]
    pub(crate) cni_data_dir: PathBuf,
    /// Where network namespaces are pinned.
    #[arg(long, value_name = "DIR", default_value = "/run/netns")]
    pub(crate) netns_dir: PathBuf,
    /// Cgroup below which pods and their classes are made.
    #[arg(long, value_name = "PATH", default_value = "/gantry")]
    pub(crate) cgroup_root: String,
    /// Folder of gantry-monitor and gantry-pause; beside this program when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) programs_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RuntimeArgs {
    /// Address to serve on.
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///run/gantry/gantry.sock", value_parser = unix_path)]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) flags: RuntimeFlags,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Manifests; each may hold several documents: pods, and ConfigMaps and Secrets for them.
    #[arg(required_unless_present = "manifest_dir", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Folder of static pods, followed as it changes: upstream's rules, one pod for each file.
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    pub(crate) manifest_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: RuntimeFlags,
    /// Use this runtime instead of one in the same process; the flags above then mean nothing.
    #[arg(long, value_name = "unix:///PATH", value_parser = unix_endpoint)]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// Where `gantry ps` and the like reach this agent.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_AGENT_SOCKET)]
    pub(crate) agent_socket: PathBuf,
    /// Folder of the pods' log folders.
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    pub(crate) pod_logs_dir: PathBuf,
    /// Folder of the pods' volumes, laid out as a kubelet's; `kubelet` below --root when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) root_dir: Option<PathBuf>,
}

const DEFAULT_AGENT_SOCKET: &str = "/run/gantry/agent.sock";

/// Which agent.
#[derive(Debug, Args)]
pub(crate) struct AgentFlags {
    /// Where the agent is reached.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_AGENT_SOCKET)]
    pub(crate) agent_socket: PathBuf,
}

/// Which pod of which agent.
#[derive(Debug, Args)]
pub(crate) struct PodFlags {
    /// The pod's name.
    #[arg(value_name = "POD")]
    pub(crate) pod: String,
    /// The pod's namespace.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PsFormat {
    /// A table for people.
    Table,
    /// A JSON array.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: PsFormat,
    /// Only pods of this namespace.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// The container, when the pod has several.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Go on until the container has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// From SIGTERM to SIGKILL, instead of the pod's own; 0 kills at once.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=315_360_000))]
    pub(crate) grace: Option<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// Print the stages as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn unix_path(text: &str) -> Result<PathBuf, String> {
    text.strip_prefix("unix://")
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .ok_or_else(|| "expected an address of the form unix:///path".to_owned())
}

fn unix_endpoint(text: &str) -> Result<String, String> {
    unix_path(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn addresses_are_unix_sockets() {
        let parse = |args: &[&str]| Cli::try_parse_from(args);
        assert!(parse(&["gantry", "runtime", "--socket", "tcp://x"]).is_err());
        assert!(parse(&["gantry", "run", "a", "--container-runtime-endpoint", "/x"]).is_err());
        assert!(parse(&["gantry", "run"]).is_err());
        assert!(parse(&["gantry", "stop", "web", "--grace", "-1"]).is_err());
        let Command::Runtime(args) =
            parse(&["gantry", "runtime", "--socket", "unix:///a/b"]).unwrap().command
        else {
            panic!("not a runtime");
        };
        assert_eq!(args.socket, PathBuf::from("/a/b"));
    }
}
