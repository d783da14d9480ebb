//! The ConfigMaps and Secrets of the files of `gantry run`. Owns them; more may come while pods run, none goes.
//! Made by [`crate::manifest::load`], called through [`Api`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use gantry_model::pod::token::TokenOf;
use gantry_model::pod::{Pod, PodUid};
use tokio::sync::watch;

use super::{
    AccountToken, Api, Attachment, Claim, ConfigMap, CsiDriver, Error, LookupFuture, PersistentVolume,
    ResourceClaim, Secret, Service, ServiceAccount,
};

/// Namespace and name.
type Id = (String, String);
type ByName<T> = BTreeMap<Id, Arc<T>>;

/// Objects by namespace and name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Files {
    objects: watch::Sender<Objects>,
    /// Rises with each change.
    version: watch::Sender<u64>,
}

#[derive(Debug, Clone, Default)]
struct Objects {
    config_maps: ByName<ConfigMap>,
    secrets: ByName<Secret>,
}

/// What became of an object that was there or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Created,
    /// It was there, with another content.
    Configured,
    /// It was there.
    Unchanged,
}

impl Files {
    /// Adds one; false when there was one of that name already.
    pub fn add_config_map(&mut self, namespace: &str, name: &str, object: ConfigMap) -> bool {
        let mut new = false;
        self.objects.send_modify(|all| new = add(&mut all.config_maps, namespace, name, object));
        new
    }

    /// Adds one; false when there was one of that name already.
    pub fn add_secret(&mut self, namespace: &str, name: &str, object: Secret) -> bool {
        let mut new = false;
        self.objects.send_modify(|all| new = add(&mut all.secrets, namespace, name, object));
        new
    }

    /// Takes what the other ones are, too; theirs win. Volumes and variables that name them follow. Tells the kind,
    /// namespace and name of each.
    pub fn take(&self, others: &Self) -> Vec<(&'static str, Id, Change)> {
        let others = others.objects.borrow().clone();
        let mut told = Vec::new();
        self.objects.send_modify(|all| {
            take(&mut all.config_maps, others.config_maps, "ConfigMap", &mut told);
            take(&mut all.secrets, others.secrets, "Secret", &mut told);
        });
        if told.iter().any(|(_, _, change)| *change != Change::Unchanged) {
            self.version.send_modify(|version| *version += 1);
        }
        told
    }
}

fn add<T>(objects: &mut ByName<T>, namespace: &str, name: &str, object: T) -> bool {
    objects.insert((namespace.to_owned(), name.to_owned()), Arc::new(object)).is_none()
}

fn take<T: PartialEq>(
    here: &mut ByName<T>,
    others: ByName<T>,
    kind: &'static str,
    told: &mut Vec<(&'static str, Id, Change)>,
) {
    for (id, object) in others {
        let change = match here.insert(id.clone(), object.clone()) {
            None => Change::Created,
            Some(before) if before == object => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        told.push((kind, id, change));
    }
}

fn get<T>(objects: &ByName<T>, namespace: &str, name: &str) -> Option<Arc<T>> {
    objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
}

impl Api for Files {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, ConfigMap> {
        Box::pin(std::future::ready(Ok(get(&self.objects.borrow().config_maps, namespace, name))))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Secret> {
        Box::pin(std::future::ready(Ok(get(&self.objects.borrow().secrets, namespace, name))))
    }

    fn token<'a>(&'a self, of: &'a TokenOf) -> BoxFuture<'a, Result<AccountToken, Error>> {
        let message = format!(
            "failed to fetch token: service account {:?} needs an API server, and these pods have none",
            of.service_account
        );
        Box::pin(std::future::ready(Err(Error { message })))
    }

    fn service_account<'a>(&'a self, _: &'a str, _: &'a str) -> LookupFuture<'a, ServiceAccount> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> LookupFuture<'a, Claim> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn persistent_volume<'a>(&'a self, _: &'a str) -> LookupFuture<'a, PersistentVolume> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn resource_claim<'a>(&'a self, _: &'a str, _: &'a str) -> LookupFuture<'a, ResourceClaim> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn csi_driver<'a>(&'a self, _: &'a str) -> LookupFuture<'a, CsiDriver> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn allocatable_periods(&self) -> BoxStream<'static, BTreeMap<String, Duration>> {
        Box::pin(futures_util::stream::pending())
    }

    fn attachment<'a>(&'a self, _: &'a str) -> LookupFuture<'a, Attachment> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn services<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<Service>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn runtime_handler<'a>(&'a self, _: &'a str) -> LookupFuture<'a, String> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// A change of any of them is everybody's: there are few.
    fn patch_claim_status<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
        _: serde_json::Value,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let message = format!("persistentvolumeclaim {name:?} not found: these pods have no API server");
        Box::pin(std::future::ready(Err(Error { message })))
    }

    fn follow(&self, _: &Pod) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// No driver asks for it without a cluster.
    fn refresh(&self, _: &PodUid) {}

    fn forget(&self, _: &PodUid) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: &str) -> ConfigMap {
        ConfigMap { data: [("key".to_owned(), value.to_owned())].into(), ..ConfigMap::default() }
    }

    #[tokio::test]
    async fn what_comes_later_is_seen_by_those_who_follow() {
        let mut files = Files::default();
        files.add_config_map("default", "a", map("1"));
        let (shared, mut changes) = (files.clone(), files.version.subscribe());
        let mut more = Files::default();
        more.add_config_map("default", "a", map("1"));
        let id = |name: &str| ("default".to_owned(), name.to_owned());
        assert_eq!(files.take(&more), [("ConfigMap", id("a"), Change::Unchanged)]);
        assert!(!changes.has_changed().unwrap(), "nothing is another");
        more.add_config_map("default", "a", map("2"));
        more.add_secret("default", "s", Secret::default());
        let want = [("ConfigMap", id("a"), Change::Configured), ("Secret", id("s"), Change::Created)];
        assert_eq!(files.take(&more), want);
        changes.changed().await.unwrap();
        assert_eq!(shared.config_map("default", "a").await.unwrap().unwrap().data["key"], "2");
    }
}
