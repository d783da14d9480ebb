//! Plugins that lie, crash and hang.

use gantry_model::pod::Role;

use super::*;

/// A plugin that has registered and offers these.
async fn offering(root: &Path, manager: &DeviceManager, name: &str, fake: Fake, ids: &[&str]) -> Serving {
    let serving = plugin(root, name, fake);
    register(root, name).await.unwrap();
    let healthy: Vec<(&str, &str)> = ids.iter().map(|id| (*id, "Healthy")).collect();
    serving.lists.send(list(&healthy)).await.unwrap();
    let count = i64::try_from(ids.len()).unwrap();
    offers(manager, count, count).await;
    serving
}

#[tokio::test]
async fn a_device_that_is_listed_twice_is_one() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = plugin(root.path(), "gpu.sock", Fake::default());
    register(root.path(), "gpu.sock").await.unwrap();
    let twice = [("a", "Healthy"), ("a", "Unhealthy"), ("b", "Unhealthy"), ("b", "Healthy")];
    serving.lists.send(list(&twice)).await.unwrap();
    offers(&manager, 2, 1).await;
    let pod = asking("one", "2");
    assert!(allocate(&manager, &pod).await.unwrap_err().contains("Requested: 2, Available: 1"));
    allocate(&manager, &asking("two", "1")).await.unwrap();
    assert_eq!(*serving.fake.asked.lock().unwrap(), [["b"]]);
}

/// What is longer than gRPC allows a message to be ends the stream, as in upstream; it does not fill the memory.
#[tokio::test]
async fn a_list_without_an_end_is_the_end_of_its_plugin() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = offering(root.path(), &manager, "gpu.sock", Fake::default(), &["a"]).await;
    let name = "x".repeat(1 << 10);
    let devices: Vec<(String, &str)> = (0..5 << 10).map(|n| (format!("{name}{n}"), "Healthy")).collect();
    let devices: Vec<(&str, &str)> = devices.iter().map(|(id, health)| (id.as_str(), *health)).collect();
    serving.lists.send(list(&devices)).await.unwrap();
    offers(&manager, 1, 0).await;
}

/// Each is taken in before the next; the same one again writes nothing.
#[tokio::test]
async fn a_plugin_that_repeats_its_list_for_ever_writes_one_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = offering(root.path(), &manager, "gpu.sock", Fake::default(), &["a"]).await;
    let file = root.path().join(FOLDER).join(CHECKPOINT);
    // The list was taken in; that it was written too is seen by another one's being.
    serving.lists.send(list(&[("a", "Healthy"), ("b", "Healthy")])).await.unwrap();
    offers(&manager, 2, 2).await;
    let written = || std::fs::read(&file).is_ok_and(|text| String::from_utf8_lossy(&text).contains("\"b\""));
    for _ in 0..300 {
        if written() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(written());
    std::fs::remove_file(&file).unwrap();
    for _ in 0..500 {
        serving.lists.send(list(&[("a", "Healthy"), ("b", "Healthy")])).await.unwrap();
    }
    serving.lists.send(list(&[("a", "Healthy")])).await.unwrap();
    offers(&manager, 1, 1).await;
    for _ in 0..300 {
        if file.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!written() && file.exists());
}

#[tokio::test]
async fn a_plugin_of_another_version_or_without_options_is_not_used() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = plugin(root.path(), "old.sock", Fake::default());
    let refused = register_version(root.path(), "old.sock", "v1alpha").await.unwrap_err();
    assert!(refused.message().contains("\"v1alpha\" is not supported by kubelet"), "{refused}");
    assert!(serving.fake.lists.lock().unwrap().is_some(), "nobody asked for its list");
    let why = Some("GetDevicePluginOptions failed".to_owned());
    let mute = plugin(root.path(), "mute.sock", Fake { has_no_options: why, ..Fake::default() });
    let refused = register(root.path(), "mute.sock").await.unwrap_err();
    assert!(refused.message().starts_with("failed to get device plugin options: "), "{refused}");
    assert!(refused.message().contains("GetDevicePluginOptions failed"), "{refused}");
    assert!(mute.fake.lists.lock().unwrap().is_some());
    assert!(manager.amounts().borrow().is_empty(), "the node tells nothing of the resource");
}

#[tokio::test]
async fn a_plugin_that_gives_nothing_gives_no_device() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let fake = Fake { gives_nothing: true, ..Fake::default() };
    let _serving = offering(root.path(), &manager, "gpu.sock", fake, &["a"]).await;
    let pod = asking("one", "1");
    let refused = allocate(&manager, &pod).await.unwrap_err();
    assert!(refused.starts_with("no containers return in allocation response"), "{refused}");
    assert_eq!(manager.of_container(&pod.uid, "main"), DevicesOf::new());
}

/// What it prefers counts as far as it is there, and the rest is chosen for it.
#[tokio::test]
async fn a_preference_for_what_is_not_there_is_passed_over() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let options =
        wire::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };
    let prefers = Some(["ghost", "c", "c", "other"].map(str::to_owned).to_vec());
    let fake = Fake { options, prefers, ..Fake::default() };
    let serving = offering(root.path(), &manager, "gpu.sock", fake, &["a", "b", "c"]).await;
    allocate(&manager, &asking("one", "2")).await.unwrap();
    assert_eq!(*serving.fake.asked.lock().unwrap(), [["a", "c"]]);
}

/// #92958 and upstream's own specs: it is not asked for its list again, and its resource stays at 0.
#[tokio::test]
async fn a_plugin_whose_list_ends_at_once_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = plugin(root.path(), "gpu.sock", Fake::default());
    serving.lists.send(Err(Status::unknown("ListAndWatch failed"))).await.unwrap();
    register(root.path(), "gpu.sock").await.unwrap();
    offers(&manager, 0, 0).await;
    let refused = allocate(&manager, &asking("one", "1")).await.unwrap_err();
    assert_eq!(refused, "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu");
}

/// One that wants to know of each start is waited for while it is away; others are not.
#[tokio::test]
async fn a_container_starts_again_without_its_plugin_unless_that_wants_to_know() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let options =
        wire::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: false };
    let fake = Fake { options, ..Fake::default() };
    let serving = offering(root.path(), &manager, "gpu.sock", fake, &["a"]).await;
    let pod = asking("one", "1");
    allocate(&manager, &pod).await.unwrap();
    manager.options(&pod, &pod.containers[0]).await.unwrap();
    serving.task.abort();
    drop(serving.lists);
    offers(&manager, 1, 0).await;
    let why = manager.options(&pod, &pod.containers[0]).await.unwrap_err();
    assert!(why.ends_with("endpoint vendor.com/gpu has been stopped"), "{why}");
    let back = offering(root.path(), &manager, "again.sock", Fake::default(), &["a"]).await;
    let got = manager.options(&pod, &pod.containers[0]).await.unwrap();
    assert_eq!(got.env, [("GPUS".to_owned(), "a".to_owned())]);
    back.task.abort();
    drop(back.lists);
    offers(&manager, 1, 0).await;
    manager.options(&pod, &pod.containers[0]).await.unwrap();
    // It asks for none of them, so that their plugin is no matter of its.
    let none = asking("two", "0");
    assert_eq!(manager.options(&none, &none.containers[0]).await.unwrap(), DeviceOptions::default());
}

/// The end of the older connection is nothing to the newer plugin of the resource.
#[tokio::test]
async fn a_plugin_that_registers_again_keeps_what_it_offers_when_the_older_one_goes() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let old = offering(root.path(), &manager, "old.sock", Fake::default(), &["a", "b"]).await;
    let _new = offering(root.path(), &manager, "new.sock", Fake::default(), &["a", "b", "c"]).await;
    old.task.abort();
    drop(old.lists);
    manager.disconnect(GPU, &root.path().join(FOLDER).join("old.sock")).await;
    let lost = tokio::time::timeout(Duration::from_millis(300), offers(&manager, 3, 0)).await;
    assert!(lost.is_err());
    allocate(&manager, &asking("one", "3")).await.unwrap();
}

/// #138446: what an init container had goes to the containers after it, a sidecar keeps its own, and nobody has more
/// than the pod asked for at one time.
#[tokio::test]
async fn init_containers_hand_their_devices_on() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = offering(root.path(), &manager, "gpu.sock", Fake::default(), &["a", "b"]).await;
    let mut pod = asking("one", "1");
    let of = |name: &str, role: Role| Container { name: name.to_owned(), role, ..pod.containers[0].clone() };
    pod.init_containers = vec![of("first", Role::Init), of("side", Role::Sidecar)];
    allocate(&manager, &pod).await.unwrap();
    assert_eq!(*serving.fake.asked.lock().unwrap(), [["a"], ["a"], ["b"]]);
    let refused = allocate(&manager, &asking("two", "1")).await.unwrap_err();
    assert!(refused.ends_with("Requested: 1, Available: 0"), "{refused}");
    // Once more, as after a kubelet's restart before its containers ran: nothing is asked for again.
    allocate(&manager, &pod).await.unwrap();
    assert_eq!(serving.fake.asked.lock().unwrap().len(), 3);
    manager.forget(&pod.uid).await;
    allocate(&manager, &asking("two", "2")).await.unwrap();
}

/// The health of what a pod has, as the plugin tells it; what no plugin tells of is taken for healthy.
#[tokio::test]
async fn the_health_of_given_devices_follows_the_lists() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let serving = offering(root.path(), &manager, "gpu.sock", Fake::default(), &["a", "b"]).await;
    let pod = asking("one", "1");
    let mut changes = manager.health_changes(&pod);
    allocate(&manager, &pod).await.unwrap();
    let told = |healthy: bool| {
        DeviceHealth::from([(
            "main".to_owned(),
            [(GPU.to_owned(), [("a".to_owned(), healthy.into())].into())].into(),
        )])
    };
    assert_eq!(manager.health(&pod.uid), told(true));
    // That of another device concerns nobody.
    serving.lists.send(list(&[("a", "Healthy"), ("b", "Unhealthy")])).await.unwrap();
    offers(&manager, 2, 1).await;
    assert!(!changes.has_changed().unwrap());
    serving.lists.send(list(&[("a", "Unhealthy"), ("b", "Unhealthy")])).await.unwrap();
    tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    assert_eq!(manager.health(&pod.uid), told(false));
    serving.lists.send(list(&[("b", "Healthy")])).await.unwrap();
    tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    assert_eq!(manager.health(&pod.uid), told(true));
}

#[tokio::test]
async fn the_check_of_healthz_says_whether_plugins_can_register() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    assert_eq!(manager.check(), Ok(()));
    manager.0.lock().unserved = Some("accept: too many files".to_owned());
    let why = manager.check().unwrap_err();
    assert!(
        why.starts_with("device registration error: ") && why.ends_with(": accept: too many files"),
        "{why}"
    );
}
