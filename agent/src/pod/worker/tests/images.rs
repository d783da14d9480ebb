//! Images of volumes, and what is told of those that are not there.

use gantry_model::pod::volume::{Propagation, RecursiveReadOnly, SubPath, Volume, VolumeMount, VolumeSource};

use super::*;

const DATA: &str = "reg/data:v1";

/// The volume's image, mounted twice.
fn with_data(pull_policy: PullPolicy) -> Pod {
    let mount = |path: &str| VolumeMount {
        volume: "data".into(),
        path: path.into(),
        sub_path: SubPath::Whole,
        read_only: false,
        recursive_read_only: RecursiveReadOnly::Disabled,
        propagation: Propagation::None,
    };
    let source = VolumeSource::Image { reference: DATA.into(), pull_policy };
    let web = Container { mounts: vec![mount("/a"), mount("/b")], ..container("web") };
    Pod { volumes: vec![Volume { name: "data".into(), source }], containers: vec![web], ..pod() }
}

/// Reason and message, in the order of their first time.
fn told(handle: &PodHandle) -> Vec<(String, String)> {
    let events = handle.events();
    events.iter().map(|event| (event.note.reason.to_string(), event.note.message.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn the_image_of_a_volume_comes_before_the_container() {
    let mut world = World::new();
    let handle = world.start(with_data(PullPolicy::IfNotPresent));
    let status = until_reason(&handle, "ImagePullBackOff").await;
    assert_eq!(
        status.message,
        format!(
            "container web: Back-off pulling image {DATA:?}: ErrImagePull: rpc error: code = NotFound desc = {DATA}: not found"
        )
    );
    assert_eq!((world.runtime.count("pull"), world.runtime.count("create")), (1, 0));
    let pair = |reason: &str, message: String| (reason.to_owned(), message);
    assert!(told(&handle).contains(&pair("BackOff", format!("Back-off pulling image {DATA:?}"))));
    world.runtime.publish(DATA);
    until_running(&handle).await;
    // Once for the volume, however often it is mounted, and once for the container's own.
    assert_eq!(world.runtime.count("pull"), 3);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_never_pulled_is_no_back_off_of_a_pull() {
    let mut world = World::new();
    let handle = world.start(with_data(PullPolicy::Never));
    until_reason(&handle, "ErrImageNeverPull").await;
    tokio::time::sleep(secs(300)).await;
    let mut reasons: Vec<String> = told(&handle).into_iter().map(|(reason, _)| reason).collect();
    reasons.retain(|reason| reason != "ErrImageNeverPull");
    let messages: Vec<String> = told(&handle).into_iter().map(|(_, message)| message).collect();
    assert!(messages.contains(&"Error: ErrImageNeverPull".to_owned()), "{messages:?}");
    assert!(reasons.iter().all(|reason| reason == "Failed"), "{reasons:?}");
    assert!(messages.iter().all(|message| !message.contains("ack-off")), "{messages:?}");
    assert!(messages.iter().all(|message| !message.contains("ImagePullBackOff")), "{messages:?}");
    assert_eq!(world.runtime.count("pull"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_long_pull_tells_how_far_it_is() {
    let mut world = World::new();
    world.runtime = FakeRuntime::new(&[]);
    world.runtime.publish(IMAGE);
    world.runtime.set_latency_of(Call::Pull, Duration::from_secs(50));
    let text = r#"{"layers":[{"total":5000000,"downloaded":2500000,"stage":"downloading"}]}"#;
    world.runtime.set_pulling(serde_json::from_str(text).unwrap());
    let handle = world.start(pod());
    until_running(&handle).await;
    let events = handle.events();
    let told: Vec<(&str, u32)> = events
        .iter()
        .filter(|event| event.note.reason == "Pulling")
        .map(|event| (event.note.message.as_str(), event.count))
        .collect();
    // Of 100 seconds: after 30 and after 90.
    let words = r#"Pulling image "reg/img:v1": 0 of 1 layers, 2.5MB of 5.0MB"#;
    assert_eq!(told, [(r#"Pulling image "reg/img:v1""#, 1), (words, 2)]);
}
