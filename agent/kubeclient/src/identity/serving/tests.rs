//! Serving certificates without an API server.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_certificate_is_made_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = || ServingCertSource::SelfSigned { host: "node-1".to_owned() };
    let first = Serving::start(folder.path(), source()).unwrap().current().borrow().clone().unwrap();
    assert!(first.leaf().dns.contains("node-1") && first.leaf().common_name.starts_with("node-1@"));
    assert!(!first.is_expired(Timestamp::now()) && first.leaf().not_before < Timestamp::now());
    let again = Serving::start(folder.path(), source()).unwrap().current().borrow().clone().unwrap();
    assert_eq!(first.key().cert, again.key().cert);
    assert_eq!(first.key().cert.len(), 2, "with its authority");
}

#[tokio::test(start_paused = true)]
async fn files_are_read_again_when_they_change_and_half_of_a_pair_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
    let write = || {
        let made = generate_self_signed("10.0.0.1", Timestamp::now()).unwrap();
        std::fs::write(&certificate, made.certificates).unwrap();
        made.key
    };
    std::fs::write(&key, write()).unwrap();
    let source = ServingCertSource::Files { certificate: certificate.clone(), key: key.clone() };
    let mut current = Serving::start(folder.path(), source).unwrap().current();
    let first = current.borrow_and_update().clone().unwrap();
    let new_key = write();
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(!current.has_changed().unwrap());
    std::fs::write(&key, new_key).unwrap();
    current.changed().await.unwrap();
    assert_ne!(first.key().cert, current.borrow().as_ref().unwrap().key().cert);
}

#[test]
fn missing_files_are_an_error_at_once() {
    let source = ServingCertSource::Files { certificate: "/nowhere/c".into(), key: "/nowhere/k".into() };
    assert!(Serving::start(Path::new("/nowhere"), source).is_err());
}
