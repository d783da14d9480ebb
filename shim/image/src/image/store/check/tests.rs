//! Each fault made on the disk or in the index, and seen named.

use std::fs;

use super::*;
use crate::image::digest::Digest;
use crate::image::ingest::Ingest;
use crate::image::store::record::StoreChange;
use crate::image::{ImagesConfig, Switches, Unpacker};

/// A store with one image of one layer, whose files have five bytes.
struct Whole {
    _folder: tempfile::TempDir,
    store: ImageStore,
    layer: String,
    image: String,
}

impl Whole {
    fn new(exact: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ImagesConfig {
            root: folder.path().join("root"),
            state: folder.path().join("state"),
            hosts_dir: None,
            docker_config: None,
            unpacker: Unpacker::Thread,
            switches: Switches::default(),
        };
        let store = ImageStore::open(&config, std::iter::empty()).unwrap();
        let layer = Digest::of(b"a layer").to_string();
        let ingest = Ingest::new(store.ingest_dir()).unwrap();
        fs::write(ingest.path().join("file"), "hello").unwrap();
        fs::hard_link(ingest.path().join("file"), ingest.path().join("same")).unwrap();
        let record = LayerRecord {
            folder: "f".to_owned(),
            blob: String::new(),
            compressed: 1,
            unpacked: 5,
            implied: Vec::new(),
            implied_weight: 0,
            empty: false,
            opaque_root: false,
            exact,
        };
        // Held, or the next release would take it.
        store.hold(std::slice::from_ref(&layer));
        store.add_layer(&layer, record, ingest, &store.loss_mark()).unwrap();
        let (manifest, text) = (
            "{}".to_owned(),
            r#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["#,
        );
        let text = format!("{text}\"{layer}\"]}}}}");
        let image = Digest::of(text.as_bytes()).to_string();
        let record = ImageRecord {
            manifest_digest: Digest::of(manifest.as_bytes()).to_string(),
            manifest,
            config: text,
            diff_ids: vec![layer.clone()],
            size: 1,
            fixup: None,
        };
        store.add_image(&image, record, vec!["a:b".to_owned()]).unwrap();
        Self { _folder: folder, store, layer, image }
    }

    fn file(&self) -> std::path::PathBuf {
        self.store.layers_dir().join("f/file")
    }

    fn faults(&self) -> Vec<StoreFault> {
        self.store.check().unwrap().faults
    }

    fn size_fault(&self, found: u64) -> StoreFault {
        let (layer, folder, images) = (self.layer.clone(), "f".to_owned(), "a:b".to_owned());
        StoreFault::LayerSize { layer, folder, images, unpacked: 5, found }
    }
}

#[test]
fn a_store_that_is_whole_is_told_so_and_counted() {
    let whole = Whole::new(true);
    let expected = StoreCheck { images: 1, layers: 1, bytes: 5, faults: Vec::new() };
    assert_eq!(whole.store.check().unwrap(), expected);
}

#[test]
fn a_file_that_was_cut_short_is_named_unless_the_archive_had_it_twice() {
    let whole = Whole::new(true);
    fs::write(whole.file(), "hell").unwrap();
    assert_eq!(whole.faults(), [whole.size_fault(4)]);
    let replaced = Whole::new(false);
    fs::write(replaced.file(), "hell").unwrap();
    assert_eq!(replaced.faults(), []);
    fs::write(replaced.file(), "hello, world").unwrap();
    assert_eq!(replaced.faults(), [replaced.size_fault(12)]);
}

#[test]
fn a_folder_that_is_gone_and_one_that_nobody_has_are_named() {
    let whole = Whole::new(true);
    fs::rename(whole.store.layers_dir().join("f"), whole.store.layers_dir().join("g")).unwrap();
    let gone = StoreFault::LayerGone {
        layer: whole.layer.clone(),
        folder: "f".to_owned(),
        images: "a:b".to_owned(),
    };
    assert_eq!(whole.faults(), [StoreFault::StrayFolder { folder: "g".to_owned() }, gone]);
}

#[test]
fn an_image_without_its_layer_is_named() {
    let whole = Whole::new(true);
    whole.store.write(|state| state.note(StoreChange::DropLayer { key: whole.layer.clone() }));
    let incomplete = StoreFault::ImageIncomplete { image: "a:b".to_owned(), layer: whole.layer.clone() };
    assert_eq!(whole.faults(), [StoreFault::StrayFolder { folder: "f".to_owned() }, incomplete]);
}

#[test]
fn a_document_that_is_not_the_one_that_was_pulled_is_named() {
    let whole = Whole::new(true);
    let record = whole.store.image_record(&whole.image).unwrap();
    let record = ImageRecord { manifest: "{ }".to_owned(), ..(*record).clone() };
    let known: HashSet<&str> = HashSet::from([whole.layer.as_str()]);
    let image = IndexedImage { id: whole.image.clone(), name: "a:b".to_owned(), record: Arc::new(record) };
    let fault = StoreFault::ImageDocument { image: "a:b".to_owned(), document: "manifest" };
    assert_eq!(image_faults(&image, &known), [fault]);
}

#[test]
fn a_layer_of_which_not_all_was_looked_at_is_not_called_whole() {
    let whole = Whole::new(true);
    let record = whole.store.layer(&whole.layer).unwrap();
    let fault = layer_fault(&whole.layer, &record, Ok(FileBytes::TooMany), || "a:b".to_owned()).unwrap();
    assert!(fault.to_string().starts_with("a:b: layer sha256:"), "{fault}");
    assert!(
        fault.to_string().ends_with("more files, or folders within folders, than are looked at"),
        "{fault}"
    );
}
