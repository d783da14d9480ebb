//! A container's image, by its pull policy. Owns the events and the wording of what goes wrong.
//! Called by [`super::effect`].

use std::time::Duration;

use super::{Output, Task, Trouble, trouble};
use crate::events::Kind::{Normal, Warning};
use crate::manifest::names::parse_image;
use crate::pod::configure::credentials::{Offers, offers};
use crate::pod::spec::{Container, PullPolicy};
use crate::runtime::{Error, Image, PullImage};

/// The image, after asking the registry when the policy says so.
pub(super) async fn ensure(task: Task<'_>, container: &Container) -> Result<Output, Trouble> {
    let found = find(task, container).await;
    if let Err(trouble) = &found {
        let message = format!("Error: {}", trouble.reason);
        task.tell_of(container, "", Warning, "Failed", &message).await;
    }
    found.map(Output::Image)
}

async fn find(task: Task<'_>, container: &Container) -> Result<Image, Trouble> {
    let written = &container.image;
    let Some(name) = parse_image(written) else {
        let message = format!(
            "Failed to apply default image tag {written:?}: couldn't parse image name {written:?}: invalid reference format"
        );
        task.tell_of(container, "", Warning, "InspectFailed", &message).await;
        return Err(trouble("InvalidImageName", message));
    };
    if container.pull_policy == PullPolicy::Always {
        return pull(task, container, &name.full).await;
    }
    match (task.deps.runtime.image(&name.full).await, container.pull_policy) {
        (Err(error), _) => {
            let message = format!("Failed to inspect image {written:?}: {}", error.in_go());
            task.tell_of(container, "", Warning, "InspectFailed", &message).await;
            Err(trouble("ImageInspectError", message))
        }
        (Ok(Some(image)), _) => {
            let message = format!(
                "Container image {written:?} already present on machine and can be accessed by the pod"
            );
            task.tell_of(container, "", Normal, "Pulled", &message).await;
            Ok(image)
        }
        (Ok(None), PullPolicy::Never) => {
            let message = format!("Container image {written:?} is not present with pull policy of Never");
            task.tell_of(container, "", Warning, "ErrImageNeverPull", &message).await;
            Err(trouble("ErrImageNeverPull", message))
        }
        (Ok(None), PullPolicy::Always | PullPolicy::IfNotPresent) => pull(task, container, &name.full).await,
    }
}

async fn pull(task: Task<'_>, container: &Container, full: &str) -> Result<Image, Trouble> {
    let written = &container.image;
    task.tell_of(container, "", Normal, "Pulling", &format!("Pulling image {written:?}")).await;
    let begun = task.deps.clock.mono();
    let pulled = match with_credentials(task, full).await {
        Ok(id) => id,
        Err(error) => {
            let message = format!("Failed to pull image {written:?}: {}", error.of_pull());
            task.tell_of(container, "", Warning, "Failed", &message).await;
            return Err(judged(written, &error.of_pull()));
        }
    };
    let took = took(task.deps.clock.mono().saturating_sub(begun));
    let image = described(task, container, full).await?;
    let message = format!(
        "Successfully pulled image {written:?} in {took} ({took} including waiting). Image size: {} bytes.",
        image.size
    );
    task.tell_of(container, "", Normal, "Pulled", &message).await;
    Ok(Image { id: pulled, ..image })
}

/// Two causes that a CRI runtime names at the head of its words, each a reason of its own; all others
/// are told as they came.
fn judged(image: &str, said: &str) -> Trouble {
    for (reason, what) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = said.strip_prefix(reason) {
            return trouble(reason, format!("image pull failed for {image} because {what}{rest}"));
        }
    }
    trouble("ErrImagePull", said.to_owned())
}

/// What the image says of itself decides whether it may run (runAsNonRoot): without that, it may not.
async fn described(task: Task<'_>, container: &Container, full: &str) -> Result<Image, Trouble> {
    let why = match task.deps.runtime.image(full).await {
        Ok(Some(image)) => return Ok(image),
        Ok(None) => "the runtime does not know the image that it has just pulled".to_owned(),
        Err(error) => error.in_go(),
    };
    let message = format!("Failed to inspect image {:?}: {why}", container.image);
    task.tell_of(container, "", Warning, "InspectFailed", &message).await;
    Err(trouble("ImageInspectError", message))
}

/// One set of credentials after the other; without any when none fits the registry.
async fn with_credentials(task: Task<'_>, full: &str) -> Result<String, Error> {
    let Offers { auths, missing } = offers(task.deps.api.as_ref(), task.pod, full).await;
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        task.tell(Warning, "FailedToRetrieveImagePullSecret", message).await;
    }
    let ask = |auth| PullImage { image: full, pod: task.pod, auth };
    let (mut auths, runtime) = (auths.iter(), &task.deps.runtime);
    let mut pulled = runtime.pull_image(ask(auths.next())).await;
    for auth in auths {
        if pulled.is_ok() {
            break;
        }
        pulled = runtime.pull_image(ask(Some(auth))).await;
    }
    pulled
}

/// `1.234s`, `56ms`, `1m2.5s`: as Go prints a duration of whole milliseconds.
fn took(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let decimals = format!("{:03}", rest % 1000);
    let decimals = decimals.trim_end_matches('0');
    let dot = if decimals.is_empty() { "" } else { "." };
    let seconds = format!("{}{dot}{decimals}s", rest / 1000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_causes_that_the_runtime_names_are_reasons_of_their_own() {
        let told = |said| {
            let Trouble { reason, message } = judged("web", said);
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

    #[test]
    fn durations_print_as_in_go() {
        let printed = [0, 7, 1000, 1230, 62_500, 3_600_000].map(|n| took(Duration::from_millis(n)));
        assert_eq!(printed, ["0s", "7ms", "1s", "1.23s", "1m2.5s", "1h0m0s"]);
    }
}
