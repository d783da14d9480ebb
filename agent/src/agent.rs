//! The wiring: pods in, one worker each, handles out. Owns the workers' tasks; never looks
//! into a pod. Called by `gantry run`.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::pod::Life;
use crate::pod::predecessor;
use crate::pod::run::Deps;
use crate::pod::spec::Pod;
use crate::pod::status::PodStatus;
use crate::pod::worker::{PodHandle, Worker};

/// A running agent. Dropping it leaves the pods as they are: a new one adopts them.
#[derive(Debug)]
pub struct Agent {
    pods: Arc<[PodHandle]>,
    workers: JoinSet<()>,
    deps: Deps,
}

impl Agent {
    /// Takes up the pods: what the runtime has of them already is adopted.
    #[must_use]
    pub fn start(pods: Vec<Pod>, deps: Deps) -> Self {
        let mut workers = JoinSet::new();
        let mut handles = Vec::with_capacity(pods.len());
        for pod in pods {
            let (worker, handle) = Worker::new(pod, deps.clone());
            workers.spawn(predecessor::run_after(worker));
            handles.push(handle);
        }
        Self { pods: handles.into(), workers, deps }
    }

    /// All pods, in the order they were given.
    #[must_use]
    pub fn pods(&self) -> Arc<[PodHandle]> {
        self.pods.clone()
    }

    /// Ends every pod within `grace`, or its own grace period; asking again only shortens.
    pub fn kill_all(&self, grace: Option<Duration>, reason: &str) {
        self.pods.iter().for_each(|pod| pod.kill(grace, reason));
    }

    /// Waits until nothing of any pod runs or will run.
    pub async fn until_over(&self) -> Vec<PodStatus> {
        let mut statuses = Vec::with_capacity(self.pods.len());
        for pod in self.pods.iter() {
            statuses.push(pod.wait(PodStatus::is_over).await);
        }
        statuses
    }

    /// Forgets every pod and removes its logs; pods that are not over are ended first.
    /// Returns what could not be removed, and why.
    pub async fn clean_up(mut self) -> Vec<String> {
        self.pods.iter().for_each(PodHandle::remove);
        let mut failures = Vec::new();
        for handle in self.pods.iter() {
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
