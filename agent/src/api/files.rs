//! The ConfigMaps and Secrets of the files of `gantry run`. Owns them; never changes them once the
//! pods run. Made by [`crate::manifest::load`], called through [`Api`].

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::{Answer, Api, Claim, ConfigMap, Error, PersistentVolume, Secret, Service, ServiceAccount};
use crate::model::pod::{Pod, PodUid};
use crate::model::token::TokenOf;

type ByName<T> = BTreeMap<(String, String), Arc<T>>;

/// Objects by namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Files {
    config_maps: ByName<ConfigMap>,
    secrets: ByName<Secret>,
}

impl Files {
    /// Adds one; false when there was one of that name already.
    pub fn add_config_map(&mut self, namespace: &str, name: &str, object: ConfigMap) -> bool {
        add(&mut self.config_maps, namespace, name, object)
    }

    /// Adds one; false when there was one of that name already.
    pub fn add_secret(&mut self, namespace: &str, name: &str, object: Secret) -> bool {
        add(&mut self.secrets, namespace, name, object)
    }
}

fn add<T>(objects: &mut ByName<T>, namespace: &str, name: &str, object: T) -> bool {
    objects.insert((namespace.to_owned(), name.to_owned()), Arc::new(object)).is_none()
}

fn get<T>(objects: &ByName<T>, namespace: &str, name: &str) -> Option<Arc<T>> {
    objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
}

impl Api for Files {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, ConfigMap> {
        Box::pin(std::future::ready(Ok(get(&self.config_maps, namespace, name))))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Secret> {
        Box::pin(std::future::ready(Ok(get(&self.secrets, namespace, name))))
    }

    fn token<'a>(&'a self, of: &'a TokenOf) -> BoxFuture<'a, Result<String, Error>> {
        let message = format!(
            "failed to fetch token: service account {:?} needs an API server, and these pods have none",
            of.service_account
        );
        Box::pin(std::future::ready(Err(Error { message })))
    }

    fn service_account<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, ServiceAccount> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Claim> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn persistent_volume<'a>(&'a self, _: &'a str) -> Answer<'a, PersistentVolume> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn node_labels<'a>(&'a self, _: &'a str) -> Answer<'a, BTreeMap<String, String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn services<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<Service>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn runtime_handler<'a>(&'a self, _: &'a str) -> Answer<'a, String> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Nothing ever changes.
    fn follow(&self, _: &Pod) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn forget(&self, _: &PodUid) {}
}
