//! The resources that a pod was admitted with, which it keeps. Pure: owns the record and its comparison; never decides
//! when one is taken. Called by `pod::resize` and `agent`; kept by `checkpoint`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::pod::{Container, Pod, Requirements, Resources};

/// What a pod was admitted with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// Of the pod as a whole.
    pod: Option<Requirements>,
    /// By name.
    containers: BTreeMap<String, Amounts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Amounts {
    resources: Resources,
    written: Requirements,
}

impl Admitted {
    /// As the pod is described.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let one = |container: &Container| {
            let (resources, written) = (container.resources, container.written.clone());
            (container.name.clone(), Amounts { resources, written })
        };
        Self { pod: pod.resources.clone(), containers: pod.every_container().map(one).collect() }
    }

    /// `described`, with these resources. A container that is not known here was admitted as it is.
    #[must_use]
    pub fn keep(&self, described: Arc<Pod>) -> Arc<Pod> {
        let moved = |new: &Container| {
            let old = self.containers.get(&new.name);
            old.is_some_and(|old| old.resources != new.resources || old.written != new.written)
        };
        if described.resources == self.pod && !described.every_container().any(moved) {
            return described;
        }
        let mut pod = Pod { resources: self.pod.clone(), resize_pending: true, ..(*described).clone() };
        let lists = [&mut pod.init_containers, &mut pod.containers, &mut pod.ephemeral_containers];
        for new in lists.into_iter().flatten() {
            let Some(old) = self.containers.get(&new.name) else { continue };
            new.resources = old.resources;
            new.written.clone_from(&old.written);
        }
        Arc::new(pod)
    }
}
