//! `POST /checkpoint/NAMESPACE/POD/CONTAINER`: a running container written into an archive by the runtime. Owns the
//! archive's name and upstream's refusals; never what is in it. Called by [`super::serve`].

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;

use super::answer::{self, Answer};
use super::context::ServerContext;
use super::cri::{Cri, said};
use super::query;
use super::route::ContainerRef;

fn missing(text: String) -> Answer {
    answer::text(StatusCode::NOT_FOUND, text)
}

/// Ordinary, init and ephemeral ones.
fn has(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    let others = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    others.map(|container| &container.name).chain(ephemeral).any(|own| own == name)
}

/// Seconds; the last one counts. Upstream's number is signed, and it refuses those below zero later.
fn timeout(asked: &str) -> Result<Option<i64>, String> {
    let pairs = query::pairs(asked);
    let Some(text) = query::all(&pairs, "timeout").last() else { return Ok(None) };
    text.parse().map(Some).map_err(|_| "cannot parse value of timeout parameter".to_owned())
}

/// Writes the archive, and says where it is.
pub(super) async fn checkpoint(inner: &ServerContext, target: &ContainerRef, asked: &str) -> Answer {
    let ContainerRef { namespace, pod: name, container, .. } = target;
    let Some(pod) = inner.sources.pods.find(namespace, name) else {
        return missing("pod does not exist".to_owned());
    };
    if !has(&pod, container) {
        return missing(format!("container {container} does not exist"));
    }
    let timeout = match timeout(asked) {
        Ok(timeout) => timeout,
        Err(text) => return missing(text),
    };
    match write(inner, target, timeout).await {
        Ok(place) => answer::json(&serde_json::json!({ "items": [place] })),
        Err(text) => {
            let text = format!("checkpointing of {namespace}/{name}/{container} failed ({text})");
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

async fn write(inner: &ServerContext, target: &ContainerRef, timeout: Option<i64>) -> Result<String, String> {
    let ContainerRef { namespace, pod, container, .. } = target;
    if timeout.is_some_and(|seconds| seconds < 0) {
        return Err("CheckpointContainer requires the timeout value to be > 0".to_owned());
    }
    let cri = Cri::new(&inner.sources.runtime, &inner.sources.metrics);
    let running = cri.running(namespace, pod, container).await.map_err(|status| said(&status))?;
    let id = running.ok_or_else(|| format!("container {container} not found"))?;
    let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let name = format!("checkpoint-{pod}_{namespace}-{container}-{time}.tar");
    let place = inner.settings.checkpoints.join(name).to_string_lossy().into_owned();
    cri.checkpoint(id, &place, timeout.unwrap_or_default()).await.map_err(|status| said(&status))?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_timeout_counts() {
        assert_eq!(timeout(""), Ok(None));
        assert_eq!(timeout("timeout=5&x=1&timeout=-7"), Ok(Some(-7)));
        assert!(timeout("timeout=5s").is_err());
        assert!(timeout("timeout=").is_err());
    }

    #[test]
    fn containers_of_all_kinds() {
        let text = r#"{"spec":{"containers":[{"name":"a"}],"initContainers":[{"name":"b"}],
            "ephemeralContainers":[{"name":"c"}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        assert!(["a", "b", "c"].iter().all(|name| has(&pod, name)));
        assert!(!has(&pod, "d") && !has(&Pod::default(), "a"));
    }
}
