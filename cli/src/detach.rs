//! `gantry run --detach`: a runtime and an agent in the background. Owns starting both, waiting until
//! they know every pod, and telling how to reach them; never ends a pod. Called by run.

pub(crate) mod daemon;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gantry_agent::manifest::Text;
use gantry_proto::cri::VersionRequest;
use gantry_proto::operator::ListPodsRequest;
use tokio::net::UnixStream;

use crate::args::{RunArgs, RuntimeFlags};
use crate::run::turn::{self, PodOwner};
use crate::{apply, client, manifests, output, runtime_client};
use daemon::Daemon;
pub(crate) use words::reach;

/// For either of them to answer: a runtime first looks at what an earlier one has left.
const PATIENCE: Duration = Duration::from_secs(60);
/// For one that is there already.
const ANSWER: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// Where the runtime of `gantry run --detach` serves.
pub(crate) fn runtime_socket(state: &Path) -> PathBuf {
    state.join("gantry.sock")
}

/// Starts what does not run yet; returns when the agent has all of these pods.
pub(crate) async fn detach(mut args: RunArgs, uids: Vec<String>, texts: Vec<Text>) -> Result<ExitCode> {
    let agent_socket = args.pods.agent_socket.clone();
    let state = args.flags.state.clone();
    let reach = reach(&state, &agent_socket);
    let root_dir = args.root_dir.clone().unwrap_or_else(|| args.flags.root.join("kubelet"));
    // Its lock is for the agent that is started below.
    match turn::wait(&root_dir, &agent_socket, &state, args.pods.manifest_dir.is_none()).await? {
        PodOwner::Ours(root) => drop(root),
        PodOwner::Theirs => return apply::beside(&agent_socket, texts).await,
    }
    if args.pods.files.iter().any(|file| file.as_os_str() == "-" || manifests::is_address(file)) {
        bail!(
            "--detach needs files: what standard input or a URL said may be another thing when the agent starts again"
        );
    }
    make_absolute(&mut args)?;
    std::fs::create_dir_all(&state).with_context(|| format!("make the folder {}", state.display()))?;
    let socket = runtime_socket(&state);
    let runtime = if serves(&socket, || runtime_answers(&socket)).await {
        output::say(&format!("a runtime serves at {} already: it is used", socket.display()));
        None
    } else {
        let mut runtime = Daemon::start(&words::runtime(&args.flags, &socket), &state.join("runtime.log"))?;
        if let Err(error) = until_it_answers(&mut runtime, &socket).await {
            runtime.end();
            return Err(error);
        }
        Some(runtime)
    };
    let mut agent = Daemon::start(&words::agent(&args, &socket), &state.join("agent.log"))?;
    if let Err(error) = until_all_are_there(&mut agent, &agent_socket, &uids).await {
        agent.end();
        // Pods that have begun stay, and the same command takes them up; a runtime that was started
        // for nothing must not stay.
        if let Some(runtime) = runtime {
            runtime.end();
        }
        return Err(error);
    }
    let pods = match uids.len() {
        1 => "1 pod runs".to_owned(),
        count => format!("{count} pods run"),
    };
    let ps = if reach.is_empty() { String::new() } else { words::agent_flag(&agent_socket) };
    output::say(&format!(
        "{pods} in the background: `gantry ps{ps}` shows, `gantry down{reach}` ends everything; logs are in {}",
        state.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Whether a runtime answers at `socket`.
async fn runtime_answers(socket: &Path) -> bool {
    let Ok(channel) = runtime_client::dial_runtime(socket).await else { return false };
    runtime_client::runtime(channel).version(VersionRequest::default()).await.is_ok()
}

/// Whether somebody is there. One that was just killed may still be dialled, for a moment, but does
/// not answer; one that hangs is there.
async fn serves<F: Future<Output = bool>>(socket: &Path, answers: impl Fn() -> F) -> bool {
    let look = async {
        while UnixStream::connect(socket).await.is_ok() {
            if answers().await {
                return true;
            }
            tokio::time::sleep(STEP).await;
        }
        false
    };
    tokio::time::timeout(ANSWER, look).await.unwrap_or(true)
}

async fn until_it_answers(runtime: &mut Daemon, socket: &Path) -> Result<()> {
    let begun = Instant::now();
    while !runtime_answers(socket).await {
        runtime.check()?;
        if begun.elapsed() > PATIENCE {
            bail!("the runtime does not answer at {}\n{}", socket.display(), runtime.last_words());
        }
        tokio::time::sleep(STEP).await;
    }
    Ok(())
}

async fn until_all_are_there(agent: &mut Daemon, socket: &Path, uids: &[String]) -> Result<()> {
    let begun = Instant::now();
    loop {
        // Dialled anew: the first ones may find no socket, or one of an agent that is gone.
        if let Ok(mut client) = client::dial(socket).await
            && let Ok(list) = client.list_pods(ListPodsRequest::default()).await
        {
            let pods = list.into_inner().pods;
            if uids.iter().all(|uid| pods.iter().any(|pod| pod.uid == *uid)) {
                return Ok(());
            }
        }
        agent.check()?;
        if begun.elapsed() > PATIENCE {
            bail!("the agent does not answer at {}\n{}", socket.display(), agent.last_words());
        }
        tokio::time::sleep(STEP).await;
    }
}

/// A daemon's folder is /.
fn make_absolute(args: &mut RunArgs) -> Result<()> {
    let RunArgs { pods, flags, root_dir, detach: _, container_runtime_endpoint: _ } = args;
    let RuntimeFlags {
        root,
        state,
        cni_conf_dir,
        cni_bin_dir,
        cni_external: _,
        cni_cache_dir,
        cni_data_dir,
        netns_dir,
        cgroup_root: _,
        systemd_cgroup: _,
        registry_hosts_dir,
        registry_auth_file,
        pinned_images: _,
        prepull_images: _,
        pull_without: _,
        programs_dir,
        // Their paths are absolute.
        handlers: _,
        cdi_spec_dirs,
        enable_cdi: _,
        security: _,
        // A path of it is absolute.
        tracing: _,
        boot_id_file,
    } = flags;
    let paths = [root, state, cni_conf_dir, cni_bin_dir, cni_cache_dir, cni_data_dir, netns_dir];
    let more = [registry_hosts_dir, boot_id_file, &mut pods.agent_socket, &mut pods.pod_logs_dir];
    let maybe = [registry_auth_file, programs_dir, &mut pods.manifest_dir, root_dir];
    let all = paths
        .into_iter()
        .chain(more)
        .chain(maybe.into_iter().flatten())
        .chain(cdi_spec_dirs)
        .chain(&mut pods.files);
    for path in all {
        *path = std::path::absolute(&path).with_context(|| format!("find {}", path.display()))?;
    }
    Ok(())
}
