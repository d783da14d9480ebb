//! The objects of a real API server, as a node may ask for them: ConfigMaps and Secrets one by one
//! (a node may not list them), each watched once for as long as a pod refers to it; tokens by
//! TokenRequest; Services and RuntimeClasses as a whole. Owns the copies; never changes an object.
//! Made by the kubelet, called through [`Api`].
//!
//! ```text
//! follow(pod) ──references──▶ one watch for each object ──change──▶ revision of the pods that refer to it
//! config_map(…) ─────────────▶ the copy, or one GET when nobody follows it
//! ```

#![expect(clippy::disallowed_methods, reason = "the task ends with the cache that it holds weakly")]

mod convert;
mod copies;
pub(crate) mod migration;
mod services;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use gantry_base::error::chain;
use gantry_kube_client::reflector::{self, Query, Reflected};
use gantry_model::clock::Clock;
use gantry_model::pod::token::TokenOf;
use gantry_model::pod::{Pod, PodUid};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::storage::v1 as storage;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::timeout;

use super::references::{Kind, References};
use super::{
    AccountToken, Api, Attachment, Claim, ConfigMap, CsiDriver, Error, LookupFuture, PersistentVolume,
    ResourceClaim, Secret, Service, ServiceAccount, changes,
};
use copies::Copies;
use services::ServiceObject;
use tokens::Tokens;

/// How long an answer is awaited before the caller is told that there is none. A node may read an
/// object only once the API server's authorizer has seen the pod, which lags a little.
const PATIENCE: Duration = Duration::from_secs(3);
/// For the same reason nothing is asked for at once: mostly the pod has just been bound.
const LAG: Duration = Duration::from_millis(10);
/// First wait after a refusal.
const RETRY: Duration = Duration::from_millis(50);
/// How often tokens are looked at.
const TOKEN_CHECK: Duration = Duration::from_secs(15);

/// See the module.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<ClusterState>,
}

struct ClusterState {
    client: Client,
    tokens: Tokens,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    config_maps: Copies<ConfigMap>,
    secrets: Copies<Secret>,
    pods: BTreeMap<PodUid, Follower>,
    services: Option<watch::Receiver<Reflected<ServiceObject>>>,
    classes: Option<watch::Receiver<Reflected<RuntimeClass>>>,
    csi_drivers: Option<watch::Receiver<Reflected<storage::CSIDriver>>>,
}

struct Follower {
    namespace: String,
    references: References,
    revision: watch::Sender<u64>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Asks by `client`; `clock` tells when tokens are due. Runs tasks, which end with the last copy.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let tokens = Tokens::new(client.clone(), clock);
        let shared = Arc::new(ClusterState { client, tokens, state: Mutex::default() });
        tokio::spawn(watch_tokens(Arc::downgrade(&shared)));
        Self { shared }
    }

    /// The copy of an object, or the object itself when no pod follows it.
    async fn get<K, T>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        copies: fn(&State) -> &Copies<T>,
        convert: fn(K) -> T,
    ) -> Result<Option<Arc<T>>, Error>
    where
        K: DeserializeOwned + Clone + fmt::Debug,
        T: Send + Sync + 'static,
    {
        let word = kind.word();
        let copy = copies(&self.shared.state()).get(namespace, name);
        let Some(copy) = copy else {
            let path = format!("{}/{name}", kind.path(namespace));
            return Ok(self.fetch::<K>(&path).await?.map(|object| Arc::new(convert(object))));
        };
        copies::settled(copy, PATIENCE).await.map_err(|why| Error {
            message: match why {
                None => {
                    format!("failed to sync {word} cache: timed out waiting for the condition")
                }
                Some(why) => format!("failed to sync {word} cache: {namespace}/{name}: {why}"),
            },
        })
    }

    /// All of them, followed from the first time on that somebody asks.
    fn csi_drivers(&self) -> watch::Receiver<Reflected<storage::CSIDriver>> {
        let mut state = self.shared.state();
        let drivers = state.csi_drivers.get_or_insert_with(|| {
            let path = "/apis/storage.k8s.io/v1/csidrivers".to_owned();
            let query = Query { path, field_selector: String::new() };
            reflector::reflect_soon(self.shared.client.clone(), query, RETRY)
        });
        drivers.clone()
    }

    /// One object by its path; none when there is none.
    async fn fetch<K: DeserializeOwned + Clone + fmt::Debug>(&self, path: &str) -> Result<Option<K>, Error> {
        let asked = async {
            let mut wait = RETRY;
            loop {
                let request = http::Request::get(path).body(Vec::new());
                let request = request.map_err(|error| error.to_string())?;
                match self.shared.client.request::<K>(request).await {
                    Ok(object) => return Ok(Some(object)),
                    Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                    // The authorizer's graph lags behind the binding.
                    Err(kube::Error::Api(status)) if status.code == 403 && wait < PATIENCE / 2 => {
                        tracing::debug!(path, text = status.message, "not allowed yet");
                    }
                    Err(kube::Error::Api(status)) => return Err(status.message),
                    Err(error) => return Err(error.to_string()),
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        };
        match timeout(PATIENCE * 4, asked).await {
            Ok(answer) => answer.map_err(|message| Error { message }),
            Err(_) => Err(Error { message: format!("GET {path}: the API server does not answer") }),
        }
    }
}

/// Waits for the first list of a kind that is followed as a whole.
async fn listed<K: Clone>(mut all: watch::Receiver<Reflected<K>>) -> Option<Reflected<K>> {
    let synced = timeout(PATIENCE, all.wait_for(|all| all.synced)).await;
    synced.ok()?.ok().map(|all| (*all).clone())
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    fn path(self, namespace: &str) -> String {
        format!("/api/v1/namespaces/{namespace}/{}s", self.word())
    }
}

impl ClusterState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the pods that refer to an object.
    fn notify_followers(&self, kind: Kind, namespace: &str, name: &str) {
        let state = self.state();
        let object = (kind, name.to_owned());
        for follower in state.pods.values() {
            if follower.namespace == namespace && follower.references.objects.contains(&object) {
                follower.revision.send_modify(|revision| *revision += 1);
            }
        }
    }

    /// Begins what is newly referred to, ends what nobody refers to any more.
    fn settle(self: &Arc<Self>, state: &mut State) {
        let mut wanted: BTreeMap<Kind, BTreeSet<(String, String)>> = BTreeMap::new();
        for follower in state.pods.values() {
            for (kind, name) in &follower.references.objects {
                wanted.entry(*kind).or_default().insert((follower.namespace.clone(), name.clone()));
            }
        }
        let config_maps = wanted.remove(&Kind::ConfigMap).unwrap_or_default();
        state.config_maps.keep_only(config_maps, |namespace, name| {
            copies::follow(
                self,
                Kind::ConfigMap,
                (namespace, name),
                convert::config_map,
                convert::is_fixed_map,
            )
        });
        let secrets = wanted.remove(&Kind::Secret).unwrap_or_default();
        state.secrets.keep_only(secrets, |namespace, name| {
            copies::follow(self, Kind::Secret, (namespace, name), convert::secret, convert::is_fixed_secret)
        });
    }
}

/// Tells pods whose tokens are due; they set their volumes up again, which renews them.
async fn watch_tokens(shared: Weak<ClusterState>) {
    loop {
        tokio::time::sleep(TOKEN_CHECK).await;
        let Some(shared) = shared.upgrade() else { return };
        let due = shared.tokens.due();
        for follower in shared.state().pods.values() {
            // Others are asked for when they are needed, and not before.
            if follower.references.tokens.iter().any(|token| due.contains(token)) {
                follower.revision.send_modify(|revision| *revision += 1);
            }
        }
    }
}

impl Api for Cluster {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ConfigMap> {
        Box::pin(self.get(Kind::ConfigMap, namespace, name, |state| &state.config_maps, convert::config_map))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Secret> {
        Box::pin(self.get(Kind::Secret, namespace, name, |state| &state.secrets, convert::secret))
    }

    fn token<'a>(&'a self, of: &'a TokenOf) -> BoxFuture<'a, Result<AccountToken, Error>> {
        Box::pin(self.shared.tokens.get(of))
    }

    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ServiceAccount> {
        Box::pin(async move {
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}");
            let found = self.fetch::<v1::ServiceAccount>(&path).await?;
            Ok(found.map(|object| Arc::new(convert::service_account(object))))
        })
    }

    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Claim> {
        Box::pin(async move {
            let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
            let found = self.fetch::<v1::PersistentVolumeClaim>(&path).await?;
            Ok(found.map(|object| Arc::new(convert::claim(object))))
        })
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> LookupFuture<'a, PersistentVolume> {
        Box::pin(async move {
            let path = format!("/api/v1/persistentvolumes/{name}");
            let found = self.fetch::<v1::PersistentVolume>(&path).await?;
            Ok(found.map(|object| Arc::new(convert::volume(object))))
        })
    }

    fn resource_claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ResourceClaim> {
        Box::pin(async move {
            let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
            let found = self.fetch::<resource::ResourceClaim>(&path).await?;
            Ok(found.map(|object| Arc::new(convert::resource_claim(object))))
        })
    }

    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: serde_json::Value,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let claims: kube::Api<v1::PersistentVolumeClaim> =
                kube::Api::namespaced(self.shared.client.clone(), namespace);
            let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
            let asked = timeout(PATIENCE * 4, claims.patch_status(name, &parameters, &patch)).await;
            let message = match asked {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(kube::Error::Api(status))) => status.message,
                Ok(Err(error)) => chain(&error),
                Err(_) => "the API server does not answer".to_owned(),
            };
            Err(Error { message: format!("patchPVCStatus failed to patch PVC {name:?}: {message}") })
        })
    }

    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, Error>> {
        Box::pin(async move {
            let all = self
                .shared
                .state()
                .services
                .get_or_insert_with(|| {
                    let query = Query { path: "/api/v1/services".to_owned(), field_selector: String::new() };
                    reflector::reflect_soon(self.shared.client.clone(), query, RETRY)
                })
                .clone();
            let all = listed(all).await.ok_or_else(|| Error {
                message: "services have not yet been read at least once, cannot construct envs".to_owned(),
            })?;
            let here = |object: &&Arc<ServiceObject>| object.metadata.namespace.as_deref() == Some(namespace);
            Ok(all.items.values().filter(here).map(|object| object.service()).collect())
        })
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> LookupFuture<'a, String> {
        Box::pin(async move {
            let all = self
                .shared
                .state()
                .classes
                .get_or_insert_with(|| {
                    let path = "/apis/node.k8s.io/v1/runtimeclasses".to_owned();
                    let query = Query { path, field_selector: String::new() };
                    reflector::reflect_soon(self.shared.client.clone(), query, RETRY)
                })
                .clone();
            let all = listed(all).await.ok_or_else(|| Error {
                message: format!("failed to look up RuntimeClass {class:?}: none was read yet"),
            })?;
            let named = |object: &&Arc<RuntimeClass>| object.metadata.name.as_deref() == Some(class);
            Ok(all.items.values().find(named).map(|object| Arc::new(object.handler.clone())))
        })
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> LookupFuture<'a, CsiDriver> {
        Box::pin(async move {
            let all = listed(self.csi_drivers()).await.ok_or_else(|| Error {
                message: format!("failed to look up CSIDriver {name:?}: none was read yet"),
            })?;
            let named = |object: &&Arc<storage::CSIDriver>| object.metadata.name.as_deref() == Some(name);
            Ok(all.items.values().find(named).map(|object| Arc::new(convert::csi_driver(object))))
        })
    }

    fn allocatable_periods(&self) -> BoxStream<'static, BTreeMap<String, Duration>> {
        let of = |object: &Arc<storage::CSIDriver>| {
            Some((object.metadata.name.clone()?, convert::allocatable_period(object)?))
        };
        let look = move |all: &Reflected<storage::CSIDriver>| {
            all.synced.then(|| all.items.values().filter_map(of).collect())
        };
        changes(self.csi_drivers(), look).boxed()
    }

    fn attachment<'a>(&'a self, name: &'a str) -> LookupFuture<'a, Attachment> {
        Box::pin(async move {
            let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
            let found = self.fetch::<storage::VolumeAttachment>(&path).await?;
            Ok(found.map(|object| Arc::new(convert::attachment(object))))
        })
    }

    fn follow(&self, pod: &Pod) -> watch::Receiver<u64> {
        let mut state = self.shared.state();
        let follower = state.pods.entry(pod.uid.clone()).or_insert_with(|| Follower {
            namespace: pod.namespace.clone(),
            references: References::default(),
            revision: watch::channel(0).0,
        });
        let receiver = follower.revision.subscribe();
        let references = References::of(pod);
        if follower.references != references {
            follower.references = references;
            self.shared.settle(&mut state);
        }
        receiver
    }

    fn refresh(&self, uid: &PodUid) {
        if let Some(follower) = self.shared.state().pods.get(uid) {
            follower.revision.send_modify(|revision| *revision += 1);
        }
    }

    fn forget(&self, uid: &PodUid) {
        let mut state = self.shared.state();
        if state.pods.remove(uid).is_some() {
            self.shared.settle(&mut state);
        }
        self.shared.tokens.forget(uid);
    }
}

#[cfg(test)]
mod tests;
