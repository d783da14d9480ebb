//! The command line. Owns flags, defaults and help; never acts. Parsed by [`crate::main`].

mod copy;
mod duration;
mod help;
mod image;
mod join;
mod login;
mod node;
mod pods;
mod selector;
pub(crate) mod settings;
mod streams;
mod wait;
mod watch;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use copy::{CpArgs, FileSpec, InspectArgs, ObjectFormat};
pub(crate) use image::{DEFAULT_ROOT, ImageCommand, ImagesArgs, LoadArgs, PullArgs, RmiArgs, StoreFlags};
pub(crate) use join::{JoinArgs, LeaveArgs};
pub(crate) use login::{LoginArgs, LogoutArgs, Secret};
pub(crate) use node::{AgentArgs, ApplyArgs, DownArgs, NodeArgs, PodsFlags, RunArgs};
pub(crate) use pods::{Only, PodFlags, PodName, SomePods, Target, or_default};
pub(crate) use selector::Selector;
pub(crate) use streams::{AttachArgs, ContainerFlags, ExecArgs, PortForwardArgs, PortPair, Remote};
pub(crate) use wait::{Goal, WaitArgs};
pub(crate) use watch::{LogsArgs, StatsArgs};

use crate::join::discovery::Endpoint;

/// A Kubernetes node in one program: runs pods on its own container runtime.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Print more on stderr; given twice, each step.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Options from a file: each key is a flag in snake_case, and flags and variables win.
    ///
    /// /etc/gantry/config.toml when not given, if it is there.
    #[arg(long, value_name = "FILE.toml", global = true)]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the container runtime (CRI v1) on a unix socket.
    #[command(args_override_self = true)]
    Runtime(Box<RuntimeArgs>),
    /// Run a node of a cluster: the container runtime and the kubelet in one process.
    ///
    /// The kubelet's arguments follow `--`. SIGTERM ends both halves, not the pods; the next node adopts them.
    #[command(args_override_self = true, after_help = help::NODE)]
    Node(Box<NodeArgs>),
    /// Run the pods of YAML files in the foreground, until they have ended or Ctrl-C.
    ///
    /// Ends with 0 when all pods succeeded or were stopped on request, 1 when one failed,
    /// 2 when a file is wrong. With --manifest-dir it goes on until Ctrl-C, with --detach in the
    /// background until `gantry down`. While an agent runs already, it adds the pods to that agent's and
    /// returns; its flags about the runtime do not count then.
    #[command(after_help = help::RUN)]
    Run(Box<RunArgs>),
    /// Add the pods of YAML files to those of a running agent.
    ///
    /// A pod of the same name that is described otherwise is stopped, and the new one takes its place.
    /// ConfigMaps and Secrets are replaced, and volumes that show them follow. The agent knows what was
    /// added until it ends.
    #[command(after_help = help::APPLY)]
    Apply(ApplyArgs),
    /// Run pods on a separate `gantry runtime`.
    ///
    /// SIGTERM stops the agent, not the pods; the next agent adopts them. `gantry down` stops both.
    Agent(Box<AgentArgs>),
    /// Stop and remove every pod of an agent, end it, and end the runtime of `gantry run --detach`.
    Down(DownArgs),
    /// List the pods of a running agent.
    #[command(after_help = help::PS)]
    Ps(PsArgs),
    /// Print what containers wrote.
    #[command(after_help = help::LOGS)]
    Logs(LogsArgs),
    /// Run a command in a container and exit with its exit code.
    Exec(ExecArgs),
    /// Show what a container writes, and write to its stdin.
    Attach(AttachArgs),
    /// Copy files and folders to and from containers, which must have tar.
    #[command(after_help = help::CP)]
    Cp(CpArgs),
    /// Wait until pods are in a state.
    ///
    /// Ends with 0 when all of them are, and with 1 when the time is over first.
    #[command(after_help = help::WAIT)]
    Wait(WaitArgs),
    /// Print all that the runtime tells of a pod's sandbox and containers.
    #[command(after_help = help::INSPECT)]
    Inspect(InspectArgs),
    /// Forward ports of this machine to a pod.
    #[command(after_help = help::PORT_FORWARD)]
    PortForward(PortForwardArgs),
    /// Stop pods and remove them.
    #[command(visible_aliases = ["rm", "delete"], after_help = help::STOP)]
    Stop(StopArgs),
    /// Say why a pod is not running, and how to fix it.
    #[command(visible_alias = "describe")]
    #[command(after_help = help::EXPLAIN)]
    Explain(ExplainArgs),
    /// List what happened to pods.
    Events(EventsArgs),
    /// Show where the time of a pod's start went.
    #[command(after_help = help::TIMELINE)]
    Timeline(TimelineArgs),
    /// Fetch images and show how far each layer has come.
    ///
    /// By the runtime that runs; where none does, into the images of this node, which the next one finds. A runtime does
    /// not start meanwhile. `gantry images`, `gantry rmi` and `gantry image load` do so, too.
    #[command(after_help = help::PULL)]
    Pull(PullArgs),
    /// List the images of this node.
    #[command(after_help = help::IMAGES)]
    Images(ImagesArgs),
    /// Remove images.
    Rmi(RmiArgs),
    /// Load images without a registry.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Log in to a registry: check a user name and a password there, and keep them for pulls.
    ///
    /// They are kept in docker's config.json, as text that can be read. `gantry run` and `gantry pull` without a
    /// runtime read $HOME/.docker/config.json; a `gantry runtime` reads the file that its --registry-auth-file names.
    #[command(after_help = help::LOGIN)]
    Login(LoginArgs),
    /// Log out of a registry: remove what `gantry login` has kept.
    #[command(after_help = help::LOGOUT)]
    Logout(LogoutArgs),
    /// Show how much processor time and memory containers use, and how much of their limits that is.
    #[command(visible_alias = "top", after_help = help::STATS)]
    Stats(StatsArgs),
    /// Check whether this machine can run pods, and say what to do when it cannot.
    Doctor(Box<DoctorArgs>),
    /// Prepare this machine and join it to a cluster as a node, by `kubeadm join`.
    ///
    /// `gantry leave` takes back what it has changed.
    Join(Box<JoinArgs>),
    /// Take this machine out of the cluster again: `kubeadm reset`, and what `gantry join` has changed.
    Leave(LeaveArgs),
    /// Print the completion script for a shell.
    Completion(CompletionArgs),
    /// Print the versions of Gantry, of its kubelet and of CRI.
    Version,
    /// Write a manual page for each command; the package brings them.
    #[command(hide = true)]
    Manual(ManualArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell that completes.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// Where to; the folder is there.
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// Where the runtime keeps things; all of it can be moved, so that several nodes live on
/// one machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Runtime")]
pub(crate) struct RuntimeFlags {
    /// Images, layers, records of sandboxes and containers.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gantry")]
    pub(crate) root: PathBuf,
    /// Sockets, locks and what need not survive a reboot.
    #[arg(long, value_name = "DIR", default_value = "/run/gantry")]
    pub(crate) state: PathBuf,
    /// Network configurations; the first by name is used.
    #[arg(long, help_heading = "Network", value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,
    /// Network plugins that are not built in.
    #[arg(long, help_heading = "Network", value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,
    /// Run the programs of that folder even for plugins that are built in.
    #[arg(long, help_heading = "Network")]
    pub(crate) cni_external: bool,
    /// Results of network plugins, kept until their pods are gone.
    #[arg(long, help_heading = "Network", value_name = "DIR", default_value = "/var/lib/cni/results")]
    pub(crate) cni_cache_dir: PathBuf,
    /// Folder of the leased addresses.
    #[arg(long, help_heading = "Network", value_name = "DIR", default_value = "/var/lib/cni/networks")]
    pub(crate) cni_data_dir: PathBuf,
    /// Where network namespaces are pinned.
    #[arg(long, help_heading = "Network", value_name = "DIR", default_value = "/run/netns")]
    pub(crate) netns_dir: PathBuf,
    /// Cgroup below which pods and their classes are made.
    #[arg(long, value_name = "PATH", default_value = "/gantry")]
    pub(crate) cgroup_root: String,
    /// The cgroup driver systemd: pods are scopes in the slices that clients name.
    #[arg(long)]
    pub(crate) systemd_cgroup: bool,
    /// How to reach registries: mirrors, certificates, plain HTTP; HOST/hosts.toml as containerd reads it.
    #[arg(long, help_heading = "Images", value_name = "DIR", default_value = "/etc/containerd/certs.d")]
    pub(crate) registry_hosts_dir: PathBuf,
    /// Docker's config.json, for pulls that bring no credentials; `gantry run` without this flag reads root's own.
    #[arg(long, help_heading = "Images", value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Images reported as pinned, which a kubelet never removes: names as in a pull.
    #[arg(long, help_heading = "Images", value_name = "IMAGE", value_delimiter = ',')]
    pub(crate) pinned_images: Vec<String>,
    /// Images that are pulled at the start if they are not here: names as in a pull.
    #[arg(long, help_heading = "Images", value_name = "IMAGE", value_delimiter = ',')]
    pub(crate) prepull_images: Vec<String>,
    /// Optimisations of pulls to leave out, for benches: side-by-side, large-pipes, sync-behind, pieces, largest-first, batches.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', hide = true)]
    pub(crate) pull_without: Vec<gantry_image::Optimisation>,
    /// Folder of gantry-monitor, gantry-pause and gantry-unpack; beside this program when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) programs_dir: Option<PathBuf>,
    /// What pods may name as their runtime: NAME:type=oci,path=/PROGRAM[,root=DIR] has containers made by an
    /// OCI runtime such as runc, NAME:type=gantry[,unset_seccomp_profile=PROFILE] by this one; again for each.
    #[arg(long, value_name = "NAME:KEY=VALUE,…", value_parser = a_handler)]
    pub(crate) handlers: Vec<String>,
    /// Folders of CDI files, which say what a device by name is; a later folder wins.
    #[arg(
        long,
        help_heading = "Devices",
        value_name = "DIR,…",
        value_delimiter = ',',
        default_value = "/etc/cdi,/var/run/cdi"
    )]
    pub(crate) cdi_spec_dirs: Vec<PathBuf>,
    /// Whether containers may ask for CDI devices.
    #[arg(long, help_heading = "Devices", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) enable_cdi: bool,
    #[command(flatten)]
    pub(crate) security: SecurityFlags,
    #[command(flatten)]
    pub(crate) tracing: TracingFlags,
    /// Where the id of this boot is read: tests play a reboot with it.
    #[arg(long, value_name = "FILE", default_value = "/proc/sys/kernel/random/boot_id", hide = true)]
    pub(crate) boot_id_file: PathBuf,
}

/// What holds a container back, and is the node's to say.
#[derive(Debug, Args)]
pub(crate) struct SecurityFlags {
    /// Seccomp profile of containers that name none: unconfined, runtime/default or localhost//PATH.
    #[arg(long, help_heading = "Security", value_name = "PROFILE", default_value = "unconfined")]
    pub(crate) unset_seccomp_profile: String,
    /// Apply no AppArmor profiles, also where the node has AppArmor.
    #[arg(long, help_heading = "Security")]
    pub(crate) disable_apparmor: bool,
    /// Give pods SELinux labels, where the node has SELinux.
    #[arg(long, help_heading = "Security")]
    pub(crate) enable_selinux: bool,
    /// How many SELinux categories there are to tell pods apart.
    #[arg(long, help_heading = "Security", value_name = "NUMBER", default_value_t = 1024)]
    pub(crate) selinux_category_range: u32,
}

/// Where spans go.
#[derive(Debug, Args)]
pub(crate) struct TracingFlags {
    /// Send spans of CRI calls to an OpenTelemetry collector, by OTLP over gRPC without TLS, as in 127.0.0.1:4317.
    #[arg(long, help_heading = "Tracing", value_name = "HOST:PORT|unix:///PATH", value_parser = a_collector)]
    pub(crate) tracing_endpoint: Option<String>,
    /// Of a million calls that belong to no trace, how many begin one; calls of a kubelet that traces follow its rate.
    #[arg(
        long,
        help_heading = "Tracing",
        value_name = "NUMBER",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=1_000_000)
    )]
    pub(crate) tracing_sampling_rate_per_million: u32,
}

/// As it is written: it may be passed on.
fn a_handler(text: &str) -> Result<String, gantry_shim::config::handlers::Error> {
    gantry_shim::config::handlers::parse(text).map(|_| text.to_owned())
}

/// As it is written: the runtime reads it.
fn a_collector(text: &str) -> Result<String, gantry_shim::spans::Unsupported> {
    gantry_shim::spans::check(text).map(|()| text.to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct RuntimeArgs {
    /// Address to serve on.
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///run/gantry/gantry.sock", value_parser = unix_path)]
    pub(crate) socket: PathBuf,
    /// Bring what `gantry run` needs beyond CRI, as a runtime that ends with its pods.
    #[arg(long, hide = true)]
    pub(crate) standalone: bool,
    /// Detach from the terminal and its session first.
    #[arg(long, hide = true)]
    pub(crate) daemon: bool,
    #[command(flatten)]
    pub(crate) flags: RuntimeFlags,
}

pub(crate) const DEFAULT_AGENT_SOCKET: &str = "/run/gantry/agent.sock";

/// Which agent.
#[derive(Debug, Args)]
pub(crate) struct AgentFlags {
    /// Where the agent is reached.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_AGENT_SOCKET)]
    pub(crate) agent_socket: PathBuf,
}

/// Which runtime: the agent's, which passes calls on, or one with a socket of its own.
#[derive(Debug, Args)]
pub(crate) struct RuntimeEndpoint {
    /// Reach the runtime here instead of through an agent.
    #[arg(long, value_name = "unix:///PATH", value_parser = unix_endpoint)]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// Where the agent is reached.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_AGENT_SOCKET)]
    pub(crate) agent_socket: PathBuf,
}

/// How lists are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// A table for people.
    Table,
    /// A table with more columns.
    Wide,
    /// A JSON array.
    Json,
    /// The same as YAML.
    Yaml,
}

impl ListFormat {
    /// Made to be looked at.
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: ListFormat,
    /// A registry that must answer, as in an image's name; may be given several times.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) registry: Vec<String>,
    /// Check what a join to the cluster of this API server needs, too.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) join: Option<Endpoint>,
    /// The bootstrap token to join with; shown to nobody but the cluster that it belongs to.
    #[arg(long, value_name = "TOKEN", requires = "join")]
    pub(crate) token: Option<String>,
    /// The hash of the cluster's certificate authority; may be given several times.
    #[arg(long, value_name = "sha256:HASH", requires = "join")]
    pub(crate) discovery_token_ca_cert_hash: Vec<String>,
    /// Hold the image store against the disk, too: every file of every layer is looked at.
    ///
    /// Where no runtime runs, the store is opened as at a runtime's start, which deletes what pulls left unfinished.
    #[arg(long)]
    pub(crate) deep: bool,
    /// The kubelet's folder; the plugins whose sockets are in it are asked.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub(crate) root_dir: PathBuf,
    #[command(flatten)]
    pub(crate) flags: DoctorFlags,
}

/// Those of the runtime's flags that name what is checked.
#[derive(Debug, Args)]
pub(crate) struct DoctorFlags {
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
    /// Run the programs of that folder even for plugins that are built in.
    #[arg(long)]
    pub(crate) cni_external: bool,
    /// Optimisations of pulls to leave out, for benches: side-by-side, large-pipes, sync-behind, pieces, largest-first, batches.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', hide = true)]
    pub(crate) pull_without: Vec<gantry_image::Optimisation>,
    /// Folder of gantry-monitor, gantry-pause and gantry-unpack; beside this program when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) programs_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PsFormat {
    /// A table for people.
    Table,
    /// A table with more columns.
    Wide,
    /// A PodList of Kubernetes; the Pod itself when one is named.
    Json,
    /// The same as YAML.
    Yaml,
    /// Only `pod/NAME`.
    Name,
}

impl PsFormat {
    /// Made to be looked at.
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// How a report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people.
    Text,
    /// The same as JSON.
    Json,
    /// The same as YAML.
    Yaml,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// How to print; JSON is a list, and one report alone when one pod is named.
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: ReportFormat,
    #[command(flatten)]
    pub(crate) pods: SomePods,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only of these pods.
    #[arg(value_name = "POD")]
    pub(crate) pods: Vec<PodName>,
    /// How to print; JSON is an EventList of Kubernetes.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: ListFormat,
    #[command(flatten)]
    pub(crate) only: Only,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: PsFormat,
    /// Print again with each change.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Only these pods.
    #[arg(value_name = "POD")]
    pub(crate) pods: Vec<PodName>,
    #[command(flatten)]
    pub(crate) only: Only,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The pods: NAME, pod/NAME or NAMESPACE/NAME.
    #[arg(required_unless_present_any = ["all", "files", "selector"], value_name = "POD")]
    pub(crate) pods: Vec<PodName>,
    /// The pods of these files, folders or http and https URLs; - is standard input.
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with_all = ["pods", "all"])]
    pub(crate) files: Vec<PathBuf>,
    /// Every pod of the namespace.
    #[arg(long, conflicts_with = "pods")]
    pub(crate) all: bool,
    /// The pods with these labels, as in app=web,tier!=db.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with_all = ["pods", "all", "files"])]
    pub(crate) selector: Option<Selector>,
    /// With --all or --selector: in every namespace.
    #[arg(short = 'A', long, conflicts_with_all = ["pods", "files", "namespace"])]
    pub(crate) all_namespaces: bool,
    /// The pods' namespace; `default` when nothing says so.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
    /// Seconds between SIGTERM and SIGKILL, in place of the pod's own; 0 kills at once.
    #[arg(
        long,
        visible_alias = "grace-period",
        value_name = "SECONDS",
        value_parser = clap::value_parser!(i64).range(0..=315_360_000)
    )]
    pub(crate) grace: Option<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// The pod (NAME, pod/NAME or NAMESPACE/NAME), or a file that --json wrote.
    #[arg(value_name = "POD", required_unless_present = "compare")]
    pub(crate) pod: Option<String>,
    /// Show two starts side by side.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["pod", "json", "svg"])]
    pub(crate) compare: Option<Vec<String>>,
    /// How to print; JSON and YAML are lists of stages.
    #[arg(short, long, value_enum, default_value = "text", conflicts_with_all = ["compare", "json"])]
    pub(crate) output: ReportFormat,
    /// Print the stages as JSON, as -o json does.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the waterfall as a picture.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write it as a web page; with --compare, both on one axis.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Send the stages as spans to an OpenTelemetry collector, by OTLP over HTTP: http://127.0.0.1:4318.
    #[arg(long, value_name = "URL", conflicts_with = "compare")]
    pub(crate) otlp: Option<String>,
    /// The pods' namespace; `default` when nothing says so.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
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
        assert!(parse(&["gantry", "doctor", "--netns-dir", "/x"]).is_err(), "a flag that counts for nothing");
        assert!(parse(&["gantry", "doctor", "--cni-conf-dir", "/x"]).is_ok());
        assert!(parse(&["gantry", "stop", "web", "--grace", "-1"]).is_err());
        let Command::Runtime(args) =
            parse(&["gantry", "runtime", "--socket", "unix:///a/b"]).unwrap().command
        else {
            panic!("not a runtime");
        };
        assert_eq!(args.socket, PathBuf::from("/a/b"));
    }
}
