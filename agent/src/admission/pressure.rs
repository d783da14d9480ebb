//! Whether a node that runs short takes a pod in. Pure: owns the rules. Called by [`crate::pod_workers`].

use gantry_model::pod::Pod;
use gantry_model::pod::qos::{Qos, qos};
use gantry_model::signal::{Pressure, Pressures};

use super::{Rejection, Taint, is_critical, labels};

/// A critical pod always; for want of memory alone all but those that ask for nothing and do not bear it.
///
/// # Errors
/// The rejection, in upstream's words.
pub(crate) fn under(pod: &Pod, pressures: &Pressures) -> Result<(), Rejection> {
    if pressures.is_empty() || is_critical(pod) {
        return Ok(());
    }
    if *pressures == Pressures::from([Pressure::Memory]) {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        };
        if qos(pod) != Qos::BestEffort || labels::tolerates(pod, &taint) {
            return Ok(());
        }
    }
    let all: Vec<&str> = pressures.iter().map(|pressure| pressure.as_str()).collect();
    Err(Rejection::new("Evicted", format!("The node had condition: [{}]. ", all.join(" "))))
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::placement::{Placement, Toleration};
    use gantry_model::pod::{Container, Origin, Resources};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn words(pod: &Pod, pressures: &[Pressure]) -> String {
        let pressures = pressures.iter().copied().collect();
        under(pod, &pressures).err().map_or_else(String::new, |rejection| rejection.to_string())
    }

    #[test]
    fn memory_alone_keeps_best_effort_pods_out_and_anything_else_all_but_critical_ones() {
        let poor = pod();
        let resources = Resources { memory_request: Some(1), ..Resources::default() };
        let asking = Pod { containers: vec![Container { resources, ..container("web") }], ..pod() };
        let bears = |key: &str| {
            let toleration = Toleration { key: key.to_owned(), exists: true, ..Toleration::default() };
            Pod { placement: Placement { tolerations: vec![toleration], ..Placement::default() }, ..pod() }
        };
        let critical =
            Pod { placement: Placement { priority: Some(2_000_000_000), ..Placement::default() }, ..pod() };
        let (memory, disk) = ([Pressure::Memory], [Pressure::Disk]);
        assert_eq!(words(&poor, &[]), "");
        assert_eq!(words(&poor, &memory), "Evicted: The node had condition: [MemoryPressure]. ");
        assert_eq!(words(&asking, &memory), "");
        assert_eq!(words(&bears("node.kubernetes.io/memory-pressure"), &memory), "");
        assert_ne!(words(&bears("node.kubernetes.io/disk-pressure"), &memory), "");
        assert_eq!(words(&asking, &disk), "Evicted: The node had condition: [DiskPressure]. ");
        assert_ne!(words(&bears("node.kubernetes.io/disk-pressure"), &disk), "");
        assert_eq!(
            words(&asking, &[Pressure::Pid, Pressure::Memory]),
            "Evicted: The node had condition: [MemoryPressure PIDPressure]. "
        );
        for kept in [critical, Pod { origin: Origin::Static, ..pod() }] {
            assert_eq!(words(&kept, &[Pressure::Memory, Pressure::Disk, Pressure::Pid]), "");
        }
    }
}
