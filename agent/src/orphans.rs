//! Folders and cgroups of pods that are no more: an agent that died between a pod's end and its
//! tear-down leaves them. Owns the comparison; never touches what the runtime still knows (trap 1:
//! nothing goes unless every source and the runtime have been heard). Called once, when the agent has
//! its pods.

use std::collections::BTreeSet;

use crate::pod::run::Deps;
use crate::pod::spec::PodUid;

/// Takes back what belongs to no pod that is wanted or known to the runtime; says what it could not.
pub async fn sweep(deps: &Deps, wanted: &[PodUid]) -> Vec<String> {
    let runtime = match deps.runtime.pods().await {
        Ok(pods) => pods,
        Err(error) => return vec![format!("orphans are kept: {error}: {}", error.detail())],
    };
    let mut failures = Vec::new();
    let keep: BTreeSet<&PodUid> = wanted.iter().chain(runtime.iter().map(|pod| &pod.uid)).collect();
    // Volumes first, as at a pod's end: what is in the cgroup may still use them, and is told so.
    match deps.volumes.known().await {
        Ok(uids) => {
            for uid in uids.iter().filter(|uid| !keep.contains(uid)) {
                match deps.volumes.tear_down(uid).await {
                    Ok(()) => tracing::info!(%uid, "took back an orphan's volumes"),
                    Err(error) => failures.push(error.message),
                }
            }
        }
        Err(error) => failures.push(error.message),
    }
    match deps.cgroups.known().await {
        Ok(uids) => {
            for uid in uids.iter().filter(|uid| !keep.contains(uid)) {
                match deps.cgroups.tear_down(uid).await {
                    Ok(()) => tracing::info!(%uid, "took back an orphan's cgroup"),
                    Err(error) => failures.push(error.message),
                }
            }
        }
        Err(error) => failures.push(error.message),
    }
    failures
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cgroups::Cgroups;
    use crate::cgroups::fake::FakeCgroups;
    use crate::clock::SystemClock;
    use crate::logs::dir::LogDir;
    use crate::pod::spec::Pod;
    use crate::pod::tests::{deps, pod};
    use crate::runtime::fake::{Call, FakeRuntime};
    use crate::runtime::{FailureKind, NewSandbox, Runtime};
    use crate::volumes::Volumes;
    use crate::volumes::fake::FakeVolumes;

    fn of(uid: &str) -> Pod {
        Pod { uid: PodUid::parse(uid).unwrap(), ..pod() }
    }

    #[tokio::test]
    async fn trap_01_orphans_go_only_when_the_runtime_has_been_heard() {
        let folder = tempfile::tempdir().unwrap();
        let (volumes, cgroups) = (Arc::new(FakeVolumes::default()), Arc::new(FakeCgroups::default()));
        let runtime = FakeRuntime::new(&[]);
        let logs = Arc::new(LogDir::new(folder.path().to_owned()));
        let base = deps(&runtime, logs, Arc::new(SystemClock::new()));
        let deps = Deps { volumes: volumes.clone(), cgroups: cgroups.clone(), ..base };
        let (wanted, running, orphan) = (of("wanted"), of("running"), of("orphan"));
        for pod in [&wanted, &running, &orphan] {
            volumes.set_up(pod).await.unwrap();
            cgroups.set_up(pod).await.unwrap();
        }
        runtime.run_sandbox(NewSandbox { pod: &running, attempt: 0, cgroup_parent: "" }).await.unwrap();
        runtime.fail(Call::Observe, 1, FailureKind::Unavailable, "down");
        let kept = sweep(&deps, std::slice::from_ref(&wanted.uid)).await;
        assert_eq!(kept, ["orphans are kept: list pods: down"]);
        assert!(volumes.has(&orphan.uid) && cgroups.has(&orphan.uid));
        assert_eq!(sweep(&deps, std::slice::from_ref(&wanted.uid)).await, Vec::<String>::new());
        for pod in [&wanted, &running] {
            assert!(volumes.has(&pod.uid) && cgroups.has(&pod.uid), "{}", pod.uid);
        }
        assert!(!volumes.has(&orphan.uid) && !cgroups.has(&orphan.uid));
    }
}
