//! `gantry logs`: what a container wrote, without the log's own prefixes. Owns choosing the
//! container and printing; the file is read by the agent crate's reader. Called by main.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gantry_agent::logs::follow::LogReader;
use gantry_agent::logs::line::{Line, Stream};
use gantry_proto::operator::operator_client::OperatorClient;
use gantry_proto::operator::{Container, Pod};
use tonic::transport::Channel;

use crate::args::LogsArgs;
use crate::client;

const POLL: Duration = Duration::from_millis(100);

pub(crate) async fn logs(args: LogsArgs) -> Result<()> {
    let mut client = client::dial(&args.pod.agent.agent_socket).await?;
    let pod = client::find_pod(&mut client, &args.pod).await?;
    let container = choose(&pod, args.container.as_deref())?;
    if container.log_path.is_empty() {
        bail!("container {} has not run yet: {} {}", container.name, container.reason, container.message);
    }
    let mut reader = LogReader::new(Path::new(&container.log_path));
    loop {
        let lines = reader.next().await?;
        if !lines.is_empty() {
            write(&lines)?;
            continue;
        }
        if !args.follow {
            return Ok(());
        }
        if !still_runs(&mut client, &args, container).await {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    // What it wrote between the last look at its file and at its state.
    tokio::time::sleep(POLL).await;
    loop {
        let lines = reader.next().await?;
        if lines.is_empty() {
            return Ok(());
        }
        write(&lines)?;
    }
}

/// The one that is named, or the only one.
fn choose<'a>(pod: &'a Pod, name: Option<&str>) -> Result<&'a Container> {
    let names: Vec<&str> = pod.containers.iter().map(|c| c.name.as_str()).collect();
    match (name, pod.containers.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => {
            bail!("pod {} has several containers, choose one with -c: {}", pod.name, names.join(", "))
        }
        (Some(name), all) => all.iter().find(|c| c.name == name).with_context(|| {
            format!("pod {} has no container {name}; it has {}", pod.name, names.join(", "))
        }),
    }
}

/// An agent that is gone follows nothing any more.
async fn still_runs(client: &mut OperatorClient<Channel>, args: &LogsArgs, container: &Container) -> bool {
    match client::find_pod(client, &args.pod).await {
        Ok(pod) => pod.containers.iter().any(|c| c.id == container.id && c.state == "running"),
        Err(_) => false,
    }
}

/// Each line to the stream it was written to.
fn write(lines: &[Line]) -> Result<()> {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    for line in lines {
        let stream: &mut dyn Write = match line.stream {
            Stream::Stdout => &mut out,
            Stream::Stderr => &mut err,
        };
        stream.write_all(&line.text)?;
        if !line.partial {
            stream.write_all(b"\n")?;
        }
    }
    out.flush()?;
    Ok(())
}
