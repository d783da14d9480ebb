//! Which CPUs a container has to itself, as the kubelet's CPU manager gives them. Owns the policies none and static, what was
//! given, and its checkpoint's content; never writes a file and never asks a runtime. Called by the agent's admission.
//!
//! A container of a Guaranteed pod that asks for whole CPUs gets these alone ([`static_policy`]); all others share what is
//! left, the reserved CPUs with it. A change is made on a copy, so that it can be written down before it counts.

mod checkpoint;
mod options;
mod static_policy;

use std::collections::BTreeMap;

use gantry_model::pod::{Container, Pod, PodUid};

use crate::cpu_topology::CpuTopology;
use crate::cpuset::CpuSet;
use crate::hint::{Hints, TopologyHint};
pub use options::{OptionGates, StaticOptions};
use static_policy::StaticPolicy;
pub use static_policy::{CpuError, GivenCpus};

/// The checkpoint, in the kubelet's folder.
pub const CPU_MANAGER_STATE: &str = "cpu_manager_state";

/// Pod → container → CPUs.
pub type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// What is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuState {
    /// What everybody shares.
    pub default: CpuSet,
    /// What containers have to themselves.
    pub assigned: Assignments,
}

/// What the manager is made with.
#[derive(Debug, Clone, Default)]
pub struct CpuSettings {
    /// `cpuManagerPolicy`.
    pub policy: String,
    /// `cpuManagerPolicyOptions`.
    pub options: BTreeMap<String, String>,
    pub gates: OptionGates,
    /// `reservedSystemCPUs`.
    pub reserved: CpuSet,
    /// Of kubeReserved and systemReserved, in thousandths.
    pub reserved_milli: i64,
    /// The topology manager's policy is single-numa-node.
    pub single_numa_node: bool,
}

/// The manager. A clone is one of its own, until it takes the other's place.
#[derive(Debug, Clone)]
pub struct CpuManager {
    /// None: all share all.
    policy: Option<StaticPolicy>,
    state: CpuState,
    all: CpuSet,
}

impl CpuManager {
    /// With the policy none, of a machine that nobody has looked at.
    #[must_use]
    pub fn none() -> Self {
        Self { policy: None, state: CpuState::default(), all: CpuSet::new() }
    }

    /// With what an earlier kubelet, ours or upstream's, has left as `checkpoint`, if any.
    ///
    /// # Errors
    /// In upstream's words, without the path of the checkpoint, when the settings don't fit the machine or what is there
    /// doesn't fit the settings.
    pub fn open(
        settings: &CpuSettings,
        topology: &CpuTopology,
        checkpoint: Option<&[u8]>,
    ) -> Result<Self, OpenError> {
        let all: CpuSet = topology.cpus.keys().copied().collect();
        let policy = match settings.policy.as_str() {
            "none" if settings.options.is_empty() => None,
            "none" => {
                // Upstream's words.
                let shown = settings.options.iter().map(|(name, value)| format!("{name}:{value}"));
                let shown = shown.collect::<Vec<_>>().join(" ");
                let why =
                    format!("new none policy error: None policy: received unsupported options=map[{shown}]");
                return Err(OpenError::Settings(why));
            }
            "static" => Some(StaticPolicy::new(settings, topology.clone()).map_err(OpenError::Settings)?),
            other => return Err(OpenError::Settings(format!("unknown policy: {other:?}"))),
        };
        let mut state = CpuState::default();
        if let Some(content) = checkpoint {
            state = checkpoint::decode(content, &settings.policy).map_err(OpenError::Checkpoint)?;
        }
        if let Some(policy) = &policy {
            policy.begin(&mut state).map_err(OpenError::State)?;
        }
        Ok(Self { policy, state, all })
    }

    /// The checkpoint's content.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn checkpoint(&self) -> Result<Vec<u8>, serde_json::Error> {
        checkpoint::encode(if self.policy.is_some() { "static" } else { "none" }, &self.state)
    }

    /// Whether containers can have CPUs to themselves.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.policy.is_some()
    }

    /// Whether containers with CPUs to themselves have whole cores alone (`full-pcpus-only`).
    #[must_use]
    pub fn gives_full_cores(&self) -> bool {
        self.policy.as_ref().is_some_and(StaticPolicy::gives_full_cores)
    }

    #[must_use]
    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// What could be given to containers: all but those that are reserved. Nothing with the policy none.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        self.policy.as_ref().map(|policy| self.all.difference(policy.reserved())).unwrap_or_default()
    }

    /// What nobody has to itself and is not reserved.
    #[must_use]
    pub fn available(&self) -> CpuSet {
        self.policy.as_ref().map(|policy| policy.available(&self.state)).unwrap_or_default()
    }

    /// How many CPUs of each NUMA node are given.
    #[must_use]
    pub fn given_by_node(&self) -> BTreeMap<u32, usize> {
        let mut by_node = BTreeMap::new();
        let given = self.state.assigned.values().flat_map(BTreeMap::values);
        let given: CpuSet = given.flat_map(CpuSet::iter).collect();
        for cpu in given.iter() {
            if let Some(node) = self.policy.as_ref().and_then(|policy| policy.node_of(cpu)) {
                *by_node.entry(node).or_default() += 1;
            }
        }
        by_node
    }

    /// What the container has to itself.
    #[must_use]
    pub fn exclusive(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        self.state.assigned.get(pod.as_str())?.get(container)
    }

    /// Where the container may run. None: anywhere.
    #[must_use]
    pub fn affinity(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        self.policy.as_ref()?;
        Some(self.exclusive(pod, container).unwrap_or(&self.state.default)).filter(|cpus| !cpus.is_empty())
    }

    /// The NUMA nodes whose CPUs the container could be given.
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        self.policy.as_ref().map(|policy| policy.hints(&self.state, pod, container)).unwrap_or_default()
    }

    /// The same for all containers of the pod.
    #[must_use]
    pub fn hints_of_pod(&self, pod: &Pod) -> Hints {
        self.policy.as_ref().map(|policy| policy.hints_of_pod(&self.state, pod)).unwrap_or_default()
    }

    /// Gives the container what it asks for; what it has already it keeps. Nothing is given in part.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<GivenCpus, CpuError> {
        match &mut self.policy {
            None => Ok(GivenCpus::Shared),
            Some(policy) => policy.allocate(&mut self.state, pod, container, hint),
        }
    }

    /// The pod is over: everybody shares what its containers had. Returns whether it had any.
    pub fn forget(&mut self, pod: &PodUid) -> bool {
        if let Some(policy) = &mut self.policy {
            policy.forget(pod);
        }
        let Some(containers) = self.state.assigned.remove(pod.as_str()) else { return false };
        for cpus in containers.into_values() {
            self.state.default.extend(cpus.iter());
        }
        true
    }

    /// All pods but these are over. Returns whether any had some.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) -> bool {
        let over: Vec<PodUid> = self
            .state
            .assigned
            .keys()
            .filter(|pod| !keep(pod))
            .filter_map(|pod| PodUid::parse(pod))
            .collect();
        over.iter().fold(false, |any, pod| self.forget(pod) | any)
    }
}

/// Why no manager can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Of the configuration.
    #[error("{0}")]
    Settings(String),
    /// Of the file itself.
    #[error("could not restore state from checkpoint: {0}")]
    Checkpoint(String),
    /// What the file says doesn't fit the machine or its settings.
    #[error("{0}")]
    State(String),
}

#[cfg(test)]
mod tests;
