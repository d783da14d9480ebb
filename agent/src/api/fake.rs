//! Objects that come and go, and a source that fails. Owns its state; passes for [`Api`] in tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use gantry_model::pod::token::TokenOf;
use gantry_model::pod::{Pod, PodUid};
use tokio::sync::watch;

use super::files::Files;
use super::references::{Kind, References};
use super::{
    AccountToken, Api, Attachment, Claim, ConfigMap, CsiDriver, Error, LookupFuture, PersistentSource,
    PersistentVolume, ResourceClaim, Secret, Service, ServiceAccount, changes,
};

/// A claim that is bound to this PersistentVolume.
pub fn claim_to(volume: &str) -> Claim {
    Claim { volume: volume.to_owned(), bound: true, uid: "u".to_owned(), ..Claim::default() }
}

/// A PersistentVolume that is bound to a claim of [`claim_to`]: `ReadWriteOnce`, for each node.
pub fn volume_from(source: PersistentSource) -> PersistentVolume {
    PersistentVolume {
        uid: "pv-uid".to_owned(),
        source,
        claim_uid: "u".to_owned(),
        one_pod: false,
        access_mode: "RWO",
        affinity: None,
        capacity: String::new(),
    }
}

/// Starts empty.
#[derive(Debug, Default)]
pub struct FakeApi {
    state: Mutex<State>,
    periods: watch::Sender<BTreeMap<String, Duration>>,
}

#[derive(Debug, Default)]
struct State {
    objects: Files,
    failure: Option<String>,
    accounts: BTreeMap<String, Arc<ServiceAccount>>,
    claims: BTreeMap<String, Arc<Claim>>,
    resource_claims: BTreeMap<String, Arc<ResourceClaim>>,
    volumes: BTreeMap<String, Arc<PersistentVolume>>,
    csi_drivers: BTreeMap<String, Arc<CsiDriver>>,
    attachments: BTreeMap<String, Arc<Attachment>>,
    services: Vec<Service>,
    handlers: BTreeMap<String, Arc<String>>,
    /// What claims were told, by name.
    claim_patches: Vec<(String, serde_json::Value)>,
    /// How many tokens were given.
    tokens: u64,
    followers: BTreeMap<PodUid, (References, watch::Sender<u64>)>,
}

impl FakeApi {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What claims were told, by name and in order.
    pub fn claim_patches(&self) -> Vec<(String, serde_json::Value)> {
        self.state().claim_patches.clone()
    }

    /// Adds or replaces a ConfigMap of namespace `default`.
    pub fn put_config_map(&self, name: &str, data: &[(&str, &str)]) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let object = ConfigMap { data, ..ConfigMap::default() };
        self.state().objects.add_config_map("default", name, object);
        self.changed(Kind::ConfigMap, name);
    }

    /// Adds or replaces a Secret of namespace `default`.
    pub fn put_secret(&self, name: &str, kind: &str, data: &[(&str, impl AsRef<[u8]>)]) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_ref().to_vec())).collect();
        self.state().objects.add_secret(
            "default",
            name,
            Secret { kind: kind.to_owned(), data, uid: format!("uid-of-{name}") },
        );
        self.changed(Kind::Secret, name);
    }

    /// Adds or replaces a service account of namespace `default`.
    pub fn put_service_account(&self, name: &str, account: ServiceAccount) {
        self.state().accounts.insert(name.to_owned(), Arc::new(account));
    }

    /// Adds or replaces a claim of namespace `default`.
    pub fn put_claim(&self, name: &str, claim: Claim) {
        self.state().claims.insert(name.to_owned(), Arc::new(claim));
    }

    /// Adds or replaces a claim to devices of namespace `default`.
    pub fn put_resource_claim(&self, name: &str, claim: ResourceClaim) {
        self.state().resource_claims.insert(name.to_owned(), Arc::new(claim));
    }

    /// Adds or replaces a PersistentVolume.
    pub fn put_volume(&self, name: &str, volume: PersistentVolume) {
        self.state().volumes.insert(name.to_owned(), Arc::new(volume));
    }

    /// Adds or replaces a CSIDriver.
    pub fn put_csi_driver(&self, name: &str, driver: CsiDriver) {
        self.periods.send_modify(|periods| match driver.allocatable_period {
            Some(period) => drop(periods.insert(name.to_owned(), period)),
            None => drop(periods.remove(name)),
        });
        self.state().csi_drivers.insert(name.to_owned(), Arc::new(driver));
    }

    /// Adds or replaces a VolumeAttachment.
    pub fn put_attachment(&self, name: &str, attachment: Attachment) {
        self.state().attachments.insert(name.to_owned(), Arc::new(attachment));
    }

    /// Adds a Service to every namespace.
    pub fn put_service(&self, service: Service) {
        self.state().services.push(service);
    }

    /// Adds a RuntimeClass.
    pub fn put_runtime_class(&self, name: &str, handler: &str) {
        self.state().handlers.insert(name.to_owned(), Arc::new(handler.to_owned()));
    }

    /// Every call fails so until told otherwise.
    pub fn fail(&self, message: Option<&str>) {
        self.state().failure = message.map(str::to_owned);
    }

    /// The pods that follow objects.
    pub fn followers(&self) -> BTreeSet<PodUid> {
        self.state().followers.keys().cloned().collect()
    }

    fn changed(&self, kind: Kind, name: &str) {
        for (references, revision) in self.state().followers.values() {
            if references.objects.contains(&(kind, name.to_owned())) {
                revision.send_modify(|revision| *revision += 1);
            }
        }
    }

    /// A look at the state, unless every call is to fail.
    fn ask<T>(
        &self,
        kind: &'static str,
        (namespace, name): (&str, &str),
        look: impl FnOnce(&mut State) -> T,
    ) -> Result<T, Error> {
        let mut state = self.state();
        match &state.failure {
            None => Ok(look(&mut state)),
            Some(message) => Err(Error::reading(kind, namespace, name, message)),
        }
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Api for FakeApi {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ConfigMap> {
        let objects = self.ask("ConfigMap", (namespace, name), |state| state.objects.clone());
        Box::pin(async move { objects?.config_map(namespace, name).await })
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Secret> {
        let objects = self.ask("Secret", (namespace, name), |state| state.objects.clone());
        Box::pin(async move { objects?.secret(namespace, name).await })
    }

    fn token<'a>(&'a self, of: &'a TokenOf) -> BoxFuture<'a, Result<AccountToken, Error>> {
        ready(self.ask("ServiceAccount", (&of.namespace, &of.service_account), |state| {
            state.tokens += 1;
            let text =
                format!("token-{}-of-{}-for-{}", state.tokens, of.service_account, of.audiences.join(","));
            AccountToken { text, expires: 1_000_000_000 * of.seconds }
        }))
    }

    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ServiceAccount> {
        ready(self.ask("ServiceAccount", (namespace, name), |state| state.accounts.get(name).cloned()))
    }

    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Claim> {
        ready(self.ask("PersistentVolumeClaim", (namespace, name), |state| state.claims.get(name).cloned()))
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> LookupFuture<'a, PersistentVolume> {
        ready(self.ask("PersistentVolume", ("", name), |state| state.volumes.get(name).cloned()))
    }

    fn resource_claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ResourceClaim> {
        let look = |state: &mut State| state.resource_claims.get(name).cloned();
        ready(self.ask("ResourceClaim", (namespace, name), look))
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> LookupFuture<'a, CsiDriver> {
        ready(self.ask("CSIDriver", ("", name), |state| state.csi_drivers.get(name).cloned()))
    }

    fn allocatable_periods(&self) -> BoxStream<'static, BTreeMap<String, Duration>> {
        Box::pin(changes(self.periods.subscribe(), |periods| Some(periods.clone())))
    }

    fn attachment<'a>(&'a self, name: &'a str) -> LookupFuture<'a, Attachment> {
        ready(self.ask("VolumeAttachment", ("", name), |state| state.attachments.get(name).cloned()))
    }

    fn services<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<Service>, Error>> {
        ready(self.ask("Services", (namespace, ""), |state| state.services.clone()))
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> LookupFuture<'a, String> {
        ready(self.ask("RuntimeClass", ("", class), |state| state.handlers.get(class).cloned()))
    }

    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: serde_json::Value,
    ) -> BoxFuture<'a, Result<(), Error>> {
        ready(self.ask("PersistentVolumeClaim", (namespace, name), |state| {
            state.claim_patches.push((name.to_owned(), patch));
        }))
    }

    fn follow(&self, pod: &Pod) -> watch::Receiver<u64> {
        let mut state = self.state();
        let (references, revision) = state
            .followers
            .entry(pod.uid.clone())
            .or_insert_with(|| (References::default(), watch::channel(0).0));
        *references = References::of(pod);
        revision.subscribe()
    }

    fn refresh(&self, uid: &PodUid) {
        if let Some((_, revision)) = self.state().followers.get(uid) {
            revision.send_modify(|revision| *revision += 1);
        }
    }

    fn forget(&self, uid: &PodUid) {
        self.state().followers.remove(uid);
    }
}
