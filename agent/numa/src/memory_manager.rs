//! Which NUMA nodes a container's memory and huge pages come from: the kubelet's memory manager. Pure: owns the policies, the
//! account of each node's memory and upstream's words of refusal; never sets a cpuset. Called by the agent's admission of
//! pods, its making of containers and its server of pod resources. [`file`] alone touches the disk.

mod checkpoint;
mod file;
mod hints;
mod machine;
mod request;
mod reserved;
mod reuse;

use std::collections::BTreeMap;

use gantry_model::pod::{Container, Pod, PodUid, Role};

pub use checkpoint::FormError;
pub use file::{FILE, RestoreError, StartError};
pub use machine::{Difference, MemoryNode, MemoryTable, NodeMap, NumaMemory, StateError};
pub use request::SizeError;
pub use reserved::{MemoryReservation, ReservedError};

use self::request::Sizes;
use self::reuse::Reusable;
use crate::hint::{Hints, TopologyHint};
use crate::node_mask::NodeMask;

/// The resource that every managed container asks for.
const MEMORY: &str = "memory";

/// `memoryManagerPolicy` of the kubelet's configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Memory comes from wherever the kernel takes it.
    #[default]
    None,
    /// Containers of guaranteed pods have theirs from nodes that were set aside for them.
    Static,
}

impl MemoryPolicy {
    /// As the configuration and the checkpoint have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Static => "Static",
        }
    }
}

/// Why there can be no memory manager, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryManagerError {
    #[error("unknown policy: {0:?}")]
    UnknownPolicy(String),
    /// It is for Windows.
    #[error("policy \"BestEffort\" is not available for platform \"linux\"")]
    NotOnLinux,
    #[error("[memorymanager] you should specify the system reserved memory")]
    NothingReserved,
    #[error(transparent)]
    Reserved(#[from] ReservedError),
}

/// Why a container cannot have its memory, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoDefault,
    #[error("[memorymanager] failed to find the default preferred hint")]
    DefaultNotPreferred,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoExtension,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtensionNotPreferred,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violation,
}

/// What became of a container's asking, for who counts it. Upstream counts a pinning request of all but what is not managed,
/// of an error, too; and that as a pinning error and an allocation error of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryOutcome {
    /// The policy, or the pod's class, gives it none.
    NotManaged,
    /// It has had them before.
    AlreadyThere,
    /// One assignment of a container, and an allocation of each of these.
    Allocated { resources: usize },
}

/// What a container has of one resource, or what one node can give of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBlock {
    /// From these.
    pub nodes: NodeMask,
    /// `memory`, or `hugepages-` with their size.
    pub resource: String,
    /// Bytes.
    pub size: u64,
}

/// By UID of the pod, and name of the container.
type Assignments = BTreeMap<String, BTreeMap<String, Vec<MemoryBlock>>>;

/// The memory manager.
#[derive(Debug, Clone)]
pub struct MemoryManager {
    policy: MemoryPolicy,
    /// Of each node; empty with policy `None`.
    machine: NodeMap,
    assignments: Assignments,
    reusable: Reusable,
}

impl MemoryManager {
    /// By `memoryManagerPolicy`, the machine's nodes, `reservedMemory`, and what is reserved of the node by Node Allocatable,
    /// in bytes by resource. As upstream, `None` looks at none of the others.
    ///
    /// # Errors
    /// When the policy is unknown, or what is reserved of the nodes is not what is reserved of the machine.
    pub fn new(
        policy: &str,
        nodes: &[NumaMemory],
        reserved: &[MemoryReservation],
        node_allocatable: &BTreeMap<String, i64>,
    ) -> Result<Self, MemoryManagerError> {
        match policy {
            "None" => Ok(Self::with(MemoryPolicy::None, NodeMap::new())),
            "Static" => {
                let reserved = reserved::check(nodes, node_allocatable, reserved)?;
                let of_node = |node: &BTreeMap<String, u64>| node.get(MEMORY).copied().unwrap_or(0);
                if reserved.values().all(|node| of_node(node) == 0) {
                    return Err(MemoryManagerError::NothingReserved);
                }
                Ok(Self::with(MemoryPolicy::Static, machine::build(nodes, &reserved)))
            }
            "BestEffort" => Err(MemoryManagerError::NotOnLinux),
            _ => Err(MemoryManagerError::UnknownPolicy(policy.to_owned())),
        }
    }

    /// With the policy `None`.
    #[must_use]
    pub fn none() -> Self {
        Self::with(MemoryPolicy::None, NodeMap::new())
    }

    fn with(policy: MemoryPolicy, machine: NodeMap) -> Self {
        Self { policy, machine, assignments: Assignments::new(), reusable: Reusable::default() }
    }

    /// In force.
    #[must_use]
    pub fn policy(&self) -> MemoryPolicy {
        self.policy
    }

    /// The account of each node.
    #[must_use]
    pub fn machine(&self) -> &NodeMap {
        &self.machine
    }

    /// Which nodes could give a container its memory; what it has already is told again.
    #[must_use]
    pub fn hints_of_container(&self, pod: &Pod, container: &Container) -> Hints {
        let Some(sizes) = self.manages(pod).then(|| self.sizes(request::of_container(container))) else {
            return Hints::new();
        };
        let Ok(sizes) = sizes else { return Hints::new() };
        match self.blocks(pod.uid.as_str(), &container.name) {
            Some(blocks) => hints::again(blocks, &sizes),
            None => hints::of_all(&self.machine, &sizes, self.reusable.of(&pod.uid)),
        }
    }

    /// The same for all containers of a pod together.
    #[must_use]
    pub fn hints_of_pod(&self, pod: &Pod) -> Hints {
        let Some(sizes) = self.manages(pod).then(|| self.sizes(request::of_pod(pod))) else {
            return Hints::new();
        };
        let Ok(sizes) = sizes else { return Hints::new() };
        if sizes.is_empty() {
            return Hints::new();
        }
        let mut known = pod.all_containers().filter_map(|own| self.blocks(pod.uid.as_str(), &own.name));
        match known.next() {
            Some(blocks) => hints::again(blocks, &sizes),
            None => hints::of_all(&self.machine, &sizes, self.reusable.of(&pod.uid)),
        }
    }

    /// Sets a container's memory aside, by the topology manager's answer. What it has already stays.
    ///
    /// # Errors
    /// When there is not enough where it may come from. Then nothing has changed.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<MemoryOutcome, AllocateError> {
        if !self.manages(pod) {
            return Ok(MemoryOutcome::NotManaged);
        }
        if let Some(blocks) = self.blocks(pod.uid.as_str(), &container.name) {
            let blocks = blocks.to_vec();
            self.reusable.follow(pod, container, &blocks);
            return Ok(MemoryOutcome::AlreadyThere);
        }
        let sizes = self.sizes(request::of_container(container))?;
        let nodes = self.choose(pod, &sizes, hint)?;
        let mut blocks = Vec::new();
        for (resource, size) in &sizes {
            let reused = reuse::size(self.reusable.of(&pod.uid), nodes, resource);
            machine::take(&mut self.machine, nodes, resource, size.saturating_sub(reused));
            blocks.push(MemoryBlock { nodes, resource: resource.clone(), size: *size });
        }
        self.reusable.follow(pod, container, &blocks);
        let containers = self.assignments.entry(pod.uid.as_str().to_owned()).or_default();
        reuse::shrink_init_containers(containers, pod, container, &blocks);
        containers.insert(container.name.clone(), blocks);
        Ok(MemoryOutcome::Allocated { resources: sizes.len() })
    }

    /// The nodes that the memory comes from: the hint's, or the best where it names none; and more where these have not
    /// enough.
    fn choose(&self, pod: &Pod, sizes: &Sizes, hint: TopologyHint) -> Result<NodeMask, AllocateError> {
        let all = || hints::calculate(&self.machine, sizes, self.reusable.of(&pod.uid));
        let (mut nodes, preferred) = match hint {
            TopologyHint { nodes: Some(nodes), preferred } => (nodes, preferred),
            TopologyHint { nodes: None, preferred } => {
                let (nodes, is_preferred) = hints::best(&all()).ok_or(AllocateError::NoDefault)?;
                if preferred && !is_preferred {
                    return Err(AllocateError::DefaultNotPreferred);
                }
                (nodes, is_preferred)
            }
        };
        if !machine::has_free(&self.machine, nodes, sizes) {
            let mut wider = all();
            wider.retain(|(wider, _)| wider.and(nodes) == nodes);
            let (wider, is_preferred) = hints::best(&wider).ok_or(AllocateError::NoExtension)?;
            if preferred && !is_preferred {
                return Err(AllocateError::ExtensionNotPreferred);
            }
            nodes = wider;
        }
        if machine::is_split(&self.machine, nodes) {
            return Err(AllocateError::Violation);
        }
        Ok(nodes)
    }

    /// A container of the pod is started: the init containers before it have ended and need their memory no more.
    pub fn start_container(&mut self, pod: &Pod, container: &str) {
        for init in pod.init_containers.iter().take_while(|init| init.name != container) {
            if init.role == Role::Init {
                self.remove(&pod.uid, &init.name);
            }
        }
    }

    /// Gives a container's memory back. Returns whether it had any.
    pub fn remove(&mut self, pod: &PodUid, container: &str) -> bool {
        self.remove_by_name(pod.as_str(), container)
    }

    /// The pod is over: gives back what its containers have. Returns whether they had any.
    pub fn forget(&mut self, pod: &PodUid) -> bool {
        self.reusable.forget(pod.as_str());
        let containers = self.assignments.get(pod.as_str()).cloned().unwrap_or_default();
        containers.keys().fold(false, |any, name| self.remove_by_name(pod.as_str(), name) | any)
    }

    /// All pods but these are over. Returns whether any had some.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) -> bool {
        let over: Vec<PodUid> =
            self.assignments.keys().filter(|pod| !keep(pod)).filter_map(|pod| PodUid::parse(pod)).collect();
        over.iter().fold(false, |any, pod| self.forget(pod) | any)
    }

    /// What is given.
    #[must_use]
    pub fn is_as(&self, other: &Self) -> bool {
        self.assignments == other.assignments && self.machine == other.machine
    }

    fn remove_by_name(&mut self, pod: &str, container: &str) -> bool {
        let Some(containers) = self.assignments.get_mut(pod) else { return false };
        let Some(blocks) = containers.remove(container) else { return false };
        if containers.is_empty() {
            self.assignments.remove(pod);
            self.reusable.forget(pod);
        }
        for block in blocks {
            machine::give_back(&mut self.machine, &block);
        }
        true
    }

    /// What a container has, by resource.
    #[must_use]
    pub fn of_container(&self, pod: &PodUid, container: &str) -> &[MemoryBlock] {
        self.blocks(pod.as_str(), container).unwrap_or_default()
    }

    /// For its `cpuset.mems`. None: any.
    #[must_use]
    pub fn nodes_of(&self, pod: &PodUid, container: &str) -> Option<NodeMask> {
        let blocks = self.of_container(pod, container).iter();
        let nodes = blocks.fold(NodeMask::default(), |nodes, block| nodes.or(block.nodes));
        Some(nodes).filter(|nodes| !nodes.is_empty())
    }

    /// What each node can give in all, by node and resource; nothing with policy `None`.
    #[must_use]
    pub fn allocatable(&self) -> Vec<MemoryBlock> {
        let mut all = Vec::new();
        for (node, state) in &self.machine {
            let given = state.memory.iter().filter(|(_, table)| table.allocatable > 0);
            all.extend(given.map(|(resource, table)| MemoryBlock {
                nodes: NodeMask::of([*node]),
                resource: resource.clone(),
                size: table.allocatable,
            }));
        }
        all
    }

    fn blocks(&self, pod: &str, container: &str) -> Option<&[MemoryBlock]> {
        self.assignments.get(pod)?.get(container).map(Vec::as_slice)
    }

    /// Pods with numbers of their own are none: their containers share.
    fn manages(&self, pod: &Pod) -> bool {
        self.policy == MemoryPolicy::Static && request::is_managed(pod)
    }

    /// To ask for 0 of what no node has is to ask for nothing.
    fn sizes(&self, asked: Result<Sizes, SizeError>) -> Result<Sizes, SizeError> {
        let mut sizes = asked?;
        let has = |resource: &String| self.machine.values().any(|node| node.memory.contains_key(resource));
        sizes.retain(|resource, size| *size > 0 || has(resource));
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests;
