//! Why a kubelet, or an agent without an API server, does not run. Owns the variants, one for each step of the
//! start; never prints one. Made by every file beside it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use gantry_kube_client::identity::{bootstrap, ca, serving};
use gantry_trace::endpoint::Unsupported;
use tokio::task::JoinError;

use super::{host, wiring};
use crate::operator::socket;
use crate::registration::machine;
use crate::{cgroups, checkpoint, dra, images, node, probe, root, runtime};
use gantry_server::listen::TlsError;
use gantry_server::{client_ca, stats};

/// One step, and its cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Setting(#[from] wiring::Error),
    #[error(transparent)]
    Host(#[from] host::Error),
    #[error(transparent)]
    Machine(#[from] machine::Error),
    #[error(transparent)]
    Identity(#[from] bootstrap::Error),
    #[error("tracing.endpoint")]
    Spans(#[from] Unsupported),
    #[error("serverTLSBootstrap needs an API server: give --kubeconfig as well")]
    NoApiServer,
    #[error("the certificate of the kubelet's own API")]
    Certificate(#[source] serving::Error),
    /// In upstream's words.
    #[error("validate service connection: validate CRI v1 runtime API for endpoint {endpoint:?}: {reason}")]
    Validate { endpoint: String, reason: String },
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    #[error("{0}")]
    Driver(String),
    #[error("failed to make {} a shared mount", path.display())]
    Share {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("make {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("let device plugins register in {}", root.display())]
    DevicePlugins {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    ReservedCpus(String),
    /// In upstream's words.
    #[error("failed to start ContainerManager: {0}")]
    Managers(String),
    #[error("let plugins register in {}", root.display())]
    Plugins {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("serve pod resources in {}", root.display())]
    PodResources {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Root(#[from] root::Error),
    #[error(transparent)]
    Restore(checkpoint::RestoreError),
    /// In upstream's words.
    #[error("create ResourceClaim cache")]
    Claims(#[from] dra::OpenError),
    #[error("offer the operator API")]
    Operator(#[source] socket::Error),
    #[error("the operator API died")]
    OperatorDied(#[source] JoinError),
    #[error("user namespaces: {0}")]
    UserNamespaces(String),
    #[error("{0}")]
    UserRanges(String),
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error(transparent)]
    Cgroups(#[from] cgroups::Error),
    /// In upstream's words.
    #[error("Failed to start ContainerManager: {0}")]
    Reserved(String),
    #[error(transparent)]
    Probes(#[from] probe::net::Error),
    #[error(transparent)]
    Images(#[from] images::Error),
    #[error(transparent)]
    Server(#[from] gantry_server::Error),
    #[error(transparent)]
    Stats(#[from] stats::machine::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    ClientCa(#[from] ca::Error),
    #[error("the client CA {}", path.display())]
    Trust {
        path: PathBuf,
        #[source]
        source: client_ca::Error,
    },
    #[error("failed to listen and serve on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// Of the way to the API server: only new credentials from outside help.
    #[error("{0}")]
    Credentials(String),
}
