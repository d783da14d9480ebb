//! Thresholds over time.

use super::*;

const GIB: i64 = 1 << 30;

fn rule(signal: Signal, value: Threshold, grace: u64) -> Rule {
    let written = "1Gi".to_owned();
    Rule { signal, value, written, grace: Duration::from_secs(grace), reclaim: Threshold::None }
}

fn policy(rules: Vec<Rule>) -> Policy {
    Policy { rules, transition: Duration::from_secs(300), longest_grace: Duration::ZERO, local_limits: true }
}

fn look(left: &[(Signal, i64)]) -> Observation {
    let reading = |available| Reading { available, capacity: 10 * GIB, at: 0 };
    Observation {
        readings: left.iter().map(|(signal, left)| (*signal, reading(*left))).collect(),
        ..Observation::default()
    }
}

/// Passes over a machine, by the second.
struct Run {
    memory: Memory,
    policy: Policy,
}

impl Run {
    fn new(rules: Vec<Rule>) -> Self {
        Self { memory: Memory::default(), policy: policy(rules) }
    }

    fn at(&mut self, second: u64, look: &Observation) -> (Vec<&'static str>, Vec<&'static str>) {
        let Pass { pressures, starved } = self.memory.pass(&self.policy, look, Duration::from_secs(second));
        let pressures = pressures.into_iter().map(Pressure::as_str).collect();
        (pressures, starved.iter().map(|rule| rule.signal.as_str()).collect())
    }
}

#[test]
fn what_helps_a_disk_depends_on_what_else_is_on_it() {
    use Signal::{ContainerFs, ImageFs, NodeFs, NodeFsInodes};
    let of = |signal, images_apart, layers_apart| {
        let Relief { containers, images } = relief(signal, Disks { images_apart, layers_apart });
        (containers, images)
    };
    for signal in [NodeFs, NodeFsInodes, ImageFs, ContainerFs] {
        assert_eq!(of(signal, false, false), (true, true), "{signal}");
    }
    assert_eq!(
        [NodeFs, ImageFs, ContainerFs].map(|it| of(it, true, false)),
        [(false, false), (true, true), (true, true)]
    );
    assert_eq!(
        [NodeFs, ImageFs, ContainerFs].map(|it| of(it, true, true)),
        [(true, false), (false, true), (true, false)]
    );
}

#[test]
fn a_hard_threshold_counts_at_once_and_is_met_below_it_only() {
    let mut run = Run::new(vec![rule(Signal::Memory, Threshold::Bytes(GIB), 0)]);
    assert_eq!(run.at(0, &look(&[(Signal::Memory, GIB)])), (vec![], vec![]));
    assert_eq!(
        run.at(10, &look(&[(Signal::Memory, GIB - 1)])),
        (vec!["MemoryPressure"], vec!["memory.available"])
    );
    // What is not measured is not met.
    assert_eq!(run.at(20, &look(&[])), (vec!["MemoryPressure"], vec![]));
}

#[test]
fn shares_are_of_what_there_is() {
    let mut run = Run::new(vec![rule(Signal::NodeFsInodes, Threshold::Share(0.1), 0)]);
    assert_eq!(run.at(0, &look(&[(Signal::NodeFsInodes, GIB + 99)])).1, Vec::<&str>::new());
    assert_eq!(run.at(10, &look(&[(Signal::NodeFsInodes, GIB - 99)])).1, ["nodefs.inodesFree"]);
}

#[test]
fn a_soft_threshold_makes_a_condition_at_once_and_starves_after_its_grace() {
    let mut run = Run::new(vec![rule(Signal::Memory, Threshold::Bytes(GIB), 30)]);
    let low = look(&[(Signal::Memory, 1)]);
    assert_eq!(run.at(0, &low), (vec!["MemoryPressure"], vec![]));
    assert_eq!(run.at(29, &low).1, Vec::<&str>::new());
    assert_eq!(run.at(30, &low).1, ["memory.available"]);
    // A moment of relief begins it anew.
    run.at(40, &look(&[(Signal::Memory, 2 * GIB)]));
    assert_eq!(run.at(50, &low).1, Vec::<&str>::new());
    assert_eq!(run.at(80, &low).1, ["memory.available"]);
}

#[test]
fn what_was_crossed_counts_until_the_minimum_reclaim_is_free() {
    let with = Rule { reclaim: Threshold::Bytes(GIB), ..rule(Signal::NodeFs, Threshold::Bytes(GIB), 0) };
    let mut run = Run::new(vec![with.clone()]);
    let (low, more) = (look(&[(Signal::NodeFs, 1)]), look(&[(Signal::NodeFs, GIB + GIB / 2)]));
    assert_eq!(run.at(0, &more).1, Vec::<&str>::new(), "it was not crossed yet");
    // Layers follow: they are on the same disk, and not measured here.
    assert_eq!(run.at(10, &low).1, ["nodefs.available"]);
    assert!(!is_enough(&with, &more));
    assert_eq!(run.at(20, &more).1, ["nodefs.available"]);
    let enough = look(&[(Signal::NodeFs, 2 * GIB)]);
    assert!(is_enough(&with, &enough));
    assert_eq!(run.at(30, &enough).1, Vec::<&str>::new());
    assert_eq!(run.at(40, &more).1, Vec::<&str>::new());
}

#[test]
fn issue_78416_a_condition_outlives_its_cause_by_the_transition_period_and_no_longer() {
    let mut run = Run::new(vec![rule(Signal::Pids, Threshold::Bytes(GIB), 0)]);
    run.at(0, &look(&[(Signal::Pids, 1)]));
    let enough = look(&[(Signal::Pids, 2 * GIB)]);
    assert_eq!(run.at(299, &enough).0, ["PIDPressure"]);
    assert_eq!(run.at(300, &enough).0, Vec::<&str>::new());
}

#[test]
fn issue_31362_a_kubelet_that_starts_anew_gives_the_whole_grace_again() {
    let rules = || vec![rule(Signal::Memory, Threshold::Bytes(GIB), 90)];
    let low = look(&[(Signal::Memory, 1)]);
    let mut run = Run::new(rules());
    assert_eq!(run.at(0, &low).1, Vec::<&str>::new());
    assert_eq!(run.at(90, &low).1, ["memory.available"]);
    let mut restarted = Run::new(rules());
    assert_eq!(restarted.at(95, &low), (vec!["MemoryPressure"], vec![]), "the condition is there at once");
    assert_eq!(restarted.at(184, &low).1, Vec::<&str>::new());
    assert_eq!(restarted.at(185, &low).1, ["memory.available"]);
}

#[test]
fn memory_is_seen_to_before_disks_and_the_hard_one_before_the_soft_one() {
    let mut run = Run::new(vec![
        rule(Signal::NodeFs, Threshold::Bytes(GIB), 0),
        rule(Signal::AllocatableMemory, Threshold::Bytes(GIB), 0),
        rule(Signal::Memory, Threshold::Bytes(GIB), 0),
        rule(Signal::Memory, Threshold::Bytes(2 * GIB), 1),
    ]);
    let low = look(&[(Signal::NodeFs, 1), (Signal::Memory, 1), (Signal::AllocatableMemory, 1)]);
    run.at(0, &low);
    let pass = run.memory.pass(&run.policy, &low, Duration::from_secs(10));
    let order: Vec<_> = pass.starved.iter().map(|rule| (rule.signal, rule.is_hard())).collect();
    assert_eq!(
        order,
        [
            (Signal::Memory, true),
            (Signal::Memory, false),
            (Signal::AllocatableMemory, true),
            (Signal::NodeFs, true)
        ]
    );
}

#[test]
fn issue_41032_the_same_measurement_starves_nobody_twice() {
    let mut run = Run::new(vec![rule(Signal::Memory, Threshold::Bytes(GIB), 0)]);
    let mut low = look(&[(Signal::Memory, 1)]);
    low.readings.get_mut(&Signal::Memory).unwrap().at = 5;
    assert_eq!(run.at(0, &low).1, ["memory.available"]);
    assert_eq!(run.at(10, &low).1, Vec::<&str>::new());
    low.readings.get_mut(&Signal::Memory).unwrap().at = 6;
    assert_eq!(run.at(20, &low).1, ["memory.available"]);
}

#[test]
fn layers_follow_the_file_system_that_they_are_on() {
    let low = |disks| Observation { disks, ..look(&[(Signal::ContainerFs, GIB + 1)]) };
    let given = vec![
        rule(Signal::NodeFs, Threshold::Bytes(GIB), 0),
        rule(Signal::ImageFs, Threshold::Bytes(2 * GIB), 0),
        rule(Signal::ContainerFs, Threshold::Bytes(9 * GIB), 0),
    ];
    assert_eq!(passed_over(&policy(given.clone())), [Signal::ContainerFs]);
    for (images_apart, layers_apart, starves) in
        [(false, false, false), (true, false, true), (true, true, false)]
    {
        let mut run = Run::new(given.clone());
        let found = run.at(0, &low(Disks { images_apart, layers_apart })).1;
        assert_eq!(!found.is_empty(), starves, "{images_apart} {layers_apart}");
    }
}
