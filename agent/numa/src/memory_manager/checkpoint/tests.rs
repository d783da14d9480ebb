//! Files of upstream's own writing.

use super::*;

/// Of upstream's TestCheckpointStateRestore.
const UPSTREAMS: &str = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;

#[test]
fn upstreams_file_is_read_and_written_again() {
    let told = MemoryCheckpoint::decode(UPSTREAMS.as_bytes()).unwrap();
    let table =
        MemoryTable { total: 2048, system_reserved: 512, allocatable: 1536, reserved: 512, free: 1024 };
    let memory = BTreeMap::from([("memory".to_owned(), table)]);
    let node = MemoryNode { assignments: 0, memory, cells: NodeMask::default() };
    let block = MemoryBlock { nodes: NodeMask::of([0]), resource: "memory".to_owned(), size: 512 };
    let containers = BTreeMap::from([("container1".to_owned(), vec![block])]);
    let expected = MemoryCheckpoint {
        policy: "static".to_owned(),
        machine: NodeMap::from([(0, node)]),
        assignments: Assignments::from([("pod".to_owned(), containers)]),
    };
    assert_eq!(told, expected);
    assert_eq!(told.encode().unwrap(), UPSTREAMS);
}

/// Nodes go by text in JSON and by number in the sum.
const WITH_GROUP: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{"hugepages-2Mi":{"total":4194304,"systemReserved":0,"allocatable":4194304,"reserved":2097152,"free":2097152},"memory":{"total":3221225472,"systemReserved":536870912,"allocatable":2684354560,"reserved":2684354560,"free":0}},"cells":[0,2]},"10":{"numberOfAssignments":0,"memoryMap":{"hugepages-2Mi":{"total":4194304,"systemReserved":0,"allocatable":4194304,"reserved":2097152,"free":2097152},"memory":{"total":3221225472,"systemReserved":536870912,"allocatable":2684354560,"reserved":2684354560,"free":0}},"cells":[10]},"2":{"numberOfAssignments":2,"memoryMap":{"hugepages-2Mi":{"total":4194304,"systemReserved":0,"allocatable":4194304,"reserved":2097152,"free":2097152},"memory":{"total":3221225472,"systemReserved":536870912,"allocatable":2684354560,"reserved":2684354560,"free":0}},"cells":[0,2]}},"entries":{"a":{"web":[]},"c1b6e9a0-27c4-4b5c-9d0e-5a1d3a1b0f2e":{"db":[{"numaAffinity":[0,2],"type":"hugepages-2Mi","size":4194304},{"numaAffinity":[0,2],"type":"memory","size":5368709120}],"init":[{"numaAffinity":[0,2],"type":"memory","size":0}]}},"checksum":1270717799}"#;

#[test]
fn a_file_with_a_group_of_nodes_is_read_and_written_again() {
    let told = MemoryCheckpoint::decode(WITH_GROUP.as_bytes()).unwrap();
    assert_eq!(told.machine.keys().copied().collect::<Vec<_>>(), [0, 2, 10]);
    assert_eq!(told.machine[&2].cells, NodeMask::of([0, 2]));
    assert_eq!(told.assignments["a"]["web"], []);
    assert_eq!(told.encode().unwrap(), WITH_GROUP);
}

#[test]
fn null_is_summed_otherwise_than_empty() {
    for (content, again) in [
        (r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#, true),
        (r#"{"policyName":"None","checksum":4236770233}"#, true),
        (r#"{"policyName":"None","machineState":null,"entries":null,"checksum":644751233}"#, true),
        (r#"{"policyName":"None","machineState":{},"checksum":644751233}"#, false),
        // As an old kubelet left it.
        (r#"{"policyName":"None","machineState":{},"checksum":0}"#, true),
        (r#"{"policyName":"None","machineState":{}}"#, true),
    ] {
        let told = MemoryCheckpoint::decode(content.as_bytes());
        assert_eq!(told.is_ok(), again, "{content}");
    }
}

#[test]
fn what_is_no_checkpoint_is_told() {
    let changed = UPSTREAMS.replace("\"size\":512", "\"size\":513");
    let pods = UPSTREAMS.replace(
        r#""checksum":4215593881"#,
        r#""podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":1278640530"#,
    );
    for (content, message) in [
        (changed.as_str(), "checkpoint is corrupted"),
        // Of a kubelet with PodLevelResourceManagers.
        (&pods, "checkpoint is corrupted"),
        ("{", "not a checkpoint of the memory manager: EOF while parsing an object at line 1 column 1"),
        (r#"{"machineState":{"x":{}}}"#, "x is no number of a NUMA node"),
        (r#"{"machineState":{"0":{"cells":[64]}}}"#, "64 is no number of a NUMA node"),
        (r#"{"entries":{"p":{"c":[{"numaAffinity":[99]}]}}}"#, "99 is no number of a NUMA node"),
    ] {
        assert_eq!(MemoryCheckpoint::decode(content.as_bytes()).unwrap_err().to_string(), message);
    }
}
