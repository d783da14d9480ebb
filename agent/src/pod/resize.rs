//! A resize in place, which this kubelet does not do: what a pod was admitted with stays, whatever the
//! API asks for later, and whichever agent looks after the pod then. Pure: owns its words, and the
//! comparison with [`Admitted`]; never changes a cgroup. Called by [`crate::pod_workers`] when a pod is described anew, or taken up
//! again.
//!
//! Containers that start again, the status and the admission of other pods all read the description,
//! so the admitted numbers are put back into it: nothing sees half of a resize.

use std::sync::Arc;

use gantry_model::admitted::Admitted;
use gantry_model::pod::Pod;

/// The condition's reason, upstream's own.
pub(crate) const REASON: &str = "Infeasible";
/// And its message.
pub(crate) const MESSAGE: &str =
    "In-place resize is not supported by this kubelet; the pod keeps the resources it was admitted with";

/// `described`, with the resources of `admitted`.
pub(crate) fn keep(admitted: &Pod, described: Arc<Pod>) -> Arc<Pod> {
    Admitted::of(admitted).keep(described)
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::{Container, Requirements, Resources};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn sized(cpu: i64) -> Container {
        let text = [("cpu".to_owned(), format!("{cpu}m"))];
        Container {
            resources: Resources { cpu_request: Some(cpu), ..Resources::default() },
            written: Requirements { requests: text.into(), ..Requirements::default() },
            ..container("a")
        }
    }

    #[test]
    fn a_resize_keeps_what_was_admitted_and_takes_the_rest() {
        let admitted = Pod { containers: vec![sized(100)], ..pod() };
        let mut wanted = Pod { containers: vec![sized(500)], generation: 2, ..pod() };
        wanted.containers[0].image = "new".into();
        let kept = keep(&admitted, Arc::new(wanted));
        assert_eq!(kept.containers[0].resources, admitted.containers[0].resources);
        assert_eq!(kept.containers[0].written, admitted.containers[0].written);
        assert_eq!((kept.containers[0].image.as_str(), kept.generation), ("new", 2));
        assert!(kept.resize_pending);
        // The pod as a whole, too.
        let own = Requirements { limits: [("cpu".to_owned(), "1".to_owned())].into(), ..Default::default() };
        let wanted = Pod { containers: vec![sized(100)], resources: Some(own), ..pod() };
        let kept = keep(&admitted, Arc::new(wanted));
        assert_eq!((&kept.resources, kept.resize_pending), (&None, true));
    }

    #[test]
    fn a_resize_that_is_taken_back_is_pending_no_more() {
        let admitted = Pod { containers: vec![sized(100)], ..pod() };
        let resized = keep(&admitted, Arc::new(Pod { containers: vec![sized(500)], ..pod() }));
        let back = Arc::new(admitted.clone());
        assert_eq!(*keep(&resized, back), admitted);
        // An ephemeral container that is new has been admitted with nothing.
        let more = Pod { ephemeral_containers: vec![container("debug")], ..admitted.clone() };
        assert!(!keep(&admitted, Arc::new(more)).resize_pending);
    }
}
