//! Pulls that succeed: packings, indexes, names, shared layers, flights.

use std::os::unix::fs::MetadataExt;

use super::archive::{PushedLayer, image_config, image_manifest};
use super::server::Gate;
use super::*;
use crate::image::manifest::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX};

#[tokio::test]
async fn an_image_arrives_with_its_files_config_names_and_spans() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layers = [PushedLayer::gzip(&hello()), PushedLayer::plain(&Archive::new().file("top", b"x"))];
    let (manifest, config) = registry.image("a/b", "1", &layers, "A=b");
    let spans = Recorder::default();
    let reference = Reference::parse(&registry.name("a/b:1")).unwrap();
    let image = node.images.pull(&reference, None, &spans).await.unwrap();

    assert_eq!(image.id, config.to_string());
    assert_eq!(image.repo_tags, [registry.name("a/b:1")]);
    assert_eq!(image.repo_digests, [registry.name(&format!("a/b@{manifest}"))]);
    assert_eq!((image.config.env.as_slice(), image.config.cmd.len()), (&["A=b".to_owned()][..], 0));
    let blobs: usize = layers.iter().map(|layer| layer.blob.len()).sum();
    assert_eq!(image.size, (blobs + image_config(&layers, "A=b").len()) as u64);
    assert_eq!(std::fs::read(node.file(&image, 0, "top")).unwrap(), b"x");
    assert_eq!(std::fs::read(node.file(&image, 1, "etc/hello")).unwrap(), b"hello\n");
    assert!(node.images.layers(&image).iter().all(|name| name.len() <= 26));
    assert_eq!(node.ingest(), 0);

    let names: Vec<String> = spans.spans().into_iter().map(|span| span.name).collect();
    for want in ["resolve", "config", "layer.0.download", "layer.0.unpack", "layer.1.download", "commit"] {
        assert!(names.iter().any(|name| name == want), "{want} in {names:?}");
    }
    assert_eq!(node.images.last_pull(&image.id), spans.spans());
    for name in [image.id.as_str(), &image.id[7..], &image.id[7..20], &image.repo_tags[0]] {
        assert_eq!(node.images.find(name).unwrap().id, image.id, "{name}");
    }
    assert!(node.images.find("nothing").is_none());
}

#[tokio::test]
async fn an_index_leads_to_this_platform() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layers = [PushedLayer::gzip(&hello())];
    let (manifest, config) = registry.image("a", "plain", &layers, "A=b");
    let size = image_manifest(&image_config(&layers, "A=b"), &layers).len();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    for media in [OCI_INDEX, DOCKER_LIST] {
        let index = serde_json::json!({"schemaVersion": 2, "mediaType": media, "manifests": [
            {"mediaType": DOCKER_MANIFEST, "digest": format!("sha256:{}", "0".repeat(64)), "size": 1,
             "platform": {"os": "linux", "architecture": "s390x"}},
            {"mediaType": DOCKER_MANIFEST, "digest": manifest.to_string(), "size": size,
             "platform": {"os": "linux", "architecture": arch}},
        ]});
        let index = registry.manifest("a", "many", &serde_json::to_vec(&index).unwrap(), media);
        let image = node.pull(&registry.name("a:many")).await.unwrap();
        assert_eq!(
            (image.id.clone(), image.manifest_digest.clone()),
            (config.to_string(), manifest.to_string())
        );
        assert!(image.repo_digests.contains(&registry.name(&format!("a@{index}"))), "{image:?}");
    }
}

#[tokio::test]
async fn docker_schema_2_and_a_pull_by_digest() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let mut layer = PushedLayer::gzip(&hello());
    layer.media = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let config = image_config(std::slice::from_ref(&layer), "D=1");
    registry.blob("a", &config);
    registry.blob("a", &layer.blob);
    let manifest = String::from_utf8(image_manifest(&config, &[layer])).unwrap();
    let manifest = manifest.replace("application/vnd.oci.image.manifest.v1+json", DOCKER_MANIFEST).replace(
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.docker.container.image.v1+json",
    );
    let digest = registry.manifest("a", "t", manifest.as_bytes(), DOCKER_MANIFEST);
    let image = node.pull(&registry.name(&format!("a@{digest}"))).await.unwrap();
    assert!(image.repo_tags.is_empty(), "a pull by digest names no tag: {image:?}");
    assert_eq!(image.repo_digests, [registry.name(&format!("a@{digest}"))]);
}

#[tokio::test]
async fn a_moved_tag_leaves_the_old_image_nameless() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let old = node.pull(&registry.name("a:t")).await.unwrap();
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=2");
    let new = node.pull(&registry.name("a:t")).await.unwrap();
    assert_ne!(old.id, new.id);
    let old = node.images.find(&old.id).unwrap();
    assert!(old.repo_tags.is_empty() && old.repo_digests.len() == 1, "{old:?}");
    assert_eq!(new.repo_tags, [registry.name("a:t")]);
    assert_eq!(node.images.list().len(), 2);
    assert_eq!(node.layer_folders(), 1, "both have the same layer");
    assert_eq!(registry.hits("/blobs/"), 3, "two configs, one layer");
}

#[tokio::test]
async fn a_pull_of_what_is_here_asks_for_the_manifest_only() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    registry.image("a", "u", &[PushedLayer::gzip(&hello())], "V=1");
    let first = node.pull(&registry.name("a:t")).await.unwrap();
    let before = registry.hits("/blobs/");
    let second = node.pull(&registry.name("a:u")).await.unwrap();
    assert_eq!(registry.hits("/blobs/"), before);
    assert_eq!(second.id, first.id);
    assert_eq!(second.repo_tags, [registry.name("a:t"), registry.name("a:u")]);
    assert_eq!(node.images.layers(&second), node.images.layers(&first));
    assert!(!second.diff_ids.is_empty());
}

#[tokio::test]
async fn pulls_at_the_same_time_share_images_and_layers() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layer = PushedLayer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    registry.image("b", "t", std::slice::from_ref(&layer), "V=2");
    let (open, gate) = Gate::new();
    let blob = crate::image::digest::Digest::of(&layer.blob).to_string();
    let held = layer.blob.clone();
    registry.script(move |request| {
        let is_layer = request.path.ends_with(&blob);
        is_layer.then(|| TestAnswer::new(200).body(held.clone()).cut(10, Some(&gate)))
    });
    let (a, b) = (registry.name("a:t"), registry.name("b:t"));
    let pulls = async { tokio::join!(node.pull(&a), node.pull(&a), node.pull(&b)) };
    let configs = until("all three wait for the layer", || {
        registry.hits("/manifests/") == 2 && registry.hits("/blobs/") == 3
    });
    let ((first, second, third), ()) = tokio::join!(pulls, async {
        configs.await;
        open.send(()).unwrap();
    });
    assert_eq!(first.unwrap().id, second.unwrap().id);
    third.unwrap();
    assert_eq!(registry.hits("/blobs/"), 3, "two configs, the layer once");
    assert_eq!((node.layer_folders(), node.ingest()), (1, 0));
}

#[tokio::test]
async fn rt_1_1_a_fix_up_layer_restores_what_a_layer_implies() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let base = Archive::new().directory("./", 0o755).owner(0, 7).directory("tmp/", 0o1777);
    let top = Archive::new().file("tmp/foo", b"x");
    registry.image("a", "t", &[PushedLayer::gzip(&base), PushedLayer::gzip(&top)], "V=1");
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    assert_eq!(node.images.layers(&image).len(), 3);
    let fixed = std::fs::metadata(node.file(&image, 0, "tmp")).unwrap();
    assert_eq!((fixed.mode() & 0o7777, fixed.gid(), fixed.mtime()), (0o1777, 7, 1_000_000_000));
    assert_eq!(std::fs::metadata(node.file(&image, 1, "tmp")).unwrap().mode() & 0o7777, 0o755);
    // Another image of the same chain has the same one.
    registry.image("a", "u", &[PushedLayer::gzip(&base), PushedLayer::gzip(&top)], "V=2");
    let other = node.pull(&registry.name("a:u")).await.unwrap();
    assert_eq!(node.images.layers(&other), node.images.layers(&image));
    assert_eq!(node.layer_folders(), 3);
}

#[tokio::test]
async fn rt_1_2_equal_and_empty_layers_stand_once_and_not_at_all() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let (base, twice, empty) = (hello(), Archive::new().file("w", b""), Archive::new());
    let layers: Vec<PushedLayer> =
        [&base, &twice, &empty, &twice].into_iter().map(PushedLayer::gzip).collect();
    registry.image("a", "t", &layers, "V=1");
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    let folders = node.images.layers(&image);
    assert_eq!(folders.len(), 2, "{folders:?}");
    assert!(node.file(&image, 0, "w").exists() && node.file(&image, 1, "etc/hello").exists());
    assert_eq!(image.diff_ids.len(), 4);
}

#[tokio::test]
async fn progress_is_seen_while_the_pull_runs_and_not_after() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layers = [PushedLayer::gzip(&hello()), PushedLayer::gzip(&Archive::new().file("x", &[5; 5000]))];
    registry.image("a", "old", &layers[..1], "V=0");
    registry.image("a", "t", &layers, "V=1");
    node.pull(&registry.name("a:old")).await.unwrap();
    let (open, gate) = Gate::new();
    let (blob, held) = (crate::image::digest::Digest::of(&layers[1].blob), layers[1].blob.clone());
    registry.script(move |request| {
        let is_layer = request.path.ends_with(&blob.to_string());
        is_layer.then(|| TestAnswer::new(200).body(held.clone()).cut(10, Some(&gate)))
    });
    let name = registry.name("a:t");
    assert_eq!(node.images.progress(&name), None);
    let watch = async {
        let seen = || node.images.progress(&name).filter(|pull| pull.layers.len() == 2);
        until("ten bytes have come", || seen().is_some_and(|pull| pull.layers[1].downloaded == 10)).await;
        let pull = seen().unwrap();
        open.send(()).unwrap();
        pull
    };
    let (image, pull) = tokio::join!(node.pull(&name), watch);
    image.unwrap();
    assert_eq!((pull.image.as_str(), pull.stage), (name.as_str(), "layers"));
    assert_eq!((pull.layers[0].stage, pull.layers[1].stage), ("exists", "downloading"));
    assert_eq!(pull.layers[1].total, layers[1].blob.len() as u64);
    assert_eq!(pull.layers[1].digest, blob.to_string());
    assert_eq!(node.images.progress(&name), None);
}

#[tokio::test]
async fn one_archive_is_one_layer_however_it_is_packed() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let archive = Archive::new().file("big", &vec![9; 3 << 20]).file("etc/hello", b"hello\n");
    for (tag, layer) in [
        ("z", PushedLayer::zstd(&archive)),
        ("c", PushedLayer::zstd_chunked(&archive)),
        ("g", PushedLayer::gzip(&archive)),
        ("p", PushedLayer::plain(&archive)),
    ] {
        registry.image("a", tag, &[layer], &format!("V={tag}"));
        let image = node.pull(&registry.name(&format!("a:{tag}"))).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "big")).unwrap(), vec![9; 3 << 20], "{tag}");
        assert_eq!(node.layer_folders(), 1);
        if tag != "p" {
            node.images.remove(&image.id).unwrap();
        }
    }
}

/// The inflater's own damage, told apart from that of the way.
#[tokio::test]
async fn damage_inside_a_good_blob_is_the_inflaters_to_find() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let archive = Archive::new().file(
        "big",
        &(0..200_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect::<Vec<_>>(),
    );
    for (index, mut layer) in
        [PushedLayer::gzip(&archive), PushedLayer::zstd(&archive)].into_iter().enumerate()
    {
        let middle = layer.blob.len() / 2;
        let good = layer.blob.clone();
        layer.blob[..8].fill(0xff);
        let tag = format!("t{index}");
        registry.image("a", &tag, &[layer.clone()], "V=1");
        let error = node.pull(&registry.name(&format!("a:{tag}"))).await.unwrap_err();
        assert_eq!(error.class(), Class::Corrupt, "{}", chain(&error));
        assert!(chain(&error).contains("stream: it is damaged"), "{}", chain(&error));
        layer.blob = good[..middle].to_vec();
        registry.image("a", &tag, &[layer], "V=1");
        let error = node.pull(&registry.name(&format!("a:{tag}"))).await.unwrap_err();
        assert!(chain(&error).contains("stream: it ends early"), "{}", chain(&error));
        node.wait_settled(0).await;
    }
}

#[tokio::test]
async fn the_largest_layers_begin_first() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let one_by_one = "side-by-side".parse().unwrap();
    for (without, order) in
        [(vec![one_by_one], [1, 2, 0]), (vec![one_by_one, "largest-first".parse().unwrap()], [0, 1, 2])]
    {
        let folder = folder.path().join(without.len().to_string());
        let config = ImagesConfig { switches: Switches::without(without), ..config(&folder) };
        let store = open_store(&config, &HashMap::new()).unwrap();
        let images = Images::with(&config, store, TransferLimits::default(), None, HashMap::new());
        let registry = Registry::new();
        let layers =
            [10, 9000, 3000].map(|size| PushedLayer::plain(&Archive::new().file("x", &vec![7; size])));
        registry.image("a", "t", &layers, "V=1");
        let reference = Reference::parse(&registry.name("a:t")).unwrap();
        images.pull(&reference, None, &Recorder::default()).await.unwrap();
        let digests = layers.map(|layer| crate::image::digest::Digest::of(&layer.blob).to_string());
        let which =
            |request: &RegistryRequest| digests.iter().position(|digest| request.path.ends_with(digest));
        assert_eq!(registry.log().iter().filter_map(which).collect::<Vec<_>>(), order);
    }
}

#[tokio::test]
async fn whatever_is_left_out_the_files_are_the_same() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let layers = [
        PushedLayer::gzip(&Archive::new().file("small", b"s").file("big", &bytes)),
        PushedLayer::zstd(&Archive::new().file("other", &bytes[7..])),
    ];
    for name in crate::image::switches::NAMES.map(|(name, _)| name) {
        let folder = folder.path().join(name);
        let config =
            ImagesConfig { switches: Switches::without(vec![name.parse().unwrap()]), ..config(&folder) };
        let store = open_store(&config, &HashMap::new()).unwrap();
        let images = Images::with(&config, store, TransferLimits::default(), None, HashMap::new());
        let registry = Registry::new();
        registry.image("a", "t", &layers, "V=1");
        let reference = Reference::parse(&registry.name("a:t")).unwrap();
        let image = images.pull(&reference, None, &Recorder::default()).await.unwrap();
        let [top, base] = &images.layers(&image)[..] else { panic!("two layers") };
        let read = |layer: &str, file: &str| std::fs::read(folder.join("root/layers").join(layer).join(file));
        assert_eq!(read(base, "small").unwrap(), b"s", "{name}");
        assert!(read(base, "big").unwrap() == bytes, "{name}");
        assert!(read(top, "other").unwrap() == bytes[7..], "{name}");
    }
}
