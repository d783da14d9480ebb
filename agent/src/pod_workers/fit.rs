//! The node as admission sees it, as its object changes. Owns the task that follows it; never judges a
//! pod. Called by the kubelet's assembly, which hands the result to [`super::PodWorkers::admit_by`].

#![expect(clippy::disallowed_methods, reason = "the handle is the caller's, who ends it")]

use std::sync::Arc;

use k8s_openapi::api::core::v1 as api;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admission::Node;
use crate::manifest::api::{NodeSettings, node};

/// What admission looks at.
type AdmissionNode = Option<Arc<Node>>;

/// The present state is there when this returns; the task ends when nobody listens, or nobody tells.
#[must_use]
pub fn follow(
    mut object: watch::Receiver<Option<Arc<api::Node>>>,
    settings: NodeSettings,
) -> (watch::Receiver<AdmissionNode>, JoinHandle<()>) {
    let now = to_admission_node(object.borrow_and_update().as_deref(), &settings);
    let (sender, receiver) = watch::channel(now);
    let task = tokio::spawn(async move {
        loop {
            // Both are cancel-safe: nothing is taken out of either.
            tokio::select! {
                changed = object.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
            let next = to_admission_node(object.borrow_and_update().as_deref(), &settings);
            sender.send_if_modified(|old| {
                let new = *old != next;
                if new {
                    *old = next;
                }
                new
            });
        }
    });
    (receiver, task)
}

fn to_admission_node(object: Option<&api::Node>, settings: &NodeSettings) -> AdmissionNode {
    object.map(|object| Arc::new(node(object, settings)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_node_is_followed_as_it_changes() {
        let object = |zone: &str| {
            let text = format!(
                "{{\"metadata\":{{\"name\":\"n\",\"labels\":{{\"zone\":\"{zone}\"}}}},\
                   \"status\":{{\"allocatable\":{{\"cpu\":\"1500m\",\"memory\":\"1Gi\"}}}}}}"
            );
            Some(Arc::new(serde_json::from_str::<api::Node>(&text).unwrap()))
        };
        let (sender, receiver) = watch::channel(None);
        let (mut seen, task) = follow(receiver, NodeSettings::default());
        assert_eq!(*seen.borrow(), None);
        sender.send_replace(object("a"));
        let node = seen.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_eq!(
            (node.allocatable.get("cpu"), node.allocatable.get("memory")),
            (Some(&1500), Some(&(1 << 30)))
        );
        sender.send_replace(object("b"));
        seen.wait_for(|n| n.as_ref().is_some_and(|n| n.labels.get("zone").is_some_and(|z| z == "b")))
            .await
            .unwrap();
        drop(seen);
        task.await.unwrap();
    }
}
