//! The command line of `ctr`. Owns what of it is understood, and the words that refuse the rest; never acts. Pure.
//! Part of [`super`].

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use super::SNAPSHOTTER;

/// Of the images that a kubelet sees.
const NAMESPACE: &str = "k8s.io";
const REMEDY: &str = "the runtime here is gantry, and its `ctr` does what `kind load` needs: images import, images \
                      tag. For all else there is crictl (images, inspecti, pull, rmi, ps, exec, logs) and `gantry \
                      image load`";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CtrAction {
    /// Text to print.
    Help(String),
    /// Load an archive; `-` is standard input.
    Import { address: Option<String>, file: PathBuf, digests: bool },
    /// Give an image names.
    Tag { address: Option<String>, image: String, names: Vec<String>, force: bool },
}

/// Loads and names images of the runtime that runs here, as containerd's ctr does.
#[derive(Debug, Parser)]
#[command(name = "ctr", version, max_term_width = 100, args_override_self = true)]
struct CtrCommand {
    /// Where the runtime is reached; also by the variable CONTAINERD_ADDRESS.
    #[arg(short, long, value_name = "PATH")]
    address: Option<String>,
    /// Always k8s.io; also by the variable CONTAINERD_NAMESPACE.
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(subcommand)]
    command: CtrSubcommand,
}

#[derive(Debug, Subcommand)]
enum CtrSubcommand {
    /// Bring images, and name them.
    #[command(subcommand, visible_aliases = ["image", "i"])]
    Images(ImagesCommand),
}

#[derive(Debug, Subcommand)]
enum ImagesCommand {
    /// Load the images for this machine of an archive.
    Import {
        /// Of no effect: of an index the image for this machine is taken.
        #[arg(long)]
        all_platforms: bool,
        /// Call an image that has no name by its digest.
        #[arg(long)]
        digests: bool,
        /// Always overlayfs.
        #[arg(long, value_name = "NAME", default_value = SNAPSHOTTER)]
        snapshotter: String,
        /// Of no effect: it is always the runtime that loads.
        #[arg(long)]
        local: bool,
        /// A tar as an OCI layout or as docker save writes it; - is standard input.
        file: PathBuf,
    },
    /// Give an image more names.
    Tag {
        /// Also names that other images have.
        #[arg(long)]
        force: bool,
        /// Of no effect: it is always the runtime that names.
        #[arg(long)]
        local: bool,
        /// Name or ID.
        image: String,
        /// New names.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Reads the words after `ctr`, and the variables that stand for flags.
///
/// # Errors
/// Words that are not understood, another namespace or snapshotter; each with what to use instead.
pub(super) fn ctr(words: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<CtrAction> {
    let line = match CtrCommand::try_parse_from([&["ctr".to_owned()], words].concat()) {
        Ok(line) => line,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(CtrAction::Help(error.to_string()));
        }
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            bail!("{}: {REMEDY}", first.trim_start_matches("error: "));
        }
    };
    let namespace = line.namespace.or_else(|| variable("CONTAINERD_NAMESPACE"));
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    if namespace != NAMESPACE {
        bail!(
            "namespace {namespace:?} is not there: the runtime here is gantry, whose images are those of {NAMESPACE}; \
             say --namespace={NAMESPACE}"
        );
    }
    let address = line.address.or_else(|| variable("CONTAINERD_ADDRESS")).map(|address| {
        match address.contains("://") {
            true => address,
            false => format!("unix://{address}"),
        }
    });
    let CtrSubcommand::Images(command) = line.command;
    match command {
        ImagesCommand::Import { snapshotter, .. } if snapshotter != SNAPSHOTTER => {
            bail!(
                "snapshotter {snapshotter:?} is not there: the runtime here is gantry, which has {SNAPSHOTTER}"
            )
        }
        ImagesCommand::Import { digests, file, .. } => Ok(CtrAction::Import { address, file, digests }),
        ImagesCommand::Tag { force, image, names, .. } => Ok(CtrAction::Tag { address, image, names, force }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CtrAction> {
        ctr(&text.split(' ').map(str::to_owned).collect::<Vec<_>>(), |_| None)
    }

    /// Word for word those of kind v0.33.0 (pkg/cluster/nodeutils/util.go).
    #[test]
    fn the_lines_of_kind_are_understood() {
        let line = "--namespace=k8s.io images import --all-platforms --digests --snapshotter=overlayfs -";
        let import = |file: &str, digests| CtrAction::Import { address: None, file: file.into(), digests };
        assert_eq!(read(line).unwrap(), import("-", true));
        let tag = CtrAction::Tag {
            address: None,
            image: "sha256:12".into(),
            names: vec!["docker.io/library/web:1".into()],
            force: true,
        };
        let line = "--namespace=k8s.io images tag --force sha256:12 docker.io/library/web:1";
        assert_eq!(read(line).unwrap(), tag);
        assert_eq!(read("-n k8s.io i import --local web.tar").unwrap(), import("web.tar", false));
    }

    #[test]
    fn an_address_is_a_path_or_has_its_scheme() {
        for given in ["/run/a.sock", "unix:///run/a.sock"] {
            let CtrAction::Import { address, .. } =
                read(&format!("-a {given} -n k8s.io i import -")).unwrap()
            else {
                panic!("an import")
            };
            assert_eq!(address.as_deref(), Some("unix:///run/a.sock"));
        }
        let words = ["images", "tag", "a", "b"].map(str::to_owned);
        let variables =
            |name: &str| Some(if name == "CONTAINERD_ADDRESS" { "/run/b.sock" } else { "k8s.io" }.into());
        let CtrAction::Tag { address, .. } = ctr(&words, variables).unwrap() else { panic!("a tag") };
        assert_eq!(address.as_deref(), Some("unix:///run/b.sock"));
    }

    #[test]
    fn all_else_is_refused_with_what_to_use_instead() {
        for line in [
            "run docker.io/library/web:1 web",
            "-n k8s.io images ls",
            "-n k8s.io images import --no-unpack -",
            "-n k8s.io images import --platform=linux/arm64 -",
            "-n k8s.io images import",
            "-n k8s.io images tag a",
            "info",
            "",
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(
                error.contains("the runtime here is gantry") && error.contains("crictl"),
                "{line}: {error}"
            );
            assert!(!error.contains('\n'), "{error}");
        }
        let error = read("images import -").unwrap_err().to_string();
        assert!(error.contains("--namespace=k8s.io"), "{error}");
        let error = read("-n k8s.io images import --snapshotter=native -").unwrap_err().to_string();
        assert!(error.contains("\"native\"") && error.contains("overlayfs"), "{error}");
    }

    #[test]
    fn help_is_printed() {
        assert!(matches!(read("--help").unwrap(), CtrAction::Help(text) if text.contains("images")));
    }
}
