//! The NUMA nodes that all of a container's resources should come from. Owns who is asked for hints, in upstream's order, and
//! what is counted; the merge is `gantry-numa`'s. Part of [`super::ResourceManagers`].

use gantry_model::pod::{Container, Pod};
use gantry_numa::hint::{Hints, TopologyHint};
use gantry_numa::topology_manager::{AFFINITY_ERROR_MESSAGE, AFFINITY_ERROR_REASON, TopologyManager};

use super::{Managers, ResourceManagers};
use crate::admission::Rejection;
use crate::devices::{DeviceManager, Reusable};

/// A label of what is counted.
pub(super) const NUMA_NODE: &str = "numa_node";

impl ResourceManagers {
    pub(super) fn align_container(
        &self,
        (topology, managers): (&TopologyManager, &Managers),
        pod: &Pod,
        container: &Container,
        devices: &DeviceManager,
        reusable: &Reusable,
    ) -> Result<TopologyHint, Rejection> {
        let of_devices = devices.hints(pod, container, reusable, topology.nodes());
        let of_cpus = managers.cpu.hints(pod, container);
        let of_memory = managers.memory.hints_of_container(pod, container);
        self.merge(topology, "container", &[of_devices, of_cpus, of_memory])
    }

    pub(super) fn align_pod(
        &self,
        (topology, managers): (&TopologyManager, &Managers),
        pod: &Pod,
        devices: &DeviceManager,
    ) -> Result<TopologyHint, Rejection> {
        let of_devices = devices.hints_of_pod(pod, topology.nodes());
        let (of_cpus, of_memory) = (managers.cpu.hints_of_pod(pod), managers.memory.hints_of_pod(pod));
        self.merge(topology, "pod", &[of_devices, of_cpus, of_memory])
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
