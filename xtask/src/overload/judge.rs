//! What a node under load must hold: its Guaranteed pods, its readiness, its daemons. Pure. Called by `overload`.

use super::seen::{Overload, PodSeen};

/// What was lost of a pod that keeps to its requests, as far as something was. On a node that is not Ready the control
/// plane calls all pods not ready, whatever they do: that is told of the node, and only once.
fn loss(pod: &PodSeen, node_ready: bool) -> Option<String> {
    if !pod.there {
        Some("is gone".to_owned())
    } else if pod.phase != "Running" {
        Some(format!("is {} ({} {})", pod.phase, pod.reason, pod.message))
    } else if pod.restarts > 0 {
        Some(format!("restarted {} times, OOM killed {} times", pod.restarts, pod.oom_killed.len()))
    } else if node_ready && !pod.ready {
        Some("is not ready".to_owned())
    } else {
        None
    }
}

/// Whether a pod that keeps to its requests was lost.
pub(super) fn is_lost(pod: &PodSeen, node_ready: bool) -> bool {
    pod.keeper && loss(pod, node_ready).is_some()
}

/// A sentence for each condition that does not hold.
pub(super) fn faults(seen: &Overload) -> Vec<String> {
    let guaranteed = seen.pods.iter().filter(|(_, pod)| pod.keeper && pod.class == "Guaranteed");
    let mut faults: Vec<String> = guaranteed
        .clone()
        .filter_map(|(name, pod)| loss(pod, seen.ready).map(|loss| format!("pod {name} {loss}")))
        .collect();
    if guaranteed.count() == 0 {
        faults.push("no Guaranteed pod was seen".to_owned());
    }
    if !seen.ready {
        faults.push("the node is not Ready at the end".to_owned());
    }
    faults.extend(seen.guest.ended.iter().cloned());
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Overload {
        let keeper = |class: &str| PodSeen {
            class: class.to_owned(),
            keeper: true,
            phase: "Running".to_owned(),
            ready: true,
            there: true,
            ..PodSeen::default()
        };
        let pods = [("g".to_owned(), keeper("Guaranteed")), ("b".to_owned(), keeper("Burstable"))].into();
        Overload { pods, ready: true, ..Overload::default() }
    }

    fn with(change: impl FnOnce(&mut Overload)) -> Vec<String> {
        let mut seen = run();
        change(&mut seen);
        faults(&seen)
    }

    #[test]
    fn each_condition_has_its_sentence() {
        assert!(with(|_| ()).is_empty());
        let of = |change: fn(&mut PodSeen)| with(|seen| seen.pods.values_mut().for_each(change));
        assert_eq!(of(|pod| pod.restarts = 2), ["pod g restarted 2 times, OOM killed 0 times"]);
        assert_eq!(of(|pod| pod.there = false), ["pod g is gone"]);
        assert_eq!(of(|pod| pod.ready = false), ["pod g is not ready"]);
        assert_eq!(of(|pod| pod.phase = "Failed".into()), ["pod g is Failed ( )"]);
        let unready = with(|seen| {
            seen.ready = false;
            seen.pods.values_mut().for_each(|pod| pod.ready = false);
        });
        assert_eq!(unready, ["the node is not Ready at the end"]);
        let killed = with(|seen| seen.guest.ended.push("kubelet ended with 137".to_owned()));
        assert_eq!(killed, ["kubelet ended with 137"]);
        assert_eq!(with(|seen| seen.pods.clear()), ["no Guaranteed pod was seen"]);
    }
}
