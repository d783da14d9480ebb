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
