//! Changes message by message.

use super::*;
use crate::nft::{Match, TableLayout, Verdict};

const T: &str = "t";
const V4: &str = "pods-10.0.0.0/24";

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn layout() -> MemberLayout {
    let rule = |subnet: IpNet, set| Rule {
        matches: vec![Match::FromSet { v4: subnet.addr().is_ipv4(), set }],
        verdict: Verdict::Masquerade,
    };
    MemberLayout { frame: TableLayout { table: T, chains: Vec::new() }, chain: "pods", rule }
}

fn installed(subnet: &str) -> InstalledRule {
    InstalledRule::of("pods", &set::subnet_set(net(subnet))).saying(&rule(&layout(), net(subnet)))
}

fn owner(number: u64) -> RuleOwner {
    RuleOwner::read(&format!("{:016x}-{number:016x}", 7)).unwrap()
}

fn held(number: u32, address: &str) -> HeldAddress {
    HeldAddress { key: Some(owner(1).key(number)), address: net(address), is_own: true }
}

fn crowd(others: usize, told: Option<usize>) -> Crowd {
    Crowd { others, is_counted: told.is_some(), told, has_set: true }
}

fn element(address: &str) -> Vec<u8> {
    set::address_key(address.parse().unwrap())
}

fn gone(set: &str, address: &str) -> BatchMessage {
    set::delete_element(T, set, &element(address))
}

fn entry_gone(number: u32) -> BatchMessage {
    set::delete_element(T, ATTACHMENTS, &owner(1).key(number))
}

fn counter(subnet: &str, count: usize) -> BatchMessage {
    let set = set::subnet_set(net(subnet));
    set::new_element(T, ATTACHMENTS, &counter_key(net(subnet)), &format!("{count} {set}"))
}

fn counter_gone(subnet: &str) -> BatchMessage {
    set::delete_element(T, ATTACHMENTS, &counter_key(net(subnet)))
}

fn change_for(
    found: &[InstalledRule],
    holding: &Holding,
    addresses: &[&str],
    taken: &[&str],
) -> (RuleChange, Vec<BatchMessage>) {
    let addresses: BTreeSet<IpNet> = addresses.iter().map(|address| net(address)).collect();
    let taken: Vec<IpNet> = taken.iter().map(|address| net(address)).collect();
    let wanted = Wanted { owner: &owner(1), pod: "shop/web", addresses: &addresses, taken: &taken };
    let wanted = (!addresses.is_empty()).then_some(&wanted);
    let mut change = change(&layout(), found, holding, wanted);
    let messages = std::mem::take(&mut change.sets.change);
    (change, messages)
}

/// The two elements of an address, the first of the attachment.
fn given(address: &str, key: &str) -> [BatchMessage; 2] {
    let set = set::subnet_set(net(address).trunc());
    let comment = format!("{} shop/web", owner(1).prefix());
    [
        set::new_element(T, ATTACHMENTS, &owner(1).key(0), &format!("{address} shop/web")),
        set::new_element(T, &set, &element(key), &comment),
    ]
}

#[test]
fn the_first_pod_of_a_subnet_brings_set_rule_and_counter() {
    let crowds = [(net("10.0.0.0/24"), Crowd { others: 0, is_counted: false, told: None, has_set: false })];
    let holding = Holding { crowds: crowds.into(), ..Holding::default() };
    let (change, messages) = change_for(&[], &holding, &["10.0.0.5/24"], &[]);
    assert!(change.sets.is_add && change.remove.is_empty());
    assert_eq!(change.add, [("pods", rule(&layout(), net("10.0.0.0/24")), V4.to_owned())]);
    let marks = set::new_set(T, ATTACHMENTS, KeyType::Marks);
    assert_eq!(change.sets.make, [marks, set::new_set(T, V4, KeyType::Ipv4)]);
    let [entry, member] = given("10.0.0.5/24", "10.0.0.5");
    assert_eq!(messages, [counter("10.0.0.0/24", 1), entry, member]);
}

#[test]
fn the_next_pod_is_elements_alone() {
    let holding = Holding { crowds: [(net("10.0.0.0/24"), crowd(3, Some(3)))].into(), ..Holding::default() };
    let (change, messages) = change_for(&[installed("10.0.0.0/24")], &holding, &["10.0.0.5/24"], &[]);
    assert!(change.add.is_empty() && change.remove.is_empty());
    assert_eq!(change.sets.make, [set::new_set(T, ATTACHMENTS, KeyType::Marks)]);
    let [entry, member] = given("10.0.0.5/24", "10.0.0.5");
    assert_eq!(messages, [counter_gone("10.0.0.0/24"), counter("10.0.0.0/24", 4), entry, member]);
}

#[test]
fn an_address_that_another_attachment_had_is_the_newcomers() {
    let holding = Holding { crowds: [(net("10.0.0.0/24"), crowd(3, Some(3)))].into(), ..Holding::default() };
    let (_, messages) = change_for(&[installed("10.0.0.0/24")], &holding, &["10.0.0.5/24"], &["10.0.0.5/24"]);
    let [entry, member] = given("10.0.0.5/24", "10.0.0.5");
    assert_eq!(messages, [gone(V4, "10.0.0.5"), entry, member], "and there are as many as before");
}

#[test]
fn a_rule_that_says_something_else_is_written_anew() {
    let drop = Rule { matches: Vec::new(), verdict: Verdict::Drop };
    let wrong = InstalledRule::of("pods", V4).saying(&drop);
    let holding = Holding { crowds: [(net("10.0.0.0/24"), crowd(3, Some(3)))].into(), ..Holding::default() };
    let (change, _) = change_for(std::slice::from_ref(&wrong), &holding, &["10.0.0.5/24"], &[]);
    assert_eq!(change.remove, [wrong]);
    assert_eq!(change.add.len(), 1);
}

#[test]
fn a_second_add_replaces_what_the_first_one_gave() {
    let holding = Holding {
        held: vec![held(0, "10.0.0.5/24"), held(1, "10.9.0.5/24")],
        crowds: [(net("10.0.0.0/24"), crowd(0, Some(1))), (net("10.9.0.0/24"), crowd(0, Some(1)))].into(),
        rules: vec![InstalledRule::of("pods", &owner(1).prefix())],
    };
    let found = [installed("10.0.0.0/24"), installed("10.9.0.0/24")];
    let (change, messages) = change_for(&found, &holding, &["10.0.0.6/24"], &[]);
    assert_eq!(change.remove, [holding.rules[0].clone(), found[1].clone()]);
    let [entry, member] = given("10.0.0.6/24", "10.0.0.6");
    let expected = [
        entry_gone(0),
        entry_gone(1),
        gone(V4, "10.0.0.5"),
        counter_gone("10.9.0.0/24"),
        set::delete_set(T, "pods-10.9.0.0/24"),
        entry,
        member,
    ];
    assert_eq!(messages, expected);
}

#[test]
fn a_pod_that_goes_leaves_others_alone() {
    let mut holding = Holding {
        held: vec![held(0, "10.0.0.5/24")],
        crowds: [(net("10.0.0.0/24"), crowd(3, Some(4)))].into(),
        ..Holding::default()
    };
    let found = [installed("10.0.0.0/24")];
    let (change, messages) = change_for(&found, &holding, &[], &[]);
    assert!(change.remove.is_empty() && !change.sets.is_add);
    let counter = [counter_gone("10.0.0.0/24"), counter("10.0.0.0/24", 3)];
    let [gone_first, new] = counter.clone();
    assert_eq!(messages, [entry_gone(0), gone(V4, "10.0.0.5"), gone_first, new]);

    holding.held[0].is_own = false;
    holding.crowds = [(net("10.0.0.0/24"), crowd(4, Some(4)))].into();
    let (_, messages) = change_for(&found, &holding, &[], &[]);
    assert_eq!(messages, [entry_gone(0)], "its address is another one's by now");
}

#[test]
fn the_last_pod_of_a_subnet_takes_rule_and_set_with_it() {
    let holding = Holding {
        held: vec![held(0, "10.0.0.5/24")],
        crowds: [(net("10.0.0.0/24"), crowd(0, Some(1)))].into(),
        ..Holding::default()
    };
    let own = [entry_gone(0), counter_gone("10.0.0.0/24"), set::delete_set(T, V4)];
    let found = [installed("10.0.0.0/24"), installed("fd00::/64")];
    let (change, messages) = change_for(&found, &holding, &[], &[]);
    assert_eq!(change.remove, [found[0].clone()]);
    assert_eq!(messages, own);

    // Rules of an earlier version keep the table.
    let found = [installed("10.0.0.0/24"), InstalledRule::of("pods", &owner(2).prefix())];
    let (change, messages) = change_for(&found, &holding, &[], &[]);
    assert_eq!(change.remove, [found[0].clone()]);
    assert_eq!(messages, [&own[..], &[set::delete_set(T, ATTACHMENTS)]].concat());

    let crowd = Crowd { has_set: false, ..crowd(0, Some(1)) };
    let holding = Holding { crowds: [(net("10.0.0.0/24"), crowd)].into(), ..holding };
    let (_, messages) = change_for(&found[1..], &holding, &[], &[]);
    assert_eq!(messages, [&own[..2], &[set::delete_set(T, ATTACHMENTS)]].concat(), "it went by hand");
}

#[test]
fn what_is_held_is_told_by_elements_of_both_kinds() {
    let entry =
        |owner: &RuleOwner, comment: &str| KernelElement { key: owner.key(0), comment: comment.into() };
    let member =
        |address: &str, comment: &str| KernelElement { key: element(address), comment: comment.into() };
    let entries = [
        entry(&owner(1), "10.0.0.5/24 shop/web"),
        entry(&owner(2), "10.0.0.6/24 shop/db"),
        KernelElement { key: counter_key(net("10.0.0.0/24")), comment: format!("3 {V4}") },
    ];
    let of = |number: u64| format!("{} pod", owner(number).prefix());
    let sets = [(
        net("10.0.0.0/24"),
        vec![
            member("10.0.0.5", &of(1)),
            member("10.0.0.6", &of(2)),
            member("10.0.0.7", &of(1)),
            member("10.0.0.8", ""),
        ],
    )];
    let lone = |address: &str| HeldAddress { key: None, address: net(address), is_own: true };
    let told = HeldAddress { is_own: false, ..held(0, "10.0.0.5/24") };
    assert_eq!(
        all_held(&entries, &sets, |of| *of == owner(1)),
        [lone("10.0.0.5/24"), lone("10.0.0.7/24"), told]
    );
    assert_eq!(count_of(&entries[2]), Some(3));
    assert_eq!(address_of(&entries[2]), None);
}

#[test]
fn check_wants_one_right_rule_and_the_pods_own_addresses() {
    let subnet = net("10.0.0.0/24");
    let right = installed("10.0.0.0/24");
    let drop = InstalledRule::of("pods", V4).saying(&Rule { matches: Vec::new(), verdict: Verdict::Drop });
    let check =
        |found: &[InstalledRule]| check_rule(&layout(), found, subnet).map_err(|error| error.to_string());
    assert_eq!(check(&[installed("fd00::/64"), right.clone()]), Ok(()));
    for (found, expected) in [
        (vec![], "chain pods has 0 rules of subnet 10.0.0.0/24, not 1"),
        (vec![right.clone(), right], "chain pods has 2 rules of subnet 10.0.0.0/24, not 1"),
        (vec![drop], "a rule of subnet 10.0.0.0/24 in chain pods says something else"),
    ] {
        assert_eq!(check(&found), Err(expected.into()));
    }

    let wanted: BTreeSet<_> = [net("10.0.0.5/24")].into();
    let check = |held: &[HeldAddress]| check_addresses(held, &wanted).map_err(|error| error.to_string());
    let own = held(0, "10.0.0.5/24");
    assert_eq!(check(std::slice::from_ref(&own)), Ok(()));
    assert_eq!(check(&[]), Err("the pod has the addresses [], not [10.0.0.5/24]".into()));
    assert_eq!(
        check(&[own.clone(), held(1, "fd00::5/64")]),
        Err("the pod has the addresses [10.0.0.5/24 fd00::5/64], not [10.0.0.5/24]".into())
    );
    let lost = HeldAddress { is_own: false, ..own };
    assert_eq!(check(&[lost]), Err(format!("set {V4} has no 10.0.0.5 of the pod")));
}
