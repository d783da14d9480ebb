//! The resources of a pod: cgroup, volumes, sandbox, checkpoint. Owns the effects and the texts of
//! their failures. Called by [`super::effect`].

use std::sync::Arc;

use gantry_base::error::chain;
use gantry_model::allocation::Allocation;
use gantry_model::cgroup::limits::of_pod;
use gantry_model::pod::{Origin, Pod};

use super::{Output, Task, WaitReason, both, kill_error, wait_reason};
use crate::admission;
use crate::admission::Rejection;
use crate::checkpoint::Marks;
use crate::events::Kind::{Normal, Warning};
use crate::events::{NodeNote, Note, VolumeNote, VolumeNoteSubject};
use crate::ports;
use crate::runtime::{NewSandbox, Users};
use crate::volumes::Error;

/// It is this agent's, and what it is allocated is known.
async fn claim(task: Task<'_>) -> Result<(), crate::checkpoint::Error> {
    let (checkpoints, pod) = (&task.deps.checkpoints, task.pod);
    checkpoints.claim(&pod.uid, &pod.origin).await?;
    checkpoints.allocate(&pod.uid, &Allocation::of(pod)).await
}

/// Devices of plugins, CPUs and memory. A pod that does not get them is refused, late as it is.
pub(super) async fn devices(task: Task<'_>, runs: bool) -> Result<Output, WaitReason> {
    match task.deps.managers.allocate(task.pod, runs, &task.deps.devices).await {
        Ok(()) => Ok(Output::Done),
        Err(Rejection { reason, message }) => {
            tell_rejection(task, &reason, message.clone()).await;
            Err(wait_reason(&reason, message))
        }
    }
}

async fn tell_rejection(task: Task<'_>, reason: &str, message: String) {
    task.deps.metrics.admission_rejections.inc([admission::label(reason)]);
    task.notes_out.tell(Note::pod(Warning, reason.to_owned(), message)).await;
}

/// The claim comes first: what an agent leaves that dies in between can still be told from another's. One that runs is
/// held to what it is `actuated` with: its next size comes in steps.
pub(super) async fn cgroup(task: Task<'_>, actuated: &Allocation) -> Result<Output, WaitReason> {
    let Task { deps, pod, .. } = task;
    let pod = match actuated.containers.is_empty() {
        true => pod.clone(),
        false => Arc::unwrap_or_clone(actuated.apply(Arc::new(pod.clone()))),
    };
    let rules = deps.rules_of(&pod);
    let limits = of_pod(&pod, &rules);
    let made = match claim(task).await {
        Ok(()) => deps.cgroups.set_up(&pod, &limits).await.map_err(|error| error.message),
        Err(error) => Err(chain(&error)),
    };
    let alone = Allocation { pod: pod.resources.clone(), ..Allocation::default() };
    let told = match (made, &alone.pod) {
        (Ok(parent), Some(_)) => match deps.checkpoints.actuate(&pod.uid, &alone).await {
            Ok(()) => Ok(parent),
            Err(error) => Err(chain(&error)),
        },
        (made, _) => made,
    };
    match told {
        Ok(parent) => Ok(Output::Cgroup { parent, pod: alone.pod, limits, rules }),
        Err(error) => {
            let message = format!("unable to ensure pod container exists: {error}");
            task.tell(Warning, "FailedCreatePodContainer", message.as_str()).await;
            Err(wait_reason("FailedCreatePodContainer", message))
        }
    }
}

/// A pod whose volume finds no room on the node is refused, late as it is.
pub(super) async fn volumes(task: Task<'_>) -> Result<Output, WaitReason> {
    let made = make_volumes(task).await;
    if let Err(Error { reason, message, quiet, rejects }) = made {
        match (rejects, quiet) {
            (true, _) => tell_rejection(task, reason, message.clone()).await,
            (false, true) => {}
            (false, false) => task.tell(Warning, reason, message.as_str()).await,
        }
        return Err(wait_reason(reason, message));
    }
    Ok(Output::Done)
}

/// Of a pod that has them: it is not refused any more.
pub(super) async fn refresh(task: Task<'_>) -> Result<Output, WaitReason> {
    let made = make_volumes(task).await;
    if let Err(Error { reason, message, quiet, rejects }) = made {
        if !quiet && !rejects {
            task.tell(Warning, reason, message.as_str()).await;
        }
        return Err(wait_reason(reason, message));
    }
    Ok(Output::Done)
}

async fn make_volumes(task: Task<'_>) -> Result<(), Error> {
    let (notes, uid) = (task.deps.volumes.notes(), &task.pod.uid);
    let mut set_up = task.deps.volumes.set_up(task.pod);
    // What takes long is told while it does.
    let set_up = loop {
        tokio::select! {
            // The same future at each turn.
            set_up = &mut set_up => break set_up,
            // It takes notes in the moment in which it has them.
            more = notes.next(uid) => tell_volumes(task, more).await,
        }
    };
    tell_volumes(task, notes.take(uid)).await;
    set_up
}

async fn tell_volumes(task: Task<'_>, notes: Vec<VolumeNote>) {
    for VolumeNote { subject, note } in notes {
        match (subject, &task.deps.recorder) {
            (VolumeNoteSubject::Volume(volume), Some(recorder)) => {
                recorder.volume(volume, note);
                continue;
            }
            // Nobody is there to hear it: the node has no API server.
            (VolumeNoteSubject::Volume(_), None) => continue,
            (VolumeNoteSubject::Claim(claim), Some(recorder)) => recorder.claim(claim, note.clone()),
            (VolumeNoteSubject::Claim(_), None) | (VolumeNoteSubject::Pod, _) => {}
        }
        task.notes_out.tell(note).await;
    }
}

pub(super) async fn no_volumes(task: Task<'_>) -> Result<Output, WaitReason> {
    let torn = task.deps.volumes.tear_down(&task.pod.uid).await;
    torn.map_err(|error| wait_reason("FailedUnmount", format!("take back volumes: {error}")))?;
    Ok(Output::Done)
}

pub(super) async fn no_cgroup(task: Task<'_>) -> Result<Output, WaitReason> {
    let torn = task.deps.cgroups.tear_down(&task.pod.uid).await;
    torn.map_err(|error| wait_reason("FailedKillPod", format!("remove cgroup: {error}")))?;
    task.deps.users.release(&task.pod.uid);
    // The last that is taken back: nothing of it is an orphan any more.
    let disowned = task.deps.checkpoints.disown(&task.pod.uid).await;
    disowned.map_err(|error| wait_reason("CheckpointError", chain(&error)))?;
    Ok(Output::Done)
}

pub(super) async fn remember(task: Task<'_>, marks: &Marks) -> Result<Output, WaitReason> {
    let saved = task.deps.checkpoints.save(&task.pod.uid, marks).await;
    saved.map_err(|error| wait_reason("CheckpointError", chain(&error)))?;
    Ok(Output::Done)
}

/// The ID of the new sandbox.
pub(super) async fn sandbox(
    task: Task<'_>,
    attempt: u32,
    cgroup_parent: &str,
    replaces: bool,
) -> Result<String, WaitReason> {
    require_network(task).await?;
    if replaces {
        // Whoever ended the one before may have ended the pod's cgroup, and its limits, with it.
        cgroup(task, &Allocation::default()).await?;
        let message = "Pod sandbox changed, it will be killed and re-created.";
        task.tell(Normal, "SandboxChanged", message).await;
    }
    let made = match resolve_sandbox_inputs(task).await {
        Err(message) => Err(message),
        Ok((handler, users)) => {
            let new = NewSandbox { pod: task.pod, attempt, cgroup_parent, handler: &handler, users };
            task.deps.runtime.run_sandbox(new).await.map_err(|error| error.in_go())
        }
    };
    match made {
        Ok(id) => Ok(id),
        Err(error) => {
            let message = format!("Failed to create pod sandbox: {error}");
            task.tell(Warning, "FailedCreatePodSandBox", message.as_str()).await;
            Err(wait_reason("CreatePodSandboxError", message))
        }
    }
}

/// Without a network the runtime's tries would only fail; the node's own is always there.
async fn require_network(task: Task<'_>) -> Result<(), WaitReason> {
    let why = task.deps.network.borrow().clone().filter(|_| !task.pod.namespaces.host_network);
    let Some(why) = why else { return Ok(()) };
    let message = format!("network is not ready: {why}");
    task.tell(Warning, "NetworkNotReady", message.as_str()).await;
    Err(wait_reason("NetworkNotReady", message))
}

/// Everything that the sandbox hangs on: its handler and its users.
async fn resolve_sandbox_inputs(task: Task<'_>) -> Result<(String, Option<Users>), String> {
    let Task { deps, pod, .. } = task;
    name_fits(pod, &deps.node.cluster_domain)?;
    tell_resolver(task).await?;
    let handler = match pod.runtime_class.as_str() {
        "" => String::new(),
        class => match deps.api.runtime_handler(class).await {
            Ok(Some(handler)) => handler.as_ref().clone(),
            Ok(None) => return Err(format!("runtimeclass.node.k8s.io {class:?} not found")),
            Err(error) => return Err(error.to_string()),
        },
    };
    let users = users(task, &handler).await?;
    ready(task).await?;
    Ok((handler, users))
}

/// The kernel takes 64 characters.
fn name_fits(pod: &Pod, cluster_domain: &str) -> Result<(), String> {
    const MOST: usize = 64;
    let Some(domain) = pod.domain(cluster_domain).filter(|_| pod.fqdn) else { return Ok(()) };
    let full = format!("{}.{domain}", pod.hostname);
    if full.len() <= MOST || pod.hostname.is_empty() {
        return Ok(());
    }
    Err(format!(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long ({MOST} characters is the max, {} characters requested)",
        full.len()
    ))
}

/// What there is to say of its resolver; without one nothing is begun. A pod of files needs no cluster.
async fn tell_resolver(task: Task<'_>) -> Result<(), String> {
    let Task { deps, pod, .. } = task;
    let formed = deps.node.resolver.of_pod(pod).await.map_err(|error| error.to_string())?;
    if formed.missing && pod.origin != Origin::Run {
        let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        if let Some(recorder) = &deps.recorder {
            let (kind, reason) = (Warning, "MissingClusterDNS");
            recorder.node(NodeNote { kind, reason, message: message.to_owned() });
        }
        let message = format!("pod: {:?}. {message}", pod.formatted());
        task.tell(Warning, "MissingClusterDNS", message).await;
    }
    for message in formed.omitted {
        task.tell(Warning, "DNSConfigForming", message).await;
    }
    Ok(())
}

/// The pod's range of users, when it wants its own.
pub(super) async fn users(task: Task<'_>, handler: &str) -> Result<Option<Users>, String> {
    let Task { deps, pod, .. } = task;
    if !pod.namespaces.own_users {
        return Ok(None);
    }
    if !deps.node.user_namespaces.contains(handler) {
        return Err(match handler {
            "" => "can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned(),
            handler => format!(
                "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
            ),
        });
    }
    deps.users.of(&pod.uid).await.map(Some)
}

/// The pod's log folder is there, and nobody else answers on its ports.
async fn ready(task: Task<'_>) -> Result<(), String> {
    task.deps.logs.prepare(task.pod, None).await.map_err(|error| chain(&error))?;
    match ports::find_taken_port(task.pod) {
        Ok(None) => Ok(()),
        Ok(Some(port)) => Err(format!(
            "port {port} of the node is in use by another process: end that, or give the pod another hostPort"
        )),
        Err(error) => Err(format!("look for sockets on the pod's ports: {error}")),
    }
}

pub(super) async fn stop_sandbox(task: Task<'_>, id: &str) -> Result<Output, WaitReason> {
    if let Err(error) = task.deps.runtime.stop_sandbox(id).await {
        let message = kill_error("KillPodSandbox", &task.pod.uid.to_string(), &error);
        task.tell(Warning, "FailedKillPod", message).await;
        return Err(wait_reason("KillPodSandboxError", both(&error)));
    }
    Ok(Output::Done)
}

pub(super) async fn remove_sandbox(task: Task<'_>, id: &str) -> Result<Output, WaitReason> {
    let removed = task.deps.runtime.remove_sandbox(id).await;
    removed.map_err(|error| wait_reason("KillPodSandboxError", both(&error)))?;
    Ok(Output::Done)
}
