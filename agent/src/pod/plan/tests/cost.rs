//! What a look at a pod that rests costs.

use super::*;

#[test]
fn a_look_at_a_pod_that_rests_takes_few_instructions() {
    let names = ["a", "b", "c", "d", "e"];
    let pod = Pod { containers: names.iter().map(|name| container(name)).collect(), ..pod() };
    let all: Vec<Instance> = names
        .iter()
        .map(|name| Instance { name: (*name).into(), ..instance(&format!("{name}-1"), 0, "s1", running()) })
        .collect();
    let observed = observed(&[sandbox("s1", 0, true)], &all);
    let (orders, memory) = (Orders::default(), memory(&pod, &observed));
    let test = "pod::plan::tests::cost::a_look_at_a_pod_that_rests_takes_few_instructions";
    gantry_instructions::hold(test, 102_841, || {
        let plan = plan(&pod, &orders, &observed, &memory, NOW);
        assert_eq!(ops(&plan), [], "it rests");
    });
}
