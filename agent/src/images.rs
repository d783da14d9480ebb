//! Images of pods: whose credentials are shown to a registry, who may use what is on the node, and
//! when a pull has its turn. Owns all that pods share of it; never speaks to a registry (the runtime
//! does). Called by the workers before a container is made.
//!
//! ```text
//! pull secrets ─┐
//! node's files ─┼─► keyring ─► pull, in its turn (queue) ─► records of who may use it (access)
//! plugins ──────┘
//! ```

mod glob;
pub mod keyring;
mod node_config;
mod plugin;
mod pull_manager;
mod pull_records;
pub mod queue;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use gantry_metrics::{Metrics, image_size_bucket};
use gantry_model::clock::Clock;
use gantry_model::pod::{Pod, PullPolicy};

use crate::api::{Api, Secret};
use crate::config::image_verification::Policy;
use crate::gc::Keeper;
use crate::runtime::{PullImage, Runtime};
use keyring::{Keyring, Offer, Origin, repository};
use node_config::NodeConfig;
use pull_manager::ImagePullManager;
use queue::Queue;

/// What a kubelet is told about images.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of the kubelet: records are below it, and the node's own credentials.
    pub root_dir: PathBuf,
    /// Of the user that the kubelet runs as.
    pub home: Option<PathBuf>,
    /// --image-credential-provider-config and -bin-dir.
    pub plugins: Option<(PathBuf, PathBuf)>,
    /// Whose pods are looked after.
    pub policy: Policy,
    /// How pulls wait.
    pub queue: queue::Settings,
}

/// Why images cannot be looked after.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to register CRI auth plugins")]
    Plugins(#[from] plugin::config::Error),
    #[error("failed to create image manager")]
    PullRecords(#[from] pull_records::Error),
}

/// See the module.
#[derive(Debug)]
pub struct Images {
    queue: Queue,
    node: Option<NodeConfig>,
    plugins: Vec<plugin::CredentialProvider>,
    access: Option<ImagePullManager>,
    metrics: Arc<Metrics>,
}

/// What is known of an image that a pod asks for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Who asks.
    pub pod: &'a Pod,
    /// The image as the pod writes it: what records are kept by.
    pub written: &'a str,
    /// With a tag.
    pub full: &'a str,
}

/// What a pod's secrets, the node and its plugins offer for an image.
#[derive(Debug, Default)]
pub struct Offers {
    /// To be tried in order; none: the image is asked for without.
    pub offers: Vec<Offer>,
    /// Secrets that are not there, or not readable, by name.
    pub missing: Vec<String>,
}

/// An image that was pulled.
#[derive(Debug)]
pub struct Pulled {
    /// The runtime's ID.
    pub id: String,
    /// Without the waiting.
    pub took: Duration,
}

impl Images {
    /// Without credentials of the node, records and limits: every pod may use what is on the node.
    #[must_use]
    pub fn plain() -> Self {
        let queue = Queue::new(queue::Settings::default());
        Self { queue, node: None, plugins: Vec::new(), access: None, metrics: Arc::default() }
    }

    /// As a kubelet keeps them. Pulls that an earlier one began are settled by what the runtime has.
    ///
    /// # Errors
    /// When the plugins are configured wrongly, or there is no place for records.
    pub async fn start(
        settings: Settings,
        keeper: &dyn Keeper,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let Settings { root_dir, home, plugins, policy, queue } = settings;
        let mut sources = Vec::new();
        if let Some((config, bin_dir)) = plugins {
            let (providers, sum) = plugin::config::read(&config, &bin_dir)?;
            metrics.credential_plugin_config.set([&sum], 1.0);
            for provider in providers {
                sources.push(plugin::CredentialProvider::new(
                    &bin_dir,
                    provider,
                    clock.clone(),
                    metrics.clone(),
                ));
            }
        }
        let access = ImagePullManager::open(&root_dir, policy, clock.clone(), metrics.clone())?;
        match keeper.images().await {
            Ok(images) => access.settle(&images),
            // Then the intents stay, which is enough: who wants such an image has to show that he may.
            Err(error) => tracing::error!(%error, "failed to list images"),
        }
        let node = Some(NodeConfig::new(root_dir, home, clock));
        Ok(Self { queue: Queue::new(queue), node, plugins: sources, access: Some(access), metrics })
    }

    /// All credentials that fit: the pod's secrets first, then the node's, then what plugins say.
    pub async fn offers(&self, api: &dyn Api, pod: &Pod, image: &str) -> Offers {
        let repository = repository(image);
        let Offers { mut offers, missing } = of_secrets(api, pod, &repository).await;
        if let Some(node) = &self.node {
            let mut ring = Keyring::default();
            ring.add(&Origin::Node, &*node.get().await);
            offers.extend(ring.lookup(&repository));
        }
        let mut ring = Keyring::default();
        for plugin in &self.plugins {
            let (origin, config) = plugin.provide(api, pod, &repository).await;
            ring.add(&origin, &config);
        }
        offers.extend(ring.lookup(&repository));
        Offers { offers, missing }
    }

    /// Whether an image that is there must be pulled all the same, for the pod to show that it may.
    pub async fn must_pull(&self, api: &dyn Api, ask: Ask<'_>, image_ref: &str) -> bool {
        let Some(access) = &self.access else { return false };
        let offers = || async move { self.offers(api, ask.pod, ask.full).await.offers }.boxed();
        access.must_pull(ask.written, image_ref, offers).await
    }

    /// Pulls, when it is its turn, with one of the offers after the other.
    ///
    /// # Errors
    /// With what each of them led to.
    pub async fn pull(
        &self,
        runtime: &dyn Runtime,
        ask: Ask<'_>,
        offers: &[Offer],
    ) -> Result<Pulled, String> {
        if let Some(access) = &self.access {
            access.begins(ask.written).map_err(|error| {
                format!("Failed to record image pull intent for container image {:?}: {error}", ask.written)
            })?;
        }
        let mut intent = Intent { images: self, image: ask.written, over: false };
        let _turn = self.queue.turn().await;
        let begun = tokio::time::Instant::now();
        let (id, with) = tried(runtime, ask, offers).await?;
        intent.over = true;
        if let Some(access) = &self.access {
            access.record_pull_success(ask.written, &id, with);
        }
        Ok(Pulled { id, took: begun.elapsed() })
    }

    /// Counts a pull that took so long with its waiting.
    pub fn count_pull(&self, bytes: u64, took: Duration) {
        self.metrics.image_pull_duration.took([image_size_bucket(bytes)], took);
    }

    /// Counts an image that was asked for; what is not known stays none.
    pub fn count_ask(&self, policy: PullPolicy, present: Option<bool>, pulled: Option<bool>) {
        let policy = match policy {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        };
        let word = |known: Option<bool>| match known {
            None => "unknown",
            Some(true) => "true",
            Some(false) => "false",
        };
        self.metrics.image_ensured.inc([policy, word(present), word(pulled)]);
    }

    /// Counts a container that was made, or could not be, with image volumes at so many mounts.
    pub fn count_volumes(&self, volumes: usize, mounts: usize, failure: Option<&str>) {
        // The head by which a CRI runtime says that it was one of these.
        let failed = failure.is_some_and(|said| said.starts_with("ImageVolumeMountFailed"));
        (0..volumes).for_each(|_| self.metrics.image_volume_requested.inc([]));
        (0..mounts).for_each(|_| match failed {
            true => self.metrics.image_volume_errors.inc([]),
            false => self.metrics.image_volume_mounted.inc([]),
        });
    }

    /// Images were removed: what was known of others than those `left` at `until` goes.
    pub fn prune(&self, left: &[String], until: i64) {
        if let Some(access) = &self.access {
            access.prune(left, until);
        }
    }
}

/// A pull under way. One that fails or is given up leaves no intent.
struct Intent<'a> {
    images: &'a Images,
    image: &'a str,
    over: bool,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        if let Some(access) = self.images.access.as_ref().filter(|_| !self.over) {
            access.record_pull_failure(self.image);
        }
    }
}

async fn tried<'o>(
    runtime: &dyn Runtime,
    ask: Ask<'_>,
    offers: &'o [Offer],
) -> Result<(String, Option<&'o Offer>), String> {
    let pull = |auth| runtime.pull_image(PullImage { image: ask.full, pod: ask.pod, auth });
    if offers.is_empty() {
        return pull(None).await.map(|id| (id, None)).map_err(|error| error.of_pull());
    }
    let mut failures: Vec<String> = Vec::new();
    for offer in offers {
        match pull(Some(&offer.auth)).await {
            Ok(id) => return Ok((id, Some(offer))),
            Err(error) => failures.push(error.of_pull()),
        }
    }
    // As upstream words several errors; the same one is told once.
    let mut seen: Vec<String> = Vec::new();
    for failure in failures {
        if !seen.contains(&failure) {
            seen.push(failure);
        }
    }
    match seen.as_slice() {
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// The credentials of the pod's secrets that fit.
async fn of_secrets(api: &dyn Api, pod: &Pod, repository: &str) -> Offers {
    let (mut ring, mut missing) = (Keyring::default(), Vec::new());
    for name in &pod.pull_secrets {
        let secret = match api.secret(&pod.namespace, name).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                missing.push(name.clone());
                continue;
            }
            Err(error) => {
                tracing::warn!(pod = pod.full_name(), %error, "a pull secret cannot be read");
                missing.push(name.clone());
                continue;
            }
        };
        match entries(&secret) {
            Ok(config) => {
                let (uid, namespace) = (secret.uid.clone(), pod.namespace.clone());
                let origin = Origin::Secret(keyring::Coordinates { uid, namespace, name: name.clone() });
                ring.add(&origin, &config);
            }
            Err(error) => {
                tracing::warn!(pod = pod.full_name(), secret = name, %error, "not a pull secret");
                missing.push(name.clone());
            }
        }
    }
    Offers { offers: ring.lookup(repository), missing }
}

/// Why a secret holds no credentials; its content is not told.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("secrets of type {0:?} hold no registry credentials")]
    Kind(String),
    #[error("the key {0} is missing")]
    NoKey(&'static str),
    #[error("the value of {0} is not what docker writes")]
    Format(&'static str),
}

fn entries(secret: &Secret) -> Result<keyring::DockerConfig, SecretError> {
    let value = |key: &'static str| secret.data.get(key).ok_or(SecretError::NoKey(key));
    let (key, read): (_, fn(&[u8]) -> _) = match secret.kind.as_str() {
        "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", keyring::config_json),
        "kubernetes.io/dockercfg" => (".dockercfg", keyring::dockercfg),
        other => return Err(SecretError::Kind(other.to_owned())),
    };
    read(value(key)?).map_err(|_| SecretError::Format(key))
}

#[cfg(test)]
mod tests;
