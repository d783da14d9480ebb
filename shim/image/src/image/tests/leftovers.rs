//! Layers of pulls that come to nothing: they go, unless another pull needs them.

use tokio::task::JoinHandle;

use super::archive::PushedLayer;
use super::server::Gate;
use super::*;
use crate::image::digest::Digest;
use crate::image::sync::Syncer;

type Pull = JoinHandle<Result<Arc<Image>, Error>>;

/// Two images with a layer in common: `bad:t` has one more that is junk, `good:t` one more that is
/// not. Each blob waits for its gate.
struct Scene {
    node: TestNode,
    gates: [std::sync::mpsc::Sender<()>; 3],
    registry: Registry,
    shared: PushedLayer,
}

const SHARED: usize = 0;
const JUNK: usize = 1;
const OTHER: usize = 2;

impl Scene {
    fn new() -> Self {
        let (node, registry) = (TestNode::new(), Registry::new());
        let shared = PushedLayer::gzip(&hello());
        let junk = junk("");
        let other = PushedLayer::gzip(&Archive::new().file("other", b"x"));
        registry.image("bad", "t", &[shared.clone(), junk.clone()], "V=1");
        registry.image("good", "t", &[shared.clone(), other.clone()], "V=2");
        let ways = [Gate::new(), Gate::new(), Gate::new()];
        let gates = ways.each_ref().map(|(open, _)| open.clone());
        let held: Vec<(String, TestAnswer)> = [&shared, &junk, &other]
            .iter()
            .zip(ways)
            .map(|(layer, (_, gate))| {
                let answer = TestAnswer::new(200).body(layer.blob.clone()).cut(1, Some(&gate));
                (Digest::of(&layer.blob).to_string(), answer)
            })
            .collect();
        registry.script(move |request| {
            held.iter().find(|(blob, _)| request.path.ends_with(blob)).map(|(_, answer)| answer.clone())
        });
        Self { node, gates, registry, shared }
    }

    fn start(&self, name: &str) -> Pull {
        start(&self.node.images, &self.registry.name(name))
    }

    fn open(&self, gate: usize) {
        self.gates[gate].send(()).unwrap();
    }

    async fn waiting(&self, count: usize) {
        let layers = &self.node.images.inner.layers;
        until("they wait for the shared layer", || layers.waiting(&self.shared.diff_id) == count).await;
    }

    /// The shared layer is here, and nobody waits for it any longer.
    async fn wait_arrived(&self) {
        let store = &self.node.images.inner.store;
        let key = self.shared.diff_id.to_string();
        until("the shared layer is here", || store.layer(&key).is_some()).await;
        self.waiting(0).await;
    }

    async fn check_good(&self, pull: Pull) {
        let image = pull.await.unwrap().unwrap();
        assert!(self.node.file(&image, 0, "other").exists());
        assert!(self.node.file(&image, 1, "etc/hello").exists());
        self.node.wait_settled(2).await;
        assert_eq!(self.node.journal(), 3, "two layers, one image");
        assert_eq!(self.node.images.remove_unneeded_layers(), 0);
        assert_eq!(self.node.layer_folders(), 2);
    }
}

fn junk(name: &str) -> PushedLayer {
    let blob = format!("junk{name}").into_bytes();
    PushedLayer { diff_id: Digest::of(&blob), blob, ..PushedLayer::gzip(&hello()) }
}

fn start(images: &Images, name: &str) -> Pull {
    let (images, reference) = (images.clone(), Reference::parse(name).unwrap());
    tokio::spawn(async move { images.pull(&reference, None, &Recorder::default()).await })
}

async fn check_bad(pull: Pull) {
    let error = pull.await.unwrap().unwrap_err();
    assert_eq!(error.class(), Class::Corrupt, "{}", chain(&error));
}

/// How many layers the redb file has.
pub(super) fn on_disk(folder: &Path) -> u64 {
    use redb::{ReadableDatabase, ReadableTableMetadata};
    let database = redb::Database::open(folder.join("root/images.redb")).unwrap();
    let read = database.begin_read().unwrap();
    read.open_table(redb::TableDefinition::<&str, &[u8]>::new("layers")).unwrap().len().unwrap()
}

#[tokio::test]
async fn a_complete_layer_goes_with_its_bad_sibling() {
    let scene = Scene::new();
    let pull = scene.start("bad:t");
    scene.open(SHARED);
    scene.wait_arrived().await;
    assert_eq!((scene.node.layer_folders(), scene.node.journal()), (1, 1));
    scene.open(JUNK);
    check_bad(pull).await;
    // Whoever hears of the failure finds the layer gone.
    assert_eq!((scene.node.layer_folders(), scene.node.journal()), (0, 0));
    scene.node.wait_settled(0).await;
}

#[tokio::test]
async fn so_does_one_that_is_durable_already() {
    let scene = Scene::new();
    let pull = scene.start("bad:t");
    scene.open(SHARED);
    scene.wait_arrived().await;
    scene.node.images.inner.store.flush().unwrap();
    scene.open(JUNK);
    check_bad(pull).await;
    scene.node.wait_settled(0).await;
    assert_eq!(scene.node.journal(), 1, "the disk is to forget it");
    scene.node.images.inner.store.flush().unwrap();
    assert_eq!(scene.node.journal(), 0);
    let TestNode { folder, images } = scene.node;
    drop(images);
    assert_eq!(on_disk(folder.path()), 0);
}

#[tokio::test]
async fn whoever_joined_the_layer_keeps_it_when_the_first_fails() {
    for first in ["bad:t", "good:t"] {
        let scene = Scene::new();
        let one = scene.start(first);
        scene.waiting(1).await;
        let two = scene.start(if first == "bad:t" { "good:t" } else { "bad:t" });
        scene.waiting(2).await;
        let (bad, good) = if first == "bad:t" { (one, two) } else { (two, one) };
        scene.open(JUNK);
        check_bad(bad).await;
        scene.waiting(1).await;
        scene.open(SHARED);
        scene.open(OTHER);
        scene.check_good(good).await;
        assert_eq!(scene.registry.hits(&Digest::of(&scene.shared.blob).to_string()), 1);
    }
}

#[tokio::test]
async fn whoever_found_the_layer_present_keeps_it_before_its_commit() {
    for first in ["bad:t", "good:t"] {
        let scene = Scene::new();
        let one = scene.start(first);
        scene.open(SHARED);
        scene.wait_arrived().await;
        let two = scene.start(if first == "bad:t" { "good:t" } else { "bad:t" });
        let (bad, good) = if first == "bad:t" { (one, two) } else { (two, one) };
        // Each asks for its own layer once it holds the shared one.
        until("all blobs are asked for", || scene.registry.hits("/blobs/") == 5).await;
        scene.open(JUNK);
        check_bad(bad).await;
        assert!(scene.node.images.inner.store.layer(&scene.shared.diff_id.to_string()).is_some());
        scene.open(OTHER);
        scene.check_good(good).await;
        assert_eq!(scene.registry.hits(&Digest::of(&scene.shared.blob).to_string()), 1);
    }
}

#[tokio::test]
async fn a_layer_of_an_image_outlives_failed_pulls() {
    let scene = Scene::new();
    let good = scene.start("good:t");
    scene.open(SHARED);
    scene.open(OTHER);
    scene.check_good(good).await;
    let bad = scene.start("bad:t");
    scene.open(JUNK);
    check_bad(bad).await;
    scene.node.wait_settled(2).await;
    let images = scene.node.images.list();
    assert_eq!(images.len(), 1);
    assert!(images.iter().all(|image| scene.node.file(image, 1, "etc/hello").exists()));
}

#[tokio::test]
async fn a_cancelled_pull_takes_its_complete_layers_along() {
    let scene = Scene::new();
    let pull = scene.start("good:t");
    scene.open(SHARED);
    scene.wait_arrived().await;
    pull.abort();
    assert!(pull.await.unwrap_err().is_cancelled());
    scene.node.wait_settled(0).await;
    assert_eq!(scene.node.journal(), 0);
    let again = scene.start("good:t");
    scene.open(SHARED);
    scene.open(OTHER); // For the answer that nobody hears.
    scene.open(OTHER);
    scene.check_good(again).await;
}

#[tokio::test]
async fn a_cancelled_pull_leaves_others_what_they_need() {
    let scene = Scene::new();
    let cancelled = scene.start("bad:t");
    scene.open(SHARED);
    scene.wait_arrived().await;
    let good = scene.start("good:t");
    until("all blobs are asked for", || scene.registry.hits("/blobs/") == 5).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    scene.open(OTHER);
    scene.check_good(good).await;
}

/// Its thread has all it needs and does not notice: the layer is complete when nobody wants it.
#[tokio::test]
async fn a_layer_that_is_done_after_its_pull_was_cancelled_goes() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let large = PushedLayer::gzip(&Archive::new().file("a", &[0; 1 << 20]).file("b", &vec![0; 32 << 20]));
    registry.image("a", "t", &[large], "V=1");
    let pull = start(&node.images, &registry.name("a:t"));
    let unpacking = || {
        let folders = std::fs::read_dir(node.images.inner.store.ingest_dir()).unwrap();
        folders.flatten().any(|folder| folder.path().join("b").exists()) || node.layer_folders() == 1
    };
    until("the thread has begun", unpacking).await;
    pull.abort();
    drop(pull.await);
    // The image, if the pull was faster than its end.
    let images = &node.images;
    until("nobody holds a layer", || images.inner.store.held_layers() == 0).await;
    node.wait_settled(images.list().len()).await;
    assert_eq!(node.journal(), 2 * images.list().len());
}

/// All at once on several threads, with the sync thread: every image that was pulled is whole, and
/// no layer is here without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_of_good_bad_and_cancelled_pulls_leaves_whole_images_only() {
    require_root();
    let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
    let store = open_store(&config(folder.path()), &HashMap::new()).unwrap();
    let syncer = Syncer::start(Arc::clone(&store)).unwrap();
    let images =
        Images::with(&config(folder.path()), store, TransferLimits::default(), Some(syncer), HashMap::new());
    let node = TestNode { folder, images };
    // Implied directories over a private one: each image has a fix-up layer, too.
    let base = PushedLayer::gzip(&Archive::new().directory("etc/", 0o700));
    let shared = PushedLayer::gzip(&Archive::new().file("etc/hello", b"hello\n"));
    for index in 0..6 {
        let (own, junk) = (Archive::new().file("own", &[index]), junk(&index.to_string()));
        let whole = [base.clone(), shared.clone(), PushedLayer::gzip(&own)];
        registry.image("good", &index.to_string(), &whole, "V=1");
        registry.image("bad", &index.to_string(), &[base.clone(), shared.clone(), junk], "V=2");
    }
    for round in 0..6 {
        let pulls = |name: &str| -> Vec<Pull> {
            (0..6).map(|index| start(&node.images, &registry.name(&format!("{name}:{index}")))).collect()
        };
        // Good ones come one by one; until then all of theirs is cancelled.
        let (bad, mut good) = (pulls("bad"), pulls("good"));
        let cancelled = good.split_off(round);
        for (index, pull) in cancelled.into_iter().enumerate() {
            until("it has begun", || registry.hits("/manifests/") > index || pull.is_finished()).await;
            pull.abort();
            drop(pull.await);
        }
        for pull in bad {
            check_bad(pull).await;
        }
        for pull in good {
            let image = pull.await.unwrap().unwrap();
            assert_eq!(node.images.layers(&image).len(), 4, "three and a fix-up layer");
        }
        until("nobody holds a layer", || node.images.inner.store.held_layers() == 0).await;
        let mut wanted: Vec<String> =
            node.images.list().iter().flat_map(|image| node.images.layers(image)).collect();
        wanted.sort();
        wanted.dedup();
        let found = std::fs::read_dir(node.images.layers_dir()).unwrap();
        let mut found: Vec<String> =
            found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        assert_eq!(found, wanted, "round {round}");
        assert!(node.images.list().len() >= round);
    }
    until("all is durable", || node.journal() == 0 && node.ingest() == 0).await;
    let (before, count) = (node.images.list(), node.layer_folders());
    let TestNode { folder, images } = node;
    drop(images);
    assert_eq!(on_disk(folder.path()), count as u64);
    assert_eq!(open(folder.path()).list(), before);
}
