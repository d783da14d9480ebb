//! ResourceSlices of drivers that are not here: the scheduler would send pods for devices that nobody can prepare. Owns the
//! requests and their tries; when it is time is [`super::drivers`]'.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gantry_base::error::chain;
use gantry_model::random;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::time::timeout;

/// Waits between tries, as upstream's.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
const JITTER: f64 = 0.2;
/// Of one request.
const PATIENCE: Duration = Duration::from_secs(30);

/// Deletes ResourceSlices of this node.
pub(crate) trait Slices: Send + Sync + fmt::Debug {
    /// Those of one driver, or all.
    ///
    /// # Errors
    /// Why they are still there.
    fn delete<'a>(&'a self, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>>;
}

/// Those of an API server.
#[derive(Clone)]
pub(crate) struct ClusterSlices {
    client: Client,
    node: String,
    /// None of them is deleted before the node is there.
    known: watch::Receiver<Option<Arc<Node>>>,
}

impl fmt::Debug for ClusterSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSlices").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ClusterSlices {
    /// Of the node of that name.
    pub(crate) fn new(client: Client, node: &str, known: watch::Receiver<Option<Arc<Node>>>) -> Self {
        Self { client, node: node.to_owned(), known }
    }
}

impl Slices for ClusterSlices {
    fn delete<'a>(&'a self, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>> {
        async move {
            if self.known.clone().wait_for(Option::is_some).await.is_err() {
                return Err("the node is not registered".to_owned());
            }
            let of_driver = driver.map(|driver| format!(",spec.driver={driver}")).unwrap_or_default();
            let which = ListParams::default().fields(&format!("spec.nodeName={}{of_driver}", self.node));
            let slices: Api<ResourceSlice> = Api::all(self.client.clone());
            let how = DeleteParams::default();
            let deleted = slices.delete_collection(&how, &which);
            match timeout(PATIENCE, deleted).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(Error::Api(status))) if status.code == 404 => Ok(()),
                Ok(Err(Error::Api(status))) => Err(status.message),
                Ok(Err(error)) => Err(chain(&error)),
                Err(_) => Err("the API server does not answer".to_owned()),
            }
        }
        .boxed()
    }
}

/// Tries until they are gone.
pub(super) async fn wipe(slices: &dyn Slices, driver: Option<&str>) {
    let mut wait = FIRST_WAIT;
    while let Err(why) = slices.delete(driver).await {
        tracing::warn!(driver, why, "ResourceSlices of this node are not deleted yet");
        tokio::time::sleep(wait.mul_f64(1.0 + JITTER * random::fraction())).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    tracing::info!(driver, "ResourceSlices of this node are deleted");
}

#[cfg(test)]
mod tests {
    use gantry_kube_client::fake_apiserver::{FakeApiServer, InjectedFault, Wrong};
    use serde_json::json;

    use super::*;

    const ALL: &str = "/apis/resource.k8s.io/v1/resourceslices";

    /// Names of those that are left.
    fn left(server: &FakeApiServer) -> Vec<String> {
        let mut names: Vec<String> = server
            .all(ALL)
            .iter()
            .map(|slice| slice["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    #[tokio::test(start_paused = true)]
    async fn slices_of_this_node_are_deleted_those_of_a_driver_or_all() {
        let server = FakeApiServer::default();
        for (name, node, driver) in [("a", "n", "a.test"), ("b", "n", "b.test"), ("other", "m", "a.test")] {
            server.put(&format!("{ALL}/{name}"), json!({ "spec": { "nodeName": node, "driver": driver } }));
        }
        let (known, node) = watch::channel(None);
        let slices = ClusterSlices::new(server.client(), "n", node);
        let unregistered = timeout(Duration::from_secs(3600), slices.delete(None)).await;
        assert!(unregistered.is_err(), "before the node is there nothing is deleted");
        assert_eq!(left(&server), ["a", "b", "other"]);

        known.send_replace(Some(Arc::new(Node::default())));
        slices.delete(Some("a.test")).await.unwrap();
        assert_eq!(left(&server), ["b", "other"]);
        slices.delete(None).await.unwrap();
        assert_eq!(left(&server), ["other"]);

        let fault = |code, reason| InjectedFault {
            method: "DELETE".to_owned(),
            path: ALL.to_owned(),
            what: Wrong::Refused(code, reason),
            times: 1,
        };
        server.fault(fault(403, "Forbidden"));
        slices.delete(None).await.unwrap_err();
        // An API server without that API has no slices.
        server.fault(fault(404, "NotFound"));
        slices.delete(None).await.unwrap();
    }
}
