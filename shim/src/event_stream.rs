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

use crate::status;
use crate::store::event_order::Kind;
use crate::store::{Container, RecordStore, Sandbox};
use gantry_base::mutex::lock;
use gantry_base::timeline::unix_nanos;

/// Events a client may be behind: a few starts of every pod of a full node.
const CAPACITY: usize = 4096;

/// What the RPC answers with.
pub(crate) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The queue of all clients; none once the runtime stops serving.
#[derive(Debug)]
pub(crate) struct EventStream<T> {
    sender: Mutex<Option<broadcast::Sender<Arc<T>>>>,
}

impl<T: Clone + Send + Sync + 'static> Default for EventStream<T> {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl<T: Clone + Send + Sync + 'static> EventStream<T> {
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
    pub(crate) fn subscribe(&self) -> Result<ResponseStream<T>, Status> {
        let receiver = lock(&self.sender).as_ref().map(broadcast::Sender::subscribe);
        let receiver = receiver.ok_or_else(|| Status::unavailable("the runtime is stopping"))?;
        Ok(Box::pin(stream::unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Ok(event) => Some((Ok(Arc::unwrap_or_clone(event)), Some(receiver))),
                Err(RecvError::Lagged(missed)) => Some((Err(lagged_error(missed)), None)),
                Err(RecvError::Closed) => None,
            }
        })))
    }
}

fn lagged_error(missed: u64) -> Status {
    Status::resource_exhausted(format!(
        "{missed} events were missed: read faster, subscribe again, then list containers"
    ))
}

impl EventStream<cri::ContainerEventResponse> {
    /// Tells the clients that a container has come to this point of its life, once.
    pub(crate) fn send_container_event(&self, store: &RecordStore, kind: Kind, container: &Container) {
        container
            .event_order
            .advance(kind, || self.announce(store, kind, &container.id, &container.sandbox_id));
    }

    /// Tells the clients that a sandbox has come to this point of its life, once.
    pub(crate) fn send_sandbox_event(&self, store: &RecordStore, kind: Kind, sandbox: &Sandbox) {
        sandbox.event_order.advance(kind, || self.announce(store, kind, &sandbox.id, &sandbox.id));
    }

    /// Tells the clients that `id` (a container, or the sandbox itself) changed.
    fn announce(&self, store: &RecordStore, kind: Kind, id: &str, sandbox: &str) {
        if !self.has_clients() {
            return;
        }
        let at = unix_nanos();
        let sandbox = store.sandbox(sandbox).ok();
        let pod = sandbox.map(|sandbox| status::sandbox_status(store, &sandbox, at, false));
        let pod = pod.unwrap_or_default();
        self.send(cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: at,
            pod_sandbox_status: pod.status,
            containers_statuses: pod.containers_statuses,
        });
    }
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
        let stream = EventStream::with_capacity(4);
        let (mut slow, mut quick) = (stream.subscribe().unwrap(), stream.subscribe().unwrap());
        for number in 0..6 {
            stream.send(event(number));
            assert_eq!(quick.next().await.unwrap().unwrap().created_at, number);
        }
        let error = slow.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert!(slow.next().await.is_none());
    }

    #[tokio::test]
    async fn a_runtime_that_stops_ends_its_streams() {
        let stream = EventStream::<cri::ContainerEventResponse>::default();
        let mut events = stream.subscribe().unwrap();
        stream.close();
        assert!(events.next().await.is_none());
        assert!(stream.subscribe().is_err());
    }
}
