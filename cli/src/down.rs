//! `gantry down`: the end of an agent with all its pods, and of the runtime that `gantry run --detach`
//! started for it. Owns the order (pods, agent, runtime); never ends a runtime that others started.
//! Called by main.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gantry_proto::cri::ListPodSandboxRequest;
use gantry_proto::operator::ShutdownRequest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::UnixStream;

use crate::args::DownArgs;
use crate::detach::runtime_socket;
use crate::{client, left, output, runtime_client};

const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);

/// Ends everything; fails when something is left.
pub(crate) async fn down(args: DownArgs) -> Result<ExitCode> {
    let DownArgs { state, agent, grace } = args;
    let state = std::path::absolute(&state).with_context(|| format!("find {}", state.display()))?;
    let socket = runtime_socket(&state);
    match client::dial(&agent.agent_socket).await {
        Ok(mut client) => {
            let ask = ShutdownRequest { grace_seconds: grace };
            let left = client::answer(client.shutdown(ask).await)?.left_behind;
            for problem in &left {
                output::say(&format!("error: left behind: {problem}"));
            }
            if !left.is_empty() {
                output::say(
                    "the runtime is left as it is: the same `gantry run --detach` takes these pods up",
                );
                return Ok(ExitCode::FAILURE);
            }
            drop(client);
            until_nobody_serves(&agent.agent_socket, "agent").await?;
            output::print(b"the agent and its pods have ended\n")?;
            left::after_the_end().iter().for_each(|note| output::say(note));
        }
        Err(error) if UnixStream::connect(&socket).await.is_err() => return Err(left::told(error)),
        // A runtime alone: its agent was killed.
        Err(error) => no_pods(&socket).await.context(error)?,
    }
    end_runtime(&socket).await?;
    Ok(ExitCode::SUCCESS)
}

async fn no_pods(socket: &Path) -> Result<()> {
    let channel = runtime_client::dial_runtime(socket).await?;
    let ask = ListPodSandboxRequest { filter: None };
    let list = runtime_client::answer(runtime_client::runtime(channel).list_pod_sandbox(ask).await)?.items;
    if !list.is_empty() {
        bail!(
            "the runtime at {} has {} pods: the same `gantry run --detach` as before takes them up, then \
             `gantry down` ends them",
            socket.display(),
            list.len()
        );
    }
    Ok(())
}

async fn until_nobody_serves(socket: &Path, who: &str) -> Result<()> {
    let begun = Instant::now();
    while UnixStream::connect(socket).await.is_ok() {
        if begun.elapsed() > PATIENCE {
            bail!("the {who} at {} does not end", socket.display());
        }
        tokio::time::sleep(STEP).await;
    }
    Ok(())
}

/// SIGTERM for whoever serves there, if `gantry run --detach` started it.
async fn end_runtime(socket: &Path) -> Result<()> {
    let stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        // None was detached: the agent was one with a runtime within, or with somebody else's.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(());
        }
        Err(error) => return Err(error).with_context(|| format!("connect to {}", socket.display())),
    };
    let pid = stream.peer_cred().context("ask who serves")?.pid();
    let pid = pid.and_then(Pid::from_raw).context("the runtime is in another pid namespace")?;
    // Held before its command line is read: what is read is that of the one that is ended.
    let process = pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("open process {pid}"))?;
    let path = format!("/proc/{pid}/cmdline");
    let line = std::fs::read(&path).with_context(|| format!("read {path}"))?;
    if !is_detached(&line) {
        output::say(&format!(
            "the runtime at {} is not of `gantry run --detach`: it goes on",
            socket.display()
        ));
        return Ok(());
    }
    drop(stream);
    pidfd_send_signal(&process, Signal::TERM).context("end the runtime")?;
    let begun = Instant::now();
    while !has_ended(&process)? {
        if begun.elapsed() > PATIENCE {
            bail!("the runtime (pid {pid}) does not end");
        }
        tokio::time::sleep(STEP).await;
    }
    Ok(output::print(b"the runtime has ended\n")?)
}

fn is_detached(command_line: &[u8]) -> bool {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    words.get(1) == Some(&&b"runtime"[..]) && words.contains(&&b"--standalone"[..])
}

fn has_ended(process: &OwnedFd) -> Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut look = [PollFd::new(process, PollFlags::IN)];
    Ok(poll(&mut look, Some(&at_once)).context("look whether the runtime has ended")? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_detached_runtime_is_ended() {
        assert!(is_detached(b"/usr/bin/gantry\0runtime\0--daemon\0--standalone\0"));
        assert!(!is_detached(b"/usr/bin/gantry\0runtime\0--socket=unix:///x\0"));
        assert!(!is_detached(b"/usr/bin/containerd\0"));
    }
}
