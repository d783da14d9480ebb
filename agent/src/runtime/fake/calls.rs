//! The fake runtime's answers to the trait's calls. Owns nothing; changes the state as a real
//! runtime would, and fails where one would.

#![expect(clippy::disallowed_methods, reason = "a container ends by itself in the runtime")]

use std::time::Duration;

use futures_util::StreamExt;
use gantry_model::failure::{Failure, FailureKind};
use gantry_model::pod::{Container, Pod, PodUid};
use gantry_numa::affinity::Affinity;
use tokio_stream::wrappers::ReceiverStream;

use super::state::{FakeContainer, FakeSandbox, State, failed, not_found};
use super::{Call, Exec, FakeRuntime, Script};
use crate::runtime::{
    Actual, Changes, Effect, Error, ExecOutput, Image, Instance, InstanceState, KnownPod, NewContainer,
    NewSandbox, Observed, PodStates, PullImage, Runtime, Sandbox, Subject,
};
use crate::runtime_ext::pulls::progress::Progress;
use crate::timeline::Span;

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

    fn states(&self) -> Effect<'_, PodStates> {
        let act = |state: &mut State| {
            let mut states = PodStates::new();
            for sandbox in &state.sandboxes {
                let number = i32::from(!sandbox.view.ready);
                states.entry(sandbox.uid.clone()).or_default().push((sandbox.view.id.clone(), number));
            }
            for container in &state.containers {
                let number = match container.view.state {
                    InstanceState::Created => 0,
                    InstanceState::Running { .. } => 1,
                    InstanceState::Exited(_) => 2,
                    InstanceState::Unknown => 3,
                };
                states.entry(container.uid.clone()).or_default().push((container.view.id.clone(), number));
            }
            states.values_mut().for_each(|of_pod| of_pod.sort_unstable());
            Ok(states)
        };
        self.effect(Call::States, act, |source| Error::Pods { source })
    }

    fn image<'a>(&'a self, image: &'a str) -> Effect<'a, Option<Image>> {
        // At once: a runtime has this at hand.
        let mut state = self.lock();
        let answer = match state.failures.get_mut(&Call::Image).and_then(Vec::pop) {
            Some(source) => Err(Error::Image { image: image.to_owned(), source }),
            None => {
                let id = state.images.get(image).cloned();
                Ok(id.map(|id| Image { id, size: 1024, ..Image::default() }))
            }
        };
        Box::pin(async move { answer })
    }

    fn pulling<'a>(&'a self, _image: &'a str) -> Effect<'a, Option<Progress>> {
        let progress = self.lock().pulling.clone();
        Box::pin(async move { Ok(progress) })
    }

    fn pull_image<'a>(&'a self, ask: PullImage<'a>) -> Effect<'a, String> {
        let name = ask.image.to_owned();
        let act = move |state: &mut State| {
            state.log.push(format!("pull {name}"));
            if !state.registry.contains(&name) {
                return Err(Failure::new(FailureKind::NotFound, format!("{name}: not found")));
            }
            let id = format!("id-of-{name}");
            state.images.insert(name, id.clone());
            Ok(id)
        };
        self.effect(Call::Pull, act, |source| Error::PullImage { image: ask.image.to_owned(), source })
    }

    fn run_sandbox<'a>(&'a self, new: NewSandbox<'a>) -> Effect<'a, String> {
        let NewSandbox { pod, attempt, handler, users, .. } = new;
        let under = if handler.is_empty() { String::new() } else { format!(" under {handler}") };
        let own = users.map(|users| format!(" as {}", users.first)).unwrap_or_default();
        let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
        let act = move |state: &mut State| {
            if state.sandboxes.iter().any(|s| s.uid == uid && s.view.attempt == attempt) {
                return Err(failed(format!("sandbox name of attempt {attempt} is reserved")));
            }
            let id = state.id("s");
            state.log.push(format!("run-sandbox {attempt}{under}{own}"));
            let created_at = state.wall();
            let view = Sandbox {
                id: id.clone(),
                attempt,
                ready: true,
                created_at,
                ips: vec!["10.88.0.2".to_owned()],
            };
            state.tell(&uid);
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
            state.tell_all();
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
        let spec_image = new.container.image.clone();
        let (hash, target) = (new.container.hash.clone(), new.target.to_owned());
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
            let seeing = if target.is_empty() { String::new() } else { format!(" seeing {target}") };
            state.log.push(format!("create {name}/{attempt}{seeing}"));
            let script = match state.scripts.get_mut(&name) {
                Some(list) if list.len() > 1 => list.remove(0),
                Some(list) => list.first().cloned().unwrap_or(Script::Serve),
                None => Script::Serve,
            };
            let view = Instance {
                id: id.clone(),
                log_path: format!("/logs/{name}/{attempt}.log"),
                words: None,
                name,
                attempt,
                sandbox,
                state: InstanceState::Created,
                created_at: state.wall(),
                image: spec_image,
                image_id: image,
                hash,
                user: None,
                actual: None,
            };
            state.tell(&uid);
            state.containers.push(FakeContainer { uid, view, script, ends: None });
            Ok(id)
        };
        let name = new.container.name.clone();
        self.effect(Call::Create, act, move |source| Error::CreateContainer { name, source })
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Effect<'a, ()> {
        let wanted = id.to_owned();
        let fake = self.clone();
        let act = move |state: &mut State| {
            let started = state.start(&wanted);
            let (uid, ends) = {
                let container = state.container(&wanted)?;
                (container.uid.clone(), container.ends)
            };
            state.tell(&uid);
            if let Some((at, _)) = ends {
                // Its end is an event even if nobody looks.
                tokio::spawn(async move {
                    tokio::time::sleep_until(at).await;
                    drop(fake.lock());
                });
            }
            started
        };
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

    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        _pod: &'a Pod,
        container: &'a Container,
        _affinity: &'a Affinity,
    ) -> Effect<'a, ()> {
        let (wanted, told) = (id.to_owned(), container.resources);
        let act = move |state: &mut State| {
            let view = &mut state.container(&wanted)?.view;
            if view.exit().is_some() {
                return Err(failed(format!("container {wanted} has ended")));
            }
            let held = view.actual.unwrap_or_default();
            view.actual = Some(Actual {
                cpu_request: told.cpu_request.or(held.cpu_request),
                cpu_limit: told.cpu_limit.or(held.cpu_limit),
                memory_limit: told.memory_limit.or(held.memory_limit),
            });
            state.log.push(format!("update {wanted}"));
            Ok(())
        };
        let wrap = |source| Error::UpdateContainer { id: id.to_owned(), source };
        self.effect(Call::UpdateContainer, act, wrap)
    }

    fn update_container_cpus<'a>(&'a self, id: &'a str, cpus: &'a str) -> Effect<'a, ()> {
        let (wanted, cpus) = (id.to_owned(), cpus.to_owned());
        let act = move |state: &mut State| {
            if state.container(&wanted)?.view.exit().is_some() {
                return Err(failed(format!("container {wanted} has ended")));
            }
            state.log.push(format!("update {wanted} cpus {cpus}"));
            Ok(())
        };
        let wrap = |source| Error::UpdateContainer { id: id.to_owned(), source };
        self.effect(Call::UpdateContainer, act, wrap)
    }

    fn memory_in_use<'a>(&'a self, id: &'a str) -> Effect<'a, Option<u64>> {
        let wanted = id.to_owned();
        let act = move |state: &mut State| {
            let name = state.container(&wanted)?.view.name.clone();
            Ok(Some(state.in_use.get(&name).copied().unwrap_or(0)))
        };
        self.effect(Call::Stats, act, |source| Error::Stats { id: id.to_owned(), source })
    }

    fn update_sandbox_resources<'a>(&'a self, id: &'a str, _pod: &'a Pod) -> Effect<'a, ()> {
        let wanted = id.to_owned();
        let act = move |state: &mut State| {
            if !state.sandboxes.iter().any(|s| s.view.id == wanted) {
                return Err(not_found("sandbox", &wanted));
            }
            state.log.push(format!("update-sandbox {wanted}"));
            Ok(())
        };
        self.effect(Call::UpdateSandbox, act, |source| Error::UpdateSandbox { id: id.to_owned(), source })
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
                let source = Failure::new(FailureKind::TimedOut, message);
                return Err(Error::ExecSync { id: id.to_owned(), source });
            }
            tokio::time::sleep(takes).await;
            Ok(output)
        })
    }

    fn log_end<'a>(&'a self, log_path: &'a str) -> Effect<'a, String> {
        let text = self.lock().logs.get(log_path).cloned();
        let absent = format!("Error on reading termination message from logs: no log {log_path}");
        Box::pin(async move { Ok(text.unwrap_or(absent)) })
    }

    fn changes(&self) -> Effect<'_, Changes> {
        let act = |state: &mut State| Ok(state.reader());
        let begun = self.effect(Call::Changes, act, |source| Error::Changes { source });
        Box::pin(async move { Ok(ReceiverStream::new(begun.await?).map(|uid| Ok(Some(uid))).boxed()) })
    }

    fn timeline<'a>(&'a self, of: Subject<'a>) -> Effect<'a, Vec<Span>> {
        let latency = self.lock().timeline_latency;
        Box::pin(async move {
            tokio::time::sleep(latency).await;
            let state = self.lock();
            let made = match of {
                Subject::Image(_) => None,
                Subject::Sandbox(id) => {
                    state.sandboxes.iter().find(|s| s.view.id == id).map(|s| s.view.created_at)
                }
                Subject::Container(id) => {
                    state.containers.iter().find(|c| c.view.id == id).map(|c| c.view.created_at)
                }
            };
            let span = |at| Span {
                name: "made".to_owned(),
                container: String::new(),
                start: at,
                end: at,
                detail: String::new(),
            };
            Ok(made.map(span).into_iter().collect())
        })
    }
}
