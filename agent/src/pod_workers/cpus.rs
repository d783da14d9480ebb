//! Keeps containers that run on the CPUs that they may use, while what is shared grows and shrinks. Owns what each was told
//! last; never decides who gets what. Started by [`crate::pod_workers`] where containers are held to CPUs at all.
//!
//! Looks when what is shared changes, and each `cpuManagerReconcilePeriod`: for what could not be told, and for containers of
//! a kubelet before this one.

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_model::pod::PodUid;

use super::watcher::Pods;
use crate::pod::status::ContainerState;
use crate::pod::worker::PodHandle;
use crate::resource_managers::ResourceManagers;
use crate::runtime::Runtime;

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    pod: PodUid,
    name: String,
    id: String,
}

/// For ever.
pub(super) async fn follow(managers: ResourceManagers, pods: Pods, runtime: Arc<dyn Runtime>) {
    let mut shared = managers.shared();
    let period = managers.reconcile_period();
    let mut told = BTreeMap::new();
    loop {
        let running = running(&pods.borrow().clone());
        told = reconcile(&managers, runtime.as_ref(), &running, told).await;
        tokio::select! {
            changed = shared.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(period) => {}
        }
    }
}

fn running(pods: &[PodHandle]) -> Vec<Running> {
    let mut all = Vec::new();
    for handle in pods.iter().filter(|handle| handle.is_active()) {
        let status = handle.status.borrow();
        let containers = status.init_containers.iter().chain(&status.containers);
        let runs =
            containers.filter(|c| matches!(c.state, ContainerState::Running { .. }) && !c.id.is_empty());
        all.extend(runs.map(|container| Running {
            pod: handle.pod.uid.clone(),
            name: container.name.clone(),
            id: container.id.clone(),
        }));
    }
    all
}

/// Tells each what it was not told yet. Returns what was told, by ID.
async fn reconcile(
    managers: &ResourceManagers,
    runtime: &dyn Runtime,
    running: &[Running],
    before: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut told = BTreeMap::new();
    for Running { pod, name, id } in running {
        let cpus = managers.affinity(pod, name).cpus;
        if cpus.is_empty() {
            continue;
        }
        if before.get(id) != Some(&cpus)
            && let Err(error) = runtime.update_container_cpus(id, &cpus).await
        {
            // It may have ended since; else the next look tries again.
            tracing::warn!(pod = %pod, container = name, cpus, error = error.detail(), "a container stays on other CPUs");
            continue;
        }
        told.insert(id.clone(), cpus);
    }
    told
}
