//! Leases on a real folder: format, order, exhaustion, threads side by side.

use super::*;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

fn config(dir: &Path, ipam: &serde_json::Value) -> Config {
    Config::parse(ipam, "net", dir).unwrap()
}

fn address_of(leases: &[Lease]) -> String {
    leases[0].address.to_string()
}

#[test]
fn a_lease_is_a_file_as_upstream_writes_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/24"}));
    let leases = add(&config, "c1", "eth0").unwrap();
    assert_eq!(address_of(&leases), "10.1.0.2/24", "the gateway is skipped");
    let net = dir.path().join("net");
    assert_eq!(std::fs::read_to_string(net.join("10.1.0.2")).unwrap(), "c1\r\neth0");
    assert_eq!(std::fs::read_to_string(net.join("last_reserved_ip.0")).unwrap(), "10.1.0.2");
    assert!(net.join("lock").exists());
    let names: BTreeSet<_> =
        net.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names, ["10.1.0.2", "last_reserved_ip.0", "lock"].map(String::from).into());
    del(&config, "c1", "eth0").unwrap();
    assert!(!net.join("10.1.0.2").exists());
    del(&config, "c1", "eth0").unwrap();
}

#[test]
fn a_released_address_is_not_given_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/29"}));
    let mut seen = Vec::new();
    for round in 0..6 {
        let id = format!("c{round}");
        seen.push(address_of(&add(&config, &id, "eth0").unwrap()));
        del(&config, &id, "eth0").unwrap();
    }
    assert_eq!(
        seen,
        ["10.1.0.2/29", "10.1.0.3/29", "10.1.0.4/29", "10.1.0.5/29", "10.1.0.6/29", "10.1.0.2/29"],
        "round robin without gateway, network and broadcast address"
    );
}

#[test]
fn a_second_add_of_the_same_interface_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/24"}));
    add(&config, "c1", "eth0").unwrap();
    let error = add(&config, "c1", "eth0").unwrap_err();
    assert!(matches!(error, Error::AlreadyLeased { .. }), "{error}");
    add(&config, "c1", "net1").unwrap();
    del(&config, "c1", "eth0").unwrap();
    assert!(dir.path().join("net/10.1.0.3").exists(), "the other interface's lease stays");
}

#[test]
fn leases_of_old_plugins_without_interface_are_released() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/24"}));
    std::fs::create_dir(dir.path().join("net")).unwrap();
    std::fs::write(dir.path().join("net/10.1.0.9"), "c1").unwrap();
    del(&config, "c1", "eth0").unwrap();
    assert!(!dir.path().join("net/10.1.0.9").exists());
}

#[test]
fn exhaustion_names_range_and_folder_and_keeps_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(
        dir.path(),
        &json!({"type": "host-local", "ranges": [
            [{"subnet": "fd00::/64"}],
            [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.8", "rangeEnd": "10.1.0.8"}],
        ]}),
    );
    add(&config, "c1", "eth0").unwrap();
    let error = add(&config, "c2", "eth0").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("10.1.0.8-10.1.0.8"), "{text}");
    assert!(text.contains(&*dir.path().join("net").to_string_lossy()), "{text}");
    let files = dir.path().join("net").read_dir().unwrap().count();
    assert_eq!(files, 5, "two leases of c1, two last_reserved_ip, the lock");
}

#[test]
fn an_address_is_never_given_twice_to_threads_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/24"}));
    let given: Vec<String> = std::thread::scope(|scope| {
        let config = &config;
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                scope.spawn(move || {
                    (0..25)
                        .map(|n| address_of(&add(config, &format!("c{thread}-{n}"), "eth0").unwrap()))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(given.len(), 200);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 200);
}
