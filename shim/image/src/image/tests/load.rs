//! Images from archives: both forms, and what hostile ones come to.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::archive::{PushedLayer, image_config, image_manifest};
use super::*;
use crate::image::digest::Digest;
use crate::image::{ArchiveError, Naming, Upload};

const FULL_NAME: &str = "io.containerd.image.name";

fn layers() -> [PushedLayer; 2] {
    let top = Archive::new().directory("etc/", 0o755).file("etc/top", b"x");
    [
        PushedLayer::gzip(&Archive::new().directory("etc/", 0o755).file("etc/hello", b"hello\n")),
        PushedLayer::plain(&top),
    ]
}

fn blob(archive: Archive, bytes: &[u8]) -> Archive {
    archive.file(&format!("blobs/sha256/{}", Digest::of(bytes).hex()), bytes)
}

/// An OCI layout, as `docker save` writes it: blobs before the documents that name them.
fn layout(layers: &[PushedLayer], annotations: &Value) -> Archive {
    let config = image_config(layers, "A=b");
    let manifest = image_manifest(&config, layers);
    let mut archive = Archive::new().directory("blobs/", 0o755);
    for layer in layers {
        archive = blob(archive, &layer.blob);
    }
    let archive = blob(blob(archive, &config), &manifest);
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": Digest::of(&manifest).to_string(), "size": manifest.len(), "annotations": annotations,
    }]});
    archive
        .file("index.json", index.to_string().as_bytes())
        .file("oci-layout", b"{\"imageLayoutVersion\":\"1.0.0\"}")
}

/// What `docker save` wrote before version 25, a layer of it by a link.
fn docker_save_archive(layers: &[PushedLayer; 2], tags: &Value) -> Archive {
    let config = image_config(layers, "A=b");
    let name = format!("{}.json", Digest::of(&config).hex());
    let manifest = json!([{"Config": name, "RepoTags": tags, "Layers": ["one/layer.tar", "two/layer.tar"]}]);
    Archive::new()
        .directory("one/", 0o755)
        .file("one/layer.tar", &layers[0].blob)
        .symlink("two/layer.tar", "../three/layer.tar")
        .file("three/layer.tar", &layers[1].blob)
        .file(&name, &config)
        .file("manifest.json", manifest.to_string().as_bytes())
}

async fn load(node: &TestNode, name: &str, tar: &[u8]) -> Result<Vec<Arc<Image>>, Error> {
    load_as(node, Naming { name: name.to_owned(), ..Naming::default() }, tar).await
}

async fn load_as(node: &TestNode, naming: Naming, tar: &[u8]) -> Result<Vec<Arc<Image>>, Error> {
    let (send, pieces) = mpsc::channel(1);
    let chunks: Vec<_> = tar.chunks(1000).map(bytes::Bytes::copy_from_slice).collect();
    let sender = tokio::spawn(async move {
        for chunk in chunks {
            if send.send(Upload::Chunk(chunk)).await.is_err() {
                return;
            }
        }
        let _ = send.send(Upload::End).await;
    });
    let loaded = node.images.load(naming, pieces).await;
    sender.await.unwrap();
    loaded
}

async fn load_error(name: &str, archive: Archive) -> ArchiveError {
    let node = TestNode::new();
    let error = load(&node, name, &archive.tar()).await.unwrap_err();
    node.wait_settled(0).await;
    match error {
        Error::Archive { source } => *source,
        other => panic!("{}", chain(&other)),
    }
}

#[tokio::test]
async fn an_oci_layout_becomes_an_image_with_its_name() {
    let (node, layers) = (TestNode::new(), layers());
    let archive = layout(&layers, &json!({FULL_NAME: "docker.io/library/web:1"}));
    let images = load(&node, "", &archive.tar()).await.unwrap();
    let [image] = &images[..] else { panic!("{images:?}") };
    assert_eq!(image.id, Digest::of(&image_config(&layers, "A=b")).to_string());
    assert_eq!(image.repo_tags, ["docker.io/library/web:1"]);
    assert_eq!(image.repo_digests, [""; 0], "as with containerd");
    assert_eq!(image.config.env, ["A=b"]);
    assert_eq!(std::fs::read(node.file(image, 1, "etc/hello")).unwrap(), b"hello\n");
    assert_eq!(std::fs::read(node.file(image, 0, "etc/top")).unwrap(), b"x");
    assert_eq!(node.images.find("web:1").unwrap().id, image.id);
    node.wait_settled(2).await;

    // Once more, under another name: nothing is unpacked, and both names stay.
    let archive = layout(&layers, &json!({"org.opencontainers.image.ref.name": "2"}));
    let images = load(&node, "docker.io/library/web", &archive.tar()).await.unwrap();
    assert_eq!(images[0].repo_tags, ["docker.io/library/web:1", "docker.io/library/web:2"]);
    node.wait_settled(2).await;
    assert!(node.images.remove("web:1").unwrap().is_some());
    node.wait_settled(0).await;
}

#[tokio::test]
async fn what_docker_saves_becomes_an_image_with_its_tags() {
    let (node, layers) = (TestNode::new(), layers());
    let archive = docker_save_archive(&layers, &json!(["web:1", "localhost:5000/other/web:2"]));
    let images = load(&node, "", &archive.tar()).await.unwrap();
    let [image] = &images[..] else { panic!("{images:?}") };
    assert_eq!(image.id, Digest::of(&image_config(&layers, "A=b")).to_string());
    assert_eq!(image.repo_tags, ["docker.io/library/web:1", "localhost:5000/other/web:2"]);
    assert_eq!(std::fs::read(node.file(image, 1, "etc/hello")).unwrap(), b"hello\n");
    let blobs: usize = layers.iter().map(|layer| layer.blob.len()).sum();
    assert_eq!(image.size, (blobs + image_config(&layers, "A=b").len()) as u64);
    node.wait_settled(2).await;
}

#[tokio::test]
async fn an_image_without_a_name_needs_one_from_the_caller() {
    let layers = layers();
    let unnamed = load_error("", docker_save_archive(&layers, &Value::Null)).await;
    assert!(matches!(unnamed, ArchiveError::Unnamed { .. }), "{unnamed}");
    let node = TestNode::new();
    let images = load(&node, "web:3", &docker_save_archive(&layers, &Value::Null).tar()).await.unwrap();
    assert_eq!(images[0].repo_tags, ["docker.io/library/web:3"]);
    // Of two, one would lose it again.
    let config = image_config(&layers, "A=c");
    let entries = [image_config(&layers, "A=b"), config]
        .map(|config| (format!("{}.json", Digest::of(&config).hex()), config));
    let manifest: Vec<Value> = entries
        .iter()
        .map(|(name, _)| json!({"Config": name, "RepoTags": null, "Layers": ["one.tar", "two.tar"]}))
        .collect();
    let mut both = Archive::new().file("one.tar", &layers[0].blob).file("two.tar", &layers[1].blob);
    for (name, config) in &entries {
        both = both.file(name, config);
    }
    let both = both.file("manifest.json", json!(manifest).to_string().as_bytes());
    assert!(matches!(load_error("web:3", both).await, ArchiveError::Called { .. }));
    let bad = load_error("Not A Name", docker_save_archive(&layers, &Value::Null)).await;
    assert!(matches!(bad, ArchiveError::Name { .. }), "{bad}");
}

#[tokio::test]
async fn a_name_that_no_image_of_the_archive_needs_is_refused() {
    let layers = layers();
    let named = load_error("web:3", docker_save_archive(&layers, &json!(["web:1"]))).await;
    let text = named.to_string();
    assert!(text.contains("docker.io/library/web:1") && text.contains("leave --name away"), "{text}");
    let named = load_error("web:3", layout(&layers, &json!({FULL_NAME: "web:1"}))).await;
    assert!(matches!(named, ArchiveError::Named { .. }), "{named}");
}

#[tokio::test]
async fn an_image_without_a_name_may_be_called_by_its_digest() {
    let (node, layers) = (TestNode::new(), layers());
    let naming = Naming { repository: "import".to_owned(), ..Naming::default() };
    let manifest = Digest::of(&image_manifest(&image_config(&layers, "A=b"), &layers));
    // A bare tag is none: the next archive's `latest` would take it.
    for annotations in [json!({}), json!({"org.opencontainers.image.ref.name": "latest"})] {
        let images = load_as(&node, naming.clone(), &layout(&layers, &annotations).tar()).await.unwrap();
        assert_eq!(images[0].repo_tags, [""; 0]);
        assert_eq!(images[0].repo_digests, [format!("docker.io/library/import@{manifest}")]);
    }
    let images =
        load_as(&node, naming.clone(), &docker_save_archive(&layers, &Value::Null).tar()).await.unwrap();
    assert!(images[0].repo_digests.iter().all(|name| name.contains("/import@sha256:")), "{images:?}");
    // One that has a name keeps it alone.
    let named = docker_save_archive(&layers, &json!(["web:1"])).tar();
    assert_eq!(load_as(&node, naming, &named).await.unwrap()[0].repo_tags, ["docker.io/library/web:1"]);
    node.wait_settled(2).await;
}

/// What buildx writes: an index of platforms, beside each image the attestation of it. Of others' images the archive
/// may lack the blobs (`docker save` of containerd's image store).
#[tokio::test]
async fn of_an_index_the_image_of_this_machine_is_taken_and_no_attestation() {
    let (node, layers) = (TestNode::new(), layers());
    let config = image_config(&layers, "A=b");
    let manifest = image_manifest(&config, &layers);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let entry = |digest: Digest, os: &str, architecture: &str, notes: Value| {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest.to_string(), "size": 7,
            "platform": {"os": os, "architecture": architecture}, "annotations": notes,
        })
    };
    let attestation = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let entries = [
        entry(Digest::of(b"of another"), "linux", "s390x", Value::Null),
        entry(Digest::of(b"said of it"), "unknown", "unknown", attestation.clone()),
        entry(Digest::of(&manifest), "linux", architecture, Value::Null),
        entry(Digest::of(b"said of ours"), "unknown", "unknown", attestation),
    ];
    let media = "application/vnd.oci.image.index.v1+json";
    let inner = json!({"schemaVersion": 2, "mediaType": media, "manifests": entries}).to_string();
    let outer = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": media, "digest": Digest::of(inner.as_bytes()).to_string(), "size": inner.len(),
        "annotations": {FULL_NAME: "docker.io/library/web:1"},
    }]});
    // The same, without an index between.
    let mut flat = json!({"schemaVersion": 2, "manifests": entries});
    flat["manifests"][2]["annotations"] = json!({FULL_NAME: "docker.io/library/web:2"});
    for (index, name) in [(outer, "docker.io/library/web:1"), (flat, "docker.io/library/web:2")] {
        let mut archive = Archive::new();
        for bytes in [layers[0].blob.as_slice(), &layers[1].blob, &config, &manifest, inner.as_bytes()] {
            archive = blob(archive, bytes);
        }
        let archive = archive.file("index.json", index.to_string().as_bytes());
        let images = load(&node, "", &archive.tar()).await.unwrap();
        let [image] = &images[..] else { panic!("{images:?}") };
        assert_eq!(image.id, Digest::of(&config).to_string());
        assert!(image.repo_tags.contains(&name.to_owned()), "{image:?}");
    }
    node.wait_settled(2).await;
}

#[tokio::test]
async fn a_tag_leaves_the_image_that_had_it_and_lives_as_long_as_its_image() {
    let (node, layers) = (TestNode::new(), layers());
    load(&node, "", &docker_save_archive(&layers, &json!(["web:1"])).tar()).await.unwrap();
    let one = node.images.find("web:1").unwrap().id.clone();
    let tag = |wanted: &str, tag: &str| {
        let (images, wanted, tag) = (node.images.clone(), wanted.to_owned(), tag.to_owned());
        async move { images.tag(&wanted, tag).await.unwrap() }
    };
    for wanted in [one.as_str(), "web:1", &one["sha256:".len()..][..20]] {
        let image = tag(wanted, "docker.io/library/web:2").await.unwrap();
        assert_eq!(image.repo_tags, ["docker.io/library/web:1", "docker.io/library/web:2"], "{wanted}");
    }
    assert!(tag("absent:1", "docker.io/library/web:3").await.is_none());
    assert!(node.images.find("web:3").is_none());

    let other = [layers[0].clone(), PushedLayer::plain(&Archive::new().file("other", b"x"))];
    load(&node, "", &docker_save_archive(&other, &json!(["other:1"])).tar()).await.unwrap();
    let moved = tag("other:1", "docker.io/library/web:2").await.unwrap();
    assert_eq!(moved.repo_tags, ["docker.io/library/other:1", "docker.io/library/web:2"]);
    assert_eq!(node.images.find(&one).unwrap().repo_tags, ["docker.io/library/web:1"]);
    node.wait_settled(3).await;
    assert_eq!(node.images.remove("web:2").unwrap(), Some(moved.id.clone()));
    node.wait_settled(2).await;
}

#[tokio::test]
async fn bytes_that_are_not_those_that_were_promised_leave_nothing() {
    let good = layers();
    // The layer's blob is there under the name of another.
    let mut swapped = good.clone();
    swapped[0].blob = PushedLayer::gzip(&Archive::new().file("evil", b"x")).blob;
    let config = image_config(&good, "A=b");
    let manifest = image_manifest(&config, &swapped);
    let mut archive = blob(blob(Archive::new(), &config), &manifest);
    for layer in &swapped {
        archive = blob(archive, &layer.blob);
    }
    let index = json!({"manifests": [{"digest": Digest::of(&manifest).to_string(), "size": manifest.len(),
        "annotations": {FULL_NAME: "web:1"}}]});
    let node = TestNode::new();
    let error =
        load(&node, "", &archive.file("index.json", index.to_string().as_bytes()).tar()).await.unwrap_err();
    assert_eq!(error.class(), Class::Corrupt, "{}", chain(&error));
    assert!(chain(&error).contains("diff id mismatch"), "{}", chain(&error));
    node.wait_settled(0).await;

    let path = format!("blobs/sha256/{}", "0".repeat(64));
    let index = json!({"manifests": [{"digest": format!("sha256:{}", "0".repeat(64)), "size": 2,
        "annotations": {FULL_NAME: "web:1"}}]});
    let lie = Archive::new().file(&path, b"{}").file("index.json", index.to_string().as_bytes());
    assert!(matches!(load_error("", lie).await, ArchiveError::Digest { .. }));
    let absent = Archive::new().file("index.json", index.to_string().as_bytes());
    assert!(matches!(load_error("", absent).await, ArchiveError::Missing { .. }));
}

#[tokio::test]
async fn what_is_no_image_archive_says_what_it_lacks() {
    assert!(matches!(load_error("", Archive::new().file("etc/passwd", b"x")).await, ArchiveError::Unknown));
    let index = |text: &[u8]| Archive::new().file("index.json", text);
    assert!(matches!(load_error("", index(b"[]")).await, ArchiveError::Json { .. }));
    assert!(matches!(load_error("", index(b"{\"manifests\":[]}")).await, ArchiveError::Empty));
    let foreign = json!({"manifests": [{"digest": format!("sha256:{}", "0".repeat(64)), "size": 2,
        "platform": {"os": "windows", "architecture": "amd64"}, "annotations": {FULL_NAME: "web:1"}}]});
    assert!(matches!(load_error("", index(foreign.to_string().as_bytes())).await, ArchiveError::Empty));
}

#[tokio::test]
async fn a_client_that_gives_up_leaves_nothing() {
    let node = TestNode::new();
    let tar = layout(&layers(), &json!({FULL_NAME: "web:1"})).tar();
    let (send, pieces) = mpsc::channel(1);
    let half = bytes::Bytes::copy_from_slice(&tar[..tar.len() / 2]);
    let sender = tokio::spawn(async move { send.send(Upload::Chunk(half)).await.is_ok() });
    let error = node.images.load(Naming::default(), pieces).await.unwrap_err();
    assert!(sender.await.unwrap());
    assert!(chain(&error).contains("the client gave up"), "{}", chain(&error));
    assert_eq!(error.class(), Class::Unavailable);
    node.wait_settled(0).await;
}
