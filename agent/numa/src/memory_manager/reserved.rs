//! `reservedMemory` of the kubelet's configuration, against the machine and Node Allocatable. Pure: owns upstream's checks
//! and their words. Part of [`super`].

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::quantity::{binary, like};

use super::machine::NumaMemory;
use super::request::{self, Sizes};

/// One entry of `reservedMemory`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryReservation {
    /// `numaNode`.
    pub node: i64,
    /// Amounts as written, by resource.
    pub limits: BTreeMap<String, String>,
}

/// Not for pods: bytes by node and resource.
pub(super) type SystemReserved = BTreeMap<u32, Sizes>;

/// What is wrong with it, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReservedError {
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    NoNode(i64),
    #[error(
        "the total amount {reserved:?} of type {resource:?} is not equal to the value {allocatable:?} determined by Node \
         Allocatable feature"
    )]
    NotEqual { resource: String, reserved: String, allocatable: String },
    #[error("could not covert a variable of type Quantity to int64")]
    Size,
}

/// All of one resource.
struct Total<'a> {
    bytes: i64,
    /// Its sum is printed in this one's form.
    form: &'a str,
}

/// By node, when all of them together reserve what Node Allocatable does (bytes by resource).
pub(super) fn check(
    nodes: &[NumaMemory],
    node_allocatable: &BTreeMap<String, i64>,
    reservations: &[MemoryReservation],
) -> Result<SystemReserved, ReservedError> {
    let mut reserved: SystemReserved = nodes.iter().map(|node| (node.node, Sizes::new())).collect();
    let mut totals: BTreeMap<&str, Total<'_>> = BTreeMap::new();
    for MemoryReservation { node, limits } in reservations {
        let own = u32::try_from(*node).ok().and_then(|node| reserved.get_mut(&node));
        let own = own.ok_or(ReservedError::NoNode(*node))?;
        for (resource, text) in limits {
            let size = request::bytes(text).map_err(|_| ReservedError::Size)?;
            let bytes = i64::try_from(size).map_err(|_| ReservedError::Size)?;
            let total = totals.entry(resource).or_insert(Total { bytes: 0, form: text });
            total.bytes = total.bytes.saturating_add(bytes);
            if bytes > 0 {
                total.form = text;
            }
            own.insert(resource.clone(), size);
        }
    }
    let of_node = node_allocatable.keys().map(String::as_str).filter(|name| request::is_memory(name));
    let names: BTreeSet<&str> = totals.keys().copied().chain(of_node).collect();
    for resource in names {
        let total = totals.get(resource);
        let allocatable = node_allocatable.get(resource).copied().unwrap_or(0);
        if total.map_or(0, |total| total.bytes) != allocatable {
            let reserved = total.map_or_else(|| "0".to_owned(), |total| like(total.bytes, total.form));
            let (resource, allocatable) = (resource.to_owned(), binary(allocatable));
            return Err(ReservedError::NotEqual { resource, reserved, allocatable });
        }
    }
    Ok(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_texts(
        allocatable: &[(&str, i64)],
        list: &[(i64, &[(&str, &str)])],
    ) -> Result<SystemReserved, String> {
        let nodes = [0, 1].map(|node| NumaMemory { node, ..NumaMemory::default() });
        let allocatable = allocatable.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let limits = |list: &[(&str, &str)]| {
            list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let list: Vec<_> =
            list.iter().map(|(node, list)| MemoryReservation { node: *node, limits: limits(list) }).collect();
        check(&nodes, &allocatable, &list).map_err(|error| error.to_string())
    }

    fn not_equal(reserved: &str, resource: &str, allocatable: &str) -> String {
        format!(
            "the total amount {reserved:?} of type {resource:?} is not equal to the value {allocatable:?} determined by \
             Node Allocatable feature"
        )
    }

    /// Upstream's table of TestValidateReservedMemory.
    #[test]
    fn all_nodes_reserve_what_node_allocatable_does() {
        let node = |list: &[(&str, u64)]| -> Sizes {
            list.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
        };
        let none = BTreeMap::from([(0, Sizes::new()), (1, Sizes::new())]);
        assert_eq!(check_texts(&[], &[]), Ok(none.clone()));
        assert_eq!(check_texts(&[("cpu", 500), ("ephemeral-storage", 9)], &[]), Ok(none));
        check_texts(&[("memory", 0)], &[(0, &[("memory", "0")])]).unwrap();
        let all = [("memory", 17), ("hugepages-2Mi", 77), ("hugepages-1Gi", 13)];
        let first: &[(&str, &str)] = &[("memory", "12"), ("hugepages-2Mi", "70"), ("hugepages-1Gi", "13")];
        let second: &[(&str, &str)] = &[("memory", "5"), ("hugepages-2Mi", "7")];
        let expected = [
            (0, node(&[("memory", 12), ("hugepages-2Mi", 70), ("hugepages-1Gi", 13)])),
            (1, node(&[("memory", 5), ("hugepages-2Mi", 7)])),
        ];
        assert_eq!(check_texts(&all, &[(0, first), (1, second)]), Ok(BTreeMap::from(expected)));
        let less = [("memory", 17), ("hugepages-2Mi", 14), ("hugepages-1Gi", 13)];
        assert_eq!(
            check_texts(&less, &[(0, first), (1, second)]),
            Err(not_equal("77", "hugepages-2Mi", "14"))
        );
    }

    #[test]
    fn what_is_wrong_is_told_in_upstreams_words() {
        assert_eq!(check_texts(&[], &[(0, &[("memory", "12")])]), Err(not_equal("12", "memory", "0")));
        assert_eq!(check_texts(&[("hugepages-2Mi", 5)], &[]), Err(not_equal("0", "hugepages-2Mi", "5")));
        let gib = 1_i64 << 30;
        assert_eq!(
            check_texts(
                &[("memory", gib + (100 << 20))],
                &[(0, &[("memory", "512Mi")]), (1, &[("memory", "512Mi")])]
            ),
            Err(not_equal("1Gi", "memory", "1124Mi"))
        );
        let absent = |node| {
            format!(
                "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
            )
        };
        for node in [2, -1] {
            assert_eq!(check_texts(&[("memory", 5)], &[(node, &[("memory", "5")])]), Err(absent(node)));
        }
        let size = "could not covert a variable of type Quantity to int64";
        assert_eq!(check_texts(&[], &[(0, &[("memory", "1m")])]), Err(size.to_owned()));
    }
}
