//! A runtime in memory: keeps real state, follows scripts, fails and delays on demand. Owns
//! its simulated containers; never touches the machine. Used by unit tests of the workers
//! and by the contract.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{
    Effect, Error, ExecOutput, Exit, Failure, FailureKind, Instance, InstanceState, KnownPod, NewContainer,
    NewSandbox, Observed, Runtime, Sandbox, Subject,
};
use crate::pod::spec::{Pod, PodUid};
use crate::timeline::Span;

/// The trait's calls, to fail or count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "named as the trait's methods")]
pub enum Call {
    Observe,
    Pull,
    RunSandbox,
    StopSandbox,
    RemoveSandbox,
    Create,
    Start,
    Stop,
    Remove,
    Exec,
}

/// What a container does once it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// Runs until SIGTERM, then ends with 143.
    Serve,
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

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    images: BTreeMap<String, String>,
    registry: Vec<String>,
    sandboxes: Vec<FakeSandbox>,
    containers: Vec<FakeContainer>,
    scripts: BTreeMap<String, Vec<Script>>,
    execs: BTreeMap<String, Vec<Exec>>,
    failures: BTreeMap<Call, Vec<Failure>>,
    latency: Duration,
    log: Vec<String>,
}

#[derive(Debug)]
struct FakeSandbox {
    uid: PodUid,
    namespace: String,
    name: String,
    view: Sandbox,
}

#[derive(Debug)]
struct FakeContainer {
    uid: PodUid,
    view: Instance,
    script: Script,
    ends: Option<(Instant, i32)>,
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

    /// The next `times` calls fail.
    pub fn fail(&self, call: Call, times: usize, kind: FailureKind, message: &str) {
        let failure = Failure { kind, message: message.to_owned() };
        self.lock().failures.insert(call, vec![failure; times]);
    }

    /// Puts another image into the registry.
    pub fn publish(&self, image: &str) {
        self.lock().registry.push(image.to_owned());
    }

    /// Every call takes this long before and after its effect; a caller may vanish in
    /// either half, the effect happens all the same.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
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

    /// The sandbox's pause process dies.
    pub fn break_sandboxes(&self) {
        let mut state = self.lock();
        state.sandboxes.iter_mut().for_each(|s| s.view.ready = false);
        state.end_all(|_| true, 137);
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
            let latency = fake.lock().latency;
            let task = tokio::spawn(async move {
                tokio::time::sleep(latency).await;
                let result = {
                    let mut state = fake.lock();
                    match state.failures.get_mut(&call).and_then(Vec::pop) {
                        Some(failure) => Err(failure),
                        None => act(&mut state),
                    }
                };
                tokio::time::sleep(latency).await;
                result
            });
            let died =
                |_| Err(Failure { kind: FailureKind::Failed, message: "the fake was shut down".to_owned() });
            task.await.unwrap_or_else(died).map_err(wrap)
        })
    }
}

impl State {
    fn id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}{}", self.next_id)
    }

    /// Ends whatever its script has ended by now.
    fn advance(&mut self) {
        if self.containers.iter().all(|c| c.ends.is_none()) {
            return;
        }
        let now = Instant::now();
        for container in &mut self.containers {
            if let Some((at, code)) = container.ends
                && at <= now
            {
                container.end(code);
            }
        }
    }

    fn end_all(&mut self, which: impl Fn(&FakeContainer) -> bool, code: i32) {
        self.containers.iter_mut().filter(|c| which(c)).for_each(|c| c.end(code));
    }

    fn container(&mut self, id: &str) -> Result<&mut FakeContainer, Failure> {
        self.containers.iter_mut().find(|c| c.view.id == id).ok_or_else(|| not_found("container", id))
    }

    fn start(&mut self, id: &str) -> Result<(), Failure> {
        let container = self.container(id)?;
        if container.view.state != InstanceState::Created {
            return Err(failed(format!("container {id} is not in created state")));
        }
        self.log.push(format!("start {id}"));
        let container = self.container(id)?;
        container.view.state = InstanceState::Running { started_at: 1 };
        match container.script.clone() {
            Script::FailStart(message) => {
                let exit = Exit {
                    code: 128,
                    reason: "StartError".to_owned(),
                    message: message.clone(),
                    started_at: 0,
                    finished_at: 1,
                };
                container.view.state = InstanceState::Exited(exit);
                Err(failed(message))
            }
            Script::Exit { after, code } => {
                container.ends = Some((Instant::now() + after, code));
                Ok(())
            }
            Script::Serve | Script::Stubborn => Ok(()),
        }
    }
}

impl FakeContainer {
    fn end(&mut self, code: i32) {
        self.ends = None;
        if let InstanceState::Running { started_at } = self.view.state {
            let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
            let exit = Exit { code, reason, message: String::new(), started_at, finished_at: started_at + 1 };
            self.view.state = InstanceState::Exited(exit);
        }
    }

    /// When SIGTERM now and SIGKILL after `grace` will have ended it.
    fn terminate(&mut self, grace: Duration) {
        let now = Instant::now();
        let (at, code) = match &self.script {
            _ if grace.is_zero() => (now, 137),
            Script::Serve => (now, 143),
            Script::Stubborn | Script::Exit { .. } | Script::FailStart(_) => (now + grace, 137),
        };
        self.ends = match self.ends {
            Some((earlier, code)) if earlier <= at => Some((earlier, code)),
            _ => Some((at, code)),
        };
    }
}

fn failed(message: String) -> Failure {
    Failure { kind: FailureKind::Failed, message }
}

fn not_found(what: &str, id: &str) -> Failure {
    Failure { kind: FailureKind::NotFound, message: format!("{what} {id:?} not found") }
}

impl Runtime for FakeRuntime {
    fn observe<'a>(&'a self, uid: &'a PodUid) -> Effect<'a, Observed> {
        let (wanted, uid) = (uid.clone(), uid.to_string());
        let act = move |state: &mut State| {
            Ok(Observed {
                sandboxes: state
                    .sandboxes
                    .iter()
                    .filter(|s| s.uid == wanted)
                    .map(|s| s.view.clone())
                    .collect(),
                containers: state
                    .containers
                    .iter()
                    .filter(|c| c.uid == wanted)
                    .map(|c| c.view.clone())
                    .collect(),
            })
        };
        self.effect(Call::Observe, act, move |source| Error::Observe { uid, source })
    }

    fn pods(&self) -> Effect<'_, Vec<KnownPod>> {
        let act = |state: &mut State| {
            let known = state.sandboxes.iter().map(|s| KnownPod {
                uid: s.uid.clone(),
                namespace: s.namespace.clone(),
                name: s.name.clone(),
                from_file: true,
            });
            Ok(known.collect())
        };
        self.effect(Call::Observe, act, |source| Error::Pods { source })
    }

    fn image_id<'a>(&'a self, image: &'a str) -> Effect<'a, Option<String>> {
        let id = self.lock().images.get(image).cloned();
        Box::pin(async move { Ok(id) })
    }

    fn pull_image<'a>(&'a self, image: &'a str, _pod: &'a Pod) -> Effect<'a, String> {
        let name = image.to_owned();
        let act = move |state: &mut State| {
            state.log.push(format!("pull {name}"));
            if !state.registry.contains(&name) {
                return Err(Failure { kind: FailureKind::NotFound, message: format!("{name}: not found") });
            }
            let id = format!("id-of-{name}");
            state.images.insert(name, id.clone());
            Ok(id)
        };
        self.effect(Call::Pull, act, |source| Error::PullImage { image: image.to_owned(), source })
    }

    fn run_sandbox<'a>(&'a self, new: NewSandbox<'a>) -> Effect<'a, String> {
        let NewSandbox { pod, attempt, .. } = new;
        let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
        let act = move |state: &mut State| {
            if state.sandboxes.iter().any(|s| s.uid == uid && s.view.attempt == attempt) {
                return Err(failed(format!("sandbox name of attempt {attempt} is reserved")));
            }
            let id = state.id("s");
            state.log.push(format!("run-sandbox {attempt}"));
            let created_at = i64::try_from(state.next_id).unwrap_or(0);
            let view =
                Sandbox { id: id.clone(), attempt, ready: true, created_at, ip: "10.88.0.2".to_owned() };
            state.sandboxes.push(FakeSandbox { uid, namespace, name, view });
            Ok(id)
        };
        self.effect(Call::RunSandbox, act, |source| Error::RunSandbox { pod: pod.full_name(), source })
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        let wanted = id.to_owned();
        let act = move |state: &mut State| {
            state.log.push(format!("stop-sandbox {wanted}"));
            state.sandboxes.iter_mut().filter(|s| s.view.id == wanted).for_each(|s| s.view.ready = false);
            state.end_all(|c| c.view.sandbox == wanted, 137);
            Ok(())
        };
        self.effect(Call::StopSandbox, act, |source| Error::StopSandbox { id: id.to_owned(), source })
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        let wanted = id.to_owned();
        let act = move |state: &mut State| {
            state.log.push(format!("remove-sandbox {wanted}"));
            state.sandboxes.retain(|s| s.view.id != wanted);
            state.containers.retain(|c| c.view.sandbox != wanted);
            Ok(())
        };
        self.effect(Call::RemoveSandbox, act, |source| Error::RemoveSandbox { id: id.to_owned(), source })
    }

    fn create_container<'a>(&'a self, new: NewContainer<'a>) -> Effect<'a, String> {
        let (uid, name, attempt) = (new.pod.uid.clone(), new.container.name.clone(), new.attempt);
        let (sandbox, image) = (new.sandbox.to_owned(), new.image_id.to_owned());
        let act = move |state: &mut State| {
            if !state.sandboxes.iter().any(|s| s.view.id == sandbox && s.view.ready) {
                return Err(not_found("ready sandbox", &sandbox));
            }
            if !state.images.values().any(|id| *id == image) {
                return Err(not_found("image", &image));
            }
            let taken = |c: &FakeContainer| c.uid == uid && c.view.name == name && c.view.attempt == attempt;
            if state.containers.iter().any(taken) {
                return Err(failed(format!("container name {name} of attempt {attempt} is reserved")));
            }
            let id = state.id("c");
            state.log.push(format!("create {name}/{attempt}"));
            let script = match state.scripts.get_mut(&name) {
                Some(list) if list.len() > 1 => list.remove(0),
                Some(list) => list.first().cloned().unwrap_or(Script::Serve),
                None => Script::Serve,
            };
            let view = Instance {
                id: id.clone(),
                log_path: format!("/logs/{name}/{attempt}.log"),
                name,
                attempt,
                sandbox,
                state: InstanceState::Created,
                created_at: i64::try_from(state.next_id).unwrap_or(0),
            };
            state.containers.push(FakeContainer { uid, view, script, ends: None });
            Ok(id)
        };
        let name = new.container.name.clone();
        self.effect(Call::Create, act, move |source| Error::CreateContainer { name, source })
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        let wanted = id.to_owned();
        let act = move |state: &mut State| state.start(&wanted);
        self.effect(Call::Start, act, |source| Error::StartContainer { id: id.to_owned(), source })
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Effect<'a, ()> {
        let (wanted, fake) = (id.to_owned(), self.clone());
        let act = move |state: &mut State| {
            state.log.push(format!("stop {wanted} {}", grace.as_secs()));
            match state.container(&wanted) {
                Ok(container) => container.terminate(grace),
                // Stopping what is not there succeeds.
                Err(_) => return Ok(None),
            }
            state.advance();
            Ok(Some(wanted))
        };
        let begun = self.effect(Call::Stop, act, |source| Error::StopContainer { id: id.to_owned(), source });
        Box::pin(async move {
            let Some(id) = begun.await? else { return Ok(()) };
            loop {
                let ends = fake.lock().container(&id).ok().and_then(|c| c.ends);
                match ends {
                    Some((at, _)) => tokio::time::sleep_until(at).await,
                    None => return Ok(()),
                }
            }
        })
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        let wanted = id.to_owned();
        let act = move |state: &mut State| {
            state.log.push(format!("remove {wanted}"));
            state.containers.retain(|c| c.view.id != wanted);
            Ok(())
        };
        self.effect(Call::Remove, act, |source| Error::RemoveContainer { id: id.to_owned(), source })
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> Effect<'a, ExecOutput> {
        let (wanted, line) = (id.to_owned(), command.join(" "));
        let act = move |state: &mut State| {
            state.log.push(format!("exec {wanted} {line}"));
            let container = state.container(&wanted)?;
            if !matches!(container.view.state, InstanceState::Running { .. }) {
                return Err(failed(format!("container {wanted} is not running")));
            }
            let name = container.view.name.clone();
            Ok(match state.execs.get_mut(&name) {
                Some(list) if list.len() > 1 => list.remove(0),
                Some(list) => list.first().cloned().unwrap_or_default(),
                None => Exec::default(),
            })
        };
        let begun = self.effect(Call::Exec, act, |source| Error::ExecSync { id: id.to_owned(), source });
        Box::pin(async move {
            let Exec { takes, output } = begun.await?;
            if takes > timeout {
                tokio::time::sleep(timeout).await;
                let message = format!("command timed out after {timeout:?}");
                let source = Failure { kind: FailureKind::TimedOut, message };
                return Err(Error::ExecSync { id: id.to_owned(), source });
            }
            tokio::time::sleep(takes).await;
            Ok(output)
        })
    }

    fn timeline<'a>(&'a self, _of: Subject<'a>) -> Effect<'a, Vec<Span>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
