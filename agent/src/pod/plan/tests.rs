//! Single decisions; whole lives are in the worker's tests.

use gantry_model::pod::RestartPolicy;

use super::*;
use crate::pod::StopStep;
use crate::pod::probing::ProbeKind;
use crate::pod::tests::{container, in_role, pod, with_restart_policy};
use crate::pod::worker_state::{Output, WaitReason};
use crate::runtime::{Exit, Image};

mod claims;
mod cost;

const NOW: Duration = Duration::from_secs(1000);

fn sandbox(id: &str, attempt: u32, ready: bool) -> Sandbox {
    Sandbox { id: id.into(), attempt, ready, created_at: 1, ips: vec!["10.0.0.2".into()] }
}

fn instance(id: &str, attempt: u32, sandbox: &str, state: InstanceState) -> Instance {
    let (id, name, sandbox) = (id.into(), "web".into(), sandbox.into());
    let (log_path, image, image_id) = (String::new(), String::new(), String::new());
    let hash = "abc".into();
    let (user, actual) = (None, None);
    Instance {
        id,
        name,
        attempt,
        sandbox,
        state,
        image,
        image_id,
        created_at: 1,
        log_path,
        words: None,
        hash,
        user,
        actual,
    }
}

fn exited(code: i32) -> InstanceState {
    let (reason, message) = (String::new(), String::new());
    InstanceState::Exited(Exit { code, reason, message, started_at: 1, finished_at: 2 })
}

fn running() -> InstanceState {
    InstanceState::Running { started_at: 1 }
}

/// Of a pod whose resources are made and whose ended containers were observed.
fn memory(pod: &Pod, observed: &Observed) -> WorkerState {
    let mut history = WorkerState::new(NOW);
    history.resources = PodResources::Ready { parent: "/kubepods/poduid-1".into() };
    history.absorb(pod, observed, NOW, 0);
    history.containers.words = observed.containers.iter().map(|c| (c.id.clone(), String::new())).collect();
    history
}

fn decide(policy: RestartPolicy, observed: &Observed, orders: &Orders) -> Plan {
    let pod = with_restart_policy(policy, pod());
    plan(&pod, orders, observed, &memory(&pod, observed), NOW)
}

fn observed(sandboxes: &[Sandbox], containers: &[Instance]) -> Observed {
    Observed { sandboxes: sandboxes.to_vec(), containers: containers.to_vec() }
}

fn ops(plan: &Plan) -> Vec<Op> {
    plan.actions.iter().map(Action::op).collect()
}

fn stop(id: &str, container: &str, deadline: Duration) -> Action {
    let why = Some(format!("Stopping container {container}"));
    Action::StopContainer { container: container.into(), id: id.into(), deadline, why }
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
    assert_eq!(
        plan.actions,
        [Action::StartContainer { container: "web".into(), attempt: 0, id: "c".into() }]
    );
}

#[test]
fn a_sandbox_that_is_not_ready_is_stopped_before_the_next_is_made() {
    let seen = observed(&[sandbox("s", 3, false)], &[instance("c", 0, "s", exited(137))]);
    let plan_before = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert!(ops(&plan_before).contains(&Op::StopSandbox("s".into())));
    assert!(!ops(&plan_before).contains(&Op::Sandbox));
    let mut history = memory(&pod(), &seen);
    history.sandboxes.stopped.insert("s".into());
    let after = plan(&pod(), &Orders::default(), &seen, &history, NOW);
    assert!(
        after.actions.contains(&Action::RunSandbox {
            attempt: 4,
            cgroup_parent: "/kubepods/poduid-1".into(),
            replaces: true
        }),
        "{after:?}"
    );
}

#[test]
fn a_sandbox_that_has_lost_its_address_is_replaced() {
    let mute = Sandbox { ips: vec![], ..sandbox("s", 3, true) };
    let seen = observed(std::slice::from_ref(&mute), &[instance("c", 0, "s", running())]);
    let deadline = NOW + pod().grace;
    // What runs in it gets its grace, from when it was first seen.
    let before = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert_eq!(before.actions.first(), Some(&stop("c", "web", deadline)), "{before:?}");
    let mut history = memory(&pod(), &seen);
    history.absorb(&pod(), &seen, NOW + Duration::from_secs(2), 0);
    let later = plan(&pod(), &Orders::default(), &seen, &history, NOW + Duration::from_secs(2));
    assert_eq!(later.actions.first(), Some(&stop("c", "web", deadline)), "{later:?}");
    // Then it is stopped as any other that does not serve, and another one made.
    let seen = observed(std::slice::from_ref(&mute), &[instance("c", 0, "s", exited(137))]);
    let stopped = decide(RestartPolicy::Always, &seen, &Orders::default());
    assert!(ops(&stopped).contains(&Op::StopSandbox("s".into())), "{stopped:?}");
    let none = decide(RestartPolicy::Always, &observed(std::slice::from_ref(&mute), &[]), &Orders::default());
    assert!(!ops(&none).contains(&Op::Sandbox), "{none:?}");
    // A pod that is never restarted ends with it, as with one that is not ready.
    assert_eq!(decide(RestartPolicy::Never, &seen, &Orders::default()).ended, Some(Ended::Finished));
    let mut on_host = pod();
    on_host.namespaces.host_network = true;
    let seen = observed(&[mute], &[instance("c", 0, "s", running())]);
    let plan = plan(&on_host, &Orders::default(), &seen, &memory(&on_host, &seen), NOW);
    assert_eq!(plan.actions, []);
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
        assert_eq!(plan.ended.is_some(), terminal, "{policy:?} {code}");
        let starts = ops(&plan).iter().any(|op| matches!(op, Op::Sandbox | Op::Image(_) | Op::Container(_)));
        assert!(!(terminal && starts), "{plan:?}");
    }
    // Also when its records were removed since.
    let mut history = memory(&pod(), &seen);
    history.resources = PodResources::Gone;
    let pod = with_restart_policy(RestartPolicy::Never, pod());
    let plan = plan(&pod, &Orders::default(), &Observed::default(), &history, NOW);
    assert_eq!((plan.life, plan.actions.len()), (Life::Stopped, 0));
}

#[test]
fn a_pod_that_is_never_restarted_gets_no_second_sandbox_once_a_container_was_made() {
    let containers = vec![container("web"), container("late")];
    let pod = with_restart_policy(RestartPolicy::Never, Pod { containers, ..pod() });
    let seen = observed(&[sandbox("s", 0, false)], &[instance("c", 0, "s", exited(137))]);
    let history = memory(&pod, &seen);
    assert!(plan(&pod, &Orders::default(), &seen, &history, NOW).ended.is_some());
    // Nothing was made yet: it may have another.
    let seen = observed(&[sandbox("s", 0, false)], &[]);
    let history = memory(&pod, &seen);
    assert!(plan(&pod, &Orders::default(), &seen, &history, NOW).ended.is_none());
}

#[test]
fn trap_04_the_end_goes_containers_sandbox_volumes_cgroup_records() {
    let up = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", running())]);
    let plan_containers = decide(RestartPolicy::Always, &up, &killed());
    let deadline = NOW + Duration::from_secs(5);
    assert_eq!(plan_containers.actions, [stop("c", "web", deadline)]);
    assert_eq!(plan_containers.life, Life::Stopping { deadline: Some(deadline), step: StopStep::Containers });

    let ended = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", exited(143))]);
    let mut orders = killed();
    orders.remove = true;
    let plan_sandbox = decide(RestartPolicy::Always, &ended, &orders);
    assert_eq!(ops(&plan_sandbox), [Op::StopSandbox("s".into())]);

    let down = observed(&[sandbox("s", 0, false)], &[instance("c", 0, "s", exited(143))]);
    let mut history = memory(&pod(), &down);
    history.sandboxes.stopped.insert("s".into());
    for (resources, op, step) in [
        (PodResources::Ready { parent: String::new() }, Op::NoVolumes, StopStep::Volumes),
        (PodResources::NoVolumes, Op::NoCgroup, StopStep::Cgroup),
    ] {
        history.resources = resources;
        let plan = plan(&pod(), &orders, &down, &history, NOW);
        assert_eq!((ops(&plan), plan.life), (vec![op], Life::Stopping { deadline: Some(deadline), step }));
    }
    history.resources = PodResources::Gone;
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
    let mut history = memory(&pod(), &up);
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
    for op in [Op::Cgroup, Op::Volumes, Op::Sandbox, Op::Container("web".into())] {
        let mut history = WorkerState::default();
        history.flights.insert(op, None);
        let plan = plan(&pod(), &orders, &Observed::default(), &history, NOW);
        assert!(matches!(plan.life, Life::Stopping { .. }), "{plan:?}");
    }
}

#[test]
fn who_comes_after_a_container_with_a_post_start_hook_waits_for_it() {
    use gantry_model::pod::probe::Handler;
    let mut first = container("a");
    first.lifecycle.post_start = Some(Handler::Sleep(Duration::from_secs(1)));
    let pod = Pod { containers: vec![first, container("b")], ..pod() };
    let of = |name: &str, state| named(&format!("{name}-0"), name, "s", state);
    let next = |list: &[Instance], with: &dyn Fn(&mut WorkerState)| {
        let seen = observed(&[sandbox("s", 0, true)], list);
        let mut history = memory(&pod, &seen);
        for name in ["a", "b"] {
            let image = Image { id: "i".into(), ..Image::default() };
            history.containers.images.insert(name.into(), (0, image));
        }
        with(&mut history);
        ops(&plan(&pod, &Orders::default(), &seen, &history, NOW))
    };
    assert_eq!(next(&[], &|_| ()), [Op::Container("a".into())]);
    let busy = |history: &mut WorkerState| {
        history.flights.insert(Op::Container("a".into()), None);
    };
    assert!(next(&[], &busy).is_empty());
    let hooked = |history: &mut WorkerState| {
        history.flights.insert(Op::PostStart("a-0".into()), None);
    };
    assert!(next(&[of("a", running())], &hooked).is_empty());
    assert_eq!(next(&[of("a", running())], &|_| ()), [Op::Container("b".into())]);
}

#[test]
fn sidecars_are_left_as_they_are_while_the_last_container_ends_for_good() {
    let mut web = container("web");
    web.probes.liveness = Some(gantry_model::pod::probe::Probe {
        handler: gantry_model::pod::probe::Handler::Exec { command: vec!["x".into()] },
        initial_delay: Duration::ZERO,
        timeout: Duration::from_secs(1),
        period: Duration::from_secs(1),
        success_threshold: 1,
        failure_threshold: 1,
        termination_grace: None,
    });
    let sidecar = in_role("side", Role::Sidecar);
    let pod = with_restart_policy(
        RestartPolicy::Never,
        Pod { init_containers: vec![sidecar], containers: vec![web], ..pod() },
    );
    let list = [named("s-0", "side", "s", exited(1)), named("w-0", "web", "s", running())];
    let seen = observed(&[sandbox("s", 0, true)], &list);
    let mut history = memory(&pod, &seen);
    let planned = |history: &WorkerState| ops(&plan(&pod, &Orders::default(), &seen, history, NOW));
    assert!(planned(&history).iter().any(|op| *op == Op::Image("side".into())), "{:?}", planned(&history));
    let web = pod.containers.first().unwrap();
    history.probing.record(web, ProbeKind::Liveness, "w-0", Some(false), NOW);
    let ending = planned(&history);
    assert!(ending.contains(&Op::StopContainer("w-0".into())), "{ending:?}");
    assert!(!ending.iter().any(|op| *op == Op::Image("side".into())), "{ending:?}");
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
fn a_container_of_which_the_runtime_lost_track_is_stopped_then_removed_and_only_then_replaced() {
    let seen = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", InstanceState::Unknown)]);
    let pod = pod();
    let mut history = memory(&pod, &seen);
    history.containers.images.insert("web".into(), (1, Image { id: "i".into(), ..Image::default() }));
    let deadline = NOW + pod.grace;
    let why = Some("Container is in \"unknown\" state, try killing it before restart".to_owned());
    let stop = Action::StopContainer { container: "web".into(), id: "c".into(), deadline, why };
    let remove = Action::RemoveContainer { id: "c".into() };
    let next =
        |seen: &Observed, history: &WorkerState, now| plan(&pod, &Orders::default(), seen, history, now);
    assert_eq!(next(&seen, &history, NOW).actions, std::slice::from_ref(&stop));
    history.begin(&pod, &stop, NOW);
    assert_eq!(next(&seen, &history, NOW).actions, []);
    // It may have worked or not: the removal ends it by force.
    let mut refused = history.clone();
    let trouble =
        WaitReason { reason: "KillContainerError".into(), message: String::new(), image: String::new() };
    refused.finish(&pod, &stop, Err(trouble), NOW);
    let later = next(&seen, &refused, NOW);
    assert_eq!((later.actions.len(), later.wake), (0, Some(NOW + Duration::from_secs(1))));
    assert_eq!(next(&seen, &refused, NOW + Duration::from_secs(1)).actions, std::slice::from_ref(&remove));
    history.finish(&pod, &stop, Ok(Output::Done), NOW);
    assert_eq!(next(&seen, &history, NOW).actions, std::slice::from_ref(&remove));
    history.begin(&pod, &remove, NOW);
    assert_eq!(next(&seen, &history, NOW).actions, []);
    history.finish(&pod, &remove, Ok(Output::Done), NOW);
    let gone = observed(&[sandbox("s", 0, true)], &[]);
    history.absorb(&pod, &gone, NOW, 0);
    assert_eq!(ops(&next(&gone, &history, NOW)), [Op::Container("web".into())]);
    assert!(decide(RestartPolicy::Never, &seen, &Orders::default()).ended.is_some());
}

/// Two init containers, a sidecar between them, one regular container.
fn staged(policy: RestartPolicy) -> Pod {
    let init_containers =
        vec![in_role("i1", Role::Init), in_role("side", Role::Sidecar), in_role("i2", Role::Init)];
    with_restart_policy(policy, Pod { init_containers, ..pod() })
}

fn named(id: &str, name: &str, sandbox: &str, state: InstanceState) -> Instance {
    Instance { name: name.into(), ..instance(id, 0, sandbox, state) }
}

/// What is created next, images being there.
fn created(pod: &Pod, containers: &[Instance]) -> Vec<String> {
    created_in(pod, &observed(&[sandbox("s", 0, true)], containers))
}

fn created_in(pod: &Pod, seen: &Observed) -> Vec<String> {
    created_with(pod, seen, &memory(pod, seen))
}

fn created_with(pod: &Pod, seen: &Observed, history: &WorkerState) -> Vec<String> {
    let mut history = history.clone();
    for container in pod.all_containers() {
        let attempt = history.attempts.next(&container.name);
        history.containers.images.insert(container.name.clone(), (attempt, crate::runtime::Image::default()));
    }
    let plan = plan(pod, &Orders::default(), seen, &history, NOW);
    let names = plan.actions.into_iter().filter_map(|action| match action {
        Action::CreateContainer { container, .. } => Some(container),
        _ => None,
    });
    names.collect()
}

#[test]
fn init_containers_go_one_by_one_and_sidecars_among_them_stay() {
    let pod = staged(RestartPolicy::Always);
    let (done, up) = (|n| named(n, n, "s", exited(0)), |n| named(n, n, "s", running()));
    assert_eq!(created(&pod, &[]), ["i1"]);
    assert_eq!(created(&pod, &[up("i1")]), [""; 0]);
    assert_eq!(created(&pod, &[done("i1")]), ["side"]);
    assert_eq!(created(&pod, &[done("i1"), up("side")]), ["i2"]);
    assert_eq!(created(&pod, &[done("i1"), up("side"), up("i2")]), [""; 0]);
    assert_eq!(created(&pod, &[done("i1"), up("side"), done("i2")]), ["web"]);
    // Failed: again, and nothing after it.
    assert_eq!(created(&pod, &[named("i1", "i1", "s", exited(3))]), ["i1"]);
}

/// Upstream's order of events: Started, then the next one's Created.
#[test]
fn an_init_container_that_ended_before_its_start_was_answered_is_waited_for() {
    let pod = staged(RestartPolicy::Always);
    let seen = observed(&[sandbox("s", 0, true)], &[named("i1", "i1", "s", exited(0))]);
    let mut history = memory(&pod, &seen);
    history.flights.insert(Op::Container("i1".into()), None);
    assert_eq!(created_with(&pod, &seen, &history), [""; 0]);
    history.flights.clear();
    assert_eq!(created_with(&pod, &seen, &history), ["side"]);
}

#[test]
fn an_init_container_that_lost_a_part_for_lack_of_memory_has_failed_whatever_its_code() {
    let killed = named(
        "i1",
        "i1",
        "s",
        InstanceState::Exited(Exit {
            code: 0,
            reason: "OOMKilled".into(),
            message: String::new(),
            started_at: 1,
            finished_at: 2,
        }),
    );
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        assert_eq!(created(&staged(policy), std::slice::from_ref(&killed)), ["i1"], "{policy:?}");
    }
    let pod = staged(RestartPolicy::Never);
    let seen = observed(&[sandbox("s", 0, true)], &[killed]);
    let plan = plan(&pod, &Orders::default(), &seen, &memory(&pod, &seen), NOW);
    assert_eq!(plan.ended, Some(Ended::Finished));
}

#[test]
fn trap_09_a_sidecar_that_dies_while_init_runs_is_restarted_and_does_not_block() {
    let pod = staged(RestartPolicy::Never);
    let (done, up) = (|n| named(n, n, "s", exited(0)), |n| named(n, n, "s", running()));
    let dead = || named("side", "side", "s", exited(1));
    assert_eq!(created(&pod, &[done("i1"), dead(), up("i2")]), ["side"]);
    assert_eq!(created(&pod, &[done("i1"), dead(), done("i2")]), ["side", "web"]);
    assert_eq!(created(&pod, &[done("i1"), dead(), done("i2"), up("web")]), ["side"]);
}

#[test]
fn trap_09_once_a_regular_container_was_made_init_never_runs_again_in_that_sandbox() {
    let pod = staged(RestartPolicy::Always);
    // Their records were removed: only the sidecar comes back.
    assert_eq!(created(&pod, &[named("web", "web", "s", running())]), ["side"]);
    assert_eq!(created(&pod, &[named("web", "web", "s", InstanceState::Created)]), ["side"]);
    // A new sandbox runs all again.
    let old = [named("i1", "i1", "s", exited(0)), named("web", "web", "s", exited(137))];
    let seen = observed(&[sandbox("s", 0, false), sandbox("t", 1, true)], &old);
    assert_eq!(created_in(&pod, &seen), ["i1"]);
}

#[test]
fn trap_09_the_last_init_container_with_a_record_tells_how_far_the_pod_is() {
    let pod = staged(RestartPolicy::Always);
    assert_eq!(created(&pod, &[named("i2", "i2", "s", exited(0))]), ["side", "web"]);
}

#[test]
fn a_failed_init_container_ends_the_pod_when_it_is_not_restarted() {
    for (policy, ends) in [(RestartPolicy::Never, true), (RestartPolicy::OnFailure, false)] {
        let pod = staged(policy);
        let seen = observed(&[sandbox("s", 0, true)], &[named("i1", "i1", "s", exited(1))]);
        let plan = plan(&pod, &Orders::default(), &seen, &memory(&pod, &seen), NOW);
        assert_eq!(plan.ended.is_some(), ends, "{policy:?}");
    }
    // A sidecar is never the end.
    let pod = staged(RestartPolicy::Never);
    let dead = [named("i1", "i1", "s", exited(0)), named("side", "side", "s", exited(1))];
    let seen = observed(&[sandbox("s", 0, true)], &dead);
    assert_eq!(plan(&pod, &Orders::default(), &seen, &memory(&pod, &seen), NOW).ended, None);
}

#[test]
fn trap_09_main_containers_stop_first_then_sidecars_in_reverse_within_the_grace() {
    let init_containers = vec![in_role("s1", Role::Sidecar), in_role("s2", Role::Sidecar)];
    let pod = Pod { init_containers, ..pod() };
    let up = |n| named(n, n, "s", running());
    let next = |containers: &[Instance], now: Duration| {
        let seen = observed(&[sandbox("s", 0, true)], containers);
        let plan = plan(&pod, &killed(), &seen, &memory(&pod, &seen), now);
        (ops(&plan), plan.wake)
    };
    let stops = |names: &[&str]| names.iter().map(|n| Op::StopContainer((*n).into())).collect::<Vec<_>>();
    let deadline = NOW + Duration::from_secs(5);
    assert_eq!(next(&[up("s1"), up("s2"), up("web")], NOW), (stops(&["web"]), Some(deadline)));
    assert_eq!(next(&[up("s1"), up("s2")], NOW), (stops(&["s2"]), Some(deadline)));
    assert_eq!(next(&[up("s1")], NOW), (stops(&["s1"]), None));
    // What is left of the grace is over: nobody waits for anybody.
    assert_eq!(next(&[up("s1"), up("s2"), up("web")], deadline), (stops(&["s1", "s2", "web"]), None));
}

#[test]
fn a_hook_before_the_stop_goes_first_and_no_longer_than_the_grace() {
    let mut pod = pod();
    let hook = gantry_model::pod::probe::Handler::Sleep(Duration::from_secs(60));
    pod.containers.first_mut().unwrap().lifecycle.pre_stop = Some(hook);
    let seen = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", running())]);
    let mut history = memory(&pod, &seen);
    let at = |history: &WorkerState, now| ops(&plan(&pod, &killed(), &seen, history, now));
    assert_eq!(at(&history, NOW), [Op::PreStop("c".into())]);
    history.flights.insert(Op::PreStop("c".into()), None);
    assert_eq!(at(&history, NOW), []);
    assert_eq!(at(&history, NOW + Duration::from_secs(5)), [Op::StopContainer("c".into())]);
    history.flights.clear();
    history.containers.hooks.record_pre_stop("c");
    assert_eq!(at(&history, NOW), [Op::StopContainer("c".into())]);
}

#[test]
fn cgroup_then_volumes_then_sandbox_and_images_beside_them() {
    let mut history = WorkerState::new(NOW);
    let next =
        |history: &WorkerState| ops(&plan(&pod(), &Orders::default(), &Observed::default(), history, NOW));
    let image = Op::Image("web".into());
    assert_eq!(next(&history), [Op::Cgroup, image.clone()]);
    history.resources = PodResources::Cgroup { parent: "/x".into() };
    assert_eq!(next(&history), [Op::Volumes, image.clone()]);
    history.resources = PodResources::Ready { parent: "/x".into() };
    assert_eq!(next(&history), [Op::Sandbox, image]);
}

#[test]
fn one_image_is_fetched_once_for_all_containers_that_want_it() {
    let other = gantry_model::pod::Container { image: "reg/other:v1".into(), ..container("c") };
    let pod = Pod { containers: vec![container("a"), container("b"), other], ..pod() };
    let mut history = memory(&pod, &Observed::default());
    let images = |history: &WorkerState| {
        let plan = plan(&pod, &Orders::default(), &Observed::default(), history, NOW);
        ops(&plan).into_iter().filter(|op| matches!(op, Op::Image(_))).collect::<Vec<_>>()
    };
    assert_eq!(images(&history), [Op::Image("a".into()), Op::Image("c".into())]);
    history.flights.insert(Op::Image("a".into()), None);
    assert_eq!(images(&history), [Op::Image("c".into())]);
}

#[test]
fn trap_08_the_pull_back_off_hangs_on_pod_and_image_and_outlives_the_sandbox() {
    let pod = Pod { containers: vec![container("a"), container("b")], ..pod() };
    let mut history = memory(&pod, &Observed::default());
    let trouble = || crate::pod::worker_state::WaitReason {
        reason: "ErrImagePull".into(),
        message: String::new(),
        image: String::new(),
    };
    for name in ["a", "b"] {
        let action = Action::EnsureImage { container: name.into(), attempt: 0 };
        history.finish(&pod, &action, Err(trouble()), NOW);
    }
    // Two containers of one image, one failure.
    assert_eq!(history.backoffs.pull.delay("uid-1_reg/img:v1"), Duration::from_secs(10));
    let seen = observed(&[sandbox("t", 1, true)], &[]);
    history.absorb(&pod, &seen, NOW, 0);
    let plan = plan(&pod, &Orders::default(), &seen, &history, NOW);
    assert!(!ops(&plan).iter().any(|op| matches!(op, Op::Image(_))), "{plan:?}");
    assert_eq!(plan.waits.len(), 2);
}

#[test]
fn trap_08_the_crash_back_off_hangs_on_image_and_resources_and_outlives_the_sandbox() {
    let pod = pod();
    let seen = observed(&[sandbox("s", 0, true)], &[instance("c", 0, "s", exited(1))]);
    let mut history = memory(&pod, &seen);
    let key = crate::pod::restart::crash_key(&pod, pod.containers.first().unwrap());
    history.backoffs.crash.next(&key, NOW, NOW);
    let next = |pod: &Pod, seen: &Observed| created_with(pod, seen, &history);
    assert!(next(&pod, &seen).is_empty());
    let moved = observed(&[sandbox("s", 0, false), sandbox("t", 1, true)], &seen.containers);
    assert!(next(&pod, &moved).is_empty());
    let mut changed = pod.clone();
    changed.containers.first_mut().unwrap().image = "reg/img:v2".into();
    assert_eq!(next(&changed, &seen), ["web"]);
    let mut changed = pod.clone();
    changed.containers.first_mut().unwrap().resources.memory_limit = Some(1);
    assert_eq!(next(&changed, &seen), ["web"]);
}

#[test]
fn the_last_attempt_there_can_be_is_not_followed_by_the_first() {
    let mut history = WorkerState::new(NOW);
    history.attempts.know("web", u32::MAX);
    assert_eq!(history.attempts.next("web"), u32::MAX);
    history.absorb(&pod(), &observed(&[sandbox("s", u32::MAX, false)], &[]), NOW, 0);
    assert_eq!(history.attempts.next_sandbox(), u32::MAX);
}
