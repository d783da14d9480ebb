//! The tier `monitor-compat`: pods whose monitor is one of an earlier protocol, built from the history, adopted by
//! today's runtime. What such a monitor can do goes on; what it can't is refused by name
//! (docs/adr/0024-failpoints.md). Run by `cargo xtask test --tier monitor-compat`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::leakcheck::Snapshot;
use gantry_tests::node::{Node, Programs, Roots};
use gantry_tests::place;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use tonic::Status;

const PATIENCE: Duration = Duration::from_secs(20);

/// A pod that an old monitor holds, after today's runtime has started anew.
struct Adopted {
    node: Node,
    before: Snapshot,
    image: String,
    sandbox: String,
    container: String,
    log: std::path::PathBuf,
    _registry: Registry,
}

fn adopt_pod(version: u32) -> Result<Adopted> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let built = Programs::built()?;
    let folder = built.folder.join(place::MONITOR_COMPAT).join(format!("v{version}"));
    ensure!(folder.join("gantry-monitor").is_file(), "{} holds no monitor", folder.display());
    let mut node = Node::start_with(Roots::new()?, Programs { folder, ..built.clone() })?;
    node.pull(&image)?;
    let before = node.snapshot()?;
    let pod = Pod::run(&node, "old")?;
    let container = pod.start(&pod::container_config("main", &image, &["/workload", "count", "42"]))?;
    let (sandbox, log) = (pod.id.clone(), pod.log_path("main"));
    drop(pod);
    node.restart_of(built)?;
    Ok(Adopted { node, before, image, sandbox, container, log, _registry: registry })
}

impl Adopted {
    fn lines(&self) -> usize {
        std::fs::read_to_string(&self.log).unwrap_or_default().lines().count()
    }

    fn await_more_lines(&self) -> Result<()> {
        let now = self.lines();
        poll("the log to go on", PATIENCE, || match self.lines() {
            count if count > now => Ok(()),
            count => Err(format!("{count} lines")),
        })
    }

    fn exec(&self) -> Result<i32, Status> {
        let cmd = ["/workload", "exit", "7"].map(str::to_owned).to_vec();
        let request = cri::ExecSyncRequest { container_id: self.container.clone(), cmd, timeout: 10 };
        self.node.cri().exec_sync(request).map(|answer| answer.exit_code)
    }

    fn reopen(&self) -> Result<(), Status> {
        let request = cri::ReopenContainerLogRequest { container_id: self.container.clone() };
        self.node.cri().reopen_container_log(request).map(drop)
    }

    /// CreateContainer and StartContainer of one more.
    fn start(&self, config: cri::ContainerConfig) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: self.sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(pod::sandbox_config(&self.node, "old")),
        };
        let id = self.node.cri().create_container(request)?.container_id;
        let start = cri::StartContainerRequest { container_id: id.clone() };
        self.node.cri().start_container(start).map(|_| id)
    }

    /// What every monitor could: status, logs, limits, more containers, an end that nobody saw, removal.
    fn lives_on(&self) -> Result<()> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: self.sandbox.clone(), verbose: false };
        let status = self.node.cri().pod_sandbox_status(request)?.status.context("no status")?;
        ensure!(status.state() == PodSandboxState::SandboxReady, "{status:?}");
        let status = pod::container_status(&self.node, &self.container)?;
        ensure!(status.state() == ContainerState::ContainerRunning, "{status:?}");
        self.await_more_lines()?;
        let linux = cri::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() };
        self.node.cri().update_container_resources(cri::UpdateContainerResourcesRequest {
            container_id: self.container.clone(),
            linux: Some(linux),
            ..Default::default()
        })?;
        let more = self.start(pod::container_config("more", &self.image, &["/workload", "exit", "5"]))?;
        ensure!(pod::await_exit(&self.node, &more)?.exit_code == 5, "of one that today's runtime started");
        Ok(())
    }

    /// It ends while no runtime runs, and the next one hears of it.
    fn end_without_runtime(mut self) -> Result<()> {
        let brief = pod::container_config("brief", &self.image, &["/workload", "count", "23", "8"]);
        let brief = self.start(brief)?;
        self.node.kill()?;
        gantry_tests::proc::await_end_of("workload count 23")?;
        self.node.restart()?;
        let status = pod::await_exit(&self.node, &brief)?;
        ensure!((status.exit_code, status.reason.as_str()) == (23, "Error"), "{status:?}");
        let stop = cri::StopContainerRequest { container_id: self.container.clone(), timeout: 10 };
        self.node.cri().stop_container(stop)?;
        let status = pod::container_status(&self.node, &self.container)?;
        ensure!(status.exit_code == 42, "{status:?}");
        let id = self.sandbox.clone();
        self.node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() })?;
        self.node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: id })?;
        self.node.assert_clean(&self.before)
    }
}

/// The refusal names what is asked for, both versions and the remedy.
fn assert_too_old<T: std::fmt::Debug>(answer: Result<T, Status>, theirs: u32, what: &str) {
    let refused = match answer {
        Err(refused) => refused,
        Ok(answer) => panic!("{what} was not refused: {answer:?}"),
    };
    let words = format!("speaks protocol {theirs}, and {what} needs");
    assert!(refused.message().contains(&words), "{refused:?}");
    assert!(refused.message().contains("recreate it"), "{refused:?}");
}

#[test]
fn rt_2_15_a_pod_of_the_first_protocol_lives_on_and_what_it_lacks_is_refused_by_name() -> Result<()> {
    let old = adopt_pod(1)?;
    old.lives_on()?;
    assert_too_old(old.exec(), 1, "exec");
    assert_too_old(old.reopen(), 1, "a new log file");
    let mut filtered = pod::container_config("filtered", &old.image, &["/workload", "count", "0"]);
    pod::with_security(&mut filtered, |security| security.seccomp = Some(cri::SecurityProfile::default()));
    assert_too_old(old.start(filtered), 1, "a seccomp filter");
    let mut typed = pod::container_config("typed", &old.image, &["/workload", "count", "0"]);
    typed.tty = true;
    assert_too_old(old.start(typed), 1, "a terminal or stdin");
    old.await_more_lines()?;
    old.end_without_runtime()
}

#[test]
fn rt_2_15_a_pod_of_the_second_protocol_execs_and_what_it_lacks_is_refused_by_name() -> Result<()> {
    let old = adopt_pod(2)?;
    old.lives_on()?;
    assert_eq!(old.exec()?, 7);
    std::fs::rename(&old.log, old.log.with_extension("old"))?;
    old.reopen()?;
    old.await_more_lines()?;
    let mut mounts = pod::container_config("mounts", &old.image, &["/workload", "count", "0"]);
    mounts.mounts.push(cri::Mount {
        container_path: "/other".into(),
        image: Some(cri::ImageSpec { image: old.image.clone(), ..Default::default() }),
        readonly: true,
        ..Default::default()
    });
    assert_too_old(old.start(mounts), 2, "the mount of an image");
    let mut target = pod::container_config("target", &old.image, &["/workload", "count", "0"]);
    let first = old.container.clone();
    pod::with_security(&mut target, |security| {
        let options = security.namespace_options.get_or_insert_default();
        options.pid = cri::NamespaceMode::Target.into();
        options.target_id = first;
    });
    assert_too_old(old.start(target), 2, "the pid namespace of another container");
    old.end_without_runtime()
}
