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
    /// Print only what the container writes, and errors.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    #[command(flatten)]
    pub(crate) pod: PodFlags,
    /// PORT, LOCAL:REMOTE, or :REMOTE for any free local port. REMOTE is a number or the name of a port of the pod.
    #[arg(required = true, value_name = "[LOCAL:]REMOTE", value_parser = port_pair)]
    pub(crate) ports: Vec<PortPair>,
    /// Addresses of this machine to listen on; both families of localhost when not given.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) address: Vec<IpAddr>,
}

/// A port of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remote {
    /// As a process listens on it.
    Number(u16),
    /// As a container's `ports` calls it.
    Name(String),
}

/// A port here and one in the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortPair {
    /// Here; 0 is any, and None the pod's own number.
    pub(crate) local: Option<u16>,
    /// In the pod.
    pub(crate) remote: Remote,
}

fn port_pair(text: &str) -> Result<PortPair, String> {
    let bad = || {
        format!(
            "expected PORT, LOCAL:REMOTE or :REMOTE with ports from 1 to 65535, REMOTE also as the name of a port, not \
             {text:?}"
        )
    };
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let remote = |text: &str| match number(text) {
        Some(number) => Ok(Remote::Number(number)),
        None if is_port_name(text) => Ok(Remote::Name(text.to_owned())),
        None => Err(bad()),
    };
    Ok(match text.split_once(':') {
        Some(("", there)) => PortPair { local: Some(0), remote: remote(there)? },
        Some((local, there)) => {
            PortPair { local: Some(number(local).ok_or_else(bad)?), remote: remote(there)? }
        }
        None => PortPair { local: None, remote: remote(text)? },
    })
}

/// As Kubernetes has it (IANA_SVC_NAME): 15 lower-case letters, digits and single dashes within, at least one letter.
fn is_port_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=15).contains(&text.len())
        && text.bytes().all(fits)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_as_kubectl_takes_them() {
        let pair = |text| port_pair(text).map(|pair| (pair.local, pair.remote)).ok();
        let name = |text: &str| Remote::Name(text.to_owned());
        assert_eq!(pair("80"), Some((None, Remote::Number(80))));
        assert_eq!(pair("8080:80"), Some((Some(8080), Remote::Number(80))));
        assert_eq!(pair(":80"), Some((Some(0), Remote::Number(80))));
        assert_eq!(pair("http"), Some((None, name("http"))));
        assert_eq!(pair("8080:http-2"), Some((Some(8080), name("http-2"))));
        assert_eq!(pair(":http"), Some((Some(0), name("http"))));
        for bad in ["", ":", "0", "80:", "80:0", "0:80", "65536", "http:80", "1:2:3", "-a", "A", "a--b"] {
            assert_eq!(pair(bad), None, "{bad}");
        }
    }
}
