//! What is said of a shutdown, in upstream's words. Pure. Read by [`super::end`], [`super::run`] and by explain.

use crate::events::{Kind, NodeNote};
use crate::pod::PodFailure;

/// Of a pod's status.
pub(crate) const REASON: &str = "Terminated";
/// Of a pod's status and of its condition DisruptionTarget.
pub(crate) const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// What becomes of each pod.
pub(super) fn verdict() -> PodFailure {
    PodFailure { reason: REASON.to_owned(), message: MESSAGE.to_owned(), disrupted: Some(MESSAGE.to_owned()) }
}

/// An event of the node.
pub(super) fn announced(begins: bool) -> NodeNote {
    let what = if begins { "event" } else { "cancellation" };
    let message = format!("Shutdown manager detected shutdown {what}");
    NodeNote { kind: Kind::Normal, reason: "Shutdown", message }
}
