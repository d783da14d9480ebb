//! Credentials from all sides, and pulls that are told of.

use gantry_model::clock::FakeClock;

use super::*;
use crate::api::fake::FakeApi;
use crate::gc::fake::FakeKeeper;
use crate::pod::tests::pod;
use crate::runtime::fake::FakeRuntime;

fn users(offers: &Offers) -> Vec<&str> {
    offers.offers.iter().map(|offer| offer.auth.username.as_str()).collect()
}

async fn kubelet(root: &std::path::Path) -> Images {
    let settings = Settings {
        root_dir: root.to_owned(),
        home: None,
        plugins: None,
        policy: Policy::NeverVerifyPreloadedImages,
        queue: queue::Settings { at_once: Some(1), ..queue::Settings::default() },
    };
    let keeper = FakeKeeper::storing(Vec::new());
    Images::start(settings, &keeper, Arc::new(FakeClock::new(0)), Arc::default()).await.unwrap()
}

#[tokio::test]
async fn secrets_come_before_the_node_and_missing_ones_are_told() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("config.json"), r#"{"auths": {"reg.io/team": {"username": "node"}}}"#)
        .unwrap();
    let api = FakeApi::default();
    let config = r#"{"auths": {"https://reg.io/v2/": {"username": "all", "password": "p"},
        "reg.io/team": {"auth": "dGVhbTpw"}, "other.io": {"username": "x"}}, "credsStore": "none"}"#;
    api.put_secret("new", "kubernetes.io/dockerconfigjson", &[(".dockerconfigjson", config)]);
    let older = r#"{"reg.io": {"identitytoken": "t", "username": "old"}}"#;
    api.put_secret("old", "kubernetes.io/dockercfg", &[(".dockercfg", older)]);
    api.put_secret("wrong", "Opaque", &[("a", "b")]);
    let names = ["new", "old", "wrong", "none"];
    let pod = Pod { pull_secrets: names.map(str::to_owned).to_vec(), ..pod() };
    let offers = kubelet(root.path()).await.offers(&api, &pod, "reg.io/team/web:v1").await;
    assert_eq!(offers.missing, ["wrong", "none"]);
    assert_eq!(users(&offers), ["team", "all", "old", "node"]);
    let Origin::Secret(origin) = &offers.offers.first().unwrap().origin else { panic!("{offers:?}") };
    assert_eq!((origin.uid.as_str(), origin.name.as_str()), ("uid-of-new", "new"));
    let plain = Images::plain().offers(&api, &pod, "reg.io/team/web:v1").await;
    assert_eq!(users(&plain), ["team", "all", "old"]);
}

#[tokio::test]
async fn a_pull_that_fails_leaves_no_intent_and_one_that_succeeds_a_record() {
    let root = tempfile::tempdir().unwrap();
    let images = kubelet(root.path()).await;
    let (runtime, pod) = (FakeRuntime::new(&["reg.io/web:v1"]), pod());
    let ask = |image| Ask { pod: &pod, written: image, full: image };
    let count =
        |folder: &str| std::fs::read_dir(root.path().join("image_manager").join(folder)).unwrap().count();
    assert!(images.pull(&runtime, ask("reg.io/none:v1"), &[]).await.is_err());
    assert_eq!((count("pulling"), count("pulled")), (0, 0));
    let pulled = images.pull(&runtime, ask("reg.io/web:v1"), &[]).await.unwrap();
    assert_eq!((count("pulling"), count("pulled")), (0, 1));
    let api = FakeApi::default();
    assert!(!images.must_pull(&api, ask("reg.io/web:v1"), &pulled.id).await, "got without: for everybody");
    assert!(images.must_pull(&api, ask("other.io/web:v1"), &pulled.id).await);
    // A pull that is given up.
    let before = images.queue.turn().await;
    let mut pull = Box::pin(images.pull(&runtime, ask("reg.io/web:v2"), &[]));
    assert!((&mut pull).now_or_never().is_none(), "it is not its turn");
    assert_eq!(count("pulling"), 1);
    drop((pull, before));
    assert_eq!(count("pulling"), 0);
}

#[tokio::test]
async fn wrong_plugins_keep_the_kubelet_from_starting() {
    let root = tempfile::tempdir().unwrap();
    let settings = Settings {
        root_dir: root.path().to_owned(),
        home: None,
        plugins: Some((root.path().join("config.yaml"), root.path().join("bin"))),
        policy: Policy::NeverVerify,
        queue: queue::Settings::default(),
    };
    let started =
        Images::start(settings, &FakeKeeper::default(), Arc::new(FakeClock::new(0)), Arc::default()).await;
    let error = started.unwrap_err();
    // Told as a chain.
    assert_eq!(error.to_string(), "failed to register CRI auth plugins");
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        format!("plugin binary directory {} did not exist", root.path().join("bin").display())
    );
}

#[test]
fn mounts_of_image_volumes_are_counted_by_their_end() {
    let images = Images::plain();
    images.count_volumes(1, 2, None);
    images.count_volumes(1, 1, Some("ImageVolumeMountFailed: no such folder"));
    images.count_volumes(1, 1, Some("no address left"));
    images.count_volumes(0, 0, None);
    let Metrics { image_volume_requested, image_volume_mounted, image_volume_errors, .. } = &*images.metrics;
    let counts = [image_volume_requested, image_volume_mounted, image_volume_errors].map(|of| of.get([]));
    assert_eq!(counts, [Some(3.0), Some(3.0), Some(1.0)]);
}
