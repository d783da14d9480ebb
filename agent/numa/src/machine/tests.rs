//! Machines as files: what is read of them, and what is refused.

use std::fs;

use super::*;

struct Tree(tempfile::TempDir);

impl Tree {
    fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    /// `caches`: level, number and CPUs of each.
    fn cpu(&self, cpu: u32, core: i64, package: i32, caches: &[(u32, u32, &str)]) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        self.put(&format!("{folder}/topology/core_id"), format!("{core}\n"));
        self.put(&format!("{folder}/topology/physical_package_id"), format!("{package}\n"));
        for (index, (level, id, cpus)) in caches.iter().enumerate() {
            let cache = format!("{folder}/cache/index{index}");
            self.put(&format!("{cache}/level"), format!("{level}\n"));
            self.put(&format!("{cache}/id"), format!("{id}\n"));
            self.put(&format!("{cache}/shared_cpu_list"), format!("{cpus}\n"));
            self.put(&format!("{cache}/size"), "32768K\n");
            self.put(&format!("{cache}/type"), "Unified\n");
        }
    }

    fn node(&self, node: u32, cpus: &str, kib: u64, distances: &str) {
        let folder = format!("sys/devices/system/node/node{node}");
        self.put(&format!("{folder}/cpulist"), format!("{cpus}\n"));
        let meminfo = format!("Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:  1 kB\n");
        self.put(&format!("{folder}/meminfo"), meminfo);
        self.put(&format!("{folder}/distance"), format!("{distances}\n"));
        self.put(&format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages"), format!("{}\n", node + 4));
        self.put(&format!("{folder}/hugepages/hugepages-1048576kB/nr_hugepages"), "0\n");
    }

    fn read(&self) -> Result<Machine, MachineError> {
        Machine::read(&self.0.path().join("sys"), &self.0.path().join("proc"))
    }

    /// Core, socket, NUMA node and uncore cache of each CPU.
    fn cpus(&self) -> Vec<(u32, [u32; 4])> {
        let cpus = self.read().unwrap().topology.cpus;
        cpus.iter().map(|(cpu, at)| (*cpu, [at.core, at.socket, at.numa, at.uncore_cache])).collect()
    }

    fn error(&self) -> String {
        self.read().unwrap_err().to_string().replace(self.0.path().to_str().unwrap(), "")
    }
}

fn empty() -> Tree {
    Tree(tempfile::tempdir().unwrap())
}

/// 2 sockets, each a NUMA node of 2 cores of 2 CPUs with one cache of level 3. The kernel numbers the cores 0 and 1 in both.
fn two_sockets() -> Tree {
    let tree = empty();
    tree.put("sys/devices/system/cpu/online", "0-7\n");
    for cpu in 0..8 {
        let socket = cpu % 4 / 2;
        let own = format!("{},{}", cpu % 4, cpu % 4 + 4);
        let shared = ["0-1,4-5", "2-3,6-7"][socket as usize];
        let socket = i32::try_from(socket).unwrap();
        tree.cpu(cpu, i64::from(cpu % 2), socket, &[(1, cpu % 4, &own), (2, cpu % 4, &own), (3, 9, shared)]);
    }
    tree.node(0, "0-1,4-5", 1000, "10 21");
    tree.node(1, "2-3,6-7", 2000, "21 10");
    tree
}

#[test]
fn two_sockets_with_hyperthreads_are_read() {
    let tree = two_sockets();
    // Neither CPUs nor nodes: what else is in those folders.
    tree.put("sys/devices/system/cpu/cpufreq/x", "");
    tree.put("sys/devices/system/node/has_cpu", "0-1\n");
    let core = [0, 1, 2, 3, 0, 1, 2, 3];
    let expected: Vec<_> =
        (0..8).zip(core).map(|(cpu, core)| (cpu, [core, core / 2, core / 2, core / 2])).collect();
    assert_eq!(tree.cpus(), expected);
    let machine = tree.read().unwrap();
    let counts = (machine.topology.cores, machine.topology.sockets, machine.topology.numa_nodes);
    assert_eq!(counts, (4, 2, 2));
    let huge_pages = |count| BTreeMap::from([(2 << 20, count), (1 << 30, 0)]);
    let node = |id, memory, pages, distances: [u64; 2]| NumaNode {
        id,
        memory,
        huge_pages: huge_pages(pages),
        distances: distances.to_vec(),
    };
    assert_eq!(machine.numa, [node(0, 1_024_000, 4, [10, 21]), node(1, 2_048_000, 5, [21, 10])]);
}

#[test]
fn a_cpu_that_is_offline_is_left_out() {
    let tree = two_sockets();
    tree.put("sys/devices/system/cpu/online", "0,2-7\n");
    for cpu in [0, 4, 5] {
        tree.put(&format!("sys/devices/system/cpu/cpu{cpu}/cache/index2/shared_cpu_list"), "0,4-5\n");
    }
    let cpus: Vec<u32> = tree.cpus().into_iter().map(|(cpu, _)| cpu).collect();
    assert_eq!(cpus, [0, 2, 3, 4, 5, 6, 7]);
    // The core is numbered by the CPU that it still has, and the cache is no longer one of 2 cores of 2 CPUs.
    assert_eq!(tree.cpus()[3..5], [(4, [0, 0, 0, 9]), (5, [5, 0, 0, 9])]);
    tree.remove("sys/devices/system/cpu/online");
    assert_eq!(tree.cpus().len(), 8);
}

#[test]
fn a_node_without_cpus_or_facts_is_a_node() {
    let tree = two_sockets();
    tree.node(10, "", 500, "30 30 10");
    tree.put("sys/devices/system/node/node9/uevent", "");
    let machine = tree.read().unwrap();
    assert_eq!(machine.numa.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1, 9, 10]);
    assert_eq!(machine.numa[2], NumaNode { id: 9, ..NumaNode::default() });
    assert_eq!(machine.topology.numa_nodes, 2);
}

#[test]
fn a_cache_that_a_part_of_the_node_shares_is_the_uncore_cache() {
    let tree = empty();
    for cpu in 0..4 {
        let shared = ["0-1", "2-3"][cpu as usize / 2];
        tree.cpu(cpu, i64::from(cpu), 0, &[(2, cpu, "0"), (3, cpu / 2 + 7, shared), (4, 1, "0-1")]);
    }
    tree.node(0, "0-3", 1, "10");
    let caches = |tree: &Tree| tree.cpus().iter().map(|(_, at)| at[3]).collect::<Vec<_>>();
    assert_eq!(caches(&tree), [7, 7, 8, 8]);
    // From the core on of which a file is missing, nothing is known: the socket stands for the cache.
    tree.remove("sys/devices/system/cpu/cpu2/cache/index0/size");
    assert_eq!(caches(&tree), [7, 7, 0, 0]);
    fs::remove_dir_all(tree.0.path().join("sys/devices/system/cpu/cpu0/cache")).unwrap();
    assert_eq!(caches(&tree), [0, 0, 0, 0]);
}

/// A core of two CPUs and two of one: cAdvisor multiplies cores by CPUs, so that no cache seems to be the node's.
#[test]
fn a_cache_of_unlike_cores_counts_as_an_uncore_cache() {
    let tree = empty();
    for (cpu, core) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
        tree.cpu(cpu, core, 3, &[(3, 5, "0-3")]);
    }
    tree.node(0, "0-3", 1, "10");
    let caches: Vec<u32> = tree.cpus().iter().map(|(_, at)| at[3]).collect();
    assert_eq!(caches, [5, 5, 5, 5]);
}

#[test]
fn without_numa_the_only_socket_has_all() {
    let tree = empty();
    tree.put("sys/devices/system/cpu/online", "0-1,3\n");
    for cpu in 0..4 {
        tree.cpu(cpu, i64::from(cpu / 2), -1, &[]);
    }
    tree.put("proc/meminfo", "MemTotal:        8000 kB\nMemFree: 1 kB\n");
    tree.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
    assert_eq!(tree.cpus(), [(0, [0; 4]), (1, [0; 4]), (3, [3, 0, 0, 0])]);
    let huge_pages = BTreeMap::from([(2 << 20, 3)]);
    let node = NumaNode { id: 0, memory: 8_192_000, huge_pages, distances: Vec::new() };
    assert_eq!(tree.read().unwrap().numa, [node]);
    tree.remove("proc/meminfo");
    assert_eq!(tree.error(), "/proc/meminfo has \"\", not a line such as MemTotal: 16384 kB");
}

#[test]
fn without_numa_each_socket_is_a_node() {
    let tree = empty();
    tree.cpu(0, 0, 0, &[]);
    tree.cpu(1, 0, 2, &[]);
    assert_eq!(tree.cpus(), [(0, [0; 4]), (1, [1, 2, 2, 2])]);
    let node = |id| NumaNode { id, ..NumaNode::default() };
    assert_eq!(tree.read().unwrap().numa, [node(0), node(2)]);
}

#[test]
fn a_machine_without_cpus_is_refused() {
    let tree = empty();
    assert_eq!(tree.error(), "could not detect number of cpus");
    tree.node(0, "0-3", 1, "10");
    // No core and no socket is told of these.
    assert_eq!(tree.error(), "could not detect number of cpus");
    tree.cpu(0, 0, 0, &[]);
    assert_eq!(tree.cpus().len(), 1);
    tree.put("sys/devices/system/cpu/online", "\n");
    assert_eq!(tree.error(), "could not detect number of cpus");
}

#[test]
fn what_no_kernel_writes_is_refused_with_the_name_of_the_file() {
    let (cpu, node) = ("/sys/devices/system/cpu", "/sys/devices/system/node");
    let list = "a list of CPUs such as 0-3,8";
    for (path, text, expected) in [
        (format!("{cpu}/online"), "0-", list),
        (format!("{cpu}/cpu3/topology/core_id"), "x", "a number"),
        (format!("{cpu}/cpu3/topology/physical_package_id"), "99999999999", "a number"),
        (format!("{cpu}/cpu3/cache/index2/id"), "-1", "a number"),
        (format!("{cpu}/cpu3/cache/index2/level"), "", "a number"),
        (format!("{cpu}/cpu3/cache/index2/size"), "32", "a size such as 32768K"),
        (format!("{cpu}/cpu3/cache/index2/shared_cpu_list"), "0;1", list),
        (format!("{node}/node1/cpulist"), "4294967295", list),
        (format!("{node}/node1/meminfo"), "MemTotal: x kB", "a line such as MemTotal: 16384 kB"),
        (format!("{node}/node1/meminfo"), "", "a line such as MemTotal: 16384 kB"),
        (
            format!("{node}/node1/meminfo"),
            "MemTotal: 18446744073709551615 kB",
            "a line such as MemTotal: 16384 kB",
        ),
        (format!("{node}/node1/distance"), "10  20", "numbers with one space between them, such as 10 21"),
        (format!("{node}/node1/hugepages/hugepages-2048kB/nr_hugepages"), "-1", "a number"),
    ] {
        let tree = two_sockets();
        tree.put(&path[1..], text);
        let shown = text.strip_prefix("MemTotal: ").unwrap_or(text);
        assert_eq!(tree.error(), format!("{path} has {shown:?}, not {expected}"));
    }
}

#[test]
fn a_number_in_a_name_is_of_a_node_or_of_a_page_that_there_can_be() {
    for name in ["node/node99999999999/x", "node/node1/hugepages/hugepages-99999999999999999999kB/x"] {
        let tree = two_sockets();
        tree.put(&format!("sys/devices/system/{name}"), "");
        let error = tree.error();
        assert!(error.ends_with("not a number") && error.contains(name.trim_end_matches("/x")), "{error}");
    }
}

#[test]
fn a_file_that_is_too_long_or_no_text_or_no_file_is_refused() {
    let tree = two_sockets();
    let meminfo = "sys/devices/system/node/node1/meminfo";
    tree.put(meminfo, vec![b'a'; 70_000]);
    assert_eq!(tree.error(), format!("/{meminfo} is longer than 65536 bytes, as no file of the kernel is"));
    tree.put(meminfo, b"\xff".as_slice());
    assert_eq!(tree.error(), format!("/{meminfo} has \"\u{fffd}\", not text in UTF-8"));
    tree.put(meminfo, "x".repeat(200));
    let shown = "x".repeat(80);
    assert_eq!(tree.error(), format!("/{meminfo} has {shown:?}, not a line such as MemTotal: 16384 kB"));
    tree.remove(meminfo);
    fs::create_dir(tree.0.path().join(meminfo)).unwrap();
    assert!(tree.error().starts_with(&format!("cannot read /{meminfo}: ")));
}

#[test]
fn a_cpu_of_two_nodes_is_refused() {
    let tree = two_sockets();
    tree.node(1, "2-3,5-7", 1, "10 21");
    let expected = "/sys/devices/system/node/node1/cpulist names CPU 5, which another NUMA node has";
    assert_eq!(tree.error(), expected);
}
