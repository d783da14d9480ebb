//! Downloads that are cut, and large layers that come in pieces.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::archive::Layer;
use super::*;
use crate::image::digest::Digest;

/// Bytes that no packer makes smaller, and that differ everywhere.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn large() -> (Layer, Vec<u8>) {
    let content = noise(21 << 20);
    (Layer::plain(&Archive::new().file("large", &content)), content)
}

fn range_of(request: &Request) -> Option<&str> {
    request.headers.get("range").map(String::as_str)
}

#[tokio::test]
async fn a_download_that_is_cut_goes_on_where_it_was() {
    let (node, registry) = (Node::new(), Registry::new());
    let layer = Layer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let (digest, blob) = (Digest::of(&layer.blob).to_string(), layer.blob.clone());
    registry.script(move |request| {
        let whole = request.path.contains(&digest) && range_of(request).is_none();
        whole.then(|| Answer::new(200).body(blob.clone()).cut(20, None))
    });
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    assert_eq!(std::fs::read(node.file(&image, 0, "etc/hello")).unwrap(), b"hello\n");
    let ranges: Vec<String> = registry.log().iter().filter_map(range_of).map(str::to_owned).collect();
    assert_eq!(ranges, [format!("bytes=20-{}", layer.blob.len() - 1)]);
}

#[tokio::test]
async fn a_large_layer_comes_in_pieces_where_the_network_is_slow() {
    let (node, registry) = (Node::slow(), Registry::new());
    let (layer, content) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content);
    let pieces = registry.log().iter().filter(|request| range_of(request).is_some()).count();
    assert!(pieces >= 4, "{pieces}");
}

#[tokio::test]
async fn without_ranges_it_comes_in_one() {
    let (node, registry) = (Node::slow(), Registry::new());
    let (layer, content) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let (digest, blob) = (Digest::of(&layer.blob).to_string(), layer.blob.clone());
    // Whoever knows no ranges gives all of it; another one refuses.
    for status in [200, 416] {
        let (digest, blob) = (digest.clone(), blob.clone());
        registry.script(move |request| {
            let part = request.path.contains(&digest) && range_of(request).is_some();
            part.then(|| Answer::new(status).body(blob.clone()))
        });
        let image = node.pull(&registry.name("a:t")).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content);
        node.images.remove(&image.id).unwrap();
    }
}

#[tokio::test]
async fn a_piece_that_is_cut_goes_on_and_a_wrong_one_ends_the_pull() {
    let (node, registry) = (Node::slow(), Registry::new());
    let (layer, _) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let blob = layer.blob.clone();
    registry.script(move |request| {
        let (from, last) = range_of(request)?.strip_prefix("bytes=")?.split_once('-')?;
        let (from, last): (usize, usize) = (from.parse().ok()?, last.parse().ok()?);
        // Whole pieces are cut, their rests are not.
        let range = format!("bytes {from}-{last}/{}", blob.len());
        let answer = Answer::new(206).header("content-range", range).body(&blob[from..=last]);
        (last - from + 1 == 4 << 20).then(|| answer.cut(1 << 20, None))
    });
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    node.images.remove(&image.id).unwrap();
    let blob = layer.blob.clone();
    registry.script(move |request| {
        let (from, last) = range_of(request)?.strip_prefix("bytes=")?.split_once('-')?;
        let (from, last): (usize, usize) = (from.parse().ok()?, last.parse().ok()?);
        let range = format!("bytes {from}-{last}/{}", blob.len());
        Some(Answer::new(206).header("content-range", range).body(vec![0; last - from + 1]))
    });
    let error = node.pull(&registry.name("a:t")).await.unwrap_err();
    assert!(chain(&error).contains("digest mismatch"), "{}", chain(&error));
}

#[tokio::test]
async fn pieces_that_are_refused_on_the_way_are_given_up_for_one_answer() {
    let (node, registry) = (Node::slow(), Registry::new());
    let (layer, content) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let size = layer.blob.len();
    // Too many questions, a server behind the same name that knows no ranges, one whose answers are short.
    for (status, body) in [(429, 0), (200, size), (206, 7)] {
        let (blob, asked) = (layer.blob.clone(), AtomicUsize::new(0));
        registry.script(move |request| {
            let (from, last) = range_of(request)?.strip_prefix("bytes=")?.split_once('-')?;
            let (from, last): (usize, usize) = (from.parse().ok()?, last.parse().ok()?);
            let rest = last + 1 == size && last - from >= 4 << 20;
            let number = asked.fetch_add(1, Ordering::Relaxed);
            // The rest of all is to be had, and the first piece was.
            if rest || number == 0 {
                return None;
            }
            let range = format!("bytes {from}-{last}/{size}");
            Some(Answer::new(status).header("content-range", range).body(&blob[..body]))
        });
        let image = node.pull(&registry.name("a:t")).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content, "{status}");
        node.images.remove(&image.id).unwrap();
    }
}

#[tokio::test]
async fn a_registry_that_refuses_all_at_last_is_told_by_what_it_said_first() {
    let (node, registry) = (Node::slow(), Registry::new());
    let (layer, _) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let asked = AtomicUsize::new(0);
    registry.script(move |request| {
        range_of(request)?;
        (asked.fetch_add(1, Ordering::Relaxed) > 0).then(|| Answer::new(429))
    });
    let error = node.pull(&registry.name("a:t")).await.unwrap_err();
    assert!(chain(&error).contains("429"), "{}", chain(&error));
}
