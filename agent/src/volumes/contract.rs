//! What every [`Volumes`] must do, as one check that the fake and the real ones pass. Owns the
//! expectations; never cleans up after one that breaks them. Called by unit tests (fake) and, behind
//! the feature `testing`, by the kernel tier (real).

use gantry_model::mount::Mount;
use gantry_model::pod::Pod;

use super::{Error, MountsOf, PodFacts, Volumes, WordsOf};

/// What an implementation did that it must not.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    #[error("{what} must succeed")]
    Failed {
        what: &'static str,
        #[source]
        source: Error,
    },
    #[error("{what}: {seen}")]
    Wrong { what: &'static str, seen: String },
}

/// Goes through the life of one pod's volumes. Nothing of the pod may be there before; its first
/// container mounts at least one volume.
///
/// # Errors
/// The first violation.
pub async fn check(volumes: &dyn Volumes, pod: &Pod) -> Result<(), Violation> {
    must("removing what is not there", volumes.tear_down(&pod.uid).await)?;
    must("setting up", volumes.set_up(pod).await)?;
    must("setting up again", volumes.set_up(pod).await)?;
    let first = mounts(volumes, pod).await?;
    let second = mounts(volumes, pod).await?;
    that("asking again gives the same mounts", first == second, &first)?;
    let container = pod.containers.first();
    for mount in container.into_iter().flat_map(|container| &container.mounts) {
        // More may be read-only than was asked for: a Secret always is.
        let fits = |m: &Mount| m.container_path == mount.path && m.read_only >= mount.read_only;
        let there = first.iter().any(fits);
        that("each volume mount is there as written", there, &first)?;
    }
    let words = container.map(|container| {
        volumes.last_words(WordsOf { uid: &pod.uid, container: &container.name, attempt: 9, file: None })
    });
    if let Some(words) = words {
        let words = must("asking for last words that were never said", words.await)?;
        that("there are none", words.is_none(), &first)?;
    }
    must("taking down", volumes.tear_down(&pod.uid).await)?;
    must("taking down again", volumes.tear_down(&pod.uid).await)
}

async fn mounts(volumes: &dyn Volumes, pod: &Pod) -> Result<Vec<Mount>, Violation> {
    let Some(container) = pod.containers.first() else {
        return Ok(Vec::new());
    };
    let facts = PodFacts { ips: vec!["10.0.0.2".to_owned()] };
    let of = MountsOf { pod, container, attempt: 0, env: &[], facts: &facts, images: &[] };
    must("asking for mounts", volumes.mounts(of).await)
}

fn must<T>(what: &'static str, result: Result<T, Error>) -> Result<T, Violation> {
    result.map_err(|source| Violation::Failed { what, source })
}

fn that(what: &'static str, holds: bool, seen: &[Mount]) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::Wrong { what, seen: format!("{seen:?}") }) }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::volume::{Propagation, RecursiveReadOnly, SubPath, VolumeMount};

    use super::*;
    use crate::pod::tests::{container, pod};
    use crate::volumes::fake::FakeVolumes;

    #[tokio::test]
    async fn the_fake_keeps_the_contract() {
        let mut web = container("web");
        web.mounts.push(VolumeMount {
            volume: "data".into(),
            path: "/data".into(),
            sub_path: SubPath::Whole,
            read_only: true,
            recursive_read_only: RecursiveReadOnly::Disabled,
            propagation: Propagation::None,
        });
        check(&FakeVolumes::default(), &Pod { containers: vec![web], ..pod() }).await.unwrap();
    }
}
