//! Flags of `gantry image`. Owns their help; never acts. Part of [`super`].

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::RuntimeEndpoint;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Load images from an archive: a tar (also gzip or zstd) or a folder, as an OCI layout or as
    /// docker save writes it.
    Load(LoadArgs),
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
}
