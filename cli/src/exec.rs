//! `gantry exec` and `gantry attach`: a command in a container, or the container's own, on this
//! terminal. Owns the choice of the container, as kubectl makes it, and the question for the URL;
//! the session is [`crate::remote`]'s. Called by main.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gantry_proto::cri::{AttachRequest, ExecRequest};
use gantry_proto::operator::{Container, Pod};
use tonic::transport::Channel;

use crate::args::{AttachArgs, ContainerFlags, ExecArgs};
use crate::remote::{self, Streams};
use crate::{client, output, runtime_client};

/// Runs the command; its exit code is ours.
pub(crate) async fn exec(args: ExecArgs) -> Result<ExitCode> {
    let ExecArgs { target, command } = args;
    let (channel, pod, container) = find(&target).await?;
    if matches!(pod.phase.as_str(), "Succeeded" | "Failed") {
        bail!("cannot exec into a container in a completed pod; current phase is {}", pod.phase);
    }
    let streams = Streams { stdin: target.stdin, tty: target.stdin && target.tty && on_terminal(&target) };
    let url = url(&channel, &container.id, command, streams).await?;
    Ok(code(remote::run(&url, streams).await?))
}

/// Where the command can be reached.
pub(crate) async fn url(channel: &Channel, id: &str, cmd: Vec<String>, streams: Streams) -> Result<String> {
    let ask = ExecRequest {
        container_id: id.to_owned(),
        cmd,
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: true,
        // A terminal has one way out.
        stderr: !streams.tty,
    };
    Ok(runtime_client::answer(runtime_client::runtime(channel.clone()).exec(ask).await)?.url)
}

/// Shows what the container writes from now on.
pub(crate) async fn attach(args: AttachArgs) -> Result<ExitCode> {
    let AttachArgs { target } = args;
    let (channel, _, container) = find(&target).await?;
    if container.state != "running" {
        bail!("cannot attach to container {}: it is {}", container.name, container.state);
    }
    if target.stdin && !container.stdin {
        bail!("container {} has no stdin: set stdin: true in its manifest", container.name);
    }
    if target.tty && !container.tty {
        say(&target, &format!("Unable to use a TTY - container {} did not allocate one", container.name));
    }
    // What it was given decides: output of a terminal comes as one stream.
    let streams = Streams { stdin: target.stdin, tty: container.tty };
    let ask = AttachRequest {
        container_id: container.id,
        stdin: streams.stdin,
        tty: streams.tty,
        stdout: true,
        stderr: !streams.tty,
    };
    let url = runtime_client::answer(runtime_client::runtime(channel).attach(ask).await)?.url;
    if streams.stdin && streams.tty && remote::on_terminal() {
        say(&target, "If you don't see a command prompt, try pressing enter.");
    }
    Ok(code(remote::run(&url, streams).await?))
}

/// The low eight bits, as of any process.
fn code(code: i32) -> ExitCode {
    u8::try_from(code & 0xff).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn say(target: &ContainerFlags, line: &str) {
    if !target.quiet {
        output::say(line);
    }
}

fn on_terminal(target: &ContainerFlags) -> bool {
    let there = remote::on_terminal();
    if !there {
        say(target, "Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    there
}

/// The container that is meant, with an ID, and the runtime that has it.
async fn find(target: &ContainerFlags) -> Result<(Channel, Pod, Container)> {
    let socket = &target.pod.agent.agent_socket;
    let mut client = client::dial(socket).await?;
    let pod = client::find_pod(&mut client, &target.pod).await?;
    let (container, note) = choose(&pod, target.container.as_deref())?;
    if let Some(note) = note {
        say(target, &note);
    }
    if container.id.is_empty() {
        bail!("container {} has not started: {} {}", container.name, container.reason, container.message);
    }
    let container = container.clone();
    Ok((runtime_client::dial_agent(socket).await?, pod, container))
}

/// The one that is named, or the default one with what to say about it; `gantry logs` takes the same.
pub(crate) fn choose<'a>(pod: &'a Pod, name: Option<&str>) -> Result<(&'a Container, Option<String>)> {
    let all = || pod.containers.iter().chain(&pod.init_containers);
    let of_name = |name: &str| all().find(|container| container.name == name);
    if let Some(name) = name {
        let names: Vec<&str> = all().map(|container| container.name.as_str()).collect();
        let container = of_name(name).with_context(|| {
            format!("pod {} has no container {name}; it has {}", pod.name, names.join(", "))
        })?;
        return Ok((container, None));
    }
    if let Some(container) = of_name(&pod.default_container) {
        return Ok((container, None));
    }
    let first = pod.containers.first().with_context(|| format!("pod {} has no container", pod.name))?;
    if all().count() == 1 {
        return Ok((first, None));
    }
    let names: Vec<String> = all()
        .map(|container| match container.role.as_str() {
            "regular" => container.name.clone(),
            _ => format!("{} (init)", container.name),
        })
        .collect();
    let note = format!("Defaulted container {:?} out of: {}", first.name, names.join(", "));
    Ok((first, Some(note)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(default_container: &str) -> Pod {
        let container = |name: &str, role: &str| Container {
            name: name.into(),
            role: role.into(),
            ..Container::default()
        };
        Pod {
            name: "web".into(),
            containers: vec![container("web", "regular"), container("log", "regular")],
            init_containers: vec![container("setup", "init")],
            default_container: default_container.into(),
            ..Pod::default()
        }
    }

    #[test]
    fn the_container_is_chosen_as_kubectl_does() {
        let name = |default: &str, name: Option<&str>| {
            choose(&pod(default), name).map(|(container, note)| (container.name.clone(), note))
        };
        assert_eq!(name("", Some("setup")).unwrap(), ("setup".into(), None));
        assert_eq!(name("log", None).unwrap(), ("log".into(), None));
        let note = "Defaulted container \"web\" out of: web, log, setup (init)";
        assert_eq!(name("", None).unwrap(), ("web".into(), Some(note.into())));
        assert_eq!(name("nobody", None).unwrap(), ("web".into(), Some(note.into())));
        let error = name("", Some("lgo")).unwrap_err().to_string();
        assert_eq!(error, "pod web has no container lgo; it has web, log, setup");
        let single = Pod { containers: vec![Container::default()], ..Pod::default() };
        assert_eq!(choose(&single, None).unwrap().1, None);
    }
}
