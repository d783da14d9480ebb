//! When a certificate is asked for anew, and what is said meanwhile.

use super::*;
use crate::identity::Names;

fn leaf() -> Leaf {
    Leaf {
        not_before: Timestamp::from_second(1_000).unwrap(),
        not_after: Timestamp::from_second(2_000).unwrap(),
        common_name: "system:node:n".to_owned(),
        organizations: [NODES.to_owned()].into(),
        dns: ["n".to_owned(), "m".to_owned()].into(),
        ips: ["10.0.0.1".parse().unwrap()].into(),
    }
}

#[test]
fn the_deadline_lies_between_70_and_90_percent_of_a_life() {
    assert_eq!(deadline(&leaf(), 0.0).as_second(), 1_700);
    assert_eq!(deadline(&leaf(), 0.5).as_second(), 1_800);
    assert_eq!(deadline(&leaf(), 1.0).as_second(), 1_900);
}

#[test]
fn a_certificate_may_say_more_than_is_wanted_but_not_less() {
    let wanted = |node: &str, dns: &[&str], ips: &[&str]| Template {
        node: node.to_owned(),
        names: Names {
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        },
    };
    assert!(satisfies(&leaf(), &wanted("n", &["n"], &["10.0.0.1"])));
    assert!(!satisfies(&leaf(), &wanted("other", &["n"], &[])));
    assert!(!satisfies(&leaf(), &wanted("n", &["x"], &[])));
    assert!(!satisfies(&leaf(), &wanted("n", &[], &["10.0.0.2"])));
    let foreign = Leaf { organizations: Default::default(), ..leaf() };
    assert!(!satisfies(&foreign, &wanted("n", &[], &[])));
}

#[test]
fn a_certificate_near_its_end_is_told_and_so_is_one_past_it() {
    let at = |second| overdue(&leaf(), Signer::Client, Timestamp::from_second(second).unwrap());
    assert_eq!(at(1_500), None);
    assert_eq!(at(1_919), None, "a request is under way");
    let notice = at(1_921).unwrap();
    assert_eq!((notice.warning, notice.reason), (true, "CertificateOverdueForRefresh"));
    assert!(notice.message.contains("client certificate should have been replaced"), "{}", notice.message);
    assert_eq!(at(2_001).unwrap().reason, "CertificateExpired");
}

#[test]
fn a_key_is_kept_until_its_request_is_signed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pki/kubelet-client.key.tmp");
    let first = kept_key(&path).unwrap().serialize_pem();
    assert_eq!(kept_key(&path).unwrap().serialize_pem(), first);
    std::fs::write(&path, "broken").unwrap();
    assert_ne!(kept_key(&path).unwrap().serialize_pem(), first);
}

#[tokio::test(start_paused = true)]
async fn five_minutes_without_a_certificate_end_the_kubelet_if_the_server_answers() {
    // The wall clock stands still here: a time long ago is told by a certificate that has ended.
    let (_keep, current) = watch::channel(None);
    let (healthy, seen) = watch::channel(false);
    let waiting = tokio::spawn(must_exit(current, seen));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!waiting.is_finished(), "nobody answers: a restart would not help");
    drop(healthy);
    waiting.abort();
    assert!(until_since(Timestamp::from_second(0).unwrap(), Timestamp::from_second(300).unwrap()) >= WITHOUT);
}
