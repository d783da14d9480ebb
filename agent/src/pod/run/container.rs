//! One container: creation, start, stop, last words, removal. Owns the events and the wording of
//! what goes wrong. Called by [`super::effect`].

use std::time::Duration;

use gantry_base::error::chain;
use gantry_model::allocation::held;
use gantry_model::pod::Container;

use super::{Output, Task, WaitReason, both, kill_error, wait_reason};
use crate::events::Kind::{Normal, Warning};
use crate::events::Note;
use crate::pod::configure::{ContainerRequest, configure};
use crate::pod::plan::SandboxRef;
use crate::runtime::{Image, NewContainer};
use crate::volumes::{PodFacts, WordsOf};

/// minimumGracePeriodInSeconds: a kill without warning breaks more than two seconds cost.
pub(super) const SHORTEST_GRACE: Duration = Duration::from_secs(2);

/// The new container's ID.
pub(super) async fn create(
    task: Task<'_>,
    container: &Container,
    attempt: u32,
    place: &SandboxRef,
    image: &Image,
) -> Result<String, WaitReason> {
    match create_container(task, container, attempt, place, image).await {
        Ok(id) => {
            task.tell_of(container, &id, Normal, "Created", "Container created").await;
            Ok(id)
        }
        Err(trouble) => {
            let message = format!("Error: {}", trouble.message);
            task.tell_of(container, "", Warning, "Failed", &message).await;
            Err(trouble)
        }
    }
}

async fn create_container(
    task: Task<'_>,
    container: &Container,
    attempt: u32,
    place: &SandboxRef,
    image: &Image,
) -> Result<String, WaitReason> {
    let Task { deps, pod, notes_out: _ } = task;
    deps.logs
        .prepare(pod, Some(container))
        .await
        .map_err(|error| wait_reason("CreateContainerConfigError", chain(&error)))?;
    if !container.target.is_empty() && place.target.is_empty() {
        let message = format!("unable to find target container {}", container.target);
        return Err(wait_reason("CreateContainerConfigError", message));
    }
    // The range is the sandbox's: it was given out before, whatever the handler.
    let users = match pod.namespaces.own_users {
        true => Some(
            deps.users
                .of(&pod.uid)
                .await
                .map_err(|error| wait_reason("CreateContainerConfigError", error))?,
        ),
        false => None,
    };
    let facts = &PodFacts { ips: place.ips.clone() };
    let images = &super::image::resolve_image_volumes(task, container).await?;
    let setup = &configure(ContainerRequest { deps, pod, container, attempt, image, facts, images }).await?;
    // Before it is there: one that is held to what nobody knows would start again for its next resize.
    let amounts = held(pod, container);
    deps.checkpoints
        .actuate_container(&pod.uid, &container.name, &amounts)
        .await
        .map_err(|error| wait_reason("CreateContainerConfigError", chain(&error)))?;
    let created = deps.runtime.create_container(NewContainer {
        pod,
        container,
        attempt,
        sandbox: &place.sandbox,
        sandbox_attempt: place.sandbox_attempt,
        cgroup_parent: &place.cgroup_parent,
        users,
        target: &place.target,
        setup,
        image_id: &image.id,
        image_user: (image.uid, &image.username),
    });
    let created = created.await.map_err(|error| wait_reason("CreateContainerError", error.detail()));
    let is_image = |volume: &String| images.iter().any(|(name, _)| name == volume);
    let mounts = container.mounts.iter().filter(|mount| is_image(&mount.volume)).count();
    let failure = created.as_ref().err().map(|trouble| trouble.message.as_str());
    deps.images.count_volumes(images.len(), mounts, failure);
    created
}

pub(super) async fn start(
    task: Task<'_>,
    container: &Container,
    attempt: u32,
    id: &str,
) -> Result<Output, WaitReason> {
    match task.deps.runtime.start_container(id).await {
        Ok(()) => {
            task.tell_of(container, id, Normal, "Started", "Container started").await;
            // The container runs, found by collectors or not.
            if let Err(error) = task.deps.logs.link(task.pod, container, attempt, id).await {
                tracing::error!(pod = task.pod.full_name(), error = chain(&error), "a log has no link");
            }
            Ok(Output::Done)
        }
        Err(error) => {
            let message = format!("Error: {}", error.detail());
            task.tell_of(container, id, Warning, "Failed", &message).await;
            Err(wait_reason("RunContainerError", error.detail()))
        }
    }
}

/// The event of a container's end, once.
pub(super) async fn tell_end(task: Task<'_>, container: &str, id: &str, why: Option<&str>) {
    if let Some(why) = why {
        let message = why.replace(id, container);
        task.notes_out.tell(Note::container(Normal, "Killing", container, message)).await;
    }
}

pub(super) async fn stop(
    task: Task<'_>,
    container: &str,
    id: &str,
    deadline: Duration,
) -> Result<Output, WaitReason> {
    let grace = deadline.saturating_sub(task.deps.clock.mono()).max(SHORTEST_GRACE);
    match task.deps.runtime.stop_container(id, grace).await {
        Ok(()) => Ok(Output::Done),
        Err(error) => {
            let message = kill_error("KillContainer", container, &error);
            task.tell(Warning, "FailedKillPod", message).await;
            Err(wait_reason("KillContainerError", both(&error)))
        }
    }
}

/// The file it was told to write into, else the end of its log when that counts.
pub(super) async fn last_words(
    task: Task<'_>,
    of: WordsOf<'_>,
    log: Option<&str>,
) -> Result<Output, WaitReason> {
    let from_file = match task.deps.volumes.last_words(of).await {
        Ok(words) => words.unwrap_or_default(),
        // Said in its place, as upstream.
        Err(error) => error.message,
    };
    match log {
        Some(path) if from_file.is_empty() => {
            let words = task.deps.runtime.log_end(path).await;
            words.map(Output::Text).map_err(|error| wait_reason("LogError", both(&error)))
        }
        _ => Ok(Output::Text(from_file)),
    }
}

pub(super) async fn remove(task: Task<'_>, id: &str) -> Result<Output, WaitReason> {
    let removed = task.deps.runtime.remove_container(id).await;
    removed.map_err(|error| wait_reason("RemoveContainerError", both(&error)))?;
    // Later than a container that is gone: the sweep takes what stays.
    if let Err(error) = task.deps.logs.unlink(task.pod, id).await {
        tracing::error!(pod = task.pod.full_name(), error = chain(&error), "a log's link stays");
    }
    Ok(Output::Done)
}
