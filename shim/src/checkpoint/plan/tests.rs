//! What criu is asked, held against a mount table as the kernel shows one. Run by `cargo test`.

use gantry_base::mountinfo;
use gantry_proto::monitor::{CgroupTarget, Device, Mount, Rootfs};

use super::*;

/// As the kernel shows a container's: a root, /proc, /dev with shared memory and a null device as mask, a file of
/// the node, a secret below a link of the image, a volume of a disk with another in it, and cgroup v2.
const TABLE: &[u8] = b"100 99 0:50 / / rw,relatime - overlay overlay rw,lowerdir=a\n\
    101 100 0:51 / /proc rw - proc proc rw\n\
    102 101 0:51 /sys /proc/sys ro - proc proc rw\n\
    103 101 0:52 /null /proc/keys rw - tmpfs tmpfs rw\n\
    104 101 0:61 / /proc/acpi ro - tmpfs tmpfs rw\n\
    105 100 0:52 / /dev rw,nosuid - tmpfs tmpfs rw\n\
    106 105 0:53 / /dev/pts rw - devpts devpts rw\n\
    107 105 0:54 / /dev/shm rw - tmpfs tmpfs rw\n\
    108 105 0:55 / /dev/mqueue rw - mqueue mqueue rw\n\
    109 100 254:1 /var/lib/hosts /etc/hosts rw - ext4 /dev/vda1 rw\n\
    110 100 0:56 / /run/secrets/token ro - tmpfs tmpfs rw\n\
    111 100 0:57 / /my\\040data rw master:7 - xfs /dev/vdb rw\n\
    112 111 0:51 / /my\\040data/proc rw master:8 - proc proc rw\n\
    113 100 0:58 / /sys ro - sysfs sysfs ro\n\
    114 113 0:29 /../../gantry/c /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";

fn start() -> StartContainer {
    let mount = |destination: &str| Mount { destination: destination.into(), ..Default::default() };
    StartContainer {
        rootfs: Some(Rootfs { target: "/var/lib/gantry/containers/c/rootfs".into(), ..Default::default() }),
        mounts: vec![mount("/etc/hosts"), mount("/var/run/secrets/token"), mount("/my data")],
        masked_paths: ["/proc/keys", "/proc/acpi", "/proc/none"].map(Into::into).into(),
        cgroup: Some(CgroupTarget { unified: true, mount: "/sys/fs/cgroup".into(), ..Default::default() }),
        pid: NamespaceMode::Private.into(),
        ..Default::default()
    }
}

fn process() -> ProcessInfo {
    ProcessInfo {
        pid: 42,
        mounts: mountinfo::parse(TABLE),
        node_devices: vec!["254:1".to_owned(), "0:56".to_owned()],
        network: Some(4_026_532_000),
        pids: 4_026_532_001,
        files: vec![(24, 4)],
    }
}

fn external_names(start: &StartContainer, process: &ProcessInfo) -> Vec<String> {
    let all = external(start, process).into_iter();
    all.map(|word| word.into_string().unwrap()).collect()
}

#[test]
fn criu_is_told_what_is_the_nodes_and_dumps_the_rest() {
    let expected = [
        "net[4026532000]:extRootNetNS",
        "mnt[/proc/keys]:/dev/null",
        "mnt[/dev/shm]:/dev/shm",
        "mnt[/etc/hosts]:/etc/hosts",
        // A link of the image had led it here.
        "mnt[/run/secrets/token]:/run/secrets/token",
        "mnt[/my data]:/my data",
        "mnt[/my data/proc]:/my data/proc",
        // The node's null device, hexadecimal.
        "file[18:4]",
    ];
    assert_eq!(external_names(&start(), &process()), expected);
}

#[test]
fn a_namespace_of_the_pod_is_named_and_one_that_criu_is_in_is_not() {
    let pids = |mode: NamespaceMode| {
        let start = StartContainer { pid: mode.into(), ..start() };
        let process = ProcessInfo { network: None, ..process() };
        external_names(&start, &process)
            .into_iter()
            .filter(|word| !word.starts_with("mnt["))
            .collect::<Vec<_>>()
    };
    let pod = ["pid[4026532001]:extRootPidNS", "file[18:4]"];
    assert_eq!(pids(NamespaceMode::Sandbox), pod);
    assert_eq!(pids(NamespaceMode::Target), pod);
    assert_eq!(pids(NamespaceMode::Host), ["file[18:4]"]);
    assert_eq!(pids(NamespaceMode::Private), ["file[18:4]"]);
}

#[test]
fn the_nodes_cgroups_devices_and_file_systems_that_criu_does_not_know_are_named() {
    let of = |change: &dyn Fn(&mut StartContainer), line: &[u8]| {
        let mut start = start();
        change(&mut start);
        external_names(
            &start,
            &ProcessInfo { mounts: mountinfo::parse(line), network: None, files: Vec::new(), ..process() },
        )
    };
    let cgroup = b"1 2 0:29 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
    assert!(of(&|_| (), cgroup).is_empty());
    let node = of(&|start| start.privileged = true, cgroup);
    assert_eq!(node, ["mnt[/sys/fs/cgroup]:/sys/fs/cgroup"]);
    let fuse = b"1 2 0:6 / /dev/fuse rw - devtmpfs udev rw\n";
    assert_eq!(of(&|_| (), fuse), ["mnt[/dev/fuse]:/dev/fuse"]);
    let device = b"1 2 0:7 /fuse /dev/fuse rw - tmpfs udev rw\n";
    let given = |start: &mut StartContainer| {
        start.devices = vec![Device { container_path: "/dev/fuse".into(), ..Default::default() }];
    };
    assert!(of(&|_| (), device).is_empty());
    assert_eq!(of(&given, device), ["mnt[/dev/fuse]:/dev/fuse"]);
}

#[test]
fn the_command_line_leaves_the_container_running() {
    let places = DumpPaths { work: Path::new("/work"), freezer: Some("/sys/fs/cgroup/gantry/c".into()) };
    let process = ProcessInfo { mounts: Vec::new(), network: None, files: Vec::new(), ..process() };
    let words = dump(&start(), &process, &places);
    let expected = "dump --tree 42 --images-dir /work/checkpoint --work-dir /work --log-file dump.log -v4 \
        --leave-running --manage-cgroups=soft --root /var/lib/gantry/containers/c/rootfs \
        --freeze-cgroup /sys/fs/cgroup/gantry/c";
    assert_eq!(words, expected.split_whitespace().map(OsString::from).collect::<Vec<_>>());
    let without = dump(&start(), &process, &DumpPaths { freezer: None, ..places });
    assert!(!without.contains(&"--freeze-cgroup".into()), "{without:?}");
}

#[test]
fn criu_speaks_for_itself() {
    let log = "(00.000001) Version: 3.17.1\n(00.4) Error (criu/a.c:1): first\n(00.5) mnt: fine\n\
        (00.6) Error (criu/b.c:2): second\n(00.7) Error (criu/c.c:3): mnt: third\n(00.8) Error (criu/d.c:4): last.\n";
    let expected = "Error (criu/b.c:2): second; Error (criu/c.c:3): mnt: third; Error (criu/d.c:4): last.";
    assert_eq!(errors(log).unwrap(), expected);
    assert_eq!(errors("(00.1) all is well\n"), None);
}

#[test]
fn a_version_is_criu_s_own_number() {
    for (said, expected) in [
        ("Version: 3.17.1\n", Some(31_701)),
        ("Version: 4.1\nGitID: v4.1-3-gabc\n", Some(40_100)),
        ("Version: 3.16-rc1\n", Some(31_600)),
        ("Version: 3\n", None),
        ("", None),
    ] {
        assert_eq!(version(said), expected, "{said:?}");
    }
}
