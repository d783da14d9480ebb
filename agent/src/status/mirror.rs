//! Mirror pods: the API's images of static pods. Owns their creation and removal; never touches the
//! static pod itself, nor a pod that is not marked as a mirror. Started by the kubelet's wiring.
//!
//! ```text
//! file, no image ──create──▶ image ──hash differs, or being deleted──▶ delete ──▶ create
//!                              │ file gone and its worker done
//!                              ▼
//!                            delete
//! ```

#![expect(clippy::disallowed_methods, reason = "the keeper of mirror pods lives as long as the kubelet")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gantry_kube_client::backoff::Backoff;
use gantry_model::pod::{self, Origin};
use gantry_model::random;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::Statics;
use crate::pod::worker::PodHandle;
use crate::pod_source::{self, ApiPods, MIRROR};

/// The static pod's own mark: what its mirror must carry.
const HASH: &str = "kubernetes.io/config.hash";

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);
/// The watch shows within this what was done; else it is done again.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// What mirrors are kept from.
pub(crate) struct Mirrors {
    /// To the API server.
    pub client: Client,
    /// Their owner; none is made before it is registered.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// The API's pods.
    pub seen: watch::Receiver<ApiPods>,
    /// The agent's: an image stays until its pod is over.
    pub pods: watch::Receiver<Arc<[PodHandle]>>,
    /// Those of files and of a URL.
    pub statics: watch::Receiver<Statics>,
}

/// namespace, name
type Name = (String, String);

#[derive(Debug, PartialEq)]
enum Act {
    Create(Name, Box<Pod>),
    Delete(Name, String),
}

impl Act {
    fn name(&self) -> &Name {
        match self {
            Self::Create(name, _) | Self::Delete(name, _) => name,
        }
    }
}

/// Whether the mirror is that of this static pod, of this very content.
pub(super) fn is_of(mirror: &Pod, pod: &pod::Pod) -> bool {
    name_of(mirror) == (pod.namespace.clone(), pod.name.clone())
        && annotation(mirror, MIRROR) == pod.annotations.get(HASH).map(String::as_str)
}

/// Keeps them until nobody sees pods any more.
#[must_use]
pub(crate) fn keep(mirrors: Mirrors) -> JoinHandle<()> {
    tokio::spawn(
        Keeper { mirrors, waits: BTreeMap::new(), done: BTreeMap::new(), born: Instant::now() }.run(),
    )
}

struct Keeper {
    mirrors: Mirrors,
    /// What failed, and when it is tried again.
    waits: BTreeMap<Name, (Backoff, Instant)>,
    /// UIDs made and removed, until the watch shows it.
    done: BTreeMap<Name, (Did, Instant)>,
    born: Instant,
}

enum Did {
    Made(String),
    Removed(String),
}

impl Keeper {
    async fn run(mut self) {
        loop {
            self.mirrors.seen.mark_unchanged();
            self.mirrors.pods.mark_unchanged();
            self.mirrors.statics.mark_unchanged();
            self.mirrors.node.mark_unchanged();
            let again = self.look().await;
            // All arms are cancel-safe: a change stays marked until it is looked at.
            tokio::select! {
                changed = self.mirrors.seen.changed() => if changed.is_err() { return },
                Ok(()) = self.mirrors.pods.changed() => {}
                Ok(()) = self.mirrors.statics.changed() => {}
                Ok(()) = self.mirrors.node.changed() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// Does what is due; how long until something else is.
    async fn look(&mut self) -> Duration {
        let now = Instant::now();
        let acts = {
            let seen = self.mirrors.seen.borrow();
            self.done.retain(|_, (did, at)| *at + SHOWN_WITHIN > now && !is_visible(did, &seen));
            let (statics, node) = (self.mirrors.statics.borrow(), self.mirrors.node.borrow());
            if seen.synced {
                plan(&statics, &seen, &alive(&self.mirrors.pods.borrow()), node.as_deref())
            } else {
                Vec::new()
            }
        };
        let mut next = now + LONGEST_WAIT;
        for act in acts {
            if let Some((_, at)) = self.done.get(act.name()) {
                next = next.min(*at + SHOWN_WITHIN);
                continue;
            }
            match self.waits.get(act.name()) {
                Some((_, at)) if *at > now => next = next.min(*at),
                _ => {
                    self.perform(act).await;
                    next = now;
                }
            }
        }
        // At least a little: whatever happened is awaited above.
        next.saturating_duration_since(Instant::now()).max(Duration::from_millis(10))
    }

    async fn perform(&mut self, act: Act) {
        let name = act.name().clone();
        let api: Api<Pod> = Api::namespaced(self.mirrors.client.clone(), &name.0);
        let outcome = match act {
            Act::Create(_, pod) => {
                tracing::info!(pod = name.1, namespace = name.0, "creating a mirror pod");
                let asked = async { api.create(&PostParams::default(), &pod).await };
                timeout(PATIENCE, asked).await.map(|made| made.map(|pod| Did::Made(uid(&pod).to_owned())))
            }
            Act::Delete(_, uid) => {
                tracing::info!(pod = name.1, namespace = name.0, "deleting a mirror pod");
                let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
                let options = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default().grace_period(0)
                };
                timeout(PATIENCE, api.delete(&name.1, &options)).await.map(|gone| match gone {
                    Ok(_) => Ok(Did::Removed(uid)),
                    // It went, or is another one now: the watch will tell.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                        Ok(Did::Removed(uid))
                    }
                    Err(error) => Err(error),
                })
            }
        };
        let problem = match outcome {
            Ok(Ok(did)) => {
                self.waits.remove(&name);
                self.done.insert(name, (did, Instant::now()));
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let now = self.born.elapsed();
        let (backoff, at) = self
            .waits
            .entry(name.clone())
            .or_insert_with(|| (Backoff::new(FIRST_WAIT, LONGEST_WAIT), Instant::now()));
        *at = Instant::now() + backoff.next(now, random::fraction());
        tracing::warn!(
            pod = name.1,
            namespace = name.0,
            error = problem,
            "the mirror pod is not as it should be"
        );
    }
}

fn is_visible(did: &Did, seen: &ApiPods) -> bool {
    let there = |uid: &str| seen.mirrors.keys().any(|other| other.as_str() == uid);
    match did {
        Did::Made(uid) => there(uid),
        Did::Removed(uid) => !there(uid),
    }
}

/// Static pods whose workers are not done, and the hashes of their files.
type Alive = BTreeMap<Name, BTreeSet<String>>;

fn alive(pods: &[PodHandle]) -> Alive {
    let mut alive = Alive::new();
    for handle in pods.iter().filter(|handle| handle.pod.origin == Origin::Static && !handle.is_done()) {
        let name = (handle.pod.namespace.clone(), handle.pod.name.clone());
        alive.entry(name).or_default().extend(handle.pod.annotations.get(HASH).cloned());
    }
    alive
}

/// What is to be done, given the files and whether they are all, the API's images, the pods that are not over, and the owner.
fn plan(statics: &Statics, seen: &ApiPods, alive: &Alive, node: Option<&Node>) -> Vec<Act> {
    let described: BTreeMap<Name, &Arc<Pod>> = statics.pods.values().map(|pod| (name_of(pod), pod)).collect();
    let mut acts = Vec::new();
    for (uid, mirror) in &seen.mirrors {
        let name = name_of(mirror);
        let wrong = match described.get(&name) {
            // That of an earlier version stays as long as the earlier version does.
            Some(pod) => {
                let shown = annotation(mirror, MIRROR);
                let ends = alive.get(&name).is_some_and(|hashes| hashes.contains(shown.unwrap_or_default()));
                mirror.metadata.deletion_timestamp.is_some() || (shown != annotation(pod, HASH) && !ends)
            }
            None => statics.complete && !alive.contains_key(&name),
        };
        // One that is held goes by itself.
        if wrong && !pod_source::is_held(mirror) {
            acts.push(Act::Delete(name, uid.to_string()));
        }
    }
    let owner = node.filter(|node| node.metadata.deletion_timestamp.is_none()).and_then(owner);
    let Some(owner) = owner else { return acts };
    for (name, pod) in described {
        let taken = seen.mirrors.values().chain(seen.pods.values()).any(|other| name_of(other) == name);
        if !taken {
            acts.push(Act::Create(name, Box::new(image(pod, owner.clone()))));
        }
    }
    acts
}

fn owner(node: &Node) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: None,
    })
}

/// The pod as the API shall show it: a node may only create what is marked and owned so.
fn image(pod: &Pod, owner: OwnerReference) -> Pod {
    let mut image = pod.clone();
    let hash = annotation(pod, HASH).unwrap_or_default().to_owned();
    image.metadata.annotations.get_or_insert_default().insert(MIRROR.to_owned(), hash);
    image.metadata.owner_references = Some(vec![owner]);
    image.metadata.uid = None;
    image.metadata.resource_version = None;
    image.metadata.creation_timestamp = None;
    image
}

fn name_of(pod: &Pod) -> Name {
    let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    (namespace, pod.metadata.name.clone().unwrap_or_default())
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
