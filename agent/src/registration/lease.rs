//! The node's lease: the sign of life that the control plane counts. Owns its renewal, on a
//! connection and a timer of its own so that nothing else can hold it up (trap 14); never says how
//! the node is. Started by [`super`].

use std::sync::Arc;
use std::time::Duration;

use gantry_model::random;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::timeout;

const NAMESPACE: &str = "kube-node-lease";
/// Tries of one renewal.
const TRIES: usize = 5;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(7);

/// What is to be renewed.
#[derive(Clone)]
pub(super) struct Renewal {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) seconds: i32,
    /// The connection may be dead: others are to be made.
    pub(super) troubled: Arc<dyn Fn() + Send + Sync>,
}

impl Renewal {
    /// A quarter of what it is good for.
    fn every(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.seconds).unwrap_or(40)).mul_f64(0.25)
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// For ever.
    pub(super) async fn run(self) {
        let mut latest: Option<Lease> = None;
        loop {
            let began = tokio::time::Instant::now();
            latest = self.turn(latest).await;
            let every = self.every();
            let pause = every + every.mul_f64(0.04 * random::fraction());
            tokio::time::sleep(pause.saturating_sub(began.elapsed()).max(FIRST_WAIT)).await;
        }
    }

    async fn turn(&self, latest: Option<Lease>) -> Option<Lease> {
        if let Some(lease) = latest
            && let Some(renewed) = self.renew(lease).await
        {
            return Some(renewed);
        }
        match self.ensure().await {
            (lease, true) => Some(lease),
            (lease, false) => self.renew(lease).await,
        }
    }

    /// None after so many failures: look again whether it is there.
    async fn renew(&self, mut lease: Lease) -> Option<Lease> {
        for tried in 0..TRIES {
            let wanted = self.fresh(Some(&lease)).await;
            let (leases, parameters) = (self.leases(), PostParams::default());
            let asked = leases.replace(&self.node, &parameters, &wanted);
            let error = match timeout(self.every(), asked).await {
                Ok(Ok(renewed)) => return Some(renewed),
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                    // Somebody wrote it: take it from there.
                    lease = self.ensure().await.0;
                    continue;
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return None,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            tracing::warn!(error, "cannot renew the node's lease");
            if tried > 0 {
                (self.troubled)();
            }
            tokio::time::sleep(FIRST_WAIT).await;
        }
        None
    }

    /// As it is, or new; and whether it was made now. Tries for ever.
    async fn ensure(&self) -> (Lease, bool) {
        let mut pause = FIRST_WAIT;
        loop {
            match timeout(self.every(), self.ensure_once()).await {
                Ok(Ok(done)) => return done,
                Ok(Err(error)) => tracing::warn!(%error, ?pause, "cannot have a lease; trying again"),
                Err(_) => tracing::warn!(?pause, "cannot have a lease: no answer; trying again"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_WAIT);
        }
    }

    async fn ensure_once(&self) -> Result<(Lease, bool), kube::Error> {
        if let Some(lease) = self.leases().get_opt(&self.node).await? {
            return Ok((lease, false));
        }
        let mut new = self.fresh(None).await;
        if new.metadata.owner_references.is_none() {
            // Without its node it would outlive it: the node is to be registered first, and may be by now.
            new.metadata.owner_references = self.ask_owner().await?.map(|owner| vec![owner]);
        }
        Ok((self.leases().create(&PostParams::default(), &new).await?, true))
    }

    /// The lease of this moment.
    async fn fresh(&self, base: Option<&Lease>) -> Lease {
        let mut lease = base.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.node.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec { holder_identity: Some(self.node.clone()), ..LeaseSpec::default() }),
        });
        let spec = lease.spec.get_or_insert_default();
        spec.lease_duration_seconds = Some(self.seconds);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
            lease.metadata.owner_references = self.owner().await.map(|owner| vec![owner]);
        }
        lease
    }

    /// Asked each time until it is known: the node may be registered later than the lease is made.
    async fn owner(&self) -> Option<OwnerReference> {
        self.ask_owner().await.ok().flatten()
    }

    async fn ask_owner(&self) -> Result<Option<OwnerReference>, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node).await?;
        Ok(node.metadata.uid.map(|uid| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid,
            controller: None,
            block_owner_deletion: None,
        }))
    }
}
