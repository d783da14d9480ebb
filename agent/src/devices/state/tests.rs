//! The rules of choice and refusal.

use super::*;

const GPU: &str = "vendor.com/gpu";

fn uid(name: &str) -> PodUid {
    PodUid::parse(name).unwrap()
}

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn devices(names: &[&str]) -> BTreeMap<String, Device> {
    names.iter().map(|name| ((*name).to_owned(), Device { healthy: true, numa: Vec::new() })).collect()
}

/// With a plugin that offers these.
fn offering(names: &[&str]) -> (State, u64) {
    let mut state = State::default();
    let generation = state.connect(GPU, PluginOptions::default());
    assert!(state.list(GPU, generation, devices(names)).is_some());
    (state, generation)
}

fn request<'a>(
    pod: &'a PodUid,
    container: &'a str,
    count: usize,
    reusable: &'a BTreeSet<String>,
) -> Request<'a> {
    Request { pod, container, resource: GPU, count, reusable, nodes: None }
}

/// Chooses and allocates at once.
fn give(state: &mut State, pod: &PodUid, container: &str, count: usize) -> Result<BTreeSet<String>, String> {
    let none = BTreeSet::new();
    let request = request(pod, container, count, &none);
    let devices = state.choice(request)?.map(|choice| choice.pick(&[])).unwrap_or_default();
    state.reserve(request, &devices);
    assert!(state.allocate(request, &devices, DeviceOptions::default()));
    state.release(GPU, &devices);
    Ok(devices)
}

#[test]
fn no_device_is_given_twice_until_its_pod_is_over() {
    let (mut state, _) = offering(&["a", "b", "c"]);
    assert_eq!(give(&mut state, &uid("p"), "x", 2).unwrap(), ids(&["a", "b"]));
    assert_eq!(
        give(&mut state, &uid("q"), "x", 2).unwrap_err(),
        "requested number of devices unavailable for vendor.com/gpu. Requested: 2, Available: 1"
    );
    assert!(state.forget(&uid("p")));
    assert_eq!(give(&mut state, &uid("q"), "x", 3).unwrap(), ids(&["a", "b", "c"]));
    assert!(state.retain(&BTreeSet::new()) && !state.retain(&BTreeSet::new()));
}

#[test]
fn what_a_plugin_is_being_asked_for_is_nobody_elses() {
    let (mut state, _) = offering(&["a", "b"]);
    let (pod, none) = (uid("p"), BTreeSet::new());
    let (other, asked) = (uid("q"), ids(&["a"]));
    let of_other = request(&other, "x", 1, &none);
    state.reserve(of_other, &asked);
    let choice = state.choice(request(&pod, "x", 1, &none)).unwrap().unwrap();
    assert_eq!(choice.groups, [ids(&["b"])]);
    state.release(GPU, &ids(&["a"]));
    let choice = state.choice(request(&pod, "x", 1, &none)).unwrap().unwrap();
    assert_eq!(choice.groups, [ids(&["a", "b"])]);
    // The plugin answers when the pod has gone already.
    state.reserve(of_other, &asked);
    assert!(!state.forget(&other));
    assert!(!state.allocate(of_other, &asked, DeviceOptions::default()));
    assert_eq!(state.allocation(&other, "x", GPU), None);
}

/// #138446: what init containers had is used again.
#[test]
fn devices_of_init_containers_are_taken_first() {
    let (mut state, _) = offering(&["a", "b", "c"]);
    let pod = uid("p");
    let had = give(&mut state, &pod, "init", 2).unwrap();
    let choice = state.choice(request(&pod, "main", 3, &had)).unwrap().unwrap();
    assert_eq!((&choice.taken, choice.missing, &choice.groups), (&ids(&["a", "b"]), 1, &vec![ids(&["c"])]));
    assert_eq!(choice.pick(&[]), ids(&["a", "b", "c"]));
    let choice = state.choice(request(&pod, "main", 1, &had)).unwrap().unwrap();
    assert_eq!(choice.pick(&[]), ids(&["a"]));
}

#[test]
fn a_plugins_preference_counts_as_far_as_it_is_available() {
    let choice = Choice { taken: ids(&["r"]), groups: vec![ids(&["a", "b", "c"])], missing: 2 };
    let preferred = ["x", "c", "r"].map(str::to_owned);
    assert_eq!(choice.pick(&preferred), ids(&["r", "c", "a"]));
}

/// #109595, #125579: a pod that comes before its plugin is refused, and says why.
#[test]
fn refusals_are_in_upstreams_words() {
    let mut state = State::default();
    assert_eq!(
        give(&mut state, &uid("p"), "x", 1).unwrap_err(),
        "cannot allocate unregistered device vendor.com/gpu"
    );
    let (mut state, generation) = offering(&["a", "b"]);
    give(&mut state, &uid("p"), "x", 1).unwrap();
    let mut sick = devices(&["a", "b"]);
    sick.get_mut("a").unwrap().healthy = false;
    state.list(GPU, generation, sick);
    let (pod, none) = (uid("p"), BTreeSet::new());
    assert_eq!(
        state.choice(request(&pod, "x", 1, &none)).unwrap_err(),
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices vendor.com/gpu"
    );
    assert_eq!(
        state.choice(request(&pod, "x", 2, &none)).unwrap_err(),
        "pod \"p\" container \"x\" changed request for resource \"vendor.com/gpu\" from 1 to 2"
    );
    state.disconnect(GPU, generation, Duration::ZERO);
    assert_eq!(
        give(&mut state, &uid("q"), "x", 1).unwrap_err(),
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu"
    );
}

#[test]
fn the_node_tells_healthy_devices_and_0_of_a_resource_whose_plugin_stays_away() {
    let (mut state, generation) = offering(&["a", "b"]);
    let mut sick = devices(&["a", "b"]);
    sick.get_mut("a").unwrap().healthy = false;
    state.list(GPU, generation, sick);
    assert_eq!(state.amounts()[GPU], Amount { capacity: 2, allocatable: 1 });
    state.disconnect(GPU, generation, Duration::from_secs(10));
    assert_eq!(state.amounts()[GPU], Amount { capacity: 2, allocatable: 0 });
    assert!(!state.expire(STOP_GRACE) && state.is_device(GPU));
    assert!(state.expire(STOP_GRACE + Duration::from_secs(11)));
    assert_eq!(state.amounts()[GPU], Amount::default());
    assert!(!state.is_device(GPU));
}

#[test]
fn only_the_newest_plugin_of_a_resource_speaks_for_it() {
    let (mut state, old) = offering(&["a"]);
    let new = state.connect(GPU, PluginOptions::default());
    assert!(state.list(GPU, old, devices(&["z"])).is_none());
    assert!(!state.disconnect(GPU, old, Duration::ZERO));
    assert!(state.list(GPU, new, devices(&["a", "b"])).is_some());
    assert_eq!(state.amounts()[GPU], Amount { capacity: 2, allocatable: 2 });
}

/// #119248: until a plugin registers again the node offers nothing of its resource, and what pods have stays theirs.
#[test]
fn a_restart_keeps_what_pods_have() {
    let (mut state, generation) = offering(&["a", "b"]);
    let mut near = devices(&["a", "b"]);
    near.get_mut("a").unwrap().numa = vec![0, 1];
    state.list(GPU, generation, near);
    give(&mut state, &uid("p"), "x", 2).unwrap();
    let mut again = State::restore(state.checkpoint(), Duration::ZERO);
    assert_eq!(again.amounts()[GPU], Amount::default());
    let has = again.allocation(&uid("p"), "x", GPU).unwrap();
    let nodes = [(-1, vec!["b".to_owned()]), (0, vec!["a".to_owned()]), (1, vec!["a".to_owned()])];
    assert_eq!(has.devices, nodes.into());
    let generation = again.connect(GPU, PluginOptions::default());
    again.list(GPU, generation, devices(&["a", "b", "c"]));
    assert_eq!(give(&mut again, &uid("q"), "x", 1).unwrap(), ids(&["c"]));
}

#[test]
fn a_list_says_whether_it_changes_anything_and_whether_it_concerns_a_pod() {
    let (mut state, generation) = offering(&["a", "b"]);
    give(&mut state, &uid("p"), "x", 1).unwrap();
    let sick = |names: &[&str]| {
        let mut list = devices(&["a", "b"]);
        names.iter().for_each(|name| list.get_mut(*name).unwrap().healthy = false);
        list
    };
    let mut told = |list| state.list(GPU, generation, list).map(|change| (change.any, change.given));
    assert_eq!(told(sick(&[])), Some((false, false)));
    assert_eq!(told(sick(&["b"])), Some((true, false)));
    assert_eq!(told(sick(&["a"])), Some((true, true)));
    assert_eq!(told(sick(&["a"])), Some((false, false)));
    // One that is not told of any more is taken for healthy, as upstream.
    assert_eq!(told(devices(&["b"])), Some((true, true)));
    // A plugin that comes back with what it had: its devices can be given again.
    assert!(state.disconnect(GPU, generation, Duration::ZERO));
    let again = state.connect(GPU, PluginOptions::default());
    let change = state.list(GPU, again, devices(&["b"])).unwrap();
    assert!(change.any && !change.given);
}

#[test]
fn a_plugin_that_is_away_is_missed_as_long_as_it_is_known() {
    let (mut state, _) = offering(&["a"]);
    let generation = state.connect(GPU, PluginOptions { pre_start: true, preferred: false });
    assert!(!state.misses_pre_start(GPU));
    assert!(state.disconnect(GPU, generation, Duration::ZERO));
    assert!(state.misses_pre_start(GPU));
    assert!(state.expire(STOP_GRACE + Duration::from_secs(1)));
    assert!(!state.misses_pre_start(GPU));
}
