//! What each field becomes, and that no word is one that the specification does not have.

use gantry_proto::monitor::{
    Capabilities, CgroupTarget, DeviceNode, External, Hooks, Rlimit, Rootfs, UserMapping,
};

use super::*;

fn start() -> StartContainer {
    StartContainer {
        id: "c".into(),
        args: vec!["/web".into(), "-v".into()],
        env: vec![b"A=1".to_vec()],
        cwd: "/srv".into(),
        uid: 7,
        gid: 8,
        additional_gids: vec![8, 9],
        rootfs: Some(Rootfs { target: "/c/root".into(), readonly: true, ..Rootfs::default() }),
        net: NamespaceMode::Sandbox.into(),
        ipc: NamespaceMode::Sandbox.into(),
        pid: NamespaceMode::Private.into(),
        external: Some(External {
            program: "/usr/sbin/runc".into(),
            bundle: "/c/bundle".into(),
            ..External::default()
        }),
        capabilities: Some(Capabilities { bounding: 0b11, effective: 0b1, ..Capabilities::default() }),
        ..StartContainer::default()
    }
}

fn facts() -> NodeFacts {
    NodeFacts {
        pause: 40,
        target: 41,
        cgroup: "/pod/c".into(),
        annotations: [("a".to_owned(), "b".to_owned())].into(),
        seccomp: Some(json!({"defaultAction": "SCMP_ACT_ERRNO"})),
        limits: DocumentLimits { held: u64::MAX, oom_score: -1000, open_files: (1024, 4096) },
    }
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or(&Value::Null)
}

/// Type and path of each.
fn joined_namespaces(document: &Value) -> Vec<(String, String)> {
    let all = at(document, "/linux/namespaces").as_array().cloned().unwrap_or_default();
    let word = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    all.iter().map(|of| (word(of, "type"), word(of, "path"))).collect()
}

#[test]
fn a_process_is_who_and_what_the_start_says() {
    let document = container(&start(), &facts());
    assert_eq!(at(&document, "/root"), &json!({"path": "/c/root", "readonly": true}));
    assert_eq!(at(&document, "/process/args"), &json!(["/web", "-v"]));
    assert_eq!(at(&document, "/process/env"), &json!(["A=1"]));
    assert_eq!(at(&document, "/process/cwd"), &json!("/srv"));
    assert_eq!(at(&document, "/process/user"), &json!({"uid": 7, "gid": 8, "additionalGids": [8, 9]}));
    assert_eq!(at(&document, "/process/capabilities/bounding"), &json!(["CAP_CHOWN", "CAP_DAC_OVERRIDE"]));
    assert_eq!(at(&document, "/process/capabilities/effective"), &json!(["CAP_CHOWN"]));
    let files = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    assert_eq!(at(&document, "/process/rlimits"), &files);
    assert_eq!(at(&document, "/linux/seccomp/defaultAction"), &json!("SCMP_ACT_ERRNO"));
    assert_eq!(at(&document, "/linux/cgroupsPath"), &json!("/pod/c"));
    assert_eq!(at(&document, "/annotations"), &json!({"a": "b"}));
    for absent in
        ["/process/apparmorProfile", "/process/selinuxLabel", "/linux/mountLabel", "/linux/uidMappings"]
    {
        assert!(document.pointer(absent).is_none(), "{absent}");
    }
}

#[test]
fn what_the_node_lacks_is_not_asked_for() {
    let own = StartContainer { oom_score_adj: -997, ..start() };
    let poor = DocumentLimits { held: 0b10, oom_score: 0, open_files: (10, 10) };
    let process = process(&own, false, poor);
    assert_eq!(at(&process, "/capabilities/bounding"), &json!(["CAP_DAC_OVERRIDE"]));
    assert_eq!(at(&process, "/oomScoreAdj"), &json!(0));
    let limited = StartContainer { rlimits: vec![Rlimit { resource: 7, soft: 5, hard: 6 }], ..start() };
    let files = json!([{"type": "RLIMIT_NOFILE", "soft": 5, "hard": 6}]);
    assert_eq!(at(&super::process(&limited, false, poor), "/rlimits"), &files);
}

#[test]
fn namespaces_are_the_pods_by_their_holder_and_the_nodes_are_not_named() {
    let own = |kind: &str| (kind.to_owned(), String::new());
    let pods = |kind: &str, file: &str| (kind.to_owned(), format!("/proc/40/ns/{file}"));
    let plain = [
        own("mount"),
        own("cgroup"),
        pods("network", "net"),
        pods("uts", "uts"),
        pods("ipc", "ipc"),
        own("pid"),
    ];
    assert_eq!(joined_namespaces(&container(&start(), &facts())), plain);
    let host = NamespaceMode::Host;
    let hosts = StartContainer { net: host.into(), ipc: host.into(), pid: host.into(), ..start() };
    assert_eq!(joined_namespaces(&container(&hosts, &facts())), [own("mount"), own("cgroup")]);
    for (mode, path) in
        [(NamespaceMode::Sandbox, "/proc/40/ns/pid"), (NamespaceMode::Target, "/proc/41/ns/pid")]
    {
        let sharing = StartContainer { pid: mode.into(), ..start() };
        assert_eq!(joined_namespaces(&container(&sharing, &facts())).last().unwrap().1, path);
    }
    let line = IdMapping { container_id: 0, host_id: 65_536, length: 65_536 };
    let users = Some(UserMapping { uids: Some(line), gids: Some(line) });
    // On v1 the node's names are seen, but by those who are somebody else there.
    let cgroup = Some(CgroupTarget::default());
    let on_v1 = StartContainer { cgroup, ..start() };
    assert!(!joined_namespaces(&container(&on_v1, &facts())).contains(&own("cgroup")));
    assert!(
        joined_namespaces(&container(&StartContainer { users, ..on_v1 }, &facts())).contains(&own("cgroup"))
    );
    let document = container(&StartContainer { users, ..start() }, &facts());
    assert!(joined_namespaces(&document).contains(&pods("user", "user")));
    assert_eq!(
        at(&document, "/linux/uidMappings"),
        &json!([{"containerID": 0, "hostID": 65536, "size": 65536}])
    );
}

#[test]
fn a_mount_is_what_stands_ready_at_its_number() {
    let mount = |destination: &str| Mount {
        destination: destination.into(),
        source: "/host".into(),
        ..Mount::default()
    };
    let mounts = vec![
        Mount { readonly: true, attributes: 0x8, recursive_attributes: 0x2, ..mount("/a") },
        Mount { propagation: Propagation::Shared.into(), ..mount("/b") },
    ];
    let document = container(&StartContainer { mounts, ..start() }, &facts());
    let all = at(&document, "/mounts").as_array().unwrap();
    let [.., a, b] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(at(a, "/source"), &json!("/c/bundle/mounts/0"));
    assert_eq!(at(a, "/options"), &json!(["rbind", "rprivate", "ro", "noexec", "rnosuid"]));
    assert_eq!((at(b, "/destination"), at(b, "/options/1")), (&json!("/b"), &json!("rshared")));
    assert_eq!(at(&document, "/linux/rootfsPropagation"), &json!("rshared"));
    assert!(
        !document.to_string().contains("/host"),
        "a source of the host is nothing that the program may look up"
    );
    let shm = all.iter().find(|mount| at(mount, "/destination") == &json!("/dev/shm")).unwrap();
    assert_eq!(at(shm, "/source"), &json!("/c/bundle/mounts/shm"));
    assert!(document.pointer("/linux/rootfsPropagation").is_some());
    assert!(container(&start(), &facts()).pointer("/linux/rootfsPropagation").is_none());
}

#[test]
fn only_named_devices_are_allowed_and_all_of_them_to_the_privileged() {
    let node = DeviceNode { kind: "c".into(), major: 1, minor: 5, mode: 0o666, ..DeviceNode::default() };
    let named = Device {
        host_path: "/dev/zero".into(),
        container_path: "/dev/z".into(),
        permissions: "r".into(),
        node: Some(node),
        ..Device::default()
    };
    let pipe = Device {
        node: Some(DeviceNode { kind: "p".into(), ..DeviceNode::default() }),
        container_path: "/dev/p".into(),
        ..Device::default()
    };
    let mut own = StartContainer { devices: vec![named, pipe], ..start() };
    let document = container(&own, &facts());
    let rule = json!({"allow": true, "type": "c", "major": 1, "minor": 5, "access": "r"});
    let rules = json!([{"allow": false, "access": "rwm"}, rule]);
    assert_eq!(at(&document, "/linux/resources/devices"), &rules);
    assert_eq!(at(&document, "/linux/devices").as_array().unwrap().len(), 2);
    own.privileged = true;
    let document = container(&own, &facts());
    assert_eq!(at(&document, "/linux/resources/devices"), &json!([{"allow": true, "access": "rwm"}]));
    assert_eq!(at(&document, "/mounts/4/options/3"), &json!("rw"));
}

#[test]
fn a_hook_without_variables_is_left_those_that_the_program_gives_it() {
    let bare = Hook { stage: HookStage::HookPoststop.into(), path: "/bare".into(), ..Hook::default() };
    let full = Hook {
        stage: HookStage::HookPoststop.into(),
        path: "/full".into(),
        args: vec!["full".into(), "-x".into()],
        env: vec!["A=1".into()],
        timeout: Some(3),
    };
    let start =
        StartContainer { hooks: Some(Hooks { hooks: vec![bare, full], ..Hooks::default() }), ..start() };
    assert_eq!(
        at(&hooks(&start), "/poststop"),
        &json!([
            {"path": "/bare"},
            {"path": "/full", "args": ["full", "-x"], "env": ["A=1"], "timeout": 3}
        ])
    );
}
