//! A remote command over WebSocket, version 5 of the protocol or 4: keys and sizes there, output and
//! exit code back. Owns the session. Called by `gantry exec` and `gantry attach`.

use std::io::{Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use gantry_shim::streaming::ws::channels::CLOSE;
use gantry_shim::streaming::ws::{MessageReader, Opcode, encode_masked};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::{connect, terminal};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Which of this process's streams take part; as in the CRI request that gave the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    /// stdin is passed on.
    pub(crate) stdin: bool,
    /// The command has a terminal: this one becomes raw, if it is one, and its size is passed on.
    pub(crate) tty: bool,
}

/// What stands in the place of this process's own streams.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    /// Ends with its sender.
    pub(crate) stdin: Option<mpsc::Receiver<Vec<u8>>>,
    /// Taken at the pace of its reader; the session ends with an error when that is gone.
    pub(crate) stdout: Option<mpsc::Sender<Vec<u8>>>,
}

/// Runs the command behind `url` on this process's streams.
pub(crate) async fn run(url: &str, streams: Streams) -> Result<i32> {
    run_piped(url, streams, Pipes::default()).await
}

/// The same with other streams in the place of some.
pub(crate) async fn run_piped(url: &str, streams: Streams, pipes: Pipes) -> Result<i32> {
    let (socket, protocol) = connect::websocket(url, &[V5, V4]).await?;
    let raw =
        (streams.tty && streams.stdin && terminal::is_there()).then(terminal::Raw::enter).transpose()?;
    let ended = tokio::select! {
        // Not used after this, either of them.
        ended = converse(socket, protocol == V5, streams, pipes) => ended,
        signal = told_to_end() => Err(signal),
    };
    // Before anything is said about how it went.
    drop(raw);
    ended
}

/// SIGTERM or SIGHUP: the terminal must not stay raw.
async fn told_to_end() -> anyhow::Error {
    let both = signal(SignalKind::terminate()).and_then(|first| Ok((first, signal(SignalKind::hangup())?)));
    match both {
        Ok((mut terminate, mut hangup)) => {
            tokio::select! {
                // Cancel-safe: a signal is kept until it is received.
                _ = terminate.recv() => anyhow!("ended by SIGTERM"),
                _ = hangup.recv() => anyhow!("ended by SIGHUP"),
            }
        }
        Err(error) => anyhow::Error::from(error).context("listen for signals"),
    }
}

/// Messages to the other side.
enum Up {
    Stdin(Vec<u8>),
    StdinEnd,
}

/// Both directions at once, and neither waits for the other: a command that echoes a long input would
/// stop for good.
async fn converse(
    socket: impl AsyncRead + AsyncWrite,
    half_closes: bool,
    streams: Streams,
    pipes: Pipes,
) -> Result<i32> {
    let (reader, writer) = tokio::io::split(socket);
    let (pongs, controls) = mpsc::channel(4);
    tokio::select! {
        // Not used after this, either of them.
        code = receive(MessageReader::new(reader, false), pongs, pipes.stdout) => code,
        error = send(writer, controls, half_closes, (streams, pipes.stdin)) => Err(error),
    }
}

async fn receive(
    mut reader: MessageReader<impl AsyncRead + Unpin>,
    pongs: mpsc::Sender<Vec<u8>>,
    stdout: Option<mpsc::Sender<Vec<u8>>>,
) -> Result<i32> {
    let mut output = RemoteOutput { stdout, error: Vec::new() };
    while let Some((opcode, payload)) = reader.next().await.context("the connection broke")? {
        match opcode {
            Opcode::Binary => output.take(&payload).await?,
            // One that is lost because many wait is no loss.
            Opcode::Ping => drop(pongs.try_send(encode_masked(Opcode::Pong, &payload)?)),
            Opcode::Close => break,
            Opcode::Text | Opcode::Pong | Opcode::Continuation => {}
        }
    }
    output.code()
}

/// Sends input and sizes; ends only by what goes wrong.
async fn send(
    mut writer: impl AsyncWrite + Unpin,
    mut controls: mpsc::Receiver<Vec<u8>>,
    half_closes: bool,
    (streams, stdin): (Streams, Option<mpsc::Receiver<Vec<u8>>>),
) -> anyhow::Error {
    let sending = async {
        let mut stdin = match stdin {
            None => streams.stdin.then(read_stdin).transpose()?,
            piped => piped,
        };
        let mut resized = signal(SignalKind::window_change()).context("listen for SIGWINCH")?;
        if streams.tty {
            send_size(&mut writer).await?;
        }
        loop {
            tokio::select! {
                // Cancel-safe per the documentation of recv.
                up = from(&mut stdin) => {
                    let bytes = match up {
                        Up::Stdin(bytes) => [&[STDIN][..], &bytes].concat(),
                        Up::StdinEnd if half_closes => vec![CLOSE, STDIN],
                        // Older servers have no way to be told.
                        Up::StdinEnd => continue,
                    };
                    writer.write_all(&encode_masked(Opcode::Binary, &bytes)?).await.context("send input")?;
                }
                // Cancel-safe per the documentation of recv.
                Some(control) = controls.recv() => writer.write_all(&control).await.context("answer a ping")?,
                // Cancel-safe: a signal is kept until it is received.
                _ = resized.recv(), if streams.tty => send_size(&mut writer).await?,
            }
            writer.flush().await.context("send")?;
        }
    };
    let sent: Result<std::convert::Infallible> = sending.await;
    match sent {
        // The other side may have said how it ended before it hung up: that is what counts.
        Err(error) if is_hung_up(&error) => std::future::pending().await,
        Err(error) => error,
    }
}

fn is_hung_up(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, WriteZero};
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| matches!(cause.kind(), BrokenPipe | ConnectionReset | NotConnected | WriteZero))
}

async fn send_size(writer: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
    let Some(size) = terminal::size() else { return Ok(()) };
    let message = [&[RESIZE][..], &serde_json::to_vec(&size)?].concat();
    writer.write_all(&encode_masked(Opcode::Binary, &message)?).await.context("send the window's size")?;
    Ok(writer.flush().await?)
}

/// The next of stdin; its end once, then nothing more.
async fn from(stdin: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Up {
    match stdin {
        Some(receiver) => match receiver.recv().await {
            Some(bytes) => Up::Stdin(bytes),
            None => {
                *stdin = None;
                Up::StdinEnd
            }
        },
        None => std::future::pending().await,
    }
}

/// stdin by a thread of its own: a read of a terminal can't be taken back, and tokio would wait for it
/// at the end.
fn read_stdin() -> Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(4);
    let read = move || {
        let mut chunk = vec![0u8; 32 << 10];
        // An error is the end, too.
        while let Ok(count @ 1..) = std::io::stdin().lock().read(&mut chunk) {
            if sender.blocking_send(chunk.get(..count).unwrap_or_default().to_vec()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read).context("start a thread for stdin")?;
    Ok(receiver)
}

/// What has come from the other side.
struct RemoteOutput {
    stdout: Option<mpsc::Sender<Vec<u8>>>,
    error: Vec<u8>,
}

impl RemoteOutput {
    async fn take(&mut self, message: &[u8]) -> Result<()> {
        let Some((channel, bytes)) = message.split_first() else { return Ok(()) };
        match (*channel, &self.stdout) {
            (STDOUT, Some(pipe)) => {
                let gone = "what the command writes is not read any more";
                pipe.send(bytes.to_vec()).await.ok().context(gone)?;
            }
            (STDOUT, None) => print(bytes.to_vec(), std::io::stdout).await?,
            (STDERR, _) => print(bytes.to_vec(), std::io::stderr).await?,
            (ERROR, _) if self.error.len() < 1 << 20 => self.error.extend_from_slice(bytes),
            _ => {}
        }
        Ok(())
    }

    fn code(&self) -> Result<i32> {
        if self.error.is_empty() {
            bail!("the connection was lost before the command ended");
        }
        exit_code(&self.error)
    }
}

/// On a thread that may wait: a terminal that was stopped by Ctrl-S takes nothing.
async fn print<W: Write>(bytes: Vec<u8>, to: impl FnOnce() -> W + Send + 'static) -> Result<()> {
    let write = move || {
        let mut to = to();
        to.write_all(&bytes).and_then(|()| to.flush())
    };
    tokio::task::spawn_blocking(write).await?.context("write the output")
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    status: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    details: Details,
}

#[derive(Deserialize, Default)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

/// The exit code in a metav1.Status.
fn exit_code(json: &[u8]) -> Result<i32> {
    let status: Status = serde_json::from_slice(json).context("the server's last word is no status")?;
    if status.status == "Success" {
        return Ok(0);
    }
    if status.reason == "NonZeroExitCode" {
        let code = status.details.causes.iter().find(|cause| cause.reason == "ExitCode");
        if let Some(code) = code.and_then(|cause| cause.message.parse().ok()) {
            return Ok(code);
        }
    }
    bail!("{}", status.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_shim::streaming::ws::encode;

    #[test]
    fn the_code_is_in_the_status() {
        assert_eq!(exit_code(br#"{"metadata":{},"status":"Success"}"#).unwrap(), 0);
        let failed = br#"{"status":"Failure","message":"x","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(exit_code(failed).unwrap(), 3);
        let error = exit_code(br#"{"status":"Failure","message":"no such program"}"#).unwrap_err();
        assert_eq!(error.to_string(), "no such program");
    }

    #[tokio::test]
    async fn a_session_ends_with_the_servers_status_and_not_without() {
        for (last, expected) in [(Some(&br#"{"status":"Success"}"#[..]), Some(0)), (None, None)] {
            let (ours, theirs) = tokio::io::duplex(4096);
            let server = tokio::spawn(async move {
                let (reader, mut writer) = tokio::io::split(theirs);
                writer.write_all(&encode(Opcode::Ping, b"p", None)).await.unwrap();
                let answer = MessageReader::new(reader, true).next().await.unwrap().unwrap();
                if let Some(status) = last {
                    let message = [&[ERROR][..], status].concat();
                    writer.write_all(&encode(Opcode::Binary, &message, None)).await.unwrap();
                }
                writer.write_all(&encode(Opcode::Close, &[], None)).await.unwrap();
                answer.0
            });
            let code = converse(ours, true, Streams { stdin: false, tty: false }, Pipes::default()).await;
            assert_eq!(code.ok(), expected);
            assert_eq!(server.await.unwrap(), Opcode::Pong);
        }
    }
}
