//! What a kubelet before this one has left.

use std::fs;

use super::*;

fn content(root: &std::path::Path) -> String {
    fs::read_to_string(root.join(FILE)).unwrap()
}

/// The file that `manager` would leave, taken up by `other`.
fn follow(manager: &MemoryManager, other: &mut MemoryManager) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    manager.save(root.path()).unwrap();
    other.restore(root.path()).map_err(|error| error.to_string())
}

const DIFFERENT: &str = "[memorymanager] the expected machine state is different from the real one";

#[test]
fn the_first_start_writes_the_machine_down() {
    let root = tempfile::tempdir().unwrap();
    let mut first = manager(&[(1536, 1)]);
    first.restore(root.path()).unwrap();
    let written = content(root.path());
    assert!(
        written.starts_with(r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"#),
        "{written}"
    );
    let mut second = manager(&[(1536, 1)]);
    second.restore(root.path()).unwrap();
    assert_eq!(second.machine(), first.machine());
    assert_eq!(content(root.path()), written);
    // Of a kubelet that ended before it had looked at the machine.
    let empty = r#"{"policyName":"Static","machineState":{},"checksum":0}"#;
    fs::write(root.path().join(FILE), empty).unwrap();
    second.restore(root.path()).unwrap();
    assert_eq!(content(root.path()), written);
}

#[test]
fn what_containers_have_is_known_after_a_restart() {
    let mut before = manager(&[(1024, 1), (1024, 1), (2048, 0)]);
    let (a, b) = (single("a", 1536, 1), single("b", 256, 0));
    allocate(&mut before, &a, on(&[0, 1], true)).unwrap();
    allocate(&mut before, &b, on(&[2], true)).unwrap();
    let mut after = manager(&[(1024, 1), (1024, 1), (2048, 0)]);
    follow(&before, &mut after).unwrap();
    assert_eq!(after.machine(), before.machine());
    assert_eq!(after.of_container(&a.uid, "c"), before.of_container(&a.uid, "c"));
    assert_eq!(allocate(&mut after, &b, ANY), Ok(MemoryOutcome::AlreadyThere));
}

/// Which node of a group gave what hangs on who came first.
#[test]
fn only_the_sums_over_a_group_must_agree() {
    let list = [(1024, 0), (1024, 0)];
    let mut before = manager(&list);
    let pods = [single("b", 1024, 0), single("a", 512, 0), single("c", 256, 0)];
    for pod in &pods {
        allocate(&mut before, pod, on(&[0, 1], true)).unwrap();
    }
    before.remove(&pods[0].uid, "c");
    assert_eq!((account(&before, 0).0, account(&before, 1).0), (0, 768));
    let mut after = manager(&list);
    follow(&before, &mut after).unwrap();
    assert_eq!(after.machine(), before.machine());
}

/// kubernetes #84333 and #110478: fatal by design.
#[test]
fn another_machine_is_refused_in_upstreams_words() {
    let mut before = manager(&[(1024, 1), (1024, 1)]);
    let pod = single("a", 512, 1);
    allocate(&mut before, &pod, on(&[1], true)).unwrap();
    for other in [&[(1024, 1)][..], &[(2048, 1), (1024, 1)], &[(1024, 1), (1024, 2)], &[(1024, 1); 3]] {
        let mut after = manager(other);
        let told = follow(&before, &mut after).unwrap_err();
        let absent =
            "[memorymanager] (pod: a, container: c) the memory assignment uses the NUMA that does not exist";
        assert_eq!(told, if other.len() == 1 { absent } else { DIFFERENT }, "{other:?}");
        // Nothing is taken up.
        assert_eq!(after.machine(), manager(other).machine());
    }
    // What is reserved for the system is another amount.
    let (nodes, mut reserved, mut allocatable) = machine(&[(1024, 1), (1024, 1)]);
    reserved[0].limits.insert(MEMORY.to_owned(), "256Mi".to_owned());
    allocatable.insert(MEMORY.to_owned(), 768 << 20);
    let mut after = MemoryManager::new("Static", &nodes, &reserved, &allocatable).unwrap();
    let root = tempfile::tempdir().unwrap();
    before.save(root.path()).unwrap();
    let error = after.restore(root.path()).unwrap_err();
    let StartError::State(StateError::Different(why)) = error else { panic!("{error}") };
    let place = "NUMA node 0, memory, systemReserved: the checkpoint has 536870912, the machine 268435456";
    assert_eq!(why.to_string(), place);
}

fn node(manager: &mut MemoryManager, number: u32) -> &mut MemoryNode {
    manager.machine.get_mut(&number).unwrap()
}

#[test]
fn an_account_that_does_not_add_up_is_refused() {
    let mut good = manager(&[(1024, 1), (1024, 1)]);
    allocate(&mut good, &single("a", 512, 1), on(&[1], true)).unwrap();
    type Damage = fn(&mut MemoryManager);
    let changes: [(Damage, &str); 8] = [
        (
            |m| m.machine.clear(),
            "[memorymanager] machine state can not be empty when it has memory assignments",
        ),
        (|m| drop(m.machine.remove(&0)), DIFFERENT),
        (|m| node(m, 1).assignments = 1, DIFFERENT),
        (|m| node(m, 1).cells = mask(&[0, 1]), DIFFERENT),
        (|m| node(m, 0).memory.retain(|resource, _| resource != HUGE), DIFFERENT),
        (|m| node(m, 1).memory.get_mut(HUGE).unwrap().reserved = 0, DIFFERENT),
        (|m| node(m, 1).memory.get_mut(MEMORY).unwrap().free += 1, DIFFERENT),
        (
            |m| {
                m.assignments.get_mut("a").unwrap().get_mut("c").unwrap()[0].resource =
                    "hugepages-2Mi".to_owned();
            },
            "[memorymanager] (pod: a, container: c) the memory assignment uses memory resource that does not exist",
        ),
    ];
    for (change, message) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(follow(&bad, &mut manager(&[(1024, 1), (1024, 1)])), Err(message.to_owned()));
    }
    follow(&good, &mut manager(&[(1024, 1), (1024, 1)])).unwrap();
}

/// kubernetes #55736: the file of another policy must be removed by hand.
#[test]
fn another_policys_file_is_refused_and_stays() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(FILE);
    let mut none = MemoryManager::new("None", &[], &[], &BTreeMap::new()).unwrap();
    none.restore(root.path()).unwrap();
    assert_eq!(content(root.path()), r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#);
    none.restore(root.path()).unwrap();
    let message = |why: &str| {
        format!(
            "could not restore state from checkpoint: {why}, please drain this node and delete the memory manager \
             checkpoint file {path:?} before restarting Kubelet"
        )
    };
    let told = |manager: &mut MemoryManager| manager.restore(root.path()).unwrap_err().to_string();
    let differs =
        message("[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"None\"");
    assert_eq!(told(&mut manager(&[(1024, 1)])), differs);
    assert!(content(root.path()).contains("None"));
    for (content, why) in [
        (r#"{"policyName":"None","machineState":{},"checksum":1}"#, "checkpoint is corrupted"),
        ("", "not a checkpoint of the memory manager: EOF while parsing a value at line 1 column 0"),
    ] {
        fs::write(&path, content).unwrap();
        assert_eq!(told(&mut none), message(why));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_of() {
    let root = tempfile::tempdir().unwrap();
    let absent = root.path().join("absent");
    let error = manager(&[(1024, 1)]).restore(&absent).unwrap_err().to_string();
    assert!(
        error.starts_with("could not restore state from checkpoint: No such file or directory"),
        "{error}"
    );
    assert!(manager(&[(1024, 1)]).save(&absent).is_err());
}
