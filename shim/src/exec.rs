//! Execs: further processes in a running container. Owns the pipes and terminals between them and
//! whoever asked; the process itself is the monitor's child, which writes straight into them. Called
//! by the RPC handler of ExecSync and by the streaming server.

pub(crate) mod output;
pub(crate) mod terminal;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gantry_proto::cri;
use gantry_proto::monitor::{self, SignalExec, StartContainer, request};
use rustix::pipe::PipeFlags;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::container;
use crate::error::Error;
use crate::handler::plan;
use crate::monitor_client::{self, MonitorClient, MonitorNotice};
use crate::node::output_budget::OutputBudget;
use crate::node::{Node, new_id};
use crate::spec;
use crate::store::{Container, ContainerState};
use output::{CollectedOutput, OutputOrigin, OutputPermits};
use terminal::Terminal;

/// How long output may still come when the program has ended: what it left behind may hold the pipes
/// for ever (containerd#7832).
pub(crate) const DRAIN: Duration = Duration::from_secs(2);

/// How long a killed process has to be gone.
const KILL_END: Duration = Duration::from_secs(10);

const SIGKILL: i32 = 9;

/// What to run, and which streams are wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExecRequest {
    pub cmd: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A running exec with its streams; a terminal is all three in one.
#[derive(Debug)]
pub(crate) struct Exec {
    pub stdin: Option<pipe::Sender>,
    pub stdout: Option<pipe::Receiver>,
    pub stderr: Option<pipe::Receiver>,
    pub terminal: Option<Terminal>,
    pub process: ExecProcess,
}

/// The process of an exec.
#[derive(Debug)]
pub(crate) struct ExecProcess {
    id: String,
    sandbox: String,
    client: MonitorClient,
    notice: oneshot::Receiver<MonitorNotice>,
}

impl ExecProcess {
    /// Waits for its end: exit code, or 128 + signal.
    ///
    /// # Errors
    /// When the monitor, and with it the pod, is gone.
    pub(crate) async fn wait(&mut self) -> Result<i32, Error> {
        match (&mut self.notice).await {
            Ok(MonitorNotice::Ended(code)) => Ok(code),
            _ => Err(monitor_client::Error::Gone { sandbox: self.sandbox.clone() }.into()),
        }
    }

    /// Kills it and its process group, never the container, and waits a while for its end.
    async fn kill(&mut self) {
        kill(&self.client, &self.id).await;
        if tokio::time::timeout(KILL_END, self.wait()).await.is_err() {
            tracing::warn!(exec = self.id, "the process of an exec survives SIGKILL");
        }
    }
}

async fn kill(client: &MonitorClient, id: &str) {
    let signal = SignalExec { id: id.to_owned(), signal: SIGKILL };
    if let Err(error) = client.send_request(request::Op::SignalExec(signal)).await {
        tracing::warn!(exec = id, "{}", gantry_base::error::chain(&error));
    }
}

/// The monitor of a running container.
///
/// # Errors
/// When the container does not run.
pub(crate) fn monitor_of(node: &Node, container: &Container) -> Result<MonitorClient, Error> {
    if !matches!(container.state(), ContainerState::Running(_)) {
        return Err(Error::NotRunning(container.cri_state()));
    }
    let sandbox = node.store.sandbox(&container.sandbox_id)?;
    sandbox.monitor().ok_or_else(|| Error::SandboxNotReady(sandbox.id.clone()))
}

/// Starts a process in a container; returns once its program runs.
///
/// # Errors
/// The step that failed.
pub(crate) async fn spawn(
    node: &Node,
    container: &Arc<Container>,
    wanted: ExecRequest,
) -> Result<Exec, Error> {
    let client = monitor_of(node, container)?;
    let id = new_id()?;
    prepare(client, id, container, wanted).await?.start().await
}

/// Everything ready but the process: an ExecSync that is timed out in the middle of its start still
/// knows what to kill.
struct PreparedExec {
    id: String,
    sandbox: String,
    client: MonitorClient,
    request: monitor::Exec,
    descriptors: Vec<OwnedFd>,
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    console: Option<OwnedFd>,
}

async fn prepare(
    client: MonitorClient,
    id: String,
    container: &Arc<Container>,
    wanted: ExecRequest,
) -> Result<PreparedExec, Error> {
    if wanted.cmd.is_empty() {
        return Err(spec::Error::Missing("cmd").into());
    }
    let owned = container.clone();
    let ExecRequest { cmd, tty, stdin, stdout, stderr } = wanted;
    let job = move || {
        // The container's own start: an exec is as confined as it.
        let mut process = exec_process(container::read_planned_start(&owned)?, cmd, tty);
        plan::complete_exec(&mut process, tty)?;
        Ok::<_, Error>(process)
    };
    let process = tokio::task::spawn_blocking(job).await??;
    let mut prepared = PreparedExec {
        id: id.clone(),
        sandbox: container.sandbox_id.clone(),
        client,
        request: monitor::Exec {
            id,
            container_id: container.id.clone(),
            process: Some(process),
            tty,
            stdin: stdin && !tty,
            stdout: stdout && !tty,
            stderr: stderr && !tty,
        },
        descriptors: Vec::new(),
        stdin: None,
        stdout: None,
        stderr: None,
        console: None,
    };
    prepared.open_streams()?;
    Ok(prepared)
}

impl PreparedExec {
    /// One socket for a terminal, else a pipe for each stream that is asked for.
    fn open_streams(&mut self) -> Result<(), Error> {
        let streams = |source: io::Error| Error::Streams("make the streams of the exec", source);
        let monitor::Exec { tty, stdin, stdout, stderr, .. } = self.request;
        if tty {
            let (ours, theirs) = UnixStream::pair().map_err(streams)?;
            self.console = Some(ours.into());
            self.descriptors.push(theirs.into());
            return Ok(());
        }
        let pair = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| streams(error.into()));
        if stdin {
            let (theirs, ours) = pair()?;
            self.stdin = Some(pipe::Sender::from_owned_fd(ours).map_err(streams)?);
            self.descriptors.push(theirs);
        }
        for (wanted, slot) in [(stdout, &mut self.stdout), (stderr, &mut self.stderr)] {
            if wanted {
                let (ours, theirs) = pair()?;
                *slot = Some(pipe::Receiver::from_owned_fd(ours).map_err(streams)?);
                self.descriptors.push(theirs);
            }
        }
        Ok(())
    }

    async fn start(self) -> Result<Exec, Error> {
        let op = request::Op::Exec(self.request);
        let notice = self.client.open(op, &self.id, self.descriptors).await?;
        let terminal = match self.console {
            // It was sent before the monitor said that the program runs.
            Some(socket) => Some(
                gantry_monitor::descriptors::receive_one(&socket)
                    .and_then(Terminal::new)
                    .map_err(|source| Error::Streams("receive the terminal of the exec", source))?,
            ),
            None => None,
        };
        let process = ExecProcess { id: self.id, sandbox: self.sandbox, client: self.client, notice };
        Ok(Exec { stdin: self.stdin, stdout: self.stdout, stderr: self.stderr, terminal, process })
    }
}

/// The exec's process: all of the container's but the program, and what only a start needs.
fn exec_process(start: StartContainer, cmd: Vec<String>, tty: bool) -> StartContainer {
    let mut process = StartContainer {
        args: cmd,
        tty: false,
        stdin: false,
        stdin_once: false,
        rootfs: None,
        mounts: Vec::new(),
        masked_paths: Vec::new(),
        readonly_paths: Vec::new(),
        devices: Vec::new(),
        log_path: String::new(),
        record_dir: String::new(),
        hooks: None,
        ..start
    };
    if tty {
        // As containerd: whatever the image says, the client's terminal is what it is.
        process.env.retain(|pair| !pair.starts_with(b"TERM="));
        process.env.push(b"TERM=xterm".to_vec());
    }
    process
}

/// ExecSync: runs a command to its end and returns what it wrote, and the room that it takes. A command whose caller has gone is killed, as
/// under containerd: nobody would ever see it.
///
/// # Errors
/// When it can't be started, or takes longer than the request allows.
pub(crate) async fn exec_sync(
    node: Arc<Node>,
    request: cri::ExecSyncRequest,
    gone: oneshot::Receiver<Infallible>,
) -> Result<(cri::ExecSyncResponse, OutputPermits), Error> {
    let container = node.store.container(&request.container_id)?;
    let limit = u64::try_from(request.timeout).ok().filter(|seconds| *seconds > 0);
    let wanted = ExecRequest { cmd: request.cmd, stdout: true, stderr: true, ..ExecRequest::default() };
    run_to_end(&node, &container, wanted, limit, gone).await.map_err(|error| Error::Exec(Box::new(error)))
}

async fn run_to_end(
    node: &Node,
    container: &Arc<Container>,
    wanted: ExecRequest,
    limit: Option<u64>,
    gone: oneshot::Receiver<Infallible>,
) -> Result<(cri::ExecSyncResponse, OutputPermits), Error> {
    let client = monitor_of(node, container)?;
    let prepared = prepare(client.clone(), new_id()?, container, wanted).await?;
    let id = prepared.id.clone();
    let over = async {
        let late = async {
            match limit {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = late => Error::ExecTimeout(go_duration(limit.unwrap_or_default())),
            _ = gone => Error::CallerGone,
        }
    };
    tokio::pin!(over);
    let mut exec = tokio::select! {
        started = prepared.start() => started?,
        // In a frozen container, say, no program is ever reached.
        over = &mut over => {
            kill(&client, &id).await;
            return Err(over);
        }
    };
    let mut output = ExecOutput::default();
    let ended = output.follow(&mut exec, (&node.exec_output_budget, &container.id), over).await;
    match ended? {
        Ok(code) => Ok(output.response(code)),
        Err(over) => {
            exec.process.kill().await;
            Err(over)
        }
    }
}

/// What an ExecSync has read.
#[derive(Debug, Default)]
struct ExecOutput {
    stdout: CollectedOutput,
    stderr: CollectedOutput,
}

impl ExecOutput {
    /// Reads until the process has ended and so has its output, or a while after. The inner error is what `over`
    /// said before the process ended; from its end on there is a result, and no time limit but that of the output.
    async fn follow(
        &mut self,
        exec: &mut Exec,
        (budget, container): (&OutputBudget, &str),
        over: impl Future<Output = Error>,
    ) -> Result<Result<i32, Error>, Error> {
        let Exec { stdout, stderr, process, .. } = exec;
        let reading = async {
            let source = |stream| OutputOrigin { container, stream };
            tokio::join!(
                self.stdout.read(stdout.as_mut(), budget, source("stdout")),
                self.stderr.read(stderr.as_mut(), budget, source("stderr"))
            )
        };
        tokio::pin!(reading);
        tokio::pin!(over);
        let mut read = false;
        let code = loop {
            tokio::select! {
                // Cancel-safe: a oneshot receiver by reference.
                code = process.wait() => break code?,
                // Not cancelled, only polled.
                _ = &mut reading, if !read => read = true,
                over = &mut over => return Ok(Err(over)),
            }
        };
        if !read {
            // Whoever holds the output longer is not the program that was asked for.
            let _ = tokio::time::timeout(DRAIN, reading).await;
        }
        Ok(Ok(code))
    }

    fn response(self, exit_code: i32) -> (cri::ExecSyncResponse, OutputPermits) {
        let Self { stdout, stderr } = self;
        let held = stdout.permit.into_iter().chain(stderr.permit).collect();
        (cri::ExecSyncResponse { stdout: stdout.bytes, stderr: stderr.bytes, exit_code }, held)
    }
}

/// Whole seconds as Go prints a duration.
fn go_duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_gos() {
        let texts = [1, 60, 90, 3600, 3725].map(go_duration);
        assert_eq!(texts, ["1s", "1m0s", "1m30s", "1h0m0s", "1h2m5s"]);
    }

    #[test]
    fn an_exec_is_the_containers_user_and_not_its_start() {
        let start = StartContainer {
            args: vec!["/web".into()],
            env: vec![b"A=1".to_vec(), b"TERM=dumb".to_vec()],
            uid: 7,
            no_new_privs: true,
            log_path: "/log".into(),
            tty: true,
            ..StartContainer::default()
        };
        let process = exec_process(start, vec!["ls".into()], true);
        assert_eq!((process.args, process.uid, process.no_new_privs), (vec!["ls".to_owned()], 7, true));
        assert_eq!(process.env, [b"A=1".to_vec(), b"TERM=xterm".to_vec()]);
        assert_eq!((process.log_path.as_str(), process.tty), ("", false));
    }
}
