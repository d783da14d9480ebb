//! What the server answers from: values and traits that the kubelet's assembly fills in. Owns nothing that changes.

use std::fmt;
use std::sync::Arc;

use gantry_metrics::{Metrics, ProbeMetrics};
use gantry_trace::span::Tracer;

use super::cri::RuntimeConnection;
use super::health::Check;
use super::node_pods::NodePods;
use super::stats::{Stats, StatsSources};

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
    /// Which containers ran out of memory, where the runtime tells it.
    pub oom_counts: OomCounts,
    /// What runs below, for cAdvisor's metrics.
    pub system: SystemVersion,
    /// How much the machine and the pods use.
    pub stats: Arc<Stats>,
    /// `/debug/flags/v`.
    pub verbosity: Verbosity,
    /// Where there is one, requests have spans.
    pub tracer: Option<Tracer>,
}

/// Sets the log's verbosity, klog's number.
pub type Verbosity = Arc<dyn Fn(u8) -> Result<(), String> + Send + Sync>;

/// How often a container ran out of memory, by its ID; none when that is not known.
pub type OomCounts = Arc<dyn Fn(&str) -> Option<u64> + Send + Sync>;

/// Kernel and operating system, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemVersion {
    /// uname(2).
    pub kernel: String,
    /// os-release(5), PRETTY_NAME.
    pub os_image: String,
}

impl ServerDeps {
    /// The part that statistics are made of.
    pub(super) fn stats_sources(&self) -> StatsSources<'_> {
        StatsSources {
            node_name: &self.node_name,
            pods: self.pods.as_ref(),
            runtime: &self.runtime,
            metrics: &self.metrics,
        }
    }
}

impl fmt::Debug for ServerDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerDeps").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}
