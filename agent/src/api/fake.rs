//! Objects that come and go, and a source that fails. Owns its state; passes for [`Api`] in tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::files::Files;
use super::{Answer, Api, ConfigMap, Error, Secret};

/// Starts empty.
#[derive(Debug, Default)]
pub struct FakeApi {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: Files,
    failure: Option<String>,
}

impl FakeApi {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or replaces a ConfigMap of namespace `default`.
    pub fn put_config_map(&self, name: &str, data: &[(&str, &str)]) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let object = ConfigMap { data, ..ConfigMap::default() };
        self.state().objects.add_config_map("default", name, object);
    }

    /// Adds or replaces a Secret of namespace `default`.
    pub fn put_secret(&self, name: &str, kind: &str, data: &[(&str, &str)]) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        self.state().objects.add_secret("default", name, Secret { kind: kind.to_owned(), data });
    }

    /// Every call fails so until told otherwise.
    pub fn fail(&self, message: Option<&str>) {
        self.state().failure = message.map(str::to_owned);
    }

    fn check(&self, kind: &'static str, namespace: &str, name: &str) -> Result<Files, Error> {
        let state = self.state();
        match &state.failure {
            None => Ok(state.objects.clone()),
            Some(message) => Err(Error {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                message: message.clone(),
            }),
        }
    }
}

impl Api for FakeApi {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, ConfigMap> {
        Box::pin(async move { self.check("ConfigMap", namespace, name)?.config_map(namespace, name).await })
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Secret> {
        Box::pin(async move { self.check("Secret", namespace, name)?.secret(namespace, name).await })
    }
}
