//! What the fake runtime holds, and how it changes by itself as time goes on. Owns the simulated
//! containers; never a call's outcome (that is [`super::calls`]).

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::failure::{Failure, FailureKind};
use gantry_model::pod::PodUid;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Call, Exec, Script};
use crate::runtime::{Exit, Instance, InstanceState, Sandbox};
use crate::runtime_ext::pulls::progress::Progress;

/// When fakes begin: the clock of the workers' tests starts at the same second.
const ORIGIN: i64 = 1_800_000_000_000_000_000;
/// Events that a reader has not taken yet; more are dropped, as a real runtime does.
const BACKLOG: usize = 256;

#[derive(Debug)]
pub(super) struct State {
    begun: Instant,
    pub(super) next_id: u64,
    pub(super) images: BTreeMap<String, String>,
    pub(super) registry: Vec<String>,
    pub(super) sandboxes: Vec<FakeSandbox>,
    pub(super) containers: Vec<FakeContainer>,
    pub(super) scripts: BTreeMap<String, Vec<Script>>,
    pub(super) execs: BTreeMap<String, Vec<Exec>>,
    pub(super) logs: BTreeMap<String, String>,
    pub(super) readers: Vec<mpsc::Sender<PodUid>>,
    pub(super) lost_readers: Vec<mpsc::Sender<PodUid>>,
    pub(super) failures: BTreeMap<Call, Vec<Failure>>,
    pub(super) lost_answers: BTreeMap<Call, Failure>,
    pub(super) asked: BTreeMap<Call, usize>,
    pub(super) pulling: Option<Progress>,
    pub(super) latency: Duration,
    /// Of one kind of call, instead.
    pub(super) latencies: BTreeMap<Call, Duration>,
    pub(super) timeline_latency: Duration,
    /// Bytes by container.
    pub(super) in_use: BTreeMap<String, u64>,
    pub(super) log: Vec<String>,
}

#[derive(Debug)]
pub(super) struct FakeSandbox {
    pub(super) uid: PodUid,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) view: Sandbox,
}

#[derive(Debug)]
pub(super) struct FakeContainer {
    pub(super) uid: PodUid,
    pub(super) view: Instance,
    pub(super) script: Script,
    pub(super) ends: Option<(Instant, i32)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            next_id: 0,
            images: BTreeMap::new(),
            registry: Vec::new(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            scripts: BTreeMap::new(),
            execs: BTreeMap::new(),
            logs: BTreeMap::new(),
            readers: Vec::new(),
            lost_readers: Vec::new(),
            failures: BTreeMap::new(),
            lost_answers: BTreeMap::new(),
            asked: BTreeMap::new(),
            pulling: None,
            latency: Duration::ZERO,
            latencies: BTreeMap::new(),
            timeline_latency: Duration::ZERO,
            in_use: BTreeMap::new(),
            log: Vec::new(),
        }
    }
}

impl State {
    pub(super) fn id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}{}", self.next_id)
    }

    /// Ends whatever its script has ended by now.
    pub(super) fn advance(&mut self) {
        if self.containers.iter().all(|c| c.ends.is_none()) {
            return;
        }
        let now = Instant::now();
        let wall = self.wall();
        let mut ended = Vec::new();
        for container in &mut self.containers {
            if let Some((at, code)) = container.ends
                && at <= now
            {
                container.end(code, wall);
                ended.push(container.uid.clone());
            }
        }
        ended.into_iter().for_each(|uid| self.tell(&uid));
    }

    /// Unix nanoseconds.
    pub(super) fn wall(&self) -> i64 {
        ORIGIN + i64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(0)
    }

    /// An event stream.
    pub(super) fn reader(&mut self) -> mpsc::Receiver<PodUid> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.readers.push(sender);
        receiver
    }

    /// Something of this pod has changed.
    pub(super) fn tell(&mut self, uid: &PodUid) {
        self.readers.retain(|reader| !reader.is_closed());
        for reader in &self.readers {
            if reader.try_send(uid.clone()).is_err() {
                tracing::debug!(%uid, "a reader of the fake's events is behind");
            }
        }
    }

    pub(super) fn tell_all(&mut self) {
        let uids: Vec<PodUid> = self.sandboxes.iter().map(|s| s.uid.clone()).collect();
        uids.iter().for_each(|uid| self.tell(uid));
    }

    pub(super) fn end_all(&mut self, which: impl Fn(&FakeContainer) -> bool, code: i32) {
        let wall = self.wall();
        self.containers.iter_mut().filter(|c| which(c)).for_each(|c| c.end(code, wall));
        self.tell_all();
    }

    pub(super) fn container(&mut self, id: &str) -> Result<&mut FakeContainer, Failure> {
        self.containers.iter_mut().find(|c| c.view.id == id).ok_or_else(|| not_found("container", id))
    }

    pub(super) fn start(&mut self, id: &str) -> Result<(), Failure> {
        let container = self.container(id)?;
        if container.view.state != InstanceState::Created {
            return Err(failed(format!("container {id} is not in created state")));
        }
        self.log.push(format!("start {id}"));
        let wall = self.wall();
        let container = self.container(id)?;
        container.view.state = InstanceState::Running { started_at: wall };
        match container.script.clone() {
            Script::FailStart(message) => {
                let exit = Exit {
                    code: 128,
                    reason: "StartError".to_owned(),
                    message: message.clone(),
                    started_at: 0,
                    finished_at: wall,
                };
                container.view.state = InstanceState::Exited(exit);
                Err(failed(message))
            }
            Script::Exit { after, code } => {
                container.ends = Some((Instant::now() + after, code));
                Ok(())
            }
            Script::Serve | Script::Polite | Script::Stubborn => Ok(()),
        }
    }
}

impl FakeContainer {
    pub(super) fn end(&mut self, code: i32, finished_at: i64) {
        self.ends = None;
        if let InstanceState::Running { started_at } = self.view.state {
            let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
            let exit = Exit { code, reason, message: String::new(), started_at, finished_at };
            self.view.state = InstanceState::Exited(exit);
        }
    }

    /// When SIGTERM now and SIGKILL after `grace` will have ended it.
    pub(super) fn terminate(&mut self, grace: Duration) {
        let now = Instant::now();
        let (at, code) = match &self.script {
            _ if grace.is_zero() => (now, 137),
            Script::Serve => (now, 143),
            Script::Polite => (now, 0),
            Script::Stubborn | Script::Exit { .. } | Script::FailStart(_) => (now + grace, 137),
        };
        self.ends = match self.ends {
            Some((earlier, code)) if earlier <= at => Some((earlier, code)),
            _ => Some((at, code)),
        };
    }
}

pub(super) fn failed(message: String) -> Failure {
    Failure::new(FailureKind::Failed, message)
}

pub(super) fn not_found(what: &str, id: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("{what} {id:?} not found"))
}
