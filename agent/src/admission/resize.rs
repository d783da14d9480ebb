//! Which resizes this node never does, in upstream's words. Pure: owns these refusals; whether there is room is
//! [`super::admit`]'s, as for a new pod. Called by [`crate::pod_workers`].

use gantry_model::allocation::amount;
use gantry_model::pod::qos::{Qos, qos};
use gantry_model::pod::{Container, Pod};

use super::is_critical;

/// What of the node stands in the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResizeRules {
    /// cpuManagerPolicy gives guaranteed pods cores of their own.
    pub static_cpu: bool,
    /// memoryManagerPolicy gives them memory of a NUMA node.
    pub static_memory: bool,
    /// Pods may swap, by what they ask for.
    pub limited_swap: bool,
    /// The gate `InPlacePodLevelResourcesVerticalScaling` is closed.
    pub no_pod_level: bool,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Infeasible {
    /// Of the condition.
    pub(crate) message: String,
    /// Of the metric.
    pub(crate) detail: &'static str,
}

/// # Errors
/// Why a pod that was `allocated` something never comes to what it wants.
pub(crate) fn feasible(wanted: &Pod, allocated: &Pod, rules: ResizeRules) -> Result<(), Infeasible> {
    let pairs = || wanted.all_containers().filter_map(|new| Some((new, allocated.container(&new.name)?)));
    let swaps = |pod: &Pod, container: &Container| rules.limited_swap && may_swap(pod, container);
    let of_swap = |(new, old): (&Container, &Container)| {
        request(new, "memory") != request(old, "memory")
            && !old.resize.memory_restarts
            && (swaps(wanted, new) || swaps(allocated, old))
    };
    if pairs().any(of_swap) {
        let message = "In-place resize of containers with swap is not supported.".to_owned();
        return Err(Infeasible { message, detail: "swap_limitation" });
    }
    if rules.no_pod_level && wanted.resources != allocated.resources {
        let message = "InPlacePodLevelResourcesVerticalScaling is disabled".to_owned();
        return Err(Infeasible { message, detail: "plr_feature_gate_off" });
    }
    if qos(wanted) != Qos::Guaranteed {
        return Ok(());
    }
    for (applies, resource, manager, detail) in [
        (
            rules.static_cpu,
            "cpu",
            "CPU Manager policy \"static\"",
            "guaranteed_pod_cpu_manager_static_policy",
        ),
        (
            rules.static_memory,
            "memory",
            "Memory Manager policy \"Static\"",
            "guaranteed_pod_memory_manager_static_policy",
        ),
    ] {
        if applies && pairs().any(|(new, old)| request(new, resource) != request(old, resource)) {
            let message = format!("Resize is infeasible for Guaranteed Pods alongside {manager}");
            return Err(Infeasible { message, detail });
        }
    }
    Ok(())
}

fn request(container: &Container, name: &str) -> i64 {
    container.written.requests.get(name).map_or(0, |text| amount(name, text))
}

/// By `GetContainerSwapBehavior`, of a node whose pods may. Who asks for all that it may have is not to be slowed.
pub(crate) fn may_swap(pod: &Pod, container: &Container) -> bool {
    let of = container.resources;
    let asks_for_all = of.memory_request.unwrap_or(0) == of.memory_limit.unwrap_or(0);
    !is_critical(pod) && qos(pod) == Qos::Burstable && !asks_for_all
}

#[cfg(test)]
mod tests {
    use gantry_model::allocation::resources;
    use gantry_model::pod::{Origin, Requirements, ResizePolicy};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn of(cpu: &str, memory: &str, limit: &str, memory_restarts: bool) -> Pod {
        let texts = |cpu: &str, memory: &str| {
            [("cpu".to_owned(), cpu.to_owned()), ("memory".to_owned(), memory.to_owned())].into()
        };
        let written = Requirements { requests: texts(cpu, memory), limits: texts(cpu, limit) };
        let resize = ResizePolicy { memory_restarts, ..ResizePolicy::default() };
        let one = Container { resources: resources(&written), written, resize, ..container("a") };
        Pod { containers: vec![one], origin: Origin::Api, ..pod() }
    }

    fn why(from: &Pod, to: &Pod, rules: ResizeRules) -> Option<(String, &'static str)> {
        feasible(to, from, rules).err().map(|why| (why.message, why.detail))
    }

    #[test]
    fn guaranteed_pods_keep_what_managers_gave_them() {
        let rules = ResizeRules { static_cpu: true, static_memory: true, ..ResizeRules::default() };
        let (small, cpu) = (of("1", "1Gi", "1Gi", false), of("2", "1Gi", "1Gi", false));
        let (message, detail) = why(&small, &cpu, rules).unwrap();
        assert_eq!(
            message,
            "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
        );
        assert_eq!(detail, "guaranteed_pod_cpu_manager_static_policy");
        let (message, detail) = why(&small, &of("1", "2Gi", "2Gi", false), rules).unwrap();
        assert_eq!(
            message,
            "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""
        );
        assert_eq!(detail, "guaranteed_pod_memory_manager_static_policy");
        assert_eq!(why(&small, &cpu, ResizeRules { static_cpu: false, ..rules }), None);
        // Others have none of their own.
        assert_eq!(why(&of("1", "1Gi", "2Gi", false), &of("2", "1Gi", "2Gi", false), rules), None);
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole_stays_where_its_gate_is_closed() {
        let rules = ResizeRules { no_pod_level: true, ..ResizeRules::default() };
        let (small, cpu) = (of("1", "1Gi", "1Gi", false), of("2", "1Gi", "1Gi", false));
        let asks = |cpu: &str| {
            let requests = [("cpu".to_owned(), cpu.to_owned())].into();
            Pod { resources: Some(Requirements { requests, ..Requirements::default() }), ..small.clone() }
        };
        let (message, detail) = why(&asks("1"), &asks("2"), rules).unwrap();
        assert_eq!(message, "InPlacePodLevelResourcesVerticalScaling is disabled");
        assert_eq!(detail, "plr_feature_gate_off");
        assert_eq!(why(&asks("1"), &asks("2"), ResizeRules::default()), None);
        assert_eq!(why(&small, &cpu, rules), None, "its containers may");
    }

    #[test]
    fn what_may_swap_keeps_its_memory_unless_it_starts_again() {
        let rules = ResizeRules { limited_swap: true, ..ResizeRules::default() };
        let (small, large) = (of("1", "1Gi", "4Gi", false), of("1", "2Gi", "4Gi", false));
        let (message, detail) = why(&small, &large, rules).unwrap();
        assert_eq!(
            (message.as_str(), detail),
            ("In-place resize of containers with swap is not supported.", "swap_limitation")
        );
        assert_eq!(why(&small, &large, ResizeRules::default()), None);
        assert_eq!(why(&of("1", "1Gi", "4Gi", true), &of("1", "2Gi", "4Gi", true), rules), None);
        assert_eq!(why(&small, &of("2", "1Gi", "4Gi", false), rules), None);
        let critical = |pod: Pod| Pod { origin: Origin::Static, ..pod };
        assert_eq!(why(&critical(small), &critical(large), rules), None);
    }
}
