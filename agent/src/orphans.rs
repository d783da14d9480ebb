//! What an agent leaves that was killed: folders and cgroups of pods that are no more, and pods whose
//! manifest went while nobody looked. Owns the comparison; never touches what the runtime still knows
//! (trap 1: nothing goes unless every source and the runtime have been heard), nor anything this
//! agent has not claimed: other agents and kubelets may share its cgroups and its runtime. Called when
//! the agent has its pods.

use std::collections::BTreeSet;

use crate::checkpoint::Marks;
use crate::pod::run::Deps;
use crate::pod::spec::{Origin, Pod, PodUid};
use crate::runtime::KnownPod;

/// Takes back what belongs to no pod that is wanted or known to the runtime; says what it could not.
pub async fn sweep(deps: &Deps, wanted: &[PodUid]) -> Vec<String> {
    let runtime = match deps.runtime.pods().await {
        Ok(pods) => pods,
        Err(error) => return vec![format!("orphans are kept: {error}: {}", error.detail())],
    };
    let claims = match deps.checkpoints.claims().await {
        Ok(claims) => claims,
        Err(error) => return vec![format!("orphans are kept: {}", error.chain())],
    };
    let mut failures = Vec::new();
    let keep: BTreeSet<&PodUid> = wanted.iter().chain(runtime.iter().map(|pod| &pod.uid)).collect();
    for uid in claims.keys().filter(|uid| !keep.contains(uid)) {
        match take_back(deps, uid).await {
            Ok(()) => tracing::info!(%uid, "took back an orphan's cgroup and volumes"),
            Err(message) => failures.push(format!("orphan {uid}: {message}")),
        }
    }
    failures
}

/// The cgroup first: with it goes whatever still writes to the volumes. The claim last: what fails is
/// tried again by the next agent.
async fn take_back(deps: &Deps, uid: &PodUid) -> Result<(), String> {
    deps.cgroups.tear_down(uid).await.map_err(|error| error.message)?;
    deps.volumes.tear_down(uid).await.map_err(|error| error.message)?;
    deps.checkpoints.save(uid, &Marks::new()).await.map_err(|error| error.chain())?;
    deps.checkpoints.disown(uid).await.map_err(|error| error.chain())
}

/// Pods of the manifest folder that an earlier agent started in this one's root, and that are not
/// wanted any more. One of a wanted pod's name is ended by its successor.
///
/// # Errors
/// When the runtime or the claims cannot be asked: then nothing is known to be forgotten.
pub(crate) async fn forgotten(deps: &Deps, wanted: &[&Pod]) -> Result<Vec<KnownPod>, String> {
    let runtime = deps.runtime.pods().await.map_err(|error| format!("{error}: {}", error.detail()))?;
    let claims = deps.checkpoints.claims().await.map_err(|error| error.chain())?;
    let is_wanted = |known: &KnownPod| {
        let same_name = |pod: &Pod| pod.name == known.name && pod.namespace == known.namespace;
        wanted.iter().any(|pod| pod.uid == known.uid || same_name(pod))
    };
    let mine = |known: &KnownPod| known.from_file && claims.get(&known.uid) == Some(&Origin::Static);
    Ok(runtime.into_iter().filter(|known| mine(known) && !is_wanted(known)).collect())
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
        let (wanted, running, orphan, other) = (of("wanted"), of("running"), of("orphan"), of("other"));
        for pod in [&wanted, &running, &orphan, &other] {
            volumes.set_up(pod).await.unwrap();
            cgroups.set_up(pod).await.unwrap();
            // Another agent below the same cgroup root, or a kubelet, made the last.
            if pod.uid != other.uid {
                deps.checkpoints.claim(&pod.uid, &Origin::Run).await.unwrap();
            }
        }
        runtime
            .run_sandbox(NewSandbox {
                pod: &running,
                attempt: 0,
                cgroup_parent: "",
                handler: "",
                users: None,
            })
            .await
            .unwrap();
        runtime.fail(Call::Observe, 1, FailureKind::Unavailable, "down");
        let kept = sweep(&deps, std::slice::from_ref(&wanted.uid)).await;
        assert_eq!(kept, ["orphans are kept: list pods: down"]);
        assert!(volumes.has(&orphan.uid) && cgroups.has(&orphan.uid));
        assert_eq!(sweep(&deps, std::slice::from_ref(&wanted.uid)).await, Vec::<String>::new());
        for pod in [&wanted, &running, &other] {
            assert!(volumes.has(&pod.uid) && cgroups.has(&pod.uid), "{}", pod.uid);
        }
        assert!(!volumes.has(&orphan.uid) && !cgroups.has(&orphan.uid));
    }
}
