//! How a change of a pod is seen: by an event, by the look at all pods, or by its worker's own.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_exit_is_seen_in_milliseconds_when_the_runtime_tells() {
    for (told, within) in [(true, Duration::from_millis(10)), (false, Duration::from_millis(1100))] {
        let machine = WorkersFixture::new();
        if !told {
            machine.runtime.fail(Call::Changes, 1000, FailureKind::Unsupported, "unknown method");
        }
        let after = Duration::from_millis(63_337);
        machine.runtime.script("web", &[Script::Exit { after, code: 1 }, Script::Serve]);
        let agent = machine.agent(vec![named("a", "a-1")]);
        let handle = agent.pods().first().unwrap().clone();
        running(&handle).await;
        let begun = tokio::time::Instant::now();
        handle.wait(|s| s.containers.first().unwrap().last_exit.is_some()).await;
        let metrics = &agent.deps.metrics;
        let listened = (metrics.evented_pleg_connections.get([]), metrics.evented_pleg_errors.get([]));
        assert_eq!(listened.0, Some(if told { 1.0 } else { 0.0 }));
        assert_eq!(listened.1.is_some_and(|errors| errors > 0.0), !told);
        let late = begun.elapsed().saturating_sub(after);
        assert!(late <= within, "told {told}: {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn looking_is_the_safety_net_when_an_event_is_lost() {
    let machine = WorkersFixture::new();
    let agent = machine.agent(vec![named("a", "a-1")]);
    let handle = agent.pods().first().unwrap().clone();
    running(&handle).await;
    machine.runtime.lose_events();
    let begun = tokio::time::Instant::now();
    machine.runtime.end("web", 5);
    handle.wait(|s| s.containers.first().unwrap().restart_count == 1).await;
    assert!(begun.elapsed() <= Duration::from_secs(11), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_look_at_all_pods_makes_up_for_lost_events_and_wakes_no_other_pod() {
    let machine = WorkersFixture::new();
    let agent = machine.agent((0..20).map(|n| named(&format!("p{n}"), &format!("p-{n}"))).collect());
    for handle in agent.pods().iter() {
        running(handle).await;
    }
    machine.runtime.lose_events();
    // Past the first look, which has nothing to compare with.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = |call| machine.runtime.asked(call);
    let before = (asked(Call::Observe), asked(Call::States));
    tokio::time::sleep(Duration::from_secs(100)).await;
    let after = (asked(Call::Observe), asked(Call::States));
    assert_eq!(
        (after.0 - before.0, after.1 - before.1),
        (0, 10),
        "a pod that rests costs no call of its own"
    );
    // A look that fails is made again, and what changed meanwhile is not lost.
    machine.runtime.fail(Call::States, 1, FailureKind::Unavailable, "down");
    machine.runtime.end_in(&PodUid::parse("p-7").unwrap(), 5);
    let handle = agent.pods().iter().find(|handle| handle.pod.uid.as_str() == "p-7").unwrap().clone();
    let begun = tokio::time::Instant::now();
    handle.wait(|s| s.containers.first().unwrap().restart_count == 1).await;
    assert!(begun.elapsed() <= Duration::from_secs(31), "{:?}", begun.elapsed());
    let observed = asked(Call::Observe) - after.0;
    assert!(observed < 20, "{observed} looks for one pod that changed");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_hangs_holds_no_event_up() {
    let machine = WorkersFixture::new();
    let agent = machine.agent(vec![named("a", "a-1")]);
    let handle = agent.pods().first().unwrap().clone();
    running(&handle).await;
    machine.runtime.set_latency_of(Call::States, Duration::from_secs(3600));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let begun = tokio::time::Instant::now();
    machine.runtime.end("web", 5);
    handle.wait(|s| s.containers.first().unwrap().restart_count == 1).await;
    assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn pods_that_rest_cost_as_many_calls_as_one_that_rests() {
    let mut calls = Vec::new();
    for pods in [1, 50] {
        let machine = WorkersFixture::new();
        let agent = machine.agent((0..pods).map(|n| named(&format!("p{n}"), &format!("p-{n}"))).collect());
        for handle in agent.pods().iter() {
            running(handle).await;
        }
        // Past the first look, which has nothing to compare with.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = machine.runtime.asked_in_all();
        tokio::time::sleep(Duration::from_secs(200)).await;
        calls.push(machine.runtime.asked_in_all() - before);
    }
    assert_eq!(calls, [20, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_asked_for_all_pods_at_once_each_second() {
    let mut calls = Vec::new();
    for pods in [1, 50] {
        let machine = WorkersFixture::new();
        machine.runtime.fail(Call::Changes, 1000, FailureKind::Unsupported, "unknown method");
        let agent = machine.agent((0..pods).map(|n| named(&format!("p{n}"), &format!("p-{n}"))).collect());
        for handle in agent.pods().iter() {
            running(handle).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let asked = || (machine.runtime.asked(Call::Observe), machine.runtime.asked(Call::States));
        let before = asked();
        tokio::time::sleep(Duration::from_secs(50)).await;
        let after = asked();
        calls.push((after.0 - before.0, after.1 - before.1));
        // While that look fails each worker sees to its pod.
        machine.runtime.fail(Call::States, 1000, FailureKind::Unavailable, "down");
        machine.runtime.end_in(&PodUid::parse("p-0").unwrap(), 5);
        let handle = agent.pods().iter().find(|handle| handle.pod.uid.as_str() == "p-0").unwrap().clone();
        let begun = tokio::time::Instant::now();
        handle.wait(|s| s.containers.first().unwrap().restart_count == 1).await;
        assert!(begun.elapsed() <= Duration::from_secs(12), "{:?}", begun.elapsed());
    }
    assert_eq!(calls, [(0, 50), (0, 50)]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_vanishes_without_an_event_is_made_again_and_no_other() {
    let machine = WorkersFixture::new();
    let agent = machine.agent(vec![named("a", "a-1"), named("b", "b-1")]);
    for handle in agent.pods().iter() {
        running(handle).await;
    }
    machine.runtime.lose_events();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let begun = tokio::time::Instant::now();
    machine.runtime.vanish(&PodUid::parse("a-1").unwrap());
    while machine.runtime.count("run-sandbox") < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(begun.elapsed() <= Duration::from_secs(30), "it is not noticed");
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(machine.runtime.count("run-sandbox"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_look_without_an_answer_is_made_again() {
    let machine = WorkersFixture::new();
    let agent = machine.agent(vec![named("a", "a-1")]);
    let handle = agent.pods().first().unwrap().clone();
    running(&handle).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    machine.runtime.set_latency_of(Call::States, Duration::from_secs(3600));
    machine.runtime.lose_events();
    tokio::time::sleep(Duration::from_secs(15)).await;
    machine.runtime.set_latency_of(Call::States, Duration::ZERO);
    let begun = tokio::time::Instant::now();
    machine.runtime.end("web", 5);
    handle.wait(|s| s.containers.first().unwrap().restart_count == 1).await;
    assert!(begun.elapsed() <= Duration::from_secs(90), "{:?}", begun.elapsed());
}
