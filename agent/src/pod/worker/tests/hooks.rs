//! Hooks and last words, over a pod's whole life.

use gantry_model::pod::TerminationMessage;
use gantry_model::pod::probe::{Handler, HttpGet, PortRef};

use super::*;
use crate::probe::HttpError;
use crate::runtime::ExecOutput;
use crate::runtime::fake::Exec;

fn hooked(post_start: Option<Handler>, pre_stop: Option<Handler>) -> Pod {
    let mut pod = pod();
    let lifecycle = &mut pod.containers.first_mut().unwrap().lifecycle;
    (lifecycle.post_start, lifecycle.pre_stop) = (post_start, pre_stop);
    pod
}

fn exec(word: &str) -> Handler {
    Handler::Exec { command: vec![word.to_owned()] }
}

fn takes(time: Duration, code: i32) -> Exec {
    let output = ExecOutput { code, stdout: b"said".to_vec(), stderr: vec![] };
    Exec { takes: time, output }
}

fn reasons(handle: &PodHandle) -> Vec<String> {
    handle.events().iter().map(|event| event.note.reason.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn running_is_told_when_the_hook_after_the_start_is_done() {
    let mut world = World::new();
    world.runtime.script_exec("web", &[takes(secs(9), 0)]);
    let handle = world.start(hooked(Some(exec("hello")), None));
    until(&handle, "started", |s| s.events.iter().any(|e| e.note.reason == "Started")).await;
    let begun = world.clock.mono();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(handle.status.borrow().reason, "ContainerCreating");
    let status = until_running(&handle).await;
    assert!((secs(8)..secs(10)).contains(&(world.clock.mono() - begun)));
    assert!(status.spans.iter().any(|s| s.name == "container.poststart"));
    assert_eq!(world.runtime.count("exec"), 1);
    assert_eq!(reasons(&handle), ["Pulling", "Pulled", "Created", "Started"]);
}

#[tokio::test(start_paused = true)]
async fn the_hook_after_a_start_whose_answer_was_lost_is_run() {
    let mut world = World::new();
    world.runtime.script_exec("web", &[takes(secs(1), 0)]);
    world.runtime.lose_answer(Call::Start);
    let handle = world.start(hooked(Some(exec("hello")), None));
    let status = until_running(&handle).await;
    assert_eq!((restarts_of(&status), world.runtime.count("exec")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_hook_after_the_start_ends_the_container_and_is_told_without_its_output() {
    let mut world = World::new();
    world.runtime.script_exec("web", &[takes(Duration::ZERO, 3), takes(Duration::ZERO, 0)]);
    world.runtime.set_latency(Duration::from_millis(10));
    let handle = world.start(hooked(Some(exec("hello")), None));
    let status = until_reason(&handle, "PostStartHookError").await;
    let ContainerState::Waiting { message, .. } = &status.containers.first().unwrap().state else { panic!() };
    assert_eq!(
        message,
        "Exec lifecycle hook ([hello]) for Container \"web\" in Pod \"web_default(uid-1)\" failed - error: command 'hello' exited with 3: , message: \"said\""
    );
    let status = until_running(&handle).await;
    assert_eq!(restarts_of(&status), 1);
    let events = handle.events();
    let failed = events.iter().find(|e| e.note.reason == "FailedPostStartHook").unwrap();
    assert_eq!(failed.note.message, "PostStartHook failed");
    let killing = events.iter().find(|e| e.note.reason == "Killing").unwrap();
    assert_eq!(killing.note.message, "FailedPostStartHook");

    let mut world = World::new();
    world.runtime.script_exec("web", &[takes(Duration::ZERO, 3)]);
    let handle = world.start(with_restart_policy(RestartPolicy::Never, hooked(Some(exec("hello")), None)));
    let status = until(&handle, "over", PodStatus::is_over).await;
    assert_eq!((status.phase, world.runtime.count("create")), (Phase::Failed, 1));
}

#[tokio::test(start_paused = true)]
async fn the_hook_before_the_stop_counts_into_the_grace_and_two_seconds_stay() {
    for (hook, stop) in [(4, "6"), (9, "2"), (60, "2")] {
        let mut world = World::new();
        world.runtime.script("web", &[Script::Stubborn]);
        world.runtime.script_exec("web", &[takes(secs(hook), 0)]);
        let handle = world.start(hooked(None, Some(exec("bye"))));
        let id = until_running(&handle).await.containers.first().unwrap().id.clone();
        handle.kill(Some(secs(10)), "test");
        until(&handle, "over", PodStatus::is_over).await;
        let log = world.runtime.log();
        assert!(log.contains(&format!("stop {id} {stop}")), "hook of {hook} s: {log:?}");
        assert_eq!(world.runtime.count("exec"), 1);
        assert_eq!(reasons(&handle).iter().filter(|r| **r == "Killing").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_hook_before_the_stop_is_told_and_the_stop_goes_on() {
    let mut world = World::new();
    world.runtime.script_exec("web", &[takes(Duration::ZERO, 1)]);
    let handle = world.start(hooked(None, Some(exec("bye"))));
    until_running(&handle).await;
    handle.kill(None, "test");
    until(&handle, "over", PodStatus::is_over).await;
    let events = handle.events();
    let failed = events.iter().find(|e| e.note.reason == "FailedPreStopHook").unwrap();
    assert_eq!(failed.note.message, "PreStopHook failed");
    assert_eq!(world.runtime.count("stop c"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kill_without_grace_runs_no_hook_and_cuts_one_that_runs() {
    let mut world = World::new();
    let handle = world.start(hooked(None, Some(Handler::Sleep(secs(1000)))));
    until_running(&handle).await;
    let begun = world.clock.mono();
    handle.kill(Some(secs(900)), "test");
    tokio::time::sleep(secs(3)).await;
    handle.kill(Some(secs(0)), "now");
    until(&handle, "over", PodStatus::is_over).await;
    assert!(world.clock.mono() - begun < secs(6));
}

#[tokio::test(start_paused = true)]
async fn a_hook_over_https_is_asked_again_without_tls_and_any_page_is_enough() {
    let mut world = World::new();
    let (host, path, port) = (String::new(), "/hook".to_owned(), PortRef::Number(8443));
    let get = HttpGet { host, port, path, tls: false, headers: vec![] };
    world.probes.script_http("/hook", &[500]);
    let handle = world.start(hooked(Some(Handler::HttpGet(get.clone())), None));
    until_running(&handle).await;
    assert_eq!(world.probes.log(), ["http://10.88.0.2:8443/hook kube-lifecycle/1.36"]);

    let mut world = World::new();
    world.probes.fail_http("/hook", HttpError::NotTls("server gave HTTP response".into()));
    let handle = world.start(hooked(Some(Handler::HttpGet(HttpGet { tls: true, ..get })), None));
    until_reason(&handle, "PostStartHookError").await;
    assert!(world.probes.log().iter().any(|entry| entry.starts_with("http://")), "{:?}", world.probes.log());
}

fn exits(code: i32, message: TerminationMessage) -> (World, Pod) {
    let world = World::new();
    world.runtime.script("web", &[Script::Exit { after: secs(1), code }]);
    let mut pod = with_restart_policy(RestartPolicy::Never, pod());
    pod.containers.first_mut().unwrap().termination_message = message;
    (world, pod)
}

fn said(status: &PodStatus) -> String {
    match &status.containers.first().unwrap().state {
        ContainerState::Terminated(exit) => exit.message.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn last_words_are_read_before_the_folder_goes_and_cut_to_the_pods_share() {
    let (mut world, pod) = exits(1, TerminationMessage::default());
    world.volumes.say(&pod.uid, "web", 0, "disk full");
    let handle = world.start(pod);
    assert_eq!(said(&until(&handle, "over", PodStatus::is_over).await), "disk full");

    let (mut world, mut pod) = exits(1, TerminationMessage::default());
    pod.containers.extend((0..3).map(|n| container(&format!("c{n}"))));
    let pod = with_restart_policy(RestartPolicy::Never, pod);
    for name in ["c0", "c1", "c2"] {
        world.runtime.script(name, &[Script::Exit { after: secs(1), code: 0 }]);
    }
    world.volumes.say(&pod.uid, "web", 0, &"é".repeat(2048));
    let handle = world.start(pod);
    // 12 KiB over four containers, and no character is cut in two.
    assert_eq!(said(&until(&handle, "over", PodStatus::is_over).await).len(), 3072);
}

#[tokio::test(start_paused = true)]
async fn the_log_stands_in_for_a_failed_container_that_left_no_words() {
    let fallback = TerminationMessage { fallback_to_logs: true, ..TerminationMessage::default() };
    for (code, want) in [(1, "the last line\n"), (0, "")] {
        let (mut world, pod) = exits(code, fallback.clone());
        world.runtime.script_log("/logs/web/0.log", "the last line\n");
        let handle = world.start(pod);
        assert_eq!(said(&until(&handle, "over", PodStatus::is_over).await), want);
    }
}
