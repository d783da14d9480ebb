//! The node's pods as the kubelet's own API shows them. Owns nothing: it looks at what the status
//! loop last told. Called by the server.

use std::sync::Arc;

use gantry_agent::pod::spec::PodUid;
use gantry_agent::server::NodePods;
use gantry_agent::source::{MIRROR, Seen};
use gantry_agent::status::Told;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

/// See the module. A mirror pod names its static pod in an annotation.
#[derive(Debug)]
pub(super) struct View {
    pub(super) told: watch::Receiver<Told>,
    pub(super) seen: watch::Receiver<Seen>,
}

impl NodePods for View {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.told.borrow().values().cloned().collect()
    }

    fn translate(&self, uid: &str) -> String {
        let seen = self.seen.borrow();
        let mirror = PodUid::parse(uid).and_then(|uid| seen.mirrors.get(&uid).cloned());
        let of = mirror.and_then(|pod| pod.metadata.annotations.as_ref()?.get(MIRROR).cloned());
        of.unwrap_or_else(|| uid.to_owned())
    }
}
