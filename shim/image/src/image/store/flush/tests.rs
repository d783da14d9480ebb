//! Flushes against a disk that fails, hangs, or outlives the process that asked it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::image::ImagesConfig;
use crate::image::digest::Digest;
use crate::image::ingest::Ingest;
use crate::image::store::record::{ImageRecord, LayerRecord};

/// What the disk does when it is asked; without more, it has all.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<SyncAnswer>>>);

type SyncAnswer = Box<dyn FnOnce() -> Result<(), Errno> + Send>;

impl fmt::Debug for Answers {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Answers")
    }
}

impl WriteBack for Answers {
    fn sync(&self) -> Result<(), Errno> {
        // The lock is gone before the answer: another flush may come.
        let answer = self.0.lock().unwrap().pop();
        answer.map_or(Ok(()), |answer| answer())
    }
}

impl Answers {
    /// For the next time.
    fn next(&self, answer: impl FnOnce() -> Result<(), Errno> + Send + 'static) {
        self.0.lock().unwrap().push(Box::new(answer));
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    disk: Answers,
    store: ImageStore,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Answers::default();
        let store = ImageStore::open_with(&config(folder.path()), std::iter::empty(), Box::new(disk.clone()));
        Self { store: store.unwrap(), folder, disk }
    }

    /// As after a kill -9 and a new start, by which containers hold `pinned`.
    fn again(self, pinned: &[&str]) -> Self {
        let Self { folder, disk, store } = self;
        drop(store);
        let pinned: Vec<String> = pinned.iter().map(|key| (*key).to_owned()).collect();
        let store = ImageStore::open_with(&config(folder.path()), pinned.iter(), Box::new(disk.clone()));
        Self { store: store.unwrap(), folder, disk }
    }

    /// As a pull does it that goes well: a layer with one file, and an image of it.
    fn pull(&self, key: &str, content: &str) {
        self.hold(key);
        self.bring(key, content, &self.store.loss_mark()).unwrap();
        self.image(key).unwrap();
        self.store.release(&[key.to_owned()]);
    }

    fn hold(&self, key: &str) {
        self.store.hold(&[key.to_owned()]);
    }

    fn bring(
        &self,
        key: &str,
        content: &str,
        begun: &super::super::needed::LossMark,
    ) -> Result<(), StoreError> {
        let ingest = Ingest::new(self.store.ingest_dir()).unwrap();
        std::fs::write(ingest.path().join(content), "").unwrap();
        let record = LayerRecord {
            folder: format!("f-{key}"),
            blob: String::new(),
            compressed: 1,
            unpacked: 1,
            implied: Vec::new(),
            implied_weight: 0,
            empty: false,
            opaque_root: false,
            exact: false,
        };
        self.store.add_layer(key, record, ingest, begun)
    }

    fn image(&self, key: &str) -> Result<(), StoreError> {
        let diff_id = Digest::of(key.as_bytes());
        let record = ImageRecord {
            manifest_digest: String::new(),
            manifest: String::new(),
            config: format!(r#"{{"rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#),
            diff_ids: vec![key.to_owned()],
            size: 1,
            fixup: None,
        };
        self.store.add_image(&format!("i-{key}"), record, vec![format!("name-{key}")]).map(drop)
    }

    /// Images that redb has.
    fn on_disk(&self) -> Vec<String> {
        self.store.disk.images().unwrap()
    }

    fn images(&self) -> Vec<String> {
        self.store.list().iter().map(|image| image.id.clone()).collect()
    }

    fn layers(&self) -> Vec<String> {
        names(&self.folder.path().join("root/layers"))
    }

    fn journal(&self) -> Vec<String> {
        names(&self.journal_dir())
    }

    fn journal_dir(&self) -> PathBuf {
        self.folder.path().join("state/images")
    }
}

fn config(folder: &Path) -> ImagesConfig {
    ImagesConfig {
        root: folder.join("root"),
        state: folder.join("state"),
        hosts_dir: None,
        docker_config: None,
        unpacker: crate::image::Unpacker::Thread,
        switches: crate::image::Switches::default(),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The journal as another process would see it now.
fn copy(journal: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in names(journal) {
        std::fs::copy(journal.join(&name), to.join(&name)).unwrap();
    }
}

#[test]
fn what_the_disk_lost_is_nowhere_and_what_it_had_stays() {
    let own = Fixture::new();
    own.pull("old", "x");
    own.store.flush().unwrap();
    own.pull("new", "x");
    own.disk.next(|| Err(Errno::IO));
    let lost = own.store.flush().unwrap_err();
    assert!(matches!(lost, StoreError::Lost { layers: 1, .. }), "{lost}");
    assert_eq!((own.images(), own.layers()), (vec!["i-old".into()], vec!["f-old".into()]));
    assert!(own.store.find("name-new").is_none() && own.store.layer("new").is_none());
    let own = own.again(&[]);
    assert_eq!(own.images(), ["i-old"], "before the next flush");
    own.store.flush().unwrap();
    assert_eq!(own.on_disk(), ["i-old"]);
    own.pull("new", "x");
    own.disk.next(|| Err(Errno::IO));
    own.store.flush().unwrap_err();
    own.store.flush().unwrap();
    assert_eq!(own.on_disk(), ["i-old"], "in the same process");
    assert!(own.journal().is_empty());
    let own = own.again(&[]);
    assert_eq!((own.images(), own.layers()), (vec!["i-old".into()], vec!["f-old".into()]));
}

#[test]
fn whoever_holds_a_lost_layer_keeps_its_folder_and_a_pull_brings_another() {
    let own = Fixture::new();
    own.pull("a", "first");
    own.hold("a");
    own.disk.next(|| Err(Errno::NOSPC));
    own.store.flush().unwrap_err();
    assert!(own.images().is_empty() && own.store.layer("a").is_none(), "nobody new gets it");
    assert_eq!(own.layers(), ["f-a"]);
    assert!(own.store.folders().contains("f-a"), "it takes room");

    let own = own.again(&["a"]);
    assert!(own.images().is_empty() && own.store.layer("a").is_none(), "nor after a restart");
    own.pull("a", "second");
    assert_eq!((own.images(), own.layers()), (vec!["i-a".into()], vec!["f-a".into(), "f-a.1".into()]));
    own.store.flush().unwrap();
    let own = own.again(&["a"]);
    assert_eq!((own.images(), own.layers()), (vec!["i-a".into()], vec!["f-a".into(), "f-a.1".into()]));
    assert_eq!(names(&own.store.layers_dir().join("f-a")), ["first"]);
    assert_eq!(names(&own.store.layers_dir().join(&own.store.layer("a").unwrap().folder)), ["second"]);

    assert_eq!(own.store.release(&["a".to_owned()]), 0, "the layer itself is an image's");
    assert_eq!((own.images(), own.layers()), (vec!["i-a".into()], vec!["f-a.1".into()]));
    assert!(own.journal().is_empty());
}

/// Its holder went while no runtime was there.
#[test]
fn a_lost_layer_that_nobody_holds_any_longer_goes_at_the_start() {
    let own = Fixture::new();
    own.pull("a", "x");
    own.hold("a");
    own.disk.next(|| Err(Errno::IO));
    own.store.flush().unwrap_err();
    own.store.flush().unwrap();
    assert_eq!(own.journal(), ["0000000000000001.doubt"]);
    let own = own.again(&[]);
    assert!(own.layers().is_empty() && own.journal().is_empty());
}

/// The kernel told the process of the loss, and it died before it could tell anybody.
#[test]
fn what_a_process_asked_for_that_died_before_the_answer_is_lost() {
    let own = Fixture::new();
    own.pull("a", "x");
    let (journal, kept) = (own.journal_dir(), own.folder.path().join("kept"));
    let moved = kept.clone();
    own.disk.next(move || {
        copy(&journal, &moved);
        Err(Errno::BADF)
    });
    own.store.flush().unwrap_err();
    let journal = own.journal_dir();
    std::fs::remove_dir_all(&journal).unwrap();
    std::fs::rename(&kept, &journal).unwrap();
    let own = own.again(&["a"]);
    assert!(own.images().is_empty() && own.store.layer("a").is_none());
    assert_eq!(own.layers(), ["f-a"], "a container runs from it");
    own.store.flush().unwrap();
    assert_eq!(own.journal(), ["0000000000000001.doubt"]);
    assert!(own.again(&[]).images().is_empty());
}

/// It had been asked before, and died after the commit and before the journal's end.
#[test]
fn what_is_in_doubt_goes_from_redb_too() {
    for pinned in [&["a"][..], &[]] {
        let own = Fixture::new();
        own.pull("a", "x");
        let (journal, kept) = (own.journal_dir(), own.folder.path().join("kept"));
        let moved = kept.clone();
        own.disk.next(move || {
            copy(&journal, &moved);
            Ok(())
        });
        own.store.flush().unwrap();
        assert_eq!(own.on_disk(), ["i-a"]);
        let journal = own.journal_dir();
        std::fs::remove_dir_all(&journal).unwrap();
        std::fs::rename(&kept, &journal).unwrap();
        let own = own.again(pinned);
        assert!(own.images().is_empty() && own.store.layer("a").is_none());
        assert!(own.on_disk().is_empty() && own.store.disk.layer("a").unwrap().is_none());
        assert_eq!(own.layers().len(), pinned.len());
    }
}

/// No loss that it was ever told of: what waits is as good as it was.
#[test]
fn what_a_process_left_that_did_not_ask_is_kept_until_the_disk_says_otherwise() {
    let own = Fixture::new();
    own.pull("a", "x");
    let own = own.again(&[]);
    assert_eq!(own.images(), ["i-a"]);
    own.disk.next(|| Err(Errno::IO));
    own.store.flush().unwrap_err();
    assert!(own.images().is_empty() && own.layers().is_empty());
}

#[test]
fn a_layer_that_was_on_its_way_when_the_disk_failed_is_refused() {
    let own = Fixture::new();
    own.pull("a", "x");
    own.hold("b");
    let begun = own.store.loss_mark();
    own.disk.next(|| Err(Errno::IO));
    own.store.flush().unwrap_err();
    let refused = own.bring("b", "x", &begun).unwrap_err();
    assert!(matches!(refused, StoreError::LostMeanwhile { .. }), "{refused}");
    assert!(own.layers().is_empty() && names(own.store.ingest_dir()).is_empty());
    own.bring("b", "x", &own.store.loss_mark()).unwrap();
}

/// Its layer was there when the pull looked, and is lost before the image is.
#[test]
fn an_image_that_comes_after_the_loss_of_its_layer_is_refused() {
    let own = Fixture::new();
    own.hold("a");
    own.bring("a", "x", &own.store.loss_mark()).unwrap();
    own.disk.next(|| Err(Errno::IO));
    own.store.flush().unwrap_err();
    let refused = own.image("a").unwrap_err();
    assert!(matches!(refused, StoreError::Incomplete { .. }), "{refused}");
}

#[test]
fn a_call_that_was_not_done_costs_nothing() {
    let own = Fixture::new();
    own.pull("a", "x");
    own.disk.next(|| Err(Errno::BADF));
    let failed = own.store.flush().unwrap_err();
    assert!(matches!(failed, StoreError::Io { operation: "syncfs", .. }), "{failed}");
    let own = own.again(&[]);
    assert_eq!(own.images(), ["i-a"]);
    own.store.flush().unwrap();
    assert_eq!(own.again(&[]).images(), ["i-a"]);
}

/// A disk that answers when it is told to: the sender opens it, and the receiver hears that it is asked.
fn slow(disk: &Answers, answer: Result<(), Errno>) -> (Sender<()>, Receiver<()>) {
    let ((go, may_go), (ask, asked)) = (channel(), channel());
    disk.next(move || {
        ask.send(()).unwrap();
        may_go.recv().unwrap();
        answer
    });
    (go, asked)
}

#[test]
fn a_removal_and_a_pull_wait_for_no_sync_and_what_is_removed_stays_so() {
    for answer in [Ok(()), Err(Errno::IO)] {
        let own = Fixture::new();
        own.pull("old", "x");
        own.store.flush().unwrap();
        own.pull("gone", "x");
        own.pull("kept", "x");
        let (go, asked) = slow(&own.disk, answer);
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| own.store.flush());
            asked.recv().unwrap();
            for image in ["i-old", "i-gone"] {
                assert!(own.store.remove_image(image).unwrap(), "{image}");
            }
            assert_eq!(own.store.release(&[]), 2);
            own.pull("late", "x");
            assert!(!flush.is_finished());
            go.send(()).unwrap();
            assert_eq!(flush.join().unwrap().is_ok(), answer.is_ok());
        });
        let left: &[&str] = if answer.is_ok() { &["i-kept", "i-late"] } else { &[] };
        assert_eq!(own.images(), left);
        // The sync began before it came, and says nothing of it.
        assert!(!own.on_disk().contains(&"i-late".to_owned()));
        assert!(own.on_disk().iter().all(|image| image == "i-kept"), "{:?}", own.on_disk());
        let own = own.again(&[]);
        assert_eq!(
            (own.images(), own.layers().len()),
            (left.iter().map(|&id| id.into()).collect(), left.len())
        );
        own.store.flush().unwrap();
        assert_eq!(own.on_disk(), left);
        assert_eq!(own.again(&[]).images(), left);
    }
}

/// Removed and brought again while the disk is asked: the sync says nothing of the second one's files.
#[test]
fn a_layer_that_is_replaced_during_a_sync_waits_for_the_next() {
    let own = Fixture::new();
    own.pull("a", "first");
    let (go, asked) = slow(&own.disk, Ok(()));
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| own.store.flush());
        asked.recv().unwrap();
        own.store.remove_image("i-a").unwrap();
        own.store.release(&[]);
        own.pull("a", "second");
        go.send(()).unwrap();
        flush.join().unwrap().unwrap();
    });
    assert!(own.on_disk().is_empty());
    assert!(own.store.disk.layer("a").unwrap().is_none());
    own.store.flush().unwrap();
    assert_eq!(own.on_disk(), ["i-a"]);
}
