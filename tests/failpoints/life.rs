//! A pod's life as calls that can be given up and made again. Owns the ids; decides nothing about faults.
//! Called by `fault`.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use gantry_tests::cri::Cri;
use gantry_tests::pod;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::transport::Channel;

use crate::fault::Fault;

/// In the order of a life. `Stop` and `Kill` are two ways of one step; the last three are no calls. Few lives have a
/// `Checkpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LifeStep {
    RemoveImage,
    Pull,
    Run,
    Create,
    Start,
    Update,
    /// By a program that plays criu.
    Checkpoint,
    Stop,
    Kill,
    Remove,
    StopPod,
    RemovePod,
    /// The runtime's own, beside a pod that runs.
    Restart,
    /// The monitor is killed.
    Loss,
    Reboot,
}

/// What a pod has besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodKind {
    Plain,
    /// Users of its own.
    Users,
    /// The device of `fault::offer`.
    Hooked,
    /// Containers that runc makes.
    Handled,
}

/// The handler's name.
pub(crate) const HANDLER: &str = "runc";

/// The device's name.
pub(crate) const DEVICE: &str = "test.gantry/hooked=all";

impl LifeStep {
    /// Of a pod, with an image that is there.
    pub(crate) const LIFE: [LifeStep; 8] = [
        LifeStep::Run,
        LifeStep::Create,
        LifeStep::Start,
        LifeStep::Update,
        LifeStep::Stop,
        LifeStep::Remove,
        LifeStep::StopPod,
        LifeStep::RemovePod,
    ];

    /// What can go wrong at a place of this step.
    pub(crate) fn faults(self, fallible: bool) -> Vec<Fault> {
        let fails = fallible.then_some(Fault::StepFails);
        let always: &[Fault] = match self {
            // No pod is concerned.
            LifeStep::RemoveImage | LifeStep::Pull => &[Fault::KillRuntime, Fault::GiveUp],
            LifeStep::Restart => &[Fault::KillRuntime, Fault::KillMonitor],
            LifeStep::Loss | LifeStep::Reboot => &[Fault::KillRuntime],
            _ => &[Fault::KillRuntime, Fault::KillMonitor, Fault::GiveUp],
        };
        // After a reboot nobody has asked: a step that fails is tried again by StopPodSandbox.
        let asked = !matches!(self, LifeStep::Restart | LifeStep::Loss | LifeStep::Reboot);
        always.iter().copied().chain(fails.filter(|_| asked)).collect()
    }
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    RemoveImage(cri::RemoveImageRequest),
    Pull(Box<cri::PullImageRequest>),
    Run(Box<cri::RunPodSandboxRequest>),
    Create(Box<cri::CreateContainerRequest>),
    Start(cri::StartContainerRequest),
    Update(cri::UpdateContainerResourcesRequest),
    Checkpoint(cri::CheckpointContainerRequest),
    Stop(cri::StopContainerRequest),
    Remove(cri::RemoveContainerRequest),
    StopPod(cri::StopPodSandboxRequest),
    RemovePod(cri::RemovePodSandboxRequest),
}

impl Call {
    /// The id that it answers; empty where there is none.
    async fn make(
        self,
        mut runtime: RuntimeServiceClient<Channel>,
        mut images: ImageServiceClient<Channel>,
    ) -> Result<String, Status> {
        let none = String::new;
        match self {
            Call::RemoveImage(asked) => images.remove_image(asked).await.map(|_| none()),
            Call::Pull(asked) => images.pull_image(*asked).await.map(|_| none()),
            Call::Run(asked) => {
                runtime.run_pod_sandbox(*asked).await.map(|answer| answer.into_inner().pod_sandbox_id)
            }
            Call::Create(asked) => {
                runtime.create_container(*asked).await.map(|answer| answer.into_inner().container_id)
            }
            Call::Start(asked) => runtime.start_container(asked).await.map(|_| none()),
            Call::Update(asked) => runtime.update_container_resources(asked).await.map(|_| none()),
            Call::Checkpoint(asked) => runtime.checkpoint_container(asked).await.map(|_| none()),
            Call::Stop(asked) => runtime.stop_container(asked).await.map(|_| none()),
            Call::Remove(asked) => runtime.remove_container(asked).await.map(|_| none()),
            Call::StopPod(asked) => runtime.stop_pod_sandbox(asked).await.map(|_| none()),
            Call::RemovePod(asked) => runtime.remove_pod_sandbox(asked).await.map(|_| none()),
        }
    }
}

/// A call under way, on a connection of its own.
#[derive(Debug)]
pub(crate) struct Flight {
    gone: oneshot::Sender<()>,
    thread: JoinHandle<Result<Option<Result<String, Status>>>>,
}

impl Flight {
    pub(crate) fn start(socket: PathBuf, call: Call) -> Self {
        let (gone, given_up) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let cri = Cri::new(&socket)?;
            // The sender is held until the answer is there.
            let gone = async { given_up.await.unwrap_or_default() };
            Ok(cri.until(gone, |runtime, images| call.make(runtime, images)))
        });
        Flight { gone, thread }
    }

    /// Its answer.
    pub(crate) fn land(self) -> Result<Result<String, Status>> {
        let Flight { gone, thread } = self;
        let answer = thread.join().map_err(|_| anyhow::anyhow!("the call panicked"))?;
        drop(gone);
        answer?.context("a call that nobody gave up")
    }

    /// Gives it up; None unless it was answered before.
    pub(crate) fn give_up(self) -> Result<Option<Result<String, Status>>> {
        // It may have been answered.
        let _ = self.gone.send(());
        self.thread.join().map_err(|_| anyhow::anyhow!("the call panicked"))?
    }
}

/// The ids of a life so far.
#[derive(Debug)]
pub(crate) struct Life {
    image: String,
    logs: PathBuf,
    kind: PodKind,
    pub(crate) sandbox: String,
    pub(crate) container: String,
}

impl Life {
    pub(crate) fn new(image: &str, logs: &Path, kind: PodKind) -> Self {
        Life {
            image: image.to_owned(),
            logs: logs.to_owned(),
            kind,
            sandbox: String::new(),
            container: String::new(),
        }
    }

    fn image(&self) -> Option<cri::ImageSpec> {
        Some(cri::ImageSpec { image: self.image.clone(), ..Default::default() })
    }

    fn pod(&self) -> cri::PodSandboxConfig {
        cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: "matrix".into(),
                uid: "uid-matrix".into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            log_directory: self.logs.join("matrix").to_string_lossy().into_owned(),
            linux: self.users().map(|options| cri::LinuxPodSandboxConfig {
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(options),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn users(&self) -> Option<cri::NamespaceOption> {
        let line = vec![cri::IdMapping { host_id: 1_638_400, container_id: 0, length: 65_536 }];
        let users =
            cri::UserNamespace { mode: cri::NamespaceMode::Pod.into(), uids: line.clone(), gids: line };
        (self.kind == PodKind::Users).then(|| cri::NamespaceOption {
            pid: cri::NamespaceMode::Container.into(),
            userns_options: Some(users),
            ..Default::default()
        })
    }

    fn container(&self) -> cri::ContainerConfig {
        let mut config = pod::container_config("main", &self.image, &["/workload", "count", "0"]);
        if let Some(options) = self.users() {
            pod::with_security(&mut config, |security| security.namespace_options = Some(options));
        }
        if self.kind == PodKind::Hooked {
            config.cdi_devices = vec![cri::CdiDevice { name: DEVICE.into() }];
        }
        config
    }

    /// What the container prints.
    pub(crate) fn log(&self) -> PathBuf {
        self.logs.join("matrix/main/0.log")
    }

    /// The call of a step that is one.
    pub(crate) fn call(&self, step: LifeStep) -> Result<Call> {
        let (sandbox, container) = (self.sandbox.clone(), self.container.clone());
        Ok(match step {
            LifeStep::RemoveImage => Call::RemoveImage(cri::RemoveImageRequest { image: self.image() }),
            LifeStep::Pull => {
                Call::Pull(Box::new(cri::PullImageRequest { image: self.image(), ..Default::default() }))
            }
            LifeStep::Run => {
                let config = Some(self.pod());
                let runtime_handler = if self.kind == PodKind::Handled { HANDLER } else { "" }.to_owned();
                Call::Run(Box::new(cri::RunPodSandboxRequest { config, runtime_handler }))
            }
            LifeStep::Create => {
                let (config, sandbox_config) = (Some(self.container()), Some(self.pod()));
                let asked = cri::CreateContainerRequest { pod_sandbox_id: sandbox, config, sandbox_config };
                Call::Create(Box::new(asked))
            }
            LifeStep::Start => Call::Start(cri::StartContainerRequest { container_id: container }),
            LifeStep::Update => {
                let linux =
                    cri::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() };
                Call::Update(cri::UpdateContainerResourcesRequest {
                    container_id: container,
                    linux: Some(linux),
                    ..Default::default()
                })
            }
            LifeStep::Checkpoint => {
                let location = self.logs.join("matrix.tar").to_string_lossy().into_owned();
                Call::Checkpoint(cri::CheckpointContainerRequest {
                    container_id: container,
                    location,
                    timeout: 20,
                })
            }
            LifeStep::Stop => Call::Stop(cri::StopContainerRequest { container_id: container, timeout: 20 }),
            LifeStep::Kill => Call::Stop(cri::StopContainerRequest { container_id: container, timeout: 0 }),
            LifeStep::Remove => Call::Remove(cri::RemoveContainerRequest { container_id: container }),
            LifeStep::StopPod => Call::StopPod(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox }),
            LifeStep::RemovePod => Call::RemovePod(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox }),
            LifeStep::Restart | LifeStep::Loss | LifeStep::Reboot => anyhow::bail!("{step:?} is no call"),
        })
    }

    /// Takes note of what a step answered.
    pub(crate) fn note(&mut self, step: LifeStep, id: String) {
        match step {
            LifeStep::Run => self.sandbox = id,
            LifeStep::Create => self.container = id,
            _ => {}
        }
    }
}
