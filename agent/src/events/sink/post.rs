//! Posts events, one after the other. Owns the requests and their retries; never decides which are
//! told. Called by [`super::post`].

use std::sync::Arc;
use std::time::Duration;

use gantry_model::clock::Clock;
use gantry_model::random;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::correlate::{About, Correlator, EventDecision, Happening, Posted};

/// client-go's: a server that cannot be reached is tried so often, this long apart.
const TRIES: usize = 12;
const PAUSE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);
/// Of an event's name; the API server allows 253.
const MOST_NAME: usize = 230;

pub(super) struct Poster {
    client: Option<Client>,
    node: String,
    clock: Arc<dyn Clock>,
    correlator: Correlator,
    /// The last name's time: no two are the same.
    named: i64,
}

/// How a request went.
enum PostOutcome {
    Done,
    /// There is no such event any more.
    Gone,
    /// It would be refused again.
    Refused(String),
    /// Nobody answered.
    Later(String),
}

impl Poster {
    pub(super) fn new(client: Option<Client>, node: String, clock: Arc<dyn Clock>) -> Self {
        Self { client, node, clock, correlator: Correlator::default(), named: 0 }
    }

    /// Until nobody tells any more.
    pub(super) async fn run(mut self, mut receiver: mpsc::Receiver<Happening>) {
        while let Some(happening) = receiver.recv().await {
            let Happening { about, kind, reason, message, .. } = &happening;
            tracing::debug!(?about, kind = kind.as_str(), %reason, message, "event");
            let happening = self.correlator.combine(happening);
            self.take(&happening).await;
        }
    }

    async fn take(&mut self, happening: &Happening) {
        let Some(client) = self.client.clone() else { return };
        let fresh = self.name(happening);
        let mut verdict = self.correlator.judge(happening, fresh, self.clock.mono());
        let mut tried = 0;
        loop {
            let outcome = match &verdict {
                EventDecision::Hold => return,
                EventDecision::Create(posted) => create(&client, &self.node, happening, posted).await,
                EventDecision::Count(posted) => count(&client, happening, posted).await,
            };
            match outcome {
                PostOutcome::Done => return,
                PostOutcome::Gone => {
                    // Events live for an hour; this one begins a new series.
                    let EventDecision::Count(old) = verdict else { return };
                    verdict = EventDecision::Create(old);
                    continue;
                }
                PostOutcome::Refused(error) => {
                    tracing::warn!(reason = %happening.reason, error, "the server rejected an event");
                    self.correlator.forget(happening);
                    return;
                }
                PostOutcome::Later(error) => {
                    tried += 1;
                    if tried >= TRIES {
                        tracing::error!(reason = %happening.reason, error, "unable to write event");
                        return;
                    }
                    let pause = if tried == 1 { PAUSE.mul_f64(random::fraction()) } else { PAUSE };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// As upstream: the object's name and the time.
    fn name(&mut self, happening: &Happening) -> String {
        self.named = self.clock.wall_nanos().max(self.named.saturating_add(1));
        let name = match &happening.about {
            About::Node => self.node.as_str(),
            About::Pod { name, .. } | About::Claim { name, .. } | About::Volume { name, .. } => name,
        };
        let name = name.get(..name.floor_char_boundary(MOST_NAME)).unwrap_or(name);
        format!("{name}.{:x}", self.named)
    }
}

async fn create(client: &Client, node: &str, happening: &Happening, posted: &Posted) -> PostOutcome {
    let event = event(node, happening, posted);
    let events = Api::<Event>::namespaced(client.clone(), namespace(&happening.about));
    let asked = async { events.create(&PostParams::default(), &event).await };
    outcome(timeout(PATIENCE, asked).await.map(|answer| answer.map(drop)), false)
}

async fn count(client: &Client, happening: &Happening, posted: &Posted) -> PostOutcome {
    let patch = Patch::Strategic(json!({
        "count": posted.count,
        "lastTimestamp": time(happening.last),
        "message": happening.message,
    }));
    let events = Api::<Event>::namespaced(client.clone(), namespace(&happening.about));
    let parameters = PatchParams::default();
    let asked = events.patch(&posted.name, &parameters, &patch);
    outcome(timeout(PATIENCE, asked).await.map(|answer| answer.map(drop)), true)
}

fn outcome(
    answer: Result<Result<(), kube::Error>, tokio::time::error::Elapsed>,
    patched: bool,
) -> PostOutcome {
    match answer {
        Ok(Ok(())) => PostOutcome::Done,
        Ok(Err(kube::Error::Api(status))) if patched && status.code == 404 => PostOutcome::Gone,
        // Tried before, and the answer was lost.
        Ok(Err(kube::Error::Api(status))) if !patched && status.reason == "AlreadyExists" => {
            PostOutcome::Done
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 429 => PostOutcome::Later(status.message.clone()),
        Ok(Err(kube::Error::Api(status))) => PostOutcome::Refused(status.message.clone()),
        Ok(Err(error)) => PostOutcome::Later(error.to_string()),
        Err(_) => PostOutcome::Later("no answer".to_owned()),
    }
}

/// What is in none has its events in this one.
fn namespace(about: &About) -> &str {
    match about {
        About::Node | About::Volume { .. } => "default",
        About::Pod { namespace, .. } | About::Claim { namespace, .. } => namespace,
    }
}

fn time(nanos: i64) -> Option<Time> {
    Timestamp::from_nanosecond(i128::from(nanos)).ok().map(Time)
}

/// What the event is about, in the API's form.
fn object(node: &str, happening: &Happening) -> ObjectReference {
    let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let of = |kind: &str, name: &str| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    };
    let (kind, namespace, name, uid) = match &happening.about {
        About::Node => return of("Node", node),
        About::Volume { name, uid } => {
            return ObjectReference { uid: Some(uid.clone()), ..of("PersistentVolume", name) };
        }
        About::Pod { namespace, name, uid } => ("Pod", namespace, name, uid),
        About::Claim { namespace, name, uid } => ("PersistentVolumeClaim", namespace, name, uid),
    };
    ObjectReference {
        namespace: Some(namespace.clone()),
        uid: Some(uid.clone()),
        field_path: filled(&happening.field),
        ..of(kind, name)
    }
}

fn event(node: &str, happening: &Happening, posted: &Posted) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(posted.name.clone()),
            namespace: Some(namespace(&happening.about).to_owned()),
            annotations: (!happening.annotations.is_empty()).then(|| happening.annotations.clone()),
            ..ObjectMeta::default()
        },
        involved_object: object(node, happening),
        reason: Some(happening.reason.to_string()),
        message: Some(happening.message.clone()),
        type_: Some(happening.kind.as_str().to_owned()),
        count: i32::try_from(posted.count).ok(),
        first_timestamp: time(posted.first),
        last_timestamp: time(happening.last),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}
