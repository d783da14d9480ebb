//! A remote command between a transport and a container: bytes and sizes in, output and outcome out.
//! Owns the pumps; knows no wire format. Fed by `ws::channels` and `streaming::command`, started by
//! `streaming::http`.

#![expect(clippy::disallowed_methods, reason = "the pumps of a session end with its streams")]

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use gantry_base::error::chain;
use gantry_proto::cri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::status::{SessionOutcome, Style};
use crate::attach;
use crate::error::Error;
use crate::exec::terminal::{Size, Terminal};
use crate::exec::{self, ExecRequest};
use crate::node::Node;

/// As much as any pipe holds: what was written before the command's end is at most this.
const MAX_PIPE: usize = 1 << 20;

/// Output of a stream, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Out {
    Data(StdStream, Bytes),
    End(StdStream),
}

/// Streams towards the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StdStream {
    Stdout,
    Stderr,
    Error,
}

/// Which streams a request asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// A transport whose client has come.
#[derive(Debug)]
pub(crate) struct Session {
    /// Ends at the client's half-close, and with the client.
    pub stdin: mpsc::Receiver<Bytes>,
    /// Window sizes, the first one early.
    pub resize: mpsc::Receiver<Size>,
    /// Bounded: a client that reads slowly slows the command. Its drop ends the transport, after
    /// everything was sent.
    pub out: mpsc::Sender<Out>,
    pub style: Style,
}

/// What a session is about.
#[derive(Debug, Clone)]
pub(crate) enum SessionCommand {
    Exec(cri::ExecRequest),
    Attach(cri::AttachRequest),
}

impl SessionCommand {
    pub(crate) fn streams(&self) -> Streams {
        match self {
            Self::Exec(cri::ExecRequest { stdin, stdout, stderr, tty, .. })
            | Self::Attach(cri::AttachRequest { stdin, stdout, stderr, tty, .. }) => {
                Streams { stdin: *stdin, stdout: *stdout, stderr: *stderr, tty: *tty }
            }
        }
    }
}

/// Runs the command over the session, to its end or the client's.
pub(crate) async fn run(node: Arc<Node>, command: SessionCommand, session: Session) {
    let (out, style) = (session.out.clone(), session.style);
    let result = match command {
        SessionCommand::Exec(request) => run_exec(&node, request, session)
            .await
            .map_err(|error| format!("error executing command in container: {}", chain(&error))),
        SessionCommand::Attach(request) => run_attach(&node, request, session)
            .await
            .map_err(|error| format!("error attaching to container: {}", chain(&error))),
    };
    let outcome = result.unwrap_or_else(|why| {
        tracing::warn!("{why}");
        SessionOutcome::Failed(why)
    });
    let bytes = outcome.bytes(style);
    // A client that is gone wants no status.
    if !bytes.is_empty() {
        let _ = out.send(Out::Data(StdStream::Error, bytes.into())).await;
    }
    for stream in [StdStream::Stdout, StdStream::Stderr, StdStream::Error] {
        let _ = out.send(Out::End(stream)).await;
    }
}

async fn run_exec(
    node: &Arc<Node>,
    request: cri::ExecRequest,
    session: Session,
) -> Result<SessionOutcome, Error> {
    let container = node.store.container(&request.container_id)?;
    let cri::ExecRequest { cmd, tty, stdin, stdout, stderr, .. } = request;
    let mut running = exec::spawn(node, &container, ExecRequest { cmd, tty, stdin, stdout, stderr }).await?;
    let Session { stdin: input, resize, out, .. } = session;
    let (end, ended) = watch::channel(false);
    let mut held = None;
    let (sources, input) = match running.terminal {
        Some(terminal) => {
            let hold = |source| Error::Streams("hold the terminal of the exec", source);
            held = Some(terminal.slave().map_err(hold)?);
            let terminal = Arc::new(terminal);
            let typing = to_terminal(terminal.clone(), stdin.then_some(input), resize);
            let sources =
                [(Some(OutputSource::Terminal(terminal)), StdStream::Stdout), (None, StdStream::Stderr)];
            (sources, tokio::spawn(typing))
        }
        None => {
            let sources = [(running.stdout, StdStream::Stdout), (running.stderr, StdStream::Stderr)];
            let sources = sources.map(|(pipe, stream)| (pipe.map(OutputSource::Pipe), stream));
            (sources, tokio::spawn(to_pipe(running.stdin, input)))
        }
    };
    let output = pumps(sources, &out, &ended);
    let code = tokio::select! {
        // Cancel-safe: a oneshot receiver by reference.
        code = running.process.wait() => code,
        // Cancel-safe: only a wait. Without its client a command has no terminal and nobody to write
        // to; it hears of that by SIGHUP or SIGPIPE, as upstream's does.
        () = out.closed() => Ok(0),
    };
    input.abort();
    // Only what the process left behind has its terminal open now.
    drop(held);
    // The pumps see it, or that it is gone.
    let _ = end.send(true);
    all(output).await;
    Ok(match code? {
        0 => SessionOutcome::Success,
        code => SessionOutcome::Exit(code),
    })
}

async fn run_attach(
    node: &Arc<Node>,
    request: cri::AttachRequest,
    session: Session,
) -> Result<SessionOutcome, Error> {
    let container = node.store.container(&request.container_id)?;
    let mut attached = attach::attach(node, &container, &request).await?;
    let Session { stdin: input, resize, out, .. } = session;
    let (_end, ended) = watch::channel(false);
    let sources = [(attached.stdout.take(), StdStream::Stdout), (attached.stderr.take(), StdStream::Stderr)];
    let output = pumps(sources.map(|(pipe, stream)| (pipe.map(OutputSource::Pipe), stream)), &out, &ended);
    let wants_stdin = request.stdin;
    let input = match attached.input.take() {
        Some(attach::Input::Terminal(terminal)) => {
            tokio::spawn(to_terminal(Arc::new(terminal), wants_stdin.then_some(input), resize))
        }
        Some(attach::Input::Pipe(pipe)) => tokio::spawn(to_pipe(Some(pipe), input)),
        None => tokio::spawn(to_pipe(None, input)),
    };
    let ended = async {
        if output.is_empty() {
            // Only stdin: until the container has ended.
            container.wait_for_end().await;
        }
        all(output).await;
    };
    tokio::select! {
        // Not used after this.
        () = ended => {}
        // Cancel-safe: only a wait.
        () = out.closed() => {}
    }
    input.abort();
    match attached.was_dropped().await {
        true => Err(Error::AttachTooSlow(container.id.clone())),
        false => Ok(SessionOutcome::Success),
    }
}

/// Where output comes from.
enum OutputSource {
    Pipe(pipe::Receiver),
    Terminal(Arc<Terminal>),
}

impl OutputSource {
    /// 0 at the end, which an error is, too. Cancel-safe.
    async fn read(&mut self, chunk: &mut [u8]) -> usize {
        match self {
            Self::Pipe(pipe) => pipe.read(chunk).await.unwrap_or(0),
            Self::Terminal(terminal) => terminal.read(chunk).await.unwrap_or(0),
        }
    }
}

/// One task for each output. `ended` turns true with the command.
fn pumps(
    sources: [(Option<OutputSource>, StdStream); 2],
    out: &mpsc::Sender<Out>,
    ended: &watch::Receiver<bool>,
) -> Vec<JoinHandle<()>> {
    sources
        .into_iter()
        .filter_map(|(source, stream)| Some(tokio::spawn(pump(source?, stream, out.clone(), ended.clone()))))
        .collect()
}

/// Reads to the end of the output. When the command has ended and something else holds its output, for
/// a while only, and no more than a pipe can hold; the client's slowness does not count.
async fn pump(
    mut source: OutputSource,
    stream: StdStream,
    out: mpsc::Sender<Out>,
    mut ended: watch::Receiver<bool>,
) {
    let mut chunk = vec![0u8; 32 << 10];
    let mut left: Option<usize> = None;
    let mut deadline = Instant::now();
    loop {
        let count = tokio::select! {
            // What is there comes first.
            biased;
            // Cancel-safe: tokio's pipes and AsyncFd read all or nothing.
            count = source.read(&mut chunk) => count,
            // Cancel-safe: only a wait. A sender that is gone means the same.
            _ = ended.wait_for(|ended| *ended), if left.is_none() => {
                left = Some(MAX_PIPE);
                deadline = Instant::now() + exec::DRAIN;
                continue;
            }
            // Cancel-safe: only a wait.
            () = tokio::time::sleep_until(deadline), if left.is_some() => 0,
        };
        if count == 0 || left == Some(0) {
            break;
        }
        let bytes = Bytes::copy_from_slice(chunk.get(..count).unwrap_or_default());
        if out.send(Out::Data(stream, bytes)).await.is_err() {
            return;
        }
        if let Some(left) = &mut left {
            *left = left.saturating_sub(count);
            deadline = Instant::now() + exec::DRAIN;
        } else if *ended.borrow() {
            left = Some(MAX_PIPE);
            deadline = Instant::now() + exec::DRAIN;
        }
    }
    // Nobody is there to hear it: as good.
    let _ = out.send(Out::End(stream)).await;
}

async fn all(pumps: Vec<JoinHandle<()>>) {
    for pump in pumps {
        // One that panicked has ended, too.
        let _ = pump.await;
    }
}

/// Closes the pipe at the client's half-close, which is how `kubectl exec -i … < file` ends.
async fn to_pipe(pipe: Option<pipe::Sender>, mut stdin: mpsc::Receiver<Bytes>) {
    let Some(mut pipe) = pipe else {
        // What nobody asked for is read and dropped, so that it does not hold up the rest.
        while stdin.recv().await.is_some() {}
        return;
    };
    while let Some(bytes) = stdin.recv().await {
        // EPIPE: the program has closed its stdin; it may well run on.
        if pipe.write_all(&bytes).await.is_err() {
            drop(pipe);
            while stdin.recv().await.is_some() {}
            return;
        }
    }
}

/// Types and resizes. A client's half-close closes nothing: its terminal is still there.
async fn to_terminal(
    terminal: Arc<Terminal>,
    mut stdin: Option<mpsc::Receiver<Bytes>>,
    mut resize: mpsc::Receiver<Size>,
) {
    let typing = async {
        while let Some(receiver) = &mut stdin {
            match receiver.recv().await {
                Some(bytes) => terminal.write_all(&bytes).await?,
                None => break,
            }
        }
        Ok::<_, io::Error>(())
    };
    let resizing = async {
        while let Some(size) = resize.recv().await {
            if let Err(error) = terminal.resize(size) {
                tracing::debug!("resize a terminal: {error}");
            }
        }
    };
    // Both to their end: a write that fails means that the terminal is gone.
    let _ = tokio::join!(typing, resizing);
}
