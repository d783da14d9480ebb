//! An earlier pod of the same name, made from an older version of the file: both exist
//! for a while, the new one waits until the old one is gone. Owns that wait; never
//! touches a pod that no file was the source of. Called by [`crate::pod_workers`] before a
//! worker runs, which ends pods without a manifest by the same shell.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::pod::claim::ResourceClaims;
use gantry_model::pod::placement::Placement;
use gantry_model::pod::{Dns, Namespaces, Origin, Pod, PodSecurity, PodUid, RestartPolicy, Shown};

use super::Life;
use super::status::PodStatus;
use super::worker::{PodHandle, Worker};
use crate::runtime::KnownPod;

const RETRY: Duration = Duration::from_secs(1);
/// The manifest of the older version is not at hand.
const GRACE: Duration = Duration::from_secs(30);
const REASON: &str = "replaced by a pod of the same name";

/// Ends every predecessor of the worker's pod, then lives the pod's own life, once those of `room`
/// are over. Those of `before` are in the hands of their own workers, which were told to end them.
pub async fn run_after(mut worker: Worker, before: Vec<PodHandle>, room: Vec<PodHandle>) {
    follow(&mut worker, before).await;
    let predecessors = loop {
        match worker.deps().runtime.pods().await {
            Ok(pods) => break pods.into_iter().filter(|p| precedes(p, worker.pod())).collect::<Vec<_>>(),
            Err(error) => {
                worker.say(format!("the runtime does not answer: {}", error.detail()));
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    for known in predecessors {
        worker.say(waiting_for(&known.uid));
        let (old, handle) = Worker::new(shell(known), worker.deps().clone());
        handle.kill(None, REASON);
        handle.remove();
        end(old.run(), &handle, &mut worker).await;
    }
    run_behind(worker, Vec::new(), room).await;
}

/// Lives the pod's life once it is gone as it was `before`, what it left then has been taken back, and
/// those that make room for it are over.
pub async fn run_behind(mut worker: Worker, before: Vec<PodHandle>, room: Vec<PodHandle>) {
    follow(&mut worker, before).await;
    let (sweeps, uid) = (worker.deps().sweeps.clone(), worker.pod().uid.clone());
    if sweeps.is_under_way(&uid) {
        worker.say("waiting until what this pod left before has been taken back".to_owned());
        sweeps.wait_finished(&uid).await;
    }
    for handle in room {
        worker.say(format!("waiting for pod {} to make room", handle.pod.uid));
        handle.wait(PodStatus::is_over).await;
    }
    worker.run().await;
}

/// Two workers of one pod, or of one name in a manifest folder, would undo each other's work.
async fn follow(worker: &mut Worker, before: Vec<PodHandle>) {
    for handle in before {
        worker.say(waiting_for(&handle.pod.uid));
        end(handle.wait(|status| status.life == Life::Gone), &handle, worker).await;
        if handle.pod.uid == worker.pod().uid {
            worker.count_on(&handle.status.borrow());
        }
    }
}

/// Orders for the new pod shorten the wait for the old one.
async fn end<T>(life: impl Future<Output = T>, handle: &PodHandle, worker: &mut Worker) {
    let clock = worker.deps().clock.clone();
    let mut life = Box::pin(life);
    let orders = worker.orders();
    let mut listening = true;
    loop {
        let kill = orders.borrow().kill.clone();
        if let Some(kill) = kill {
            handle.kill(Some(kill.deadline.saturating_sub(clock.mono())), REASON);
        }
        // Cancel-safe: the life is polled by reference, a change stays marked until read.
        tokio::select! {
            _ = &mut life => return,
            changed = orders.changed(), if listening => listening = changed.is_ok(),
        }
    }
}

fn waiting_for(uid: &PodUid) -> String {
    format!("waiting for the earlier pod {uid} of this name to stop")
}

fn precedes(known: &KnownPod, pod: &Pod) -> bool {
    known.from_file && known.uid != pod.uid && known.name == pod.name && known.namespace == pod.namespace
}

/// All that is needed to end a pod: nothing of it will be started.
pub(crate) fn shell(known: KnownPod) -> Pod {
    Pod {
        namespace: known.namespace,
        name: known.name,
        uid: known.uid,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        hostname: String::new(),
        restart_policy: RestartPolicy::Never,
        grace: GRACE,
        namespaces: Namespaces::default(),
        origin: Origin::Run,
        active_deadline: None,
        init_containers: Vec::new(),
        containers: Vec::new(),
        volumes: Vec::new(),
        security: PodSecurity::default(),
        dns: Dns::default(),
        host_aliases: Vec::new(),
        subdomain: String::new(),
        fqdn: false,
        pull_secrets: Vec::new(),
        shown: Shown::default(),
        generation: 0,
        created_at: 0,
        ephemeral_containers: Vec::new(),
        readiness_gates: Vec::new(),
        placement: Placement::default(),
        resources: None,
        overhead: BTreeMap::new(),
        resource_claims: ResourceClaims::default(),
        runtime_class: String::new(),
        service_links: false,
        resize_pending: None,
        described: None,
    }
}
