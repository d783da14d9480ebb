//! One client of one node: pods made, used and removed, calls given up at random, and made again. Owns its
//! pod's name, which it uses again and again; never kills anyone. Called by the churn, on a thread.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::ChurnShared;
use super::random::Random;
use crate::cri::Cri;
use crate::pod;
use crate::poll::poll;

/// A call is given up one time in this many.
const GIVEN_UP: u64 = 4;
/// After so many milliseconds at most.
const GIVEN_UP_AFTER: u64 = 150;
/// A pod is to be there, or gone, within this, whatever is killed meanwhile.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) struct ChurnWorker {
    cri: Cri,
    config: cri::PodSandboxConfig,
    image: String,
    random: Random,
    shared: Arc<ChurnShared>,
}

type RuntimeClient = RuntimeServiceClient<Channel>;

impl ChurnWorker {
    pub(super) fn new(
        socket: &Path,
        logs: &Path,
        image: &str,
        name: &str,
        random: Random,
        shared: Arc<ChurnShared>,
    ) -> Result<Self> {
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                uid: format!("uid-{name}"),
                namespace: "churn".into(),
                name: name.to_owned(),
                attempt: 0,
            }),
            log_directory: logs.join(name).to_string_lossy().into_owned(),
            ..Default::default()
        };
        Ok(ChurnWorker { cri: Cri::new(socket)?, config, image: image.to_owned(), random, shared })
    }

    /// One pod after the other until the churn is over.
    pub(super) fn run(mut self) -> Result<()> {
        while !self.shared.is_over() {
            let id = self.make_pod()?;
            if let Err(status) = self.live(&id) {
                // Its monitor or its runtime was killed: what matters is that it can be removed.
                self.shared.count(format!("{} ended early: {:?}", self.kind(), status.code()));
            }
            self.remove_pod()?;
            self.shared.count(format!("{} pods", self.kind()));
        }
        Ok(())
    }

    /// "steady" or "shaken".
    fn kind(&self) -> String {
        let name = self.config.metadata.as_ref().map(|metadata| metadata.name.as_str()).unwrap_or_default();
        name.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_owned()
    }

    /// RunPodSandbox until it answers with a sandbox: given up, refused by a dead runtime, or torn down
    /// because its monitor was killed.
    fn make_pod(&mut self) -> Result<String> {
        let request = cri::RunPodSandboxRequest { config: Some(self.config.clone()), ..Default::default() };
        poll("a pod to be made", PATIENCE, || {
            let asked = request.clone();
            match self.call(|mut client| async move { client.run_pod_sandbox(asked).await }) {
                Ok(answer) => Ok(answer.pod_sandbox_id),
                Err(status) => {
                    self.note("RunPodSandbox", &status);
                    if status.code() == Code::AlreadyExists {
                        // It was made, its monitor was killed, and this caller has not heard of either.
                        self.remove_own();
                    }
                    Err(status.to_string())
                }
            }
        })
    }

    /// Containers, execs and stops, as it comes.
    fn live(&mut self, sandbox: &str) -> Result<(), Status> {
        for number in 0..=self.random.below(2) {
            let name = format!("c{number}");
            let config = pod::container_config(&name, &self.image, &["/workload", "count", "0"]);
            let create = cri::CreateContainerRequest {
                pod_sandbox_id: sandbox.to_owned(),
                config: Some(config),
                sandbox_config: Some(self.config.clone()),
            };
            let id = self.again("CreateContainer", |mut client| {
                let create = create.clone();
                async move { client.create_container(create).await }
            })?;
            let container_id = id.container_id;
            self.again("StartContainer", |mut client| {
                let start = cri::StartContainerRequest { container_id: container_id.clone() };
                async move { client.start_container(start).await }
            })?;
            for _ in 0..self.random.below(3) {
                let cmd = ["/workload", "exit", "3"].map(str::to_owned).to_vec();
                let exec = cri::ExecSyncRequest { container_id: container_id.clone(), cmd, timeout: 10 };
                let answer = self.call(|mut client| async move { client.exec_sync(exec).await });
                answer.map(drop).or_else(|status| self.tolerate("ExecSync", status))?;
            }
            if self.random.one_in(2) {
                let timeout = if self.random.one_in(2) { 0 } else { 10 };
                self.again("StopContainer", |mut client| {
                    let stop = cri::StopContainerRequest { container_id: container_id.clone(), timeout };
                    async move { client.stop_container(stop).await }
                })?;
            }
            if self.random.one_in(2) {
                self.again("RemoveContainer", |mut client| {
                    let remove = cri::RemoveContainerRequest { container_id: container_id.clone() };
                    async move { client.remove_container(remove).await }
                })?;
            }
        }
        Ok(())
    }

    /// A call that may be given up.
    fn call<T, F>(&mut self, call: impl FnOnce(RuntimeClient) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let after = match self.random.one_in(GIVEN_UP) {
            true => self.random.until(GIVEN_UP_AFTER),
            false => PATIENCE,
        };
        let gone = async move { tokio::time::sleep(after).await };
        let answer = self.cri.until(gone, |runtime, _: ImageServiceClient<Channel>| call(runtime));
        answer.unwrap_or_else(|| Err(Status::cancelled("given up"))).map(tonic::Response::into_inner)
    }

    /// A call that is made again when it was given up.
    fn again<T, F>(&mut self, what: &str, call: impl Fn(RuntimeClient) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        loop {
            match self.call(&call) {
                Err(status) if status.code() == Code::Cancelled => self.note(what, &status),
                Err(status) => {
                    self.note(what, &status);
                    return Err(status);
                }
                Ok(answer) => return Ok(answer),
            }
        }
    }

    fn tolerate(&self, what: &str, status: Status) -> Result<(), Status> {
        self.note(what, &status);
        if status.code() == Code::Cancelled { Ok(()) } else { Err(status) }
    }

    /// Ids and numbers are no kinds of errors.
    fn note(&self, what: &str, status: &Status) {
        let words = status.message().split_whitespace();
        let named = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
        let text: Vec<_> = words.filter(named).take(12).collect();
        self.shared.count(format!("{} {what}: {:?} {}", self.kind(), status.code(), text.join(" ")));
    }

    /// Removes the pod of this worker, however often it has to ask.
    fn remove_pod(&mut self) -> Result<()> {
        poll("a pod to be removed", PATIENCE, || {
            let own = self.own().map_err(|status| status.to_string())?;
            for id in own {
                let stop = cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
                self.call(|mut client| async move { client.stop_pod_sandbox(stop).await })
                    .inspect_err(|status| self.note("StopPodSandbox", status))
                    .map_err(|status| status.to_string())?;
                let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: id };
                self.call(|mut client| async move { client.remove_pod_sandbox(remove).await })
                    .inspect_err(|status| self.note("RemovePodSandbox", status))
                    .map_err(|status| status.to_string())?;
            }
            Ok(())
        })
    }

    fn remove_own(&mut self) {
        for id in self.own().unwrap_or_default() {
            if let Err(error) = remove(&self.cri, &id) {
                self.shared.count(format!("{} not removed at first: {error}", self.kind()));
            }
        }
    }

    fn own(&self) -> Result<Vec<String>, Status> {
        let listed = self.cri.list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
        let own = listed.into_iter().filter(|item| item.metadata == self.config.metadata);
        Ok(own.map(|item| item.id).collect())
    }
}

/// All sandboxes of a node.
pub(super) fn list_images(cri: &Cri) -> Result<Vec<String>> {
    let listed = cri.list_pod_sandbox(cri::ListPodSandboxRequest::default()).context("ListPodSandbox")?;
    Ok(listed.items.into_iter().map(|item| item.id).collect())
}

/// StopPodSandbox and RemovePodSandbox.
pub(super) fn remove(cri: &Cri, id: &str) -> Result<()> {
    let stop = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
    cri.stop_pod_sandbox(stop).context("StopPodSandbox")?;
    let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
    cri.remove_pod_sandbox(remove).context("RemovePodSandbox").map(drop)
}
