//! A container's image and those of its image volumes, by their pull policies. Owns the events and the
//! wording of what goes wrong. Called by [`super::effect`].

use std::time::Duration;

use gantry_model::go_duration::go_millis;
use gantry_model::names::parse_image;
use gantry_model::pod::volume::{Volume, VolumeSource};
use gantry_model::pod::{Container, Pod, PullPolicy};

use super::{Output, Task, WaitReason, wait_reason};
use crate::events::Kind::{self, Normal, Warning};
use crate::events::Note;
use crate::images::{Ask, Offers};
use crate::runtime::Image;

/// A pull that is over before is told of by its end alone.
const FIRST: Duration = Duration::from_secs(30);
/// Between two words of how far a pull is at the most, so that an hour's pull is no flood of events.
const LONGEST: Duration = Duration::from_secs(300);

/// The image, and those that the container has mounted, after asking the registry when a policy says
/// so.
pub(super) async fn ensure(task: Task<'_>, container: &Container) -> Result<Output, WaitReason> {
    let own = ImageRequest {
        task,
        container: Some(container),
        written: &container.image,
        policy: container.pull_policy,
    };
    let found = match volumes(task, container).await {
        Ok(()) => own.find().await,
        Err(trouble) => Err(trouble),
    };
    if let Err(trouble) = &found {
        let message = format!("Error: {}", trouble.reason);
        task.tell_of(container, "", Warning, "Failed", &message).await;
    }
    found.map(Output::Image)
}

/// Name, reference and policy of the image volumes that the container has mounted, each once.
fn images_of<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a str, PullPolicy)> {
    let is_mounted = |volume: &&Volume| container.mounts.iter().any(|mount| mount.volume == volume.name);
    pod.volumes.iter().filter(is_mounted).filter_map(|volume| match &volume.source {
        VolumeSource::Image { reference, pull_policy } => {
            Some((volume.name.as_str(), reference.as_str(), *pull_policy))
        }
        _ => None,
    })
}

/// All of them are tried: those that can be had need not wait for the others.
async fn volumes(task: Task<'_>, container: &Container) -> Result<(), WaitReason> {
    let mut last = Ok(());
    for (_, reference, policy) in images_of(task.pod, container) {
        let wanted = ImageRequest { task, container: None, written: reference, policy };
        if let Err(trouble) = wanted.find().await {
            last = Err(WaitReason { image: reference.to_owned(), ..trouble });
        }
    }
    last
}

/// An image that is to be there.
#[derive(Clone, Copy)]
struct ImageRequest<'a> {
    task: Task<'a>,
    /// Events are about the pod without one: the image is a volume's.
    container: Option<&'a Container>,
    written: &'a str,
    policy: PullPolicy,
}

impl ImageRequest<'_> {
    async fn tell(self, kind: Kind, reason: &'static str, message: &str) {
        match self.container {
            Some(container) => self.task.tell_of(container, "", kind, reason, message).await,
            None => self.task.notes_out.tell(Note::pod(kind, reason, message)).await,
        }
    }

    async fn find(self) -> Result<Image, WaitReason> {
        let (mut present, mut pulled) = (None, None);
        let found = self.look(&mut present, &mut pulled).await;
        self.task.deps.images.count_ask(self.policy, present, pulled);
        found
    }

    /// `present` and `pulled` become what was found out on the way.
    async fn look(self, present: &mut Option<bool>, pulled: &mut Option<bool>) -> Result<Image, WaitReason> {
        let Self { task, written, policy, .. } = self;
        let Some(name) = parse_image(written) else {
            let message = format!(
                "Failed to apply default image tag {written:?}: couldn't parse image name {written:?}: invalid reference format"
            );
            self.tell(Warning, "InspectFailed", &message).await;
            return Err(wait_reason("InvalidImageName", message));
        };
        let ask = Ask { pod: task.pod, written, full: &name.full };
        if policy != PullPolicy::Always {
            let found = match task.deps.runtime.image(ask.full).await {
                Ok(found) => found,
                Err(error) => {
                    let message = format!("Failed to inspect image {written:?}: {}", error.in_go());
                    self.tell(Warning, "InspectFailed", &message).await;
                    return Err(wait_reason("ImageInspectError", message));
                }
            };
            *present = Some(found.is_some());
            if let Some(image) = found
                && !task.deps.images.must_pull(task.deps.api.as_ref(), ask, &image.id).await
            {
                *pulled = Some(false);
                let message = format!(
                    "Container image {written:?} already present on machine and can be accessed by the pod"
                );
                self.tell(Normal, "Pulled", &message).await;
                return Ok(image);
            }
            if policy == PullPolicy::Never {
                // Said of one that the pod may not use, too: that it is there is none of its business.
                let message = format!("Container image {written:?} is not present with pull policy of Never");
                self.tell(Warning, "ErrImageNeverPull", &message).await;
                *pulled = present.filter(|present| *present);
                return Err(wait_reason("ErrImageNeverPull", message));
            }
        }
        *pulled = Some(true);
        self.pull(ask).await
    }

    async fn pull(self, ask: Ask<'_>) -> Result<Image, WaitReason> {
        let Self { task, written, .. } = self;
        let Offers { offers, missing } =
            task.deps.images.offers(task.deps.api.as_ref(), task.pod, ask.full).await;
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            task.tell(Warning, "FailedToRetrieveImagePullSecret", message).await;
        }
        self.tell(Normal, "Pulling", &format!("Pulling image {written:?}")).await;
        let begun = task.deps.clock.mono();
        let pulled = task.deps.images.pull(task.deps.runtime.as_ref(), ask, &offers);
        let pulled = match self.accompanied(ask.full, pulled).await {
            Ok(pulled) => pulled,
            Err(error) => {
                let message = format!("Failed to pull image {written:?}: {error}");
                self.tell(Warning, "Failed", &message).await;
                return Err(classify_pull_error(written, &error));
            }
        };
        let all = task.deps.clock.mono().saturating_sub(begun);
        let image = self.describe_image(ask.full).await?;
        task.deps.images.count_pull(image.size, all);
        let message = format!(
            "Successfully pulled image {written:?} in {} ({} including waiting). Image size: {} bytes.",
            go_millis(pulled.took),
            go_millis(all),
            image.size
        );
        self.tell(Normal, "Pulled", &message).await;
        Ok(Image { id: pulled.id, ..image })
    }

    /// Waits for a pull and tells how far it has come, now and then.
    async fn accompanied<T>(self, full: &str, pull: impl Future<Output = T>) -> T {
        let mut pull = std::pin::pin!(pull);
        let mut told = 0;
        loop {
            // Both arms are cancel-safe: the pull is polled by reference, the timer has no state.
            tokio::select! {
                pulled = &mut pull => return pulled,
                () = tokio::time::sleep(pause(told)) => {}
            }
            told += 1;
            let said = tokio::select! {
                pulled = &mut pull => return pulled,
                said = self.task.deps.runtime.pulling(full) => said,
            };
            match said {
                Ok(Some(progress)) if !progress.layers.is_empty() => {
                    let message = format!("Pulling image {:?}: {}", self.written, progress.words());
                    self.tell(Normal, "Pulling", &message).await;
                }
                // It is being looked up, or the runtime tells nothing.
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "how far the pull has come is not known"),
            }
        }
    }

    /// What the image says of itself decides whether it may run (runAsNonRoot): without that, it may
    /// not.
    async fn describe_image(self, full: &str) -> Result<Image, WaitReason> {
        let why = match self.task.deps.runtime.image(full).await {
            Ok(Some(image)) => return Ok(image),
            Ok(None) => "the runtime does not know the image that it has just pulled".to_owned(),
            Err(error) => error.in_go(),
        };
        let message = format!("Failed to inspect image {:?}: {why}", self.written);
        self.tell(Warning, "InspectFailed", &message).await;
        Err(wait_reason("ImageInspectError", message))
    }
}

/// The IDs of the images that the container has mounted, by volume.
///
/// # Errors
/// When one is not there any more: it is to be got anew.
pub(super) async fn resolve_image_volumes(
    task: Task<'_>,
    container: &Container,
) -> Result<Vec<(String, String)>, WaitReason> {
    let mut found = Vec::new();
    for (volume, reference, _) in images_of(task.pod, container) {
        let name = parse_image(reference).map(|name| name.full).unwrap_or_default();
        match task.deps.runtime.image(&name).await {
            Ok(Some(image)) => found.push((volume.to_owned(), image.id)),
            Ok(None) => {
                let message = format!("image {reference:?} of volume {volume:?} is not present");
                return Err(wait_reason("CreateContainerConfigError", message));
            }
            Err(error) => return Err(wait_reason("CreateContainerConfigError", error.detail())),
        }
    }
    Ok(found)
}

/// Two causes that a CRI runtime names at the head of its words, each a reason of its own; all others
/// are told as they came.
fn classify_pull_error(image: &str, said: &str) -> WaitReason {
    for (reason, what) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = said.strip_prefix(reason) {
            return wait_reason(reason, format!("image pull failed for {image} because {what}{rest}"));
        }
    }
    wait_reason("ErrImagePull", said.to_owned())
}

/// How long to wait before the next word of how far a pull is, after so many.
fn pause(told: u32) -> Duration {
    FIRST.saturating_mul(2_u32.saturating_pow(told)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_five_minutes() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 4, 40].map(|told| pause(told).as_secs()).to_vec();
        assert_eq!(seconds, [30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn two_causes_that_the_runtime_names_are_reasons_of_their_own() {
        let told = |said| {
            let WaitReason { reason, message, .. } = classify_pull_error("web", said);
            (reason, message)
        };
        let pair = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        assert_eq!(
            told("RegistryUnavailable: connection refused"),
            pair(
                "RegistryUnavailable",
                "image pull failed for web because the registry is unavailable: connection refused"
            )
        );
        assert_eq!(
            told("SignatureValidationFailed"),
            pair(
                "SignatureValidationFailed",
                "image pull failed for web because the signature validation failed"
            )
        );
        let other = "pull: RegistryUnavailable";
        assert_eq!(told(other), pair("ErrImagePull", other));
    }
}
