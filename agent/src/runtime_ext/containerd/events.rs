//! containerd's event stream, of which OOM events are listened to. Owns the subscription. Writes [`Ooms`].

use containerd_client::events::TaskOom;
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::types::Envelope;
use prost::Message;
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::{NAMESPACE, named};
use crate::runtime_ext::oom_counts::Ooms;
use crate::runtime_ext::renew::subscribe_forever;

const TOPIC: &str = "/tasks/oom";
/// One event is an ID and a few names.
const MAX_MESSAGE: usize = 64 << 10;
/// Until nobody listens.
pub(super) async fn follow(channel: Channel, told: watch::Sender<Ooms>) {
    subscribe_forever(&told, || subscribe(&channel, &told)).await;
}

/// One subscription, to its end. containerd answers with the first event, however late: there is no
/// deadline.
async fn subscribe(channel: &Channel, told: &watch::Sender<Ooms>) -> Result<(), Status> {
    let filters = vec![format!("namespace==\"{NAMESPACE}\",topic==\"{TOPIC}\"")];
    let mut client = EventsClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    let mut events: Streaming<Envelope> =
        client.subscribe(named(SubscribeRequest { filters })).await?.into_inner();
    while let Some(event) = events.message().await? {
        match container(&event) {
            Some(id) => {
                told.send_if_modified(|ooms| ooms.add(&id));
            }
            None => tracing::debug!(topic = event.topic, "an event that was not asked for"),
        }
    }
    Ok(())
}

/// Whom an OOM event is about.
fn container(event: &Envelope) -> Option<String> {
    let any = event.event.as_ref().filter(|_| event.namespace == NAMESPACE && event.topic == TOPIC)?;
    // The type's name, with or without a server in front of it.
    if any.type_url.rsplit('/').next() != Some("containerd.events.TaskOOM") {
        return None;
    }
    TaskOom::decode(any.value.as_slice()).ok().map(|oom| oom.container_id)
}

#[cfg(test)]
mod tests {
    use prost_types::Any;

    use super::*;

    #[test]
    fn only_an_oom_of_a_kubelets_container_is_one() {
        let event = |namespace: &str, topic: &str, type_url: &str, value: Vec<u8>| Envelope {
            timestamp: None,
            namespace: namespace.into(),
            topic: topic.into(),
            event: Some(Any { type_url: type_url.into(), value }),
        };
        let value = TaskOom { container_id: "c1".into() }.encode_to_vec();
        let good = "containerd.events.TaskOOM";
        assert_eq!(container(&event(NAMESPACE, TOPIC, good, value.clone())).as_deref(), Some("c1"));
        let long = format!("types.googleapis.com/{good}");
        assert_eq!(container(&event(NAMESPACE, TOPIC, &long, value.clone())).as_deref(), Some("c1"));
        assert_eq!(container(&event("moby", TOPIC, good, value.clone())), None);
        assert_eq!(container(&event(NAMESPACE, "/tasks/exit", good, value.clone())), None);
        assert_eq!(container(&event(NAMESPACE, TOPIC, "containerd.events.TaskExit", value)), None);
        assert_eq!(container(&event(NAMESPACE, TOPIC, good, vec![0xff])), None);
        let empty = Envelope { event: None, ..event(NAMESPACE, TOPIC, good, vec![]) };
        assert_eq!(container(&empty), None);
    }
}
