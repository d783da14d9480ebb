//! CPUs, memory of NUMA nodes and devices, given to the containers of a pod and aligned with one another: the kubelet's CPU,
//! memory and topology managers at work. Owns the order in which they are asked, their checkpoints and their metrics; the
//! rules are `gantry-numa`'s, the devices are [`crate::devices`]'. Called by the pod workers (to allocate, and for where a
//! container may run), by [`crate::pod_workers`] (who follows what is shared) and by the server of pod resources.
//!
//! hints of all managers → merged by the topology manager ([`align`]) → devices → CPUs and memory, written down before they
//! count ([`accounts`]). They are also asked about a pod that the node refuses for another reason ([`ask`]).

mod accounts;
mod align;
mod ask;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::pod::qos::{Qos, qos};
use gantry_model::pod::{Pod, PodUid};
use gantry_numa::affinity::Affinity;
use gantry_numa::cpu_manager::CpuManager;
use gantry_numa::cpuset::CpuSet;
use gantry_numa::machine::Machine;
use gantry_numa::memory_manager::{MemoryBlock, MemoryManager, MemoryPolicy};
use gantry_numa::node_mask::NodeMask;
use gantry_numa::topology_manager::TopologyManager;
use tokio::sync::watch;

use crate::admission::Rejection;
use crate::devices::{DeviceManager, Reusable};
pub use accounts::{ManagerSettings, MemorySettings, OpenError, TopologySettings};

/// Of upstream.
const RECONCILE_PERIOD: Duration = Duration::from_secs(10);

/// The managers. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct ResourceManagers(Arc<SharedManagers>);

#[derive(Debug)]
struct SharedManagers {
    /// None: there are none, and nothing is written.
    root: Option<PathBuf>,
    managers: Mutex<Managers>,
    /// Held while the managers change, until that is written down.
    writing: Mutex<()>,
    /// Pods that are not over: what comes too late for one is given to nobody.
    living: Mutex<BTreeSet<PodUid>>,
    /// None: nothing is aligned.
    topology: Option<TopologyManager>,
    /// Held over a pod's alignment: what others are given meanwhile would change it.
    turn: tokio::sync::Mutex<()>,
    metrics: Arc<Metrics>,
    /// cpuManagerReconcilePeriod.
    reconcile_period: Duration,
    /// The gate `DisableCPUQuotaWithExclusiveCPUs`.
    lifts_quota: bool,
    /// What containers without CPUs of their own share.
    shared: watch::Sender<CpuSet>,
}

/// What can be given.
#[derive(Debug, Clone)]
struct Managers {
    cpu: CpuManager,
    memory: MemoryManager,
}

impl Managers {
    /// Nothing is given to anybody.
    fn give_nothing(&self) -> bool {
        !self.cpu.is_static() && self.memory.policy() == MemoryPolicy::None
    }
}

/// Those of an agent without a kubelet: everybody may run anywhere.
impl Default for ResourceManagers {
    fn default() -> Self {
        Self(Arc::new(SharedManagers {
            root: None,
            managers: Mutex::new(Managers { cpu: CpuManager::none(), memory: MemoryManager::none() }),
            writing: Mutex::default(),
            living: Mutex::default(),
            topology: None,
            turn: tokio::sync::Mutex::default(),
            metrics: Arc::default(),
            reconcile_period: RECONCILE_PERIOD,
            lifts_quota: true,
            shared: watch::channel(CpuSet::new()).0,
        }))
    }
}

impl SharedManagers {
    fn lock(&self) -> MutexGuard<'_, Managers> {
        // It is replaced as a whole: none is half changed.
        self.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn living(&self) -> MutexGuard<'_, BTreeSet<PodUid>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResourceManagers {
    /// With what an earlier kubelet, ours or upstream's, has left in `root`. Of the machine nobody asks where
    /// [`ManagerSettings::need_machine`] says so.
    ///
    /// # Errors
    /// In upstream's words: when settings and machine do not fit, or what was left does not fit them.
    pub fn open(
        root: &Path,
        settings: &ManagerSettings,
        machine: &Machine,
        metrics: Arc<Metrics>,
    ) -> Result<Self, OpenError> {
        let (managers, topology) = accounts::open(root, settings, machine)?;
        accounts::begin_metrics(&metrics, &managers);
        let shared = watch::channel(managers.cpu.state().default.clone()).0;
        Ok(Self(Arc::new(SharedManagers {
            root: Some(root.to_owned()),
            managers: Mutex::new(managers),
            writing: Mutex::default(),
            living: Mutex::default(),
            topology,
            turn: tokio::sync::Mutex::default(),
            metrics,
            reconcile_period: settings.reconcile_period,
            lifts_quota: settings.lifts_quota,
            shared,
        })))
    }

    /// Whether the pod could be given CPUs or memory: then nothing is begun for it before.
    pub(crate) fn could_give(&self, pod: &Pod) -> bool {
        !self.0.lock().give_nothing() && qos(pod) == Qos::Guaranteed
    }

    /// Whether containers are held to CPUs at all.
    pub(crate) fn holds_cpus(&self) -> bool {
        self.0.lock().cpu.is_static()
    }

    /// Between two looks at what containers were told.
    pub(crate) fn reconcile_period(&self) -> Duration {
        self.0.reconcile_period
    }

    /// Changes when what is shared does.
    pub(crate) fn shared(&self) -> watch::Receiver<CpuSet> {
        self.0.shared.subscribe()
    }

    /// Where the container may run.
    pub(crate) fn affinity(&self, pod: &PodUid, container: &str) -> Affinity {
        let managers = self.0.lock();
        Affinity {
            cpus: managers.cpu.affinity(pod, container).map(ToString::to_string).unwrap_or_default(),
            memory_nodes: managers.memory.nodes_of(pod, container).map(list).unwrap_or_default(),
            has_own_cpus: self.0.lifts_quota && managers.cpu.exclusive(pod, container).is_some(),
        }
    }

    /// Whether any container of the pod has CPUs of its own, and the pod's cgroup must not hold it back there.
    pub(crate) fn lifts_quota(&self, pod: &PodUid) -> bool {
        self.0.lifts_quota && self.has_own_cpus(pod)
    }

    fn has_own_cpus(&self, pod: &PodUid) -> bool {
        self.0.lock().cpu.state().assigned.contains_key(pod.as_str())
    }

    /// CPUs that the container has to itself.
    pub(crate) fn cpus_of(&self, pod: &PodUid, container: &str) -> CpuSet {
        self.0.lock().cpu.exclusive(pod, container).cloned().unwrap_or_default()
    }

    /// Memory and huge pages that were set aside for the container.
    pub(crate) fn memory_of(&self, pod: &PodUid, container: &str) -> Vec<MemoryBlock> {
        self.0.lock().memory.of_container(pod, container).to_vec()
    }

    /// Memory and huge pages of each NUMA node that can be set aside.
    pub(crate) fn allocatable_memory(&self) -> Vec<MemoryBlock> {
        self.0.lock().memory.allocatable()
    }

    /// CPUs that containers can have to themselves.
    pub(crate) fn allocatable_cpus(&self) -> CpuSet {
        self.0.lock().cpu.allocatable()
    }

    /// Gives each container of the pod what it asks for. What it has already stays; of one that `runs` no plugin is asked
    /// again.
    ///
    /// # Errors
    /// Why the pod cannot have it. What was given before stays the pod's until it is over.
    pub(crate) async fn allocate(
        &self,
        pod: &Pod,
        runs: bool,
        devices: &DeviceManager,
    ) -> Result<(), Rejection> {
        self.0.living().insert(pod.uid.clone());
        let begun = self.begin_request();
        let given = match &self.0.topology {
            None => self.give_all(pod, runs, devices, None).await,
            Some(topology) => {
                let _turn = self.0.turn.lock().await;
                self.give_all(pod, runs, devices, Some(topology)).await
            }
        };
        self.end_request(begun, given.is_err());
        given
    }

    /// What is given at this moment.
    fn snapshot(&self) -> Managers {
        self.0.lock().clone()
    }

    async fn give_all(
        &self,
        pod: &Pod,
        runs: bool,
        devices: &DeviceManager,
        topology: Option<&TopologyManager>,
    ) -> Result<(), Rejection> {
        // What runs is where it is.
        let topology = topology.filter(|_| !runs);
        let of_pod = self.align_pod((topology, &self.snapshot()), pod, devices)?;
        let mut reusable = Reusable::new();
        for container in pod.all_containers() {
            let hint = match of_pod {
                Some(hint) => hint,
                None => {
                    self.align_container((topology, &self.snapshot()), pod, container, devices, &reusable)?
                }
            };
            if !runs {
                let given = devices.allocate_next(pod, container, &mut reusable, hint.nodes).await;
                given.map_err(|why| unexpected(&why))?;
            }
            self.give(pod, container, hint).await?;
            if of_pod.is_none() {
                self.count_aligned(topology, "container");
            }
        }
        if of_pod.is_some() {
            self.count_aligned(topology, "pod");
        }
        Ok(())
    }
}

/// For cpuset.mems.
fn list(nodes: NodeMask) -> String {
    nodes.iter().collect::<CpuSet>().to_string()
}

fn unexpected(why: &str) -> Rejection {
    let message = format!("Allocate failed due to {why}, which is unexpected");
    Rejection::new("UnexpectedAdmissionError", message)
}

#[cfg(test)]
pub(crate) mod tests;
