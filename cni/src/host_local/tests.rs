//! Leases on a real folder: format, order, exhaustion, threads side by side.

use super::*;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

use crate::request::ValidAttachment;

fn config(dir: &Path, ipam: &serde_json::Value) -> HostLocalConfig {
    HostLocalConfig::parse(&json!({ "ipam": ipam }), &super::config::tests::context(dir, &[])).unwrap()
}

fn address_of(allocation: &Allocation) -> String {
    allocation.leases[0].address.to_string()
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

#[test]
fn runtime_trap_7_1_a_lease_without_an_owner_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/29"}));
    let net = dir.path().join("net");
    std::fs::create_dir(&net).unwrap();
    // What a power cut leaves of files that were never synced: nothing, or zeros.
    std::fs::write(net.join("10.1.0.2"), "").unwrap();
    std::fs::write(net.join("10.1.0.3"), [0; 40]).unwrap();
    assert_eq!(address_of(&add(&config, "c1", "eth0").unwrap()), "10.1.0.2/29");
    assert_eq!(std::fs::read_to_string(net.join("10.1.0.2")).unwrap(), "c1\r\neth0");
    assert_eq!(address_of(&add(&config, "c2", "eth0").unwrap()), "10.1.0.3/29");
}

#[test]
fn gc_releases_what_nobody_valid_owns() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/24"}));
    for (id, ifname) in [("c1", "eth0"), ("c1", "net1"), ("c2", "eth0")] {
        add(&config, id, ifname).unwrap();
    }
    std::fs::write(dir.path().join("net/10.1.0.9"), "c1").unwrap();
    let valid = [ValidAttachment { container_id: "c1".into(), ifname: "eth0".into() }];
    gc(&config, &valid).unwrap();
    let left = |name: &str| dir.path().join("net").join(name).exists();
    assert_eq!(["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.9"].map(left), [true, false, false, true]);
    check(&config, "c1", "eth0").unwrap();
    let error = check(&config, "c2", "eth0").unwrap_err();
    assert!(error.to_string().contains("container c2 interface eth0 has no lease"), "{error}");
}

#[test]
fn status_says_when_a_set_is_full_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(
        dir.path(),
        &json!({"type": "host-local", "ranges": [[{"subnet": "fd00::/64"}], [{"subnet": "10.1.0.0/30"}]]}),
    );
    status(&config).unwrap();
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    add(&config, "c1", "eth0").unwrap();
    let error = status(&config).unwrap_err();
    assert!(error.is_exhausted() && error.to_string().contains("10.1.0.1-10.1.0.2"), "{error}");
    del(&config, "c1", "eth0").unwrap();
    status(&config).unwrap();
}

#[test]
fn an_address_that_was_asked_for_is_given_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let conf = json!({"ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}, "runtimeConfig": {"ips": ["10.1.0.77"]}});
    let config = HostLocalConfig::parse(&conf, &super::config::tests::context(dir.path(), &[])).unwrap();
    assert_eq!(address_of(&add(&config, "c1", "eth0").unwrap()), "10.1.0.77/24");
    let text = add(&config, "c2", "eth0").unwrap_err().to_string();
    assert!(text.contains("10.1.0.77 was asked for and is leased to c1 interface eth0"), "{text}");
}

#[test]
fn name_servers_of_a_file_are_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("resolv.conf");
    let config =
        config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/24", "resolvConf": file}));
    let text = add(&config, "c1", "eth0").unwrap_err().to_string();
    assert!(text.contains("cannot read the name servers of"), "{text}");
    assert!(!dir.path().join("net").exists(), "and no lease was taken");
    std::fs::write(&file, "nameserver 10.0.0.53\n").unwrap();
    assert_eq!(add(&config, "c1", "eth0").unwrap().dns.nameservers, ["10.0.0.53"]);
}

/// Add and release in every order that a small generator comes up with; a model says what must hold.
#[test]
fn no_order_of_add_and_del_gives_an_address_twice() {
    for seed in 1..40_u64 {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), &json!({"type": "host-local", "subnet": "10.1.0.0/29"}));
        let mut state = seed;
        let mut held: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
        for step in 0..60 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let choice = state >> 33;
            let id = format!("c{}", choice % 7);
            if choice & 0x100 == 0 {
                del(&config, &id, "eth0").unwrap();
                held.remove(&id);
                continue;
            }
            match add(&config, &id, "eth0") {
                Ok(given) => {
                    let address = address_of(&given);
                    assert!(
                        !held.values().any(|other| *other == address),
                        "seed {seed} step {step}: {address} twice"
                    );
                    assert!(held.insert(id, address).is_none());
                }
                Err(Error::AlreadyLeased { .. }) => assert!(held.contains_key(&id)),
                Err(Error::Exhausted { .. }) => assert_eq!(held.len(), 5, "seed {seed} step {step}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
}
