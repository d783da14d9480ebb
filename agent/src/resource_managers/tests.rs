//! What pods are given by all managers together, and what is written down of it.

use std::collections::BTreeMap;

use gantry_model::pod::{Container, Requirements, Resources};
use gantry_model::testing::{container, pod};
use gantry_numa::cpu_manager::{CPU_MANAGER_STATE, CpuSettings};
use gantry_numa::cpu_topology::{CpuInfo, CpuTopology};
use gantry_numa::hint::TopologyHint;
use gantry_numa::machine::NumaNode;
use gantry_numa::memory_manager::{FILE as MEMORY_MANAGER_STATE, MemoryReservation};

use super::*;

const GIB: i64 = 1 << 30;

/// Two NUMA nodes of four CPUs and 8 GiB each.
fn machine() -> Machine {
    let info = |cpu: u32| CpuInfo { core: cpu, socket: cpu / 4, numa: cpu / 4, uncore_cache: cpu / 4 };
    let node = |id: u32| NumaNode {
        id,
        memory: 8 << 30,
        huge_pages: BTreeMap::new(),
        distances: if id == 0 { vec![10, 20] } else { vec![20, 10] },
    };
    Machine {
        topology: CpuTopology::new((0..8).map(|cpu| (cpu, info(cpu))).collect()),
        numa: vec![node(0), node(1)],
    }
}

fn settings(topology: &str) -> ManagerSettings {
    let memory =
        |node: i64| MemoryReservation { node, limits: [("memory".to_owned(), "512Mi".to_owned())].into() };
    ManagerSettings {
        cpu: CpuSettings { policy: "static".to_owned(), reserved_milli: 1000, ..CpuSettings::default() },
        memory: MemorySettings {
            policy: "Static".to_owned(),
            reserved: vec![memory(0), memory(1)],
            kept: [("memory".to_owned(), GIB)].into(),
        },
        topology: TopologySettings {
            policy: topology.to_owned(),
            scope: "container".to_owned(),
            options: BTreeMap::new(),
        },
        reconcile_period: RECONCILE_PERIOD,
        lifts_quota: true,
    }
}

impl ResourceManagers {
    /// CPU 0 is reserved, and seven can be given; nothing is aligned.
    pub(crate) fn of_test(root: &Path) -> Self {
        open(root, &settings("none")).0
    }
}

fn open(root: &Path, settings: &ManagerSettings) -> (ResourceManagers, Arc<Metrics>) {
    let metrics = Arc::<Metrics>::default();
    (ResourceManagers::open(root, settings, &machine(), metrics.clone()).unwrap(), metrics)
}

/// Guaranteed, with the container `c`.
pub(crate) fn asking(uid: &str, milli: i64, memory: i64) -> Pod {
    let resources = Resources {
        cpu_request: Some(milli),
        cpu_limit: Some(milli),
        memory_request: Some(memory),
        memory_limit: Some(memory),
        ..Resources::default()
    };
    let amounts: BTreeMap<String, String> =
        [("cpu".to_owned(), format!("{milli}m")), ("memory".to_owned(), memory.to_string())].into();
    let written = Requirements { requests: amounts.clone(), limits: amounts };
    let one = Container { resources, written, ..container("c") };
    Pod { uid: PodUid::parse(uid).unwrap(), containers: vec![one], ..pod() }
}

async fn give(managers: &ResourceManagers, pod: &Pod) -> Result<Affinity, Rejection> {
    managers.allocate(pod, false, &DeviceManager::default()).await?;
    Ok(managers.affinity(&pod.uid, "c"))
}

fn own(cpus: &str, nodes: &str) -> Affinity {
    Affinity { cpus: cpus.to_owned(), memory_nodes: nodes.to_owned(), has_own_cpus: true }
}

#[tokio::test]
async fn a_container_that_gets_no_whole_cores_counts_as_not_aligned() {
    for full in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let mut settings = settings("none");
        settings.cpu.gates.beta = true;
        settings.cpu.options = [("full-pcpus-only".to_owned(), full.to_string())].into();
        let (managers, metrics) = open(root.path(), &settings);
        give(&managers, &asking("a", 9000, GIB)).await.unwrap_err();
        let counted = metrics.aligned_compute_resources_failures.get(["container", "physical_cpu"]);
        assert_eq!(counted, Some(f64::from(u8::from(full))));
        assert_eq!(metrics.cpu_manager_pinning_errors.get([]), Some(1.0));
    }
}

#[tokio::test]
async fn cpus_and_memory_come_from_one_node_and_outlive_the_kubelet() {
    let root = tempfile::tempdir().unwrap();
    let (managers, metrics) = open(root.path(), &settings("single-numa-node"));
    let shared = managers.shared();
    // CPU 0 is reserved: the first node has three, the other four.
    let (a, b) = (asking("a", 3000, 6 * GIB), asking("b", 4000, 6 * GIB));
    assert_eq!(give(&managers, &a).await.unwrap(), own("1-3", "0"));
    assert_eq!(give(&managers, &b).await.unwrap(), own("4-7", "1"));
    assert_eq!(shared.borrow().to_string(), "0");
    assert!(managers.could_give(&a) && managers.lifts_quota(&a.uid));
    assert_eq!(metrics.aligned_compute_resources.get(["container", "numa_node"]), Some(2.0));
    assert_eq!(metrics.cpu_manager_exclusive.get([]), Some(7.0));
    assert_eq!(metrics.topology_manager_requests.get([]), Some(2.0));

    let refused = give(&managers, &asking("c", 1000, GIB)).await.unwrap_err();
    assert_eq!(refused.reason, "TopologyAffinityError");
    assert_eq!(refused.message, "Resources cannot be allocated with Topology locality");
    assert_eq!(metrics.aligned_compute_resources_failures.get(["container", "numa_node"]), Some(1.0));
    assert_eq!(metrics.topology_manager_errors.get([]), Some(1.0));

    let (next, _) = open(root.path(), &settings("single-numa-node"));
    assert_eq!(give(&next, &a).await.unwrap(), own("1-3", "0"));
    // #52351: what a pod has stays its own until it is over.
    next.forget(&a.uid).await;
    assert_eq!(give(&next, &asking("c", 1000, GIB)).await.unwrap(), own("1", "0"));
    next.retain(&[]).await;
    let left = std::fs::read_to_string(root.path().join(CPU_MANAGER_STATE)).unwrap();
    assert!(left.contains(r#""defaultCpuSet":"0-7","checksum""#), "{left}");
    let left = std::fs::read_to_string(root.path().join(MEMORY_MANAGER_STATE)).unwrap();
    assert!(!left.contains("entries"), "{left}");
}

#[tokio::test]
async fn a_pod_is_aligned_as_a_whole_where_that_is_asked_for() {
    let mut settings = settings("single-numa-node");
    let two = |uid: &str| {
        let one = asking(uid, 2000, GIB).containers[0].clone();
        let other = Container { name: "d".to_owned(), ..one.clone() };
        Pod { containers: vec![one, other], ..asking(uid, 2000, GIB) }
    };
    let root = tempfile::tempdir().unwrap();
    let (by_container, _) = open(root.path(), &settings);
    // Each container finds two on a node; the pod finds no node with four.
    give(&by_container, &asking("a", 2000, GIB)).await.unwrap();
    give(&by_container, &asking("b", 1000, GIB)).await.unwrap();
    "pod".clone_into(&mut settings.topology.scope);
    let root = tempfile::tempdir().unwrap();
    let (by_pod, metrics) = open(root.path(), &settings);
    let whole = two("c");
    give(&by_pod, &whole).await.unwrap();
    assert_eq!(by_pod.affinity(&whole.uid, "c"), own("4-5", "1"));
    assert_eq!(by_pod.affinity(&whole.uid, "d"), own("6-7", "1"));
    assert_eq!(metrics.aligned_compute_resources.get(["pod", "numa_node"]), Some(1.0));
    assert_eq!(give(&by_pod, &two("d")).await.unwrap_err().reason, "TopologyAffinityError");
}

#[tokio::test]
async fn without_alignment_each_is_given_from_anywhere() {
    let root = tempfile::tempdir().unwrap();
    let (managers, metrics) = open(root.path(), &settings("none"));
    let wide = give(&managers, &asking("a", 6000, 10 * GIB)).await.unwrap();
    assert_eq!(wide, own("1-2,4-7", "0-1"));
    let few = give(&managers, &asking("b", 2000, GIB)).await.unwrap_err();
    assert_eq!(few.reason, "UnexpectedAdmissionError");
    assert_eq!(
        few.message,
        "Allocate failed due to not enough cpus available to satisfy request: requested=2, available=1, which is \
         unexpected"
    );
    assert_eq!(metrics.cpu_manager_pinning_errors.get([]), Some(1.0));
    let shares = give(&managers, &Pod { containers: vec![container("c")], ..pod() }).await.unwrap();
    assert!(!shares.has_own_cpus && shares.memory_nodes.is_empty());
    assert_eq!(shares.cpus, managers.shared().borrow().to_string());
}

#[tokio::test]
async fn what_comes_after_a_pods_end_is_given_to_nobody() {
    let root = tempfile::tempdir().unwrap();
    let (managers, _) = open(root.path(), &settings("none"));
    let pod = asking("a", 2000, GIB);
    give(&managers, &pod).await.unwrap();
    managers.forget(&pod.uid).await;
    // Whoever gave it has not heard yet.
    let late = managers.give(&pod, &pod.containers[0], TopologyHint::default()).await.unwrap_err();
    assert!(late.message.contains("pod a is over"), "{late}");
    assert_eq!(managers.shared().borrow().len(), 8);
    // It may come again.
    assert_eq!(give(&managers, &pod).await.unwrap().cpus, "1-2");
}

/// What cannot be written down is not given.
#[tokio::test]
async fn nothing_counts_before_it_is_written_down() {
    let root = tempfile::tempdir().unwrap();
    let (managers, _) = open(root.path(), &settings("none"));
    std::fs::remove_file(root.path().join(CPU_MANAGER_STATE)).unwrap();
    std::fs::create_dir(root.path().join(CPU_MANAGER_STATE)).unwrap();
    let refused = give(&managers, &asking("a", 1000, GIB)).await.unwrap_err();
    assert!(
        refused
            .message
            .starts_with("Allocate failed due to could not save checkpoint \"cpu_manager_state\": "),
        "{refused}"
    );
    assert!(!managers.lifts_quota(&PodUid::parse("a").unwrap()));
    assert_eq!(managers.shared().borrow().len(), 8);
}

#[test]
fn more_nodes_than_can_be_looked_at_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let node = |id: u32| NumaNode { id, memory: 1 << 30, ..NumaNode::default() };
    let many = Machine { numa: (0..17).map(node).collect(), ..machine() };
    let why = ResourceManagers::open(root.path(), &settings("none"), &many, Arc::default()).unwrap_err();
    assert_eq!(
        why.to_string(),
        "memoryManagerPolicy cannot be kept to on a machine with 17 NUMA nodes: every set of them is looked at, so that 16 \
         are the most; set it to \"None\""
    );
}

/// #110478, #84333, #55736: by design.
#[tokio::test]
async fn another_policys_checkpoint_stops_the_kubelet() {
    let root = tempfile::tempdir().unwrap();
    let none = ManagerSettings {
        cpu: CpuSettings { policy: "none".to_owned(), ..CpuSettings::default() },
        memory: MemorySettings { policy: "None".to_owned(), ..MemorySettings::default() },
        ..settings("none")
    };
    assert!(!none.need_machine());
    let (managers, _) = open(root.path(), &none);
    let file = root.path().join(CPU_MANAGER_STATE);
    let left = std::fs::read_to_string(&file).unwrap();
    assert_eq!(left, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
    assert_eq!(give(&managers, &asking("a", 1000, GIB)).await.unwrap(), Affinity::default());
    let why = ResourceManagers::open(root.path(), &settings("none"), &machine(), Arc::default()).unwrap_err();
    assert_eq!(
        why.to_string(),
        format!(
            "start cpu manager error: could not restore state from checkpoint: configured policy \"static\" differs from \
             state checkpoint policy \"none\", please drain this node and delete the CPU manager checkpoint file \
             {:?} before restarting Kubelet",
            file.display().to_string()
        )
    );
}

/// Upstream asks the managers before it looks at the node's room: a pod without it is counted, and nothing is given.
#[tokio::test]
async fn a_pod_that_the_node_has_no_room_for_is_counted_and_given_nothing() {
    let (unfit, unaligned) = ("UnexpectedAdmissionError", "TopologyAffinityError");
    for (topology, gib, reason) in [("none", 20, unfit), ("single-numa-node", 10, unaligned)] {
        let root = tempfile::tempdir().unwrap();
        let (managers, metrics) = open(root.path(), &settings(topology));
        let (ask, devices) =
            (|pod: &Pod| managers.ask(pod, &DeviceManager::default()), DeviceManager::default());
        assert_eq!(ask(&asking("a", 100, gib * GIB)).unwrap_err().reason, reason);
        let errors = match topology {
            "none" => metrics.memory_manager_pinning_errors.get([]),
            _ => metrics.topology_manager_errors.get([]),
        };
        assert_eq!((errors, metrics.topology_manager_requests.get([])), (Some(1.0), Some(1.0)));
        let fits = asking("b", 2000, GIB);
        ask(&fits).unwrap();
        ask(&fits).unwrap();
        assert_eq!(metrics.cpu_manager_pinning_errors.get([]), Some(0.0));
        assert_eq!(
            (managers.affinity(&fits.uid, "c").cpus.as_str(), managers.memory_of(&fits.uid, "c").len()),
            ("0-7", 0)
        );
        // Burstable: no manager gives it anything.
        let shares = Pod { containers: vec![container("c")], ..asking("c", 100, GIB) };
        ask(&shares).unwrap();
        assert_eq!(metrics.topology_manager_requests.get([]), Some(3.0));
        managers.allocate(&fits, false, &devices).await.unwrap();
        assert_eq!(managers.affinity(&fits.uid, "c").cpus, "1-2");
    }
}
