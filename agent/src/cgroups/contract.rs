//! What every [`Cgroups`] must do, as one check that the fake and the real tree pass. Owns the
//! expectations; never cleans up after one that breaks them. Called by unit tests (fake) and, behind
//! the feature `testing`, by the kernel tier (real).

use gantry_model::cgroup::limits::of_pod;
use gantry_model::pod::Pod;

use super::{Cgroups, Error};

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

/// Goes through the life of one pod's cgroup; none of that pod may be there before.
///
/// # Errors
/// The first violation.
pub async fn check(cgroups: &dyn Cgroups, pod: &Pod) -> Result<(), Violation> {
    must("removing what is not there", cgroups.tear_down(&pod.uid).await)?;
    let limits = of_pod(pod, &cgroups.rules());
    let first = must("making a cgroup", cgroups.set_up(pod, &limits).await)?;
    let second = must("making it again", cgroups.set_up(pod, &limits).await)?;
    that("a cgroup keeps its name", first == second, (&first, &second))?;
    let uid = format!("pod{}", pod.uid);
    let named = first.ends_with(&uid) || first.ends_with(&format!("{}.slice", uid.replace('-', "_")));
    that("its name holds the pod's UID", named, (&first, ""))?;
    must("holding it to its limits again", cgroups.update(pod, &limits).await)?;
    must("reading what it has in use", cgroups.memory_in_use(pod).await)?;
    must("removing it", cgroups.tear_down(&pod.uid).await)?;
    let gone = cgroups.update(pod, &limits).await;
    that("one that is not there cannot be held", gone.is_err(), ("", ""))?;
    must("removing it again", cgroups.tear_down(&pod.uid).await)?;
    let third = must("making it anew", cgroups.set_up(pod, &limits).await)?;
    that("a new one has the same name", first == third, (&first, &third))?;
    must("removing it at last", cgroups.tear_down(&pod.uid).await)
}

fn must<T>(what: &'static str, result: Result<T, Error>) -> Result<T, Violation> {
    result.map_err(|source| Violation::Failed { what, source })
}

fn that(what: &'static str, holds: bool, seen: (&str, &str)) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::Wrong { what, seen: format!("{seen:?}") }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::fake::FakeCgroups;

    #[tokio::test]
    async fn the_fake_keeps_the_contract() {
        check(&FakeCgroups::default(), &crate::pod::tests::pod()).await.unwrap();
    }
}
