//! Each stuck state, from facts made by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_model::pod::Pod;
use gantry_model::pod::probe::HttpGet;

use super::*;
use crate::events::Note;
use crate::pod::Life;
use crate::pod::status::{Phase, PodStatus};
use crate::pod::tests::{container, pod};
use crate::runtime::Exit;

fn running(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        role: Role::Regular,
        id: "c1".into(),
        image: "127.0.0.1:5000/web:v1".into(),
        state: ContainerState::Running { started_at: 1 },
        started: true,
        ready: true,
        ..ContainerStatus::default()
    }
}

fn waiting(reason: &str, message: &str) -> ContainerStatus {
    let state = ContainerState::Waiting { reason: reason.into(), message: message.into() };
    ContainerStatus { state, ready: false, started: false, id: String::new(), ..running("web") }
}

fn status(containers: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        life: Life::Starting,
        phase: Phase::Pending,
        reason: "x".into(),
        ip: "10.88.0.2".into(),
        ips: vec!["10.88.0.2".into()],
        containers,
        ..PodStatus::default()
    }
}

fn event(container: &str, reason: &'static str, message: &str) -> Event {
    let note = Note::container(Kind::Warning, reason, container, message);
    Event { note, count: 2, first: 1, last: 2 }
}

fn explained(pod: &Pod, status: &PodStatus, change: impl FnOnce(&mut ExplainInputs<'_>)) -> Vec<Finding> {
    let mut facts = ExplainInputs {
        pod,
        status,
        lines: BTreeMap::new(),
        listening: BTreeMap::new(),
        registries: BTreeMap::new(),
        pulls: BTreeMap::new(),
        waits: Vec::new(),
        now: 5_000_000_000,
    };
    change(&mut facts);
    decide(&facts)
}

fn only(findings: Vec<Finding>) -> Finding {
    let [finding] = <[Finding; 1]>::try_from(findings).unwrap();
    finding
}

#[test]
fn a_pod_that_is_well_needs_no_words() {
    assert_eq!(explained(&pod(), &status(vec![running("web")]), |_| {}), []);
}

#[test]
fn a_pull_that_fails_is_judged_by_the_registry_as_it_is_now() {
    let status =
        status(vec![waiting("ImagePullBackOff", "Back-off pulling image: ErrImagePull: 404 not found")]);
    let found = only(explained(&pod(), &status, |facts| {
        facts.registries.insert("127.0.0.1:5000".into(), Err("connection refused".into()));
    }));
    assert!(found.cause.contains("nothing answers at the registry 127.0.0.1:5000"), "{found:?}");
    let found = only(explained(&pod(), &status, |facts| {
        facts.registries.insert("127.0.0.1:5000".into(), Ok(()));
    }));
    assert!(found.cause.contains("has no image 127.0.0.1:5000/web:v1"), "{found:?}");
}

#[test]
fn a_crash_loop_shows_code_and_log() {
    let mut web = waiting("CrashLoopBackOff", "back-off 10s");
    web.last_exit = Some(Exit {
        code: 127,
        reason: "Error".into(),
        message: String::new(),
        started_at: 1,
        finished_at: 2,
    });
    let found = only(explained(&pod(), &status(vec![web]), |facts| {
        facts.lines.insert("web".into(), vec!["sh: serv: not found".into()]);
    }));
    assert!(found.cause.contains("127"), "{found:?}");
    assert!(found.evidence.contains(&"log: sh: serv: not found".to_owned()), "{found:?}");
}

#[test]
fn the_command_of_a_remedy_works_as_it_is_told() {
    let exit =
        || Exit { code: 7, reason: "Error".into(), message: String::new(), started_at: 1, finished_at: 2 };
    let ended = ContainerStatus { state: ContainerState::Terminated(exit()), ..running("web") };
    let waits =
        ContainerStatus { last_exit: Some(exit()), restart_count: 1, ..waiting("CrashLoopBackOff", "") };
    let remedy =
        |pod: &Pod, web: &ContainerStatus| only(explained(pod, &status(vec![web.clone()]), |_| {})).remedy;
    let mut pod = pod();
    assert!(remedy(&pod, &ended).contains("`gantry logs web`"), "{}", remedy(&pod, &ended));
    // The newest instance is the one that crashed.
    assert!(remedy(&pod, &waits).contains("`gantry logs web`"), "{}", remedy(&pod, &waits));
    pod.namespace = "shop".into();
    pod.containers.push(container("side"));
    assert!(remedy(&pod, &ended).contains("`gantry logs web -n shop -c web`"), "{}", remedy(&pod, &ended));
    let newer = ContainerStatus { last_exit: Some(exit()), restart_count: 1, ..running("web") };
    assert_eq!(log_command(&pod, &newer), "gantry logs web -n shop -c web -p");
    let told = |restart_count| {
        let web = ContainerStatus { restart_count, ..ended.clone() };
        only(explained(&pod, &status(vec![web]), |_| {})).evidence.remove(0)
    };
    assert_eq!(told(0), "exit code 7 (Error), never restarted");
    assert_eq!(told(1), "exit code 7 (Error), restarted once");
    assert_eq!(told(2), "exit code 7 (Error), restarted 2 times");
}

#[test]
fn an_oom_kill_is_told_while_waiting_and_after_the_restart() {
    let exit =
        Exit { code: 137, reason: "OOMKilled".into(), message: String::new(), started_at: 1, finished_at: 2 };
    let mut pod = pod();
    pod.containers[0].resources.memory_limit = Some(32 << 20);
    let waits = ContainerStatus { last_exit: Some(exit.clone()), ..waiting("CrashLoopBackOff", "") };
    let runs = ContainerStatus { last_exit: Some(exit), restart_count: 1, ..running("web") };
    for web in [waits, runs] {
        let found = only(explained(&pod, &status(vec![web]), |_| {}));
        assert!(found.cause.contains("32 MiB"), "{found:?}");
    }
}

#[test]
fn an_oom_that_a_container_outlived_is_told_of_that_container() {
    let mut pod = pod();
    pod.containers[0].resources.memory_limit = Some(32 << 20);
    let events = |container| vec![event(container, REASON, "ran out of memory")].into();
    let told = PodStatus { events: events("web"), ..status(vec![running("web")]) };
    let found = only(explained(&pod, &told, |_| {}));
    assert_eq!(found.state, "OutlivedOOM");
    assert!(found.cause.contains("32 MiB") && found.cause.contains("may have killed"), "{found:?}");
    assert_eq!(found.evidence, ["OutlivedOOM (x2): ran out of memory"]);
    let other = PodStatus { events: events("db"), ..status(vec![running("web")]) };
    assert_eq!(explained(&pod, &other, |_| {}), []);
}

#[test]
fn a_pull_says_how_far_it_is_where_that_is_known() {
    let span = Span {
        name: "image".into(),
        container: "web".into(),
        start: 1,
        end: 0,
        detail: "127.0.0.1:5000/web:v1".into(),
    };
    let status = PodStatus { spans: vec![span].into(), ..status(vec![waiting("ContainerCreating", "")]) };
    assert_eq!(only(explained(&pod(), &status, |_| {})).evidence, [""; 0]);
    let found = only(explained(&pod(), &status, |facts| {
        facts.pulls.insert("127.0.0.1:5000/web:v1".into(), "1 of 2 layers, 5B of 9B".into());
    }));
    assert_eq!(found.evidence, ["pull: 1 of 2 layers, 5B of 9B"]);
}

#[test]
fn a_missing_config_map_has_its_remedy() {
    let web = waiting("CreateContainerConfigError", "configmap \"settings\" not found");
    let found = only(explained(&pod(), &status(vec![web]), |_| {}));
    assert!(found.remedy.contains("ConfigMap"), "{found:?}");
    assert!(found.evidence.iter().any(|line| line.contains("settings")), "{found:?}");
}

#[test]
fn a_probe_that_is_never_true_is_held_against_what_listens() {
    let get = HttpGet {
        host: String::new(),
        port: PortRef::Number(8080),
        path: "/ready".into(),
        tls: false,
        headers: vec![],
    };
    let probe = Probe {
        handler: Handler::HttpGet(get),
        initial_delay: Duration::ZERO,
        timeout: Duration::from_secs(1),
        period: Duration::from_secs(10),
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace: None,
    };
    let mut web = container("web");
    web.probes.readiness = Some(probe);
    let pod = Pod { containers: vec![web], ..pod() };
    let mut status = status(vec![ContainerStatus { ready: false, ..running("web") }]);
    status.events = Arc::from([event("web", "Unhealthy", "Readiness probe failed: 503")]);
    let found = only(explained(&pod, &status, |facts| {
        facts.listening.insert(("web".into(), 8080), false);
    }));
    assert!(found.cause.contains("GET /ready on port 8080"), "{found:?}");
    assert!(found.cause.contains("nothing listens on port 8080"), "{found:?}");
    assert!(found.evidence.iter().any(|line| line.contains("503")), "{found:?}");
    let found = only(explained(&pod, &status, |facts| {
        facts.listening.insert(("web".into(), 8080), true);
    }));
    assert!(found.evidence.iter().any(|line| line.contains("accepts connections now")), "{found:?}");
}

#[test]
fn container_creating_names_what_is_awaited() {
    let mut status = status(vec![waiting("ContainerCreating", "")]);
    let open = |name: &str, container: &str| Span {
        name: name.into(),
        container: container.into(),
        start: 1_000_000_000,
        end: 0,
        detail: String::new(),
    };
    status.spans = Arc::from([open("image", "web")]);
    assert!(only(explained(&pod(), &status, |_| {})).cause.contains("is being pulled, for 4.000 s"));
    status.spans = Arc::from([open("volumes", "")]);
    assert!(only(explained(&pod(), &status, |_| {})).cause.contains("volumes"));
    let mut init = waiting("PodInitializing", "");
    init.name = "setup".into();
    init.role = Role::Init;
    init.state = ContainerState::Running { started_at: 1 };
    status.init_containers = vec![init];
    assert!(only(explained(&pod(), &status, |_| {})).cause.contains("init container setup"));
}

#[test]
fn no_sandbox_no_volume() {
    let mut status = status(vec![waiting("ContainerCreating", "")]);
    status.ips.clear();
    for (reason, message, word) in [
        (
            "FailedCreatePodSandBox",
            "no IP addresses available in range set: 10.88.0.2-10.88.0.3",
            "address range",
        ),
        ("FailedCreatePodSandBox", "portmap: port 8080 is in use by pod default/a", "hostPort"),
        (
            "FailedCreatePodSandBox",
            "plugin portmap failed: a process of the host listens on host port 80/TCP, so a/b cannot have it; end it or \
             change the port",
            "hostPort",
        ),
        ("FailedCreatePodSandBox", "plugin bridge failed: no such device", "network"),
        ("FailedMount", "MountVolume.SetUp failed for volume \"x\": hostPath type check failed", "volume"),
    ] {
        status.events = Arc::from([event("", reason, message)]);
        let found = explained(&pod(), &status, |_| {});
        assert!(found.first().unwrap().cause.contains(word), "{word}: {found:?}");
    }
}

#[test]
fn a_kill_by_hand_is_not_blamed_on_the_grace_period() {
    let mut web = running("web");
    web.state = ContainerState::Terminated(Exit {
        code: 137,
        reason: "Error".into(),
        message: String::new(),
        started_at: 10,
        finished_at: 20,
    });
    let killing = |at| {
        let note = Note::container(Kind::Normal, "Killing", "web", "Stopping container web");
        Event { note, count: 1, first: at, last: at }
    };
    // One of an earlier instance says nothing of this one.
    for (events, asked) in [(vec![], false), (vec![killing(5)], false), (vec![killing(15)], true)] {
        let mut status = status(vec![web.clone()]);
        status.events = events.into();
        let found = only(explained(&pod(), &status, |_| {}));
        assert_eq!(found.cause.contains("grace period"), asked, "{found:?}");
        assert_eq!(found.remedy.contains("terminationGracePeriodSeconds"), asked, "{found:?}");
    }
}
