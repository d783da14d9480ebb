//! StartContainer: cgroup and limits, then the monitor clones. A start that fails leaves the container
//! EXITED, 128, StartError, with the failing step. Called by the RPC handler, in a task of its own.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use gantry_proto::monitor::{Hooks, StartContainer, request};
use prost::Message;

use super::{START_FILE, end, hooks, process, read_planned_start, start_error, target};
use crate::cgroup::{Cgroup, Layout};
use crate::error::Error;
use crate::handler::plan;
use crate::monitor_client::MonitorClient;
use crate::node::Node;
use crate::oom_counts;
use crate::spec::container::resources;
use crate::store::event_order::Kind;
use crate::store::record::{StartFailure, Started};
use crate::store::{Container, ContainerState, Sandbox, SandboxState};
use gantry_base::timeline::unix_nanos;
use gantry_monitor::user_mapping;

/// How long the child may take to its program: a mount source on a dead network disk never answers.
/// Shorter than the kubelet's own two minutes, so that it hears why.
const SET_UP: Duration = Duration::from_secs(100);

/// Starts a created container. One that runs already has been started by this very call, whose
/// answer was lost: that is success.
///
/// # Errors
/// The failing step.
pub(crate) async fn start(node: Arc<Node>, container: Arc<Container>) -> Result<(), Error> {
    let _operation = container.begin_operation().await;
    match container.state() {
        ContainerState::Created => {}
        ContainerState::Running(_) => return Ok(()),
        state @ ContainerState::Exited(_) => {
            return Err(Error::WrongState {
                id: container.id.clone(),
                state: state.reason_text(),
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
        let start = complete_start(&node, &sandbox, &container, start).await?;
        let _stage = container.spans.stage("clone");
        let hooks = own_hooks(&start);
        start_in_monitor(&client, &container, start, hooks).await
    };
    match attempt.await {
        Ok(started) => record_started(&node, &sandbox, &container, &started).await,
        Err(error) => Err(fail(&node, &container, &error).await),
    }
}

/// Has the monitor start the container, and runs the hooks that are due once its program runs.
async fn start_in_monitor(
    client: &MonitorClient,
    container: &Arc<Container>,
    start: StartContainer,
    hooks: Option<Hooks>,
) -> Result<gantry_proto::monitor::Started, Error> {
    let start = client.start(request::Op::StartContainer(start));
    let Ok(started) = tokio::time::timeout(SET_UP, start).await else {
        return Err(Error::StartStuck { id: container.id.clone(), seconds: SET_UP.as_secs() });
    };
    let started = started?;
    hooks::poststart(container, hooks, started.pid).await?;
    Ok(started)
}

/// Goes on with a start that another life of the runtime has asked for: nobody has taken note of its answer. It may
/// be under way, and the process that its monitor names may not be the one that goes on; or its poststart hooks have
/// not run. In the background: nothing says how long that takes.
pub(crate) async fn resume(node: Arc<Node>, sandbox: Arc<Sandbox>, container: Arc<Container>) {
    let _operation = container.begin_operation().await;
    let (ContainerState::Created, Some(client)) = (container.state(), sandbox.monitor()) else { return };
    let owned = container.clone();
    let attempt = async {
        let planned = tokio::task::spawn_blocking(move || read_planned_start(&owned)).await??;
        // For the answer alone: nothing can be made of it where the start is over by now.
        let asked = StartContainer { id: container.id.clone(), ..StartContainer::default() };
        start_in_monitor(&client, &container, asked, own_hooks(&planned)).await
    };
    let resumed = match attempt.await {
        Ok(started) => record_started(&node, &sandbox, &container, &started).await,
        // A start that was over has ended, which its monitor tells, or has told.
        Err(Error::Monitor(_))
            if tokio::time::timeout(end::REPORT, container.wait_for_end()).await.is_ok() =>
        {
            Ok(())
        }
        Err(error) => Err(fail(&node, &container, &error).await),
    };
    if let Err(error) = resumed {
        tracing::error!(container = container.id, "{}", chain(&error));
    }
}

/// The start with what has to be said of the moment: another container may have ended since create looked.
async fn complete_start(
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
    let job = move || plan::complete_start(&mut start, &sandbox, &container, target).map(|()| start);
    tokio::task::spawn_blocking(job).await?
}

/// Takes note of a container whose program runs.
async fn record_started(
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
    if let Ok(pidfd) = process::open(process) {
        container.set_state(ContainerState::Running(Arc::new(pidfd)));
        oom_counts::watch_container(node, container, Some(0));
    }
    if let Err(error) = recording.await {
        super::stop::kill(container).await?;
        return Err(error.into());
    }
    failpoint!("start.recorded");
    // One that recovery has just found is on its way to ready, or will be told as lost.
    if sandbox.state() == SandboxState::NotReady {
        // Stopped meanwhile: the teardown may have passed this container by.
        super::stop::kill(container).await?;
        if sandbox.monitor().is_none() {
            // So may have done who ended what its dead monitor had held.
            end::end_rest(node, &sandbox.id).await;
        }
        return Err(Error::SandboxNotReady(sandbox.id.clone()));
    }
    tracing::info!(container = container.id, pid = process.pid, "container started");
    node.container_events.send_container_event(&node.store, Kind::ContainerStartedEvent, container);
    Ok(())
}

/// The hooks that are ours to run: an OCI runtime runs those of its containers itself.
fn own_hooks(start: &StartContainer) -> Option<Hooks> {
    start.hooks.clone().filter(|_| start.external.is_none())
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
    cgroup.apply(&resources(&record.linux_resources()?))?;
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
        node.container_events.send_container_event(&node.store, Kind::ContainerStoppedEvent, container);
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
