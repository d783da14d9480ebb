//! A runtime in memory: keeps real state, follows scripts, fails and delays on demand. Owns
//! its simulated containers (a Clock of the same origin agrees with its times); never touches the
//! machine. Used by unit tests of the workers
//! and by the contract.

#![expect(clippy::disallowed_methods, reason = "an effect goes on in a runtime whose caller has gone")]

mod calls;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_model::failure::{Failure, FailureKind};
use gantry_model::pod::PodUid;

use super::{Effect, Error, ExecOutput, InstanceState};
use crate::runtime_ext::pulls::progress::Progress;
use state::State;

/// The trait's calls, to fail or count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Observe,
    States,
    Image,
    Pull,
    RunSandbox,
    StopSandbox,
    RemoveSandbox,
    Create,
    Start,
    Stop,
    Remove,
    UpdateContainer,
    UpdateSandbox,
    Stats,
    Exec,
    Changes,
}

/// What a container does once it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// Runs until SIGTERM, then ends with 143.
    Serve,
    /// Runs until SIGTERM, then ends with 0.
    Polite,
    /// Runs until SIGKILL.
    Stubborn,
    /// Ends by itself.
    Exit {
        /// After this long.
        after: Duration,
        /// With this code.
        code: i32,
    },
    /// Cannot be started: EXITED, 128, StartError.
    FailStart(String),
}

/// What a command run in a container does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// How long it runs.
    pub takes: Duration,
    /// What it says then.
    pub output: ExecOutput,
}

/// The fake; clones share one state.
#[derive(Debug, Clone, Default)]
pub struct FakeRuntime {
    state: Arc<Mutex<State>>,
}

impl FakeRuntime {
    /// Empty, with these images in its registry.
    #[must_use]
    pub fn new(registry: &[&str]) -> Self {
        let fake = Self::default();
        fake.lock().registry = registry.iter().map(|image| (*image).to_owned()).collect();
        fake
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance();
        state
    }

    /// Each start of the container takes the next script; the last one stays.
    pub fn script(&self, container: &str, scripts: &[Script]) {
        self.lock().scripts.insert(container.to_owned(), scripts.to_vec());
    }

    /// Each command run in the container takes the next entry; the last one stays.
    pub fn script_exec(&self, container: &str, execs: &[Exec]) {
        self.lock().execs.insert(container.to_owned(), execs.to_vec());
    }

    /// From now on containers of this name have so many bytes of memory in use.
    pub fn use_memory(&self, container: &str, bytes: u64) {
        self.lock().in_use.insert(container.to_owned(), bytes);
    }

    /// What stands at the end of a log, such as `/logs/web/0.log`.
    pub fn script_log(&self, path: &str, text: &str) {
        self.lock().logs.insert(path.to_owned(), text.to_owned());
    }

    /// Containers that ended are forgotten, as a garbage collection would.
    pub fn forget_ended(&self, container: &str) {
        let mut state = self.lock();
        let gone = |view: &super::Instance| view.name == container && view.exit().is_some();
        state.containers.retain(|c| !gone(&c.view));
    }

    /// Somebody else removes the containers of this name, running or not, as `crictl rm -f` does.
    pub fn forget(&self, container: &str) {
        self.lock().containers.retain(|c| c.view.name != container);
    }

    /// Somebody else removes all that there is of a pod.
    pub fn vanish(&self, uid: &PodUid) {
        let mut state = self.lock();
        state.containers.retain(|c| c.uid != *uid);
        state.sandboxes.retain(|s| s.uid != *uid);
    }

    /// The machine was rebooted: nothing runs any more, the records are still there.
    pub fn reboot(&self) {
        self.break_sandboxes();
        self.lock().containers.iter_mut().for_each(|c| {
            if c.view.state == InstanceState::Created {
                c.view.state = InstanceState::Unknown;
            }
        });
    }

    /// A command that containers run ends now with this code.
    pub fn end(&self, container: &str, code: i32) {
        self.lock().end_all(|c| c.view.name == container, code);
    }

    /// The commands of one pod's containers end now with this code.
    pub fn end_in(&self, uid: &PodUid, code: i32) {
        self.lock().end_all(|c| c.uid == *uid, code);
    }

    /// How many calls of one kind were made.
    #[must_use]
    pub fn asked(&self, call: Call) -> usize {
        self.lock().asked.get(&call).copied().unwrap_or(0)
    }

    /// How many calls were made, of whatever kind.
    #[must_use]
    pub fn asked_in_all(&self) -> usize {
        self.lock().asked.values().sum()
    }

    /// The next `times` calls fail.
    pub fn fail(&self, call: Call, times: usize, kind: FailureKind, message: &str) {
        let failure = Failure::new(kind, message);
        self.lock().failures.insert(call, vec![failure; times]);
    }

    /// The next call happens, and its answer does not arrive in time.
    pub fn lose_answer(&self, call: Call) {
        let failure = Failure::new(FailureKind::TimedOut, "context deadline exceeded");
        self.lock().lost_answers.insert(call, failure);
    }

    /// Puts another image into the registry.
    pub fn publish(&self, image: &str) {
        self.lock().registry.push(image.to_owned());
    }

    /// Every call takes this long before and after its effect; a caller may vanish in
    /// What it says of every pull under way.
    pub fn set_pulling(&self, progress: Progress) {
        self.lock().pulling = Some(progress);
    }

    /// either half, the effect happens all the same.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// How long calls of one kind take before they act, and again before they answer.
    pub fn set_latency_of(&self, call: Call, latency: Duration) {
        self.lock().latencies.insert(call, latency);
    }

    /// How long an answer about the runtime's own stages takes.
    pub fn set_timeline_latency(&self, latency: Duration) {
        self.lock().timeline_latency = latency;
    }

    /// What was done so far: `create web/0`, `stop-sandbox s1`.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    /// How many entries of the log begin so.
    #[must_use]
    pub fn count(&self, prefix: &str) -> usize {
        self.lock().log.iter().filter(|entry| entry.starts_with(prefix)).count()
    }

    /// Sandboxes and containers that are there, running or not.
    #[must_use]
    pub fn residue(&self) -> usize {
        let state = self.lock();
        state.sandboxes.len() + state.containers.len()
    }

    /// The sandboxes' networks are lost; what runs in them runs on.
    pub fn lose_sandboxes(&self) {
        let mut state = self.lock();
        state.sandboxes.iter_mut().for_each(|s| s.view.ready = false);
        state.tell_all();
    }

    /// From now on no event arrives, though the streams stay open.
    pub fn lose_events(&self) {
        let mut state = self.lock();
        let lost = std::mem::take(&mut state.readers);
        state.lost_readers.extend(lost);
    }

    /// The sandbox's pause process dies.
    pub fn break_sandboxes(&self) {
        let mut state = self.lock();
        state.sandboxes.iter_mut().for_each(|s| s.view.ready = false);
        state.end_all(|_| true, 137);
        state.tell_all();
    }

    /// One effect in a task of its own, so that it happens whether or not the caller waits.
    fn effect<'a, T: Send + 'static>(
        &'a self,
        call: Call,
        act: impl FnOnce(&mut State) -> Result<T, Failure> + Send + 'static,
        wrap: impl FnOnce(Failure) -> Error + Send + 'a,
    ) -> Effect<'a, T> {
        let fake = self.clone();
        Box::pin(async move {
            let latency = {
                let mut state = fake.lock();
                *state.asked.entry(call).or_default() += 1;
                state.latencies.get(&call).copied().unwrap_or(state.latency)
            };
            let task = tokio::spawn(async move {
                tokio::time::sleep(latency).await;
                let result = {
                    let mut state = fake.lock();
                    match state.failures.get_mut(&call).and_then(Vec::pop) {
                        Some(failure) => Err(failure),
                        None => {
                            let done = act(&mut state);
                            state.lost_answers.remove(&call).map_or(done, Err)
                        }
                    }
                };
                tokio::time::sleep(latency).await;
                result
            });
            let died = |_| Err(Failure::new(FailureKind::Failed, "the fake was shut down"));
            task.await.unwrap_or_else(died).map_err(wrap)
        })
    }
}
