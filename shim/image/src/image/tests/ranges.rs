//! Downloads that are cut, and large layers that come in ranges.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::archive::PushedLayer;
use super::server::Gate;
use super::*;
use crate::image::digest::Digest;
use crate::image::manifest::Blob;
use crate::image::registry::{Http, RangeSpool, Repository, Sources};

const RANGE: usize = 4 << 20;
/// No wait of a test is longer, unless something hangs.
const LONGEST: Duration = Duration::from_secs(60);

/// Bytes that no packer makes smaller, and that differ everywhere.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// With seven places.
fn spool() -> RangeSpool {
    RangeSpool::new(&std::env::temp_dir(), 7)
}

fn large() -> (PushedLayer, Vec<u8>) {
    let content = noise(1, 21 << 20);
    (PushedLayer::plain(&Archive::new().file("large", &content)), content)
}

fn range_of(request: &RegistryRequest) -> Option<&str> {
    request.headers.get("range").map(String::as_str)
}

/// First byte and the one behind the last.
fn span_of(request: &RegistryRequest) -> Option<(usize, usize)> {
    let (from, last) = range_of(request)?.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, last.parse::<usize>().ok()? + 1))
}

fn spans(registry: &Registry) -> Vec<(usize, usize)> {
    registry.log().iter().filter_map(span_of).collect()
}

/// 206 with these bytes as that part of so many.
fn part(span: (usize, usize), size: usize, bytes: &[u8]) -> TestAnswer {
    let range = format!("bytes {}-{}/{size}", span.0, span.1 - 1);
    TestAnswer::new(206).header("content-range", range).body(bytes)
}

/// Pulls `a:t`, whose answers for the whole of `layer` stand still after `held` bytes until it is known whether
/// ranges are to be had; those for parts of it are `parts`' business.
async fn pull_with_gate(
    node: &TestNode,
    registry: &Registry,
    layer: &PushedLayer,
    held: usize,
    parts: impl Fn(&RegistryRequest) -> Option<TestAnswer> + Send + Sync + 'static,
) -> Result<Arc<Image>, Error> {
    let (digest, blob) = (Digest::of(&layer.blob).to_string(), layer.blob.clone());
    let (open, gate) = Gate::new();
    registry.script(move |request| match span_of(request) {
        Some(_) => parts(request),
        None => {
            let whole = request.path.contains(&digest);
            whole.then(|| TestAnswer::new(200).body(blob.clone()).cut(held, Some(&gate)))
        }
    });
    let (name, host) = (registry.name("a:t"), format!("http://{}/", registry.address));
    let known = || node.images.inner.http.is_range_host(&host).is_some();
    let pull = async {
        let (image, ()) = tokio::join!(node.pull(&name), async {
            until("it is known whether ranges are to be had", known).await;
            // Nobody listens any more where the ranges have come.
            let _ = open.send(());
        });
        image
    };
    tokio::time::timeout(LONGEST, pull).await.unwrap()
}

#[tokio::test]
async fn a_download_that_is_cut_goes_on_where_it_was() {
    // Without a length the end of the connection looks like that of the blob.
    for length in [Some("content-length"), None] {
        let (node, registry) = (TestNode::new(), Registry::new());
        let layer = PushedLayer::gzip(&hello());
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        let (digest, blob) = (Digest::of(&layer.blob).to_string(), layer.blob.clone());
        registry.script(move |request| {
            let whole = request.path.contains(&digest) && range_of(request).is_none();
            let answer = TestAnswer::new(200).body(blob.clone()).cut(20, None);
            whole.then(|| if length.is_some() { answer } else { answer.header("content-length", "") })
        });
        let image = node.pull(&registry.name("a:t")).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "etc/hello")).unwrap(), b"hello\n");
        assert_eq!(spans(&registry), [(20, layer.blob.len())], "{length:?}");
    }
}

#[tokio::test]
async fn a_large_layer_comes_in_pieces_where_the_network_is_slow_and_no_byte_twice() {
    let (node, registry) = (TestNode::slow(), Registry::new());
    let (layer, content) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let image = pull_with_gate(&node, &registry, &layer, 5 << 20, |_| None).await.unwrap();
    assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content);
    let mut ranges = spans(&registry);
    ranges.sort_unstable();
    assert!(ranges.len() >= 3, "{ranges:?}");
    // The first answer goes on while the first range is asked for, and up to where that begins.
    assert!(ranges[0].0 >= RANGE + (2 << 20), "{ranges:?}");
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ranges:?}");
    assert_eq!(ranges.last().unwrap().1, layer.blob.len());
}

/// A faster network is of no use to it. That it waits once says little: it may share its processor with the registry.
#[tokio::test]
async fn a_node_that_is_busy_unpacking_asks_for_no_pieces() {
    let registry = Registry::new();
    let content = noise(6, 21 << 20);
    let blob = Blob { digest: registry.blob("a", &content), size: content.len() as u64 };
    let reference = Reference::parse(&registry.name("a:t")).unwrap();
    for hungry in [None, Some("once"), Some("before"), Some("meanwhile")] {
        let waits = matches!(hungry, Some("before" | "meanwhile"));
        let mut once = hungry == Some("once");
        let before = spans(&registry).len();
        // Slower than any line is.
        let http =
            Arc::new(Http::new(TransferLimits { slow: 1e300, ..TransferLimits::default() }, Some(spool())));
        let repository = Repository::new(&http, &Sources::default(), &reference, None).unwrap();
        let (mut download, _) = repository.blob(&blob, 0).await.unwrap();
        let mut found = 0;
        loop {
            // One chunk, which counts in one look, and not in the first, which counts for nothing.
            let now = found > 2 << 20 && std::mem::take(&mut once);
            let idle = AtomicBool::new(hungry == Some("before") || now);
            let next = tokio::time::timeout(LONGEST, download.chunk(|| idle.load(Ordering::Relaxed)));
            // Only while it waits: the other one is looked at first.
            let (next, ()) = tokio::join!(next, async {
                idle.fetch_or(hungry == Some("meanwhile"), Ordering::Relaxed);
            });
            let Some(chunk) = next.unwrap().unwrap() else { break };
            found += chunk.len();
            if found > 4 << 20 && (waits || found < 6 << 20) && spans(&registry).len() == before {
                // The question goes out beside the answer, which must not end first on a machine that is busy.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert_eq!(found, content.len());
        assert_eq!(spans(&registry).len() > before, waits, "{hungry:?}");
    }
}

#[tokio::test]
async fn what_a_host_can_is_remembered() {
    let (layer, content) = large();
    for serves in [true, false] {
        let (node, registry) = (TestNode::slow(), Registry::new());
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        let refuse = move |_: &RegistryRequest| (!serves).then(|| TestAnswer::new(416));
        let image = pull_with_gate(&node, &registry, &layer, 5 << 20, refuse).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content);
        node.images.remove(&image.id).unwrap();
        let before = spans(&registry).len();
        // Before anything could be measured.
        pull_with_gate(&node, &registry, &layer, 1 << 20, refuse).await.unwrap();
        let asked = &spans(&registry)[before..];
        match serves {
            true => assert_eq!(asked.iter().map(|span| span.0).min(), Some(RANGE), "{asked:?}"),
            false => assert!(asked.is_empty() && before == 1, "{before} {asked:?}"),
        }
    }
}

#[tokio::test]
async fn without_ranges_it_comes_in_one() {
    let (layer, content) = large();
    // Whoever knows no ranges gives all of it; another one refuses, or has too much to do.
    for status in [200, 416, 503] {
        let (node, registry) = (TestNode::slow(), Registry::new());
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        let blob = layer.blob.clone();
        let refuse = move |_: &RegistryRequest| Some(TestAnswer::new(status).body(blob.clone()));
        let image = pull_with_gate(&node, &registry, &layer, 5 << 20, refuse).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content);
        assert_eq!(registry.hits(&Digest::of(&layer.blob).to_string()), 2, "{status}");
    }
}

#[tokio::test]
async fn pieces_come_while_nobody_takes_them() {
    let registry = Registry::new();
    let content = noise(3, 45 << 20);
    let blob = Blob { digest: registry.blob("a", &content), size: content.len() as u64 };
    let http = Arc::new(Http::new(
        TransferLimits { slow: f64::INFINITY, ..TransferLimits::default() },
        Some(spool()),
    ));
    let reference = Reference::parse(&registry.name("a:t")).unwrap();
    let repository = Repository::new(&http, &Sources::default(), &reference, None).unwrap();
    let (mut download, _) = repository.blob(&blob, 0).await.unwrap();
    let (open, gate) = Gate::new();
    // The range whose turn it is stands still as well.
    let asked = AtomicUsize::new(0);
    let bytes = content.clone();
    registry.script(move |request| {
        let span = span_of(request)?;
        let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
        first.then(|| part(span, bytes.len(), &bytes[span.0..span.1]).cut(1, Some(&gate)))
    });
    let mut found = Vec::new();
    while found.len() < 5 << 20 {
        found.extend_from_slice(&download.chunk(|| true).await.unwrap().unwrap());
    }
    until("all places are taken", || spans(&registry).len() == 7).await;
    open.send(()).unwrap();
    let all = async {
        while let Some(chunk) = download.chunk(|| true).await.unwrap() {
            found.extend_from_slice(&chunk);
        }
    };
    tokio::time::timeout(LONGEST, all).await.unwrap();
    assert!(found == content);
    assert!(spans(&registry).len() > 7, "places are given back");
}

/// Without room for ranges a layer comes as one answer, and that says nothing of its host.
#[tokio::test]
async fn a_disk_that_has_no_room_for_pieces_costs_no_pull() {
    let registry = Registry::new();
    let content = noise(4, 10 * RANGE);
    let blob = Blob { digest: registry.blob("a", &content), size: content.len() as u64 };
    let (host, reference) =
        (format!("http://{}/", registry.address), Reference::parse(&registry.name("a:t")).unwrap());
    let (folder, nowhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap().path().to_owned());
    let full = RangeSpool::new(folder.path(), 7).with_floor(u64::MAX);
    // One that is gone for ranges from the eighth on.
    let goes = RangeSpool::new(folder.path(), 7);
    for (spool, known, asked) in [
        (full.clone(), false, 0..=0),
        (full, true, 1..=1),
        (RangeSpool::new(&nowhere, 7), true, 1..=1),
        (goes, true, 3..=8),
    ] {
        let http = Arc::new(Http::new(
            TransferLimits { slow: f64::INFINITY, ..TransferLimits::default() },
            Some(spool),
        ));
        if known {
            http.record_range_support(&host);
        }
        let before = spans(&registry).len();
        let repository = Repository::new(&http, &Sources::default(), &reference, None).unwrap();
        let (mut download, _) = repository.blob(&blob, 0).await.unwrap();
        let mut found = Vec::new();
        if *asked.end() > 1 {
            until("all places are taken", || spans(&registry).len() - before == 7).await;
            std::fs::remove_dir(folder.path()).unwrap();
        }
        let all = async {
            while let Some(chunk) = download.chunk(|| true).await.unwrap() {
                found.extend_from_slice(&chunk);
            }
        };
        tokio::time::timeout(LONGEST, all).await.unwrap();
        assert!(found == content);
        let spans = &spans(&registry)[before..];
        assert!(asked.contains(&spans.len()), "{spans:?}");
        assert!(spans.last().is_none_or(|last| last.1 == content.len()), "the rest as one: {spans:?}");
        assert_eq!(http.is_range_host(&host), known.then_some(true));
    }
}

/// A round trip less for each range, and none of them counts for the registry's limits.
#[tokio::test]
async fn pieces_are_asked_for_where_the_redirect_led_until_that_is_refused() {
    let (registry, store) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let content = noise(5, 5 * RANGE);
    let blob = Blob { digest: registry.blob("a", &content), size: content.len() as u64 };
    let http = Arc::new(Http::new(TransferLimits::default(), Some(spool())));
    http.record_range_support(&format!("http://{}/", store.address));
    let (to, path) = (store.address, format!("/v2/a/blobs/{}", blob.digest));
    store.blob("a", &content);
    let signed = AtomicUsize::new(0);
    registry.script(move |_| {
        let number = signed.fetch_add(1, Ordering::Relaxed);
        Some(TestAnswer::new(307).header("location", format!("http://{to}{path}?signature={number}")))
    });
    let reference = Reference::parse(&registry.name("a:t")).unwrap();
    let repository = Repository::new(&http, &Sources::default(), &reference, None).unwrap();
    // The first time all is good; then the first address is good for the first answer alone.
    for expires in [false, true] {
        store.script(move |request| {
            let old = expires && span_of(request).is_some() && request.path.ends_with("signature=1");
            old.then(|| TestAnswer::new(403))
        });
        let before = registry.log().len();
        let (mut download, _) = repository.blob(&blob, 0).await.unwrap();
        let mut found = Vec::new();
        while let Some(chunk) = tokio::time::timeout(LONGEST, download.chunk(|| true)).await.unwrap().unwrap()
        {
            found.extend_from_slice(&chunk);
        }
        assert!(found == content);
        let asked = registry.log().len() - before;
        assert!(if expires { (2..=5).contains(&asked) } else { asked == 1 }, "{expires}: {asked}");
    }
    assert!(store.log().iter().all(|request| !request.headers.contains_key("authorization")));
}

/// All that come behind them wait for the first of their layer.
#[tokio::test]
async fn two_layers_whose_first_pieces_hang_both_end() {
    let (node, registry) = (TestNode::slow(), Registry::new());
    let contents = [noise(1, 32 << 20), noise(2, 32 << 20)];
    let layers: Vec<PushedLayer> =
        contents.iter().map(|content| PushedLayer::plain(&Archive::new().file("large", content))).collect();
    registry.image("a", "t", &layers, "V=1");
    let (open, gates): (Vec<_>, Vec<_>) = (0..2).map(|_| Gate::new()).unzip();
    let digests: Vec<String> = layers.iter().map(|layer| Digest::of(&layer.blob).to_string()).collect();
    let (held, known) = (layers.clone(), digests.clone());
    let first = [AtomicUsize::new(0), AtomicUsize::new(0)];
    registry.script(move |request| {
        let span = span_of(request)?;
        let which = known.iter().position(|digest| request.path.contains(digest))?;
        let blob = &held[which].blob;
        let is_first = first[which].fetch_add(1, Ordering::Relaxed) == 0;
        is_first.then(|| part(span, blob.len(), &blob[span.0..span.1]).cut(1 << 20, Some(&gates[which])))
    });
    let name = registry.name("a:t");
    let pull = async {
        let (image, ()) = tokio::join!(node.pull(&name), async {
            let hits = |digest: &String| {
                let of =
                    |request: &&RegistryRequest| request.path.contains(digest) && range_of(request).is_some();
                registry.log().iter().filter(of).count()
            };
            until("both ask, and for more than their first", || {
                let (one, other) = (hits(&digests[0]), hits(&digests[1]));
                one > 0 && other > 0 && one + other >= 7
            })
            .await;
            open.iter().for_each(|open| open.send(()).unwrap());
        });
        image
    };
    let image = tokio::time::timeout(LONGEST, pull).await.unwrap().unwrap();
    assert!(std::fs::read(node.file(&image, 0, "large")).unwrap() == contents[1]);
    assert!(std::fs::read(node.file(&image, 1, "large")).unwrap() == contents[0]);
}

#[tokio::test]
async fn a_piece_that_is_cut_goes_on_and_a_wrong_one_ends_the_pull() {
    let (node, registry) = (TestNode::slow(), Registry::new());
    let (layer, _) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let blob = layer.blob.clone();
    let cut = move |request: &RegistryRequest| {
        let (from, to) = span_of(request)?;
        // Whole ranges are cut, their rests are not.
        (to - from == RANGE).then(|| part((from, to), blob.len(), &blob[from..to]).cut(1 << 20, None))
    };
    let image = pull_with_gate(&node, &registry, &layer, 5 << 20, cut).await.unwrap();
    assert!(spans(&registry).iter().any(|(from, to)| to - from == RANGE - (1 << 20)));
    node.images.remove(&image.id).unwrap();
    let size = layer.blob.len();
    let wrong = move |request: &RegistryRequest| {
        let (from, to) = span_of(request)?;
        Some(part((from, to), size, &vec![0; to - from]))
    };
    let error = pull_with_gate(&node, &registry, &layer, 5 << 20, wrong).await.unwrap_err();
    assert!(chain(&error).contains("digest mismatch"), "{}", chain(&error));
}

#[tokio::test]
async fn pieces_that_are_refused_on_the_way_are_given_up_for_one_answer() {
    let (layer, content) = large();
    let size = layer.blob.len();
    // Too many questions, a server behind the same name that knows no ranges, one whose answers are short.
    for (status, body) in [(429, 0), (200, 0), (206, 7)] {
        let (node, registry) = (TestNode::slow(), Registry::new());
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        let (blob, asked) = (layer.blob.clone(), AtomicUsize::new(0));
        let refuse = move |request: &RegistryRequest| {
            let (from, to) = span_of(request)?;
            let rest = to == size && to - from > RANGE;
            let number = asked.fetch_add(1, Ordering::Relaxed);
            // The rest of all is to be had, and the first range was.
            if rest || number == 0 {
                return None;
            }
            let range = format!("bytes {from}-{}/{size}", to - 1);
            Some(TestAnswer::new(status).header("content-range", range).body(if status == 200 {
                &blob[..]
            } else {
                &blob[from..from + body]
            }))
        };
        let image = pull_with_gate(&node, &registry, &layer, 5 << 20, refuse).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "large")).unwrap(), content, "{status}");
        let host = format!("http://{}/", registry.address);
        assert_eq!(node.images.inner.http.is_range_host(&host), Some(false), "{status}");
    }
}

#[tokio::test]
async fn a_registry_that_refuses_all_at_last_is_told_by_what_it_said_first() {
    let (node, registry) = (TestNode::slow(), Registry::new());
    let (layer, _) = large();
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let asked = AtomicUsize::new(0);
    let refuse =
        move |_: &RegistryRequest| (asked.fetch_add(1, Ordering::Relaxed) > 0).then(|| TestAnswer::new(429));
    let error = pull_with_gate(&node, &registry, &layer, 5 << 20, refuse).await.unwrap_err();
    assert!(chain(&error).contains("429"), "{}", chain(&error));
}
