//! The wiring: pods in, one worker each, handles out; one ear at the runtime's events for all. Owns
//! the workers' tasks; never looks into a pod. Called by `gantry run`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::orphans;
use crate::pod::Life;
use crate::pod::predecessor;
use crate::pod::run::Deps;
use crate::pod::spec::Pod;
use crate::pod::status::PodStatus;
use crate::pod::worker::{PodHandle, Worker};
use crate::watcher::{self, Pods};

/// A running agent. Dropping it leaves the pods as they are: a new one adopts them.
#[derive(Debug)]
pub struct Agent {
    pods: watch::Sender<Arc<[PodHandle]>>,
    /// Whether the runtime tells what changes.
    told: watch::Receiver<bool>,
    workers: JoinSet<()>,
    deps: Deps,
}

impl Agent {
    /// Takes up the pods: what the runtime has of them already is adopted.
    #[must_use]
    pub fn start(pods: Vec<Pod>, deps: Deps) -> Self {
        let (pods_in, pods_out) = watch::channel(Arc::from([]));
        let (told_in, told) = watch::channel(false);
        let mut workers = JoinSet::new();
        workers.spawn(watcher::watch(deps.runtime.clone(), pods_out, told_in));
        let mut agent = Self { pods: pods_in, told, workers, deps };
        agent.apply(pods);
        agent
    }

    /// The full set of pods that should be there, each time it changes: new ones are started, those
    /// that are missing are ended and forgotten, the others left alone. A new one of the same name as
    /// one that ends waits for it.
    pub fn apply(&mut self, wanted: Vec<Pod>) {
        // Reaps what has ended meanwhile.
        while self.workers.try_join_next().is_some() {}
        let old = self.pods();
        let mut handles: Vec<PodHandle> = old.iter().filter(|handle| !handle.is_done()).cloned().collect();
        for handle in &handles {
            if wanted.iter().all(|pod| pod.uid != handle.pod.uid) {
                handle.kill(None, "no longer wanted");
                handle.remove();
            }
        }
        for pod in wanted {
            // One that was told to go and comes back, the very same, is a pod of its own.
            if handles.iter().any(|handle| handle.pod.uid == pod.uid && !handle.is_leaving()) {
                continue;
            }
            let same_name =
                |handle: &&PodHandle| handle.pod.name == pod.name && handle.pod.namespace == pod.namespace;
            let ending: Vec<PodHandle> = handles.iter().filter(same_name).cloned().collect();
            let (worker, handle) = Worker::watched(pod, self.deps.clone(), self.told.clone());
            self.workers.spawn(predecessor::run_after(worker, ending));
            handles.push(handle);
        }
        self.pods.send_replace(handles.into());
    }

    /// Ends the pods of the manifest folder that an earlier agent started and whose files went while
    /// none was there. For when the whole folder has been read: a file that cannot be read may be
    /// that of a pod (trap 1).
    ///
    /// # Errors
    /// When it cannot be known which these are; nothing was ended then.
    pub async fn end_forgotten(&mut self) -> Result<(), String> {
        let mut handles = self.pods().to_vec();
        let here: Vec<&Pod> = handles.iter().map(|handle| &*handle.pod).collect();
        for known in orphans::forgotten(&self.deps, &here).await? {
            let pod = predecessor::shell(known);
            tracing::info!(pod = pod.full_name(), uid = %pod.uid, "its manifest is gone: ending it");
            let (worker, handle) = Worker::watched(pod, self.deps.clone(), self.told.clone());
            handle.kill(None, "no longer wanted");
            handle.remove();
            self.workers.spawn(worker.run());
            handles.push(handle);
        }
        self.pods.send_replace(handles.into());
        Ok(())
    }

    /// All pods, in the order they were given; those that end are listed until they are gone.
    #[must_use]
    pub fn pods(&self) -> Arc<[PodHandle]> {
        self.pods.borrow().clone()
    }

    /// The same, as it changes.
    #[must_use]
    pub fn watch_pods(&self) -> Pods {
        self.pods.subscribe()
    }

    /// Ends every pod within `grace`, or its own grace period; asking again only shortens.
    pub fn kill_all(&self, grace: Option<Duration>, reason: &str) {
        self.pods().iter().for_each(|pod| pod.kill(grace, reason));
    }

    /// Waits until nothing of any pod runs or will run.
    pub async fn until_over(&self) -> Vec<PodStatus> {
        let pods = self.pods();
        let mut statuses = Vec::with_capacity(pods.len());
        for pod in pods.iter() {
            statuses.push(pod.wait(PodStatus::is_over).await);
        }
        statuses
    }

    /// Forgets every pod and removes its logs; pods that are not over are ended first.
    /// Returns what could not be removed, and why.
    pub async fn clean_up(mut self) -> Vec<String> {
        let pods = self.pods();
        pods.iter().for_each(PodHandle::remove);
        let mut failures = Vec::new();
        for handle in pods.iter() {
            let status = handle.wait(|status| status.life == Life::Gone).await;
            if status.life != Life::Gone {
                failures.push(format!("pod {}: {}", handle.pod.full_name(), status.message));
                continue;
            }
            if let Err(error) = self.deps.logs.remove(&handle.pod).await {
                failures.push(format!("pod {}: {}", handle.pod.full_name(), error.chain()));
            }
        }
        self.workers.shutdown().await;
        failures
    }
}

#[cfg(test)]
mod tests;
