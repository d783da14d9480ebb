//! Pulls that fail, each for its own reason, and leave nothing behind.

use gantry_shim_testing::archive::gzip;

use super::archive::{PushedLayer, image_config, image_manifest};
use super::server::Gate;
use super::*;
use crate::image::digest::Digest;

/// Pulls what was pushed as `a:t` and holds the failure against its class and words.
async fn check(registry: &Registry, class: Class, words: &str) {
    let node = TestNode::new();
    let error = node.pull(&registry.name("a:t")).await.unwrap_err();
    let text = chain(&error);
    assert_eq!(error.class(), class, "{text}");
    assert!(text.contains(words), "{words:?} in {text:?}");
    assert!(text.contains("a:t"), "the image is named: {text}");
    node.wait_settled(0).await;
    assert_eq!(node.journal(), 0, "{text}");
    assert!(node.images.list().is_empty());
}

/// Answers requests for `part` with `answer`, all others as stored.
fn answer(registry: &Registry, part: impl Into<String>, answer: TestAnswer) {
    let part = part.into();
    registry.script(move |request: &RegistryRequest| request.path.contains(&part).then(|| answer.clone()));
}

#[tokio::test]
async fn unknown_images_are_not_found_in_the_registrys_words() {
    check(&Registry::new(), Class::NotFound, "MANIFEST_UNKNOWN: manifest unknown").await;
}

#[tokio::test]
async fn no_registry_is_unavailable() {
    let node = TestNode::new();
    // Bound but not listening would be refused too; a freed port may be taken by another test.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = node.pull(&format!("{free}/a")).await.unwrap_err();
    assert_eq!(error.class(), Class::Unavailable, "{}", chain(&error));
    assert!(chain(&error).contains("registry unreachable"), "{}", chain(&error));
}

#[tokio::test]
async fn server_trouble_is_unavailable_and_says_when_to_retry() {
    let registry = Registry::new();
    answer(&registry, "/manifests/", TestAnswer::new(429).header("retry-after", "170"));
    check(&registry, Class::Unavailable, "(retry after 170)").await;
    answer(&registry, "/manifests/", TestAnswer::new(503));
    check(&registry, Class::Unavailable, "answered 503").await;
}

/// Each of them once: the tag, the config and the layer.
#[tokio::test]
async fn a_registry_that_has_too_much_to_do_is_asked_again() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let seen = std::sync::Mutex::new(std::collections::HashSet::new());
    registry.script(move |request| {
        let is_new = seen.lock().unwrap().insert(request.path.clone());
        is_new.then(|| TestAnswer::new(429).header("retry-after", "0"))
    });
    node.pull(&registry.name("a:t")).await.unwrap();
}

#[tokio::test]
async fn a_manifest_of_another_digest_is_corrupt() {
    let registry = Registry::new();
    let digest = Digest::of(b"other").to_string();
    let body = image_manifest(b"{}", &[]);
    answer(&registry, "/manifests/", TestAnswer::new(200).header("docker-content-digest", digest).body(body));
    check(&registry, Class::Corrupt, "digest mismatch").await;
}

#[tokio::test]
async fn a_manifest_over_four_mebibytes_is_refused() {
    let registry = Registry::new();
    answer(&registry, "/manifests/", TestAnswer::new(200).body(vec![b' '; (4 << 20) + 1]));
    check(&registry, Class::Invalid, "larger than the 4194304 bytes").await;
}

#[tokio::test]
async fn a_config_of_another_digest_is_corrupt() {
    let registry = Registry::new();
    let layers = [PushedLayer::gzip(&hello())];
    let (_, config) = registry.image("a", "t", &layers, "V=1");
    answer(&registry, config.to_string(), TestAnswer::new(200).body(image_config(&layers, "V=2")));
    check(&registry, Class::Corrupt, "digest mismatch").await;
}

#[tokio::test]
async fn wrong_layer_bytes_are_a_digest_mismatch_whatever_they_break() {
    let layer = PushedLayer::gzip(&hello());
    let mut flipped = layer.blob.clone();
    flipped[25] ^= 0x40; // In the deflate stream: gzip breaks long before the digest is known.
    let mut repacked = layer.blob.clone();
    repacked[9] ^= 1; // The header's "operating system": the same archive comes out.
    for bytes in [vec![b'x'; layer.blob.len()], flipped, repacked] {
        let registry = Registry::new();
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        answer(&registry, Digest::of(&layer.blob).to_string(), TestAnswer::new(200).body(bytes));
        check(&registry, Class::Corrupt, "digest mismatch").await;
    }
}

#[tokio::test]
async fn gzip_that_is_broken_as_pushed_is_called_so() {
    let whole = PushedLayer::gzip(&hello());
    for blob in [b"no gzip at all".to_vec(), whole.blob[..whole.blob.len() - 4].to_vec()] {
        let registry = Registry::new();
        registry.image("a", "t", &[PushedLayer { blob, ..whole.clone() }], "V=1");
        check(&registry, Class::Corrupt, "corrupt gzip").await;
    }
}

#[tokio::test]
async fn another_archive_than_the_configs_is_a_diff_id_mismatch() {
    let registry = Registry::new();
    let layer = PushedLayer { diff_id: Digest::of(b"other"), ..PushedLayer::gzip(&hello()) };
    registry.image("a", "t", &[layer], "V=1");
    check(&registry, Class::Corrupt, "diff id mismatch").await;
}

#[tokio::test]
async fn short_and_long_bodies_are_told_from_lost_connections() {
    let layer = PushedLayer::gzip(&hello());
    let digest = Digest::of(&layer.blob).to_string();
    let registry = Registry::new();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let full = TestAnswer::new(200).body(layer.blob.clone());

    answer(&registry, digest.clone(), full.clone().cut(20, None));
    check(&registry, Class::Unavailable, "connection lost").await;
    // Without a length the end of the connection looks like the end of the blob.
    answer(&registry, digest.clone(), full.clone().header("content-length", "").cut(20, None));
    check(&registry, Class::Corrupt, "size mismatch").await;
    let long = [layer.blob.as_slice(), b"more"].concat();
    answer(&registry, digest.clone(), TestAnswer::new(200).body(long.clone()));
    check(&registry, Class::Corrupt, "size mismatch").await;
    let endless = TestAnswer::new(200).body(long.clone()).header("content-length", "").cut(long.len(), None);
    answer(&registry, digest, endless);
    check(&registry, Class::Corrupt, "size mismatch").await;
}

#[tokio::test]
async fn hostile_and_unsupported_layers_are_refused() {
    for (archive, words) in [
        (Archive::new().file("../x", b""), "climbs"),
        (Archive::new().device("x", 0, 0), "character device 0:0"),
        (hello().hardlink("x", "bin/of-a-lower-layer"), "same layer"),
    ] {
        let registry = Registry::new();
        registry.image("a", "t", &[PushedLayer::gzip(&archive)], "V=1");
        check(&registry, Class::Invalid, words).await;
    }
    let registry = Registry::new();
    let bzip2 =
        PushedLayer { media: "application/vnd.oci.image.layer.v1.tar+bzip2", ..PushedLayer::gzip(&hello()) };
    registry.image("a", "t", &[bzip2], "V=1");
    check(&registry, Class::Invalid, "plain, gzip or zstd").await;
}

#[tokio::test]
async fn one_bad_layer_ends_the_others() {
    let registry = Registry::new();
    let good = PushedLayer::gzip(&hello());
    let (_open, gate) = Gate::new();
    registry.image("a", "t", &[good.clone(), PushedLayer { blob: gzip(b"no tar"), ..good.clone() }], "V=1");
    // The good one would never end. Equal diff ids would share one flight: make them differ.
    let bad = PushedLayer { blob: b"junk".to_vec(), diff_id: Digest::of(b"other"), ..good.clone() };
    registry.image("a", "t", &[good.clone(), bad], "V=1");
    answer(
        &registry,
        Digest::of(&good.blob).to_string(),
        TestAnswer::new(200).body(good.blob.clone()).cut(10, Some(&gate)),
    );
    check(&registry, Class::Corrupt, "corrupt gzip").await;
}

#[tokio::test]
async fn a_zstd_layer_that_takes_a_lot_of_memory_is_refused_and_says_what_to_do() {
    let registry = Registry::new();
    let tar = Archive::new().file("x", &[7; 100_000]).tar();
    for (window_log, fits) in [(25, true), (26, false)] {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(window_log).unwrap();
        std::io::Write::write_all(&mut encoder, &tar).unwrap();
        let blob = encoder.finish().unwrap();
        let media = "application/vnd.oci.image.layer.v1.tar+zstd";
        registry.image("a", "t", &[PushedLayer { media, blob, diff_id: Digest::of(&tar) }], "V=1");
        if fits {
            TestNode::new().pull(&registry.name("a:t")).await.unwrap();
        } else {
            check(&registry, Class::Invalid, "recompress the layer without --long").await;
        }
    }
}

/// The rest of the layer never comes: the verdict does not wait for it.
#[tokio::test]
async fn a_layer_that_nobody_can_unpack_is_not_waited_for() {
    let refused = Archive::new().file("../x", b"").file("large", &vec![7; 9 << 20]);
    let junk = PushedLayer { blob: vec![b'j'; 9 << 20], ..PushedLayer::gzip(&hello()) };
    for (layer, class, words) in
        [(junk, Class::Corrupt, "corrupt gzip"), (PushedLayer::plain(&refused), Class::Invalid, "climbs")]
    {
        let registry = Registry::new();
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        let (_open, gate) = Gate::new();
        let held = TestAnswer::new(200).body(layer.blob.clone()).cut(3 << 20, Some(&gate));
        answer(&registry, Digest::of(&layer.blob).to_string(), held);
        let checked = check(&registry, class, words);
        assert!(tokio::time::timeout(Duration::from_secs(60), checked).await.is_ok());
    }
}
