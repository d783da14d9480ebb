//! The counting, step by step.

use gantry_model::pod::probe::{Handler, PortRef};

use super::*;
use crate::pod::tests::{container, pod};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn probe() -> Probe {
    Probe {
        handler: Handler::Tcp { host: String::new(), port: PortRef::Number(80) },
        initial_delay: s(5),
        timeout: s(1),
        period: s(10),
        success_threshold: 1,
        failure_threshold: 2,
        termination_grace: None,
    }
}

fn probed() -> Container {
    let mut web = container("web");
    (web.probes.liveness, web.probes.readiness) = (Some(probe()), Some(probe()));
    web
}

fn absorb(probing: &mut Probing, container: &Container, id: &str, age: Duration, adopted: bool) {
    let runner = Runner { container, id, since: s(100), age, adopted };
    probing.absorb(&pod(), &[runner], &Marks::new());
}

#[test]
fn thresholds_count_rows_and_a_row_is_broken_by_its_opposite() {
    let web = Container { probes: probed().probes, ..container("web") };
    let mut probing = Probing::default();
    absorb(&mut probing, &web, "a", s(0), false);
    let bad = |probing: &Probing| probing.bad(&web, ProbeKind::Liveness, "a");
    for (good, at, want) in
        [(false, 1, None), (true, 2, None), (false, 3, None), (false, 4, Some(s(4))), (true, 5, Some(s(4)))]
    {
        probing.record(&web, ProbeKind::Liveness, "a", Some(good), s(at));
        assert_eq!(bad(&probing), want, "at {at}");
    }
    // Held once it is bad: nobody asks a container that is being ended.
    assert_eq!(probing.due(&web, ProbeKind::Liveness), None);
    assert!(probing.due(&web, ProbeKind::Readiness).is_some());
}

#[test]
fn trap_07_results_hang_on_the_id() {
    let web = probed();
    let mut probing = Probing::default();
    absorb(&mut probing, &web, "a", s(0), false);
    probing.record(&web, ProbeKind::Readiness, "a", Some(true), s(1));
    probing.record(&web, ProbeKind::Liveness, "a", Some(false), s(1));
    absorb(&mut probing, &web, "b", s(0), false);
    assert!(!probing.ready(&web, "b") && !probing.ready(&web, "a"));
    for id in ["a", "b", "a"] {
        probing.record(&web, ProbeKind::Liveness, id, Some(false), s(2));
    }
    assert_eq!(probing.bad(&web, ProbeKind::Liveness, "b"), None);
    probing.record(&web, ProbeKind::Liveness, "b", None, s(3));
    assert_eq!(probing.bad(&web, ProbeKind::Liveness, "b"), None);
    probing.record(&web, ProbeKind::Liveness, "b", Some(false), s(4));
    assert_eq!(probing.bad(&web, ProbeKind::Liveness, "b"), Some(s(4)));
}

#[test]
fn the_first_try_counts_from_the_start_and_a_new_agent_spreads_them() {
    let web = probed();
    let first = |age, adopted| {
        let mut probing = Probing::default();
        absorb(&mut probing, &web, "a", age, adopted);
        probing.due(&web, ProbeKind::Liveness).unwrap()
    };
    assert_eq!((first(s(0), false), first(s(3), false), first(s(60), false)), (s(105), s(102), s(100)));
    let spread = first(s(60), true);
    assert!((s(100)..s(110)).contains(&spread), "{spread:?}");
    let mut probing = Probing::default();
    absorb(&mut probing, &web, "a", s(0), false);
    probing.begin(&web, ProbeKind::Liveness, s(105));
    assert_eq!(probing.due(&web, ProbeKind::Liveness), Some(s(115)));
}

#[test]
fn trap_06_marks_speak_for_the_container_they_name_only() {
    let mut web = probed();
    web.probes.startup = Some(probe());
    let marks = Marks::from([("a".to_owned(), Mark::Ready), ("c".to_owned(), Mark::Started)]);
    for (id, started, ready) in [("a", true, true), ("b", false, false), ("c", true, false)] {
        let runner = Runner { container: &web, id, since: s(100), age: s(60), adopted: true };
        let mut probing = Probing::default();
        probing.absorb(&pod(), &[runner], &marks);
        assert_eq!((probing.is_started(&web, id), probing.ready(&web, id)), (started, ready), "{id}");
        assert_eq!(probing.due(&web, ProbeKind::Startup).is_none(), started, "{id}");
        assert_eq!(probing.mark(&web, id), marks.get(id).copied(), "{id}");
    }
}
