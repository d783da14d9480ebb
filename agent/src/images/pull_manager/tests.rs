//! Two tenants and one image.

use futures_util::FutureExt as _;
use gantry_model::clock::FakeClock;

use super::*;
use crate::runtime::RegistryAuth;

struct PullFixture {
    root: tempfile::TempDir,
    clock: Arc<FakeClock>,
    metrics: Arc<Metrics>,
}

impl PullFixture {
    fn new() -> Self {
        let clock = Arc::new(FakeClock::new(1_800_000_000));
        Self { root: tempfile::tempdir().unwrap(), clock, metrics: Arc::default() }
    }

    /// A kubelet's start.
    fn access(&self, policy: &str) -> ImagePullManager {
        self.access_but(policy, &[])
    }

    fn access_but(&self, policy: &str, allowed: &[String]) -> ImagePullManager {
        let policy = Policy::new(policy, allowed).unwrap();
        ImagePullManager::open(self.root.path(), policy, self.clock.clone(), self.metrics.clone()).unwrap()
    }

    fn checks(&self, result: &str) -> f64 {
        self.metrics.image_mustpull_checks.get([result]).unwrap_or_default()
    }
}

fn coordinates(name: &str) -> Coordinates {
    Coordinates { uid: format!("uid-{name}"), namespace: "default".into(), name: name.into() }
}

fn offer(origin: Origin, hash: &str) -> Offer {
    Offer { auth: RegistryAuth::default(), hash: hash.into(), origin }
}

fn secret(name: &str, hash: &str) -> Offer {
    offer(Origin::Secret(coordinates(name)), hash)
}

async fn must(access: &ImagePullManager, image: &str, offers: Vec<Offer>) -> bool {
    access.must_pull(image, "id", move || async move { offers }.boxed()).await
}

fn grant_pull(access: &ImagePullManager, image: &str, with: Option<&Offer>) {
    access.begins(image).unwrap();
    access.record_pull_success(image, "id", with);
}

const POLICY: &str = "NeverVerifyPreloadedImages";

#[tokio::test]
async fn a_pod_without_the_credentials_is_not_given_the_image() {
    let node = PullFixture::new();
    let access = node.access(POLICY);
    assert!(!must(&access, "reg.io/web:v1", vec![]).await, "preloaded");
    grant_pull(&access, "reg.io/web:v1", Some(&secret("a", "1")));
    assert!(must(&access, "reg.io/web:v1", vec![]).await);
    assert!(must(&access, "reg.io/web:v1", vec![secret("b", "2")]).await);
    assert!(!must(&access, "reg.io/web:v2", vec![secret("a", "1")]).await, "whatever the tag");
    assert!(must(&access, "other.io/web:v1", vec![secret("a", "1")]).await, "under its own name only");
    assert!(must(&access, "reg.io/web:v1", vec![offer(Origin::Node, "1")]).await);
    // The same password in another secret is as good, and is remembered.
    assert!(!must(&access, "reg.io/web:v1", vec![secret("c", "1")]).await);
    // The same secret with another password: it was allowed once.
    assert!(!must(&access, "reg.io/web:v1", vec![secret("a", "3")]).await);
    assert!(!must(&access, "reg.io/web:v1", vec![secret("d", "3")]).await, "learnt from the one before");
    // All of it survives the kubelet.
    let access = node.access(POLICY);
    assert!(!must(&access, "reg.io/web:v1", vec![secret("c", "9")]).await);
    assert!(must(&access, "reg.io/web:v1", vec![secret("e", "8")]).await);
    grant_pull(&access, "reg.io/web:v1", None);
    assert!(!must(&access, "reg.io/web:v1", vec![]).await, "got without credentials: for everybody");
    assert_eq!((node.checks("credentialPolicyAllowed"), node.checks("error")), (1.0, 0.0));
    assert_eq!(node.checks("mustAuthenticate"), 5.0);
}

#[tokio::test]
async fn preloaded_images_are_given_without_credentials_where_the_list_has_them() {
    let node = PullFixture::new();
    let access = node.access_but("NeverVerifyAllowlistedImages", &["reg.io/base".to_owned()]);
    assert!(!must(&access, "reg.io/base:v1", vec![]).await);
    assert!(must(&access, "reg.io/other:v1", vec![]).await);
    let always = node.access("AlwaysVerify");
    assert!(must(&always, "reg.io/base:v1", vec![]).await);
}

#[tokio::test]
async fn a_service_account_may_have_what_it_has_pulled() {
    let node = PullFixture::new();
    let access = node.access(POLICY);
    let account = |name: &str| offer(Origin::ServiceAccount(coordinates(name)), "1");
    grant_pull(&access, "reg.io/web", Some(&account("a")));
    assert!(!must(&access, "reg.io/web", vec![account("a")]).await);
    assert!(must(&access, "reg.io/web", vec![account("b"), account("a")]).await);
    assert!(must(&access, "reg.io/web", vec![secret("a", "1")]).await);
}

#[tokio::test]
async fn a_pull_whose_end_was_not_seen_is_settled_at_the_next_start() {
    let node = PullFixture::new();
    let access = node.access(POLICY);
    access.begins("reg.io/web:v1").unwrap();
    access.begins("reg.io/none:v1").unwrap();
    assert!(must(&access, "reg.io/web:v1", vec![secret("a", "1")]).await, "being pulled");
    let access = node.access(POLICY);
    assert!(must(&access, "reg.io/web:v1", vec![]).await, "the intent is there");
    let image =
        StoredImage { id: "id".into(), names: vec!["reg.io/web:v1".into()], ..StoredImage::default() };
    access.settle(&[image]);
    assert_eq!(access.state().records.intents(), ["reg.io/none:v1"]);
    let pulled = access.state().records.read_pulled("id").unwrap().unwrap();
    assert!(pulled.credential_mapping.is_empty());
    assert!(must(&access, "reg.io/web:v1", vec![secret("a", "1")]).await, "nobody knows with what");
}

#[tokio::test]
async fn intents_end_with_the_last_pull() {
    let node = PullFixture::new();
    let access = node.access(POLICY);
    access.begins("a").unwrap();
    access.begins("a").unwrap();
    access.record_pull_failure("a");
    assert_eq!(access.state().records.intents(), ["a"]);
    access.record_pull_failure("a");
    assert!(access.state().records.intents().is_empty());
    assert!(!must(&access, "a", vec![]).await, "it was never pulled here");
}

#[tokio::test]
async fn records_of_images_that_are_gone_go_too() {
    let node = PullFixture::new();
    let access = node.access(POLICY);
    grant_pull(&access, "a", None);
    let second = 1_000_000_000;
    access.prune(&[], 1_800_000_000 * second);
    assert_eq!(access.state().records.counts(), (0, 1), "written since");
    access.prune(&["id".into()], 1_800_000_100 * second);
    assert_eq!(access.state().records.counts(), (0, 1), "still there");
    access.prune(&[], 1_800_000_100 * second);
    assert_eq!(access.state().records.counts(), (0, 0));
    assert_eq!(node.metrics.image_pulled_records.get([]), Some(0.0));
}

#[tokio::test]
async fn a_record_that_cannot_be_read_lets_nobody_in() {
    let node = PullFixture::new();
    let access = node.access("NeverVerify");
    grant_pull(&access, "a", None);
    assert!(!must(&access, "a", vec![]).await);
    let folder = node.root.path().join("image_manager/pulled");
    for entry in std::fs::read_dir(&folder).unwrap() {
        std::fs::write(entry.unwrap().path(), "nonsense").unwrap();
    }
    assert!(must(&access, "a", vec![]).await);
    assert_eq!(node.checks("error"), 1.0);
}
