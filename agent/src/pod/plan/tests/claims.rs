//! Claims to devices: when they are prepared, given up and taken back.

use super::*;
use crate::dra::testing::claiming;

/// Of a pod with claims, and of one of which nothing is known but its name.
#[test]
fn drivers_take_back_claims_between_the_sandboxs_end_and_the_volumes() {
    let down = observed(&[], &[]);
    let claims = claiming("uid-1", &["one"]);
    let shell = Pod { containers: Vec::new(), ..pod() };
    for pod in [claims, shell] {
        let mut history = memory(&pod, &down);
        let of = |history: &WorkerState| plan(&pod, &killed(), &down, history, NOW);
        let deadline = Some(NOW + Duration::from_secs(5));
        let before = of(&history);
        assert_eq!(ops(&before), [Op::NoClaims]);
        assert_eq!(before.life, Life::Stopping { deadline, step: StopStep::Claims });
        history.resources = PodResources::NoClaims;
        assert_eq!(ops(&of(&history)), [Op::NoVolumes]);
    }
}

/// Nobody waits for a driver that prepares what is not wanted any more.
#[test]
fn a_kill_gives_up_claims_that_are_being_prepared() {
    let pod = claiming("uid-1", &["one"]);
    let nothing = observed(&[], &[]);
    let mut history = memory(&pod, &nothing);
    let up = plan(&pod, &Orders::default(), &nothing, &history, NOW);
    assert_eq!(ops(&up), [Op::Claims, Op::Image("web".into())]);
    history.begin(&pod, &Action::PrepareClaims, NOW);
    let down = plan(&pod, &killed(), &nothing, &history, NOW);
    assert_eq!((down.abandon.clone(), ops(&down)), (vec![Op::Claims], vec![Op::NoClaims]));
}
