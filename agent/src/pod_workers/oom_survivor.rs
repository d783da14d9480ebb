//! Reports containers that survived an OOM kill: how one ended is the runtime's to say, and is
//! reported elsewhere. Owns the delay and the text; never touches a pod. Started by
//! [`crate::pod_workers`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::events::{Kind, Note};
use crate::pod::worker::PodHandle;
use crate::pod_workers::watcher::Pods;
use crate::runtime::{InstanceState, Runtime};
use crate::runtime_ext::oom_counts::Ooms;

/// None of upstream's: SystemOOM is the node's, OOMKilled and OOMKilling are of what ended.
pub const REASON: &str = "OutlivedOOM";
/// A container whose first process was killed has ended by then.
const GRACE: Duration = Duration::from_secs(2);
/// Between two looks at one container: it may run out of memory many times a second.
const QUIET: Duration = Duration::from_secs(60);
/// Containers that are waited for; of more than that at once nothing is told but the count.
const MOST: usize = 1024;

/// For ever, also when nothing is told any more.
pub(crate) async fn follow(mut told: watch::Receiver<Ooms>, pods: Pods, runtime: Arc<dyn Runtime>) {
    let mut before = told.borrow_and_update().clone();
    let (mut due, mut quiet): (BTreeMap<String, Instant>, BTreeMap<String, Instant>) = Default::default();
    loop {
        let next = due.values().min().copied();
        let until = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        // Both arms are cancel-safe: a change stays marked, a moment comes again.
        tokio::select! {
            changed = told.changed() => {
                if changed.is_err() {
                    tracing::debug!("nobody tells of containers out of memory any more");
                    return std::future::pending().await;
                }
                let now = told.borrow_and_update().clone();
                for id in now.since(&before) {
                    tracing::debug!(container = id, times = now.of(id), "out of memory");
                    if due.len() < MOST {
                        let soon = Instant::now() + GRACE;
                        let at = quiet.get(id).map_or(soon, |until| soon.max(*until));
                        due.entry(id.to_owned()).or_insert(at);
                    }
                }
                before = now;
            }
            () = until => {
                let now = Instant::now();
                let ids: Vec<String> = due.extract_if(.., |_, at| *at <= now).map(|(id, _)| id).collect();
                quiet.retain(|_, until| *until > now);
                for id in ids {
                    look(&id, &pods, runtime.as_ref()).await;
                    quiet.insert(id, now + QUIET);
                }
            }
        }
    }
}

/// Tells of it if it still runs.
async fn look(id: &str, pods: &Pods, runtime: &dyn Runtime) {
    let Some((handle, name)) = find(id, &pods.borrow()) else {
        tracing::debug!(container = id, "no pod's container was out of memory, or it has been replaced");
        return;
    };
    match runtime.observe(&handle.pod.uid).await {
        Ok(observed) => {
            let runs = observed
                .containers
                .iter()
                .any(|instance| instance.id == id && matches!(instance.state, InstanceState::Running { .. }));
            if runs {
                handle.tell(Note::container(Kind::Warning, REASON, &name, words(&name)));
            }
        }
        Err(error) => {
            let pod = handle.pod.full_name();
            tracing::warn!(pod, container = name, %error, "it ran out of memory; whether it goes on is not known");
        }
    }
}

fn find(id: &str, pods: &[PodHandle]) -> Option<(PodHandle, String)> {
    pods.iter().find_map(|handle| {
        let status = handle.status.borrow();
        let container = status.all_containers().find(|container| container.id == id)?;
        Some((handle.clone(), container.name.clone()))
    })
}

/// No more than what was told: with cgroup v1 a pod's want of memory is told of each of its containers.
fn words(container: &str) -> String {
    format!(
        "Container {container} ran out of memory and goes on; other processes of it than the first may have been killed"
    )
}

#[cfg(test)]
mod tests {
    use gantry_model::clock::SystemClock;

    use super::*;
    use crate::logs::dir::LogDir;
    use crate::pod::run::Deps;
    use crate::pod::tests::{deps, pod};
    use crate::pod_workers::PodWorkers;
    use crate::runtime::fake::FakeRuntime;
    use crate::runtime_ext::RuntimeExtensions;

    #[tokio::test(start_paused = true)]
    async fn an_oom_that_the_container_outlives_is_told_once_and_none_that_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = FakeRuntime::new(&["reg/img:v1"]);
        let logs = Arc::new(LogDir::new(folder.path().to_owned()));
        let (ooms, told) = watch::channel(Ooms::default());
        let runtime_ext = RuntimeExtensions { ooms: Some(told), ..RuntimeExtensions::default() };
        let deps = Deps { runtime_ext, ..deps(&runtime, logs, Arc::new(SystemClock::new())) };
        let agent = PodWorkers::start(vec![pod()], deps);
        let handle = agent.pods().first().unwrap().clone();
        let status = handle.wait(|status| status.reason == "Running").await;
        let id = status.containers.first().unwrap().id.clone();
        let told = |handle: &PodHandle| {
            handle
                .events()
                .iter()
                .filter(|event| event.note.reason == REASON)
                .map(|event| event.count)
                .sum::<u32>()
        };

        ooms.send_modify(|ooms| assert!(ooms.add("a stranger") && ooms.add(&id) && ooms.add(&id)));
        let status = handle.wait(|s| s.events.iter().any(|event| event.note.reason == REASON)).await;
        let event = status.events.iter().find(|event| event.note.reason == REASON).unwrap();
        assert_eq!((event.note.container.as_str(), event.count, event.note.kind), ("web", 1, Kind::Warning));

        // However often it happens.
        for _ in 0..30 {
            ooms.send_modify(|ooms| assert!(ooms.add(&id)));
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        assert_eq!(told(&handle), 2);

        // It has ended by the time of looking: that is the exit's matter.
        ooms.send_modify(|ooms| assert!(ooms.add(&id)));
        runtime.end("web", 137);
        handle.wait(|s| s.containers.first().is_some_and(|c| c.id != id)).await;
        tokio::time::sleep(QUIET * 2).await;
        assert_eq!(told(&handle), 2);
        drop(ooms);
        tokio::time::sleep(GRACE).await;
        assert_eq!(handle.status.borrow().reason, "Running");
    }
}
