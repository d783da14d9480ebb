//! The NUMA nodes that all of a container's resources should come from. Owns who is asked for hints, in upstream's order, and
//! what is counted; the merge is `gantry-numa`'s. Part of [`super::ResourceManagers`].

use std::time::Instant;

use gantry_model::pod::{Container, Pod};
use gantry_numa::hint::{Hints, TopologyHint};
use gantry_numa::topology_manager::{
    AFFINITY_ERROR_MESSAGE, AFFINITY_ERROR_REASON, TopologyManager, TopologyScope,
};

use super::{Managers, ResourceManagers};
use crate::admission::Rejection;
use crate::devices::{DeviceManager, Reusable};

/// A label of what is counted.
pub(super) const NUMA_NODE: &str = "numa_node";

impl ResourceManagers {
    /// For all of the pod's containers; none where each has its own.
    pub(super) fn align_pod(
        &self,
        (topology, managers): (Option<&TopologyManager>, &Managers),
        pod: &Pod,
        devices: &DeviceManager,
    ) -> Result<Option<TopologyHint>, Rejection> {
        let Some(topology) = topology.filter(|topology| topology.scope() == TopologyScope::Pod) else {
            return Ok(None);
        };
        let of_devices = devices.hints_of_pod(pod, topology.nodes());
        let (of_cpus, of_memory) = (managers.cpu.hints_of_pod(pod), managers.memory.hints_of_pod(pod));
        self.merge(topology, "pod", &[of_devices, of_cpus, of_memory]).map(Some)
    }

    /// For one container of a pod that has none as a whole.
    pub(super) fn align_container(
        &self,
        (topology, managers): (Option<&TopologyManager>, &Managers),
        pod: &Pod,
        container: &Container,
        devices: &DeviceManager,
        reusable: &Reusable,
    ) -> Result<TopologyHint, Rejection> {
        let Some(topology) = topology else { return Ok(TopologyHint::default()) };
        let of_devices = devices.hints(pod, container, reusable, topology.nodes());
        let of_cpus = managers.cpu.hints(pod, container);
        let of_memory = managers.memory.hints_of_container(pod, container);
        self.merge(topology, "container", &[of_devices, of_cpus, of_memory])
    }

    /// Counts a pod that is asked for.
    pub(super) fn begin_request(&self) -> Instant {
        self.0.metrics.topology_manager_requests.inc([]);
        Instant::now()
    }

    /// Counts what came of it.
    pub(super) fn end_request(&self, begun: Instant, is_refused: bool) {
        let metrics = &self.0.metrics;
        if is_refused && self.0.topology.is_some() {
            metrics.topology_manager_errors.inc([]);
        }
        metrics.topology_manager_duration.observe([], begun.elapsed().as_secs_f64() * 1000.0);
    }

    /// All that a policy promises to align is given.
    pub(super) fn count_aligned(&self, topology: Option<&TopologyManager>, scope: &str) {
        if topology.is_some_and(|topology| topology.policy().guarantees_alignment()) {
            self.0.metrics.aligned_compute_resources.inc([scope, NUMA_NODE]);
        }
    }

    fn merge(
        &self,
        topology: &TopologyManager,
        scope: &str,
        hints: &[Hints],
    ) -> Result<TopologyHint, Rejection> {
        let (hint, is_admitted) = topology.merge(hints);
        let metrics = &self.0.metrics;
        if is_admitted {
            return Ok(hint);
        }
        if topology.policy().guarantees_alignment() {
            metrics.aligned_compute_resources_failures.inc([scope, NUMA_NODE]);
        }
        Err(Rejection::new(AFFINITY_ERROR_REASON, AFFINITY_ERROR_MESSAGE))
    }
}
