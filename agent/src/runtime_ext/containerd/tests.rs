//! Both halves against a served containerd: what comes, what breaks off, what is too much.

use containerd_client::types::Envelope;
use gantry_model::clock::{Clock, SystemClock};
use prost_types::Any;

use super::fake::Fake;
use super::*;

const HOST: &str = "containerd.io/distribution.source.127.0.0.1";
const CONFIG: &str = "containerd.io/gc.ref.content.config";

/// Until it holds; what it was last is in the panic.
async fn until<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> T, holds: impl Fn(&T) -> bool) -> T {
    let begun = std::time::Instant::now();
    loop {
        let seen = look();
        if holds(&seen) {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn digest(letter: char) -> String {
    format!("sha256:{}", letter.to_string().repeat(64))
}

fn manifest(layers: &[(char, u64)]) -> Vec<u8> {
    let layers: Vec<_> =
        layers.iter().map(|(l, size)| serde_json::json!({ "digest": digest(*l), "size": size })).collect();
    serde_json::to_vec(&serde_json::json!({ "schemaVersion": 2, "layers": layers })).unwrap()
}

#[tokio::test]
async fn only_a_runtime_of_that_name_is_listened_to() {
    let fake = Fake::default();
    let serving = fake.serve().await;
    let inert = RuntimeExtensions::of("cri-o", &serving.channel);
    assert!(inert.pulls.is_none() && inert.ooms.is_none());
    let runtime_ext = RuntimeExtensions::of("containerd", &serving.channel);
    assert!(runtime_ext.pulls.is_some() && runtime_ext.ooms.is_some());
    until("a subscription", || fake.subscriptions().len(), |count| *count == 1).await;
}

#[tokio::test]
async fn ooms_are_counted_over_subscriptions_that_break_off() {
    let fake = Fake::default();
    let serving = fake.serve().await;
    let runtime_ext = listen(&serving.channel);
    let asked = vec!["namespace==\"k8s.io\",topic==\"/tasks/oom\"".to_owned()];
    until("a subscription", || fake.subscriptions(), |list| *list == [asked.clone()]).await;
    fake.oom("c1");
    until("the first", || runtime_ext.out_of_memory("c1"), |n| *n == Some(1)).await;
    fake.hang_up();
    until("another subscription", || fake.subscriptions().len(), |count| *count == 2).await;
    fake.oom("c1");
    fake.oom("c2");
    until("the last", || runtime_ext.out_of_memory("c2"), |n| *n == Some(1)).await;
    assert_eq!((runtime_ext.out_of_memory("c1"), runtime_ext.out_of_memory("c3")), (Some(2), None));
}

#[tokio::test]
async fn an_event_that_is_too_large_ends_the_subscription_and_nothing_else() {
    let fake = Fake::default();
    let serving = fake.serve().await;
    let runtime_ext = listen(&serving.channel);
    until("a subscription", || fake.subscriptions().len(), |count| *count == 1).await;
    let event = Some(Any { type_url: "x".into(), value: vec![0; 1 << 20] });
    fake.publish(&Envelope {
        timestamp: None,
        namespace: "k8s.io".into(),
        topic: "/tasks/oom".into(),
        event,
    });
    until("another subscription", || fake.subscriptions().len(), |count| *count == 2).await;
    fake.oom("c1");
    until("the next", || runtime_ext.out_of_memory("c1"), |n| *n == Some(1)).await;
}

#[tokio::test]
async fn a_pull_is_seen_layer_by_layer_and_becomes_stages() {
    let fake = Fake::default();
    let serving = fake.serve().await;
    let runtime_ext = listen(&serving.channel);
    let pulls = runtime_ext.pulls.unwrap();
    let early = SystemClock::new().wall_nanos() - 1_000_000_000;
    // Of an image of this repository that was pulled before.
    fake.put(&digest('0'), early, &[(HOST, "suite/web"), (CONFIG, "x")], &manifest(&[('9', 7)]));
    fake.put(&digest('a'), early, &[(HOST, "suite/web")], b"layer");
    let image = "127.0.0.1:5000/suite/web:v2";
    let pull = pulls.begin(image);
    assert_eq!(pulls.progress(image).unwrap().stage, "resolving");
    let began = pulls.watch().borrow().open().next().unwrap().began;
    let labels = [(HOST, "other,suite/web"), (CONFIG, "x")];
    fake.put(&digest('1'), began + 1, &labels, &manifest(&[('a', 10), ('b', 20), ('c', 30)]));
    fake.take_in(&digest('b'), began + 2, 15);
    let words = || pulls.progress(image).map(|progress| progress.words());
    until("what has come", words, |w| w.as_deref() == Some("1 of 3 layers, 15B of 50B")).await;
    fake.put(&digest('b'), began + 10, &[], b"");
    fake.fail(1);
    fake.take_in(&digest('c'), began + 12, 30);
    until("the next", words, |w| w.as_deref() == Some("2 of 3 layers, 50B of 50B")).await;
    fake.put(&digest('c'), began + 20, &[], b"");
    drop(pull);
    assert_eq!(pulls.progress(image), None);
    let told: Vec<_> =
        pulls.stages(image).await.into_iter().map(|s| (s.name, s.start - began, s.end - began)).collect();
    let stage = |name: &str, start, end| (name.to_owned(), start, end);
    assert_eq!(
        told,
        [stage("layer.0.present", 0, 0), stage("layer.1.download", 2, 10), stage("layer.2.download", 12, 20)]
    );
}

#[tokio::test]
async fn nobody_is_asked_while_nothing_is_pulled_and_a_hostile_store_says_nothing() {
    let fake = Fake::default();
    let serving = fake.serve().await;
    let runtime_ext = listen(&serving.channel);
    let pulls = runtime_ext.pulls.unwrap();
    until("a subscription", || fake.subscriptions().len(), |count| *count == 1).await;
    assert_eq!(fake.requests(), 0);
    let now = SystemClock::new().wall_nanos() + 3_600_000_000_000;
    let labels = [(HOST, "web"), (CONFIG, "x")];
    fake.put("sha256:x,labels", now, &labels, &manifest(&[('a', 1)]));
    fake.put(&digest('2'), now, &labels, b"not a manifest");
    let pull = pulls.begin("127.0.0.1:5000/web");
    until("a look", || fake.requests(), |asked| *asked > 0).await;
    // One that is too large: the look fails, and the pull is settled all the same.
    fake.put(&digest('3'), now, &labels, &vec![b' '; 9 << 20]);
    drop(pull);
    assert_eq!(pulls.stages("127.0.0.1:5000/web").await, []);
    let asked = fake.requests();
    assert!(pulls.watch().borrow().open().next().is_none());
    assert_eq!(fake.requests(), asked);
}
