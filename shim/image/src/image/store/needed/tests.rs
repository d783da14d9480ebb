//! Holds against the journal and the disk, without a registry.

use super::*;
use crate::image::ImagesConfig;
use crate::image::store::disk::IndexDatabase;

struct Fixture {
    folder: tempfile::TempDir,
    store: ImageStore,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ImagesConfig {
            root: folder.path().join("root"),
            state: folder.path().join("state"),
            hosts_dir: None,
            docker_config: None,
            unpacker: crate::image::Unpacker::Thread,
            switches: crate::image::Switches::default(),
        };
        Self { store: ImageStore::open(&config, std::iter::empty()).unwrap(), folder }
    }

    /// As the thread of a pull does it; the layer holds one file named `content`.
    fn add(&self, key: &str, content: &str) {
        self.add_implying(key, content, &[], 0);
    }

    fn add_implying(&self, key: &str, content: &str, implied: &[&str], implied_weight: u64) {
        let begun = self.store.loss_mark();
        let ingest = Ingest::new(self.store.ingest_dir()).unwrap();
        std::fs::write(ingest.path().join(content), "").unwrap();
        let record = LayerRecord {
            folder: format!("f-{key}"),
            blob: String::new(),
            compressed: 1,
            unpacked: 1,
            implied: keys(implied),
            implied_weight,
            empty: false,
            opaque_root: false,
            exact: false,
        };
        self.store.add_layer(key, record, ingest, &begun).unwrap();
    }

    /// Layers in memory, in the folders, in the journal (`-` for one dropped), and on disk. Closes
    /// the store.
    fn check(self, memory: &[&str], journal: &[&str], disk: &[&str]) {
        let state = &self.store;
        let mut known: Vec<String> = state.read(|state| state.layers.keys().cloned().collect());
        known.sort();
        assert_eq!(known, memory, "memory");
        assert_eq!(names(&state.layers_dir), memory.iter().map(|key| format!("f-{key}")).collect::<Vec<_>>());
        assert!(names(&state.ingest_dir).is_empty(), "nothing temporary stays");
        let pending = state.journal().pending().iter().map(shown).collect::<Vec<_>>();
        assert_eq!(pending, journal, "journal");
        assert_eq!(names(&self.folder.path().join("state/images")).len(), journal.len(), "journal files");
        drop(self.store);
        let (_, changes) = IndexDatabase::open(&self.folder.path().join("root/images.redb")).unwrap();
        assert_eq!(changes.iter().map(shown).collect::<Vec<_>>(), disk, "disk");
    }
}

fn shown(change: &StoreChange) -> String {
    match change {
        StoreChange::Layer { key, .. } => key.clone(),
        StoreChange::DropLayer { key } => format!("-{key}"),
        other => panic!("{other:?}"),
    }
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[test]
fn a_layer_goes_without_trace_when_the_last_lets_go() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a", "b"]));
    own.store.hold(&keys(&["a"]));
    own.add("a", "x");
    own.add("b", "x");
    assert_eq!(own.store.release(&keys(&["a", "b"])), 1);
    assert!(own.store.layer("a").is_some() && own.store.layer("b").is_none());
    assert_eq!(own.store.release(&keys(&["a"])), 1);
    assert_eq!(own.store.held_layers(), 0);
    own.check(&[], &[], &[]);
}

#[test]
fn one_that_the_sync_thread_has_in_hand_is_dropped_after_it() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a", "b"]));
    own.add("a", "x");
    // The first half of a flush, then the second.
    let last = own.store.journal().begin_sync().unwrap().unwrap();
    let offered = own.store.journal().pending_until(last);
    own.add("b", "x");
    assert_eq!(own.store.release(&keys(&["a", "b"])), 2);
    own.store.disk.apply(offered.iter().map(|(_, change)| change)).unwrap();
    own.store.journal().forget(last).unwrap();
    own.store.journal().finish_sync().unwrap();
    let pending: Vec<String> = own.store.journal().pending().iter().map(shown).collect();
    assert_eq!(pending, ["-a"], "the disk has never heard of b");
    own.store.flush().unwrap();
    own.check(&[], &[], &[]);
}

#[test]
fn a_durable_one_is_dropped_on_disk_and_may_come_back() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a"]));
    own.add("a", "x");
    own.store.flush().unwrap();
    assert_eq!(own.store.release(&keys(&["a"])), 1);
    own.store.hold(&keys(&["a"]));
    own.add("a", "x");
    own.check(&["a"], &["-a", "a"], &["a"]);

    let own = Fixture::new();
    own.store.hold(&keys(&["a"]));
    own.add("a", "x");
    own.store.flush().unwrap();
    own.store.release(&keys(&["a"]));
    own.store.hold(&keys(&["a"]));
    own.add("a", "x");
    own.store.release(&keys(&["a"]));
    own.store.flush().unwrap();
    own.check(&[], &[], &[]);
}

#[test]
fn the_first_to_bring_a_layer_counts() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a"]));
    own.add("a", "first");
    own.add("a", "second");
    assert_eq!(names(&own.store.layers_dir.join("f-a")), ["first"]);
    own.check(&["a"], &["a"], &[]);
}

#[test]
fn a_folder_that_nobody_knows_makes_way() {
    let own = Fixture::new();
    std::fs::create_dir_all(own.store.layers_dir.join("f-a/old")).unwrap();
    own.store.hold(&keys(&["a"]));
    own.add("a", "new");
    assert_eq!(names(&own.store.layers_dir.join("f-a")), ["new"]);
}

#[test]
fn a_lost_folder_or_journal_entry_does_not_keep_the_rest() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a", "b"]));
    own.add("a", "x");
    own.add("b", "x");
    std::fs::remove_dir_all(own.store.layers_dir.join("f-a")).unwrap();
    std::fs::remove_file(own.folder.path().join("state/images/0000000000000002.json")).unwrap();
    assert_eq!(own.store.release(&keys(&["a", "b"])), 2);
    assert!(own.store.layer("a").is_none() && own.store.layer("b").is_none());
    assert!(names(&own.store.layers_dir).is_empty());
}

#[test]
fn what_a_layer_implies_is_in_the_journal_or_on_disk_and_not_in_memory() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a"]));
    own.add_implying("a", "x", &["b", "b/c"], 130);
    let check = || {
        assert_eq!(own.store.implied_directories("a").unwrap(), ["b", "b/c"]);
        let known = own.store.layer("a").unwrap();
        assert!(known.implied.is_empty() && known.implied_weight == 130, "{known:?}");
    };
    check();
    own.store.flush().unwrap();
    check();
    assert!(own.store.implied_directories("none").unwrap().is_empty());
}

#[test]
fn a_heavy_journal_goes_to_disk_before_the_pull_is_done() {
    let own = Fixture::new();
    own.store.hold(&keys(&["a", "b"]));
    own.add_implying("a", "x", &[], crate::image::store::MOST_PENDING);
    own.store.flush_if_heavy().unwrap();
    assert_eq!(own.store.journal().weight(), crate::image::store::MOST_PENDING, "not yet");
    own.add_implying("b", "y", &[], 1);
    own.store.flush_if_heavy().unwrap();
    own.check(&["a", "b"], &[], &["a", "b"]);
}

#[test]
fn a_deletion_that_takes_long_goes_on_behind_its_caller_s_back() {
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let (done, ended) = std::sync::mpsc::channel();
    let slow = move || {
        may_go.recv().unwrap();
        done.send(()).unwrap();
    };
    assert!(!beside(Duration::from_millis(1), slow));
    go.send(()).unwrap();
    ended.recv().unwrap();
    assert!(beside(Duration::from_secs(60), || ()));
}
