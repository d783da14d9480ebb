//! Upstream's tables for the policies, as facts.

use super::*;
use crate::node_mask::NodeMask;

const ANY: TopologyHint = TopologyHint { nodes: None, preferred: true };
const NEVER: TopologyHint = TopologyHint { nodes: None, preferred: false };

fn yes(nodes: &[u32]) -> TopologyHint {
    TopologyHint { nodes: Some(NodeMask::of(nodes.iter().copied())), preferred: true }
}

fn no(nodes: &[u32]) -> TopologyHint {
    TopologyHint { preferred: false, ..yes(nodes) }
}

fn four_nodes() -> NumaInfo {
    NumaInfo::new(BTreeMap::from([
        (0, vec![10, 11, 12, 12]),
        (1, vec![11, 10, 12, 12]),
        (2, vec![12, 12, 10, 11]),
        (3, vec![12, 12, 11, 10]),
    ]))
}

fn eight_nodes() -> NumaInfo {
    let row = |text: &str| text.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<u64>>();
    let rows = [
        "10 11 12 12 30 30 30 30",
        "11 10 12 12 30 30 30 30",
        "12 12 10 11 30 30 30 30",
        "12 12 11 10 30 30 30 30",
        "30 30 30 30 10 11 12 12",
        "30 30 30 30 11 10 12 12",
        "30 30 30 30 12 12 10 11",
        "30 30 30 30 12 12 13 10",
    ];
    NumaInfo::new((0..).zip(rows.map(row)).collect())
}

fn options(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn manager(policy: &str) -> TopologyManager {
    TopologyManager::new(policy, "container", &BTreeMap::new(), four_nodes()).unwrap()
}

/// One manager for each list, with one resource.
fn providers(lists: &[&[TopologyHint]]) -> Vec<Hints> {
    lists.iter().map(|list| Hints::from([("resource".to_owned(), Some(list.to_vec()))])).collect()
}

/// What all policies but `none` agree on.
fn common() -> Vec<(Vec<Hints>, TopologyHint)> {
    let mut one_manager = Hints::new();
    one_manager.insert("resource1".to_owned(), Some(vec![yes(&[1]), no(&[0, 1])]));
    one_manager.insert("resource2".to_owned(), Some(vec![yes(&[0]), yes(&[1]), no(&[0, 1])]));
    let mut with_none = providers(&[&[yes(&[1])]]);
    with_none.push(Hints::new());
    vec![
        (providers(&[&[yes(&[0])], &[yes(&[0])]]), yes(&[0])),
        (with_none, yes(&[1])),
        (providers(&[&[yes(&[0]), yes(&[1])], &[yes(&[1])]]), yes(&[1])),
        (providers(&[&[yes(&[0]), yes(&[1])], &[yes(&[0]), no(&[0, 1])]]), yes(&[0])),
        (providers(&[&[yes(&[1]), no(&[0, 1])], &[yes(&[0]), yes(&[1]), no(&[0, 1])]]), yes(&[1])),
        (vec![one_manager], yes(&[1])),
    ]
}

/// Without a say of any manager, and without a way.
fn without_lists() -> Vec<(Vec<Hints>, bool)> {
    let one = |list: Option<Vec<TopologyHint>>| vec![Hints::from([("resource".to_owned(), list)])];
    vec![
        (vec![], true),
        (vec![Hints::new()], true),
        (one(None), true),
        (one(Some(vec![])), false),
        (one(Some(vec![ANY])), true),
        (one(Some(vec![NEVER])), false),
        (providers(&[&[yes(&[0])], &[yes(&[1])]]), false),
    ]
}

/// What is not preferred, with the nodes as close to the widest need as they can be.
fn best_effort() -> Vec<(Vec<Hints>, TopologyHint)> {
    let wide = [no(&[0, 1, 2, 3]), no(&[0, 1])];
    vec![
        (providers(&[&[yes(&[0, 1]), yes(&[0, 2])], &[yes(&[0, 1]), yes(&[0, 2])]]), yes(&[0, 1])),
        (providers(&[&[yes(&[0])], &[no(&[0])]]), no(&[0])),
        (providers(&[&[yes(&[1])], &[yes(&[0, 1])]]), no(&[1])),
        (providers(&[&[yes(&[0]), yes(&[1])], &[no(&[0, 1])]]), no(&[0])),
        (providers(&[&wide, &[no(&[0, 1])]]), no(&[0, 1])),
        (providers(&[&wide, &[no(&[0, 3])]]), no(&[0, 3])),
        (providers(&[&wide, &[no(&[1, 2])]]), no(&[1, 2])),
        (providers(&[&wide, &[no(&[2, 3])]]), no(&[2, 3])),
        (providers(&[&wide, &[no(&[1, 2]), no(&[2, 3])]]), no(&[1, 2])),
        (providers(&[&wide, &[no(&[1, 2, 3]), no(&[1, 2]), no(&[1, 3]), no(&[2, 3])]]), no(&[1, 2])),
    ]
}

#[test]
fn best_effort_lets_every_pod_run_and_restricted_the_preferred() {
    let all = |preferred| TopologyHint { preferred, ..yes(&[0, 1, 2, 3]) };
    let without = without_lists().into_iter().map(|(hints, preferred)| (hints, all(preferred)));
    for (hints, expected) in common().into_iter().chain(best_effort()).chain(without) {
        assert_eq!(manager("best-effort").merge(&hints), (expected, true), "{hints:?}");
        assert_eq!(manager("restricted").merge(&hints), (expected, expected.preferred), "{hints:?}");
    }
}

#[test]
fn with_a_single_node_all_is_on_one_or_nowhere() {
    let mut hints: Vec<_> = common();
    hints.extend(without_lists().into_iter().map(|(hints, ok)| (hints, if ok { ANY } else { NEVER })));
    hints.extend([
        (providers(&[&[yes(&[0])], &[no(&[0])]]), NEVER),
        (providers(&[&[yes(&[0]), yes(&[1])], &[no(&[0, 1])]]), NEVER),
        (providers(&[&[yes(&[0, 1])], &[yes(&[0]), yes(&[1]), no(&[0, 1])]]), NEVER),
    ]);
    for (hints, expected) in hints {
        assert_eq!(manager("single-numa-node").merge(&hints), (expected, expected.preferred), "{hints:?}");
    }
}

#[test]
fn on_one_node_a_single_node_is_any() {
    let one = NumaInfo::new(BTreeMap::from([(0, vec![10])]));
    let manager = TopologyManager::new("single-numa-node", "pod", &BTreeMap::new(), one).unwrap();
    assert_eq!(manager.merge(&providers(&[&[yes(&[0])]])), (ANY, true));
    assert_eq!(manager.scope(), TopologyScope::Pod);
}

#[test]
fn the_closest_nodes_are_preferred_when_asked_for() {
    let closest = options(&[("prefer-closest-numa-nodes", "true")]);
    let wide = [no(&[0, 1, 2, 3]), no(&[0, 1])];
    let list = [yes(&[0, 4]), yes(&[0, 2])];
    let either = [yes(&[4]), yes(&[0, 2])];
    for policy in ["best-effort", "restricted"] {
        let manager = TopologyManager::new(policy, "container", &closest, eight_nodes()).unwrap();
        assert!(manager.options().prefer_closest);
        for (hints, expected) in [
            (providers(&[&list, &list]), yes(&[0, 2])),
            (providers(&[&either, &either]), yes(&[4])),
            (providers(&[&wide, &[no(&[1, 2]), no(&[2, 3])]]), no(&[2, 3])),
            (providers(&[&wide, &[no(&[1, 2, 3]), no(&[1, 2]), no(&[1, 3]), no(&[2, 3])]]), no(&[2, 3])),
        ] {
            assert_eq!(manager.merge(&hints).0, expected, "{policy} {hints:?}");
        }
    }
}

#[test]
fn none_asks_nobody_and_lets_every_pod_run() {
    let (unknown, many) = (options(&[("unknown", "x")]), BTreeMap::from_iter((0..20).map(|n| (n, vec![]))));
    let manager = TopologyManager::new("none", "unknown", &unknown, NumaInfo::new(many)).unwrap();
    assert_eq!(manager.merge(&providers(&[&[NEVER]])), (TopologyHint::default(), true));
    assert_eq!(manager.policy(), TopologyPolicy::None);
}

#[test]
fn what_a_manager_cannot_be_made_of_is_told_in_upstreams_words() {
    let numa = |count| NumaInfo::new((0..count).map(|node| (node, vec![])).collect());
    let closest = [("prefer-closest-numa-nodes", "true")];
    for (policy, scope, list, numa, message) in [
        ("unknown", "container", &[][..], numa(2), "unknown policy: \"unknown\""),
        ("restricted", "node", &[], numa(2), "unknown scope: \"node\""),
        ("restricted", "pod", &[("x", "1")], numa(2), "unknown Topology Manager Policy option: \"x\""),
        ("best-effort", "pod", &[], numa(9), "unsupported on machines with more than 8 NUMA Nodes"),
        (
            "best-effort",
            "pod",
            &[("max-allowable-numa-nodes", "9")],
            numa(10),
            "unsupported on machines with more than 9 NUMA Nodes",
        ),
        (
            "best-effort",
            "pod",
            &closest,
            numa(1),
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor",
        ),
    ] {
        let error = TopologyManager::new(policy, scope, &options(list), numa).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let nine = options(&[("max-allowable-numa-nodes", "9")]);
    TopologyManager::new("best-effort", "pod", &nine, numa(9)).unwrap();
}

#[test]
fn names_are_those_of_the_configuration() {
    for (name, aligned) in
        [("none", false), ("best-effort", false), ("restricted", false), ("single-numa-node", true)]
    {
        let policy = manager(name).policy();
        assert_eq!((policy.name(), policy.guarantees_alignment()), (name, aligned));
    }
    assert_eq!(TopologyScope::default().name(), "container");
}
