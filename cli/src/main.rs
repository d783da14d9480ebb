//! The `gantry` command: the only crate that knows both agent and runtime. Owns flags,
//! terminal output and exit codes; never decides what a pod needs. Called by people.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

mod agent;
mod apply;
mod args;
mod choice;
mod client;
mod completion;
mod config;
mod cp;
mod ctr;
mod detach;
mod doctor;
#[cfg(test)]
mod documented;
mod down;
mod exec;
mod explain;
mod image_store;
mod images;
mod in_process;
mod inspect;
mod join;
mod jsonpath;
mod kubelet;
mod leave;
mod left;
mod load;
mod login;
mod logs;
mod manifests;
mod manual;
mod output;
mod panics;
mod port_forward;
mod ps;
mod pull;
#[cfg(test)]
mod reference;
mod remote;
mod run;
mod runtime;
mod runtime_client;
mod sd_notify;
mod stats;
mod stop;
mod timeline;
mod version;
mod wait;

use std::io::{ErrorKind, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::args::{Command, ImageCommand};

fn main() -> ExitCode {
    // A link with a network plugin's name is that plugin (docs/networking.md).
    if let Some(code) = std::env::args_os().next().and_then(|name| gantry_cni::serve::program(name.as_ref()))
    {
        return code;
    }
    // What kind asks a node for, under the names that it asks (docs/ctr.md).
    if let Some(code) = ctr::program(&std::env::args_os().collect::<Vec<_>>()) {
        return code;
    }
    if let Some(arguments) = kubelet::arguments(&std::env::args_os().collect::<Vec<_>>()) {
        return kubelet::kubelet(&arguments);
    }
    let cli = match config::parse(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(cli) => cli,
        Err(error) => {
            output::say(&format!("error: {error:#}"));
            return ExitCode::FAILURE;
        }
    };
    // A node logs as a kubelet does.
    if !matches!(cli.command, Command::Node(_)) {
        log_to_stderr(cli.verbose);
    }
    if matches!(cli.command, Command::Runtime(_) | Command::Run(_) | Command::Agent(_)) {
        panics::abort_on_panic();
    }
    match serve(cli.command, cli.verbose) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(command: Command, verbose: u8) -> anyhow::Result<ExitCode> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the threads that everything runs on")?;
    let done = tokio.block_on(async move {
        // A node and a kubelet do so themselves.
        if matches!(command, Command::Runtime(_) | Command::Run(_) | Command::Agent(_)) {
            gantry_shim::heap::trim_regularly();
        }
        match command {
            Command::Node(args) => kubelet::node(*args, verbose).await,
            Command::Runtime(args) => runtime::serve(args).await.map(|()| ExitCode::SUCCESS),
            Command::Run(args) => run::run(args, verbose > 0).await,
            Command::Agent(args) => agent::agent(args).await,
            Command::Apply(args) => apply::apply(args).await,
            Command::Down(args) => down::down(args).await,
            Command::Ps(args) => ps::ps(args).await.map(|()| ExitCode::SUCCESS),
            Command::Logs(args) => logs::logs(args).await,
            Command::Exec(args) => exec::exec(args).await,
            Command::Attach(args) => exec::attach(args).await,
            Command::Cp(args) => cp::cp(args).await.map(|()| ExitCode::SUCCESS),
            Command::Wait(args) => wait::wait(args).await,
            Command::Inspect(args) => inspect::inspect(args).await.map(|()| ExitCode::SUCCESS),
            Command::PortForward(args) => port_forward::port_forward(args).await,
            Command::Stop(args) => stop::stop(args).await,
            Command::Pull(args) => pull::pull(args).await,
            Command::Images(args) => images::images(args).await.map(|()| ExitCode::SUCCESS),
            Command::Rmi(args) => images::rmi(args).await,
            Command::Image(ImageCommand::Load(args)) => load::load(args).await,
            Command::Login(args) => login::login(args).await,
            Command::Logout(args) => login::logout(args),
            Command::Stats(args) => stats::stats(args).await.map(|()| ExitCode::SUCCESS),
            Command::Doctor(args) => doctor::doctor(*args).await,
            Command::Join(args) => join::join(*args).await,
            Command::Leave(args) => leave::leave(args).await,
            Command::Explain(args) => explain::explain(args).await.map(|()| ExitCode::SUCCESS),
            Command::Events(args) => ps::events(args).await.map(|()| ExitCode::SUCCESS),
            Command::Timeline(args) => timeline::timeline(args).await.map(|()| ExitCode::SUCCESS),
            Command::Completion(args) => Ok(completion::completion(&args).map(|()| ExitCode::SUCCESS)?),
            Command::Version => version::version().map(|()| ExitCode::SUCCESS),
            Command::Manual(args) => manual::manual(&args.folder).map(|()| ExitCode::SUCCESS),
        }
    });
    // Somebody who pressed Ctrl-C thrice does not wait for a call that hangs.
    tokio.shutdown_timeout(Duration::from_secs(1));
    done
}

/// Warnings, with -v what changes, with -vv each step; GANTRY_LOG sets it in detail.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        // What happens to pods is told by the commands themselves.
        0 => "warn,gantry_agent::pod=error",
        1 => "info",
        _ => "debug,h2=info,hyper=info,tower=info",
    };
    let filter = EnvFilter::try_from_env("GANTRY_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !no_color())
        // It would panic on a stderr that is gone, as with a terminal that was closed.
        .log_internal_errors(false)
        .init();
}

/// Whether the environment asks for plain text (no-color.org).
fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// `gantry logs web | head -1` is not an error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == ErrorKind::BrokenPipe)
}
