//! The one command of the repository: `cargo xtask build|demo|dist|test|cluster|conformance|bench|clean-room|fuzz|churn|overload|power-cut|peers|leakcheck|kind|vagrant-box|vm`. Owns the command line;
//! each subcommand is a file of its own. Never part of what users install. Called by people and
//! by `.ci/run`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod bench;
mod book;
mod build;
mod cell;
mod churn;
mod clean_room;
mod cluster;
mod conformance;
mod cpio;
mod debian_repository;
mod demo;
mod dist;
mod flaky;
mod fuzz;
mod join_vm;
mod kernel;
mod kind;
mod leakcheck;
mod monitor_compat;
mod overload;
mod pace;
mod power_cut;
mod sh;
mod side_by_side;
mod summary;
mod tiers;
mod vagrant;
mod vagrant_box;
mod vm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gantry_tests::bench::Counts;

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
    /// Runs pods from YAML files end to end and shows them (builds as you, runs as root: by sudo)
    Demo {
        /// With optimisation
        #[arg(long)]
        release: bool,
        /// Where the picture goes; `demo` in the target folder when not given
        #[arg(long)]
        out: Option<PathBuf>,
        /// Programs that are built already
        #[arg(long, hide = true)]
        built: Option<PathBuf>,
        #[command(flatten)]
        look: Look,
    },
    /// Makes what users install: a Debian package, an archive, their SBOM and checksums
    Dist {
        #[command(flatten)]
        look: Look,
    },
    /// Makes a book of docs/, by the program mdbook, and looks up each of its links
    Book,
    /// Runs the test tiers (as root, except static and unit)
    Test {
        /// Only this tier; may be given again
        #[arg(long, value_enum)]
        tier: Vec<tiers::Tier>,
        /// The tiers that CI leaves out, too
        #[arg(long)]
        full: bool,
        /// Kernel tiers: only tests whose name holds this
        #[arg(long)]
        filter: Option<String>,
        /// So many times, whatever comes out, and then what failed first in each run: for tests
        /// that may be unstable
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        repeat: u32,
        #[command(flatten)]
        look: Look,
    },
    /// Holds the list of needed packages against a Debian system that has nothing else (as root)
    CleanRoom {
        /// A command line to run there, with no package installed but Rust's C compiler
        command: Vec<String>,
    },
    /// Makes a Debian machine with kubeadm, and of it a box for Vagrant's libvirt provider (as root)
    VagrantBox {
        #[command(flatten)]
        look: Look,
    },
    /// A kind cluster whose nodes are Gantry's, on this host's docker or one of its own (as root)
    Kind {
        #[command(subcommand)]
        task: kind::KindTask,
    },
    /// What stays of kind's own docker on this host while it runs
    #[command(hide = true)]
    KindKeep { folder: PathBuf },
    /// runc, for a host that lacks capabilities
    #[command(hide = true)]
    KindOciRuntime {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Boots the small VM (cgroup v2) and runs a command in it; a shell command line
    Vm {
        /// The command line
        #[arg(default_value = "cat /proc/version /sys/fs/cgroup/cgroup.controllers; mount; ip link")]
        command: String,
    },
    /// Runs a command in namespaces and a cgroup subtree of its own, and fails when it leaves
    /// anything there
    Leakcheck {
        /// A folder that must hold the same paths afterwards; may be given again
        #[arg(long)]
        root: Vec<PathBuf>,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// A real control plane with one node (as root)
    Cluster {
        #[command(subcommand)]
        task: cluster::ClusterTask,
    },
    /// Upstream's own suites, beside what the upstream kubelet and containerd pass (as root)
    Conformance(conformance::Wanted),
    /// A suite's own half, inside its namespaces
    #[command(hide = true)]
    ConformanceInside(conformance::Called),
    /// What stays of a cluster on this host while it runs
    #[command(hide = true)]
    ClusterKeep(cluster::Kept),
    /// A cluster's own half, inside its namespaces
    #[command(hide = true)]
    ClusterInside(cluster::Inside),
    /// The images' own half, which knows where Gantry's programs are
    #[command(hide = true)]
    ImagesInside {
        #[arg(long)]
        suites: bool,
    },
    /// Feeds parsers of foreign bytes with whatever breaks them (as root)
    Fuzz(fuzz::Wanted),
    /// Makes and removes pods for minutes while runtimes and monitors are killed and calls are given up (as root)
    Churn(churn::ChurnArgs),
    /// The churn's own half, inside its namespaces
    #[command(hide = true)]
    ChurnInside(churn::ChurnArgs),
    /// Thirty pods of all classes on a node of 2 GiB, most of them hogs, beside upstream's kubelet and containerd (as root)
    Overload(overload::OverloadArgs),
    /// A node's own half, inside its namespaces
    #[command(hide = true)]
    OverloadInside(overload::OverloadInsideArgs),
    /// Cuts the power of an emulated node under pods that write to volumes of a CSI driver (as root)
    PowerCut(power_cut::PowerCutArgs),
    /// What `power-cut` does in a place of its own
    #[command(hide = true)]
    PowerCutInside(power_cut::PowerCutInsideArgs),
    /// Builds the Go programs that tests and benches need: containerd, runc, CNI plugins, the CRI suite
    Peers,
    /// Measures beside containerd, in one run (as root)
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// The bench's own half, inside its namespaces
    #[command(hide = true)]
    BenchInside {
        #[arg(long)]
        pods: usize,
        #[arg(long)]
        at_once: usize,
        #[arg(long)]
        pulls: usize,
    },
    /// The half of the pulls' bench
    #[command(hide = true)]
    BenchPullInside(bench::pull::PullBenchArgs),
    /// The half of the pods' bench
    #[command(hide = true)]
    BenchPodsInside(bench::pods::PodsBenchArgs),
    /// The half of the claims' bench
    #[command(hide = true)]
    BenchClaimsInside(bench::claims::ClaimsBenchArgs),
    /// The demo's own half, inside its namespaces
    #[command(hide = true)]
    DemoInside {
        #[arg(long)]
        out: PathBuf,
    },
    /// The leak check's own half
    #[command(hide = true)]
    LeakcheckInside {
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// What `gantry-needs` does with a command line before this program is built.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
struct Look {
    /// Names what is missing instead of installing it
    #[arg(long)]
    no_install: bool,
    /// Only looks, and starts each needed program once
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// A pod's start and an image's pull
    First {
        /// How many pods of each runtime
        #[arg(long, default_value_t = 20)]
        pods: usize,
        /// How many pods of each runtime at once, by as many clients
        #[arg(long, default_value_t = 30)]
        at_once: usize,
        /// How many pulls by each runtime
        #[arg(long, default_value_t = 3)]
        pulls: usize,
        /// Programs that are built already
        #[arg(long, hide = true)]
        built: Option<PathBuf>,
    },
    /// Many pods at once on a real control plane, and what the node asks of the API server for them
    Pods(bench::pods::PodsBenchArgs),
    /// Many claims of a CSI driver mounted and unmounted at once, by upstream's kubelet and by Gantry's
    Claims(bench::claims::ClaimsBenchArgs),
    /// Pulls of images with the layers of well-known ones, and what each optimisation is worth
    Pull(bench::pull::PullBenchArgs),
    /// `kind load` of a large image onto a node of upstream's and one of Gantry's
    KindLoad(bench::kind_load::KindLoadArgs),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Task::Build { release } => build::build(release).map(|_| ()),
        Task::Demo { release, out, built, look: _ } => demo::outside(release, out, built),
        Task::Book => book::run(),
        Task::Dist { look } => dist::run(look.no_install),
        Task::Cluster { task } => cluster::run(&task),
        Task::Conformance(wanted) => conformance::run(&wanted),
        Task::ConformanceInside(called) => conformance::inside(&called),
        Task::ClusterKeep(kept) => cluster::keep(&kept),
        Task::ClusterInside(asked) => cluster::inside(&asked),
        Task::ImagesInside { suites } => cluster::images(suites),
        Task::Fuzz(wanted) => fuzz::run(&wanted),
        Task::Churn(asked) => churn::outside(&asked),
        Task::ChurnInside(asked) => churn::inside(&asked),
        Task::CleanRoom { command } => clean_room::run(&command),
        Task::Overload(asked) => overload::outside(&asked),
        Task::OverloadInside(asked) => overload::inside(&asked),
        Task::PowerCut(asked) => power_cut::outside(&asked),
        Task::PowerCutInside(asked) => power_cut::inside(&asked),
        Task::Peers => {
            gantry_tests::peers::Programs::build().and_then(|_| gantry_tests::peers::Programs::build_kind())
        }
        Task::Bench { what: Bench::First { pods, at_once, pulls, built } } => {
            bench::outside(Counts { pods, at_once, pulls }, built.as_deref())
        }
        Task::Bench { what: Bench::Pull(asked) } => bench::pull::outside(&asked),
        Task::Bench { what: Bench::KindLoad(asked) } => bench::kind_load::run(&asked),
        Task::BenchPullInside(asked) => bench::pull::inside(&asked),
        Task::Bench { what: Bench::Pods(asked) } => bench::pods::outside(&asked),
        Task::BenchPodsInside(asked) => bench::pods::inside(&asked),
        Task::Bench { what: Bench::Claims(asked) } => bench::claims::outside(&asked),
        Task::BenchClaimsInside(asked) => bench::claims::inside(&asked),
        Task::BenchInside { pods, at_once, pulls } => bench::inside(Counts { pods, at_once, pulls }),
        Task::DemoInside { out } => demo::inside(&out),
        Task::Test { tier, full, filter, repeat, look: _ } => {
            tiers::test(&tier, full, filter.as_deref(), repeat)
        }
        Task::Kind { task } => return ended(kind::run(&task)),
        Task::KindKeep { folder } => kind::keep(&folder),
        Task::KindOciRuntime { words } => kind::oci_runtime(&words),
        Task::VagrantBox { look: _ } => vagrant_box::run(),
        Task::Vm { command } => vm::shell(&command),
        Task::Leakcheck { root, command } => leakcheck::outside(&root, &command),
        Task::LeakcheckInside { command } => return ended(leakcheck::inside(&command)),
    };
    ended(done.map(|()| ExitCode::SUCCESS))
}

fn ended(done: anyhow::Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
