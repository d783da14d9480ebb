//! What survives a crash, a reboot and a power cut.

use std::fs;

use super::archive::PushedLayer;
use super::*;

/// The file of the only change in the journal's `index`th place.
fn journal(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder.join("state/images")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

async fn pull_image() -> (tempfile::TempDir, Arc<Image>) {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let image = node.pull(&registry.name("a:t")).await.unwrap();
    (node.folder, image)
}

#[tokio::test]
async fn a_crash_before_the_sync_loses_nothing_in_the_same_boot() {
    let (folder, image) = pull_image().await;
    assert_eq!(journal(folder.path()).len(), 2, "a layer and an image");
    fs::create_dir(folder.path().join("root/layers/unknown")).unwrap();
    fs::create_dir_all(folder.path().join("root/ingest/half/etc")).unwrap();
    fs::write(folder.path().join("state/images/0000000000000009.new"), "{").unwrap();
    let images = open(folder.path());
    assert_eq!(images.list(), [image]);
    assert_eq!(count(&folder.path().join("root/layers")), 1);
    // In the background: nobody waits for it.
    until("what nobody knows is gone", || count(&folder.path().join("root/ingest")) == 0).await;
    assert_eq!(journal(folder.path()).len(), 2);
}

#[tokio::test]
async fn a_power_cut_before_the_sync_takes_layer_and_image() {
    for lose_run in [true, false] {
        let (folder, _) = pull_image().await;
        for file in journal(folder.path()) {
            if lose_run {
                fs::remove_file(file).unwrap();
            } else {
                // A state folder that is no tmpfs: only the boot id tells.
                let mut pending: serde_json::Value =
                    serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
                pending["boot_id"] = "another".into();
                fs::write(&file, pending.to_string()).unwrap();
            }
        }
        let images = open(folder.path());
        assert!(images.list().is_empty());
        assert_eq!(count(&folder.path().join("root/layers")), 0);
        assert!(journal(folder.path()).is_empty());
    }
}

/// Where the state folder is a disk, renamed files may come back empty.
#[tokio::test]
async fn an_entry_that_a_power_cut_emptied_or_tore_stops_no_start() {
    for text in ["", r#"{"version":1,"boot_id":"x","cha"#] {
        let (folder, image) = pull_image().await;
        open_store(&config(folder.path()), &HashMap::new()).unwrap().flush().unwrap();
        let state = folder.path().join("state/images");
        fs::write(state.join("0000000000000007.json"), text).unwrap();
        fs::write(state.join("0000000000000008.doubt"), text).unwrap();
        assert_eq!(open(folder.path()).list(), [image]);
        assert!(journal(folder.path()).is_empty());
    }
}

#[tokio::test]
async fn after_the_sync_all_survives_without_run() {
    let (folder, image) = pull_image().await;
    let images = Images::open(&config(folder.path()), HashMap::new()).unwrap();
    let path = folder.path().to_owned();
    until("the journal is empty", || journal(&path).is_empty()).await;
    drop(images);
    fs::remove_dir_all(folder.path().join("state")).unwrap();
    let images = open(folder.path());
    assert_eq!(images.list(), [image]);
}

/// The index is lost, or is no index: in both cases nothing of it is known.
async fn without_an_index(spoil: impl Fn(&Path)) {
    let (folder, image) = pull_image().await;
    let keys = image.layer_keys().to_vec();
    drop(Images::open(&config(folder.path()), HashMap::new()).unwrap());
    let layers = folder.path().join("root/layers");
    let before: Vec<PathBuf> = fs::read_dir(&layers).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(before.len(), 1);
    fs::create_dir(layers.join("unknown")).unwrap();
    spoil(&folder.path().join("root/images.redb"));
    fs::remove_dir_all(folder.path().join("state")).unwrap();
    let pinned = HashMap::from([("web".to_owned(), keys)]);
    let images = Images::open(&config(folder.path()), pinned).unwrap();
    assert!(images.list().is_empty(), "of the image nothing is known any more");
    assert!(before[0].join("hello").exists() || fs::read_dir(&before[0]).unwrap().count() > 0);
    assert!(!layers.join("unknown").exists(), "nobody stands on it");
    images.unpin("web");
    drop(images);
    drop(Images::open(&config(folder.path()), HashMap::new()).unwrap());
    assert!(!before[0].exists(), "the container is gone, and so is its layer");
}

#[tokio::test]
async fn a_lost_index_takes_no_layer_from_a_container() {
    without_an_index(|index| fs::remove_file(index).unwrap()).await;
}

#[tokio::test]
async fn a_damaged_index_is_set_aside_and_takes_no_layer_from_a_container() {
    without_an_index(|index| fs::write(index, "no database\n".repeat(1000)).unwrap()).await;
    without_an_index(|index| {
        let bytes = fs::read(index).unwrap();
        fs::write(index, &bytes[..bytes.len() / 2]).unwrap();
    })
    .await;
}

/// redb panics on most of them, and a panic would end the runtime at every start.
#[tokio::test]
async fn a_damaged_page_of_the_index_stops_no_start() {
    let (folder, _) = pull_image().await;
    let own = config(folder.path());
    open_store(&own, &HashMap::new()).unwrap().flush().unwrap();
    let path = folder.path().join("root/images.redb");
    let whole = fs::read(&path).unwrap();
    let used = |page: &usize| whole[page * 4096..][..4096].iter().any(|byte| *byte != 0);
    let pages: Vec<usize> = (0..whole.len() / 4096).filter(used).collect();
    for (page, fill) in pages.iter().flat_map(|page| [(*page, 0), (*page, 0xff)]) {
        let mut bytes = whole.clone();
        bytes[page * 4096..][..4096].fill(fill);
        fs::write(&path, &bytes).unwrap();
        drop(open_store(&own, &HashMap::new()).unwrap());
        open_store(&own, &HashMap::new()).unwrap().flush().unwrap();
    }
    let is_aside = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(".damaged-");
    let aside =
        fs::read_dir(folder.path().join("root")).unwrap().map(Result::unwrap).filter(is_aside).count();
    assert!(aside > pages.len(), "{aside} of {} times it was set aside", pages.len() * 2);
}

/// The layer was in doubt and came again: the older index has it by its first folder, here or gone.
#[tokio::test]
async fn an_older_index_takes_no_layer_from_a_container() {
    for first_is_there in [true, false] {
        let (folder, image) = pull_image().await;
        let keys = image.layer_keys().to_vec();
        drop(Images::open(&config(folder.path()), HashMap::new()).unwrap());
        fs::remove_dir_all(folder.path().join("state")).unwrap();
        let layers = folder.path().join("root/layers");
        let first = fs::read_dir(&layers).unwrap().next().unwrap().unwrap().path();
        let again = first.with_extension("1");
        fs::create_dir_all(again.join("hello")).unwrap();
        if !first_is_there {
            fs::remove_dir_all(&first).unwrap();
        }
        let pinned = HashMap::from([("web".to_owned(), keys)]);
        let images = Images::open(&config(folder.path()), pinned).unwrap();
        assert!(again.join("hello").exists(), "first folder there: {first_is_there}");
        assert_eq!(first.exists(), first_is_there);
        images.unpin("web");
        assert!(!again.exists(), "the container is gone");
        assert_eq!(images.list().len(), usize::from(first_is_there));
    }
}

#[tokio::test]
async fn an_image_whose_layer_is_gone_is_pulled_again() {
    let (folder, image) = pull_image().await;
    drop(Images::open(&config(folder.path()), HashMap::new()).unwrap());
    let layer = fs::read_dir(folder.path().join("root/layers")).unwrap().next().unwrap().unwrap().path();
    fs::remove_dir_all(layer).unwrap();
    let images = open(folder.path());
    assert!(images.list().is_empty());
    assert!(images.find(&image.id).is_none());
    drop(images);
    assert!(open(folder.path()).list().is_empty(), "it is forgotten on disk too");
}

/// What a crash in mid-pull leaves: a complete layer, and no image.
#[tokio::test]
async fn layers_that_no_image_has_are_dropped_at_the_start() {
    for durable in [false, true] {
        let (folder, _) = pull_image().await;
        if durable {
            open_store(&config(folder.path()), &HashMap::new()).unwrap().flush().unwrap();
            let database = redb::Database::open(folder.path().join("root/images.redb")).unwrap();
            let write = database.begin_write().unwrap();
            write.delete_table(redb::TableDefinition::<&str, &[u8]>::new("images")).unwrap();
            write.delete_table(redb::TableDefinition::<&str, &str>::new("names")).unwrap();
            write.commit().unwrap();
        } else {
            fs::remove_file(&journal(folder.path())[1]).unwrap();
        }
        assert_eq!(count(&folder.path().join("root/layers")), 1);
        let store = open_store(&config(folder.path()), &HashMap::new()).unwrap();
        assert_eq!(count(&folder.path().join("root/layers")), 0, "durable: {durable}");
        assert!(journal(folder.path()).is_empty());
        store.flush().unwrap();
        drop(store);
        assert_eq!(super::leftovers::on_disk(folder.path()), 0);
    }
}

#[tokio::test]
async fn unknown_versions_are_refused_by_name() {
    let (folder, _) = pull_image().await;
    let file = journal(folder.path()).remove(0);
    let pending = fs::read_to_string(&file).unwrap();
    fs::write(&file, pending.replacen("\"version\":1", "\"version\":2", 1)).unwrap();
    let error = open_store(&config(folder.path()), &HashMap::new()).unwrap_err();
    assert!(chain(&error).contains("has format 2, this program knows 1"), "{}", chain(&error));
    fs::write(&file, pending).unwrap();

    let path = folder.path().join("root/images.redb");
    {
        let database = redb::Database::open(&path).unwrap();
        let write = database.begin_write().unwrap();
        let meta = redb::TableDefinition::<&str, u64>::new("meta");
        write.open_table(meta).unwrap().insert("version", 9).unwrap();
        write.commit().unwrap();
    }
    let error = open_store(&config(folder.path()), &HashMap::new()).unwrap_err();
    assert!(chain(&error).contains("images.redb has format 9"), "{}", chain(&error));
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let (folder, _) = pull_image().await;
    let _first = open(folder.path());
    let error = open_store(&config(folder.path()), &HashMap::new()).unwrap_err();
    assert!(chain(&error).contains("opening the image database"), "{}", chain(&error));
}
