//! A node with failpoints, and what is done to it at a place: the runtime or the monitor is killed, the call is
//! given up, the step fails. Owns what must hold afterwards. Called by the matrix.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_proto::cri::ContainerState;
use gantry_tests::criu::{FakeCriu, Play};
use gantry_tests::leakcheck::Snapshot;
use gantry_tests::node::{Node, Programs, Roots};
use gantry_tests::poll::{poll, poll_every};
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::{fake_reboot, place, pod, proc};
use tempfile::TempDir;

use crate::life::{DEVICE, Flight, HANDLER, Life, LifeStep, PodKind};
use crate::rows::{BackgroundTask, FailpointRow, Wake};

/// Names the folder where a test says what places do.
pub(crate) const VARIABLE: &str = "GANTRY_FAILPOINTS";

const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(4);

const SIGABRT: i32 = 6;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    KillRuntime,
    KillMonitor,
    GiveUp,
    StepFails,
}

impl LifeStep {
    /// What comes before it.
    fn before(self) -> &'static [LifeStep] {
        match self {
            LifeStep::RemoveImage | LifeStep::Run => &[],
            LifeStep::Pull => &[LifeStep::RemoveImage],
            LifeStep::Create => &[LifeStep::Run],
            LifeStep::Start => &[LifeStep::Run, LifeStep::Create],
            LifeStep::Update | LifeStep::Checkpoint | LifeStep::Stop | LifeStep::Kill | LifeStep::StopPod => {
                &[LifeStep::Run, LifeStep::Create, LifeStep::Start]
            }
            LifeStep::Remove => &[LifeStep::Run, LifeStep::Create, LifeStep::Start, LifeStep::Stop],
            LifeStep::RemovePod => &[LifeStep::Run, LifeStep::Create, LifeStep::Start, LifeStep::StopPod],
            LifeStep::Restart | LifeStep::Loss | LifeStep::Reboot => {
                &[LifeStep::Run, LifeStep::Create, LifeStep::Start]
            }
        }
    }

    /// What is left to be done.
    fn after(self) -> &'static [LifeStep] {
        match self {
            LifeStep::RemoveImage => &[LifeStep::Pull],
            LifeStep::Pull => &LifeStep::LIFE,
            LifeStep::StopPod => &[LifeStep::RemovePod],
            LifeStep::RemovePod | LifeStep::Loss | LifeStep::Reboot => &[],
            LifeStep::Checkpoint => {
                &[LifeStep::Stop, LifeStep::Remove, LifeStep::StopPod, LifeStep::RemovePod]
            }
            LifeStep::Stop | LifeStep::Kill => &[LifeStep::Remove, LifeStep::StopPod, LifeStep::RemovePod],
            LifeStep::Restart => {
                &[LifeStep::Update, LifeStep::Stop, LifeStep::Remove, LifeStep::StopPod, LifeStep::RemovePod]
            }
            step => {
                LifeStep::LIFE.iter().position(|own| *own == step).map_or(&[], |at| &LifeStep::LIFE[at + 1..])
            }
        }
    }
}

/// A node with failpoints, its image and its registry.
pub(crate) struct FailpointFixture {
    node: Node,
    image: String,
    before: Snapshot,
    places: TempDir,
    _criu: FakeCriu,
    boots: u32,
    _registry: Registry,
}

impl FailpointFixture {
    pub(crate) fn new() -> Result<Self> {
        place::require_own_namespaces()?;
        let registry = Registry::start()?;
        let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
        let places = tempfile::tempdir()?;
        let folder = place::bin_dir()?.join(place::FAILPOINTS);
        let criu = FakeCriu::new(Play::Succeed)?;
        let variables = vec![(VARIABLE.to_owned(), places.path().to_owned()), criu.variable()];
        let programs = Programs { gantry: folder.join("gantry"), folder, variables };
        let mut node = Node::start_with(Roots::new()?, programs)?;
        let runc = place::bin_dir()?.join("runc");
        node.restart_with(&[format!("--handlers={HANDLER}:type=oci,path={}", runc.display())])?;
        node.pull(&image).context("PullImage")?;
        node.await_durable()?;
        offer(&node)?;
        let before = node.snapshot()?;
        Ok(FailpointFixture { node, image, before, places, _criu: criu, boots: 0, _registry: registry })
    }

    /// Whether the kernel can give a pod users of its own, as the runtime tells.
    pub(crate) fn has_users(&self) -> Result<bool> {
        let handlers = self.node.cri().status(cri::StatusRequest { verbose: false })?.runtime_handlers;
        let features = handlers.iter().filter_map(|handler| handler.features.as_ref());
        Ok(features.filter(|features| features.user_namespaces).count() > 0)
    }

    /// One fault at one place, the call once more, and the end of the pod.
    pub(crate) fn case(&mut self, row: &FailpointRow, fault: Fault) -> Result<()> {
        let mut life = Life::new(&self.image, &self.node.logs(), row.kind);
        self.forget_hooks()?;
        for step in row.step.before() {
            self.make(&mut life, *step)?;
        }
        match row.step {
            LifeStep::Restart => self.restart(row, fault, &mut life)?,
            LifeStep::Loss => self.loss(row)?,
            LifeStep::Reboot => self.reboot(row)?,
            _ => self.call(row, fault, &mut life)?,
        }
        self.assert_archive(row, fault)?;
        let left: Vec<_> =
            std::fs::read_dir(self.places.path())?.flatten().map(|entry| entry.path()).collect();
        ensure!(left.is_empty(), "nothing came to {left:?}");
        let pods = self.node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
        let containers = self.node.cri().list_containers(cri::ListContainersRequest::default())?.containers;
        ensure!(pods.is_empty() && containers.is_empty(), "still listed: {pods:?} {containers:?}");
        self.hooks_ran(row, fault)?;
        self.node.assert_clean(&self.before)
    }

    /// A checkpoint that was asked for until it was made is there, and one that was not made is not half there.
    fn assert_archive(&self, row: &FailpointRow, fault: Fault) -> Result<()> {
        if row.step != LifeStep::Checkpoint {
            return Ok(());
        }
        let archive = self.node.logs().join("matrix.tar");
        match std::fs::read(&archive) {
            Ok(bytes) => {
                // The end of an archive.
                ensure!(bytes.len() > 1024 && bytes.ends_with(&[0; 1024]), "half an archive");
                std::fs::remove_file(&archive)?;
            }
            Err(error) => ensure!(fault == Fault::KillMonitor, "no archive: {error}"),
        }
        let left = std::fs::read_dir(self.node.logs())?
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(".gantry-checkpoint-"));
        ensure!(left.count() == 0, "what an attempt wrote is left");
        Ok(())
    }

    /// The hooks of a life that went on ran once, whoever was there to run them; of others never more.
    fn hooks_ran(&self, row: &FailpointRow, fault: Fault) -> Result<()> {
        let text = std::fs::read_to_string(self.hooks()).unwrap_or_default();
        let goes_on = row.kind == PodKind::Hooked && matches!(fault, Fault::KillRuntime | Fault::GiveUp);
        for stage in ["poststart", "poststop"] {
            let times = text.lines().filter(|line| *line == stage).count();
            // Whoever dies between taking note and the hook itself leaves it undone: it must not run twice.
            let least = usize::from(goes_on && !(row.site == "stop.poststop-begun" && stage == "poststop"));
            ensure!((least..=1).contains(&times), "{stage} ran {times} times: {text:?}");
        }
        Ok(())
    }

    fn hooks(&self) -> PathBuf {
        self.node.roots().path("hooks-ran")
    }

    fn forget_hooks(&self) -> Result<()> {
        Ok(std::fs::write(self.hooks(), "")?)
    }

    fn call(&mut self, row: &FailpointRow, fault: Fault, life: &mut Life) -> Result<()> {
        self.set(row.site, if fault == Fault::StepFails { "fail" } else { "stall" })?;
        let call = life.call(row.step)?;
        let flight = Flight::start(self.node.socket(), call.clone());
        self.await_site(row.site)?;
        match fault {
            Fault::StepFails => {
                let refused = flight.land()?.err().context("the step did not fail")?;
                self.release(row.site)?;
                ensure!(refused.message().contains(row.site), "another failure: {refused:?}");
                if row.step == LifeStep::Start {
                    // It is EXITED, 128, StartError, and stays so.
                    return self.go_on(life, &[LifeStep::Remove, LifeStep::StopPod, LifeStep::RemovePod]);
                }
                self.make(life, row.step).context("once more")?;
            }
            Fault::KillRuntime if row.is_in_child() => {
                self.node.kill()?;
                let _ = flight.land()?;
                // The next one finds it in the middle of its start.
                self.node.restart()?;
                let again = Flight::start(self.node.socket(), call);
                self.release(row.site)?;
                life.note(row.step, again.land()?.context("once more")?);
                self.is_its_own(&life.container)?;
            }
            Fault::KillRuntime => {
                self.node.kill()?;
                self.release(row.site)?;
                // Answered or not: its caller can't tell, and asks again.
                let _ = flight.land()?;
                self.node.restart()?;
                self.make(life, row.step).context("once more")?;
            }
            Fault::KillMonitor => {
                let killed = kill_monitors()?;
                self.release(row.site)?;
                let answer = flight.land()?;
                if killed > 0 {
                    self.await_end(&life.container)?;
                    return self.remove_all();
                }
                life.note(row.step, answer.context("nothing was wrong")?);
            }
            Fault::GiveUp => {
                let again = Flight::start(self.node.socket(), call);
                // Its answer may have been on its way.
                let _ = flight.give_up()?;
                self.release(row.site)?;
                life.note(row.step, again.land()?.context("made again beside the first")?);
            }
        }
        self.go_on(life, row.step.after())
    }

    /// The process that the runtime names is the container's.
    fn is_its_own(&self, container: &str) -> Result<()> {
        let request = cri::ContainerStatusRequest { container_id: container.to_owned(), verbose: true };
        let info = self.node.cri().container_status(request)?.info;
        let info: serde_json::Value = serde_json::from_str(info.get("info").context("no info")?)?;
        let pid = info.get("pid").and_then(serde_json::Value::as_i64).context("no pid")?;
        let cgroup = std::fs::read_to_string(proc::folder(i32::try_from(pid)?).join("cgroup"))?;
        ensure!(cgroup.contains(container), "{pid} is another's: {cgroup}");
        Ok(())
    }

    /// Two calls remove one pod; how often its end is told.
    pub(crate) fn removed_twice_at_once(&mut self) -> Result<usize> {
        let mut life = Life::new(&self.image, &self.node.logs(), PodKind::Plain);
        self.make(&mut life, LifeStep::Run)?;
        let mut events = self.node.cri().events()?;
        self.set("remove.folder", "stall")?;
        let call = life.call(LifeStep::RemovePod)?;
        let first = Flight::start(self.node.socket(), call.clone());
        self.await_site("remove.folder")?;
        let second = Flight::start(self.node.socket(), call);
        // One that asks only after the first is done finds nothing to do: that says nothing, and is no failure.
        self.node.cri().version(cri::VersionRequest::default())?;
        self.release("remove.folder")?;
        first.land()??;
        second.land()??;
        let removed = std::mem::take(&mut life.sandbox);
        // What comes after it was told after it.
        self.make(&mut life, LifeStep::Run)?;
        let mut told = 0;
        loop {
            let event = events.receive()?.context("the stream ended")?;
            let kind = event.container_event_type();
            if event.container_id == removed && kind == cri::ContainerEventType::ContainerDeletedEvent {
                told += 1;
            } else if event.container_id == life.sandbox {
                break;
            }
        }
        drop(events);
        self.remove_all()?;
        Ok(told)
    }

    /// A pod is stopped and removed while a create of it hangs at `site`; what the create answers then.
    pub(crate) fn removed_beside_a_create(&mut self, site: &str) -> Result<tonic::Status> {
        let mut life = Life::new(&self.image, &self.node.logs(), PodKind::Plain);
        self.make(&mut life, LifeStep::Run)?;
        self.set(site, "stall")?;
        let create = Flight::start(self.node.socket(), life.call(LifeStep::Create)?);
        self.await_site(site)?;
        self.make(&mut life, LifeStep::StopPod).context("beside a create that hangs")?;
        self.make(&mut life, LifeStep::RemovePod).context("beside a create that hangs")?;
        self.release(site)?;
        let refused = create.land()?.err().context("a container in a pod that is gone")?;
        let containers = self.node.cri().list_containers(cri::ListContainersRequest::default())?.containers;
        ensure!(containers.is_empty(), "listed: {containers:?}");
        self.node.assert_clean(&self.before)?;
        // Nobody holds its name, nor the image.
        self.make(&mut life, LifeStep::Run)?;
        self.go_on(
            &mut life,
            &[
                LifeStep::Create,
                LifeStep::StopPod,
                LifeStep::RemovePod,
                LifeStep::RemoveImage,
                LifeStep::Pull,
            ],
        )?;
        self.node.await_durable()?;
        Ok(refused)
    }

    /// The task panics; its process ends by that, and the next one goes on with the pod.
    pub(crate) fn panics(&mut self, task: &BackgroundTask) -> Result<()> {
        let mut life = Life::new(&self.image, &self.node.logs(), PodKind::Plain);
        let before = match task.wake {
            Wake::Step(LifeStep::Restart) => &[],
            Wake::Step(step) => step.before(),
            Wake::Stats | Wake::Stream => LifeStep::Stop.before(),
        };
        self.go_on(&mut life, before)?;
        self.set(task.site, "panic")?;
        match task.wake {
            // It may answer once before it ends.
            Wake::Step(LifeStep::Restart) => drop(self.node.restart()),
            wake => self.wake(wake, &life)?,
        }
        let status = self.node.wait_for_exit()?;
        ensure!(status.signal() == Some(SIGABRT), "it ended otherwise: {status}");
        self.release(task.site)?;
        self.node.restart()?;
        self.remove_all()?;
        self.node.pull(&self.image)?;
        self.node.await_durable()?;
        self.node.assert_clean(&self.before)
    }

    fn wake(&self, wake: Wake, life: &Life) -> Result<()> {
        let id = life.container.clone();
        match wake {
            Wake::Step(LifeStep::Loss) => ensure!(kill_monitors()? == 1, "not one monitor"),
            // Whatever it answers: it may be cut off.
            Wake::Step(step) => drop(Flight::start(self.node.socket(), life.call(step)?).land()?),
            Wake::Stats => {
                drop(self.node.cri().container_stats(cri::ContainerStatsRequest { container_id: id }));
            }
            Wake::Stream => {
                let cmd = vec!["/workload".to_owned()];
                let request = cri::ExecRequest { container_id: id, cmd, stdout: true, ..Default::default() };
                let url = self.node.cri().exec(request)?.url;
                let place = url.split('/').nth(2).context("no host in the URL")?;
                drop(std::net::TcpStream::connect(place)?);
            }
        }
        Ok(())
    }

    fn restart(&mut self, row: &FailpointRow, fault: Fault, life: &mut Life) -> Result<()> {
        if fault == Fault::KillRuntime {
            self.set(row.site, "crash")?;
            ensure!(self.node.restart().is_err(), "it did not crash");
            self.release(row.site)?;
            self.node.restart()?;
            let status = pod::container_status(&self.node, &life.container)?;
            ensure!(status.state() == ContainerState::ContainerRunning, "{status:?}");
            return self.go_on(life, row.step.after());
        }
        self.set(row.site, "stall")?;
        let reached = self.reached_file(row.site);
        let watcher = std::thread::spawn(move || -> Result<()> {
            await_file(&reached)?;
            let killed = kill_monitors()?;
            std::fs::remove_file(&reached)?;
            ensure!(killed == 1, "{killed} monitors");
            Ok(())
        });
        let started = self.node.restart();
        watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))??;
        started?;
        self.await_end(&life.container)?;
        self.remove_all()
    }

    fn loss(&mut self, row: &FailpointRow) -> Result<()> {
        self.set(row.site, "stall")?;
        ensure!(kill_monitors()? == 1, "not one monitor");
        self.await_site(row.site)?;
        self.node.kill()?;
        self.release(row.site)?;
        self.node.restart()?;
        for container in self.node.cri().list_containers(cri::ListContainersRequest::default())?.containers {
            self.await_end(&container.id)?;
        }
        self.remove_all()
    }

    fn reboot(&mut self, row: &FailpointRow) -> Result<()> {
        self.node.kill()?;
        self.boots += 1;
        let flag = fake_reboot::cycle(self.node.roots(), &format!("boot {}", self.boots))?;
        self.set(row.site, "crash")?;
        ensure!(self.node.restart_with(&[flag]).is_err(), "it did not crash");
        self.release(row.site)?;
        self.node.restart()?;
        ensure!(fake_reboot::leases(self.node.roots())?.is_empty(), "an address of the old boot is not free");
        self.remove_all()?;
        // What was not durable went with the boot.
        self.node.pull(&self.image)?;
        Ok(())
    }

    /// Makes the call of a step, to its end.
    fn make(&self, life: &mut Life, step: LifeStep) -> Result<()> {
        let log = life.log();
        let written = || std::fs::metadata(&log).map_or(0, |data| data.len());
        let before = written();
        let answer = Flight::start(self.node.socket(), life.call(step)?).land()?;
        life.note(step, answer.with_context(|| format!("{step:?}"))?);
        if step == LifeStep::Start {
            // Before its first line it has no handler of SIGTERM yet: a stop would wait for the whole grace period.
            poll("the container's first line", PATIENCE, || {
                if written() > before { Ok(()) } else { Err(format!("{before} bytes in {}", log.display())) }
            })?;
        }
        Ok(())
    }

    fn go_on(&self, life: &mut Life, steps: &[LifeStep]) -> Result<()> {
        steps.iter().try_for_each(|step| self.make(life, *step).context("going on"))
    }

    /// As a client that finds a pod that has died.
    fn remove_all(&self) -> Result<()> {
        let pods = self.node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
        for id in pods.into_iter().map(|pod| pod.id) {
            let stop = cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
            self.node.cri().stop_pod_sandbox(stop).context("StopPodSandbox of a dead pod")?;
            let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: id };
            self.node.cri().remove_pod_sandbox(remove).context("RemovePodSandbox of a dead pod")?;
        }
        Ok(())
    }

    /// Nobody says that it runs when it does not. Nothing is said of one that is gone.
    fn await_end(&self, container: &str) -> Result<()> {
        poll("the container not to be told as running", PATIENCE, || {
            let listed = self.node.cri().list_containers(cri::ListContainersRequest::default());
            let listed = listed.map_err(|status| status.to_string())?.containers;
            let runs = |one: &&cri::Container| {
                one.id == container && one.state() == ContainerState::ContainerRunning
            };
            listed.iter().find(runs).map_or(Ok(()), |running| Err(format!("{running:?}")))
        })
    }

    fn set(&self, site: &str, what: &str) -> Result<()> {
        // By rename: a place may come by while the word is being written.
        let (fresh, place) = (self.places.path().join("fresh"), self.places.path().join(site));
        std::fs::write(&fresh, what)?;
        std::fs::rename(&fresh, &place).with_context(|| place.display().to_string())
    }

    fn reached_file(&self, site: &str) -> PathBuf {
        self.places.path().join(format!("{site}.reached"))
    }

    fn await_site(&self, site: &str) -> Result<()> {
        await_file(&self.reached_file(site))
    }

    /// Lets whoever stands at the place go on.
    fn release(&self, site: &str) -> Result<()> {
        std::fs::remove_file(self.reached_file(site)).with_context(|| format!("release {site}"))
    }
}

/// The device of `PodKind::Hooked`: its hooks write that they ran.
fn offer(node: &Node) -> Result<()> {
    let ran = node.roots().path("hooks-ran");
    std::fs::write(&ran, "")?;
    let hook = |stage: &str| {
        let script = format!("echo {stage} >> {}", ran.display());
        serde_json::json!({"hookName": stage, "path": "/bin/sh", "args": ["sh", "-c", script]})
    };
    let hooks: Vec<_> = ["createRuntime", "poststart", "poststop"].map(hook).into();
    let (kind, name) = DEVICE.split_once('=').context("a device without a kind")?;
    let devices = [serde_json::json!({"name": name, "containerEdits": {"hooks": hooks}})];
    let spec = serde_json::json!({"cdiVersion": "1.0.0", "kind": kind, "devices": devices});
    let folder = node.roots().path("cdi");
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join("hooked.json"), spec.to_string())?)
}

fn await_file(path: &std::path::Path) -> Result<()> {
    poll_every(LOOK, "the place to be reached", PATIENCE, || {
        if path.exists() { Ok(()) } else { Err(format!("no {}", path.display())) }
    })
}

/// How many there were.
fn kill_monitors() -> Result<usize> {
    let all = proc::all()?.into_iter();
    let monitors: Vec<_> =
        all.filter(|process| process.name.starts_with("gantry-monitor") && process.state != 'Z').collect();
    for monitor in &monitors {
        proc::kill(monitor.pid)?;
    }
    Ok(monitors.len())
}
