//! The folder of certificates, over crashes and restarts.

use super::*;
use crate::identity::csr;

fn made(name: &str) -> (String, String) {
    let key = csr::new_key().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn update(store: &Store, name: &str, second: i64) {
    let (certificate, key) = made(name);
    store.update(certificate.as_bytes(), key.as_bytes(), Timestamp::from_second(second).unwrap()).unwrap();
}

fn name(store: &Store) -> Option<String> {
    store.current().unwrap().and_then(|pair| pair.leaf().dns.first().cloned())
}

#[test]
fn the_newest_is_in_use_even_when_two_come_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("kubelet-client", folder.path(), None).unwrap();
    assert_eq!(name(&store), None);
    for (label, second) in [("a", 0), ("b", 0), ("c", 1)] {
        update(&store, label, second);
        assert_eq!(name(&store).as_deref(), Some(label));
    }
    let link = fs::read_link(store.current_path()).unwrap();
    assert!(link.ends_with("kubelet-client-1970-01-01-00-00-01.pem"), "{}", link.display());
    assert_eq!(store.current_path(), folder.path().join("kubelet-client-current.pem"));
}

#[test]
fn a_replacement_that_a_crash_cut_short_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("kubelet-client", folder.path(), None).unwrap();
    update(&store, "a", 0);
    fs::rename(store.current_path(), folder.path().join("kubelet-client-updated.pem")).unwrap();
    let again = Store::open("kubelet-client", folder.path(), None).unwrap();
    assert_eq!(name(&again).as_deref(), Some("a"));
}

#[test]
fn what_was_given_is_used_until_there_is_one_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = made("given");
    let paths = (folder.path().join("c"), folder.path().join("k"));
    fs::write(&paths.0, certificate).unwrap();
    fs::write(&paths.1, key).unwrap();
    let store = Store::open("kubelet-client", &folder.path().join("pki"), Some(paths)).unwrap();
    assert_eq!(name(&store).as_deref(), Some("given"));
    update(&store, "own", 0);
    assert_eq!(name(&store).as_deref(), Some("own"));
}

#[test]
fn what_is_no_pair_is_neither_kept_nor_used() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("kubelet-client", folder.path(), None).unwrap();
    update(&store, "a", 0);
    let (certificate, _) = made("b");
    let (_, foreign) = made("c");
    let now = Timestamp::from_second(9).unwrap();
    assert!(store.update(certificate.as_bytes(), foreign.as_bytes(), now).is_err());
    assert_eq!(name(&store).as_deref(), Some("a"));
    fs::write(folder.path().join("x"), "x").unwrap();
    fs::remove_file(store.current_path()).unwrap();
    fs::write(store.current_path(), "no link").unwrap();
    assert!(store.current().is_err());
}
