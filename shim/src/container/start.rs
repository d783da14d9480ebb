//! StartContainer: cgroup and limits, then the monitor clones. A start that fails leaves the container
//! EXITED, 128, StartError, with the failing step. Called by the RPC handler, in a task of its own.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use gantry_proto::monitor::{Hooks, StartContainer, request};
use prost::Message;

use super::{START_FILE, hooks, planned, start_error, target};
use crate::cgroup::{Cgroup, Layout};
use crate::error::{Error, chain};
use crate::events;
use crate::feed;
use crate::handler::plan;
use crate::node::Node;
use crate::ooms;
use crate::recover;
use crate::spec::container::resources;
use crate::store::record::{StartFailure, Started};
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use crate::timeline::unix_nanos;
use crate::user_mapping;

/// How long the child may take to its program: a mount source on a dead network disk never answers.
/// Shorter than the kubelet's own two minutes, so that it hears why.
const SET_UP: Duration = Duration::from_secs(100);

/// Starts a created container. One that runs already has been started by this very call, whose
/// answer was lost: that is success.
///
/// # Errors
/// The failing step.
pub(crate) async fn start(node: Arc<Node>, container: Arc<Container>) -> Result<(), Error> {
    let _operation = container.operation.lock().await;
    match container.state() {
        ContainerState::Created => {}
        ContainerState::Running(_) => return Ok(()),
        state @ ContainerState::Exited(_) => {
            return Err(Error::WrongState {
                id: container.id.clone(),
                state: state.word(),
                wanted: "created",
            });
        }
    }
    let sandbox = node.store.sandbox(&container.sandbox_id)?;
    let client = match (sandbox.state(), sandbox.monitor()) {
        (SandboxState::Ready, Some(client)) => client,
        _ => return Err(Error::SandboxNotReady(sandbox.id.clone())),
    };
    let attempt = async {
        let start = {
            let _stage = container.spans.stage("cgroup");
            let (layout, owned) = (node.layout.clone(), container.clone());
            tokio::task::spawn_blocking(move || prepare(&layout, &owned)).await??
        };
        failpoint!("start.cgroup"?);
        let start = told(&node, &sandbox, &container, start).await?;
        let _stage = container.spans.stage("clone");
        let hooks = own_hooks(&start);
        let start = client.start(request::Op::StartContainer(start));
        let Ok(started) = tokio::time::timeout(SET_UP, start).await else {
            return Err(Error::StartStuck { id: container.id.clone(), seconds: SET_UP.as_secs() });
        };
        let started = started?;
        hooks::poststart(&container, hooks, started.pid).await?;
        Ok(started)
    };
    match attempt.await {
        Ok(started) => begun(&node, &sandbox, &container, &started).await,
        Err(error) => Err(fail(&node, &container, &error).await),
    }
}

/// The start with what has to be said of the moment: another container may have ended since create looked.
async fn told(
    node: &Arc<Node>,
    sandbox: &Sandbox,
    container: &Container,
    mut start: StartContainer,
) -> Result<StartContainer, Error> {
    let mut target = None;
    if !start.pid_target.is_empty() {
        let id = target::check(&node.store, &start.pid_target, &sandbox.id)?;
        target = node.store.container(&id)?.record().started.map(|started| started.process.pid);
    }
    let (sandbox, container) = (sandbox.record(), container.record());
    let job = move || plan::started(&mut start, &sandbox, &container, target).map(|()| start);
    tokio::task::spawn_blocking(job).await?
}

/// Takes note of a container whose program runs.
async fn begun(
    node: &Arc<Node>,
    sandbox: &Sandbox,
    container: &Arc<Container>,
    started: &gantry_proto::monitor::Started,
) -> Result<(), Error> {
    failpoint!("start.cloned");
    let started = Started::of(started);
    let process = started.process;
    // First in memory, which stop and remove go by: the process runs, whatever becomes of the disk. When it
    // can't be opened it has ended already, and its exit is on its way, or here.
    let recording = container.update(|record| record.started = Some(started));
    if let Ok(pidfd) = recover::open(process) {
        container.set_state(ContainerState::Running(Arc::new(pidfd)));
        ooms::follow(node, container, Some(0));
    }
    if let Err(error) = recording.await {
        super::stop::kill(container).await?;
        return Err(error.into());
    }
    failpoint!("start.recorded");
    if sandbox.state() != SandboxState::Ready {
        // Stopped meanwhile: the teardown may have passed this container by.
        super::stop::kill(container).await?;
        if sandbox.monitor().is_none() {
            // So may have done who ended what its dead monitor had held.
            events::end_rest(node, &sandbox.id).await;
        }
        return Err(Error::SandboxNotReady(sandbox.id.clone()));
    }
    tracing::info!(container = container.id, pid = process.pid, "container started");
    feed::of_container(node, feed::Kind::ContainerStartedEvent, container);
    Ok(())
}

/// The hooks that are ours to run: an OCI runtime runs those of its containers itself.
fn own_hooks(start: &StartContainer) -> Option<Hooks> {
    start.hooks.clone().filter(|_| start.external.is_none())
}

/// What an end of the runtime has left of a start: poststart hooks that have not run. In the background: nothing
/// says how long they take.
pub(crate) async fn finish(node: Arc<Node>, container: Arc<Container>, pid: i32) {
    let _operation = container.operation.lock().await;
    if !matches!(container.state(), ContainerState::Running(_)) {
        return;
    }
    let owned = container.clone();
    let finished = async {
        let start = tokio::task::spawn_blocking(move || planned(&owned)).await??;
        hooks::poststart(&container, own_hooks(&start), pid).await
    };
    if let Err(error) = finished.await {
        let error = fail(&node, &container, &error).await;
        tracing::error!(container = container.id, "{}", chain(&error));
    }
}

/// Makes the cgroup with its limits and device filter, and reads back what create wrote.
fn prepare(layout: &Layout, container: &Container) -> Result<StartContainer, Error> {
    let path = container.folder.join(START_FILE);
    let wrap = |source| Error::Files { what: "read", path: path.clone(), source };
    let bytes = fs::read(&path).map_err(wrap)?;
    let start =
        StartContainer::decode(bytes.as_slice()).map_err(|error| wrap(std::io::Error::other(error)))?;
    let record = container.record();
    let cgroup = Cgroup::new(layout, &record.cgroup)?;
    cgroup.create()?;
    cgroup.apply(&resources(&record.linux_resources()))?;
    let users = start.users.as_ref().filter(|_| start.privileged);
    if let Some(owner) = users.and_then(|users| user_mapping::owner(users, 0, 0)) {
        cgroup.hand_over(owner)?;
    }
    if !start.privileged {
        cgroup.restrict_devices(&start.devices)?;
    }
    Ok(start)
}

async fn fail(node: &Arc<Node>, container: &Arc<Container>, error: &Error) -> Error {
    let message = chain(error);
    let failure = StartFailure { at: unix_nanos(), message: message.clone() };
    if let Err(error) = container.update(|record| record.start_failure = Some(failure.clone())).await {
        tracing::warn!(container = container.id, "{}", chain(&error));
    }
    if container.set_state(ContainerState::Exited(start_error(&failure))) {
        feed::of_container(node, feed::Kind::ContainerStoppedEvent, container);
    }
    super::stop::forget(container).await;
    let (layout, owned) = (node.layout.clone(), container.clone());
    let removed = tokio::task::spawn_blocking(move || {
        // Which ends a program that runs, too: its poststart hooks may have said no.
        let removed = Cgroup::new(&layout, &owned.record().cgroup)?.remove();
        hooks::poststop(&owned);
        removed
    })
    .await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(container = container.id, "{}", chain(&error));
    }
    Error::Start { id: container.id.clone(), message }
}
