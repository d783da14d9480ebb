//! Events into the API: those of pods, read from their workers' lists, and those that others tell of
//! the node or of a pod. Owns the way there; never makes an event up. Called by the kubelet's wiring.
//!
//! listen: here · count, combine, hold back: [`correlate`] (pure) · send: [`post`].

mod correlate;
mod post;

use std::borrow::Cow;
use std::sync::Arc;

use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};

use super::{COMBINED, Event, Kind, NodeNote, Note};
use crate::clock::Clock;
use crate::pod::spec::Pod;
use crate::pod::worker::PodHandle;
use correlate::{About, Happening};

/// Told and not taken yet; what comes on top is lost, and it is said so.
const QUEUE: usize = 1000;

/// Takes events of anybody who has no worker. Cheap to copy; never waits.
#[derive(Debug, Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Happening>,
    clock: Arc<dyn Clock>,
}

/// Which pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This incarnation.
    pub uid: String,
}

impl Recorder {
    /// Of the node.
    pub fn node(&self, note: NodeNote) {
        let NodeNote { kind, reason, message } = note;
        self.tell(About::Node, kind, reason.into(), message);
    }

    /// Of a pod.
    pub fn pod(&self, of: PodRef, note: Note) {
        let PodRef { namespace, name, uid } = of;
        let Note { kind, reason, message, .. } = note;
        self.tell(About::Pod { namespace, name, uid }, kind, reason, message);
    }

    fn tell(&self, about: About, kind: Kind, reason: Cow<'static, str>, message: String) {
        let now = self.clock.wall_nanos();
        let happening = Happening {
            about,
            field: String::new(),
            kind,
            reason,
            message,
            combined: false,
            times: 1,
            first: now,
            last: now,
        };
        if let Err(lost) = self.sender.try_send(happening) {
            let reason = lost.into_inner().reason;
            tracing::error!(%reason, "too many queued events, dropped event");
        }
    }
}

/// What was told, to be posted.
#[derive(Debug)]
pub struct Queue {
    sender: mpsc::Sender<Happening>,
    receiver: mpsc::Receiver<Happening>,
    clock: Arc<dyn Clock>,
}

/// Both ends; what is told before [`run`] waits.
#[must_use]
pub fn queue(clock: Arc<dyn Clock>) -> (Recorder, Queue) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Recorder { sender: sender.clone(), clock: clock.clone() }, Queue { sender, receiver, clock })
}

/// Posts events until the process ends; without a client they are only logged.
#[must_use]
pub fn run(
    client: Option<Client>,
    node: &str,
    queue: Queue,
    pods: watch::Receiver<Arc<[PodHandle]>>,
) -> JoinHandle<()> {
    let Queue { sender, receiver, clock } = queue;
    let poster = post::Poster::new(client, node.to_owned(), clock);
    tokio::spawn(async move {
        // Neither ends by itself while there is an agent.
        tokio::select! {
            () = poster.run(receiver) => {}
            () = listen(pods, sender) => {}
        }
    })
}

/// One ear for each pod.
async fn listen(mut pods: watch::Receiver<Arc<[PodHandle]>>, to: mpsc::Sender<Happening>) {
    // By worker and not by pod: while one ends and comes back, two of one UID are there.
    let mut ears: Vec<(PodHandle, AbortHandle)> = Vec::new();
    loop {
        let now = pods.borrow_and_update().clone();
        ears.retain(|(_, task)| !task.is_finished());
        for handle in now.iter() {
            if !ears.iter().any(|(heard, _)| heard.status.same_channel(&handle.status)) {
                let task = tokio::spawn(hear(handle.clone(), to.clone())).abort_handle();
                ears.push((handle.clone(), task));
            }
        }
        if pods.changed().await.is_err() {
            return;
        }
    }
}

/// What the worker's list has more than the last time; to its end.
async fn hear(handle: PodHandle, to: mpsc::Sender<Happening>) {
    let mut status = handle.status.clone();
    let mut told: Vec<Event> = Vec::new();
    loop {
        let now = status.borrow_and_update().events.clone();
        for happening in news(&handle.pod, &told, &now) {
            // A full queue is waited for: the list keeps what happens meanwhile.
            if to.send(happening).await.is_err() {
                return;
            }
        }
        told = now.to_vec();
        if status.changed().await.is_err() {
            return;
        }
    }
}

fn news(pod: &Pod, told: &[Event], now: &[Event]) -> Vec<Happening> {
    let combined = |event: &Event| event.note.message.starts_with(COMBINED);
    let same = |a: &Event, b: &Event| match (combined(a), combined(b)) {
        (true, true) => (a.note.kind, &a.note.reason) == (b.note.kind, &b.note.reason),
        (false, false) => a.note == b.note,
        _ => false,
    };
    let about =
        About::Pod { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.to_string() };
    let more = now.iter().filter_map(|event| {
        let before = told.iter().find(|old| same(old, event)).map_or(0, |old| old.count);
        // One that was forgotten and came again counts anew.
        let times = if event.count < before { event.count } else { event.count - before };
        (times > 0).then(|| Happening {
            about: about.clone(),
            field: field(pod, &event.note.container),
            kind: event.note.kind,
            reason: event.note.reason.clone(),
            message: event.note.message.clone(),
            combined: combined(event),
            times,
            first: event.first,
            last: event.last,
        })
    });
    let mut more: Vec<Happening> = more.collect();
    more.sort_by_key(|happening| happening.last);
    more
}

/// Where in the pod's spec the container stands.
fn field(pod: &Pod, container: &str) -> String {
    let list = match container {
        "" => return String::new(),
        name if pod.init_containers.iter().any(|c| c.name == name) => "initContainers",
        name if pod.containers.iter().any(|c| c.name == name) => "containers",
        _ => "ephemeralContainers",
    };
    format!("spec.{list}{{{container}}}")
}

#[cfg(test)]
mod tests;
