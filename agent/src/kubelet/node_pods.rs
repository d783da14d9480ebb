//! The node's pods as the kubelet's own API shows them. Owns nothing: it looks at what the status
//! loop last told, and at the volumes. Called by the server.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use gantry_metrics::Metrics;
use gantry_model::pod::PodUid;
use gantry_model::pod::usage::VolumeUsage;

use crate::pod::count;
use crate::pod::worker::PodHandle;
use crate::pod_source::ApiPods;
use crate::status::Reported;
use crate::volumes::Volumes;
use gantry_server::NodePods;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

/// See the module. A mirror pod has its static pod's name.
#[derive(Debug)]
pub(super) struct View {
    pub(super) volumes: Arc<dyn Volumes>,
    pub(super) told: watch::Receiver<Reported>,
    pub(super) seen: watch::Receiver<ApiPods>,
    pub(super) workers: watch::Receiver<Arc<[PodHandle]>>,
}

impl NodePods for View {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.told.borrow().values().cloned().collect()
    }

    fn count(&self, metrics: &Metrics) {
        count::census(metrics, &self.workers.borrow(), self.seen.borrow().mirrors.len());
        count::volumes(metrics, &self.volumes.counts());
    }

    fn claim_name(&self, pod: &str, volume: &str) -> Option<String> {
        PodUid::parse(pod).and_then(|pod| self.volumes.claim_name(&pod, volume))
    }

    fn usage<'a>(
        &'a self,
        pod: &'a str,
        volume: &'a str,
    ) -> BoxFuture<'a, Result<Option<VolumeUsage>, String>> {
        Box::pin(async move {
            let Some(pod) = PodUid::parse(pod) else { return Ok(None) };
            self.volumes.usage(&pod, volume).await
        })
    }

    fn translate(&self, uid: &str) -> String {
        let mirror = PodUid::parse(uid).and_then(|uid| self.seen.borrow().mirrors.get(&uid).cloned());
        let Some(mirror) = mirror else { return uid.to_owned() };
        let same = |pod: &Pod| {
            pod.metadata.name == mirror.metadata.name && pod.metadata.namespace == mirror.metadata.namespace
        };
        let told = self.told.borrow();
        let found = told.iter().find(|(_, pod)| same(pod)).map(|(uid, _)| uid.to_string());
        found.unwrap_or_else(|| uid.to_owned())
    }
}
