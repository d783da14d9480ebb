//! Which periods the fields come to, and what is wrong with them.

use serde_json::json;

use super::*;

/// What a configuration file of these fields says.
fn config(fields: serde_json::Value) -> KubeletConfiguration {
    serde_json::from_value(fields).unwrap()
}

fn periods(fields: serde_json::Value) -> Option<Vec<(i32, i64)>> {
    let all = policy(&config(fields), &Gates::default())?.periods;
    Some(all.into_iter().map(|period| (period.priority, period.seconds)).collect())
}

fn wrong(fields: serde_json::Value) -> Vec<String> {
    problems(&config(fields), &Gates::default())
}

#[test]
fn two_fields_are_periods_of_two_priorities_and_many_are_sorted() {
    assert_eq!(periods(json!({})), None);
    let both = json!({ "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s" });
    assert_eq!(periods(both), Some(vec![(0, 20), (2_000_000_000, 10)]));
    let all_for_critical = json!({ "shutdownGracePeriod": "10s", "shutdownGracePeriodCriticalPods": "10s" });
    assert_eq!(periods(all_for_critical), Some(vec![(0, 0), (2_000_000_000, 10)]));
    let period = |priority, seconds| json!({ "priority": priority, "shutdownGracePeriodSeconds": seconds });
    let many = json!({ "shutdownGracePeriodByPodPriority": [period(100, 20), period(0, 10), period(-5, 5)] });
    assert_eq!(periods(many), Some(vec![(-5, 5), (0, 10), (100, 20)]));
}

#[test]
fn either_gate_takes_away_what_it_stands_for() {
    let gates = |gate: &str| {
        json!({ "featureGates": { gate: false }, "shutdownGracePeriod": "30s",
            "shutdownGracePeriodCriticalPods": "10s" })
    };
    assert_eq!(periods(gates(GATE)), None);
    let policy = policy(&config(gates(BY_PRIORITY)), &Gates::default()).unwrap();
    assert_eq!((policy.periods.len(), policy.recorded), (2, false));
}

#[test]
fn configz_shows_a_period_whole_though_its_priority_is_zero() {
    let fields =
        json!({ "shutdownGracePeriodByPodPriority": [{ "priority": 0, "shutdownGracePeriodSeconds": 7 }] });
    let shown = serde_json::to_value(config(fields.clone())).unwrap();
    assert_eq!(shown["shutdownGracePeriodByPodPriority"], fields["shutdownGracePeriodByPodPriority"]);
}

#[test]
fn what_is_wrong_is_told_in_upstreams_words() {
    assert_eq!(wrong(json!({})), Vec::<String>::new());
    let good = json!({ "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s" });
    assert_eq!(wrong(good), Vec::<String>::new());
    assert_eq!(
        wrong(json!({ "shutdownGracePeriod": "1s", "shutdownGracePeriodCriticalPods": "2s" })),
        ["shutdownGracePeriodCriticalPods {2s} must be <= shutdownGracePeriod {1s}"]
    );
    assert_eq!(
        wrong(json!({ "shutdownGracePeriod": "1ms" })),
        ["shutdownGracePeriod {1ms} must be either zero or otherwise >= 1 sec"]
    );
    assert_eq!(
        wrong(json!({ "shutdownGracePeriod": "2s", "shutdownGracePeriodCriticalPods": "-1s" })),
        ["shutdownGracePeriodCriticalPods {-1s} must be either zero or otherwise >= 1 sec"]
    );
    assert_eq!(
        wrong(json!({ "featureGates": { "GracefulNodeShutdown": false }, "shutdownGracePeriod": "1s" })),
        [
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown"
        ]
    );
    let one = json!([{ "priority": 0, "shutdownGracePeriodSeconds": 7 }]);
    assert_eq!(
        wrong(json!({ "shutdownGracePeriodByPodPriority": one, "shutdownGracePeriod": "1s" })),
        ["Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"]
    );
    assert_eq!(
        wrong(json!({ "shutdownGracePeriodByPodPriority": one,
            "featureGates": { "GracefulNodeShutdownBasedOnPodPriority": false } })),
        [
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority"
        ]
    );
}
