//! What drivers of an earlier kubelet have told of this node: devices that pods may claim (ResourceSlices). Nobody here
//! serves these, so pods would be sent to a node on which they wait for ever. Owns their removal; the node itself is
//! [`super::status`]'s, and what CSI drivers have told is [`crate::csi::node_info`]'s. Started by [`super::start`], done once.
//!
//! Upstream's kubelet removes the slices of all drivers at its start, too, as none has registered yet.

use std::sync::Arc;
use std::time::Duration;

use gantry_model::random;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(30);
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// Once the node is there: before that it may remove nothing.
pub(super) async fn withdraw(client: Client, name: String, mut node: watch::Receiver<Option<Arc<Node>>>) {
    if node.wait_for(Option::is_some).await.is_err() {
        return;
    }
    again("ResourceSlices", || remove_slices(&client, &name)).await;
}

/// Until it worked.
async fn again<F: Future<Output = Result<(), kube::Error>>>(what: &str, work: impl Fn() -> F) {
    let mut pause = FIRST_WAIT;
    loop {
        match timeout(PATIENCE, work()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::warn!(what, %error, "not removed yet"),
            Err(_) => tracing::warn!(what, "not removed yet: no answer"),
        }
        tokio::time::sleep(pause + pause.mul_f64(0.2 * random::fraction())).await;
        pause = (pause * 2).min(LONGEST_WAIT);
    }
}

fn gone<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        // Also of an API server that knows no such kind.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        answer => answer.map(Some),
    }
}

async fn remove_slices(client: &Client, name: &str) -> Result<(), kube::Error> {
    let path = format!("{SLICES}?fieldSelector=spec.nodeName%3D{name}");
    let request = http::Request::delete(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    if gone(client.request_text(request).await)?.is_some() {
        tracing::debug!(node = name, "the node's ResourceSlices are removed");
    }
    Ok(())
}
