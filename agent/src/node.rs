//! What the agent must know of its machine. Owns reading it once at start; never watches
//! it. Called by the command line, which hands it to the runtime client.

use std::path::{Path, PathBuf};

use crate::dns::parse_resolv_conf;
use crate::runtime::cri::NodeConfig;

/// What pods may learn of their node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Lower case.
    pub name: String,
    /// Primary first; may be empty on a machine without a network.
    pub ips: Vec<String>,
    /// Of services; pods with a subdomain have it in their names.
    pub cluster_domain: String,
    /// Thousandths of a core.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of the file system of the root folder.
    pub ephemeral: i64,
}

/// What could not be read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is one file and its cause")]
pub enum Error {
    #[error("read the size of memory from {}", path.display())]
    Meminfo {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} has no line MemTotal", path.display())]
    NoMemTotal { path: PathBuf },
    #[error("read the resolver's configuration {}", path.display())]
    ResolvConf {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// This machine's facts, with pod logs below `pod_logs_dir`.
///
/// # Errors
/// When /proc/meminfo or /etc/resolv.conf cannot be read; a machine without the latter has
/// no resolver, and so have its pods.
pub fn facts(pod_logs_dir: PathBuf) -> Result<NodeConfig, Error> {
    let path = Path::new("/proc/meminfo");
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Meminfo { path: path.to_owned(), source })?;
    let memory_capacity = mem_total(&text).ok_or_else(|| Error::NoMemTotal { path: path.to_owned() })?;
    let path = Path::new("/etc/resolv.conf");
    let dns = match std::fs::read_to_string(path) {
        Ok(text) => parse_resolv_conf(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => parse_resolv_conf(""),
        Err(source) => return Err(Error::ResolvConf { path: path.to_owned(), source }),
    };
    Ok(NodeConfig { pod_logs_dir, memory_capacity, dns })
}

/// proc_meminfo(5): `MemTotal:  16316412 kB`.
fn mem_total(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(mem_total("MemTotal:       16316412 kB\nMemFree: 1 kB\n"), Some(16_316_412 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
    }
}
