//! A container's environment: envFrom, then env, each value looked up and expanded. Owns the order
//! and the kubelet's words for what is missing; never the process that gets it. Called by
//! [`super::configure`].

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_model::expand::expand_bytes;
use gantry_model::pod::env::{EnvFromSource, EnvValue, FileKeyRef, KeyRef};
use gantry_model::pod::{Container, Origin, Pod};

use super::{env_file, services};
use crate::api::{Api, ConfigMap, Secret};
use crate::node::NodeInfo;
use crate::volumes::downward;
use crate::volumes::{PodFacts, Volumes};

/// Told of to every container, whatever it wants.
const MASTER: &str = "kubernetes";
const MASTER_NAMESPACE: &str = "default";

/// Names and values in the order of their first mention. A Secret may hold any bytes, and the container
/// gets them as they are.
type Env = Vec<(String, Vec<u8>)>;

/// Whose environment.
#[derive(Clone, Copy)]
pub(in crate::pod) struct EnvOf<'a> {
    pub(in crate::pod) pod: &'a Pod,
    pub(in crate::pod) container: &'a Container,
    pub(in crate::pod) facts: &'a PodFacts,
    pub(in crate::pod) node: &'a NodeInfo,
    pub(in crate::pod) volumes: &'a dyn Volumes,
}

/// What was read already: an object that changes meanwhile gives no mixture.
struct Objects<'a> {
    api: &'a dyn Api,
    namespace: &'a str,
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
}

/// # Errors
/// The message of CreateContainerConfigError.
pub(in crate::pod) async fn environment(api: &dyn Api, of: EnvOf<'_>) -> Result<Env, String> {
    let mut objects =
        Objects { api, namespace: &of.pod.namespace, config_maps: BTreeMap::new(), secrets: BTreeMap::new() };
    let services = of_services(api, of.pod).await?;
    let mut env = Env::new();
    for from in &of.container.env_from {
        let pairs: Env = match &from.source {
            EnvFromSource::ConfigMap(name) => match objects.config_map(name, from.optional).await? {
                Some(map) => map.data.clone().into_iter().map(bytes).collect(),
                None => continue,
            },
            EnvFromSource::Secret(name) => match objects.secret(name, from.optional).await? {
                Some(secret) => secret.data.clone().into_iter().collect(),
                None => continue,
            },
        };
        for (key, value) in pairs {
            set(&mut env, format!("{}{key}", from.prefix), value)?;
        }
    }
    for variable in &of.container.env {
        let value = match &variable.value {
            EnvValue::Literal(text) => Some(expand_bytes(text, &known(&services, &env))),
            EnvValue::Field(path) => Some(downward::field(of.pod, path, of.facts, of.node)?.into_bytes()),
            EnvValue::Resource(resource) => {
                Some(downward::resource(of.pod, Some(of.container), resource, of.node)?.into_bytes())
            }
            EnvValue::ConfigMapKey(key) => objects.config_map_key(key).await?.map(String::into_bytes),
            EnvValue::SecretKey(key) => objects.secret_key(key).await?,
            EnvValue::FileKey(key) => file_key(of, key).await?.map(String::into_bytes),
        };
        if let Some(value) = value {
            set(&mut env, variable.name.clone(), value)?;
        }
    }
    // What the container says itself wins.
    for (name, value) in services {
        if env.iter().all(|(known, _)| *known != name) {
            env.push((name, value));
        }
    }
    Ok(env)
}

/// Those of the pod's namespace when it wants them, and the API server itself always. A pod of files
/// does not wait for an API server.
async fn of_services(api: &dyn Api, pod: &Pod) -> Result<Env, String> {
    let all = async {
        let mut all = api.services(MASTER_NAMESPACE).await?;
        all.retain(|service| service.name == MASTER);
        if pod.service_links {
            let own = api.services(&pod.namespace).await?;
            all.retain(|master| own.iter().all(|service| service.name != master.name));
            all.extend(own);
        }
        Ok::<_, crate::api::Error>(services::variables(&all).into_iter().map(bytes).collect())
    };
    match all.await {
        Ok(all) => Ok(all),
        Err(error) if pod.origin != Origin::Api => {
            tracing::debug!(%error, "no variables of services");
            Ok(Env::new())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Its words are few: the file may hold secrets.
async fn file_key(of: EnvOf<'_>, key: &FileKeyRef) -> Result<Option<String>, String> {
    let FileKeyRef { volume, path, key, optional } = key;
    let text = of.volumes.left_file(&of.pod.uid, volume, path).await;
    let value = text.map_err(|error| error.message).and_then(|text| env_file::value(&text, key));
    match value {
        Ok(value) if value.is_empty() && *optional => Ok(None),
        Ok(value) if value.is_empty() => {
            Err(format!("environment variable key {key:?} not found in file {path:?}"))
        }
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            tracing::warn!(pod = of.pod.formatted(), error, "cannot read a file of variables");
            Err("couldn't parse env file".to_owned())
        }
    }
}

/// `$(NAME)` in command and arguments, which CRI takes as text only.
///
/// # Errors
/// When a value is none: it is not passed on as something else.
pub(in crate::pod) fn expand_all(words: &[String], env: &[(String, Vec<u8>)]) -> Result<Vec<String>, String> {
    let known = known(&[], env);
    let expanded = |word: &String| {
        String::from_utf8(expand_bytes(word, &known))
            .map_err(|_| format!("cannot expand {word:?}: the value of a variable is not UTF-8"))
    };
    words.iter().map(expanded).collect()
}

/// Those whose values are text: no other can stand in a path.
pub(in crate::pod) fn texts(env: &[(String, Vec<u8>)]) -> Vec<(String, String)> {
    let text =
        |(name, value): &(String, Vec<u8>)| Some((name.clone(), std::str::from_utf8(value).ok()?.to_owned()));
    env.iter().filter_map(text).collect()
}

fn bytes((name, value): (String, String)) -> (String, Vec<u8>) {
    (name, value.into_bytes())
}

/// The container's own over those of services.
fn known<'a>(services: &'a [(String, Vec<u8>)], env: &'a [(String, Vec<u8>)]) -> BTreeMap<&'a str, &'a [u8]> {
    services.iter().chain(env).map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

/// The later wins and keeps the earlier one's place.
fn set(env: &mut Env, name: String, value: Vec<u8>) -> Result<(), String> {
    if value.contains(&0) {
        return Err(format!("the value of environment variable {name:?} holds a NUL character"));
    }
    match env.iter_mut().find(|(known, _)| *known == name) {
        Some(entry) => entry.1 = value,
        None => env.push((name, value)),
    }
    Ok(())
}

impl Objects<'_> {
    async fn config_map(&mut self, name: &str, optional: bool) -> Result<Option<Arc<ConfigMap>>, String> {
        if let Some(map) = self.config_maps.get(name) {
            return Ok(Some(map.clone()));
        }
        match self.api.config_map(self.namespace, name).await.map_err(|error| error.to_string())? {
            Some(map) => {
                self.config_maps.insert(name.to_owned(), map.clone());
                Ok(Some(map))
            }
            None if optional => Ok(None),
            None => Err(format!("configmap {name:?} not found")),
        }
    }

    async fn secret(&mut self, name: &str, optional: bool) -> Result<Option<Arc<Secret>>, String> {
        if let Some(secret) = self.secrets.get(name) {
            return Ok(Some(secret.clone()));
        }
        match self.api.secret(self.namespace, name).await.map_err(|error| error.to_string())? {
            Some(secret) => {
                self.secrets.insert(name.to_owned(), secret.clone());
                Ok(Some(secret))
            }
            None if optional => Ok(None),
            None => Err(format!("secret {name:?} not found")),
        }
    }

    async fn config_map_key(&mut self, of: &KeyRef) -> Result<Option<String>, String> {
        let Some(map) = self.config_map(&of.name, of.optional).await? else { return Ok(None) };
        let value = map.data.get(&of.key).cloned();
        self.present(value, "ConfigMap", of)
    }

    async fn secret_key(&mut self, of: &KeyRef) -> Result<Option<Vec<u8>>, String> {
        let Some(secret) = self.secret(&of.name, of.optional).await? else { return Ok(None) };
        let value = secret.data.get(&of.key).cloned();
        self.present(value, "Secret", of)
    }

    fn present<T>(&self, value: Option<T>, kind: &str, of: &KeyRef) -> Result<Option<T>, String> {
        if value.is_none() && !of.optional {
            let KeyRef { name, key, .. } = of;
            return Err(format!("couldn't find key {key} in {kind} {}/{name}", self.namespace));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
