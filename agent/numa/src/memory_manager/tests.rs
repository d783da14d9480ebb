//! Upstream's tables for the static policy, as facts.

mod start;

use gantry_model::allocation::resources;
use gantry_model::pod::Requirements;
use gantry_model::testing;

use super::*;
use crate::topology_manager::{NumaInfo, TopologyManager};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HUGE: &str = "hugepages-1Gi";
const ANY: TopologyHint = TopologyHint { nodes: None, preferred: false };

fn mask(nodes: &[u32]) -> NodeMask {
    NodeMask::of(nodes.iter().copied())
}

fn on(nodes: &[u32], preferred: bool) -> TopologyHint {
    TopologyHint { nodes: Some(mask(nodes)), preferred }
}

/// Nodes with so many MiB for pods, and huge pages of 1 GiB; 512 MiB of each are the system's.
fn machine(nodes: &[(u64, u64)]) -> (Vec<NumaMemory>, Vec<MemoryReservation>, BTreeMap<String, i64>) {
    let of_node = |(node, (mib, huge)): (u32, &(u64, u64))| {
        let memory = (mib + 512) * MIB + huge * GIB;
        NumaMemory { node, memory, huge_pages: BTreeMap::from([(GIB, *huge)]) }
    };
    let limits = BTreeMap::from([(MEMORY.to_owned(), "512Mi".to_owned())]);
    let reserved = (0..nodes.len())
        .map(|node| MemoryReservation { node: i64::try_from(node).unwrap(), limits: limits.clone() });
    let allocatable = i64::try_from(nodes.len() as u64 * 512 * MIB).unwrap();
    let allocatable = BTreeMap::from([(MEMORY.to_owned(), allocatable)]);
    ((0..).zip(nodes).map(of_node).collect(), reserved.collect(), allocatable)
}

fn manager(nodes: &[(u64, u64)]) -> MemoryManager {
    let (nodes, reserved, allocatable) = machine(nodes);
    MemoryManager::new("Static", &nodes, &reserved, &allocatable).unwrap()
}

/// With a CPU, and so many MiB and huge pages of 1 GiB, as its limits.
fn container(name: &str, role: Role, mib: u64, huge: u64) -> Container {
    let mut limits =
        BTreeMap::from([("cpu".to_owned(), "1".to_owned()), (MEMORY.to_owned(), format!("{mib}Mi"))]);
    if huge > 0 {
        limits.insert(HUGE.to_owned(), format!("{huge}Gi"));
    }
    let written = Requirements { limits, ..Requirements::default() };
    Container { resources: resources(&written), written, ..testing::in_role(name, role) }
}

fn pod(uid: &str, all: Vec<Container>) -> Pod {
    let (init_containers, containers) = all.into_iter().partition(|own| own.role != Role::Regular);
    Pod { uid: PodUid::parse(uid).unwrap(), init_containers, containers, ..testing::pod() }
}

fn single(uid: &str, mib: u64, huge: u64) -> Pod {
    pod(uid, vec![container("c", Role::Regular, mib, huge)])
}

fn allocate(manager: &mut MemoryManager, pod: &Pod, hint: TopologyHint) -> Result<MemoryOutcome, String> {
    manager.allocate(pod, &pod.containers[0], hint).map_err(|error| error.to_string())
}

fn allocate_all(manager: &mut MemoryManager, pod: &Pod) {
    for container in pod.all_containers() {
        manager.allocate(pod, container, ANY).unwrap();
    }
}

/// MiB reserved and free of memory, huge pages free, assignments, group.
fn account(manager: &MemoryManager, node: u32) -> (u64, u64, u64, i64, NodeMask) {
    let MemoryNode { assignments, memory, cells } = &manager.machine()[&node];
    (memory[MEMORY].reserved / MIB, memory[MEMORY].free / MIB, memory[HUGE].free / GIB, *assignments, *cells)
}

fn block(nodes: &[u32], resource: &str, size: u64) -> MemoryBlock {
    MemoryBlock { nodes: mask(nodes), resource: resource.to_owned(), size }
}

fn both(list: &[TopologyHint]) -> Hints {
    [MEMORY, HUGE].map(|name| (name.to_owned(), Some(list.to_vec()))).into()
}

#[test]
fn nodes_are_counted_without_what_is_the_systems_and_in_huge_pages() {
    let manager = manager(&[(1536, 1), (1536, 0)]);
    let node = &manager.machine()[&0];
    let table = |total, system_reserved, free| MemoryTable {
        total,
        system_reserved,
        allocatable: free,
        reserved: 0,
        free,
    };
    assert_eq!(node.memory[MEMORY], table(3 * GIB, 512 * MIB, 1536 * MIB));
    assert_eq!(node.memory[HUGE], table(GIB, 0, GIB));
    assert_eq!((node.assignments, node.cells), (0, mask(&[0])));
    // Of nothing nothing is told.
    let expected = [block(&[0], HUGE, GIB), block(&[0], MEMORY, 1536 * MIB), block(&[1], MEMORY, 1536 * MIB)];
    assert_eq!(manager.allocatable(), expected);
}

#[test]
fn what_a_manager_cannot_be_made_of_is_told_in_upstreams_words() {
    let (nodes, reserved, allocatable) = machine(&[(1024, 0)]);
    let with = |policy: &str, reserved: &[MemoryReservation], allocatable: &BTreeMap<String, i64>| {
        MemoryManager::new(policy, &nodes, reserved, allocatable).map_err(|error| error.to_string())
    };
    let message = |policy: &str| with(policy, &reserved, &allocatable).unwrap_err();
    assert_eq!(message("Fake"), "unknown policy: \"Fake\"");
    assert_eq!(message("BestEffort"), "policy \"BestEffort\" is not available for platform \"linux\"");
    let nothing = "[memorymanager] you should specify the system reserved memory";
    assert_eq!(with("Static", &[], &BTreeMap::new()).unwrap_err(), nothing);
    let not_equal = "the total amount \"0\" of type \"memory\" is not equal to the value \"512Mi\" determined by Node \
                     Allocatable feature";
    assert_eq!(with("Static", &[], &allocatable).unwrap_err(), not_equal);
    // It looks at nothing.
    assert_eq!(with("None", &[], &allocatable).unwrap().policy(), MemoryPolicy::None);
}

#[test]
fn what_is_not_managed_gets_no_hints_and_no_memory() {
    let guaranteed = single("a", 1024, 1);
    let mut burstable = guaranteed.clone();
    burstable.containers[0].resources.cpu_request = Some(1);
    let own = [("cpu", "1"), (MEMORY, "1Gi")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    let own = Requirements { requests: own.clone().into(), limits: own.into() };
    let with_own_numbers = Pod { resources: Some(own), ..guaranteed.clone() };
    let none = MemoryManager::new("None", &[], &[], &BTreeMap::new()).unwrap();
    for (mut manager, pod) in
        [(manager(&[(1536, 1)]), burstable), (manager(&[(1536, 1)]), with_own_numbers), (none, guaranteed)]
    {
        assert_eq!(manager.hints_of_container(&pod, &pod.containers[0]), Hints::new());
        assert_eq!(manager.hints_of_pod(&pod), Hints::new());
        let before = manager.machine().clone();
        assert_eq!(allocate(&mut manager, &pod, ANY), Ok(MemoryOutcome::NotManaged));
        assert_eq!((manager.machine(), manager.nodes_of(&pod.uid, "c")), (&before, None));
        assert!(manager.of_container(&pod.uid, "c").is_empty());
    }
}

#[test]
fn without_a_hint_the_best_nodes_are_taken_once() {
    let mut manager = manager(&[(1536, 1)]);
    let pod = single("a", 1024, 1);
    assert_eq!(allocate(&mut manager, &pod, ANY), Ok(MemoryOutcome::Allocated { resources: 2 }));
    assert_eq!(account(&manager, 0), (1024, 512, 0, 2, mask(&[0])));
    assert_eq!(manager.of_container(&pod.uid, "c"), [block(&[0], HUGE, GIB), block(&[0], MEMORY, GIB)]);
    assert_eq!(manager.nodes_of(&pod.uid, "c"), Some(mask(&[0])));
    assert_eq!(allocate(&mut manager, &pod, ANY), Ok(MemoryOutcome::AlreadyThere));
    assert_eq!(account(&manager, 0), (1024, 512, 0, 2, mask(&[0])));
    assert_eq!(
        allocate(&mut manager, &single("b", 1024, 1), ANY).unwrap_err(),
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    );
}

#[test]
fn several_nodes_give_as_much_as_they_have_in_turn() {
    let mut manager = manager(&[(512, 1); 4]);
    let pod = single("a", 1024, 1);
    assert_eq!(allocate(&mut manager, &pod, TopologyHint { preferred: true, ..ANY }).map(|_| ()), Ok(()));
    let group = mask(&[0, 1]);
    assert_eq!(account(&manager, 0), (512, 0, 0, 2, group));
    assert_eq!(account(&manager, 1), (512, 0, 1, 2, group));
    assert_eq!(account(&manager, 2), (0, 512, 1, 0, mask(&[2])));
    assert_eq!(manager.nodes_of(&pod.uid, "c"), Some(group));
    // Back to what it was.
    assert!(manager.remove(&pod.uid, "c") && !manager.remove(&pod.uid, "c"));
    for node in 0..4 {
        assert_eq!(account(&manager, node), (0, 512, 1, 0, mask(&[node])));
    }
}

#[test]
fn a_preferred_hint_needs_preferred_nodes() {
    for (hint, message) in [
        (
            TopologyHint { preferred: true, ..ANY },
            "[memorymanager] failed to find the default preferred hint",
        ),
        (on(&[1], true), "[memorymanager] failed to find the extended preferred hint"),
    ] {
        let mut manager = manager(&[(1024, 1), (512, 1), (512, 1)]);
        allocate(&mut manager, &single("a", 512, 0), on(&[0], true)).unwrap();
        let before = manager.clone();
        assert_eq!(allocate(&mut manager, &single("b", 1024, 1), hint).unwrap_err(), message);
        assert_eq!(manager.machine(), before.machine());
        // It may come from two, though, when nobody prefers.
        allocate(&mut manager, &single("b", 1024, 1), TopologyHint { preferred: false, ..hint }).unwrap();
        assert_eq!(account(&manager, 2), (512, 0, 1, 2, mask(&[1, 2])));
    }
}

#[test]
fn a_hint_is_extended_only_by_nodes_that_nobody_has() {
    let mut manager = manager(&[(512, 1), (1536, 1), (1536, 1)]);
    allocate(&mut manager, &single("a", 2048, 0), on(&[1, 2], true)).unwrap();
    assert_eq!(
        allocate(&mut manager, &single("b", 1024, 1), on(&[0], false)).unwrap_err(),
        "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
    );
}

#[test]
fn a_node_gives_either_alone_or_in_one_group() {
    let mut manager = manager(&[(1536, 1), (512, 1), (512, 1)]);
    let first = single("a", 1024, 0);
    allocate(&mut manager, &first, on(&[0], true)).unwrap();
    let violation = "[memorymanager] preferred hint violates NUMA node allocation";
    let second = single("b", 1024, 1);
    assert_eq!(allocate(&mut manager, &second, on(&[0, 1], true)).unwrap_err(), violation);
    manager.remove(&first.uid, "c");
    allocate(&mut manager, &second, on(&[0, 1], true)).unwrap();
    // Another group with one of them.
    assert_eq!(allocate(&mut manager, &single("c", 512, 0), on(&[1, 2], true)).unwrap_err(), violation);
    allocate(&mut manager, &single("c", 512, 0), on(&[0, 1], true)).unwrap();
}

#[test]
fn hints_name_the_nodes_that_are_free_and_prefer_the_fewest() {
    let mut manager = manager(&[(1536, 1); 4]);
    allocate(&mut manager, &single("a", 2048, 2), on(&[0, 1], true)).unwrap();
    let next = single("b", 1024, 1);
    let expected = both(&[on(&[2], true), on(&[3], true), on(&[2, 3], false)]);
    assert_eq!(manager.hints_of_container(&next, &next.containers[0]), expected);
    assert_eq!(manager.hints_of_pod(&next), expected);
    // What one node could give in all is not preferred from two.
    let small = single("c", 512, 0);
    allocate(&mut manager, &single("d", 1536, 0), on(&[2], true)).unwrap();
    allocate(&mut manager, &single("e", 1536, 0), on(&[3], true)).unwrap();
    let expected = Hints::from([(MEMORY.to_owned(), Some(vec![on(&[0, 1], false)]))]);
    assert_eq!(manager.hints_of_container(&small, &small.containers[0]), expected);
    // Upstream tells nothing where nothing fits: the allocation is refused.
    assert_eq!(manager.hints_of_container(&next, &next.containers[0]), Hints::new());
}

#[test]
fn hints_of_what_a_container_has_are_told_again() {
    let mut manager = manager(&[(1536, 1), (1536, 1)]);
    let pod = single("a", 1024, 1);
    allocate(&mut manager, &pod, on(&[1], false)).unwrap();
    let again = both(&[on(&[1], true)]);
    assert_eq!(manager.hints_of_container(&pod, &pod.containers[0]), again);
    assert_eq!(manager.hints_of_pod(&pod), again);
    for other in [single("a", 1024, 0), single("a", 1024, 2), single("a", 512, 1)] {
        assert_eq!(manager.hints_of_container(&other, &other.containers[0]), Hints::new());
    }
}

#[test]
fn a_pods_hints_are_of_all_its_containers() {
    let manager = manager(&[(1536, 2), (1536, 2)]);
    let two = ["c", "d"].map(|name| container(name, Role::Regular, 1024, 1));
    let pod = pod("a", two.to_vec());
    assert_eq!(manager.hints_of_pod(&pod), both(&[on(&[0, 1], true)]));
    let each = both(&[on(&[0], true), on(&[1], true), on(&[0, 1], false)]);
    assert_eq!(manager.hints_of_container(&pod, &pod.containers[0]), each);
}

/// A machine without such huge pages: upstream's own does not survive a look at them.
#[test]
fn of_a_resource_that_no_node_has_there_is_none() {
    let mut manager = manager(&[(2048, 0)]);
    let mut pod = single("a", 1024, 0);
    let set = |pod: &mut Pod, text: &str| {
        pod.containers[0].written.limits.insert("hugepages-2Mi".to_owned(), text.to_owned());
    };
    set(&mut pod, "2Mi");
    assert_eq!(manager.hints_of_pod(&pod), Hints::new());
    assert!(allocate(&mut manager, &pod, ANY).unwrap_err().contains("no NUMA nodes with enough memory"));
    set(&mut pod, "0");
    assert_eq!(allocate(&mut manager, &pod, ANY), Ok(MemoryOutcome::Allocated { resources: 1 }));
}

#[test]
fn a_part_of_a_byte_is_refused() {
    let mut manager = manager(&[(2048, 0)]);
    let mut pod = single("a", 1024, 0);
    pod.containers[0].written.limits.insert(MEMORY.to_owned(), "1500m".to_owned());
    assert_eq!(manager.hints_of_container(&pod, &pod.containers[0]), Hints::new());
    let message = "[memorymanager] failed to represent quantity as int64";
    assert_eq!(allocate(&mut manager, &pod, ANY).unwrap_err(), message);
}

/// Upstream's table of TestStaticPolicyAllocateWithInitContainers: GiB asked for, what of it stays each container's, and
/// what is reserved in all.
#[test]
fn memory_of_init_containers_is_used_again() {
    let names = ["i", "j", "c", "d"];
    for (asked, kept, reserved) in [
        ([1, 2, 3, 4], [0, 0, 3, 4], 7),
        ([4, 3, 2, 1], [0, 1, 2, 1], 4),
        ([7, 4, 4, 3], [0, 0, 4, 3], 7),
        ([7, 4, 5, 2], [0, 0, 5, 2], 7),
    ] {
        let mut manager = manager(&[(10240, 10)]);
        // Another pod's counts for nothing.
        let other =
            pod("other", vec![container("i", Role::Init, 1024, 1), container("c", Role::Regular, 1024, 1)]);
        allocate_all(&mut manager, &other);
        let roles = [Role::Init, Role::Init, Role::Regular, Role::Regular];
        let all = names.iter().zip(roles).zip(asked);
        let pod = pod("a", all.map(|((name, role), gib)| container(name, role, gib * 1024, gib)).collect());
        allocate_all(&mut manager, &pod);
        for (name, gib) in names.iter().zip(kept) {
            let expected = [block(&[0], HUGE, gib * GIB), block(&[0], MEMORY, gib * GIB)];
            assert_eq!(manager.of_container(&pod.uid, name), expected, "{asked:?} {name}");
        }
        let before = account(&manager, 0);
        assert_eq!((before.0, before.2, before.3), ((reserved + 1) * 1024, 9 - reserved, 12), "{asked:?}");
    }
}

#[test]
fn memory_of_sidecars_is_not() {
    use Role::{Init, Regular, Sidecar};
    let mut manager = manager(&[(7168, 7)]);
    let list = [
        ("i", Init, 1, 0),
        ("s", Sidecar, 2, 2),
        ("j", Init, 3, 0),
        ("t", Sidecar, 4, 4),
        ("c", Regular, 1, 1),
    ];
    let pod =
        pod("a", list.iter().map(|(name, role, gib, _)| container(name, *role, gib * 1024, *gib)).collect());
    allocate_all(&mut manager, &pod);
    for (name, _, _, gib) in list {
        let expected = [block(&[0], HUGE, gib * GIB), block(&[0], MEMORY, gib * GIB)];
        assert_eq!(manager.of_container(&pod.uid, name), expected, "{name}");
    }
    assert_eq!(account(&manager, 0), (7168, 0, 0, 10, mask(&[0])));
}

#[test]
fn init_containers_that_have_ended_give_their_memory_back() {
    use Role::{Init, Regular, Sidecar};
    let mut manager = manager(&[(10240, 10)]);
    let list = [("i", Init, 4), ("s", Sidecar, 1), ("c", Regular, 1)];
    let pod = pod("a", list.map(|(name, role, gib)| container(name, role, gib * 1024, gib)).to_vec());
    allocate_all(&mut manager, &pod);
    assert_eq!(account(&manager, 0).0, 4096);
    manager.start_container(&pod, "i");
    assert_eq!((account(&manager, 0).0, manager.nodes_of(&pod.uid, "i")), (4096, Some(mask(&[0]))));
    manager.start_container(&pod, "c");
    assert_eq!((account(&manager, 0).0, manager.nodes_of(&pod.uid, "i")), (2048, None));
    assert_eq!(manager.nodes_of(&pod.uid, "s"), Some(mask(&[0])));
}

/// Of a pod that was refused and comes again. Upstream would take its memory for set aside still.
#[test]
fn what_was_given_back_is_not_used_again() {
    let mut manager = manager(&[(4096, 4)]);
    let pod = pod("a", vec![container("i", Role::Init, 2048, 2), container("c", Role::Regular, 1024, 1)]);
    for _ in 0..2 {
        manager.allocate(&pod, &pod.init_containers[0], ANY).unwrap();
        assert_eq!(account(&manager, 0), (2048, 2048, 2, 2, mask(&[0])));
        assert!(manager.remove(&pod.uid, "i"));
    }
    assert_eq!(account(&manager, 0), (0, 4096, 4, 0, mask(&[0])));
}

#[test]
fn what_belongs_to_no_pod_is_given_back() {
    let mut manager = manager(&[(2048, 2), (2048, 2)]);
    let (stays, goes) = (single("a", 1024, 1), single("b", 3072, 0));
    allocate(&mut manager, &stays, on(&[0], true)).unwrap();
    manager.remove(&stays.uid, "c");
    allocate(&mut manager, &goes, on(&[0, 1], true)).unwrap();
    assert!(!manager.retain(|_| true));
    assert!(manager.retain(|uid| uid == stays.uid.as_str()));
    assert_eq!(account(&manager, 1), (0, 2048, 2, 0, mask(&[1])));
    allocate(&mut manager, &stays, on(&[0], true)).unwrap();
    assert!(manager.forget(&stays.uid) && !manager.forget(&stays.uid));
    assert_eq!(manager.nodes_of(&stays.uid, "c"), None);
}

/// A pod of up to three containers, by a source of numbers.
fn any_pod(uid: &str, random: &mut impl FnMut(u64) -> u64) -> Pod {
    let mut list = Vec::new();
    if random(3) == 0 {
        list.push(container("i", Role::Init, 256 * (1 + random(8)), random(2)));
    }
    if random(4) == 0 {
        list.push(container("s", Role::Sidecar, 256 * (1 + random(4)), 0));
    }
    list.push(container("c", Role::Regular, 256 * (1 + random(12)), random(3)));
    pod(uid, list)
}

fn admit(manager: &mut MemoryManager, topology: &TopologyManager, pod: &Pod) -> Result<(), AllocateError> {
    pod.all_containers().try_for_each(|own| {
        let (hint, _) = topology.merge(&[manager.hints_of_container(pod, own)]);
        manager.allocate(pod, own, hint).map(drop)
    })
}

/// What was given pod by pod, and taken back in any order, can be taken up by the next kubelet.
#[test]
fn whatever_pods_came_and_went_the_next_kubelet_starts() {
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut refused = Vec::new();
    for round in 0..90 {
        let nodes: Vec<(u64, u64)> = (0..2 + random(2)).map(|_| (2048 + 1024 * random(3), 4)).collect();
        let mut manager = manager(&nodes);
        let distances = (0..u32::try_from(nodes.len()).unwrap()).map(|node| (node, Vec::new())).collect();
        let policy = ["none", "best-effort", "restricted"][round % 3];
        let topology =
            TopologyManager::new(policy, "container", &BTreeMap::new(), NumaInfo::new(distances)).unwrap();
        let mut there: Vec<Pod> = Vec::new();
        for step in 0..12 {
            if random(3) == 0 && !there.is_empty() {
                let at = usize::try_from(random(there.len() as u64)).unwrap();
                manager.forget(&there.remove(at).uid);
            } else {
                let pod = any_pod(&format!("p{round}-{step}"), &mut random);
                let given = admit(&mut manager, &topology, &pod);
                match given {
                    Ok(()) => there.push(pod),
                    Err(_) => drop(manager.forget(&pod.uid)),
                }
            }
            let root = tempfile::tempdir().unwrap();
            manager.save(root.path()).unwrap();
            let mut next = super::tests::manager(&nodes);
            if let Err(why) = next.restore(root.path()) {
                refused.push(format!(
                    "{policy} {round}.{step}: {why} {:?}",
                    std::error::Error::source(&why).map(ToString::to_string)
                ));
            }
        }
    }
    assert!(refused.is_empty(), "{} refused, the first: {:?}", refused.len(), refused.first());
}
