//! The bookkeeping alone.

use super::*;

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

fn wanted(name: &str, uid: &str, drivers: &[&str]) -> WantedClaim {
    let drivers = drivers.iter().map(|driver| (*driver).to_owned()).collect();
    WantedClaim { key: ("ns".to_owned(), name.to_owned()), uid: uid.to_owned(), drivers }
}

fn asked(batches: &Batches) -> Vec<(&str, Vec<&str>)> {
    batches
        .iter()
        .map(|(driver, claims)| (driver.as_str(), claims.iter().map(|c| c.name.as_str()).collect()))
        .collect()
}

#[test]
fn claims_are_asked_for_in_one_call_of_each_driver() {
    let mut claims = ClaimBook::default();
    let both = [wanted("a", "1", &["d", "e"]), wanted("b", "2", &["d"])];
    let batches = claims.refer(&uid("p"), &both).unwrap();
    assert_eq!(asked(&batches), [("d", vec!["a", "b"]), ("e", vec!["a"])]);
    assert_eq!(claims.in_use(), (BTreeMap::new(), 0));
    claims.prepare(&both);
    assert_eq!(claims.in_use(), ([("d".to_owned(), 2), ("e".to_owned(), 1)].into(), 2));
    // A second pod of both, and of one more.
    let more = [both[0].clone(), both[1].clone(), wanted("c", "3", &["e"])];
    assert_eq!(asked(&claims.refer(&uid("q"), &more).unwrap()), [("e", vec!["c"])]);
    assert_eq!(asked(&claims.leave(&uid("p"))), []);
    claims.forget(&uid("p"));
    assert_eq!(asked(&claims.leave(&uid("q"))), [("d", vec!["a", "b"]), ("e", vec!["a", "c"])]);
    assert_eq!(claims.in_use().1, 0, "nobody knows how far the drivers are");
    claims.forget(&uid("q"));
    assert_eq!(claims, ClaimBook::default());
}

#[test]
fn one_claim_of_another_uid_lets_nothing_change() {
    let mut claims = ClaimBook::default();
    claims.refer(&uid("p"), &[wanted("b", "2", &["d"])]).unwrap();
    let before = claims.clone();
    let why = claims.refer(&uid("q"), &[wanted("a", "1", &["d"]), wanted("b", "3", &["d"])]).unwrap_err();
    assert!(why.contains("name b and different UID 2"), "{why}");
    assert_eq!(claims, before);
    // An answer for a claim that is another by now is nobody's.
    let late = AskedClaim { namespace: "ns".into(), name: "b".into(), uid: "3".into() };
    claims.give(&late, "d", vec![PreparedDevice::default()]);
    claims.prepare(&[wanted("b", "3", &["d"])]);
    assert_eq!(claims, before);
}

#[test]
fn a_checkpoint_has_all_but_whether_it_is_prepared() {
    let mut claims = ClaimBook::default();
    let one = [wanted("a", "1", &["d"])];
    claims.refer(&uid("p"), &one).unwrap();
    let claim = AskedClaim { namespace: "ns".into(), name: "a".into(), uid: "1".into() };
    claims.give(&claim, "d", vec![PreparedDevice { pool: "pool".into(), ..PreparedDevice::default() }]);
    let unprepared = claims.clone();
    claims.prepare(&one);
    let restored = ClaimBook::restore(claims.checkpoint());
    assert_eq!(restored, unprepared);
    assert_eq!(restored.pods(), [uid("p")].into());
    assert!(restored.has_any("d", &[("pool".to_owned(), String::new())].into()));
    assert!(!restored.has_any("e", &[("pool".to_owned(), String::new())].into()));
}
