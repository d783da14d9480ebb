//! When a certificate is asked for anew, and what is said meanwhile.

use gantry_model::clock::FakeClock;

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
fn a_certificate_that_was_dated_back_is_not_asked_for_again_at_once() {
    // Signed for a minute, and dated back by more than 15.
    let now = Timestamp::from_second(1_940).unwrap();
    assert!(deadline(&leaf(), 1.0) < now);
    assert_eq!(halfway(&leaf(), now).as_second(), 1_970);
    assert!(
        halfway(&leaf(), leaf().not_before) < deadline(&leaf(), 0.0),
        "of a whole life the deadline counts"
    );
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

const START: i64 = 1_800_000_000;

/// A clock, and a certificate that is valid for so many more seconds.
fn valid_for(seconds: i64) -> (FakeClock, Current, watch::Sender<Option<Arc<Pair>>>) {
    let mut params = rcgen::CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2027, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let pair = Pair::parse(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let end = pair.leaf().not_after.as_second();
    let (keep, current) = watch::channel(Some(Arc::new(pair)));
    (FakeClock::new(end - seconds), current, keep)
}

/// How long it takes, if not longer than three hours.
async fn ends_after(
    clock: FakeClock,
    current: Current,
    healthy: watch::Receiver<bool>,
) -> Option<(u64, String)> {
    let begun = tokio::time::Instant::now();
    let ends = must_exit(current, healthy, &clock);
    let reason = tokio::time::timeout(Duration::from_secs(3 * 3600), ends).await.ok()?;
    Some((begun.elapsed().as_secs(), reason))
}

#[tokio::test(start_paused = true)]
async fn five_minutes_without_a_certificate_end_the_kubelet_if_the_server_answers() {
    let (_keep, current) = watch::channel(None);
    let (healthy, seen) = watch::channel(true);
    let (after, reason) = ends_after(FakeClock::new(START), current.clone(), seen.clone()).await.unwrap();
    assert!((300..=310).contains(&after), "{after}");
    let text = "no valid client certificate since 2027-01-15T08:00:00Z and the server is responsive";
    assert_eq!(reason, text);
    healthy.send_replace(false);
    let ended = ends_after(FakeClock::new(START), current.clone(), seen.clone()).await;
    assert_eq!(ended, None, "nobody answers: a restart would not help");
    let clock = FakeClock::new(START);
    let mut waiting = std::pin::pin!(must_exit(current, seen, &clock));
    assert!(tokio::time::timeout(Duration::from_secs(3600), waiting.as_mut()).await.is_err());
    healthy.send_replace(true);
    tokio::time::timeout(LOOK, waiting).await.expect("it answers again");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_has_expired_is_none_five_minutes_later() {
    let (clock, current, _keep) = valid_for(3600);
    let (_healthy, seen) = watch::channel(true);
    let (after, _) = ends_after(clock, current, seen).await.unwrap();
    assert!((3900..=3920).contains(&after), "{after}");
    let (clock, current, _keep) = valid_for(24 * 3600);
    let (_healthy, seen) = watch::channel(true);
    assert_eq!(ends_after(clock, current, seen).await, None, "it is valid");
}

#[tokio::test(start_paused = true)]
async fn trap_15_a_step_of_the_clock_takes_nothing_of_the_five_minutes() {
    let (clock, current, _keep) = valid_for(1800);
    let (_healthy, seen) = watch::channel(true);
    let mut waiting = std::pin::pin!(must_exit(current, seen, &clock));
    assert!(tokio::time::timeout(Duration::from_secs(15), waiting.as_mut()).await.is_err());
    clock.step_wall(3600);
    assert!(tokio::time::timeout(Duration::from_secs(285), waiting.as_mut()).await.is_err());
    // Set right again in time, it is valid.
    clock.step_wall(-3600);
    assert!(tokio::time::timeout(Duration::from_secs(600), waiting.as_mut()).await.is_err());
    clock.step_wall(3600);
    tokio::time::timeout(Duration::from_secs(330), waiting).await.expect("it stays expired");
}
