//! The policy static of the CPU manager. Pure: owns who gets CPUs to itself, which, and what is told of NUMA nodes; the
//! choice among CPUs of a machine is [`crate::cpu_assignment`]'s. Called by [`super::CpuManager`].
//!
//! Source: the kubelet's `pkg/kubelet/cm/cpumanager`, and KEP 3570 for what its messages promise.

use std::collections::BTreeMap;

use gantry_model::pod::qos::{Qos, qos};
use gantry_model::pod::{Container, Pod, PodUid, Role};

use super::{CpuSettings, CpuState, StaticOptions};
use crate::cpu_assignment::{CpuSort, take_distributed, take_packed};
use crate::cpu_topology::{CpuInfo, CpuTopology};
use crate::cpuset::CpuSet;
use crate::hint::{Hints, TopologyHint};
use crate::node_mask::NodeMask;

const RESOURCE: &str = "cpu";

/// Why a container gets none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// `full-pcpus-only` cannot be kept to.
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NotWholeCores { requested: usize, per_core: usize },
    /// The same, for want of whole cores.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores { requested: usize, per_core: usize, available: usize },
    /// There are too few.
    #[error("{0}")]
    TooFew(String),
}

impl CpuError {
    /// The reason by which a pod is rejected; None: an unexpected error.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NotWholeCores { .. } | Self::TooFewCores { .. } => Some("SMTAlignmentError"),
            Self::TooFew(_) => None,
        }
    }
}

/// What a container was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenCpus {
    /// None to itself.
    Shared,
    /// What it had already.
    Kept { full_cores: bool },
    /// New ones.
    New { full_cores: bool, by_uncore: bool },
}

#[derive(Debug, Clone)]
pub(super) struct StaticPolicy {
    topology: CpuTopology,
    reserved: CpuSet,
    /// With the other threads of their cores.
    reserved_cores: CpuSet,
    options: StaticOptions,
    /// By pod: what its init containers have. The next containers may have them, too.
    reusable: BTreeMap<String, CpuSet>,
}

impl StaticPolicy {
    pub(super) fn new(settings: &CpuSettings, topology: CpuTopology) -> Result<Self, String> {
        if settings.reserved_milli <= 0 {
            return Err(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be \
                        greater than zero"
                    .to_owned(),
            );
        }
        let options = StaticOptions::read(&settings.options, settings.gates)
            .and_then(|options| fit(options, &topology, settings).map(|()| options))
            .map_err(|why| format!("new static policy error: {why}"))?;
        let count = usize::try_from(
            settings.reserved_milli.div_euclid(1000)
                + i64::from(settings.reserved_milli.rem_euclid(1000) > 0),
        )
        .unwrap_or(usize::MAX);
        let (reserved, reserved_cores) = (settings.reserved.clone(), CpuSet::new());
        let mut policy = Self { topology, reserved, reserved_cores, options, reusable: BTreeMap::new() };
        if policy.reserved.is_empty() {
            let all = policy.select(|_| true);
            policy.reserved = policy.take(&all, count).unwrap_or_default();
        }
        if policy.reserved.len() != count {
            return Err(format!(
                "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of {} did \
                 not equal {count})",
                policy.reserved
            ));
        }
        let cores = policy.reserved.iter().map(|cpu| {
            policy.topology.cpus.get(&cpu).map(|info| info.core).ok_or_else(|| {
                format!(
                    "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved \
                     set: unknown CPU ID: {cpu}"
                )
            })
        });
        let cores: CpuSet = cores.collect::<Result<_, _>>()?;
        policy.reserved_cores = policy.select(|info| cores.contains(info.core));
        Ok(policy)
    }

    fn select(&self, is_wanted: impl Fn(&CpuInfo) -> bool) -> CpuSet {
        let cpus = self.topology.cpus.iter().filter(|(_, info)| is_wanted(info));
        cpus.map(|(cpu, _)| *cpu).collect()
    }

    pub(super) fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    pub(super) fn node_of(&self, cpu: u32) -> Option<u32> {
        self.topology.cpus.get(&cpu).map(|info| info.numa)
    }

    pub(super) fn available(&self, state: &CpuState) -> CpuSet {
        state.default.difference(&self.reserved)
    }

    /// Holds what an earlier kubelet left against the machine and the settings.
    pub(super) fn begin(&self, state: &mut CpuState) -> Result<(), String> {
        let mut all = self.select(|_| true);
        if self.options.strict {
            all = all.difference(&self.reserved);
        }
        if state.default.is_empty() {
            if !state.assigned.is_empty() {
                return Err("default cpuset cannot be empty".to_owned());
            }
            state.default = all;
            return Ok(());
        }
        let (shared, reserved) = (&state.default, &self.reserved);
        let both = reserved.intersection(shared);
        if self.options.strict && !both.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{both}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        if !self.options.strict && both != *reserved {
            return Err(format!(
                "not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        let mut known = shared.clone();
        for (pod, containers) in &state.assigned {
            for (container, cpus) in containers {
                if !shared.intersection(cpus).is_empty() {
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\""
                    ));
                }
                known.extend(cpus.iter());
            }
        }
        if known != all {
            return Err(format!(
                "current set of available CPUs \"{all}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        Ok(())
    }

    pub(super) fn hints(&self, state: &CpuState, pod: &Pod, container: &Container) -> Hints {
        let wanted = whole_cpus(pod, container);
        if wanted == 0 || pod.has_own_amounts() {
            return Hints::new();
        }
        let given =
            state.assigned.get(pod.uid.as_str()).and_then(|containers| containers.get(&container.name));
        let hints = match given {
            Some(cpus) if cpus.len() != wanted => Vec::new(),
            Some(cpus) => self.ways(cpus, &CpuSet::new(), wanted),
            None => self.ways(&self.available(state), &self.reusable(pod), wanted),
        };
        Hints::from([(RESOURCE.to_owned(), Some(hints))])
    }

    pub(super) fn hints_of_pod(&self, state: &CpuState, pod: &Pod) -> Hints {
        let wanted = whole_cpus_of_pod(pod);
        if wanted == 0 || pod.has_own_amounts() {
            return Hints::new();
        }
        let mut given = CpuSet::new();
        let has = state.assigned.get(pod.uid.as_str());
        for container in pod.all_containers() {
            let Some(cpus) = has.and_then(|containers| containers.get(&container.name)) else { continue };
            if cpus.len() != whole_cpus(pod, container) {
                return Hints::from([(RESOURCE.to_owned(), Some(Vec::new()))]);
            }
            given.extend(cpus.iter());
        }
        let hints = if given.len() == wanted {
            self.ways(&given, &CpuSet::new(), wanted)
        } else {
            self.ways(&self.available(state), &self.reusable(pod).union(&given), wanted)
        };
        Hints::from([(RESOURCE.to_owned(), Some(hints))])
    }

    fn reusable(&self, pod: &Pod) -> CpuSet {
        self.reusable.get(pod.uid.as_str()).cloned().unwrap_or_default()
    }

    /// Every set of NUMA nodes that has enough. Preferred are those with as few nodes as an empty machine would need.
    fn ways(&self, available: &CpuSet, reusable: &CpuSet, wanted: usize) -> Vec<TopologyHint> {
        let nodes: CpuSet = self.topology.cpus.values().map(|info| info.numa).collect();
        let nodes: Vec<u32> = nodes.iter().collect();
        let in_mask = |mask: NodeMask, cpu: u32| self.node_of(cpu).is_some_and(|node| mask.contains(node));
        let (mut fewest, mut ways) = (nodes.len(), Vec::new());
        for mask in NodeMask::combinations(&nodes) {
            if self.select(|info| mask.contains(info.numa)).len() >= wanted {
                fewest = fewest.min(mask.count());
            }
            let has_reusable = reusable.iter().all(|cpu| in_mask(mask, cpu));
            let free = available.iter().filter(|cpu| in_mask(mask, *cpu)).count();
            if has_reusable && reusable.len() + free >= wanted {
                ways.push(mask);
            }
        }
        let is_preferred = |mask: NodeMask| {
            mask.count() == fewest || (self.options.by_socket && self.fits_sockets(mask, fewest))
        };
        let hint = |mask| TopologyHint { nodes: Some(mask), preferred: is_preferred(mask) };
        ways.into_iter().map(hint).collect()
    }

    /// Whether the nodes span no more sockets than they must.
    fn fits_sockets(&self, mask: NodeMask, fewest: usize) -> bool {
        let per_socket = self.topology.numa_nodes.checked_div(self.topology.sockets).unwrap_or(0);
        per_socket > 0 && self.sockets_of(mask).len() == fewest.div_ceil(per_socket)
    }

    fn sockets_of(&self, mask: NodeMask) -> CpuSet {
        let near = self.topology.cpus.values().filter(|info| mask.contains(info.numa));
        near.map(|info| info.socket).collect()
    }

    pub(super) fn gives_full_cores(&self) -> bool {
        self.options.full_cores
    }

    pub(super) fn allocate(
        &mut self,
        state: &mut CpuState,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<GivenCpus, CpuError> {
        let wanted = whole_cpus(pod, container);
        if wanted == 0 || pod.has_own_amounts() {
            return Ok(GivenCpus::Shared);
        }
        let full_cores = self.options.full_cores;
        // Before whole cores are counted, unlike upstream: what a pod has is not free, and it must not end for that.
        let given =
            state.assigned.get(pod.uid.as_str()).and_then(|containers| containers.get(&container.name));
        if let Some(cpus) = given.cloned() {
            self.note_reusable(pod, container, &cpus);
            return Ok(GivenCpus::Kept { full_cores });
        }
        self.check_cores(state, wanted)?;
        let cpus = self.choose(state, wanted, hint.nodes, &self.reusable(pod))?;
        state.default = state.default.difference(&cpus);
        self.note_reusable(pod, container, &cpus);
        let by_uncore = self.topology.is_aligned_at_uncore_cache(&cpus);
        let containers = state.assigned.entry(pod.uid.to_string()).or_default();
        containers.insert(container.name.clone(), cpus);
        Ok(GivenCpus::New { full_cores, by_uncore })
    }

    fn check_cores(&self, state: &CpuState, requested: usize) -> Result<(), CpuError> {
        let per_core = self.topology.cpus_per_core();
        if !self.options.full_cores {
            return Ok(());
        }
        if per_core == 0 || !requested.is_multiple_of(per_core) {
            return Err(CpuError::NotWholeCores { requested, per_core });
        }
        let available = state.default.difference(&self.reserved_cores).len();
        if requested > available {
            return Err(CpuError::TooFewCores { requested, per_core, available });
        }
        Ok(())
    }

    /// Those of the hint's nodes first.
    fn choose(
        &self,
        state: &CpuState,
        wanted: usize,
        nodes: Option<NodeMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, CpuError> {
        let free = self.available(state).union(reusable);
        let mut chosen = CpuSet::new();
        if let Some(mask) = nodes {
            let near = free.intersection(&self.near(mask));
            chosen = self.take(&near, wanted.min(near.len()))?;
        }
        let rest = self.take(&free.difference(&chosen), wanted - chosen.len())?;
        Ok(chosen.union(&rest))
    }

    fn near(&self, mask: NodeMask) -> CpuSet {
        if self.options.by_socket {
            let sockets = self.sockets_of(mask);
            return self.select(|info| sockets.contains(info.socket));
        }
        self.select(|info| mask.contains(info.numa))
    }

    fn take(&self, from: &CpuSet, count: usize) -> Result<CpuSet, CpuError> {
        let StaticOptions { across_cores, across_numa, full_cores, by_uncore, .. } = self.options;
        let sort = if across_cores { CpuSort::Spread } else { CpuSort::Packed };
        let taken = if across_numa {
            let group = if full_cores { self.topology.cpus_per_core() } else { 1 };
            take_distributed(&self.topology, from, count, group, sort)
        } else {
            take_packed(&self.topology, from, count, sort, by_uncore)
        };
        let taken = taken.map_err(|error| CpuError::TooFew(error.to_string()))?;
        // Upstream's choice counts with the mean of threads per core: where cores differ it may take what is not free.
        if taken.len() != count || !taken.is_subset(from) {
            return Err(CpuError::TooFew(format!(
                "no choice of {count} of the CPUs {from} keeps whole cores together, because cores have different numbers of \
                 threads: the choice was {taken}"
            )));
        }
        Ok(taken)
    }

    /// An init container has ended before the next container begins; a sidecar has not.
    fn note_reusable(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let before = self.reusable(pod);
        let now = match container.role {
            Role::Init => before.union(cpus),
            _ => before.difference(cpus),
        };
        self.reusable.insert(pod.uid.to_string(), now);
    }

    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.reusable.remove(pod.as_str());
    }
}

fn fit(options: StaticOptions, topology: &CpuTopology, settings: &CpuSettings) -> Result<(), String> {
    if !options.by_socket {
        return Ok(());
    }
    if settings.single_numa_node {
        let by_socket = super::options::BY_SOCKET;
        return Err(format!(
            "Topolgy manager single-numa-node policy is incompatible with CPUManager {by_socket} policy option"
        ));
    }
    if topology.sockets > topology.numa_nodes {
        return Err("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
            .to_owned());
    }
    Ok(())
}

/// How many CPUs the container has to itself: none, unless its pod is Guaranteed and asks for whole ones.
fn whole_cpus(pod: &Pod, container: &Container) -> usize {
    let milli = container.resources.cpu_request.unwrap_or(0);
    if qos(pod) != Qos::Guaranteed || milli % 1000 != 0 {
        return 0;
    }
    usize::try_from(milli / 1000).unwrap_or(0)
}

/// At most, at any moment of the pod's life.
fn whole_cpus_of_pod(pod: &Pod) -> usize {
    let (mut sidecars, mut highest) = (0_usize, 0_usize);
    for container in &pod.init_containers {
        let wanted = whole_cpus(pod, container);
        if container.role == Role::Sidecar {
            sidecars = sidecars.saturating_add(wanted);
        } else {
            highest = highest.max(sidecars.saturating_add(wanted));
        }
    }
    let regular = pod.containers.iter().map(|container| whole_cpus(pod, container));
    highest.max(regular.fold(sidecars, usize::saturating_add))
}
