//! The node's pods as this server shows them. Owns the trait; the kubelet's assembly has the real one. Never changes a
//! pod.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use gantry_metrics::Metrics;
use gantry_model::pod::usage::VolumeUsage;
use k8s_openapi::api::core::v1::Pod;

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
    /// How full a pod's volume is that a driver has made; none where it does not tell.
    fn usage<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Option<VolumeUsage>, String>> {
        Box::pin(std::future::ready(Ok(None)))
    }
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
