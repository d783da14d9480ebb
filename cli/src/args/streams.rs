//! The flags of exec, attach and port-forward. Owns their form, kubectl's; never acts. Parsed by
//! [`crate::main`].

use std::net::IpAddr;

use clap::Args;

use super::PodFlags;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) target: ContainerFlags,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) target: ContainerFlags,
}

/// Which container of which pod, and what of this terminal goes there.
#[derive(Debug, Args)]
pub(crate) struct ContainerFlags {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// The container; when not given, the one of the annotation
    /// kubectl.kubernetes.io/default-container, or the first.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Pass stdin on.
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// stdin is a terminal, and so it is there.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Only what the container writes; errors are still told.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// PORT, LOCAL:REMOTE, or :REMOTE for any free local port.
    #[arg(required = true, value_name = "[LOCAL:]REMOTE", value_parser = port_pair)]
    pub(crate) ports: Vec<PortPair>,
    /// Addresses of this machine to listen on; both families of localhost when not given.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) address: Vec<IpAddr>,
}

/// A port here and one in the pod; 0 here is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortPair {
    /// Here.
    pub(crate) local: u16,
    /// In the pod.
    pub(crate) remote: u16,
}

fn port_pair(text: &str) -> Result<PortPair, String> {
    let bad = || format!("expected PORT, LOCAL:REMOTE or :REMOTE with ports from 1 to 65535, not {text:?}");
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad);
    match text.split_once(':') {
        Some(("", remote)) => Ok(PortPair { local: 0, remote: port(remote)? }),
        Some((local, remote)) => Ok(PortPair { local: port(local)?, remote: port(remote)? }),
        None => Ok(PortPair { local: port(text)?, remote: port(text)? }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_as_kubectl_takes_them() {
        let pair = |text| port_pair(text).map(|pair| (pair.local, pair.remote)).ok();
        assert_eq!(pair("80"), Some((80, 80)));
        assert_eq!(pair("8080:80"), Some((8080, 80)));
        assert_eq!(pair(":80"), Some((0, 80)));
        for bad in ["", ":", "0", "80:", "80:0", "0:80", "65536", "http", "1:2:3"] {
            assert_eq!(pair(bad), None, "{bad}");
        }
    }
}
