//! What is given, and its way to the disk: nothing counts before it is written down. Owns the files `ROOT/cpu_manager_state`
//! and what is counted. Part of [`super::ResourceManagers`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_base::files;
use gantry_metrics::Metrics;
use gantry_model::pod::{Container, Pod, PodUid};
use gantry_numa::cpu_manager::{self, CPU_MANAGER_STATE, CpuError, CpuManager, CpuSettings, GivenCpus};
use gantry_numa::hint::TopologyHint;
use gantry_numa::machine::{Machine, NumaNode};
use gantry_numa::memory_manager::{
    self, AllocateError, MemoryManager, MemoryOutcome, MemoryPolicy, MemoryReservation, NumaMemory,
};
use gantry_numa::node_mask::MOST_COMBINED;
use gantry_numa::topology_manager::{NumaInfo, TopologyManager, TopologyPolicy};

use super::align::NUMA_NODE;
use super::{Managers, ResourceManagers, SharedManagers, unexpected};
use crate::admission::Rejection;

/// `topologyManager…` of the configuration.
#[derive(Debug, Clone, Default)]
pub struct TopologySettings {
    pub policy: String,
    pub scope: String,
    pub options: BTreeMap<String, String>,
}

/// `memoryManagerPolicy` and what goes with it.
#[derive(Debug, Clone, Default)]
pub struct MemorySettings {
    pub policy: String,
    /// `reservedMemory`.
    pub reserved: Vec<MemoryReservation>,
    /// Bytes that Node Allocatable keeps from pods, by resource.
    pub kept: BTreeMap<String, i64>,
}

/// What the managers are made with.
#[derive(Debug, Clone, Default)]
pub struct ManagerSettings {
    pub cpu: CpuSettings,
    pub memory: MemorySettings,
    pub topology: TopologySettings,
    /// `cpuManagerReconcilePeriod`.
    pub reconcile_period: Duration,
    /// The gate `DisableCPUQuotaWithExclusiveCPUs`.
    pub lifts_quota: bool,
}

impl ManagerSettings {
    /// Whether CPUs or NUMA nodes matter at all.
    pub(crate) fn need_machine(&self) -> bool {
        let Self { cpu, memory, topology, .. } = self;
        cpu.policy != "none" || topology.policy != "none" || memory.policy != "None"
    }
}

/// Why there are no managers, and so no kubelet.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Of the configuration.
    #[error("{0}")]
    Settings(String),
    /// Upstream's words.
    #[error(
        "start cpu manager error: could not restore state from checkpoint: {why}, please drain this node and delete the CPU manager checkpoint file {file:?} before restarting Kubelet"
    )]
    Checkpoint { why: String, file: String },
    #[error("start cpu manager error: {why}: drain this node and remove {file}")]
    State { why: String, file: String },
    #[error("start memory manager error: {why}: drain this node and remove {file}")]
    Memory { why: String, file: String },
    #[error("read or write {file}")]
    File {
        file: String,
        #[source]
        source: io::Error,
    },
}

/// Read from the disk and held against the machine.
pub(super) fn open(
    root: &Path,
    settings: &ManagerSettings,
    machine: &Machine,
) -> Result<(Managers, Option<TopologyManager>), OpenError> {
    let TopologySettings { policy, scope, options } = &settings.topology;
    let distances = machine.numa.iter().map(|node| (node.id, node.distances.clone())).collect();
    let topology = TopologyManager::new(policy, scope, options, NumaInfo::new(distances));
    let topology = topology.map_err(|why| OpenError::Settings(chain(&why)))?;
    let topology = Some(topology).filter(|topology| topology.policy() != TopologyPolicy::None);
    check_nodes(settings, machine, topology.is_some())?;
    let managers = Managers {
        cpu: open_cpu(root, &settings.cpu, machine)?,
        memory: open_memory(root, &settings.memory, machine)?,
    };
    Ok((managers, topology))
}

/// Upstream looks at every set of NUMA nodes, however many there are, and would not come to an end.
fn check_nodes(settings: &ManagerSettings, machine: &Machine, is_aligned: bool) -> Result<(), OpenError> {
    let of_cpus = if is_aligned { machine.topology.numa_nodes } else { 0 };
    let of_memory = if settings.memory.policy == "None" { 0 } else { machine.numa.len() };
    for (field, count, least) in
        [("topologyManagerPolicy", of_cpus, "none"), ("memoryManagerPolicy", of_memory, "None")]
    {
        if count > MOST_COMBINED {
            return Err(OpenError::Settings(format!(
                "{field} cannot be kept to on a machine with {count} NUMA nodes: every set of them is looked at, so that \
                 {MOST_COMBINED} are the most; set it to {least:?}"
            )));
        }
    }
    Ok(())
}

fn open_cpu(root: &Path, settings: &CpuSettings, machine: &Machine) -> Result<CpuManager, OpenError> {
    let path = root.join(CPU_MANAGER_STATE);
    let file = path.display().to_string();
    let failed = |source| OpenError::File { file: file.clone(), source };
    let left = read(&path).map_err(failed)?;
    let manager =
        CpuManager::open(settings, &machine.topology, left.as_deref()).map_err(|why| match why {
            cpu_manager::OpenError::Settings(why) => OpenError::Settings(why),
            cpu_manager::OpenError::Checkpoint(why) => OpenError::Checkpoint { why, file: file.clone() },
            cpu_manager::OpenError::State(why) => OpenError::State { why, file: file.clone() },
        })?;
    let content = manager.checkpoint().map_err(|error| failed(error.into()))?;
    if left.as_ref() != Some(&content) {
        files::replace(&path, &content, 0o600).map_err(failed)?;
    }
    Ok(manager)
}

fn open_memory(
    root: &Path,
    settings: &MemorySettings,
    machine: &Machine,
) -> Result<MemoryManager, OpenError> {
    let node = |node: &NumaNode| NumaMemory {
        node: node.id,
        memory: node.memory,
        huge_pages: node.huge_pages.clone(),
    };
    let nodes: Vec<NumaMemory> = machine.numa.iter().map(node).collect();
    let MemorySettings { policy, reserved, kept } = settings;
    let manager = MemoryManager::new(policy, &nodes, reserved, kept);
    let mut manager = manager.map_err(|why| OpenError::Settings(chain(&why)))?;
    let file = root.join(memory_manager::FILE).display().to_string();
    manager.restore(root).map_err(|why| OpenError::Memory { why: chain(&why), file })?;
    Ok(manager)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Series that are there before anything is counted, as upstream's.
pub(super) fn begin_metrics(metrics: &Metrics, managers: &Managers) {
    for scope in [CONTAINER, "pod"] {
        metrics.aligned_compute_resources.add([scope, NUMA_NODE], 0.0);
        metrics.aligned_compute_resources_failures.add([scope, NUMA_NODE], 0.0);
    }
    if managers.cpu.is_static() {
        for boundary in [PHYSICAL_CPU, UNCORE_CACHE] {
            metrics.aligned_compute_resources.add([CONTAINER, boundary], 0.0);
        }
        metrics.aligned_compute_resources_failures.add([CONTAINER, PHYSICAL_CPU], 0.0);
        tell_cpus(metrics, &managers.cpu);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
fn tell_cpus(metrics: &Metrics, cpu: &CpuManager) {
    let by_node = cpu.given_by_node();
    metrics.cpu_manager_shared_pool.set([], (cpu.available().len() * 1000) as f64);
    metrics.cpu_manager_exclusive.set([], by_node.values().sum::<usize>() as f64);
    metrics
        .cpu_manager_per_numa
        .replace(by_node.into_iter().map(|(node, count)| ([node.to_string()], count as f64)));
}

impl SharedManagers {
    /// Changes the managers on a copy, which counts once it is written down.
    ///
    /// # Errors
    /// Of `change`, or why it cannot be written down: then nothing has changed.
    fn change<T, E>(&self, change: impl FnOnce(&mut Managers) -> Result<T, E>) -> Result<T, ChangeError<E>> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.change_alone(change)
    }

    /// The same for a pod that is not over: one that ends meanwhile has given back what it has, and is given no more.
    fn change_of<T, E>(
        &self,
        pod: &Pod,
        change: impl FnOnce(&mut Managers) -> Result<T, E>,
    ) -> Result<T, ChangeError<E>> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.living().contains(&pod.uid) {
            return Err(ChangeError::Over(format!("pod {} is over: it needs nothing any more", pod.uid)));
        }
        self.change_alone(change)
    }

    fn change_alone<T, E>(
        &self,
        change: impl FnOnce(&mut Managers) -> Result<T, E>,
    ) -> Result<T, ChangeError<E>> {
        let before = self.lock().clone();
        let mut next = before.clone();
        let done = change(&mut next).map_err(ChangeError::Refused)?;
        self.save(&before, &next).map_err(ChangeError::Unwritten)?;
        if next.cpu.is_static() {
            tell_cpus(&self.metrics, &next.cpu);
        }
        let shared = next.cpu.state().default.clone();
        *self.lock() = next;
        self.shared.send_if_modified(|old| {
            let changed = *old != shared;
            *old = shared;
            changed
        });
        Ok(done)
    }

    /// Counts what a container is given: CPUs, then memory.
    ///
    /// # Errors
    /// Of the first that is refused, in upstream's words.
    pub(super) fn count_both(
        &self,
        cpus: Result<GivenCpus, ChangeError<CpuError>>,
        memory: impl FnOnce() -> Result<MemoryOutcome, ChangeError<AllocateError>>,
    ) -> Result<(), Rejection> {
        count_cpus(&self.metrics, &cpus, self.lock().cpu.gives_full_cores());
        cpus.map_err(of_cpus)?;
        let memory = memory();
        count_memory(&self.metrics, &memory);
        memory.map(drop).map_err(|why| match why {
            ChangeError::Refused(why) => unexpected(&why.to_string()),
            ChangeError::Unwritten(why) | ChangeError::Over(why) => unexpected(&why),
        })
    }

    fn save(&self, before: &Managers, next: &Managers) -> Result<(), String> {
        let Some(root) = &self.root else { return Ok(()) };
        let failed =
            |file: &str, error: &io::Error| format!("could not save checkpoint {file:?}: {}", chain(error));
        if before.cpu.state() != next.cpu.state() {
            let content = next.cpu.checkpoint().map_err(|error| chain(&error))?;
            let written = files::replace(&root.join(CPU_MANAGER_STATE), &content, 0o600);
            written.map_err(|error| failed(CPU_MANAGER_STATE, &error))?;
        }
        if !next.memory.is_as(&before.memory) {
            next.memory.save(root).map_err(|error| failed(memory_manager::FILE, &error))?;
        }
        Ok(())
    }
}

pub(super) enum ChangeError<E> {
    Refused(E),
    Unwritten(String),
    /// The pod is.
    Over(String),
}

impl ResourceManagers {
    pub(super) async fn give(
        &self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<(), Rejection> {
        if self.0.lock().give_nothing() {
            return Ok(());
        }
        let (inner, pod, container) = (self.0.clone(), pod.clone(), container.clone());
        let given = tokio::task::spawn_blocking(move || {
            let cpus = inner.change_of(&pod, |managers| managers.cpu.allocate(&pod, &container, hint));
            inner.count_both(cpus, || {
                inner.change_of(&pod, |managers| managers.memory.allocate(&pod, &container, hint))
            })
        });
        given.await.unwrap_or_else(|died| Err(unexpected(&died.to_string())))
    }

    /// A container of the pod is about to start: the init containers before it have ended.
    pub(crate) async fn begin(&self, pod: &Pod, container: &Container) {
        if pod.init_containers.is_empty() || self.0.lock().memory.policy() == MemoryPolicy::None {
            return;
        }
        let (pod, name) = (pod.clone(), container.name.clone());
        self.drop_some(move |managers| managers.memory.start_container(&pod, &name)).await;
    }

    /// The pod is over: others may have what it had.
    pub(crate) async fn forget(&self, pod: &PodUid) {
        self.0.living().remove(pod);
        if !self.0.lock().give_nothing() {
            let pod = pod.clone();
            let both = move |managers: &mut Managers| {
                managers.cpu.forget(&pod);
                managers.memory.forget(&pod);
            };
            self.drop_some(both).await;
        }
    }

    /// All pods but these are over. For when all sources have told all of theirs.
    pub(crate) async fn retain(&self, pods: &[PodUid]) {
        if !self.0.lock().give_nothing() {
            let pods = pods.to_vec();
            let keep = move |uid: &str| pods.iter().any(|pod| pod.as_str() == uid);
            let both = move |managers: &mut Managers| {
                managers.cpu.retain(&keep);
                managers.memory.retain(&keep);
            };
            self.drop_some(both).await;
        }
    }

    async fn drop_some(&self, change: impl FnOnce(&mut Managers) + Send + 'static) {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done: Result<(), ChangeError<Infallible>> = inner.change(|managers| {
                change(managers);
                Ok(())
            });
            match done {
                Ok(()) => None,
                Err(ChangeError::Unwritten(why) | ChangeError::Over(why)) => Some(why),
                Err(ChangeError::Refused(never)) => match never {},
            }
        });
        if let Some(error) = done.await.unwrap_or_else(|died| Some(died.to_string())) {
            tracing::error!(error, "what pods that are over had stays theirs");
        }
    }
}

const CONTAINER: &str = "container";
const PHYSICAL_CPU: &str = "physical_cpu";
const UNCORE_CACHE: &str = "uncore_cache";

fn of_cpus(why: ChangeError<CpuError>) -> Rejection {
    match why {
        ChangeError::Refused(why) => match why.reason() {
            Some(reason) => Rejection::new(reason, why.to_string()),
            None => unexpected(&why.to_string()),
        },
        ChangeError::Unwritten(why) | ChangeError::Over(why) => unexpected(&why),
    }
}

fn count_memory(metrics: &Metrics, given: &Result<MemoryOutcome, ChangeError<AllocateError>>) {
    match given {
        Ok(MemoryOutcome::NotManaged) => return,
        Ok(MemoryOutcome::AlreadyThere) => {}
        Ok(MemoryOutcome::Allocated { resources }) => {
            for _ in 0..*resources {
                metrics.resource_manager_allocations.inc(["memory", "node"]);
            }
            metrics.resource_manager_assignments.inc(["memory", "node_exclusive"]);
        }
        Err(_) => {
            metrics.memory_manager_pinning_errors.inc([]);
            metrics.resource_manager_errors.inc(["memory", "node"]);
        }
    }
    metrics.memory_manager_pinning_requests.inc([]);
}

/// A container that is given nothing of whole cores is one that is not aligned, whatever it was refused for.
fn count_cpus(metrics: &Metrics, given: &Result<GivenCpus, ChangeError<CpuError>>, gives_full_cores: bool) {
    let full_cores = match given {
        Ok(GivenCpus::Shared) => return,
        Ok(GivenCpus::Kept { full_cores } | GivenCpus::New { full_cores, .. }) => *full_cores,
        Err(_) => false,
    };
    metrics.cpu_manager_pinning_requests.inc([]);
    if full_cores {
        metrics.aligned_compute_resources.inc([CONTAINER, PHYSICAL_CPU]);
    }
    match given {
        Ok(GivenCpus::New { by_uncore, .. }) => {
            metrics.resource_manager_allocations.inc(["cpu", "node"]);
            metrics.resource_manager_assignments.inc(["cpu", "node_exclusive"]);
            if *by_uncore {
                metrics.aligned_compute_resources.inc([CONTAINER, UNCORE_CACHE]);
            }
        }
        Ok(_) => {}
        Err(_) => {
            metrics.cpu_manager_pinning_errors.inc([]);
            metrics.resource_manager_errors.inc(["cpu", "node"]);
            if gives_full_cores {
                metrics.aligned_compute_resources_failures.inc([CONTAINER, PHYSICAL_CPU]);
            }
        }
    }
}
