//! getPhase, table by table.

use gantry_model::pod::RestartPolicy;

use super::*;
use crate::pod::tests::{container, in_role, pod, with_restart_policy};

fn exit(code: i32) -> Exit {
    Exit { code, reason: String::new(), message: String::new(), started_at: 1, finished_at: 2 }
}

fn status(container: &Container, state: ContainerState, last_exit: Option<i32>) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        role: container.role,
        started: matches!(state, ContainerState::Running { .. }),
        ready: false,
        state,
        last_exit: last_exit.map(exit),
        ..ContainerStatus::default()
    }
}

fn run() -> ContainerState {
    ContainerState::Running { started_at: 1 }
}

fn wait() -> ContainerState {
    ContainerState::Waiting { reason: "X".into(), message: String::new() }
}

fn end(code: i32) -> ContainerState {
    ContainerState::Terminated(exit(code))
}

type States = Vec<(ContainerState, Option<i32>)>;

fn phase_of(policy: RestartPolicy, begun: bool, init: States, regular: States) -> Phase {
    let init_containers =
        ["i", "side"].map(|name| in_role(name, if name == "side" { Role::Sidecar } else { Role::Init }));
    let pod = Pod {
        init_containers: init_containers.into_iter().take(init.len()).collect(),
        containers: ["a", "b"].map(container).into_iter().take(regular.len()).collect(),
        ..pod()
    };
    let pod = with_restart_policy(policy, pod);
    let of = |list: &[Container], states: States| -> Vec<ContainerStatus> {
        list.iter().zip(states).map(|(c, (state, last))| status(c, state, last)).collect()
    };
    let (observed, history) = (Observed::default(), WorkerState::default());
    let view =
        View { pod: &pod, observed: &observed, history: &history, now: Duration::ZERO, going_on: true };
    phase(&view, false, begun, &of(&pod.init_containers, init), &of(&pod.containers, regular))
}

#[test]
fn regular_containers() {
    use Phase::{Failed, Pending, Running, Succeeded};
    use RestartPolicy::{Always, Never, OnFailure};
    let table: Vec<(RestartPolicy, States, Phase)> = vec![
        (Always, vec![(wait(), None), (run(), None)], Pending),
        (Always, vec![(run(), None), (run(), None)], Running),
        (Always, vec![(end(0), None), (end(1), None)], Running),
        (Always, vec![(wait(), Some(1)), (wait(), Some(1))], Running),
        (OnFailure, vec![(end(0), None), (end(0), None)], Succeeded),
        (OnFailure, vec![(end(0), None), (end(1), None)], Running),
        (OnFailure, vec![(end(0), None), (wait(), Some(1))], Running),
        (Never, vec![(end(0), None), (run(), None)], Running),
        (Never, vec![(end(0), None), (end(0), None)], Succeeded),
        (Never, vec![(end(0), None), (end(1), None)], Failed),
    ];
    for (policy, states, want) in table {
        let shown = format!("{policy:?} {states:?}");
        assert_eq!(phase_of(policy, true, vec![], states), want, "{shown}");
    }
}

#[test]
fn init_containers_and_sidecars() {
    use Phase::{Failed, Pending, Running, Succeeded};
    use RestartPolicy::{Always, Never};
    let table: Vec<(RestartPolicy, bool, States, ContainerState, Phase)> = vec![
        (Always, false, vec![(run(), None)], wait(), Pending),
        (Always, false, vec![(wait(), Some(1))], wait(), Pending),
        (Never, false, vec![(end(1), None)], wait(), Failed),
        (Always, true, vec![(end(0), None)], run(), Running),
        (Always, false, vec![(end(0), None), (wait(), None)], wait(), Pending),
        (Always, true, vec![(end(0), None), (wait(), Some(1))], run(), Running),
        (Never, true, vec![(end(0), None), (end(137), None)], end(0), Succeeded),
        // A sidecar that still runs keeps the pod's phase.
        (Never, true, vec![(end(0), None), (run(), None)], end(0), Running),
    ];
    for (policy, begun, init, regular, want) in table {
        let shown = format!("{policy:?} {init:?} {regular:?}");
        assert_eq!(phase_of(policy, begun, init, vec![(regular, None)]), want, "{shown}");
    }
}
