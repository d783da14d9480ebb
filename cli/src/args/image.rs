//! Flags of `gantry image`, `pull`, `images` and `rmi`. Owns their help; never acts. Part of [`super`].

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ListFormat, RuntimeEndpoint};

/// Where a node has its images unless told otherwise.
pub(crate) const DEFAULT_ROOT: &str = "/var/lib/gantry";

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Load images from an archive: a tar (also gzip or zstd) or a folder, as an OCI layout or as
    /// docker save writes it.
    Load(LoadArgs),
}

/// Where the images of this node are, and how they come, when no runtime runs that knows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where no runtime runs")]
pub(crate) struct StoreFlags {
    /// Images, layers, records of sandboxes and containers.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_ROOT)]
    pub(crate) root: PathBuf,
    /// Sockets, locks and what need not survive a reboot.
    #[arg(long, value_name = "DIR", default_value = "/run/gantry")]
    pub(crate) state: PathBuf,
    /// How to reach registries: mirrors, certificates, plain HTTP; HOST/hosts.toml as containerd reads it.
    #[arg(long, value_name = "DIR", default_value = "/etc/containerd/certs.d")]
    pub(crate) registry_hosts_dir: PathBuf,
    /// Docker's config.json with logins; $HOME/.docker/config.json when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Folder of gantry-monitor, gantry-pause and gantry-unpack; beside this program when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) programs_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Names, as in a pod's manifest.
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// Print only the images' IDs.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) runtime: RuntimeEndpoint,
    #[command(flatten)]
    pub(crate) store: StoreFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {
    /// Only these: a name with or without tag, the end of one from a slash on, or what an ID begins with.
    #[arg(value_name = "IMAGE")]
    pub(crate) names: Vec<String>,
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: ListFormat,
    /// Print only the images' IDs.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) runtime: RuntimeEndpoint,
    #[command(flatten)]
    pub(crate) store: StoreFlags,
}

#[derive(Debug, Args)]
pub(crate) struct RmiArgs {
    /// Names, digests or IDs.
    #[arg(required_unless_present = "all", value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// Every image that is not pinned; the space of one in use is freed with its last container.
    #[arg(short, long, conflicts_with = "images")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) runtime: RuntimeEndpoint,
    #[command(flatten)]
    pub(crate) store: StoreFlags,
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Archives, or folders of an OCI layout; - is standard input, as is none.
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The same, as docker load has it.
    #[arg(short, long, value_name = "FILE", conflicts_with = "files")]
    pub(crate) input: Option<PathBuf>,
    /// Name of an image that its archive does not name; where the archive gives a bare tag, of its repository.
    /// An archive that names its images itself is refused then.
    #[arg(long, value_name = "IMAGE", default_value = "")]
    pub(crate) name: String,
    /// Print only the images' IDs.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) runtime: RuntimeEndpoint,
    #[command(flatten)]
    pub(crate) store: StoreFlags,
}
