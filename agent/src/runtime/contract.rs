//! What every [`Runtime`] must do, as one check that the fake and the real one pass. Owns
//! the expectations; never cleans up after a runtime that breaks them. Called by unit
//! tests (fake) and, behind the feature `testing`, by the kernel tier (real).

use std::fmt::Debug;
use std::time::Duration;

use gantry_model::pod::{Container, Pod, Resources};
use gantry_numa::affinity::Affinity;
use tokio::time::Instant;

use super::{Error, Instance, InstanceState, NewContainer, NewSandbox, Observed, PullImage, Runtime, Setup};

/// A program that takes longer than this to start or end is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// What the check needs to know of the runtime under test.
#[derive(Debug, Clone)]
pub struct Material {
    /// Not in the runtime; its containers `serve`, `seven` and `broken` have this image: the
    /// first runs until SIGTERM, the second ends with 7 by itself, the third cannot be
    /// started. Its log folders exist.
    pub pod: Pod,
    /// Can be pulled, and was not yet.
    pub image: String,
    /// Cannot be pulled.
    pub missing_image: String,
}

/// What a runtime did that it must not.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// A call failed that must succeed.
    #[error("{what} must succeed")]
    Failed {
        /// Which.
        what: &'static str,
        /// What it said.
        #[source]
        source: Error,
    },
    /// A call succeeded that must fail.
    #[error("{what} must fail")]
    Succeeded {
        /// Which.
        what: &'static str,
    },
    /// Something observed is not as it must be.
    #[error("{what}: {seen}")]
    Wrong {
        /// What must be.
        what: &'static str,
        /// What is.
        seen: String,
    },
    /// The material lacks a container.
    #[error("the material has no container {name}")]
    Material {
        /// Which.
        name: &'static str,
    },
}

/// Goes through the life of one pod.
///
/// # Errors
/// The first violation; the pod is then left as it is.
pub async fn check(runtime: &dyn Runtime, material: &Material) -> Result<(), Violation> {
    let subject = Subject { runtime, material };
    subject.what_is_not_there_can_be_removed().await?;
    let image = subject.images().await?;
    let sandbox = subject.sandbox().await?;
    subject.serve(&sandbox, &image).await?;
    subject.seven(&sandbox, &image).await?;
    subject.broken(&sandbox, &image).await?;
    subject.end(&sandbox, &image).await
}

struct Subject<'a> {
    runtime: &'a dyn Runtime,
    material: &'a Material,
}

impl Subject<'_> {
    async fn what_is_not_there_can_be_removed(&self) -> Result<(), Violation> {
        must("stopping a sandbox that is not there", self.runtime.stop_sandbox("none").await)?;
        must("removing a sandbox that is not there", self.runtime.remove_sandbox("none").await)?;
        must("stopping a container that is not there", self.runtime.stop_container("none", POLL).await)?;
        must("removing a container that is not there", self.runtime.remove_container("none").await)?;
        must_not("starting a container that is not there", &self.runtime.start_container("none").await)?;
        let Material { pod, .. } = self.material;
        let update = self
            .runtime
            .update_container_resources("none", pod, self.container("serve")?, &Affinity::default())
            .await;
        must_not("updating a container that is not there", &update)?;
        let observed = self.observe().await?;
        that("an unknown pod has nothing", observed == Observed::default(), &observed)
    }

    async fn images(&self) -> Result<String, Violation> {
        let Material { pod, image, missing_image } = self.material;
        let before = must("asking for an image", self.runtime.image(image).await)?;
        that("an image is absent before its pull", before.is_none(), &before)?;
        must_not(
            "pulling what is not there",
            &self.runtime.pull_image(PullImage { image: missing_image, pod, auth: None }).await,
        )?;
        let id =
            must("pulling an image", self.runtime.pull_image(PullImage { image, pod, auth: None }).await)?;
        let again =
            must("pulling it again", self.runtime.pull_image(PullImage { image, pod, auth: None }).await)?;
        that("a second pull gives the same image", id == again, &(&id, &again))?;
        let after = must("asking for an image", self.runtime.image(image).await)?;
        that("an image is there after its pull", after.is_some(), &after)?;
        Ok(id)
    }

    async fn sandbox(&self) -> Result<String, Violation> {
        let id = must("running a sandbox", self.runtime.run_sandbox(self.new_sandbox()).await)?;
        must_not("running the same sandbox twice", &self.runtime.run_sandbox(self.new_sandbox()).await)?;
        let observed = self.observe().await?;
        let ready = observed.sandboxes.iter().filter(|s| s.ready && s.id == id && s.attempt == 0).count();
        that("one sandbox is ready", ready == 1 && observed.sandboxes.len() == 1, &observed)?;
        let pods = must("listing pods", self.runtime.pods().await)?;
        let known = pods.iter().any(|p| p.uid == self.material.pod.uid && p.from_file);
        that("the pod is listed as from a file", known, &pods)?;
        let states = self.states().await?;
        that("the look at all pods has the sandbox", states == [(id.clone(), 0)], &states)?;
        Ok(id)
    }

    /// Created → running → stopped by SIGTERM.
    async fn serve(&self, sandbox: &str, image: &str) -> Result<(), Violation> {
        let id = self.create("serve", 0, sandbox, image).await?;
        let state = self.state(&id).await?;
        that("a container is created before it is started", state == InstanceState::Created, &state)?;
        let created = self.states().await?;
        must("starting a container", self.runtime.start_container(&id).await)?;
        let state = self.state(&id).await?;
        that("a started container runs", matches!(state, InstanceState::Running { .. }), &state)?;
        let (running, again) = (self.states().await?, self.states().await?);
        that("the look at all pods shows a start", running != created, &running)?;
        that("and nothing where nothing has happened", running == again, &(&running, &again))?;
        must_not("starting it twice", &self.runtime.start_container(&id).await)?;
        self.resize(sandbox, &id).await?;
        must("stopping a container", self.runtime.stop_container(&id, PATIENCE).await)?;
        let state = self.state(&id).await?;
        that("a stopped container has ended", matches!(state, InstanceState::Exited(_)), &state)?;
        let ended = self.states().await?;
        that("the look at all pods shows an end", ended.contains(&(id.clone(), 2)), &ended)?;
        must("stopping it again", self.runtime.stop_container(&id, PATIENCE).await)
    }

    /// What it is held to changes, and it runs on.
    async fn resize(&self, sandbox: &str, id: &str) -> Result<(), Violation> {
        let pod = &self.material.pod;
        let resources = Resources { cpu_request: Some(200), ..Resources::default() };
        let container = Container { resources, ..self.container("serve")?.clone() };
        must("updating a sandbox", self.runtime.update_sandbox_resources(sandbox, pod).await)?;
        let update = self.runtime.update_container_resources(id, pod, &container, &Affinity::default()).await;
        must("updating a container", update)?;
        let observed = self.observe().await?;
        let of = observed.containers.iter().find(|c| c.id == id);
        let runs = of.is_some_and(Instance::may_run);
        let held = of.and_then(|c| c.actual).and_then(|actual| actual.cpu_request);
        that("an updated container runs, held to the new amounts", runs && held == Some(200), &observed)
    }

    /// Ends by itself; a second attempt is another container.
    async fn seven(&self, sandbox: &str, image: &str) -> Result<(), Violation> {
        let first = self.create("seven", 0, sandbox, image).await?;
        must("starting a container", self.runtime.start_container(&first).await)?;
        let code = self.exit_code(&first).await?;
        that("the exit code is the program's", code == 7, &code)?;
        let second = self.create("seven", 1, sandbox, image).await?;
        that("a second attempt is another container", first != second, &second)?;
        let observed = self.observe().await?;
        let newest = observed.newest("seven").map(|c| (c.id.clone(), c.attempt));
        that("the newest is the second", newest == Some((second.clone(), 1)), &observed)?;
        must("removing a container", self.runtime.remove_container(&first).await)?;
        let observed = self.observe().await?;
        that("a removed container is gone", observed.containers.iter().all(|c| c.id != first), &observed)
    }

    async fn broken(&self, sandbox: &str, image: &str) -> Result<(), Violation> {
        let id = self.create("broken", 0, sandbox, image).await?;
        must_not("starting a program that is not there", &self.runtime.start_container(&id).await)?;
        let state = self.state(&id).await?;
        let InstanceState::Exited(exit) = &state else {
            return that("a container that could not be started has ended", false, &state);
        };
        that("with 128 and StartError", exit.code == 128 && exit.reason == "StartError", &state)
    }

    /// The sandbox takes what is in it along.
    async fn end(&self, sandbox: &str, image: &str) -> Result<(), Violation> {
        let id = self.create("serve", 1, sandbox, image).await?;
        must("starting a container", self.runtime.start_container(&id).await)?;
        must("stopping a sandbox", self.runtime.stop_sandbox(sandbox).await)?;
        let state = self.state(&id).await?;
        that("a stopped sandbox runs nothing", matches!(state, InstanceState::Exited(_)), &state)?;
        let observed = self.observe().await?;
        that("a stopped sandbox is not ready", observed.sandboxes.iter().all(|s| !s.ready), &observed)?;
        must("stopping it again", self.runtime.stop_sandbox(sandbox).await)?;
        let container = self.container("seven")?;
        let setup = Setup::as_written(container);
        let late =
            self.runtime.create_container(self.new_container(container, &setup, 9, sandbox, image)).await;
        must_not("creating in a stopped sandbox", &late)?;
        must("removing a sandbox", self.runtime.remove_sandbox(sandbox).await)?;
        must("removing it again", self.runtime.remove_sandbox(sandbox).await)?;
        let observed = self.observe().await?;
        that("nothing is left", observed == Observed::default(), &observed)?;
        let states = self.states().await?;
        that("the look at all pods has nothing of it", states.is_empty(), &states)
    }

    /// Of this pod, in the look at all.
    async fn states(&self) -> Result<Vec<(String, i32)>, Violation> {
        let mut all = must("looking at all pods", self.runtime.states().await)?;
        Ok(all.remove(&self.material.pod.uid).unwrap_or_default())
    }

    fn container(&self, name: &'static str) -> Result<&Container, Violation> {
        self.material.pod.container(name).ok_or(Violation::Material { name })
    }

    fn new_container<'b>(
        &'b self,
        container: &'b Container,
        setup: &'b Setup,
        attempt: u32,
        sandbox: &'b str,
        image_id: &'b str,
    ) -> NewContainer<'b> {
        NewContainer {
            pod: &self.material.pod,
            container,
            attempt,
            sandbox,
            sandbox_attempt: 0,
            cgroup_parent: "",
            users: None,
            target: "",
            image_id,
            image_user: (None, ""),
            setup,
        }
    }

    fn new_sandbox(&self) -> NewSandbox<'_> {
        NewSandbox { pod: &self.material.pod, attempt: 0, cgroup_parent: "", handler: "", users: None }
    }

    async fn create(
        &self,
        name: &'static str,
        attempt: u32,
        sandbox: &str,
        image: &str,
    ) -> Result<String, Violation> {
        let container = self.container(name)?;
        let setup = Setup::as_written(container);
        let new = self.new_container(container, &setup, attempt, sandbox, image);
        must("creating a container", self.runtime.create_container(new).await)
    }

    async fn observe(&self) -> Result<Observed, Violation> {
        must("observing a pod", self.runtime.observe(&self.material.pod.uid).await)
    }

    async fn state(&self, id: &str) -> Result<InstanceState, Violation> {
        let observed = self.observe().await?;
        match observed.containers.iter().find(|c| c.id == id) {
            Some(instance) => Ok(instance.state.clone()),
            None => {
                Err(Violation::Wrong { what: "the container is observed", seen: format!("{observed:?}") })
            }
        }
    }

    async fn exit_code(&self, id: &str) -> Result<i32, Violation> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.state(id).await? {
                InstanceState::Exited(exit) => return Ok(exit.code),
                state if Instant::now() > deadline => {
                    return Err(Violation::Wrong { what: "the program ends", seen: format!("{state:?}") });
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }
}

fn must<T>(what: &'static str, result: Result<T, Error>) -> Result<T, Violation> {
    result.map_err(|source| Violation::Failed { what, source })
}

fn must_not<T>(what: &'static str, result: &Result<T, Error>) -> Result<(), Violation> {
    match result {
        Ok(_) => Err(Violation::Succeeded { what }),
        Err(_) => Ok(()),
    }
}

fn that(what: &'static str, holds: bool, seen: &dyn Debug) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::Wrong { what, seen: format!("{seen:?}") }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::{container, pod};
    use crate::runtime::fake::{FakeRuntime, Script};

    #[tokio::test(start_paused = true)]
    async fn the_fake_keeps_the_contract() {
        let fake = FakeRuntime::new(&["reg/img:v1"]);
        fake.script("seven", &[Script::Exit { after: Duration::from_secs(1), code: 7 }]);
        fake.script("broken", &[Script::FailStart("no such file".into())]);
        let containers = ["serve", "seven", "broken"].map(container).to_vec();
        let material = Material {
            pod: Pod { containers, ..pod() },
            image: "reg/img:v1".into(),
            missing_image: "reg/none:v1".into(),
        };
        check(&fake, &material).await.unwrap();
        assert_eq!(fake.residue(), 0);
    }
}
