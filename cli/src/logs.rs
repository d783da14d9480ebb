//! `gantry logs`: what containers wrote, without the log's own prefixes. Owns choosing the containers,
//! the lines and the printing; the file is read by the agent crate's reader. Called by main.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gantry_agent::logs::follow::LogReader;
use gantry_model::log_line::{Line, Stream};
use gantry_proto::operator::operator_client::OperatorClient;
use gantry_proto::operator::{Container, ListPodsRequest, Pod};
use jiff::Timestamp;
use tonic::transport::Channel;

use crate::args::{LogsArgs, Target};
use crate::{choice, client, exec, output};

const POLL: Duration = Duration::from_millis(100);

/// One log that is printed.
struct LogSource {
    container: Container,
    reader: LogReader,
    /// Before each line; empty for a single container of a single pod.
    prefix: String,
    /// It may still grow.
    live: bool,
}

/// Which lines, and how.
struct Filter {
    since: Option<Timestamp>,
    timestamps: bool,
}

pub(crate) async fn logs(args: LogsArgs) -> Result<ExitCode> {
    let mut client = client::dial(&args.pods.agent.agent_socket).await?;
    let targets = choice::choose(&mut client, &args.pods).await?;
    let pods = client::pods(&mut client, &targets).await?;
    let ago = args.since.map(|ago| Timestamp::now().checked_sub(ago)).transpose().context("--since")?;
    let filter = Filter { since: ago.or(args.since_time), timestamps: args.timestamps };
    let (mut sources, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for pod in &pods {
        match sources_of(pod, &args, pods.len() > 1) {
            Ok(more) => sources.extend(more),
            Err(error) if pods.len() > 1 => {
                output::say(&format!("error: pod {}/{}: {error:#}", pod.namespace, pod.name));
                code = ExitCode::FAILURE;
            }
            Err(error) => return Err(error),
        }
    }
    for source in &mut sources {
        let lines = begin(&mut source.reader, args.last()).await?;
        write(source, lines, &filter)?;
    }
    if args.follow {
        follow(&mut client, &targets, sources, &filter).await?;
    }
    Ok(code)
}

/// Until each of them has ended.
async fn follow(
    client: &mut OperatorClient<Channel>,
    targets: &[Target],
    mut sources: Vec<LogSource>,
    filter: &Filter,
) -> Result<()> {
    while sources.iter().any(|source| source.live) {
        let running = running(client, targets).await;
        tokio::time::sleep(POLL).await;
        for source in sources.iter_mut().filter(|source| source.live) {
            // Looked at before its file: what it wrote before its end is still read below.
            source.live = running.contains(&source.container.id);
            loop {
                let lines = source.reader.next().await?;
                if lines.is_empty() {
                    break;
                }
                write(source, lines, filter)?;
            }
        }
    }
    Ok(())
}

/// Everything that is there, or the end of it.
async fn begin(reader: &mut LogReader, tail: Option<usize>) -> Result<Vec<Line>> {
    let mut kept: VecDeque<Line> = VecDeque::new();
    let mut whole = 0;
    loop {
        let lines = reader.next().await?;
        if lines.is_empty() {
            return Ok(kept.into());
        }
        for line in lines {
            whole += usize::from(!line.partial);
            kept.push_back(line);
            // A line is dropped with all of its parts.
            while tail.is_some_and(|most| whole > most) {
                match kept.pop_front() {
                    Some(first) => whole -= usize::from(!first.partial),
                    None => break,
                }
            }
        }
    }
}

fn sources_of(pod: &Pod, args: &LogsArgs, of_several: bool) -> Result<Vec<LogSource>> {
    let all: Vec<&Container> = pod.init_containers.iter().chain(&pod.containers).collect();
    let chosen = if args.all_containers {
        all.into_iter().filter(|c| !c.log_path.is_empty()).collect()
    } else {
        let (container, note) = exec::choose(pod, args.container.as_deref())?;
        if let Some(note) = note {
            output::say(&note);
        }
        vec![container]
    };
    let containers = chosen.len() > 1;
    // kubectl's, and for the containers of one pod the shorter one.
    let prefix = |container: &str| match (of_several || args.prefix, containers) {
        (true, _) => format!("[pod/{}/{container}] ", pod.name),
        (false, true) => format!("[{container}] "),
        (false, false) => String::new(),
    };
    let source = |container: &Container| {
        if container.log_path.is_empty() {
            bail!("container {} has not run yet: {} {}", container.name, container.reason, container.message);
        }
        let path = PathBuf::from(&container.log_path);
        let path = if args.previous { previous(&path, &container.name)? } else { path };
        Ok(LogSource {
            reader: LogReader::new(&path),
            prefix: prefix(&container.name),
            live: args.follow,
            container: container.clone(),
        })
    };
    chosen.into_iter().map(source).collect()
}

/// `…/web/3.log` → `…/web/2.log`.
fn previous(path: &Path, container: &str) -> Result<PathBuf> {
    let attempt = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u32>().ok());
    let before = attempt
        .and_then(|attempt| attempt.checked_sub(1))
        .with_context(|| format!("container {container} has no earlier instance"))?;
    let path = path.with_file_name(format!("{before}.log"));
    if path.exists() { Ok(path) } else { bail!("the log of the earlier instance of {container} is gone") }
}

/// IDs of running containers; an agent that is gone follows nothing any more.
async fn running(client: &mut OperatorClient<Channel>, targets: &[Target]) -> Vec<String> {
    let Ok(list) = client.list_pods(ListPodsRequest::default()).await else { return Vec::new() };
    let wanted = |pod: &Pod| targets.iter().any(|t| t.name == pod.name && t.namespace == pod.namespace);
    let pods = list.into_inner().pods.into_iter().filter(wanted);
    pods.flat_map(|pod| pod.init_containers.into_iter().chain(pod.containers))
        .filter(|container| container.state == "running")
        .map(|container| container.id)
        .collect()
}

/// Each line to the stream it was written to.
fn write(source: &LogSource, lines: Vec<Line>, filter: &Filter) -> Result<()> {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    for line in lines {
        let old = |since| line.time.parse::<Timestamp>().is_ok_and(|time| time < since);
        if filter.since.is_some_and(old) {
            continue;
        }
        let stream: &mut dyn Write = match line.stream {
            Stream::Stdout => &mut out,
            Stream::Stderr => &mut err,
        };
        stream.write_all(source.prefix.as_bytes())?;
        if filter.timestamps {
            write!(stream, "{} ", line.time)?;
        }
        stream.write_all(&line.text)?;
        if !line.partial {
            stream.write_all(b"\n")?;
        }
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn the_earlier_log_is_one_below() {
        let folder = std::env::temp_dir().join(format!("gantry-logs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("2.log"), "").unwrap();
        assert_eq!(previous(&folder.join("3.log"), "web").unwrap(), folder.join("2.log"));
        assert!(previous(&folder.join("2.log"), "web").unwrap_err().to_string().contains("gone"));
        assert!(previous(&folder.join("0.log"), "web").unwrap_err().to_string().contains("no earlier"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_tail_counts_whole_lines() {
        let path = std::env::temp_dir().join(format!("gantry-tail-{}.log", std::process::id()));
        std::fs::write(&path, "t stdout F a\nt stdout P b\nt stdout F c\nt stdout F d\n").unwrap();
        let texts = |lines: Vec<Line>| lines.into_iter().map(|l| l.text).collect::<Vec<_>>();
        let two = begin(&mut LogReader::new(&path), Some(2)).await.unwrap();
        assert_eq!(texts(two), [&b"b"[..], b"c", b"d"]);
        assert!(begin(&mut LogReader::new(&path), Some(0)).await.unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn lines_of_several_pods_name_pod_and_container() {
        let container = |name: &str| Container {
            name: name.into(),
            log_path: format!("/l/{name}/0.log"),
            ..Container::default()
        };
        let pod =
            Pod { name: "web".into(), containers: vec![container("a"), container("b")], ..Pod::default() };
        let prefixes = |words: &[&str], of_several: bool| {
            let line = ["gantry", "logs", "web"].iter().chain(words);
            let Command::Logs(args) = Cli::try_parse_from(line).unwrap().command else { panic!("no logs") };
            let sources = sources_of(&pod, &args, of_several).unwrap();
            sources.into_iter().map(|source| source.prefix).collect::<Vec<_>>()
        };
        assert_eq!(prefixes(&["-c", "b"], false), [""]);
        assert_eq!(prefixes(&["-c", "b", "--prefix"], false), ["[pod/web/b] "]);
        assert_eq!(prefixes(&["--all-containers"], false), ["[a] ", "[b] "]);
        assert_eq!(prefixes(&["--all-containers"], true), ["[pod/web/a] ", "[pod/web/b] "]);
    }
}
