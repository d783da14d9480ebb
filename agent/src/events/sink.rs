//! Events into the API: those of pods, from their workers' lists, and those that others tell of the node or
//! of a pod. Owns the way there; never makes an event up. Called by [`crate::pod_workers::events`], which listens
//! to the workers.
//!
//! take: here · count, combine, hold back: [`correlate`] (pure) · send: [`post`].

mod correlate;
mod post;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_model::clock::Clock;
use gantry_model::pod::Pod;
use kube::Client;
use tokio::sync::mpsc;

use super::{COMBINED, ClaimIdentity, Event, Kind, NodeNote, Note, VolumeIdentity};
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
        self.tell(About::Node, kind, reason.into(), message, BTreeMap::new());
    }

    /// Of a pod.
    pub fn pod(&self, of: PodRef, note: Note) {
        let PodRef { namespace, name, uid } = of;
        let Note { kind, reason, message, annotations, .. } = note;
        self.tell(About::Pod { namespace, name, uid }, kind, reason, message, annotations);
    }

    /// Of a claim.
    pub(crate) fn claim(&self, of: ClaimIdentity, note: Note) {
        let ClaimIdentity { namespace, name, uid } = of;
        let Note { kind, reason, message, annotations, .. } = note;
        self.tell(About::Claim { namespace, name, uid }, kind, reason, message, annotations);
    }

    /// Of a PersistentVolume.
    pub(crate) fn volume(&self, of: VolumeIdentity, note: Note) {
        let VolumeIdentity { name, uid } = of;
        let Note { kind, reason, message, annotations, .. } = note;
        self.tell(About::Volume { name, uid }, kind, reason, message, annotations);
    }

    /// Of a pod, what its list has more than it had; waits for room, and is false when nobody posts any
    /// more.
    pub(crate) async fn more(&self, pod: &Pod, had: &[Event], has: &[Event]) -> bool {
        for happening in news(pod, had, has) {
            // A full queue is waited for: the list keeps what happens meanwhile.
            if self.sender.send(happening).await.is_err() {
                return false;
            }
        }
        true
    }

    fn tell(
        &self,
        about: About,
        kind: Kind,
        reason: Cow<'static, str>,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        let now = self.clock.wall_nanos();
        let happening = Happening {
            about,
            field: String::new(),
            kind,
            reason,
            message,
            annotations,
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
    recorder: Recorder,
    receiver: mpsc::Receiver<Happening>,
}

impl Queue {
    /// The end that takes events.
    pub(crate) fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }
}

/// Both ends; what is told before [`post`] waits.
#[must_use]
pub(crate) fn queue(clock: Arc<dyn Clock>) -> (Recorder, Queue) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let recorder = Recorder { sender, clock };
    (recorder.clone(), Queue { recorder, receiver })
}

/// Posts events while anybody can tell of one; without a client they are only logged.
pub(crate) async fn post(client: Option<Client>, node: String, queue: Queue) {
    let Queue { recorder, receiver } = queue;
    post::Poster::new(client, node, recorder.clock).run(receiver).await;
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
            annotations: event.note.annotations.clone(),
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
