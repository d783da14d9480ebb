//! `gantry run`: pods from files in the foreground. Owns the order of start and end, the
//! signals and the exit code; never decides about a pod. Called by main.

#![expect(clippy::disallowed_methods, reason = "the handle is kept and aborted")]

mod narrate;
mod pulls;
pub(crate) mod signals;
mod status_printer;
mod summary;
pub(crate) mod turn;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_agent::kubelet::session::{News, Session, SessionConfig, SessionDeps};
use gantry_agent::manifest::{self, Text};
use gantry_agent::operator::socket::Socket;
use gantry_agent::pod::status::{Phase, PodStatus};
use gantry_agent::pod::worker::PodHandle;
use gantry_agent::runtime::cri;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::args::{PodsFlags, RunArgs};
use crate::in_process::InProcess;
use crate::{apply, detach, manifests, output, runtime};
use narrate::{Form, Narrators};
use signals::Signals;
use turn::PodOwner;

/// The exit code for a file that is wrong.
pub(crate) const BAD_MANIFEST: u8 = 2;
/// As a shell reports a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// For the last lines of containers that have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// `stages`: each stage of a pod's start is told.
pub(crate) async fn run(args: Box<RunArgs>, stages: bool) -> Result<ExitCode> {
    let Some((texts, manifest::Loaded { pods, objects, notes })) = read(&args.pods).await else {
        return Ok(ExitCode::from(BAD_MANIFEST));
    };
    if !may_run("run") {
        return Ok(ExitCode::FAILURE);
    }
    notes.iter().for_each(|note| output::say(note));
    if args.detach {
        let uids = pods.iter().map(|pod| pod.uid.to_string()).collect();
        return detach::detach(*args, uids, texts).await;
    }
    let RunArgs { pods: wanted, detach: _, flags, container_runtime_endpoint, root_dir } = *args;
    let PodsFlags { files: _, manifest_dir, agent_socket, pod_logs_dir } = wanted;
    let root_dir = root_dir.unwrap_or_else(|| flags.root.join("kubelet"));
    // First of all what tells whether another agent is here already.
    let PodOwner::Ours(root) =
        turn::wait(&root_dir, &agent_socket, &flags.state, manifest_dir.is_none()).await?
    else {
        return apply::beside(&agent_socket, texts).await;
    };
    let cgroup_root = flags.cgroup_root.clone();
    let mut signals = Signals::new()?.with_hangup()?;
    let socket = Socket::bind(&agent_socket).await.context("offer the operator API")?;
    let (in_process, channel) = match container_runtime_endpoint {
        Some(endpoint) => (None, cri::connect(&endpoint).await?),
        None => {
            let (runtime, channel) = InProcess::start(runtime::standalone_config(flags)?).await?;
            (Some(runtime), channel)
        }
    };
    // Safe unless a pod says otherwise.
    let config = SessionConfig {
        pods,
        objects,
        manifest_dir,
        agent_socket,
        pod_logs_dir,
        cgroup_root,
        seccomp_default: true,
    };
    let deps = SessionDeps { root: &root, channel: channel.clone(), socket, tell };
    let session = Session::build(config, deps).await?;
    let progress = tokio::spawn(pulls::show(session.agent().watch_pods(), channel));
    let code = live(session, &mut signals, progress, stages).await?;
    if let Some(runtime) = in_process {
        runtime.stop().await?;
    }
    Ok(code)
}

/// Whether this user may; says so when not.
pub(crate) fn may_run(command: &str) -> bool {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        output::say(&format!(
            "error: `gantry {command}` makes namespaces, mounts and cgroups, which user {} may not: run it as \
             root, as in `sudo gantry {command} …`",
            user.as_raw()
        ));
    }
    user.is_root()
}

/// A problem of a session, which may quote a foreign file.
pub(crate) fn tell(problem: &str) {
    output::say(&format!("error: {}", output::one_line(problem)));
}

/// What the files say and describe; none when it is told what is wrong with them.
async fn read(wanted: &PodsFlags) -> Option<(Vec<Text>, manifest::Loaded)> {
    let texts = manifests::read(&wanted.files).await;
    let loaded = texts.and_then(|texts| Ok((manifest::load_texts(&texts)?, texts)));
    let loaded = loaded.map(|(loaded, texts)| (texts, loaded));
    let problem = match &loaded {
        Ok((_, loaded)) => pointless(loaded.pods.len(), wanted),
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(problem) = problem {
        output::say(&format!("error: {problem}"));
        return None;
    }
    loaded.ok()
}

/// Why nothing would ever run; a folder may get its files later, but not by another name.
fn pointless(pods: usize, wanted: &PodsFlags) -> Option<String> {
    match &wanted.manifest_dir {
        Some(folder) => std::fs::metadata(folder).err().map(|error| {
            format!("--manifest-dir {}: {error}: make the folder, or mend its name", folder.display())
        }),
        None if pods == 0 => {
            let files: Vec<String> = wanted.files.iter().map(|file| file.display().to_string()).collect();
            Some(format!("no pod in {}: add a file with kind: Pod, or --manifest-dir", files.join(", ")))
        }
        None => None,
    }
}

/// From the first pod to the last.
async fn live(
    mut session: Session,
    signals: &mut Signals,
    progress: JoinHandle<()>,
    stages: bool,
) -> Result<ExitCode> {
    let several = session.follows() || session.agent().pods().len() > 1;
    let mut narrators = Narrators::new(Form { several, stages });
    let over = until_over(&mut session, signals, &mut narrators).await;
    progress.abort();
    output::footer(Vec::new());
    let Some(over) = over else {
        output::say("leaving at once: what runs goes on; `gantry run` on the same files takes it up again");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if tokio::time::timeout(DRAIN, narrators.finish()).await.is_err() {
        tracing::warn!("not all output of the containers could be shown in time");
    }
    output::say(&summary::table(over.iter().map(|(handle, status)| (handle.pod.full_name(), status))));
    // Cancel-safe: leaving at once is what was asked for.
    let left = tokio::select! {
        left = session.clean_up() => left?,
        () = signals.next() => vec!["interrupted before everything was removed".to_owned()],
    };
    for problem in &left {
        output::say(&format!("error: left behind: {problem}"));
    }
    let failed = over.iter().any(|(_, status)| status.phase == Phase::Failed && !status.killed);
    Ok(if failed || !left.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Until no pod runs or will run; while a folder is followed, more may come. The first signal asks
/// them to end, the second kills them, the third gives up: none.
async fn until_over(
    session: &mut Session,
    signals: &mut Signals,
    narrators: &mut Narrators,
) -> Option<Vec<(PodHandle, PodStatus)>> {
    let mut over = Box::pin(all_over(session.agent().watch_pods()));
    let mut count = 0;
    loop {
        narrators.meet(&session.agent().pods());
        let may_end = !session.follows();
        // All arms are cancel-safe: the wait is polled by reference, news and signals are kept.
        tokio::select! {
            over = &mut over, if may_end => return Some(over),
            News::Folder | News::Added | News::Ending(_) = session.next() => continue,
            () = signals.next() => count += 1,
        }
        match count {
            1 => {
                output::say("stopping: press Ctrl-C again to kill");
                session.stop_following();
                session.agent().kill_all(None, "interrupted");
            }
            2 => {
                output::say("killing");
                session.agent().kill_all(Some(Duration::ZERO), "interrupted twice");
            }
            _ => return None,
        }
    }
}

/// Waits until all pods that there are by then are over.
async fn all_over(mut pods: watch::Receiver<Arc<[PodHandle]>>) -> Vec<(PodHandle, PodStatus)> {
    loop {
        let handles = pods.borrow_and_update().clone();
        let mut over = Vec::with_capacity(handles.len());
        for handle in handles.iter() {
            over.push((handle.clone(), handle.wait(PodStatus::is_over).await));
        }
        if !pods.has_changed().unwrap_or(false) {
            return over;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    use crate::args::{Cli, Command};

    fn flags(line: &[&str]) -> PodsFlags {
        match Cli::try_parse_from(["gantry", "run"].iter().chain(line)).unwrap().command {
            Command::Run(args) => args.pods,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_would_run_nothing_is_refused() {
        assert_eq!(pointless(1, &flags(&["a.yaml"])), None);
        let text = pointless(0, &flags(&["a.yaml", "b.yaml"])).unwrap();
        assert!(text.starts_with("no pod in a.yaml, b.yaml: "), "{text}");
        assert_eq!(pointless(0, &flags(&["a.yaml", "--manifest-dir=/"])), None);
        for line in [&["--manifest-dir=/nonexistent"][..], &["a.yaml", "--manifest-dir=/nonexistent"]] {
            let text = pointless(1, &flags(line)).unwrap();
            assert!(text.starts_with("--manifest-dir /nonexistent: No such file"), "{text}");
        }
    }
}
