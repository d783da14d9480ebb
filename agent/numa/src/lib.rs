//! Which CPUs and which NUMA nodes' memory a container has to itself, as the kubelet's CPU manager, memory manager and
//! topology manager decide it. Owns the rules, the form of the checkpoints and the look at the machine; never changes a
//! cgroup, and never asks a runtime. Called by the agent's admission of pods and by its server of pod resources.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write files"))]

pub mod affinity;
pub mod cpu_assignment;
pub mod cpu_manager;
pub mod cpu_topology;
pub mod cpuset;
mod go_dump;
pub mod hint;
pub mod machine;
pub mod memory_manager;
pub mod node_mask;
pub mod topology_manager;
