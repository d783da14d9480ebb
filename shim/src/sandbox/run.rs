//! RunPodSandbox: record, then network beside monitor (with users of the pod's own: monitor, users,
//! network), then pause. Whatever fails, the one teardown
//! path of `sandbox::stop` undoes what the record says. Called by the RPC handler, in a task of its
//! own that outlives the caller.

use std::fs;
use std::sync::Arc;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use gantry_proto::cri;
use gantry_proto::monitor::{MakeUsers, NamespaceMode, StartSandbox, UserMapping, request};

use super::{cgroup_placement, files, monitor_launch, network, scope, stop};
use crate::cgroup::{self, Cgroup, Layout, Resources};
use crate::container::labels;
use crate::error::Error;
use crate::handler;
use crate::node::{Node, new_id};
use crate::seccomp;
use crate::spec::container::resources;
use crate::spec::sandbox::SandboxSpec;
use crate::spec::selinux::SelinuxOptions;
use crate::spec::{self, profiles};
use crate::status;
use crate::store::event_order::Kind;
use crate::store::names::{Claim, NameTaken, fingerprint};
use crate::store::record::{self, OciProgram, Process, SandboxRecord, VERSION};
use crate::store::{Sandbox, SandboxState};
use gantry_base::timeline::unix_nanos;

/// Of pause: like Kubernetes' own sandboxes, killed after everything that matters less.
const PAUSE_OOM_SCORE: i32 = -998;

/// Bytes of a pod's /dev/shm, as containerd gives it.
const SHM_SIZE: u64 = 64 << 20;

/// In errors.
const KIND: &str = "sandbox";

/// Makes a sandbox and returns its id.
///
/// # Errors
/// The failed step; nothing is left behind, or the error says what is.
pub(crate) async fn run(node: Arc<Node>, request: cri::RunPodSandboxRequest) -> Result<String, Error> {
    let asked = fingerprint(&request);
    let config = request.config.unwrap_or_default();
    let named = request.runtime_handler;
    spec::handler::of(&node.config.handlers, "runtime_handler", &named)?;
    let unset_seccomp_profile = node.config.unset_seccomp_of(&named);
    let unset_seccomp = profiles::unset_seccomp_profile(&node.config, unset_seccomp_profile.as_deref());
    let spec = SandboxSpec::new(config, &unset_seccomp)?;
    let oci = oci_runtime(&node, &named, &spec).await?;
    if let (Some(_), Err(why)) = (&spec.users, &node.user_namespaces) {
        return Err(Error::NoUserNamespaces(why.clone()));
    }
    let id = new_id()?;
    let name = spec.pod.reserved_name();
    let reservation = match node.store.names.claim(KIND, &name, &id, &asked).await? {
        Claim::Mine(reservation) => reservation,
        // A caller that gave up waiting asks again: it gets the sandbox that was made.
        Claim::Done(id) if is_ready(&node, &id) => return Ok(id),
        Claim::Done(id) => return Err(NameTaken { kind: KIND, name, id }.into()),
    };
    let folder = node.sandbox_folder(&id);
    let record = SandboxRecord {
        runtime_handler: named,
        oci,
        unset_seccomp_profile,
        ..new_record(&node, &id, &spec, asked)?
    };
    let sandbox = Arc::new(Sandbox::new(record, folder, SandboxState::Starting));
    node.store.add_sandbox(sandbox.clone());
    failpoint!("run.named");
    let _operation = sandbox.begin_operation().await;
    match create(&node, &sandbox, &spec).await {
        Ok(()) => {
            reservation.commit();
            tracing::info!(sandbox = id, pod = sandbox.record().pod.name, "sandbox is ready");
            Ok(id)
        }
        Err(failure) => Err(match stop::teardown_and_forget(&node, &sandbox).await {
            Ok(()) => failure,
            Err(cleanup) => {
                // Listed as not ready until somebody removes it.
                reservation.commit();
                Error::Undo { failure: Box::new(failure), cleanup: chain(&cleanup) }
            }
        }),
    }
}

/// The program that will make the sandbox's containers, where its handler has one.
async fn oci_runtime(node: &Node, handler: &str, spec: &SandboxSpec) -> Result<Option<OciProgram>, Error> {
    let Some(oci) = node.config.oci(handler) else { return Ok(None) };
    let (name, program) = (handler.to_owned(), oci.program.clone());
    tokio::task::spawn_blocking(move || handler::program::check(&name, &program)).await??;
    if spec.users.is_some() {
        return Err(Error::HandlerUsers(handler.to_owned()));
    }
    Ok(Some(oci))
}

fn is_ready(node: &Node, id: &str) -> bool {
    node.store.sandbox(id).is_ok_and(|sandbox| sandbox.state() == SandboxState::Ready)
}

fn new_record(node: &Node, id: &str, spec: &SandboxSpec, request: String) -> Result<SandboxRecord, Error> {
    let root = &node.config.cgroup_root;
    let placement = match node.config.systemd_cgroup {
        true => cgroup_placement::of_systemd(root, &spec.cgroup_parent, id)?,
        false => cgroup_placement::of_cgroupfs(root, &spec.cgroup_parent, id)?,
    };
    Ok(SandboxRecord {
        version: VERSION,
        id: id.to_owned(),
        boot_id: node.boot_id.clone(),
        pod: spec.pod.clone(),
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
        log_directory: spec.log_directory.clone(),
        hostname: hostname(spec),
        runtime_handler: String::new(),
        oci: None,
        unset_seccomp_profile: None,
        request,
        namespaces: spec.modes,
        users: spec.users.as_ref().and_then(record::Users::new),
        privileged: spec.privileged,
        process_label: labels::selinux(node, &spec.selinux).0,
        cgroup_parent: placement.parent,
        owns_cgroup_parent: placement.owned,
        scope: placement.scope,
        created_at: unix_nanos(),
        network: None,
        monitor: None,
        pause: None,
        complete: false,
        stopped: false,
    })
}

/// The node's own name when the pod names none, as containerd has it.
pub(super) fn hostname(spec: &SandboxSpec) -> String {
    if spec.hostname.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        spec.hostname.clone()
    }
}

async fn create(node: &Arc<Node>, sandbox: &Arc<Sandbox>, spec: &SandboxSpec) -> Result<(), Error> {
    {
        // Off the async threads: the log folder may stand on a disk that hangs.
        let (sandbox, spec) = (sandbox.clone(), spec.clone());
        tokio::task::spawn_blocking(move || prepare(&sandbox, &spec)).await??;
    }
    // Both run to their end even when one fails: the teardown must not race with a plugin at work.
    let (networked, monitored) = match &spec.users {
        None => tokio::join!(create_network(node, sandbox, spec, None), start_monitor(node, sandbox, spec)),
        // A network namespace belongs to the users it was made by, and they are the monitor's to make
        // (runtime-traps 2.10).
        Some(users) => {
            let monitored = start_monitor(node, sandbox, spec).await;
            let held = match &monitored {
                Ok(_) => hold_users(sandbox, users, !spec.host_network).await.map(Some),
                Err(_) => Ok(None),
            };
            match held {
                Ok(Some(holder)) => (create_network(node, sandbox, spec, Some(holder)).await, monitored),
                other => (other.map(drop), monitored),
            }
        }
    };
    let (cgroup, seed) = match monitored {
        Ok(made) => made,
        Err(failure) => return Err(networked.err().unwrap_or(failure)),
    };
    let started = match networked {
        Ok(()) => start_pause(node, sandbox, spec, &cgroup).await,
        failed => failed,
    };
    // Pause keeps the scope open from now on, or nobody does.
    tokio::task::spawn_blocking(move || drop(seed)).await?;
    started?;
    failpoint!("run.pause-recorded"?);
    sandbox.update(|record| record.complete = true).await?;
    failpoint!("run.complete"?);
    sandbox.set_state(SandboxState::Ready);
    for kind in [Kind::ContainerCreatedEvent, Kind::ContainerStartedEvent] {
        node.container_events.send_sandbox_event(&node.store, kind, sandbox);
    }
    Ok(())
}

/// The network: a namespace of its own, or that of the process `holder`, and what CNI makes of it.
async fn create_network(
    node: &Arc<Node>,
    sandbox: &Arc<Sandbox>,
    spec: &SandboxSpec,
    holder: Option<Process>,
) -> Result<(), Error> {
    if spec.host_network {
        return Ok(());
    }
    let network = network::plan(node, &sandbox.record(), spec)?;
    // Recorded before it is made: after a crash the teardown knows what to look for.
    sandbox.update(|record| record.network = Some(network.clone())).await?;
    failpoint!("run.network-planned"?);
    {
        let _stage = sandbox.spans.stage("netns");
        network::make_netns(network.netns.clone(), holder).await?;
    }
    failpoint!("run.netns"?);
    let result = network::add(node, &sandbox.id, network, sandbox.spans.clone()).await?;
    failpoint!("run.attached"?);
    if status::addresses(&result).is_empty() {
        return Err(Error::NoAddress(sandbox.id.clone()));
    }
    let attached = |record: &mut SandboxRecord| {
        if let Some(network) = &mut record.network {
            network.result = Some(result);
        }
    };
    sandbox.update(attached).await?;
    failpoint!("run.network-recorded"?);
    Ok(())
}

async fn start_monitor(
    node: &Arc<Node>,
    sandbox: &Arc<Sandbox>,
    spec: &SandboxSpec,
) -> Result<(Cgroup, Option<scope::ScopeSeed>), Error> {
    let (client, process) = monitor_launch::start(node, &sandbox.id).await?;
    sandbox.set_monitor(Some(client));
    failpoint!("run.monitor-started"?);
    sandbox.update(|record| record.monitor = Some(process)).await?;
    failpoint!("run.monitor-recorded"?);
    let (owned, record, limits) = (node.clone(), sandbox.record(), resources(&spec.limits));
    let job = move || {
        let seed = scope::open(&owned, &record)?;
        let made = (cgroups(&owned.layout, &record, &limits)?, seed);
        failpoint!("run.cgroups"?);
        Ok::<_, Error>(made)
    };
    let made = tokio::task::spawn_blocking(job).await?;
    if let Err(Error::ScopeTaken(_)) = &made {
        // Before the teardown comes to it: another's pod runs in there.
        let anothers = |record: &mut SandboxRecord| {
            if let Some(scope) = &mut record.scope {
                scope.is_anothers = true;
            }
        };
        sandbox.update(anothers).await?;
    }
    made
}

/// Has the monitor make the pod's user namespace; the process is in it, and in its network, until pause is.
async fn hold_users(sandbox: &Sandbox, users: &UserMapping, network: bool) -> Result<Process, Error> {
    let _stage = sandbox.spans.stage("users");
    let client = sandbox.monitor().ok_or_else(|| Error::SandboxNotReady(sandbox.id.clone()))?;
    let wanted = MakeUsers { users: Some(*users), network };
    let held = client.start(request::Op::MakeUsers(wanted)).await?;
    failpoint!("run.users-held"?);
    Ok(Process { pid: held.pid, start_time_ticks: held.start_time_ticks })
}

/// Pause's cgroup, below the pod's. A pod cgroup that the caller named is the caller's to limit, one
/// that we made is ours.
fn cgroups(layout: &Layout, record: &SandboxRecord, limits: &Resources) -> Result<Cgroup, cgroup::Error> {
    let pause = Cgroup::new(layout, &record.pause_cgroup())?;
    pause.create()?;
    if record.owns_cgroup_parent {
        Cgroup::new(layout, &record.cgroup_parent)?.apply(limits)?;
    }
    Ok(pause)
}

fn prepare(sandbox: &Sandbox, spec: &SandboxSpec) -> Result<(), Error> {
    let wrap = |path: &std::path::Path, source| Error::Files { what: "make", path: path.to_owned(), source };
    let root = sandbox.folder.join("root");
    fs::create_dir_all(&root).map_err(|source| wrap(&root, source))?;
    failpoint!("run.folder"?);
    record::write(&sandbox.folder, &*sandbox.record())?;
    failpoint!("run.record"?);
    files::write(&sandbox.folder, spec)?;
    failpoint!("run.files"?);
    if !spec.log_directory.is_empty() {
        let folder = std::path::Path::new(&spec.log_directory);
        fs::create_dir_all(folder).map_err(|source| wrap(folder, source))?;
    }
    Ok(())
}

/// SELinux: pause has the label of the record, its files that level. A privileged pod's has none.
fn with_selinux_labels(node: &Node, spec: &SandboxSpec, process_label: &str) -> StartSandbox {
    let (_, mount_label) =
        labels::selinux(node, &SelinuxOptions::default().with_default_label(process_label));
    let process_label = if spec.privileged { String::new() } else { process_label.to_owned() };
    StartSandbox { process_label, mount_label, ..StartSandbox::default() }
}

async fn start_pause(
    node: &Node,
    sandbox: &Sandbox,
    spec: &SandboxSpec,
    cgroup: &Cgroup,
) -> Result<(), Error> {
    let _stage = sandbox.spans.stage("pause");
    let client = sandbox.monitor().ok_or_else(|| Error::SandboxNotReady(sandbox.id.clone()))?;
    let netns = sandbox.record().network.as_ref().map(|network| network.netns.display().to_string());
    // Pause has no capabilities.
    let filter = seccomp::filter(&spec.seccomp, 0)?;
    let start = StartSandbox {
        id: sandbox.id.clone(),
        hostname: hostname(spec),
        netns_path: netns.unwrap_or_default(),
        ipc: spec.ipc.into(),
        // A pid namespace of pause's own either way; SANDBOX says that containers join it.
        pid: NamespaceMode::into(spec.pid),
        cgroup: Some(cgroup.target()),
        sysctls: spec.sysctls.clone(),
        pause_path: node.programs.pause_path(),
        record_dir: sandbox.folder.display().to_string(),
        root_dir: sandbox.folder.join("root").display().to_string(),
        oom_score_adj: PAUSE_OOM_SCORE,
        shm_size: SHM_SIZE,
        host_network: spec.host_network,
        seccomp_filter: filter.program,
        seccomp_flags: filter.flags,
        users: spec.users,
        ..with_selinux_labels(node, spec, &sandbox.record().process_label)
    };
    let started = client.start(request::Op::StartSandbox(start)).await?;
    failpoint!("run.pause-started");
    let process = Process { pid: started.pid, start_time_ticks: started.start_time_ticks };
    sandbox.update(|record| record.pause = Some(process)).await?;
    Ok(())
}
