//! What an agent leaves that was killed: folders and cgroups of pods that are no more, and pods whose
//! manifest went while nobody looked. Owns the comparison; never touches what the runtime still knows
//! (trap 1: nothing goes unless every source and the runtime have been heard), nor anything this
//! agent has not claimed: other agents and kubelets may share its cgroups and its runtime. A kubelet
//! takes what is in its root folder for its own, too. Called when the agent has its pods.
//!
//! Each orphan has a task of its own: a disk or server that hangs holds up a few of the others, and
//! what is begun goes on when nobody waits for it any more. [`Sweeps`] remembers it so long.

#![expect(
    clippy::disallowed_methods,
    reason = "a sweep that has begun is carried out, whoever stops waiting"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use gantry_base::error::chain;
use gantry_model::pod::{Origin, Pod, PodUid};

use crate::checkpoint::Marks;
use crate::pod::run::Deps;
use crate::runtime::KnownPod;

use crate::pod::sweeps::{Refusal, Sweep};

/// Longer than anything that works takes: a server that is gone must not hold up the others.
const PATIENCE: Duration = Duration::from_secs(30);
/// That are waited for at once.
const SIDE_BY_SIDE: usize = 4;

/// What a sweep came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Pods of which there was something.
    pub found: usize,
    /// What could not be taken back, or could not be known, and why.
    pub failures: Vec<String>,
}

/// Takes back what this agent has claimed and what belongs to no pod that is wanted or known to the
/// runtime; says what it could not.
pub(crate) async fn sweep(deps: &Deps, wanted: &[PodUid]) -> Vec<String> {
    match sweep_of(deps, wanted, BTreeSet::new()).await {
        Ok(swept) => swept.failures,
        Err(why) => vec![format!("orphans are kept: {why}")],
    }
}

/// The same, and whatever else is in the root folder, whoever made it: a kubelet's root is its own. For
/// when all sources have told all of theirs (trap 1).
///
/// # Errors
/// When it cannot be known what is an orphan: nothing was touched then.
pub(crate) async fn sweep_all(deps: &Deps, wanted: &[PodUid]) -> Result<Swept, String> {
    let left = deps.volumes.list_orphans().await.map_err(|error| error.message)?;
    sweep_of(deps, wanted, left.into_iter().collect()).await
}

async fn sweep_of(deps: &Deps, wanted: &[PodUid], mut found: BTreeSet<PodUid>) -> Result<Swept, String> {
    let runtime = deps.runtime.pods().await.map_err(|error| format!("{error}: {}", error.detail()))?;
    found.extend(deps.checkpoints.claims().await.map_err(|error| chain(&error))?.into_keys());
    let keep: BTreeSet<&PodUid> = wanted.iter().chain(runtime.iter().map(|pod| &pod.uid)).collect();
    let orphans: Vec<PodUid> = found.into_iter().filter(|uid| !keep.contains(uid)).collect();
    let taken = stream::iter(orphans).map(|uid| sweep_one(deps, uid)).buffer_unordered(SIDE_BY_SIDE);
    let taken: Vec<Option<Result<(), String>>> = taken.collect().await;
    let (found, failures) = (taken.iter().flatten().count(), taken.into_iter().flatten());
    let mut failures: Vec<String> = failures.filter_map(Result::err).collect();
    failures.sort();
    Ok(Swept { found, failures })
}

/// None when the pod is here again.
async fn sweep_one(deps: &Deps, uid: PodUid) -> Option<Result<(), String>> {
    let failed = |why: &str| Some(Err(format!("orphan {uid}: {why}")));
    let sweep = match deps.sweeps.begin(&uid) {
        Ok(sweep) => sweep,
        Err(Refusal::Here) => return None,
        Err(Refusal::UnderWay) => return failed("an earlier attempt has not come to its end"),
        Err(Refusal::Full) => return failed("too many others have not come to their end"),
    };
    // Not dropped with the wait for it: what it has begun on the disk goes on.
    let work = tokio::spawn(carry_out(deps.clone(), uid.clone(), sweep));
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(Ok(Ok(()))) => Some(Ok(())),
        Ok(Ok(Err(message))) => failed(&message),
        Ok(Err(error)) => failed(&format!("the work on it died: {error}")),
        Err(_) => failed("it takes too long; nothing new is begun on it until that is over"),
    }
}

async fn carry_out(deps: Deps, uid: PodUid, sweep: Sweep) -> Result<(), String> {
    let taken = take_back(&deps, &uid).await;
    if taken.is_ok() {
        tracing::info!(%uid, "took back an orphan's cgroup and volumes");
    }
    drop(sweep);
    taken
}

/// The cgroup first: with it goes whatever still writes to the volumes. The claim last: what fails is
/// tried again by the next agent.
async fn take_back(deps: &Deps, uid: &PodUid) -> Result<(), String> {
    deps.cgroups.tear_down(uid).await.map_err(|error| error.message)?;
    deps.volumes.reclaim(uid).await.map_err(|error| error.message)?;
    deps.users.release(uid);
    deps.checkpoints.save(uid, &Marks::new()).await.map_err(|error| chain(&error))?;
    deps.checkpoints.disown(uid).await.map_err(|error| chain(&error))
}

/// Pods of the manifest folder that an earlier agent started in this one's root, and that are not
/// wanted any more. One of a wanted pod's name is ended by its successor.
///
/// # Errors
/// When the runtime or the claims cannot be asked: then nothing is known to be forgotten.
pub(crate) async fn forgotten(deps: &Deps, wanted: &[&Pod]) -> Result<Vec<KnownPod>, String> {
    let runtime = deps.runtime.pods().await.map_err(|error| format!("{error}: {}", error.detail()))?;
    let claims = deps.checkpoints.claims().await.map_err(|error| chain(&error))?;
    let is_wanted = |known: &KnownPod| {
        let same_name = |pod: &Pod| pod.name == known.name && pod.namespace == known.namespace;
        wanted.iter().any(|pod| pod.uid == known.uid || same_name(pod))
    };
    let mine = |known: &KnownPod| known.from_file && claims.get(&known.uid) == Some(&Origin::Static);
    Ok(runtime.into_iter().filter(|known| mine(known) && !is_wanted(known)).collect())
}

#[cfg(test)]
mod tests {
    use gantry_model::cgroup::limits::Limits;
    use std::sync::Arc;

    use gantry_model::clock::SystemClock;
    use gantry_model::failure::FailureKind;
    use gantry_model::pod::Pod;

    use super::*;
    use crate::cgroups::Cgroups;
    use crate::cgroups::fake::FakeCgroups;
    use crate::logs::dir::LogDir;
    use crate::pod::tests::{deps, pod};
    use crate::runtime::fake::{Call, FakeRuntime};
    use crate::runtime::{NewSandbox, Runtime};
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
            cgroups.set_up(pod, &Limits::default()).await.unwrap();
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
        // A kubelet's root is its own, whoever made what is in it.
        runtime.fail(Call::Observe, 1, FailureKind::Unavailable, "down");
        assert_eq!(sweep_all(&deps, std::slice::from_ref(&wanted.uid)).await, Err("list pods: down".into()));
        assert!(volumes.has(&other.uid));
        volumes.fail(Some("volume \"v\" is of kubernetes.io~csi"));
        let kept = sweep_all(&deps, std::slice::from_ref(&wanted.uid)).await.unwrap();
        let why = "orphan other: volume \"v\" is of kubernetes.io~csi".to_owned();
        assert_eq!(kept, Swept { found: 1, failures: vec![why] });
        volumes.fail(None);
        let swept = sweep_all(&deps, std::slice::from_ref(&wanted.uid)).await.unwrap();
        assert_eq!(swept, Swept { found: 1, failures: vec![] });
        for pod in [&wanted, &running] {
            assert!(volumes.has(&pod.uid) && cgroups.has(&pod.uid), "{}", pod.uid);
        }
        assert!(!volumes.has(&other.uid) && !cgroups.has(&other.uid));
    }
}
