//! One step of a join or of a leave. Owns the types and their words, a line each, the same for what would be done and
//! what is done. Pure. Made by the plans, carried out by [`super::apply`] and [`crate::leave`].

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What a join does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JoinStep {
    /// `kubeadm reset`: an earlier join came to no end.
    Reset {
        cri_socket: String,
    },
    Folder(PathBuf),
    /// A file of ours.
    File {
        path: PathBuf,
        content: String,
    },
    /// What fails without it; none: the node does.
    Module {
        name: &'static str,
        fails: Option<&'static str>,
    },
    Sysctl {
        name: &'static str,
        now: String,
        wanted: &'static str,
    },
    /// Appended to /etc/hosts.
    HostsLine(String),
    /// A bootstrap token by the administrator, which is deleted again at the end.
    Token,
    /// kubeadm's configuration with the token in it, for the time of the call.
    Join {
        config: PathBuf,
        content: String,
    },
}

/// What a join has changed, and a leave takes back; in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum JoinChange {
    /// Removed when it is empty.
    Folder(PathBuf),
    File(PathBuf),
    Sysctl {
        name: String,
        before: String,
    },
    HostsLine(String),
    /// kubeadm was called: whatever it has done.
    Join {
        cri_socket: String,
    },
}

/// For a line of a dry run: without what is secret or long.
fn content(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.join("; ")
}

impl fmt::Display for JoinStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset { cri_socket } => {
                write!(f, "kubeadm reset --force --cri-socket {cri_socket} (an earlier join came to no end)")
            }
            Self::Folder(path) => write!(f, "make the folder {}", path.display()),
            Self::File { path, content: text } => write!(f, "write {}: {}", path.display(), content(text)),
            Self::Module { name, .. } => write!(f, "load the kernel module {name}"),
            Self::Sysctl { name, now, wanted } => write!(f, "set the sysctl {name} to {wanted} (was {now})"),
            Self::HostsLine(line) => write!(f, "add to /etc/hosts: {line}"),
            Self::Token => write!(f, "make a bootstrap token for this join alone, good for 15 minutes"),
            Self::Join { config, .. } => write!(f, "kubeadm join --config {}", config.display()),
        }
    }
}

impl fmt::Display for JoinChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "remove the folder {} if it is empty", path.display()),
            Self::File(path) => write!(f, "remove {}", path.display()),
            Self::Sysctl { name, before } => write!(f, "set the sysctl {name} back to {before}"),
            Self::HostsLine(line) => write!(f, "remove from /etc/hosts: {line}"),
            Self::Join { cri_socket } => write!(f, "kubeadm reset --force --cri-socket {cri_socket}"),
        }
    }
}

/// `/proc/sys/net/ipv4/ip_forward` of `net.ipv4.ip_forward`.
pub(crate) fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}
