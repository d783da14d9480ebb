//! The node's HTTPS API, port 10250, and its read-only port: logs, exec, attach, port forwarding,
//! statistics, metrics. Owns the listeners, who may do what, and the form of answers, as upstream's
//! kubelet; never changes a pod. Called by the wiring of `gantry kubelet`.
//!
//! A request goes through [`listen`] (bytes), [`gate`] (who, and may they), [`route`] (what) and
//! [`serve`] (the answer). Nothing is served before the gate, not even that a path is unknown.

mod answer;
pub mod authn;
pub mod authz;
mod cache;
mod checkpoints;
pub mod ciphers;
pub mod client_ca;
mod container_logs;
mod cri;
mod gate;
pub mod health;
pub mod listen;
mod node_logs;
mod pages;
mod pending_connections;
mod proxy;
mod query;
mod refusals;
mod review;
pub mod route;
mod scrape;
mod serve;
pub mod stats;
mod streams;
mod user;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::{Metrics, ProbeMetrics};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tonic::transport::Channel;

use crate::drain::{self, DrainTrigger};
use crate::runtime_ext::RuntimeExtensions;
use authn::{Authentication, Authenticator};
use authz::{Authorizer, Mode};
use health::Check;
use review::Reviews;
use route::Switches;

/// The agent's pods as others see them.
pub trait NodePods: Send + Sync + fmt::Debug {
    /// Static pods under their own UIDs and pods of the API, no mirror pods, each with its status as
    /// it is now.
    fn pods(&self) -> Vec<Arc<Pod>>;
    /// Those that are being worked on, for the metrics.
    fn count(&self, metrics: &Metrics) {
        let _ = metrics;
    }
    /// The static pod's UID for that of its mirror; any other as it is.
    fn translate(&self, uid: &str) -> String;
    /// The name of the PersistentVolume behind a pod's volume, once a folder of it is mounted.
    fn claim_name(&self, pod: &str, volume: &str) -> Option<String>;
    /// The pod of that name; of two, the one that is not on its way out.
    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let named = |pod: &Arc<Pod>| {
            pod.metadata.namespace.as_deref() == Some(namespace) && pod.metadata.name.as_deref() == Some(name)
        };
        let mut found: Vec<Arc<Pod>> = self.pods().into_iter().filter(named).collect();
        found.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
        found.into_iter().next()
    }
}

/// What the server answers from.
#[derive(Clone)]
pub struct ServerDeps {
    /// The node's name.
    pub node_name: String,
    /// The agent's pods.
    pub pods: Arc<dyn NodePods>,
    /// The runtime.
    pub runtime: RuntimeConnection,
    /// The configuration in force, a KubeletConfiguration with kind and apiVersion.
    pub configz: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// Flags and their values, sorted.
    pub flagz: Vec<(String, String)>,
    /// As in nodeInfo.kubeletVersion.
    pub version: String,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What probes count.
    pub probe_metrics: Arc<ProbeMetrics>,
    /// What `/healthz` looks at, beside ping and log; syncloop among them.
    pub checks: Vec<Check>,
    /// What the runtime tells beyond CRI.
    pub runtime_ext: RuntimeExtensions,
    /// How much the machine and the pods use.
    pub stats: Arc<stats::Stats>,
    /// `/debug/flags/v`.
    pub verbosity: Verbosity,
}

/// Sets the log's verbosity, klog's number.
pub type Verbosity = Arc<dyn Fn(u8) -> Result<(), String> + Send + Sync>;

/// The way to the runtime.
#[derive(Debug, Clone)]
pub struct RuntimeConnection {
    /// Where it answers.
    pub channel: Channel,
    /// runtimeRequestTimeout.
    pub request_timeout: Duration,
}

impl fmt::Debug for ServerDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerDeps").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What is served at all.
    pub switches: Switches,
    /// streamingConnectionIdleTimeout; nothing in either direction for so long ends a stream.
    pub stream_idle: Duration,
    /// What `/logs/` shows, `/var/log`.
    pub node_logs: PathBuf,
    /// podLogsDir.
    pub pod_logs: PathBuf,
    /// Where archives of containers go, `checkpoints` below the kubelet's root.
    pub checkpoints: PathBuf,
    /// enableSystemLogQuery: queries of the journal are refused by name.
    pub system_log_query: bool,
}

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Named as upstream names it.
    #[error("no client provided, cannot use webhook authentication")]
    NoClientForTokens,
    /// Named as upstream names it.
    #[error("no client provided, cannot use webhook authorization")]
    NoClientForAccess,
}

/// The API of one node.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<ServerContext>,
}

#[derive(Debug)]
struct ServerContext {
    settings: Settings,
    sources: ServerDeps,
    gate: gate::Gate,
    /// Of the listeners.
    drain: DrainTrigger,
}

impl Server {
    /// Ready to listen. `client` asks the API server about tokens and rights.
    ///
    /// # Errors
    /// When it is to ask and has no client.
    pub fn new(
        settings: Settings,
        mut sources: ServerDeps,
        authentication: Authentication,
        mode: Mode,
        client: Option<Client>,
    ) -> Result<Self, Error> {
        let reviews = client.map(Reviews::new);
        let authenticator =
            Authenticator::new(authentication, reviews.clone()).ok_or(Error::NoClientForTokens)?;
        let authorizer = Authorizer::new(mode, reviews).ok_or(Error::NoClientForAccess)?;
        let gate = gate::Gate::new(sources.node_name.clone(), authenticator, authorizer);
        let own = [Check::new("ping", || Ok(())), Check::new("log", || Ok(()))];
        sources.checks.splice(0..0, own);
        sources.metrics.metrics_provider.set(["cri"], 1.0);
        sources.metrics.node_name.set([&sources.node_name], 1.0);
        sources.metrics.cgroup_version.set([], if sources.stats.machine().is_unified() { 2.0 } else { 1.0 });
        let (drain, _) = drain::token();
        Ok(Self { inner: Arc::new(ServerContext { settings, sources, gate, drain }) })
    }

    /// Samples the machine and measures volumes until [`Self::end`]: rates and volumes are empty
    /// without.
    pub async fn keep_stats(&self) {
        let (sources, drain) = (&self.inner.sources, self.inner.drain.watcher());
        sources.stats.run(sources, drain).await;
    }

    /// Ends the listeners; what is being answered gets a moment.
    pub fn end(&self) {
        self.inner.drain.start();
    }
}

#[cfg(test)]
mod tests;
