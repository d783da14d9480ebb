//! A suite's call, inside its place: what it needs around it, and its command line. Owns both; never reads the report.
//! Called by `main`'s hidden command, for `conformance`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use gantry_tests::cluster::bus::SystemBus;
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, NodeBase, kubelet, programs, runtime};
use gantry_tests::place::bin_dir;
use serde_json::json;

use super::Name;
use super::own_disk::OwnDisk;
use super::storage;
use super::suites::Choice;
use super::units::Units;
use crate::cluster::{KubeletName, RuntimeName};
use crate::sh;

/// Minutes that a suite may take when nobody says.
pub(super) const LONGEST: u64 = 24 * 60;

/// As the outer half has it.
#[derive(Debug, Clone, Args)]
pub(crate) struct Called {
    #[arg(value_enum)]
    pub(super) suite: Name,
    #[arg(long)]
    pub(super) out: PathBuf,
    #[arg(long, value_enum)]
    pub(super) runtime: RuntimeName,
    #[arg(long, value_enum)]
    pub(super) kubelet: KubeletName,
    #[arg(long)]
    pub(super) procs: usize,
    #[arg(long)]
    pub(super) serial: bool,
    /// How long the suite may take
    #[arg(long)]
    pub(super) minutes: Option<u64>,
    /// The node's own disk, in GiB
    #[arg(long)]
    pub(super) disk: Option<u64>,
    /// In a machine of its own
    #[arg(long)]
    pub(super) in_vm: bool,
    /// Of the suite itself
    #[arg(last = true)]
    pub(super) flags: Vec<String>,
}

impl Called {
    pub(super) fn words(&self) -> Vec<OsString> {
        use clap::ValueEnum;
        let name = |value: Option<clap::builder::PossibleValue>| -> OsString {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default().into()
        };
        let mut words = vec![name(self.suite.to_possible_value()), "--out".into(), self.out.clone().into()];
        words.extend(["--runtime".into(), name(self.runtime.to_possible_value())]);
        words.extend(["--kubelet".into(), name(self.kubelet.to_possible_value())]);
        words.extend(["--procs".into(), self.procs.to_string().into()]);
        words.extend(self.serial.then(|| "--serial".into()));
        let minutes = self.minutes.map(|minutes| ["--minutes".into(), minutes.to_string().into()]);
        words.extend(minutes.into_iter().flatten());
        let disk = self.disk.map(|gib| ["--disk".into(), gib.to_string().into()]);
        words.extend(disk.into_iter().flatten());
        words.extend(self.in_vm.then(|| "--in-vm".into()));
        words.push("--".into());
        words.extend(self.flags.iter().map(OsString::from));
        words
    }
}

/// Makes what the suite needs, runs it, takes it away. That specs failed is no error here: the report says so.
pub(crate) fn inside(called: &Called) -> Result<()> {
    // On a disk of its own name: sockets below it have 107 bytes at most.
    let folder = tempfile::Builder::new().prefix("gc-").tempdir()?;
    let disk = called.disk.map(|gib| OwnDisk::mount(gib, folder.path())).transpose()?;
    let ran = match called.suite {
        Name::Node => node(called, folder.path()),
        Name::E2e | Name::CsiHostpath => e2e(called, folder.path()),
        Name::Conformance => bail!("conformance is for a kind cluster, which has no inner half"),
    };
    let kept = keep_logs(&folder.path().join("log"), &called.out);
    let ended = disk.map_or(Ok(()), OwnDisk::end);
    ran.and(kept).and(ended)
}

fn node(called: &Called, folder: &Path) -> Result<()> {
    // The suite's own API server is reached on loopback, and takes the port that a cluster's has.
    let ground = NodeBase::make(folder, called.runtime.into(), 0, &Outside::Closed)?;
    let ran = node_specs(called, folder);
    let ended = ground.end();
    ran.and(ended)
}

fn node_specs(called: &Called, folder: &Path) -> Result<()> {
    if !called.in_vm {
        without_systemd(folder)?;
    }
    let kind: runtime::RuntimeKind = called.runtime.into();
    let programs =
        kubelet::folder_with(called.kubelet.kind().unwrap_or(kubelet::KubeletKind::Upstream), folder)?;
    let config = folder.join("kubelet-config.json");
    std::fs::write(&config, serde_json::to_vec_pretty(&node_configuration(called.in_vm))?)?;
    let process = match kind {
        runtime::RuntimeKind::Containerd => "containerd",
        runtime::RuntimeKind::Gantry => "gantry",
    };
    let own = [
        format!("--k8s-bin-dir={}", programs.display()),
        format!("--container-runtime-endpoint=unix://{}", kind.socket().display()),
        format!("--container-runtime-process-name={process}"),
        format!("--kubelet-config-file={}", config.display()),
        format!("--report-dir={}", called.out.display()),
        "--prepull-images=false".to_owned(),
    ];
    let mut env = Command::new("env");
    env.env(gantry_tests::place::BIN_DIR, bin_dir()?);
    let run = |env| ginkgo(env, called, folder, "e2e_node.test", &own);
    // A machine of its own has a systemd of its own.
    if called.serial && !called.in_vm { alone(env, folder, run) } else { run(env) }
}

/// With the node for itself: the kubelet is a unit that specs restart, and on the system bus is a logind that they play.
fn alone(mut env: Command, folder: &Path, run: impl FnOnce(Command) -> Result<()>) -> Result<()> {
    let units = Units::make(folder)?;
    let bus = SystemBus::start(&sh::root(), folder, &folder.join("log"))?;
    env.env("PATH", units.path()?);
    let ran = run(env);
    ran.and(units.end()).and(bus.end())
}

/// The suite's own defaults (its `jenkins/default-kubelet-config.yaml`). On a host that others use: but for what it needs, as
/// in a cluster.
fn node_configuration(in_vm: bool) -> serde_json::Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "failSwapOn": false,
        "fileCheckFrequency": "10s",
        "podCIDR": "10.100.0.0/24",
        "serializeImagePulls": false,
        "volumeStatsAggPeriod": "10s",
    });
    let more = if in_vm {
        json!({
            "evictionHard": { "memory.available": "250Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%" },
            "evictionMinimumReclaim": { "nodefs.available": "5%", "nodefs.inodesFree": "5%" },
            "evictionPressureTransitionPeriod": "30s",
        })
    } else {
        json!({
            "evictionHard": { "memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%" },
            "failCgroupV1": false,
            "oomScoreAdj": 0,
        })
    };
    for (field, value) in more.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    config
}

/// The suite starts the kubelet as a unit when it finds this program, even where no systemd runs.
fn without_systemd(folder: &Path) -> Result<()> {
    let program = Path::new("/usr/bin/systemd-run");
    if !program.exists() {
        return Ok(());
    }
    let nothing = folder.join("no-program");
    std::fs::write(&nothing, "")?;
    rustix::mount::mount_bind(&nothing, program).context("hide systemd-run")
}

fn e2e(called: &Called, folder: &Path) -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        folder: folder.to_owned(),
        runtime: called.runtime.into(),
        kubelet: called.kubelet.kind(),
        addons: true,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: Default::default(),
    })?;
    let ran = e2e_specs(called, folder, &cluster);
    // What the node asked of the API server is a result, too.
    let audit =
        std::fs::copy(cluster.audit_log(), called.out.join(super::asked::LOG)).context("keep the audit log");
    let ended = cluster.end();
    ran.and(audit.map(drop)).and(ended)
}

fn e2e_specs(called: &Called, folder: &Path, cluster: &Cluster) -> Result<()> {
    let mut own = e2e_flags(&cluster.kubeconfig("admin"), &called.out, 1)?.to_vec();
    if called.suite == Name::CsiHostpath {
        own.push(storage::install(cluster, folder)?);
    }
    ginkgo(Command::new("env"), called, folder, "e2e.test", &own)
}

/// e2e.test's own flags on a cluster with so many nodes for pods.
pub(super) fn e2e_flags(kubeconfig: &Path, out: &Path, nodes: u8) -> Result<[String; 8]> {
    Ok([
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--kubectl-path={}", programs::path("kubectl")?.display()),
        format!("--report-dir={}", out.display()),
        "--provider=local".to_owned(),
        format!("--num-nodes={nodes}"),
        "--minStartupPods=0".to_owned(),
        "--allowed-not-ready-nodes=0".to_owned(),
        "--dns-domain=cluster.local".to_owned(),
    ])
}

/// Runs a suite. `env` is env(1), where the suite is to run.
pub(super) fn ginkgo(
    mut env: Command,
    called: &Called,
    folder: &Path,
    program: &str,
    own: &[String],
) -> Result<()> {
    let choice = Choice::read(&called.out)?;
    // Ginkgo runs a program in the program's own folder, and this one writes there.
    let here = folder.join("run");
    std::fs::create_dir_all(&here)?;
    let linked = here.join(program);
    std::os::unix::fs::symlink(programs::path(program)?, &linked)?;
    // Where `env` enters namespaces, the working folder of this process does not come along.
    env.arg("--chdir").arg(&here).arg(programs::path("ginkgo")?);
    env.arg(format!("--procs={}", called.procs))
        .arg(format!("--timeout={}m", called.minutes.unwrap_or(LONGEST)))
        .args(["--no-color", "--keep-going", "--json-report=report.json"])
        .arg(format!("--output-dir={}", called.out.display()));
    for (flag, list) in [("--focus", &choice.focus), ("--skip", &choice.skip)] {
        env.args(list.iter().map(|one| format!("{flag}={one}")));
    }
    env.arg(&linked).arg("--").args(own).args(&called.flags);
    let log = called.out.join("suite.log");
    let output = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
    println!("{program} runs; what it says is in {}", log.display());
    let status = env
        .env("HOME", folder)
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .context("start ginkgo")?;
    println!("{program}: {status}");
    Ok(())
}

fn keep_logs(from: &Path, to: &Path) -> Result<()> {
    let to = to.join("log");
    std::fs::create_dir_all(&to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
