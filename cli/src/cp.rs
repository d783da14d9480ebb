//! `gantry cp`: files and folders to and from containers, by tar in the container, as kubectl's. Owns which way, the
//! commands there and the words; [`pack`] and [`unpack`] own the archives. Called by main.

mod pack;
mod path;
mod unpack;

use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use gantry_proto::cri::ExecSyncRequest;
use tokio::sync::mpsc;
use tonic::transport::Channel;

use crate::args::{CpArgs, FileSpec, Target};
use crate::remote::{self, Pipes, Streams};
use crate::{client, exec, output, runtime_client};

/// Of an archive, on its way between a thread and the session.
const CHUNK: usize = 64 << 10;
const WAITING: usize = 8;
/// For a look at the destination.
const LOOK_SECONDS: i64 = 30;

/// Copies one way or the other.
pub(crate) async fn cp(args: CpArgs) -> Result<()> {
    let CpArgs { from, to, container, no_preserve, namespace, agent } = args;
    let namespace = namespace.as_deref();
    let socket = agent.agent_socket;
    let reach = async |target: &Target| -> Result<ContainerEndpoint> {
        let mut client = client::dial(&socket).await?;
        let pod = client::pod(&mut client, target).await?;
        let (container, note) = exec::choose(&pod, container.as_deref())?;
        if let Some(note) = note {
            output::say(&note);
        }
        if container.state != "running" {
            bail!("cannot copy to or from container {}: it is {}", container.name, container.state);
        }
        let channel = runtime_client::dial_agent(&socket).await?;
        Ok(ContainerEndpoint { channel, id: container.id.clone(), name: container.name.clone() })
    };
    match (from.target(namespace), to.target(namespace)) {
        (Some(_), Some(pod)) if Path::new(&from.text).exists() => {
            reach(&pod).await?.take(Path::new(&from.text), &to.file, no_preserve).await
        }
        (Some(_), Some(_)) => bail!("one of {} and {} must be a path of this machine", from.text, to.text),
        (None, Some(pod)) => {
            // A path with a colon may have been meant for this machine.
            reach(&pod).await?.take(Path::new(&from.file), &to.file, no_preserve).await
        }
        (Some(pod), None) => reach(&pod).await?.give(&from, Path::new(&to.file)).await,
        (None, None) => bail!("one of {} and {} must be in a pod, as in POD:PATH", from.text, to.text),
    }
}

/// A container that files go to or come from.
struct ContainerEndpoint {
    channel: Channel,
    id: String,
    name: String,
}

impl ContainerEndpoint {
    /// From this machine.
    async fn take(&self, from: &Path, to: &str, no_preserve: bool) -> Result<()> {
        if from.symlink_metadata().is_err() {
            bail!("{} doesn't exist in local filesystem", from.display());
        }
        let mut to = path::clean(to);
        if self.is_folder(&to).await {
            to = path::clean(&format!("{to}/{}", path::base(&from.to_string_lossy())));
        }
        let (folder, name) = path::split(&to);
        let mut command = vec!["tar"];
        if no_preserve {
            command.extend(["--no-same-permissions", "--no-same-owner"]);
        }
        command.extend(["-xmf", "-", "-C", &folder]);
        let (sender, stdin) = mpsc::channel(WAITING);
        let source = from.to_owned();
        let packed = tokio::task::spawn_blocking(move || pack::pack(&source, &name, Pipe::new(sender)));
        let pipes = Pipes { stdin: Some(stdin), stdout: None };
        let ran = self.run(&command, Streams { stdin: true, tty: false }, pipes).await;
        // What tar says of an archive that broke off is the less telling half.
        match packed.await? {
            Err(error) if !is_closed(&error) => Err(error),
            packed => ran.and(packed),
        }
    }

    /// To this machine.
    async fn give(&self, from: &FileSpec, to: &Path) -> Result<()> {
        let (sender, stdout) = mpsc::channel(WAITING);
        let plan = unpack::Plan::new(&from.file, to);
        let unpacked = tokio::task::spawn_blocking(move || {
            let reader =
                BufReader::with_capacity(CHUNK, Chunks { receiver: stdout, rest: Vec::new(), at: 0 });
            unpack::unpack(reader, &plan, &mut |line: &str| output::say(line))
        });
        let pipes = Pipes { stdin: None, stdout: Some(sender) };
        let streams = Streams { stdin: false, tty: false };
        let ran = self.run(&["tar", "cf", "-", &from.file], streams, pipes).await;
        match (unpacked.await?, ran) {
            // It ends early when the command does.
            (Err(unpack::Error::Archive(_) | unpack::Error::Empty), Err(ran)) => Err(ran),
            (unpacked, ran) => unpacked.map_err(anyhow::Error::from).and(ran),
        }
    }

    async fn is_folder(&self, path: &str) -> bool {
        let cmd = ["test", "-d", path].map(str::to_owned).to_vec();
        let ask = ExecSyncRequest { container_id: self.id.clone(), cmd, timeout: LOOK_SECONDS };
        let answer = runtime_client::runtime(self.channel.clone()).exec_sync(ask).await;
        answer.is_ok_and(|answer| answer.into_inner().exit_code == 0)
    }

    async fn run(&self, command: &[&str], streams: Streams, pipes: Pipes) -> Result<()> {
        let words = command.iter().map(|word| (*word).to_owned()).collect();
        let needs = || format!("run tar in container {}, which copying needs", self.name);
        let url = exec::url(&self.channel, &self.id, words, streams).await.with_context(needs)?;
        match remote::run_piped(&url, streams, pipes).await.with_context(needs)? {
            0 => Ok(()),
            code => bail!("tar in container {} ended with exit code {code}", self.name),
        }
    }
}

/// Whether nobody takes the archive any more.
fn is_closed(error: &anyhow::Error) -> bool {
    let kind =
        |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error.chain().filter_map(kind).any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// What a thread writes, to the session.
struct Pipe {
    sender: mpsc::Sender<Vec<u8>>,
    chunk: Vec<u8>,
}

impl Pipe {
    fn new(sender: mpsc::Sender<Vec<u8>>) -> Self {
        Self { sender, chunk: Vec::new() }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.chunk);
        self.sender.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// What the session receives, for a thread.
struct Chunks {
    receiver: mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
    at: usize,
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.rest.len() {
            match self.receiver.blocking_recv() {
                Some(chunk) => (self.rest, self.at) = (chunk, 0),
                None => return Ok(0),
            }
        }
        let left = self.rest.get(self.at..).unwrap_or_default();
        let count = left.len().min(into.len());
        if let (Some(to), Some(from)) = (into.get_mut(..count), left.get(..count)) {
            to.copy_from_slice(from);
        }
        self.at += count;
        Ok(count)
    }
}

/// Whether a path is a folder of this machine.
fn is_local_folder(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_dir())
}
