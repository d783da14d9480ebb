//! What clients of GetContainerEvents have been told of one container or sandbox. Owns the order: nothing is told twice,
//! or after what comes later in a life. Kept with the object; called by `event_stream`.

use std::sync::Mutex;

use gantry_proto::cri;

use gantry_base::mutex::lock;

pub(crate) use cri::ContainerEventType as Kind;

/// What the clients have been told last of a container or a sandbox. The news of an end may overtake the answer to the
/// start, and a removal whoever tells of the end: nobody hears of them in another order than CRI's.
#[derive(Debug, Default)]
pub(crate) struct EventOrder(Mutex<Option<Kind>>);

impl EventOrder {
    /// Of an object that is found at this point of its life: what was before has been told, or nobody was there.
    #[must_use]
    pub(crate) fn at(kind: Kind) -> Self {
        Self(Mutex::new(Some(kind)))
    }

    /// Says `tell` under the lock, if it is news.
    pub(crate) fn advance(&self, kind: Kind, tell: impl FnOnce()) {
        let mut last = lock(&self.0);
        // The numbers of CRI's kinds are in the order of a life.
        if last.is_none_or(|last| last < kind) {
            *last = Some(kind);
            tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_twice_or_after_what_comes_later() {
        let told = Mutex::new(Vec::new());
        let tell = |order: &EventOrder, kind| order.advance(kind, || lock(&told).push(kind));
        let order = EventOrder::default();
        // The end is known before the answer to the start.
        for kind in [
            Kind::ContainerCreatedEvent,
            Kind::ContainerStartedEvent,
            Kind::ContainerStoppedEvent,
            Kind::ContainerStartedEvent,
            Kind::ContainerDeletedEvent,
            Kind::ContainerStoppedEvent,
        ] {
            tell(&order, kind);
        }
        let life = [
            Kind::ContainerCreatedEvent,
            Kind::ContainerStartedEvent,
            Kind::ContainerStoppedEvent,
            Kind::ContainerDeletedEvent,
        ];
        assert_eq!(*lock(&told), life);
        tell(&EventOrder::at(Kind::ContainerStoppedEvent), Kind::ContainerStartedEvent);
        assert_eq!(lock(&told).len(), life.len());
    }
}
