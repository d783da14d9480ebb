//! One answer from the hints of all managers, and whether the pod is let run with it: the kubelet's topology manager. Pure:
//! owns the policies and upstream's words of refusal; never asks a manager, and never gives anything. Called by the agent's
//! admission of pods.

mod merge;
mod numa_info;
mod options;

use std::collections::BTreeMap;

pub use numa_info::NumaInfo;
pub use options::{OptionsError, TopologyOptions};

use crate::hint::{Hints, TopologyHint};

/// The reason of a pod that is not let run.
pub const AFFINITY_ERROR_REASON: &str = "TopologyAffinityError";
/// Its message.
pub const AFFINITY_ERROR_MESSAGE: &str = "Resources cannot be allocated with Topology locality";

/// `topologyManagerPolicy` of the kubelet's configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// No manager is asked.
    #[default]
    None,
    /// Every pod is let run.
    BestEffort,
    /// A pod is let run only where each manager prefers it.
    Restricted,
    /// A pod is let run only where one node has all that it is given.
    SingleNumaNode,
}

impl TopologyPolicy {
    fn of(name: &str) -> Option<Self> {
        [Self::None, Self::BestEffort, Self::Restricted, Self::SingleNumaNode]
            .into_iter()
            .find(|policy| policy.name() == name)
    }

    /// As the configuration has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
        }
    }

    /// Whether what it lets run is aligned in any case: only then does the kubelet count alignments.
    #[must_use]
    pub fn guarantees_alignment(self) -> bool {
        self == Self::SingleNumaNode
    }
}

/// `topologyManagerScope` of the kubelet's configuration: what one answer is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopologyScope {
    /// One container.
    #[default]
    Container,
    /// All containers of a pod.
    Pod,
}

impl TopologyScope {
    fn of(name: &str) -> Option<Self> {
        [Self::Container, Self::Pod].into_iter().find(|scope| scope.name() == name)
    }

    /// As the configuration has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

/// Why there can be no topology manager, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
    #[error("unsupported on machines with more than {most} NUMA Nodes")]
    TooManyNodes { most: usize },
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error("unknown scope: \"{0}\"")]
    UnknownScope(String),
}

/// The topology manager.
#[derive(Debug, Clone)]
pub struct TopologyManager {
    policy: TopologyPolicy,
    scope: TopologyScope,
    options: TopologyOptions,
    numa: NumaInfo,
}

impl TopologyManager {
    /// By `topologyManagerPolicy`, `topologyManagerScope` and `topologyManagerPolicyOptions`. As upstream, `none` looks at
    /// none of the others.
    ///
    /// # Errors
    /// When a name is unknown, an option's value is wrong, or the machine has too many nodes or tells no distances.
    pub fn new(
        policy: &str,
        scope: &str,
        options: &BTreeMap<String, String>,
        numa: NumaInfo,
    ) -> Result<Self, TopologyError> {
        if policy == TopologyPolicy::None.name() {
            let (policy, scope) = (TopologyPolicy::None, TopologyScope::Container);
            return Ok(Self { policy, scope, options: TopologyOptions::default(), numa });
        }
        let options = TopologyOptions::parse(options)?;
        if options.prefer_closest && !numa.knows_distances() {
            return Err(TopologyError::NoDistances);
        }
        if numa.nodes().len() > options.most_nodes {
            return Err(TopologyError::TooManyNodes { most: options.most_nodes });
        }
        let policy =
            TopologyPolicy::of(policy).ok_or_else(|| TopologyError::UnknownPolicy(policy.to_owned()))?;
        let scope = TopologyScope::of(scope).ok_or_else(|| TopologyError::UnknownScope(scope.to_owned()))?;
        Ok(Self { policy, scope, options, numa })
    }

    /// In force.
    #[must_use]
    pub fn policy(&self) -> TopologyPolicy {
        self.policy
    }

    /// In force; the container's with policy `none`, which has none.
    #[must_use]
    pub fn scope(&self) -> TopologyScope {
        self.scope
    }

    /// Of the machine.
    #[must_use]
    pub fn nodes(&self) -> &[u32] {
        self.numa.nodes()
    }

    /// In force.
    #[must_use]
    pub fn options(&self) -> TopologyOptions {
        self.options
    }

    /// One answer from the hints of each manager, and whether the pod is let run with it.
    #[must_use]
    pub fn merge(&self, providers: &[Hints]) -> (TopologyHint, bool) {
        let closest = self.options.prefer_closest.then_some(&self.numa);
        let all = self.numa.mask();
        match self.policy {
            TopologyPolicy::None => (TopologyHint::default(), true),
            TopologyPolicy::BestEffort => (merge::best(&merge::flatten(providers), all, closest), true),
            TopologyPolicy::Restricted => {
                let best = merge::best(&merge::flatten(providers), all, closest);
                (best, best.preferred)
            }
            TopologyPolicy::SingleNumaNode => {
                let lists = merge::single_node(merge::flatten(providers));
                let mut best = merge::best(&lists, all, None);
                // All nodes are no choice; of a machine with one, neither is that one.
                if best.nodes == Some(all) {
                    best.nodes = None;
                }
                (best, best.preferred)
            }
        }
    }
}

#[cfg(test)]
mod tests;
