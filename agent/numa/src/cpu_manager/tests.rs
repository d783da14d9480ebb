//! Who gets CPUs to itself, and which.

use gantry_model::pod::{Origin, Requirements, Resources, Role};
use gantry_model::testing::{container, pod};

use super::*;
use crate::cpu_topology::CpuInfo;
use crate::node_mask::NodeMask;

/// Two sockets with a NUMA node each, of two cores with two threads: CPU n and n + 4 are one core.
fn machine() -> CpuTopology {
    let info = |cpu: u32| {
        let core = cpu % 4;
        CpuInfo { core, socket: core / 2, numa: core / 2, uncore_cache: core / 2 }
    };
    CpuTopology::new((0..8).map(|cpu| (cpu, info(cpu))).collect())
}

fn settings(options: &[(&str, &str)]) -> CpuSettings {
    CpuSettings {
        policy: "static".to_owned(),
        options: options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        gates: OptionGates { alpha: true, beta: true },
        reserved: CpuSet::new(),
        reserved_milli: 1500,
        single_numa_node: false,
    }
}

fn manager(options: &[(&str, &str)]) -> CpuManager {
    CpuManager::open(&settings(options), &machine(), None).unwrap()
}

fn asking(name: &str, role: Role, milli: i64) -> Container {
    let resources = Resources {
        cpu_request: Some(milli),
        cpu_limit: Some(milli),
        memory_request: Some(1 << 20),
        memory_limit: Some(1 << 20),
        ..Resources::default()
    };
    Container { role, resources, ..container(name) }
}

fn of(uid: &str, init: Vec<Container>, containers: Vec<Container>) -> Pod {
    let uid = PodUid::parse(uid).unwrap();
    Pod { uid, origin: Origin::Api, init_containers: init, containers, ..pod() }
}

fn one(uid: &str, milli: i64) -> Pod {
    of(uid, Vec::new(), vec![asking("c", Role::Regular, milli)])
}

/// All containers of the pod, without a hint.
fn give(manager: &mut CpuManager, pod: &Pod) -> Result<Vec<String>, CpuError> {
    let mut given = Vec::new();
    for container in pod.all_containers() {
        manager.allocate(pod, container, TopologyHint::default())?;
        given.push(manager.affinity(&pod.uid, &container.name).unwrap().to_string());
    }
    Ok(given)
}

fn shown(hints: &Hints) -> Vec<(Vec<u32>, bool)> {
    let list = hints.get("cpu").cloned().flatten().unwrap_or_default();
    list.iter()
        .map(|hint| (hint.nodes.into_iter().flat_map(NodeMask::iter).collect(), hint.preferred))
        .collect()
}

#[test]
fn whole_cpus_of_guaranteed_pods_are_their_own_and_the_rest_is_shared() {
    let mut manager = manager(&[]);
    // 1.5 CPUs are reserved: two, of the first core.
    assert_eq!(manager.allocatable().to_string(), "1-3,5-7");
    let first = one("p1", 2000);
    assert_eq!(give(&mut manager, &first).unwrap(), ["1,5"]);
    let shared = one("p2", 1500);
    assert_eq!(give(&mut manager, &shared).unwrap(), ["0,2-4,6-7"]);
    let mut burstable = one("p3", 1000);
    burstable.containers[0].resources.cpu_limit = Some(2000);
    assert_eq!(give(&mut manager, &burstable).unwrap(), ["0,2-4,6-7"]);
    let limits = [("cpu".to_owned(), "1".to_owned()), ("memory".to_owned(), "1Mi".to_owned())];
    let whole = Requirements { requests: limits.clone().into(), limits: limits.into() };
    let of_pod = Pod { resources: Some(whole), ..one("p4", 1000) };
    assert_eq!(give(&mut manager, &of_pod).unwrap(), ["0,2-4,6-7"]);
    // One that asks for nothing as a whole is as any other.
    let empty = Pod { resources: Some(Requirements::default()), ..one("p6", 1000) };
    assert_eq!(give(&mut manager, &empty).unwrap().len(), 1);
    assert!(manager.exclusive(&empty.uid, "c").is_some() && manager.forget(&empty.uid));
    // It has them already.
    assert_eq!(give(&mut manager, &first).unwrap(), ["1,5"]);
    assert_eq!(manager.given_by_node(), [(0, 2)].into());
    assert_eq!(manager.available().len(), 4);
    let many = one("p5", 5000);
    let why = give(&mut manager, &many).unwrap_err();
    assert_eq!(why.to_string(), "not enough cpus available to satisfy request: requested=5, available=4");
    assert_eq!(why.reason(), None);
    assert!(manager.forget(&first.uid) && !manager.forget(&many.uid));
    assert_eq!(manager.state().default.to_string(), "0-7");
}

/// #94220: what an init container had is the next one's, but not what a sidecar has.
#[test]
fn init_containers_leave_their_cpus_to_those_after_them() {
    let mut manager = manager(&[]);
    let init = vec![asking("i", Role::Init, 2000), asking("s", Role::Sidecar, 1000)];
    let pod = of("p1", init, vec![asking("a", Role::Regular, 1000), asking("b", Role::Regular, 2000)]);
    let given = give(&mut manager, &pod).unwrap();
    let sets: Vec<CpuSet> = given.iter().map(|text| text.parse().unwrap()).collect();
    let [init, sidecar, a, b] = &sets[..] else { panic!("{given:?}") };
    assert!(sidecar.is_subset(init), "{given:?}");
    for (one, other) in [(sidecar, a), (sidecar, b), (a, b)] {
        assert!(one.intersection(other).is_empty(), "{given:?}");
    }
    assert_eq!(manager.given_by_node().values().sum::<usize>(), 4, "{given:?}");
    assert!(manager.forget(&pod.uid));
    assert_eq!(manager.state().default.len(), 8);
}

#[test]
fn hints_name_the_nodes_that_have_enough() {
    let mut manager = manager(&[]);
    let pod = one("p1", 2000);
    let hints = manager.hints(&pod, &pod.containers[0]);
    assert_eq!(shown(&hints), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    assert_eq!(hints, manager.hints_of_pod(&pod));
    let hint = TopologyHint { nodes: Some(NodeMask::of([1])), preferred: true };
    let given = manager.allocate(&pod, &pod.containers[0], hint).unwrap();
    assert_eq!(given, GivenCpus::New { full_cores: false, by_uncore: true });
    assert_eq!(manager.exclusive(&pod.uid, "c").unwrap().to_string(), "2,6");
    // A restart of the kubelet asks again.
    assert_eq!(shown(&manager.hints(&pod, &pod.containers[0])), [(vec![1], true), (vec![0, 1], false)]);
    let other = one("p2", 3000);
    assert_eq!(shown(&manager.hints(&other, &other.containers[0])), [(vec![0, 1], false)]);
    // As many as no node ever has.
    let large = one("p3", 5000);
    assert_eq!(shown(&manager.hints(&large, &large.containers[0])), []);
    let shared = one("p4", 500);
    assert_eq!(manager.hints(&shared, &shared.containers[0]), Hints::new());
}

#[test]
fn whole_cores_alone_are_given_where_that_is_asked_for() {
    let mut manager = manager(&[("full-pcpus-only", "true")]);
    let odd = give(&mut manager, &one("p1", 1000)).unwrap_err();
    assert_eq!(odd.to_string(), "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2");
    assert_eq!(odd.reason(), Some("SMTAlignmentError"));
    assert_eq!(give(&mut manager, &one("p2", 4000)).unwrap(), ["2-3,6-7"]);
    let many = give(&mut manager, &one("p3", 4000)).unwrap_err();
    assert_eq!(
        many.to_string(),
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2"
    );
    // What runs stays when a kubelet asks again, however few are free.
    assert_eq!(give(&mut manager, &one("p2", 4000)).unwrap(), ["2-3,6-7"]);
}

#[test]
fn reserved_cpus_are_nobodys_where_that_is_asked_for() {
    let strict = manager(&[("strict-cpu-reservation", "true")]);
    assert_eq!(strict.state().default.to_string(), "1-3,5-7");
    let named = CpuSettings { reserved: "3,7".parse().unwrap(), reserved_milli: 2000, ..settings(&[]) };
    let manager = CpuManager::open(&named, &machine(), None).unwrap();
    assert_eq!(manager.allocatable().to_string(), "0-2,4-6");
}

/// #110478, #84333: what doesn't fit stops the kubelet, and nothing is changed.
#[test]
fn a_state_that_does_not_fit_is_refused_in_upstreams_words() {
    let mut before = manager(&[]);
    give(&mut before, &one("p1", 2000)).unwrap();
    let left = before.checkpoint().unwrap();
    let after = CpuManager::open(&settings(&[]), &machine(), Some(&left)).unwrap();
    assert_eq!(after.state(), before.state());
    let why = |settings: &CpuSettings, topology: &CpuTopology| {
        CpuManager::open(settings, topology, Some(&left)).unwrap_err().to_string()
    };
    let fewer = CpuTopology::new(machine().cpus.into_iter().filter(|(cpu, _)| *cpu < 7).collect());
    assert_eq!(
        why(&settings(&[]), &fewer),
        "current set of available CPUs \"0-6\" doesn't match with CPUs in state \"0-7\""
    );
    let more = CpuSettings { reserved: "0-1".parse().unwrap(), reserved_milli: 2000, ..settings(&[]) };
    assert_eq!(
        why(&more, &machine()),
        "not all reserved cpus: \"0-1\" are present in defaultCpuSet: \"0,2-4,6-7\""
    );
    assert_eq!(
        why(&settings(&[("strict-cpu-reservation", "true")]), &machine()),
        "some of strictly reserved cpus: \"0,4\" are present in defaultCpuSet: \"0,2-4,6-7\""
    );
    let none = CpuSettings { policy: "none".to_owned(), ..settings(&[]) };
    assert_eq!(
        why(&none, &machine()),
        "could not restore state from checkpoint: configured policy \"none\" differs from state checkpoint policy \"static\""
    );
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let why = |settings: CpuSettings| CpuManager::open(&settings, &machine(), None).unwrap_err().to_string();
    assert_eq!(
        why(CpuSettings { reserved_milli: 0, ..settings(&[]) }),
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    );
    assert_eq!(why(CpuSettings { policy: "x".to_owned(), ..settings(&[]) }), "unknown policy: \"x\"");
    assert_eq!(
        why(CpuSettings { policy: "none".to_owned(), ..settings(&[("full-pcpus-only", "true")]) }),
        "new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]"
    );
    assert_eq!(
        why(CpuSettings { reserved: "0".parse().unwrap(), ..settings(&[]) }),
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of 0 did not equal 2)"
    );
    assert_eq!(
        why(CpuSettings { single_numa_node: true, ..settings(&[("align-by-socket", "true")]) }),
        "new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
    );
}
