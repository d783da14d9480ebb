//! Container events for the clients of GetContainerEvents: which object changed how, with the pod's
//! whole status at that moment, as containerd sends them. Owns the bounded queue and the order of the
//! events of one object; a client that does not keep up is dropped with an error and lists anew. Called
//! by whatever changes a state, and by the RPC handler.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use gantry_proto::cri;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_stream::Stream;
use tonic::Status;

use crate::cri::show;
use crate::node::Node;
use crate::mutex::lock;
use crate::store::{Container, Sandbox};
use crate::timeline::unix_nanos;

pub(crate) use cri::ContainerEventType as Kind;

/// Events a client may be behind: a few starts of every pod of a full node.
const CAPACITY: usize = 4096;

/// What the RPC answers with.
pub(crate) type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The queue of all clients; none once the runtime stops serving.
#[derive(Debug)]
pub(crate) struct Feed<T> {
    sender: Mutex<Option<broadcast::Sender<Arc<T>>>>,
}

impl<T: Clone + Send + Sync + 'static> Default for Feed<T> {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl<T: Clone + Send + Sync + 'static> Feed<T> {
    fn with_capacity(capacity: usize) -> Self {
        Self { sender: Mutex::new(Some(broadcast::Sender::new(capacity))) }
    }

    fn has_clients(&self) -> bool {
        lock(&self.sender).as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }

    pub(crate) fn send(&self, event: T) {
        if let Some(sender) = &*lock(&self.sender) {
            // Without clients nobody wants it: whoever comes lists first.
            let _ = sender.send(Arc::new(event));
        }
    }

    /// Ends every stream: the server waits for open answers when it stops.
    pub(crate) fn close(&self) {
        lock(&self.sender).take();
    }

    /// Everything from now on. Ends with an error when the client fell behind.
    ///
    /// # Errors
    /// When the runtime is stopping.
    pub(crate) fn subscribe(&self) -> Result<Events<T>, Status> {
        let receiver = lock(&self.sender).as_ref().map(broadcast::Sender::subscribe);
        let receiver = receiver.ok_or_else(|| Status::unavailable("the runtime is stopping"))?;
        Ok(Box::pin(stream::unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Ok(event) => Some((Ok(Arc::unwrap_or_clone(event)), Some(receiver))),
                Err(RecvError::Lagged(missed)) => Some((Err(behind(missed)), None)),
                Err(RecvError::Closed) => None,
            }
        })))
    }
}

fn behind(missed: u64) -> Status {
    Status::resource_exhausted(format!(
        "{missed} events were missed: read faster, subscribe again, then list containers"
    ))
}

/// What the clients have been told last of a container or a sandbox. The news of an end may overtake the answer to the
/// start, and a removal whoever tells of the end: nobody hears of them in another order than CRI's.
#[derive(Debug, Default)]
pub(crate) struct Story(Mutex<Option<Kind>>);

impl Story {
    /// Of an object that is found at this point of its life: what was before has been told, or nobody was there.
    #[must_use]
    pub(crate) fn at(kind: Kind) -> Self {
        Self(Mutex::new(Some(kind)))
    }

    /// Says `tell` under the lock, if it is news.
    fn go_on(&self, kind: Kind, tell: impl FnOnce()) {
        let mut last = lock(&self.0);
        // The numbers of CRI's kinds are in the order of a life.
        if last.is_none_or(|last| last < kind) {
            *last = Some(kind);
            tell();
        }
    }
}

/// Tells the clients that a container has come to this point of its life, once.
pub(crate) fn of_container(node: &Node, kind: Kind, container: &Container) {
    container.story.go_on(kind, || announce(node, kind, &container.id, &container.sandbox_id));
}

/// Tells the clients that a sandbox has come to this point of its life, once.
pub(crate) fn of_sandbox(node: &Node, kind: Kind, sandbox: &Sandbox) {
    sandbox.story.go_on(kind, || announce(node, kind, &sandbox.id, &sandbox.id));
}

/// Tells the clients that `id` (a container, or the sandbox itself) changed.
fn announce(node: &Node, kind: Kind, id: &str, sandbox: &str) {
    if !node.feed.has_clients() {
        return;
    }
    let at = unix_nanos();
    let sandbox = node.store.sandbox(sandbox).ok();
    let pod = sandbox.map(|sandbox| show::sandbox_status(&node.store, &sandbox, at, false));
    let pod = pod.unwrap_or_default();
    node.feed.send(cri::ContainerEventResponse {
        container_id: id.to_owned(),
        container_event_type: kind.into(),
        created_at: at,
        pod_sandbox_status: pod.status,
        containers_statuses: pod.containers_statuses,
    });
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    fn event(number: i64) -> cri::ContainerEventResponse {
        cri::ContainerEventResponse { created_at: number, ..cri::ContainerEventResponse::default() }
    }

    #[tokio::test]
    async fn a_client_that_falls_behind_is_dropped_with_an_error_and_the_others_are_not() {
        let feed = Feed::with_capacity(4);
        let (mut slow, mut quick) = (feed.subscribe().unwrap(), feed.subscribe().unwrap());
        for number in 0..6 {
            feed.send(event(number));
            assert_eq!(quick.next().await.unwrap().unwrap().created_at, number);
        }
        let error = slow.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert!(slow.next().await.is_none());
    }

    #[test]
    fn nothing_is_told_twice_or_after_what_comes_later() {
        let told = Mutex::new(Vec::new());
        let tell = |story: &Story, kind| story.go_on(kind, || lock(&told).push(kind));
        let story = Story::default();
        // The end is known before the answer to the start.
        for kind in [
            Kind::ContainerCreatedEvent,
            Kind::ContainerStartedEvent,
            Kind::ContainerStoppedEvent,
            Kind::ContainerStartedEvent,
            Kind::ContainerDeletedEvent,
            Kind::ContainerStoppedEvent,
        ] {
            tell(&story, kind);
        }
        let life = [
            Kind::ContainerCreatedEvent,
            Kind::ContainerStartedEvent,
            Kind::ContainerStoppedEvent,
            Kind::ContainerDeletedEvent,
        ];
        assert_eq!(*lock(&told), life);
        tell(&Story::at(Kind::ContainerStoppedEvent), Kind::ContainerStartedEvent);
        assert_eq!(lock(&told).len(), life.len());
    }

    #[tokio::test]
    async fn a_runtime_that_stops_ends_its_streams() {
        let feed = Feed::<cri::ContainerEventResponse>::default();
        let mut events = feed.subscribe().unwrap();
        feed.close();
        assert!(events.next().await.is_none());
        assert!(feed.subscribe().is_err());
    }
}
