//! The flags of join and leave. Owns which go together; never acts. Parsed by [`crate::main`].

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::unix_endpoint;
use crate::join::discovery::{CaHash, Endpoint, Token};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("cluster").required(true).args(["token", "kind", "kubeconfig"]))]
pub(crate) struct JoinArgs {
    /// Address of the API server, as `kubeadm token create --print-join-command` prints it.
    #[arg(value_name = "HOST:PORT", required_unless_present_any = ["kind", "kubeconfig"])]
    pub(crate) endpoint: Option<Endpoint>,
    /// A bootstrap token of the cluster.
    #[arg(long, value_name = "TOKEN", requires = "discovery_token_ca_cert_hash")]
    pub(crate) token: Option<Token>,
    /// The hash of the cluster's certificate authority; may be given several times.
    #[arg(long, value_name = "sha256:HASH", requires = "token")]
    pub(crate) discovery_token_ca_cert_hash: Vec<CaHash>,
    /// Join this kind cluster, whose docker runs here: the token is made with the administrator's kubeconfig in its
    /// control plane's container.
    #[arg(long, value_name = "NAME", value_parser = kind_name)]
    pub(crate) kind: Option<String>,
    /// Where docker is asked for --kind.
    #[arg(long, value_name = "PATH", default_value = "/var/run/docker.sock", requires = "kind")]
    pub(crate) docker_socket: PathBuf,
    /// Make the token with this administrator's kubeconfig. With HOST:PORT its server is reached there.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The node's name; this machine's host name when not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// The node's address; the one that packets to the API server come from when not given.
    #[arg(long, value_name = "IP")]
    pub(crate) node_ip: Option<IpAddr>,
    /// The runtime's socket.
    #[arg(long, value_name = "unix:///PATH", default_value = "unix:///run/gantry/gantry.sock", value_parser = unix_endpoint)]
    pub(crate) cri_socket: String,
    /// Checks of kubeadm that only warn, as in its own flag.
    #[arg(long, value_name = "CHECK,…", value_delimiter = ',')]
    pub(crate) ignore_preflight_errors: Vec<String>,
    /// Print what would be done, a line for each step, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Delete the Node object, too.
    #[arg(long, requires = "kubeconfig")]
    pub(crate) delete_node: bool,
    /// The administrator's kubeconfig for --delete-node.
    #[arg(long, value_name = "FILE", requires = "delete_node")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Print what would be done, a line for each step, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// As kind has them; they are part of containers' names.
fn kind_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    match !text.is_empty() && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => {
            Err("expected a name of a-z, 0-9, dots and dashes, as `kind get clusters` lists them".to_owned())
        }
    }
}
