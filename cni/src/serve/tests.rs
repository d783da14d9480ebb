//! The exec protocol from the plugin's side, as far as it needs no privileges. Whole lives of attachments through the
//! upstream library: `tests/kernel`.

use super::*;
use std::collections::BTreeMap;

fn call(kind: &str, env: &[(&str, &str)], conf: &Value) -> Result<Option<Value>, CniError> {
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    answer(kind, &|name| env.get(name).copied().unwrap_or_default().to_owned(), conf.to_string().as_bytes())
}

const ADD: [(&str, &str); 5] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/proc/thread-self/ns/net"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
];

fn with(command: &'static str) -> Vec<(&'static str, &'static str)> {
    std::iter::once(("CNI_COMMAND", command)).chain(ADD.into_iter().skip(1)).collect()
}

fn conf(version: &str) -> Value {
    json!({"cniVersion": version, "name": "net", "type": "bridge"})
}

#[test]
fn versions_need_no_configuration() {
    let answer = call("bridge", &[("CNI_COMMAND", "VERSION")], &json!(null)).unwrap().unwrap();
    assert_eq!(answer["cniVersion"], "1.1.0");
    assert_eq!(answer["supportedVersions"].as_array().unwrap().last().unwrap(), "1.1.0");
}

#[test]
fn missing_and_wrong_variables_are_named() {
    for (env, expected) in [
        (vec![("CNI_COMMAND", "FIX")], "unknown CNI_COMMAND: FIX"),
        (vec![("CNI_COMMAND", "ADD")], "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing"),
        (vec![("CNI_COMMAND", "DEL")], "[CNI_CONTAINERID,CNI_IFNAME,CNI_PATH] missing"),
        (vec![("CNI_COMMAND", "STATUS")], "[CNI_PATH] missing"),
    ] {
        let refusal = call("bridge", &env, &conf("1.1.0")).unwrap_err();
        assert_eq!(refusal.code, INVALID_ENVIRONMENT);
        assert!(refusal.msg.contains(expected), "{refusal:?}");
    }
    let mut env = ADD.to_vec();
    env[1].1 = "../c1";
    assert!(call("bridge", &env, &conf("1.1.0")).unwrap_err().msg.contains("CNI_CONTAINERID"));
    let mut env = ADD.to_vec();
    env[3].1 = "a/b";
    assert!(call("bridge", &env, &conf("1.1.0")).unwrap_err().msg.contains("CNI_IFNAME"));
}

#[test]
fn wrong_configurations_have_upstreams_codes() {
    for (conf, code, expected) in [
        (json!({"cniVersion": "1.1.0"}), INVALID_CONFIG, "missing network name"),
        (json!({"cniVersion": "1.1.0", "name": "../x"}), INVALID_CONFIG, "invalid characters"),
        (conf("2.0.0"), INCOMPATIBLE_VERSION, "incompatible CNI versions"),
        (json!({"cniVersion": "1.1.0", "name": "net", "vlan": 5}), INVALID_CONFIG, "vlan is not supported"),
    ] {
        let refusal = call("bridge", &ADD, &conf).unwrap_err();
        assert_eq!(refusal.code, code, "{refusal:?}");
        assert!(refusal.msg.contains(expected), "{refusal:?}");
    }
    let env: BTreeMap<&str, &str> = ADD.into_iter().collect();
    let refusal =
        answer("bridge", &|name| env.get(name).copied().unwrap_or_default().into(), b"{").unwrap_err();
    assert_eq!(refusal.code, DECODING_FAILURE);
}

#[test]
fn operations_need_the_version_that_brought_them() {
    for (command, version) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")] {
        let refusal = call("bridge", &with(command), &conf(version)).unwrap_err();
        assert_eq!(refusal.code, INCOMPATIBLE_VERSION);
        assert_eq!(refusal.msg, format!("config version does not allow {command}"));
    }
}

#[test]
fn add_refuses_the_hosts_own_namespace() {
    let refusal = call("bridge", &ADD, &conf("1.1.0")).unwrap_err();
    assert_eq!(refusal.code, INVALID_NETNS);
    assert!(refusal.msg.contains("should not be the same"), "{refusal:?}");
}

#[test]
fn check_and_gc_need_what_they_work_on() {
    let refusal = call("bridge", &with("CHECK"), &conf("1.1.0")).unwrap_err();
    assert_eq!(refusal.msg, "Required prevResult missing");
    let refusal = call("bridge", &with("GC"), &conf("1.1.0")).unwrap_err();
    assert!(refusal.msg.contains("GC without cni.dev/valid-attachments"), "{refusal:?}");
}

#[test]
fn a_full_range_is_status_50() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = json!({"type": "host-local", "dataDir": dir.path(), "subnet": "10.0.0.0/24",
        "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.9"});
    let conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ipam});
    assert_eq!(call("bridge", &with("STATUS"), &conf), Ok(None));
    std::fs::create_dir(dir.path().join("net")).unwrap();
    std::fs::write(dir.path().join("net/10.0.0.9"), "c1\r\neth0").unwrap();
    for kind in ["bridge", "host-local"] {
        let refusal = call(kind, &with("STATUS"), &conf).unwrap_err();
        assert_eq!(refusal.code, NOT_AVAILABLE, "{kind}: {refusal:?}");
        assert!(refusal.msg.contains("no free address in 10.0.0.9-10.0.0.9"), "{refusal:?}");
    }
}

#[test]
fn host_local_stands_alone() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = json!({"type": "host-local", "dataDir": dir.path(), "subnet": "10.0.0.0/24",
        "routes": [{"dst": "0.0.0.0/0"}]});
    let conf = json!({"cniVersion": "0.4.0", "name": "net", "type": "bridge", "ipam": ipam});
    let mut add = ADD.to_vec();
    add.push(("CNI_NETNS_OVERRIDE", "1"));
    assert_eq!(
        call("host-local", &add, &conf).unwrap().unwrap(),
        json!({"cniVersion": "0.4.0", "routes": [{"dst": "0.0.0.0/0"}],
            "ips": [{"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1"}]})
    );
    assert_eq!(call("host-local", &with("DEL"), &conf), Ok(None));
    assert!(!dir.path().join("net/10.0.0.2").exists());
}

#[test]
fn only_names_of_plugins_are_programs() {
    for name in ["gantry", "/usr/bin/kubelet", "bridge2", ""] {
        assert!(program(Path::new(name)).is_none(), "{name}");
    }
}
