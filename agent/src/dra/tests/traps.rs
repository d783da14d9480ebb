//! What upstream's kubelet got wrong at some time, by the number of the issue.

use super::*;

/// #131513, #131617: a pod that was deleted by force has left its claim behind, and another claim has its name.
#[tokio::test]
async fn trap_131513_a_claim_of_the_same_name_waits_for_the_end_of_the_one_before() {
    let world = DraWorld::new().await;
    let (old, new) = (claiming("uid-1", &["one"]), claiming("uid-2", &["one"]));
    world.manager.prepare(&old).await.unwrap();
    world.serving.driver.unprepares.send_replace(Mood::Fails);
    world.manager.unprepare(&old.uid).await.unwrap_err();
    world.api.put_resource_claim("one", object("claim-9", &["uid-2"], &[DRIVER]));
    let words = "prepare dynamic resources: old ResourceClaim with same name one and different UID claim-1 still exists (previous pod force-deleted?!)";
    assert_eq!(world.manager.prepare(&new).await, Err(words.to_owned()));
    assert_eq!(world.kept().pods(), [uid("uid-1")].into(), "the new one has no part in it");
    world.serving.driver.unprepares.send_replace(Mood::Willing);
    world.manager.unprepare(&old.uid).await.unwrap();
    world.manager.prepare(&new).await.unwrap();
}

/// #131957: whatever went wrong before a driver was asked, the pod may go at once.
#[tokio::test]
async fn trap_131957_a_pod_that_was_never_prepared_goes_without_a_driver() {
    let world = DraWorld::new().await;
    world.api.put_resource_claim("two", object("claim-2", &["uid-1"], &["missing.example"]));
    let pod = claiming("uid-1", &["one", "two"]);
    let words = "prepare dynamic resources: DRA driver missing.example is not registered";
    assert_eq!(world.manager.prepare(&pod).await, Err(words.to_owned()));
    assert_eq!(world.kept(), ClaimBook::default());
    world.manager.unprepare(&pod.uid).await.unwrap();
    world.serving.driver.asked(&[]).await;
}

/// #116411: the kubelet dies while a driver prepares. The next one knows of it.
#[tokio::test]
async fn trap_116411_a_claim_is_written_down_before_its_driver_is_asked() {
    let mut world = DraWorld::new().await;
    let pod = claiming("uid-1", &["one"]);
    world.serving.driver.prepares.send_replace(Mood::Holds);
    {
        let dying = world.manager.prepare(&pod);
        let asked = world.serving.driver.asked(&["prepare one"]);
        tokio::select! {
            done = dying => panic!("{done:?}"),
            () = asked => {}
        }
    }
    assert_eq!(world.kept().pods(), [uid("uid-1")].into());
    world.restart().await;
    let nobody = BTreeSet::new();
    world.serving.driver.unprepares.send_replace(Mood::Refuses);
    assert!(!world.manager.retain(&nobody).await, "it is tried again");
    world.serving.driver.unprepares.send_replace(Mood::Willing);
    assert!(world.manager.retain(&nobody).await);
    world.serving.driver.asked(&["prepare one", "unprepare one", "unprepare one"]).await;
    assert_eq!(world.kept(), ClaimBook::default());
}

/// What a kubelet before this one prepared stays as long as its pod does, and what this one prepares is its worker's to end.
#[tokio::test]
async fn claims_of_pods_that_are_here_are_retained() {
    let mut world = DraWorld::new().await;
    let (old, new) = (claiming("uid-1", &["one"]), claiming("uid-2", &["one"]));
    world.manager.prepare(&old).await.unwrap();
    world.restart().await;
    world.manager.prepare(&new).await.unwrap();
    assert!(world.manager.retain(&[&old.uid].into()).await);
    assert_eq!(world.kept().pods(), [uid("uid-1"), uid("uid-2")].into());
    world.serving.driver.asked(&["prepare one", "prepare one"]).await;
}

/// #137819: one driver has prepared, another refuses. Both are asked to unprepare, and a second try adds nothing twice.
#[tokio::test]
async fn trap_137819_a_partial_prepare_is_unprepared_and_adds_nothing_twice() {
    let world = DraWorld::new().await;
    let other = registered(&world.manager, &world.root.path().join("other.sock"), OTHER).await;
    world.api.put_resource_claim("one", object("claim-1", &["uid-1"], &[DRIVER, OTHER]));
    let pod = claiming("uid-1", &["one"]);
    other.driver.prepares.send_replace(Mood::Refuses);
    for _ in 0..2 {
        let why = world.manager.prepare(&pod).await.unwrap_err();
        assert!(why.ends_with("NodePrepareResources failed for ResourceClaim one: too hot"), "{why}");
    }
    world.serving.driver.asked(&["prepare one", "prepare one"]).await;
    let devices = |world: &DraWorld| world.manager.of_container(&pod, &pod.containers[0])[0].2.len();
    assert_eq!(devices(&world), 1, "of the willing one, once");
    assert_eq!(world.manager.0.metrics.dra_resource_claims_in_use.get([ANY_DRIVER]), Some(0.0));
    other.driver.prepares.send_replace(Mood::Willing);
    world.manager.prepare(&pod).await.unwrap();
    assert_eq!(devices(&world), 2);
    world.manager.unprepare(&pod.uid).await.unwrap();
    world.serving.driver.asked(&["prepare one", "prepare one", "prepare one", "unprepare one"]).await;
    other.driver.asked(&["prepare one", "prepare one", "prepare one", "unprepare one"]).await;
}

/// PR 140527: while a claim is being unprepared for its last pod, another pod wants it. It gets it prepared anew.
#[tokio::test]
async fn trap_140527_a_pod_does_not_get_a_claim_that_is_being_unprepared() {
    let world = DraWorld::new().await;
    let (first, second) = (claiming("uid-1", &["one"]), claiming("uid-2", &["one"]));
    world.manager.prepare(&first).await.unwrap();
    world.serving.driver.unprepares.send_replace(Mood::Holds);
    let unprepare = world.manager.unprepare(&first.uid);
    let race = async {
        world.serving.driver.asked(&["prepare one", "unprepare one"]).await;
        let prepare = world.manager.prepare(&second);
        tokio::pin!(prepare);
        // It has come as far as it can.
        until_pending(&mut prepare, || {
            world.manager.0.lock().turns.values().any(|turn| Arc::strong_count(turn) > 2)
        })
        .await;
        world.serving.driver.asked(&["prepare one", "unprepare one"]).await;
        world.serving.driver.unprepares.send_replace(Mood::Willing);
        prepare.await
    };
    let (unprepared, prepared) = tokio::join!(unprepare, race);
    unprepared.unwrap();
    prepared.unwrap();
    world.serving.driver.asked(&["prepare one", "unprepare one", "prepare one"]).await;
    assert_eq!(world.cdi(&second).unwrap(), ["vendor.example/gpu=one"]);
}

/// Polls a future that must not end until `condition` holds.
async fn until_pending<F: Future<Output = Result<(), String>> + Unpin>(
    future: &mut F,
    condition: impl Fn() -> bool,
) {
    tokio::select! {
        done = future => panic!("{done:?}"),
        () = until(condition) => {}
    }
}

/// An unprepare that has failed half-way, or was given up: the claim is not prepared any more.
#[tokio::test]
async fn a_claim_that_was_not_wholly_unprepared_is_prepared_anew() {
    let world = DraWorld::new().await;
    let (first, second) = (claiming("uid-1", &["one"]), claiming("uid-2", &["one"]));
    world.manager.prepare(&first).await.unwrap();
    world.serving.driver.unprepares.send_replace(Mood::Fails);
    world.manager.unprepare(&first.uid).await.unwrap_err();
    world.manager.prepare(&second).await.unwrap();
    world.serving.driver.asked(&["prepare one", "unprepare one", "prepare one"]).await;
    // The first leaves it to the second now.
    world.manager.unprepare(&first.uid).await.unwrap();
    world.serving.driver.asked(&["prepare one", "unprepare one", "prepare one"]).await;
}

/// PR 140212: a pod that was refused the claim takes nothing from one that has it.
#[tokio::test]
async fn trap_140212_the_end_of_a_pod_that_never_had_a_claim_leaves_it_to_others() {
    let world = DraWorld::new().await;
    world.api.put_resource_claim("one", object("claim-1", &["uid-1"], &[DRIVER]));
    let (first, second) = (claiming("uid-1", &["one"]), claiming("uid-2", &["one"]));
    world.manager.prepare(&first).await.unwrap();
    world.manager.prepare(&second).await.unwrap_err();
    world.manager.unprepare(&second.uid).await.unwrap();
    world.serving.driver.asked(&["prepare one"]).await;
    assert_eq!(world.cdi(&first).unwrap(), ["vendor.example/gpu=one"]);
}

/// #141433, #141966: after a reboot a driver may have to do its part again. Only a new sandbox asks for it; a container that
/// starts again in the old one has what is written down.
#[tokio::test]
async fn trap_141433_a_claim_is_prepared_again_after_a_restart_when_a_sandbox_is_made() {
    let mut world = DraWorld::new().await;
    let pod = claiming("uid-1", &["one"]);
    world.manager.prepare(&pod).await.unwrap();
    world.restart().await;
    assert_eq!(world.cdi(&pod).unwrap(), ["vendor.example/gpu=one"]);
    world.serving.driver.asked(&["prepare one"]).await;
    world.manager.prepare(&pod).await.unwrap();
    world.serving.driver.asked(&["prepare one", "prepare one"]).await;
    assert_eq!(world.manager.of_container(&pod, &pod.containers[0])[0].2.len(), 1, "the same device");
}
