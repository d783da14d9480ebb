//! The node's resolver files. Owns reading them, anew for each pod: on a machine that boots they come
//! after the agent, and DHCP, a VPN or systemd-resolved write them again. Never merges anything. Called
//! by [`super::Resolver`] and, once at a kubelet's start, for the warning of the node.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use super::{
    DnsConfig, MAX_SEARCH, MAX_SEARCH_CHARS, MAX_SEARCHES, Malformed, Resolver, beyond_loopback,
    parse_resolv_conf,
};
use crate::events::sink::Recorder;
use crate::events::{Kind, NodeNote};

/// Nobody writes a longer one in earnest.
const MOST: u64 = 10 << 20;

/// What a cluster puts before the node's domains.
const OF_CLUSTER: usize = 3;

/// Where the node's name servers and domains are written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: pods that would have the node's ask their own loopback, by the families of these.
    Nowhere(Vec<IpAddr>),
    /// In one file, for all pods; it has to be there.
    File(PathBuf),
    /// Where a machine has them; either may be missing, and says nothing then.
    Machine {
        /// Its own, `/etc/resolv.conf`.
        host: PathBuf,
        /// Those behind a stub on its loopback.
        behind: PathBuf,
    },
}

impl Default for Source {
    fn default() -> Self {
        Self::Nowhere(Vec::new())
    }
}

/// Why the files say nothing, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("open {}: {}", path.display(), in_go(cause))]
    Open { path: PathBuf, cause: io::Error },
    #[error("read {}: {}", path.display(), in_go(cause))]
    Read { path: PathBuf, cause: io::Error },
    #[error("the read limit is reached")]
    TooLong,
    #[error("Encountered error while parsing resolv conf file. Error: {0}")]
    Malformed(Malformed),
}

/// As Go words what the kernel answers.
fn in_go(cause: &io::Error) -> String {
    let text = cause.to_string();
    let text = text.split_once(" (os error ").map_or(text.as_str(), |(text, _)| text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl Source {
    /// What the files say now, to pods on the host's network or to the others.
    pub(super) async fn read(&self, on_host: bool) -> Result<DnsConfig, Error> {
        match self {
            Self::Nowhere(_) => Ok(DnsConfig::default()),
            Self::File(path) => file(path).await,
            Self::Machine { host, behind } => {
                let own = there(host).await?;
                if on_host { Ok(own) } else { Ok(beyond_loopback(&own, there(behind).await?)) }
            }
        }
    }
}

async fn there(path: &Path) -> Result<DnsConfig, Error> {
    match file(path).await {
        Err(Error::Open { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(DnsConfig::default()),
        read => read,
    }
}

async fn file(path: &Path) -> Result<DnsConfig, Error> {
    let open = File::open(path).await.map_err(|cause| Error::Open { path: path.to_owned(), cause })?;
    let mut bytes = Vec::new();
    let read = open.take(MOST).read_to_end(&mut bytes).await;
    let read = read.map_err(|cause| Error::Read { path: path.to_owned(), cause })?;
    if u64::try_from(read).unwrap_or(u64::MAX) >= MOST {
        return Err(Error::TooLong);
    }
    parse_resolv_conf(&String::from_utf8_lossy(&bytes)).map_err(Error::Malformed)
}

/// Told once, at a kubelet's start.
pub(crate) async fn warn(resolver: Arc<Resolver>, recorder: Recorder) {
    if let Some(message) = resolver.unfit().await {
        recorder.node(NodeNote { kind: Kind::Warning, reason: "CheckLimitsForResolvConf", message });
    }
}

impl Resolver {
    /// The message of CheckLimitsForResolvConf, when the file is not fit to be merged into pods'.
    async fn unfit(&self) -> Option<String> {
        let Source::File(path) = &self.source else { return None };
        match file(path).await {
            Ok(config) => self.exceeds(path, &config.searches),
            Err(Error::Malformed(why)) => Some(why.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn exceeds(&self, path: &Path, searches: &[String]) -> Option<String> {
        let most = if self.cluster_domain.is_empty() { MAX_SEARCHES } else { MAX_SEARCHES - OF_CLUSTER };
        let file = path.display();
        if searches.len() > most {
            return Some(format!(
                "Resolv.conf file '{file}' contains search line consisting of more than {most} domains!"
            ));
        }
        if searches.iter().any(|search| search.len() > MAX_SEARCH) {
            return Some(format!(
                "Resolv.conf file {path:?} contains a search path which length is more than allowed {MAX_SEARCH} chars!"
            ));
        }
        (searches.join(" ").len() > MAX_SEARCH_CHARS).then(|| {
            format!(
                "Resolv.conf file '{file}' contains search line which length is more than allowed {MAX_SEARCH_CHARS} chars!"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::{Dns, DnsPolicy, Pod};

    use super::*;
    use crate::pod::tests::pod;

    fn from(source: Source) -> Resolver {
        Resolver { source, cluster_domain: "cluster.local".into(), ..Resolver::default() }
    }

    fn of_node() -> Pod {
        Pod { dns: Dns { policy: DnsPolicy::Default, ..Dns::default() }, ..pod() }
    }

    #[tokio::test]
    async fn a_file_that_comes_late_or_changes_is_what_the_next_pod_gets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        let node = from(Source::File(path.clone()));
        let servers = async || node.of_pod(&of_node()).await.map(|formed| formed.config.servers);
        let error = servers().await.unwrap_err().to_string();
        assert_eq!(error, format!("open {}: no such file or directory", path.display()));
        for server in ["10.0.0.1", "10.8.0.1"] {
            std::fs::write(&path, format!("nameserver {server}\n")).unwrap();
            assert_eq!(servers().await.unwrap(), [server]);
        }
        std::fs::write(&path, "nameserver\n").unwrap();
        assert_eq!(
            servers().await.unwrap_err().to_string(),
            "Encountered error while parsing resolv conf file. Error: nameserver list is empty "
        );
    }

    #[tokio::test]
    async fn pods_on_the_hosts_network_have_its_stub_and_the_others_what_is_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let (host, behind) = (folder.path().join("host"), folder.path().join("behind"));
        let node = from(Source::Machine { host: host.clone(), behind: behind.clone() });
        let mut on_host = of_node();
        on_host.namespaces.host_network = true;
        let servers = async |pod: &Pod| node.of_pod(pod).await.unwrap().config.servers;
        assert_eq!(servers(&of_node()).await, [""; 0], "a machine without a resolver");
        std::fs::write(&host, "nameserver 127.0.0.53\n").unwrap();
        assert_eq!(servers(&of_node()).await, ["127.0.0.53"]);
        std::fs::write(&behind, "nameserver 10.0.0.1\n").unwrap();
        assert_eq!(servers(&of_node()).await, ["10.0.0.1"]);
        assert_eq!(servers(&on_host).await, ["127.0.0.53"]);
    }

    #[tokio::test]
    async fn without_a_file_a_pod_of_the_nodes_resolver_asks_itself() {
        let of = async |ips: &[&str], pod: &Pod| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let mut node = from(Source::Nowhere(ips));
            node.cluster = vec!["10.96.0.10".into()];
            let config = node.of_pod(pod).await.unwrap().config;
            (config.servers.join(" "), config.searches.join(" "))
        };
        assert_eq!(of(&[], &of_node()).await, ("127.0.0.1".into(), ".".into()));
        let both = of(&["10.0.0.9", "fd00::9"], &of_node()).await;
        assert_eq!(both, ("127.0.0.1 ::1".into(), ".".into()));
        let first = of(&[], &pod()).await;
        let searches = "default.svc.cluster.local svc.cluster.local cluster.local";
        assert_eq!(first, ("10.96.0.10".into(), searches.into()));
    }

    #[tokio::test]
    async fn a_file_that_does_not_fit_is_told_in_upstreams_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        let node = from(Source::File(path.clone()));
        let file = path.display();
        let gone = format!("open {file}: no such file or directory");
        assert_eq!(node.unfit().await, Some(gone));
        let of = async |text: String| {
            std::fs::write(&path, text).unwrap();
            node.unfit().await
        };
        let words = |count: usize| vec!["a"; count].join(" ");
        assert_eq!(of(format!("search {}\n", words(29))).await, None);
        assert_eq!(
            of(format!("search {}\n", words(30))).await,
            Some(format!(
                "Resolv.conf file '{file}' contains search line consisting of more than 29 domains!"
            ))
        );
        assert_eq!(
            of(format!("search {}\n", "x".repeat(254))).await,
            Some(format!(
                "Resolv.conf file \"{file}\" contains a search path which length is more than allowed 253 chars!"
            ))
        );
        assert_eq!(
            of(format!("search {}\n", vec!["x".repeat(250); 9].join(" "))).await,
            Some(format!(
                "Resolv.conf file '{file}' contains search line which length is more than allowed 2048 chars!"
            ))
        );
        assert_eq!(of("nameserver".into()).await, Some("nameserver list is empty ".into()));
        assert_eq!(from(Source::default()).unfit().await, None);
    }
}
