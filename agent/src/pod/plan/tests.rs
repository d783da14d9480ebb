//! Single decisions; whole lives are in the worker's tests.

use super::*;
use crate::pod::StopStep;
use crate::pod::tests::{container, pod};
use crate::runtime::Exit;

const NOW: Duration = Duration::from_secs(1000);

fn sandbox(id: &str, attempt: u32, ready: bool) -> Sandbox {
    Sandbox { id: id.into(), attempt, ready, created_at: 1, ip: "10.0.0.2".into() }
}

fn instance(id: &str, attempt: u32, sandbox: &str, state: InstanceState) -> Instance {
    let (id, name, sandbox) = (id.into(), "web".into(), sandbox.into());
    Instance { id, name, attempt, sandbox, state, created_at: 1, log_path: String::new() }
}

fn exited(code: i32) -> InstanceState {
    let (reason, message) = (String::new(), String::new());
    InstanceState::Exited(Exit { code, reason, message, started_at: 1, finished_at: 2 })
}

fn running() -> InstanceState {
    InstanceState::Running { started_at: 1 }
}

fn decide(policy: RestartPolicy, observed: &Observed, orders: &Orders) -> Plan {
    let pod = Pod { restart_policy: policy, ..pod() };
    let mut history = History::default();
    history.absorb(observed, NOW);
    plan(&pod, orders, observed, &history, NOW)
}

fn observed(sandboxes: &[Sandbox], containers: &[Instance]) -> Observed {
    Observed { sandboxes: sandboxes.to_vec(), containers: containers.to_vec() }
}

fn ops(plan: &Plan) -> Vec<Op> {
    plan.actions.iter().map(Action::op).collect()
}

fn killed() -> Orders {
    let mut orders = Orders::default();
    orders.kill(Duration::from_secs(5), "test", NOW);
    orders
}

#[test]
fn sandbox_and_image_go_side_by_side() {
    let plan = decide(RestartPolicy::Always, &Observed::default(), &Orders::default());
    assert_eq!(ops(&plan), [Op::Sandbox, Op::Image("web".into())]);
    assert_eq!(plan.life, Life::Starting);
}

#[test]
fn what_runs_is_left_alone() {
    let seen = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", running())]);
    let plan = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert_eq!((plan.actions.len(), plan.life), (0, Life::Running));
}

#[test]
fn a_container_made_by_a_call_whose_answer_was_lost_is_started_not_made_again() {
    let seen = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", InstanceState::Created)]);
    let plan = decide(RestartPolicy::Never, &seen, &Orders::default());
    assert_eq!(plan.actions, [Action::StartContainer { container: "web".into(), id: "c".into() }]);
}

#[test]
fn a_sandbox_that_is_not_ready_is_stopped_before_the_next_is_made() {
    let seen = observed(&[sandbox("s", 3, false)], &[instance("c", 0, "s", exited(137))]);
    let plan_before = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert!(ops(&plan_before).contains(&Op::StopSandbox("s".into())));
    assert!(!ops(&plan_before).contains(&Op::Sandbox));
    let mut history = History::default();
    history.absorb(&seen, NOW);
    history.stopped_sandboxes.insert("s".into());
    let after = plan(&pod(), &Orders::default(), &seen, &history, NOW);
    assert!(after.actions.contains(&Action::RunSandbox { attempt: 4 }), "{after:?}");
}

#[test]
fn trap_03_a_terminal_pod_stays_terminal() {
    let seen = observed(&[sandbox("s", 0, false)], &[instance("c", 0, "s", exited(1))]);
    for (policy, code, terminal) in [
        (RestartPolicy::Never, 1, true),
        (RestartPolicy::OnFailure, 0, true),
        (RestartPolicy::OnFailure, 1, false),
        (RestartPolicy::Always, 0, false),
    ] {
        let seen = observed(&seen.sandboxes, &[instance("c", 0, "s", exited(code))]);
        let plan = decide(policy, &seen, &Orders::default());
        assert_eq!(plan.finished, terminal, "{policy:?} {code}");
        let starts = ops(&plan).iter().any(|op| matches!(op, Op::Sandbox | Op::Image(_) | Op::Container(_)));
        assert!(!(terminal && starts), "{plan:?}");
    }
    // Also when its records were removed since.
    let mut history = History::default();
    history.absorb(&seen, NOW);
    let pod = Pod { restart_policy: RestartPolicy::Never, ..pod() };
    let plan = plan(&pod, &Orders::default(), &Observed::default(), &history, NOW);
    assert_eq!((plan.life, plan.actions.len()), (Life::Stopped, 0));
}

#[test]
fn a_pod_that_is_never_restarted_gets_no_second_sandbox_once_a_container_was_made() {
    let pod = Pod {
        restart_policy: RestartPolicy::Never,
        containers: vec![container("web"), container("late")],
        ..pod()
    };
    let seen = observed(&[sandbox("s", 0, false)], &[instance("c", 0, "s", exited(137))]);
    let mut history = History::default();
    history.absorb(&seen, NOW);
    assert!(plan(&pod, &Orders::default(), &seen, &history, NOW).finished);
    // Nothing was made yet: it may have another.
    let seen = observed(&[sandbox("s", 0, false)], &[]);
    let mut history = History::default();
    history.absorb(&seen, NOW);
    assert!(!plan(&pod, &Orders::default(), &seen, &history, NOW).finished);
}

#[test]
fn trap_04_the_end_goes_containers_then_sandbox_then_records() {
    let up = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", running())]);
    let plan_containers = decide(RestartPolicy::Always, &up, &killed());
    let deadline = NOW + Duration::from_secs(5);
    assert_eq!(plan_containers.actions, [Action::StopContainer { id: "c".into(), deadline }]);
    assert_eq!(plan_containers.life, Life::Stopping { deadline: Some(deadline), step: StopStep::Containers });

    let ended = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", exited(143))]);
    let mut orders = killed();
    orders.remove = true;
    let plan_sandbox = decide(RestartPolicy::Always, &ended, &orders);
    assert_eq!(ops(&plan_sandbox), [Op::StopSandbox("s".into())]);

    let down = observed(&[sandbox("s", 0, false)], &[instance("c", 0, "s", exited(143))]);
    let mut history = History::default();
    history.absorb(&down, NOW);
    history.stopped_sandboxes.insert("s".into());
    assert_eq!(plan(&pod(), &killed(), &down, &history, NOW).life, Life::Stopped);
    let removing = plan(&pod(), &orders, &down, &history, NOW);
    assert_eq!((ops(&removing), removing.life), (vec![Op::RemoveContainer("c".into())], Life::Stopped));
    let empty = observed(&[sandbox("s", 0, false)], &[]);
    assert_eq!(ops(&plan(&pod(), &orders, &empty, &history, NOW)), [Op::RemoveSandbox("s".into())]);
    assert_eq!(plan(&pod(), &orders, &Observed::default(), &history, NOW).life, Life::Gone);
}

#[test]
fn a_shorter_grace_overtakes_the_stop_under_way_and_a_longer_one_does_not() {
    let up = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", running())]);
    let mut history = History::default();
    history.absorb(&up, NOW);
    history.flights.insert(Op::StopContainer("c".into()), Some(NOW + Duration::from_secs(5)));
    assert!(plan(&pod(), &killed(), &up, &history, NOW).actions.is_empty());
    let mut orders = killed();
    orders.kill(Duration::ZERO, "again", NOW);
    assert_eq!(ops(&plan(&pod(), &orders, &up, &history, NOW)), [Op::StopContainer("c".into())]);
}

#[test]
fn what_was_begun_is_awaited_before_a_pod_is_gone() {
    let mut orders = killed();
    orders.remove = true;
    for op in [Op::Sandbox, Op::Container("web".into())] {
        let mut history = History::default();
        history.flights.insert(op, None);
        let plan = plan(&pod(), &orders, &Observed::default(), &history, NOW);
        assert!(matches!(plan.life, Life::Stopping { .. }), "{plan:?}");
    }
}

#[test]
fn old_records_are_removed_but_the_one_before_is_kept() {
    let list: Vec<Instance> = (0..4).map(|n| instance(&format!("c{n}"), n, "s", exited(1))).collect();
    let mut seen = observed(&[sandbox("s", 0, true)], &list);
    seen.containers.push(instance("c4", 4, "s", running()));
    let plan = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert_eq!(ops(&plan), [0, 1, 2].map(|n| Op::RemoveContainer(format!("c{n}"))));
}

#[test]
fn a_container_of_which_the_runtime_lost_track_is_removed_and_then_replaced() {
    let seen = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", InstanceState::Unknown)]);
    let plan_lost = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert!(ops(&plan_lost).contains(&Op::RemoveContainer("c".into())), "{plan_lost:?}");
    assert!(decide(RestartPolicy::Never, &seen, &Orders::default()).finished);
}
