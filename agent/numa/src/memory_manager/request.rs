//! What memory and huge pages containers and pods ask the memory manager for. Pure: owns upstream's sums. Part of [`super`].

use std::collections::BTreeMap;

use gantry_model::pod::qos::{Qos, qos};
use gantry_model::pod::{Container, Pod, Role};
use gantry_model::quantity::{parse_milli, parse_units};

use super::MEMORY;

/// Bytes by resource.
pub(super) type Sizes = BTreeMap<String, u64>;

/// An amount that is no whole number of bytes, in upstream's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("[memorymanager] failed to represent quantity as int64")]
pub struct SizeError;

/// Whether it is memory, or huge pages.
pub(super) fn is_memory(resource: &str) -> bool {
    resource == MEMORY || resource.starts_with("hugepages-")
}

/// A guaranteed pod, but for one with numbers of its own: those are for PodLevelResourceManagers, which is off.
pub(super) fn is_managed(pod: &Pod) -> bool {
    !pod.has_own_amounts() && qos(pod) == Qos::Guaranteed
}

/// A request that is not written is its limit.
pub(super) fn of_container(container: &Container) -> Result<Sizes, SizeError> {
    let mut sizes = Sizes::new();
    let written = &container.written;
    for (resource, text) in written.limits.iter().chain(&written.requests) {
        if is_memory(resource) {
            sizes.insert(resource.clone(), bytes(text)?);
        }
    }
    Ok(sizes)
}

/// Exactly.
pub(super) fn bytes(text: &str) -> Result<u64, SizeError> {
    let whole = parse_units(text).map_err(|_| SizeError)?;
    // One that is too large in thousandths is a whole number.
    if parse_milli(text).is_ok_and(|milli| whole.checked_mul(1000) != Some(milli)) {
        return Err(SizeError);
    }
    u64::try_from(whole).map_err(|_| SizeError)
}

/// The most at any moment of the pod's life, of what its regular containers ask for. As upstream, what only an init
/// container asks for does not count.
pub(super) fn of_pod(pod: &Pod) -> Result<Sizes, SizeError> {
    let (mut sidecars, mut at_init, mut sizes) = (Sizes::new(), Sizes::new(), Sizes::new());
    for container in &pod.init_containers {
        for (resource, size) in of_container(container)? {
            let beside = sidecars.entry(resource.clone()).or_default();
            if container.role == Role::Sidecar {
                *beside = beside.saturating_add(size);
            } else {
                let most = at_init.entry(resource).or_default();
                *most = (*most).max(beside.saturating_add(size));
            }
        }
    }
    for container in &pod.containers {
        for (resource, size) in of_container(container)? {
            let sum = sizes.entry(resource).or_default();
            *sum = sum.saturating_add(size);
        }
    }
    for (resource, size) in &mut sizes {
        let get = |sizes: &Sizes| sizes.get(resource).copied().unwrap_or(0);
        *size = size.saturating_add(get(&sidecars)).max(get(&at_init));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Requirements;
    use gantry_model::testing::{in_role, pod};

    use super::*;

    fn container(role: Role, list: &[(&str, &str)]) -> Container {
        let requests = list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let written = Requirements { requests, ..Requirements::default() };
        Container { written, ..in_role("c", role) }
    }

    fn sum(list: &[(Role, &[(&str, &str)])]) -> Sizes {
        let all = list.iter().map(|(role, list)| container(*role, list));
        let (init_containers, containers) = all.partition(|container| container.role != Role::Regular);
        of_pod(&Pod { init_containers, containers, ..pod() }).unwrap()
    }

    fn sizes(list: &[(&str, u64)]) -> Sizes {
        list.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
    }

    /// Upstream's table of Test_getPodRequestedResources.
    #[test]
    fn a_pod_asks_for_its_peak_by_resource() {
        use Role::{Init, Regular, Sidecar};
        let both = |memory: &'static str, huge: &'static str| [("memory", memory), ("hugepages-1Gi", huge)];
        let (a, b) = (both("1", "2"), both("3", "4"));
        assert_eq!(
            sum(&[(Init, &b), (Init, &a), (Regular, &both("1", "1"))]),
            sizes(&[("memory", 3), ("hugepages-1Gi", 4)])
        );
        assert_eq!(
            sum(&[(Init, &a), (Regular, &b), (Regular, &both("1", "1"))]),
            sizes(&[("memory", 4), ("hugepages-1Gi", 5)])
        );
        assert_eq!(
            sum(&[(Init, &both("9", "1")), (Regular, &both("1", "9"))]),
            sizes(&[("memory", 9), ("hugepages-1Gi", 9)])
        );
        // Two sidecars of 1 and 2; an init container of 4 between them, or of 7 behind them.
        let one = |memory: &'static str| [("memory", memory)];
        let list: [(Role, &[(&str, &str)]); 4] =
            [(Sidecar, &one("1")), (Init, &one("4")), (Sidecar, &one("2")), (Regular, &one("3"))];
        assert_eq!(sum(&list), sizes(&[("memory", 6)]));
        let list: [(Role, &[(&str, &str)]); 4] =
            [(Sidecar, &one("1")), (Sidecar, &one("2")), (Init, &one("7")), (Regular, &one("3"))];
        assert_eq!(sum(&list), sizes(&[("memory", 10)]));
        // What only an init container asks for.
        assert_eq!(sum(&[(Init, &both("1", "1")), (Regular, &one("1"))]), sizes(&[("memory", 1)]));
    }

    #[test]
    fn a_limit_is_a_request_and_other_resources_are_none() {
        let list = [("cpu", "1"), ("memory", "1Gi"), ("example.com/x", "1")];
        let mut container = container(Role::Regular, &list);
        container.written.limits.insert("memory".into(), "2Gi".into());
        container.written.limits.insert("hugepages-2Mi".into(), "4Mi".into());
        assert_eq!(of_container(&container), Ok(sizes(&[("memory", 1 << 30), ("hugepages-2Mi", 4 << 20)])));
    }

    #[test]
    fn a_part_of_a_byte_is_no_size() {
        for (text, size) in [("100m", None), ("1.5", None), ("1.5Ki", Some(1536)), ("7Ei", Some(7 << 60))] {
            assert_eq!(bytes(text).ok(), size, "{text}");
        }
        let message = "[memorymanager] failed to represent quantity as int64";
        assert_eq!(
            of_container(&container(Role::Regular, &[("memory", "1m")])).unwrap_err().to_string(),
            message
        );
    }
}
