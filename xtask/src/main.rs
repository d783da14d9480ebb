//! The one command of the repository: `cargo xtask build|demo|test|vm|apt`. Owns the command line;
//! each subcommand is a file of its own. Never part of what users install. Called by people and
//! by `.ci/run`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod build;
mod cpio;
mod demo;
mod kernel;
mod sh;
mod summary;
mod tiers;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, checks and shows Gantry")]
struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Builds gantry and, static and small, the programs beside it
    Build {
        /// With optimisation
        #[arg(long)]
        release: bool,
    },
    /// Runs one pod from a YAML file end to end and shows it (as root)
    Demo {
        /// With optimisation
        #[arg(long)]
        release: bool,
    },
    /// Runs the test tiers (as root, except static and unit)
    Test {
        /// Only this tier; may be given again
        #[arg(long, value_enum)]
        tier: Vec<tiers::Tier>,
        /// Kernel tiers: only tests whose name holds this
        #[arg(long)]
        filter: Option<String>,
    },
    /// Boots the small VM (cgroup v2) and runs a command in it; a shell command line
    Vm {
        /// The command line
        #[arg(default_value = "cat /proc/version /sys/fs/cgroup/cgroup.controllers; mount; ip link")]
        command: String,
    },
    /// The demo's own half, inside its namespaces
    #[command(hide = true)]
    DemoInside,
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Task::Build { release } => build::build(release).map(|_| ()),
        Task::Demo { release } => demo::outside(release),
        Task::DemoInside => demo::inside(),
        Task::Test { tier, filter } => tiers::test(&tier, filter.as_deref()),
        Task::Vm { command } => vm::shell(&command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
