//! Images that are removed: names and record at once and for good, layers when nobody needs them.

use super::archive::PushedLayer;
use super::leftovers::on_disk;
use super::server::Gate;
use super::*;
use crate::image::digest::Digest;

/// Two images that share their first layer.
fn two(registry: &Registry) {
    let shared = PushedLayer::gzip(&hello());
    registry.image("a", "t", &[shared.clone(), PushedLayer::gzip(&Archive::new().file("one", b"1"))], "V=1");
    registry.image("b", "t", &[shared, PushedLayer::gzip(&Archive::new().file("two", b"2"))], "V=2");
}

#[tokio::test]
async fn an_image_goes_by_any_of_its_names_and_twice() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    registry.image("a", "u", &[PushedLayer::gzip(&hello())], "V=1");
    for by in 0..4 {
        let image = node.pull(&registry.name("a:t")).await.unwrap();
        node.pull(&registry.name("a:u")).await.unwrap();
        let name = match by {
            0 => registry.name("a:u"),
            1 => image.repo_digests[0].clone(),
            2 => image.id.clone(),
            _ => image.id[7..25].to_owned(),
        };
        assert_eq!(node.images.remove(&name).unwrap(), Some(image.id.clone()), "{name}");
        assert!(node.images.list().is_empty() && node.images.find(&image.id).is_none());
        assert!(node.images.last_pull(&image.id).is_empty());
        node.wait_settled(0).await;
        assert_eq!(node.images.remove(&name).unwrap(), None, "removed already");
    }
    assert_eq!(node.images.remove("nothing").unwrap(), None);
}

#[tokio::test]
async fn layers_of_other_images_stay() {
    let (node, registry) = (TestNode::new(), Registry::new());
    two(&registry);
    node.pull(&registry.name("a:t")).await.unwrap();
    let other = node.pull(&registry.name("b:t")).await.unwrap();
    assert_eq!(node.layer_folders(), 3);
    node.images.remove(&registry.name("a:t")).unwrap();
    assert_eq!(node.layer_folders(), 2);
    assert!(node.file(&other, 0, "two").exists() && node.file(&other, 1, "etc/hello").exists());
}

#[tokio::test]
async fn rt_1_11_a_container_keeps_its_layers_after_the_image_and_over_a_restart() {
    let (node, registry) = (TestNode::new(), Registry::new());
    two(&registry);
    node.pull(&registry.name("a:t")).await.unwrap();
    let (image, pin) = node.images.pin(&registry.name("a:t"), "container").unwrap();
    pin.keep();
    node.images.remove(&image.id).unwrap();
    assert!(node.images.pin(&image.id, "another").is_none(), "its names are gone at once");
    assert_eq!(node.layer_folders(), 2);
    let pins = HashMap::from([("container".to_owned(), image.layer_keys().to_vec())]);
    let TestNode { folder, images } = node;
    images.inner.store.flush().unwrap();
    drop(images);

    let config = config(folder.path());
    for gone in [false, true] {
        let store = open_store(&config, &pins).unwrap();
        let images = Images::with(&config, store, TransferLimits::default(), None, pins.clone());
        assert!(images.list().is_empty());
        assert_eq!(count(&folder.path().join("root/layers")), 2);
        if gone {
            images.unpin_except(|_| false);
            assert_eq!(count(&folder.path().join("root/layers")), 0);
        }
    }
}

#[tokio::test]
async fn a_pin_that_is_dropped_lets_go() {
    let (node, registry) = (TestNode::new(), Registry::new());
    two(&registry);
    node.pull(&registry.name("a:t")).await.unwrap();
    let (image, pin) = node.images.pin(&registry.name("a:t"), "container").unwrap();
    node.images.remove(&image.id).unwrap();
    drop(pin);
    node.wait_settled(0).await;
}

#[tokio::test]
async fn a_removal_is_durable_before_the_layers_go() {
    for flushed in [false, true] {
        let (node, registry) = (TestNode::new(), Registry::new());
        two(&registry);
        let image = node.pull(&registry.name("a:t")).await.unwrap();
        if flushed {
            node.images.inner.store.flush().unwrap();
        }
        node.images.remove(&image.id).unwrap();
        // A power cut: what is in /run is lost.
        let TestNode { folder, images } = node;
        drop(images);
        std::fs::remove_dir_all(folder.path().join("state")).unwrap();
        let images = open(folder.path());
        assert!(images.list().is_empty() && images.find(&registry.name("a:t")).is_none());
        assert_eq!(count(&folder.path().join("root/layers")), 0);
        drop(images);
        assert_eq!(on_disk(folder.path()), 0);
    }
}

/// The name was another image's, first on disk and then in the journal: it is nobody's now.
#[tokio::test]
async fn a_moved_name_does_not_come_back_to_its_first_owner() {
    for flushed in [false, true] {
        let (node, registry) = (TestNode::new(), Registry::new());
        registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
        let first = node.pull(&registry.name("a:t")).await.unwrap();
        if flushed {
            node.images.inner.store.flush().unwrap();
        }
        registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=2");
        let second = node.pull(&registry.name("a:t")).await.unwrap();
        node.images.remove(&second.id).unwrap();
        assert!(node.images.find(&registry.name("a:t")).is_none());
        node.images.inner.store.flush().unwrap();
        let TestNode { folder, images } = node;
        drop(images);
        let images = open(folder.path());
        assert!(images.find(&registry.name("a:t")).is_none(), "flushed: {flushed}");
        let kept = images.find(&first.id).unwrap();
        assert!(kept.repo_tags.is_empty() && kept.repo_digests.len() == 1, "{kept:?}");
    }
}

#[tokio::test]
async fn what_a_pull_under_way_needs_outlives_the_removal() {
    let (node, registry) = (TestNode::new(), Registry::new());
    two(&registry);
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    let (open, gate) = Gate::new();
    let last = PushedLayer::gzip(&Archive::new().file("two", b"2"));
    let blob = Digest::of(&last.blob).to_string();
    registry.script(move |request| {
        let held = TestAnswer::new(200).body(last.blob.clone()).cut(1, Some(&gate));
        request.path.ends_with(&blob).then_some(held)
    });
    let (images, name) = (node.images.clone(), Reference::parse(&registry.name("b:t")).unwrap());
    let pull = tokio::spawn(async move { images.pull(&name, None, &Recorder::default()).await });
    until("it asks for its last layer", || registry.hits("/blobs/") == 5).await;
    node.images.remove(&image.id).unwrap();
    open.send(()).unwrap();
    let other = pull.await.unwrap().unwrap();
    assert!(node.file(&other, 1, "etc/hello").exists());
    node.wait_settled(2).await;
}

#[tokio::test]
async fn usage_counts_what_is_on_disk() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layer = PushedLayer::gzip(&Archive::new().file("big", &vec![7; 1 << 20]));
    registry.image("a", "t", &[layer, PushedLayer::gzip(&hello())], "V=1");
    let walker = crate::usage::walker::Walker::start().unwrap();
    let usage = || {
        walker.ask(node.images.to_measure(), std::time::Duration::from_secs(60));
        node.images.usage()
    };
    assert_eq!(usage(), crate::image::Usage::default());
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    let found = usage();
    assert_eq!(found.inodes, 5, "two roots, big, etc, hello");
    assert!((1 << 20..(1 << 20) + 100_000).contains(&found.bytes), "{found:?}");
    node.images.remove(&image.id).unwrap();
    assert_eq!(usage(), crate::image::Usage::default());
}
